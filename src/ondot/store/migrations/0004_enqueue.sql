-- Enqueue in the caller's own transaction (E11): the job is there if and only if the caller commits. The functions run
-- with the caller's rights; docs/transactions.md says which rights those are. No NOTIFY: it takes a lock that would make
-- the callers' commits wait for each other. Workers find the job when they look, once a second.

-- A new UUIDv7 of ondot's clock: milliseconds, 12 bits below them (RFC 9562, method 3), 62 random ones, as model.ids.
CREATE FUNCTION ondot.new_id() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex(us / 1000), 12, '0') || '7' || lpad(to_hex(us % 1000 * 4096 / 1000), 3, '0')
            -- A random UUID has the two bits of the variant in the same place.
            || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid
    FROM (SELECT (extract(epoch FROM ondot.clock()) * 1000000)::bigint AS us) t
$$;

-- The partition a job belongs to, as model.ids: its id as a number, modulo 64.
CREATE FUNCTION ondot.partition_of(job_id uuid) RETURNS smallint LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
    SELECT (('x' || right(job_id::text, 2))::bit(8)::integer & 63)::smallint
$$;

-- The number of a pool, which comes to be when it is first named.
CREATE FUNCTION ondot.pool_no_of(tenant integer, pool text) RETURNS integer
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found_no integer;
BEGIN
    SELECT p.pool_no INTO found_no FROM ondot.pool p WHERE p.tenant_no = tenant AND p.name = pool;
    IF found_no IS NULL THEN
        INSERT INTO ondot.pool (tenant_no, name) VALUES (tenant, pool) ON CONFLICT DO NOTHING;
        SELECT p.pool_no INTO found_no FROM ondot.pool p WHERE p.tenant_no = tenant AND p.name = pool;
    END IF;
    IF found_no IS NULL THEN
        RAISE EXCEPTION 'The pool "%" was made by another transaction, which this one cannot see.', pool
            USING ERRCODE = 'serialization_failure', HINT = 'Try the transaction again.';
    END IF;
    RETURN found_no;
END $$;

-- Refuses a spec that the API would refuse, in words that say what to do. The limits are those of the API.
CREATE FUNCTION ondot.check_spec(spec json) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    fault text;
    advice text;
    field text;
    longest integer;
    retries json := CASE WHEN json_typeof(spec) = 'object' THEN spec #> '{retry,max_retries}' END;
    target json := CASE WHEN json_typeof(spec) = 'object' THEN spec->'target' END;
BEGIN
    IF spec IS NULL OR json_typeof(spec) <> 'object' THEN
        fault := 'The spec must be a JSON object.';
        advice := 'Use ondot.enqueue(''function_name'', ''{"argument": 1}''), which makes one.';
    ELSIF coalesce(json_typeof(target), 'null') <> 'object' OR target->>'kind' IS DISTINCT FROM 'function' THEN
        fault := 'Only functions can be enqueued in a transaction.';
        advice := 'Give a function''s name; create jobs that call addresses or commands by POST /v1/jobs.';
    ELSIF coalesce(target->>'name', '') = '' OR length(target->>'name') > 200
            OR target->>'name' ~ '[\s\u0001-\u0020\u007f-\u009f\\]' THEN
        fault := format('%L is no function''s name.', left(target->>'name', 60));
        advice := 'Give the name under which a worker registered it, without blanks, at most 200 characters.';
    ELSIF coalesce(trim(spec->>'name'), '') = '' OR length(spec->>'name') > 200
            OR spec->>'name' ~ '[\u0001-\u001f\u007f-\u009f\u2028\u2029]' THEN
        fault := 'The name of a job must be text that is not blank, without control characters, at most 200 characters.';
        advice := 'Leave it out, and the job is called after its function.';
    ELSIF coalesce(json_typeof(spec->'payload'), 'null') NOT IN ('object', 'null') THEN
        fault := format('The payload must be a JSON object, but is of type %s.', json_typeof(spec->'payload'));
        advice := 'A function takes its arguments by name: ''{"customer": 7}''.';
    ELSIF octet_length((spec->'payload')::text) > 1048576 THEN
        fault := format('The payload has %s bytes, and at most 1048576 are taken.', octet_length((spec->'payload')::text));
        advice := 'Store it elsewhere and send its key.';
    ELSIF coalesce(spec->>'pool', 'default') !~ '^[a-z0-9][a-z0-9_.-]{0,62}$' THEN
        fault := format('%L is no pool''s name.', left(spec->>'pool', 80));
        advice := 'Lower-case letters, digits, _ . and -, at most 63, a letter or digit first.';
    ELSIF coalesce(spec->>'priority', 'normal') NOT IN ('high', 'normal', 'low') THEN
        fault := format('%L is no priority.', left(spec->>'priority', 60));
        advice := 'Give one of high, normal, low.';
    ELSIF coalesce(json_typeof(spec->'labels'), 'object') <> 'object' THEN
        fault := 'The labels must be a JSON object.';
        advice := 'For example ''{"team": "billing"}''.';
    ELSIF spec->'labels' IS NOT NULL AND (SELECT count(*) > 64 OR coalesce(bool_or(
            json_typeof(value) <> 'string' OR length(key) NOT BETWEEN 1 AND 63 OR length(value #>> '{}') > 255), false)
            FROM json_each(spec->'labels')) THEN
        fault := 'The labels must be at most 64, with keys of 1 to 63 and values of at most 255 characters, all text.';
        advice := 'For example ''{"team": "billing"}''.';
    ELSIF retries IS NOT NULL AND (json_typeof(retries) <> 'number' OR retries #>> '{}' !~ '^[0-9]{1,3}$'
            OR (retries #>> '{}')::integer > 100) THEN
        fault := format('max_retries must be a whole number from 0 to 100, but is %s.', retries);
        advice := 'It counts the attempts after the first.';
    END IF;
    FOR field, longest IN VALUES ('timeout_s', 7 * 86400), ('start_deadline_s', 366 * 86400), ('cancel_grace_s', 3600) LOOP
        EXIT WHEN fault IS NOT NULL;
        IF spec->field IS NOT NULL AND (json_typeof(spec->field) <> 'number'
                OR (spec->>field)::numeric NOT BETWEEN 0 AND longest
                OR field <> 'cancel_grace_s' AND (spec->>field)::numeric = 0) THEN
            fault := format('%s must be a number of seconds, more than 0 and at most %s, but is %s.', field, longest,
                            spec->field);
            advice := 'For example 300.';
        END IF;
    END LOOP;
    FOREACH field IN ARRAY ARRAY['unique', 'debounce', 'throttle', 'key', 'schedule', 'pause_after_failures'] LOOP
        EXIT WHEN fault IS NOT NULL;
        IF coalesce(json_typeof(spec->field), 'null') <> 'null' THEN
            RAISE EXCEPTION 'A job with "%" cannot be enqueued in a transaction.', field USING
                ERRCODE = 'feature_not_supported',
                HINT = 'Create it by POST /v1/jobs, or enqueue it outside of the transaction.';
        END IF;
    END LOOP;
    IF fault IS NOT NULL THEN
        RAISE EXCEPTION '%', fault USING ERRCODE = 'invalid_parameter_value', HINT = advice;
    END IF;
END $$;

-- Writes what submit writes for a one-time job (store/sql/jobs.sql, insert_once_jobs), in the caller's transaction.
--   fire_at  when it is due; NULL: now
-- A limited job gets a timer, also if it is due, and is planned by a scheduler within a second: whoever stands in line
-- touches a row that others have to wait for, and this transaction may stay open for long.
CREATE FUNCTION ondot.submit_spec(
    spec json,
    fire_at timestamptz DEFAULT NULL,
    tenant text DEFAULT 'default'
) RETURNS TABLE (id uuid, due_at timestamptz, created_at timestamptz)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    instant timestamptz := ondot.clock();
    due timestamptz := coalesce(submit_spec.fire_at, instant);
    ready timestamptz := greatest(due, instant);
    job uuid := ondot.new_id();
    execution uuid;
    stored json;
    of_tenant integer;
    of_pool integer;
    of_class smallint;
BEGIN
    PERFORM ondot.check_spec(spec);
    SELECT t.tenant_no INTO of_tenant FROM ondot.tenant t WHERE t.name = tenant AND t.tenant_no > 0;
    IF of_tenant IS NULL THEN
        RAISE EXCEPTION 'There is no tenant "%".', tenant USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave it out where there is only one.';
    ELSIF NOT isfinite(due) OR due < instant - interval '60 seconds' OR due >= '2201-01-01 00:00:00+00' THEN
        RAISE EXCEPTION 'The job cannot be due at %.', due USING ERRCODE = 'invalid_parameter_value',
            HINT = format('Give an instant that is to come, before the year 2201; by ondot''s clock it is %s now.', instant);
    END IF;
    of_pool := ondot.pool_no_of(of_tenant, coalesce(spec->>'pool', 'default'));
    of_class := CASE spec->>'priority' WHEN 'high' THEN 1 WHEN 'low' THEN 3 ELSE 2 END;
    -- As text, since jsonb would not keep the order of a payload's keys.
    stored := format('{"schedule":{"when":{"kind":"once","at":"%s"}},%s',
                     to_char(due AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                     substr(ltrim(spec::text, E' \t\r\n'), 2))::json;
    INSERT INTO ondot.job_once (id, tenant_no, name, pool_no, fire_at, labels, spec)
    VALUES (job, of_tenant, spec->>'name', of_pool, due, coalesce((spec->'labels')::jsonb, '{}'), stored);

    IF due > instant + interval '20 seconds' OR spec->'limits' IS NOT NULL THEN
        INSERT INTO ondot.timer (job_id, next_fire_at, version, job_version, tenant_no, partition_no)
        VALUES (job, due, 1, 1, of_tenant, ondot.partition_of(job));
    ELSE
        execution := ondot.new_id();
        INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state, origin,
                                     start_by)
        VALUES (execution, job, due, ready, of_tenant, 1, of_pool, of_class, 'PENDING', 'fire',
                ready + make_interval(secs => (spec->>'start_deadline_s')::double precision));
        INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
        VALUES (of_pool, of_class, of_tenant, ready, execution);
    END IF;
    RETURN QUERY SELECT job, due, instant;
END $$;

-- For everyone who can speak SQL: SELECT ondot.enqueue('send_invoice', '{"customer": 7}', at => now() + interval '1 hour')
-- Gives the id of the job. What the function was registered with (retries, timeout, pool …) is known to Python only.
CREATE FUNCTION ondot.enqueue(
    function text,
    payload jsonb DEFAULT NULL,
    at timestamptz DEFAULT NULL,
    pool text DEFAULT NULL,
    priority text DEFAULT NULL,
    name text DEFAULT NULL,
    labels jsonb DEFAULT NULL,
    max_retries integer DEFAULT NULL,
    timeout_s double precision DEFAULT NULL,
    start_deadline_s double precision DEFAULT NULL,
    tenant text DEFAULT 'default'
) RETURNS uuid LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.id FROM ondot.submit_spec(
        -- What is NULL is left out.
        format('{%s}', concat_ws(',',
            '"name":' || to_json(coalesce(enqueue.name, enqueue.function))::text,
            '"target":' || json_build_object('kind', 'function', 'name', enqueue.function)::text,
            '"payload":' || enqueue.payload::text,
            '"pool":' || to_json(enqueue.pool)::text,
            '"priority":' || to_json(enqueue.priority)::text,
            '"labels":' || enqueue.labels::text,
            '"retry":{"max_retries":' || enqueue.max_retries::text || '}',
            '"timeout_s":' || to_json(enqueue.timeout_s)::text,
            '"start_deadline_s":' || to_json(enqueue.start_deadline_s)::text))::json,
        enqueue.at, enqueue.tenant) s
$$;
