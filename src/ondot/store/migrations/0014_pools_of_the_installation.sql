-- Pools belong to the installation: a name is unique, workers serve a pool for all tenants, and tenants take turns in it.
--
-- The release before reads and writes pools with tenant_no = 1, so the column stays, with that default, until no such role
-- runs any more. The contract step of the next release drops it; nothing of this release reads it.
--
-- An installation with one tenant only gets another constraint. Otherwise pools of one name become one: the first tenant's
-- where it has one, because only its pools were ever served by workers. So nothing runs in the others and no slot of
-- theirs is taken. A role of the release before would fail on jobs of other tenants, or accept jobs into a pool whose
-- number it remembers and that is gone. So such an installation is upgraded at rest, and this refuses while a scheduler
-- runs.

DO $$ BEGIN
    IF EXISTS (SELECT FROM ondot.pool WHERE tenant_no <> 1)
       AND EXISTS (SELECT FROM ondot.node WHERE expires_at > ondot.clock()) THEN
        RAISE EXCEPTION 'Several tenants have pools, which become pools of the installation: stop every API, scheduler'
            ' and worker, run `ondot migrate up`, and start them again.' USING ERRCODE = 'object_in_use';
    END IF;
END $$;

CREATE TEMPORARY TABLE merged ON COMMIT DROP AS
SELECT pool_no AS old_no, kept_no
FROM (SELECT pool_no, first_value(pool_no) OVER (PARTITION BY name ORDER BY tenant_no, pool_no) AS kept_no
      FROM ondot.pool) p
WHERE pool_no <> kept_no;

DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM merged) THEN
        RETURN;
    END IF;
    UPDATE ondot.job j SET pool_no = m.kept_no FROM merged m WHERE j.pool_no = m.old_no;
    UPDATE ondot.job_once j SET pool_no = m.kept_no FROM merged m WHERE j.pool_no = m.old_no;
    UPDATE ondot.history h SET pool_no = m.kept_no FROM merged m WHERE h.pool_no = m.old_no;
    UPDATE ondot.execution e SET pool_no = m.kept_no FROM merged m WHERE e.pool_no = m.old_no;
    -- Executions of limited jobs pass their gates again, in the line of the pool that is kept: the trigger sees to it.
    DELETE FROM ondot.ready r USING merged m, ondot.gated d WHERE r.pool_no = m.old_no AND d.execution_id = r.execution_id;
    UPDATE ondot.gated d SET pool_no = m.kept_no FROM merged m WHERE d.pool_no = m.old_no;
    DELETE FROM ondot.line l USING merged m WHERE l.pool_no = m.old_no;
    UPDATE ondot.ready r SET pool_no = m.kept_no FROM merged m WHERE r.pool_no = m.old_no;
    -- Of several limits the strictest holds. The housekeeper gives slots to attempts that run.
    UPDATE ondot.pool p
    SET concurrency = least(p.concurrency, o.concurrency)
    FROM (SELECT m.kept_no, min(o.concurrency) AS concurrency
          FROM merged m JOIN ondot.pool o ON o.pool_no = m.old_no GROUP BY 1) o
    WHERE p.pool_no = o.kept_no;
    UPDATE ondot.pool p
    SET rate_limit = o.rate_limit, rate_per_s = o.rate_per_s, rate_burst = o.rate_burst, token_at = o.token_at
    FROM (SELECT DISTINCT ON (m.kept_no) m.kept_no, o.*
          FROM merged m JOIN ondot.pool o ON o.pool_no = m.old_no
          WHERE o.rate_limit IS NOT NULL ORDER BY m.kept_no, o.rate_limit / o.rate_per_s) o
    WHERE p.pool_no = o.kept_no
      AND (p.rate_limit IS NULL OR o.rate_limit / o.rate_per_s < p.rate_limit / p.rate_per_s);
    DELETE FROM ondot.pool p USING merged m WHERE p.pool_no = m.old_no;
END $$;

UPDATE ondot.pool SET tenant_no = 1 WHERE tenant_no <> 1;
ALTER TABLE ondot.pool
    ALTER COLUMN tenant_no SET DEFAULT 1,
    DROP CONSTRAINT pool_tenant_no_name_key,
    ADD CONSTRAINT pool_name_key UNIQUE (name);
