-- ondot.submit_specs(specs, payloads, tenant): many jobs that are due now in the caller's own transaction, by one statement.
-- It writes the same rows and rejects the same input as ondot.submit_spec for each.
--   specs     each without its payload; equal ones, which most batches consist of, are checked once
--   payloads  of each; NULL: none
-- Ids count up within the batch, as those of the API do.
-- Callers: sdk/transaction.py.
CREATE OR REPLACE FUNCTION ondot.submit_specs(
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
        RAISE EXCEPTION 'Got % specs and % payloads.', cardinality(specs), cardinality(payloads)
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Pass one payload for each spec; NULL is none.';
    END IF;
    IF EXISTS (SELECT FROM unnest(specs) AS s(spec) WHERE json_typeof(s.spec) = 'object' AND s.spec->'payload' IS NOT NULL) THEN
        RAISE EXCEPTION 'A spec has a payload.' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Pass the payloads separately, in the order of the specs.';
    END IF;
    PERFORM ondot.check_spec(s.spec::json) FROM (SELECT DISTINCT t.spec::text FROM unnest(specs) AS t(spec)) AS s(spec);
    -- check_spec decides about payloads: it gets the few that look wrong, each in a valid spec.
    PERFORM ondot.check_spec(('{"name":"n","target":{"kind":"function","name":"f"},"payload":' || p.payload || '}')::json)
    FROM unnest(payloads) AS p(payload)
    WHERE json_typeof(p.payload) <> 'object' OR octet_length(p.payload::text) > {{max_payload_bytes}};
    of_tenant := ondot.tenant_no_of(tenant, cardinality(specs),
                                    (SELECT max(octet_length(p.payload::text)) FROM unnest(payloads) AS p(payload)));
    job_ids := ARRAY(SELECT ondot.id_of(tick + n) FROM generate_series(1, cardinality(specs)) n ORDER BY n);

    WITH known AS MATERIALIZED (
        SELECT d.spec, d.spec::json->>'name' AS name, coalesce((d.spec::json->'labels')::jsonb, '{}') AS labels,
               ondot.pool_no_of(of_tenant, coalesce(d.spec::json->>'pool', 'default')) AS pool_no,
               CASE d.spec::json->>'priority' WHEN 'high' THEN {{class_high}} WHEN 'low' THEN {{class_low}} ELSE {{class_normal}} END::smallint AS class,
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
               -- As text: jsonb would not keep the order of a payload's keys.
               (once || coalesce('"payload":' || n.payload::text || ',', '') || n.rest)::json
        FROM new n
    ), timed AS (
        INSERT INTO ondot.timer (job_id, next_fire_at, version, job_version, tenant_no, partition_no)
        SELECT n.job_id, instant, 1, 1, of_tenant, ondot.partition_of(n.job_id) FROM new n WHERE n.is_limited
    ), fire AS NOT MATERIALIZED (
        SELECT n.execution_id, n.job_id, instant AS fire_at, instant AS ready_at, of_tenant AS tenant_no, 1 AS job_version,
               n.pool_no, n.class, 'fire' AS origin, NULL AS stages, n.start_by, NULL::json AS payload,
               NULL::uuid AS replay_of, {{not_awaited}}
        FROM new n WHERE NOT n.is_limited
    ), queued AS (
        {{insert_into_ready}}
        FROM fire
    )
    {{insert_into_execution}}
    FROM fire;
    RETURN QUERY SELECT j.id, instant FROM unnest(job_ids) WITH ORDINALITY AS j(id, position) ORDER BY j.position;
END $$;
