-- The archive: files that were written before a day of history went, and read back.

-- day: of the rows' ids; NULL: the catch-all of the past, with rows of many days. days: the retention that was applied
-- when the file was written. digest: SHA-256 of its bytes.
CREATE TABLE ondot.archive_file (
    tenant_no integer NOT NULL,
    key       text NOT NULL,
    parent    text NOT NULL,
    name      text NOT NULL,
    day       date,
    days      integer NOT NULL,
    at        timestamptz NOT NULL DEFAULT statement_timestamp(),
    rows      bigint NOT NULL,
    bytes     bigint NOT NULL,
    digest    text NOT NULL,
    PRIMARY KEY (tenant_no, key)
);
CREATE INDEX archive_file_partition ON ondot.archive_file (parent, name, at);
