-- ondot.tenant_limits_changed(): trigger. The row of tenant_limit follows a tenant's state and quotas. No statement can
-- forget it.
-- Locks: leases of the tenant that are under way hold the same advisory lock, shared or not: they end first, so that none
-- goes by the quotas of before. A changed rate carries its tokens, as that of a pool.
CREATE OR REPLACE FUNCTION ondot.tenant_limits_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    stopped CONSTANT boolean := NEW.state <> 'ACTIVE';
    most CONSTANT integer := (NEW.quotas->>'concurrent')::integer;
    kept CONSTANT integer := nullif((NEW.quotas->>'reserved')::integer, 0);
    tokens CONSTANT integer := (NEW.quotas->'starts'->>'limit')::integer;
    seconds CONSTANT double precision := (NEW.quotas->'starts'->>'per_s')::double precision;
    at_once CONSTANT integer := coalesce((NEW.quotas->'starts'->>'burst')::integer, 1);
    is_counted CONSTANT boolean := most IS NOT NULL OR kept IS NOT NULL;
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.state = OLD.state AND NEW.quotas = OLD.quotas THEN
        RETURN NULL;
    END IF;
    PERFORM pg_advisory_xact_lock({{tenant_lock}}, NEW.tenant_no);
    IF NOT is_counted THEN
        DELETE FROM ondot.tenant_running WHERE tenant_no = NEW.tenant_no;
    END IF;
    IF NOT stopped AND NOT is_counted AND tokens IS NULL THEN
        DELETE FROM ondot.tenant_limit WHERE tenant_no = NEW.tenant_no;
    ELSE
        INSERT INTO ondot.tenant_limit AS l (tenant_no, is_stopped, concurrent, reserved, rate_limit, rate_per_s, rate_burst)
        VALUES (NEW.tenant_no, stopped, most, kept, tokens, seconds, CASE WHEN tokens IS NOT NULL THEN at_once END)
        ON CONFLICT (tenant_no) DO UPDATE
        SET is_stopped = excluded.is_stopped, concurrent = excluded.concurrent, reserved = excluded.reserved,
            rate_limit = excluded.rate_limit, rate_per_s = excluded.rate_per_s, rate_burst = excluded.rate_burst,
            token_at = ondot.token_carried(l.token_at, l.rate_per_s / l.rate_limit, seconds / tokens),
            is_counted = l.is_counted AND (excluded.concurrent IS NOT NULL OR excluded.reserved IS NOT NULL);
    END IF;
    RETURN NULL;
END $$;

-- triggers
CREATE OR REPLACE TRIGGER tenant_limits AFTER INSERT OR UPDATE ON ondot.tenant
    FOR EACH ROW EXECUTE FUNCTION ondot.tenant_limits_changed();
