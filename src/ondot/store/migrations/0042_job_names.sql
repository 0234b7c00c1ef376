-- Jobs by the beginning of their name, whatever its case: what people type is looked for among 100,000 names at once.
CREATE INDEX job_lower_name ON ondot.job (tenant_no, lower(name COLLATE "C"), id) WHERE state <> 'DELETED';
