-- ondot.submit_spec(spec, fire_at, tenant): writes the rows that submit writes for a one-time job (sql/jobs.sql,
-- insert_once_jobs) in the caller's own transaction (E11): the job exists if and only if the caller commits. It is due at
-- fire_at; NULL: now.
-- It runs with the caller's rights; the documentation of transactions lists them. It sends no NOTIFY, which takes a lock that would make
-- the callers' commits wait for each other: workers find the job when they look, once a second.
-- Its trace: that of the spec, or of the session: SET LOCAL ondot.traceparent = '00-…', and ondot.tracestate. What is not
-- valid is ignored, as the standard asks.
-- A limited job gets a timer even if it is due, and a scheduler plans it within a second: an execution that enters a line
-- locks a row that others wait for, and this transaction may stay open for long.
-- Callers: ondot.enqueue, sdk/transaction.py.
CREATE OR REPLACE FUNCTION ondot.submit_spec(
    spec json,
    fire_at timestamptz DEFAULT NULL,
    tenant text DEFAULT 'default'
) RETURNS TABLE (id uuid, due_at timestamptz, created_at timestamptz)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    instant timestamptz := ondot.clock();
    due timestamptz := coalesce(submit_spec.fire_at, instant);
    ready timestamptz := greatest(due, instant);
    job uuid := ondot.new_id();
    stored json;
    of_tenant integer;
    of_pool integer;
    of_class smallint;
    traceparent text := current_setting('ondot.traceparent', true);
    tracestate text;
BEGIN
    PERFORM ondot.check_spec(spec);
    IF traceparent ~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$' AND spec->'trace' IS NULL THEN
        tracestate := current_setting('ondot.tracestate', true);
        spec := format('{"trace":%s,%s%s', to_json(traceparent),
                       CASE WHEN tracestate ~ '^[ -~]+$' AND length(tracestate) <= {{max_tracestate}} THEN '"tracestate":' || to_json(tracestate) || ',' END,
                       substr(ltrim(spec::text, E' \t\r\n'), 2))::json;
    END IF;
    of_tenant := ondot.tenant_no_of(tenant, 1, octet_length((spec->'payload')::text));
    IF NOT isfinite(due) OR due < instant - interval '{{long_ago_s}} seconds' OR due >= '{{last_year}}-12-31 24:00:00+00' THEN
        RAISE EXCEPTION 'The job cannot be due at %.', due USING ERRCODE = 'invalid_parameter_value',
            HINT = format('Give a future instant, up to the year {{last_year}}; by ondot''s clock it is %s now.', instant);
    END IF;
    of_pool := ondot.pool_no_of(of_tenant, coalesce(spec->>'pool', 'default'));
    of_class := CASE spec->>'priority' WHEN 'high' THEN {{class_high}} WHEN 'low' THEN {{class_low}} ELSE {{class_normal}} END;
    -- As text: jsonb would not keep the order of a payload's keys.
    stored := format('{"schedule":{"when":{"kind":"once","at":"%s"}},%s',
                     to_char(due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                     substr(ltrim(spec::text, E' \t\r\n'), 2))::json;
    INSERT INTO ondot.job_once (id, tenant_no, name, pool_no, fire_at, labels, spec)
    VALUES (job, of_tenant, spec->>'name', of_pool, due, coalesce((spec->'labels')::jsonb, '{}'), stored);

    IF due > instant + interval '{{horizon_s}} seconds' OR spec->'limits' IS NOT NULL THEN
        INSERT INTO ondot.timer (job_id, next_fire_at, version, job_version, tenant_no, partition_no)
        VALUES (job, due, 1, 1, of_tenant, ondot.partition_of(job));
    ELSE
        WITH fire AS (
            SELECT ondot.new_id() AS execution_id, job AS job_id, due AS fire_at, ready AS ready_at,
                   of_tenant AS tenant_no, 1 AS job_version, of_pool AS pool_no, of_class AS class, 'fire' AS origin,
                   NULL AS stages, ready + make_interval(secs => (spec->>'start_deadline_s')::double precision) AS start_by,
                   NULL::json AS payload, NULL::uuid AS replay_of,
                   {{not_awaited}}
        ), queued AS (
            {{insert_into_ready}}
            FROM fire
        )
        {{insert_into_execution}}
        FROM fire;
    END IF;
    RETURN QUERY SELECT job, due, instant;
END $$;
