-- Keys are listed by tenant, newest first.
CREATE INDEX key_of_tenant ON ondot.key (tenant_no, id);
