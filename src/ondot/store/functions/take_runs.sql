-- ondot.take_runs(run_ids, most): locks runs that no other transaction has locked, and takes the arrivals of each, up to
-- `most`, as arrays in one order. One round trip, and still two statements: the second has a snapshot from after the locks.
-- One statement alone would see neither the arrivals that were committed while it took the locks nor the run as the
-- transaction before left it.
-- Callers: sql/runs.sql.
-- Locks: the runs, SKIP LOCKED; then their arrivals.
CREATE OR REPLACE FUNCTION ondot.take_runs(run_ids uuid[], most integer)
    RETURNS TABLE (
        id uuid, job_id uuid, tenant_no integer, job_version integer, state text, fire_at timestamptz, class smallint,
        own_payload boolean, is_paused boolean, is_counted boolean, verdict text, reason text, started_at timestamptz,
        blocked_at timestamptz, look_at timestamptz, waiting integer, active integer, succeeded integer, failed integer,
        skipped integer, blocked integer, superseded integer, parent_run_id uuid, parent_step_no integer,
        parent_item_no integer, depth smallint, is_rerun boolean, results_from uuid, now timestamptz, step_nos integer[],
        item_nos integer[], execution_ids uuid[], states text[], waited_s double precision[]
    ) LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    locked uuid[];
BEGIN
    locked := ARRAY(SELECT r.id FROM ondot.run r WHERE r.id = ANY (run_ids) ORDER BY r.job_id, r.id
                    FOR UPDATE SKIP LOCKED);
    RETURN QUERY
    WITH taken AS (
        DELETE FROM ondot.arrival WHERE ctid = ANY (ARRAY(
            SELECT a.row_at FROM unnest(locked) AS l(id) CROSS JOIN LATERAL (
                SELECT ctid AS row_at FROM ondot.arrival WHERE run_id = l.id LIMIT most
            ) a
        ))
        RETURNING run_id, step_no, item_no, execution_id, state, date_part('epoch', ondot.clock() - at) AS waited_s
    ), of_runs AS (
        SELECT t.run_id, array_agg(t.step_no) AS step_nos, array_agg(t.item_no) AS item_nos,
               array_agg(t.execution_id) AS execution_ids, array_agg(t.state) AS states,
               array_agg(t.waited_s) AS waited_s
        FROM taken t GROUP BY t.run_id
    )
    SELECT r.id, r.job_id, r.tenant_no, r.job_version, r.state, r.fire_at, r.class, r.own_payload, r.is_paused,
           r.is_counted, r.verdict, r.reason, r.started_at, r.blocked_at, r.look_at, r.waiting, r.active, r.succeeded,
           r.failed, r.skipped, r.blocked, r.superseded, r.parent_run_id, r.parent_step_no, r.parent_item_no, r.depth,
           r.rerun_of IS NOT NULL, r.results_from, ondot.clock(), o.step_nos, o.item_nos, o.execution_ids, o.states, o.waited_s
    FROM unnest(locked) WITH ORDINALITY AS l(id, no)
    CROSS JOIN LATERAL (SELECT * FROM ondot.run x WHERE x.id = l.id LIMIT 1) r
    LEFT JOIN of_runs o ON o.run_id = l.id
    ORDER BY l.no;
END $$;
