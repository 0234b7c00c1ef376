-- The UUIDv7 of a tick, 4096 of which are a millisecond, as model.ids: what is made in one statement sorts as it was made.
CREATE FUNCTION ondot.id_of(tick bigint) RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT (lpad(to_hex(tick >> 12), 12, '0') || '7' || lpad(to_hex(tick & 4095), 3, '0')
            -- A random UUID has the two bits of the variant in the same place.
            || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid
$$;

-- Many jobs in the caller's own transaction by one statement: the same rows and refusals as ondot.submit_spec for each.
--   specs     each without its payload; equal ones, of which a batch is usually made, are looked at once
--   payloads  of each; NULL: none
-- All are due now. Ids count up within the batch, as those that the API mints.
CREATE FUNCTION ondot.submit_specs(
    specs json[],
    payloads json[],
    tenant text DEFAULT 'default'
) RETURNS TABLE (id uuid, created_at timestamptz)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    instant timestamptz := ondot.clock();
    tick bigint := (extract(epoch FROM instant) * 1000000)::bigint * 4096 / 1000;
    once text := format('{"schedule":{"when":{"kind":"once","at":"%s"}},',
                        to_char(instant AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'));
    job_ids uuid[];
    of_tenant integer;
BEGIN
    IF cardinality(specs) <> cardinality(payloads) THEN
        RAISE EXCEPTION 'There are % specs, and % payloads.', cardinality(specs), cardinality(payloads)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Give one payload for each spec; NULL is none.';
    END IF;
    IF EXISTS (SELECT FROM unnest(specs) AS s(spec) WHERE json_typeof(s.spec) = 'object' AND s.spec->'payload' IS NOT NULL) THEN
        RAISE EXCEPTION 'A spec has a payload.' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Give the payloads apart, in the order of the specs.';
    END IF;
    PERFORM ondot.check_spec(s.spec::json) FROM (SELECT DISTINCT t.spec::text FROM unnest(specs) AS t(spec)) AS s(spec);
    -- What a payload may be is said by check_spec: the few that look wrong are shown to it, in a spec that is right.
    PERFORM ondot.check_spec(('{"name":"n","target":{"kind":"function","name":"f"},"payload":' || p.payload || '}')::json)
    FROM unnest(payloads) AS p(payload)
    WHERE json_typeof(p.payload) <> 'object' OR octet_length(p.payload::text) > 1048576;
    SELECT t.tenant_no INTO of_tenant FROM ondot.tenant t WHERE t.name = tenant AND t.tenant_no > 0;
    IF of_tenant IS NULL THEN
        RAISE EXCEPTION 'There is no tenant "%".', tenant USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave it out where there is only one.';
    END IF;
    job_ids := ARRAY(SELECT ondot.id_of(tick + n) FROM generate_series(1, cardinality(specs)) n ORDER BY n);

    WITH known AS MATERIALIZED (
        SELECT d.spec, d.spec::json->>'name' AS name, coalesce((d.spec::json->'labels')::jsonb, '{}') AS labels,
               ondot.pool_no_of(of_tenant, coalesce(d.spec::json->>'pool', 'default')) AS pool_no,
               CASE d.spec::json->>'priority' WHEN 'high' THEN 1 WHEN 'low' THEN 3 ELSE 2 END::smallint AS class,
               d.spec::json->'limits' IS NOT NULL AS is_limited,
               instant + make_interval(secs => (d.spec::json->>'start_deadline_s')::double precision) AS start_by,
               substr(ltrim(d.spec, E' \t\r\n'), 2) AS rest
        FROM (SELECT DISTINCT t.spec::text FROM unnest(specs) AS t(spec)) AS d(spec)
    ), new AS MATERIALIZED (
        SELECT n.job_id, ondot.id_of(tick + n.position) AS execution_id, n.payload, k.*
        FROM unnest(job_ids, specs, payloads) WITH ORDINALITY AS n(job_id, spec, payload, position)
        JOIN known k ON k.spec = n.spec::text
    ), stored AS (
        INSERT INTO ondot.job_once (id, tenant_no, name, pool_no, fire_at, labels, spec)
        SELECT n.job_id, of_tenant, n.name, n.pool_no, instant, n.labels,
               -- As text, since jsonb would not keep the order of a payload's keys.
               (once || coalesce('"payload":' || n.payload::text || ',', '') || n.rest)::json
        FROM new n
    ), timed AS (
        INSERT INTO ondot.timer (job_id, next_fire_at, version, job_version, tenant_no, partition_no)
        SELECT n.job_id, instant, 1, 1, of_tenant, ondot.partition_of(n.job_id) FROM new n WHERE n.is_limited
    ), queued AS (
        INSERT INTO ondot.ready (pool_no, class, tenant_no, ready_at, execution_id)
        SELECT n.pool_no, n.class, of_tenant, instant, n.execution_id FROM new n WHERE NOT n.is_limited
    )
    INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state, origin,
                                 start_by)
    SELECT n.execution_id, n.job_id, instant, instant, of_tenant, 1, n.pool_no, n.class, 'PENDING', 'fire', n.start_by
    FROM new n WHERE NOT n.is_limited;
    RETURN QUERY SELECT j.id, instant FROM unnest(job_ids) WITH ORDINALITY AS j(id, position) ORDER BY j.position;
END $$;

-- As it was, but for one thing: a statement that changes no row of gated, as every completion of work without limits,
-- goes through none of the rest (1.5 ms each time).
CREATE OR REPLACE FUNCTION ondot.gated_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ids uuid[];    -- who stands in line now: not what runs, which has only got other gates
    over uuid[];   -- who is gone
    gates uuid[];
BEGIN
    IF TG_OP = 'INSERT' THEN
        ids := ARRAY(SELECT c.execution_id FROM come c JOIN ondot.execution e ON e.id = c.execution_id
                     WHERE e.state <> 'RUNNING');
        IF ids <> '{}' THEN
            PERFORM ondot.stand_in_line(ids);
        END IF;
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' THEN
        ids := '{}';
        over := ARRAY(SELECT execution_id FROM gone);
        gates := ARRAY(SELECT (s->>'gate')::uuid FROM gone, jsonb_array_elements(stages) s);
    ELSIF NOT EXISTS (SELECT FROM come) THEN
        RETURN NULL;
    ELSE
        ids := ARRAY(SELECT c.execution_id FROM come c JOIN ondot.execution e ON e.id = c.execution_id
                     WHERE e.state <> 'RUNNING' AND NOT c.is_over);
        over := ARRAY(SELECT execution_id FROM come WHERE is_over);
        gates := ARRAY(SELECT (s->>'gate')::uuid FROM come, jsonb_array_elements(stages) s);
    END IF;
    -- And those of before, if they have changed.
    gates := gates || ARRAY(SELECT gate_id FROM ondot.slot WHERE execution_id = ANY (ids || over)
                            UNION SELECT gate_id FROM ondot.waiting WHERE execution_id = ANY (ids || over));
    PERFORM ondot.lock_gates(gates);
    DELETE FROM ondot.slot WHERE execution_id = ANY (over);
    DELETE FROM ondot.slot h USING ondot.gated d
    WHERE h.execution_id = ANY (ids) AND d.execution_id = h.execution_id
      AND (NOT h.until_end OR NOT d.stages @> jsonb_build_array(jsonb_build_object('gate', h.gate_id)));
    -- Nobody waits at a gate and holds one beyond it: two who do so could wait for each other for ever.
    DELETE FROM ondot.slot h
    USING ondot.next_stages(ids) n JOIN ondot.gated d ON d.execution_id = n.execution_id,
          jsonb_array_elements(d.stages) WITH ORDINALITY AS e(stage, no)
    WHERE h.execution_id = n.execution_id AND h.gate_id = (e.stage->>'gate')::uuid AND e.no - 1 > n.stage;
    DELETE FROM ondot.waiting WHERE execution_id = ANY (ids || over);
    PERFORM ondot.call_lines(gates);
    IF ids <> '{}' THEN
        PERFORM ondot.stand_in_line(ids);
    END IF;
    IF TG_OP = 'UPDATE' AND over <> '{}' THEN
        DELETE FROM ondot.gated WHERE execution_id = ANY (over);
    END IF;
    RETURN NULL;
END $$;
