-- ondot.take_quota(of_tenant, of_quota, every_s, burst, least, wanted): takes up to `wanted` tokens of a tenant's bucket, or
-- none if it has fewer than `least`; then wait_s is the time until it has. A bucket that is not there is full. It is never
-- emptier than empty, so that a clock that was set back delays by at most one length of it.
-- Two statements: one alone would write by the snapshot from before it waited for the lock, and two callers would get the
-- same tokens.
-- Callers: sql/quotas.sql.
-- Locks: the row of the quota.
CREATE OR REPLACE FUNCTION ondot.take_quota(of_tenant integer, of_quota text, every_s double precision, burst integer,
                                            least_count integer, wanted integer)
    RETURNS TABLE (count integer, wait_s double precision) LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    empty_at timestamptz;
    held_s double precision;
BEGIN
    SELECT t.token_at INTO empty_at FROM ondot.quota_token t
    WHERE t.tenant_no = of_tenant AND t.quota = of_quota FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO ondot.quota_token (tenant_no, quota, token_at) VALUES (of_tenant, of_quota, 'epoch')
        ON CONFLICT DO NOTHING;
        SELECT t.token_at INTO empty_at FROM ondot.quota_token t
        WHERE t.tenant_no = of_tenant AND t.quota = of_quota FOR UPDATE;
    END IF;
    empty_at := least(greatest(empty_at, ondot.clock() - make_interval(secs => burst * every_s)), ondot.clock());
    held_s := extract(epoch FROM ondot.clock() - empty_at);
    -- A thousandth of a token for rounding.
    count := floor(held_s / every_s + 0.001);
    count := CASE WHEN count >= least_count THEN least(count, wanted) ELSE 0 END;
    wait_s := CASE WHEN count = 0 THEN greatest(least_count * every_s - held_s, 0) ELSE 0 END;
    IF count > 0 THEN
        UPDATE ondot.quota_token t SET token_at = empty_at + make_interval(secs => count * every_s)
        WHERE t.tenant_no = of_tenant AND t.quota = of_quota;
    END IF;
    RETURN NEXT;
END $$;
