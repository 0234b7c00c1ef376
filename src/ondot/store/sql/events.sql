-- name: receive_events :many
-- transition: plan        locks: keys of events in their order (an equal one waits for the first), then gates
-- Events and the executions that they start, in one statement. Nothing is stored if the subscriptions have changed since
-- they were matched. Events that were sent before are left out, with all that they would start.
-- $1 tenant_no, $2 the generation of the subscriptions that were matched,
-- of events: $3 ids, $4 keys, $5 types, $6 sources, $7 ids of the sender, $8 subjects, $9 times, $10 bodies, $11 matched;
-- of matches: $12 event ids, $13 job_ids, $14 execution_ids (NULL: none is started), $15 outcomes, $16 job_versions,
-- $17 pool_nos, $18 classes, $19 gates (NULL: none), $20 start deadlines in seconds (NULL: none),
-- $21 payloads (NULL: the job's own)
WITH known AS MATERIALIZED (
    SELECT coalesce((SELECT generation FROM ondot.subscription_generation WHERE tenant_no = $1::integer), 0)
           = $2::bigint AS is_current
), sent AS MATERIALIZED (
    SELECT * FROM unnest($3::uuid[], $4::uuid[], $5::text[], $6::text[], $7::text[], $8::text[], $9::timestamptz[],
                         $10::text[], $11::integer[])
         AS n(id, key, type, source, event_id, subject, time, body, matched)
), fresh AS (
    INSERT INTO ondot.event_key (tenant_no, key, event_id)
    SELECT $1, key, id FROM sent, known WHERE is_current ORDER BY key
    ON CONFLICT DO NOTHING
    RETURNING event_id AS id
), stored AS (
    INSERT INTO ondot.event (id, received_at, time, tenant_no, matched, type, source, event_id, subject, body)
    SELECT id, ondot.clock(), time, $1, matched, type, source, event_id, subject, body::json
    FROM sent JOIN fresh USING (id)
), match AS MATERIALIZED (
    SELECT m.* FROM unnest($12::uuid[], $13::uuid[], $14::uuid[], $15::text[], $16::integer[], $17::integer[],
                           $18::smallint[], $19::text[], $20::double precision[], $21::text[])
         AS m(id, job_id, execution_id, outcome, job_version, pool_no, class, stages, deadline_s, payload)
    JOIN fresh USING (id)
), linked AS (
    INSERT INTO ondot.event_match (event_id, job_id, execution_id, tenant_no, outcome)
    SELECT id, job_id, execution_id, $1, outcome FROM match
), fire AS (
    SELECT execution_id, job_id, ondot.clock() AS fire_at, ondot.clock() AS ready_at, $1 AS tenant_no, job_version,
           pool_no, class, 'event' AS origin, stages, true AS is_fire,
           ondot.clock() + make_interval(secs => deadline_s) AS start_by, payload::json AS payload,
           NULL::uuid AS replay_of, {{not_awaited}}
    FROM match WHERE execution_id IS NOT NULL
),
{{plan}}
SELECT k.is_current, f.id, ondot.clock() AS now,
       EXISTS (SELECT FROM ondot.event_wait w WHERE w.tenant_no = $1 AND w.type = ANY ($5)) AS has_waits
FROM known k LEFT JOIN fresh f ON true;

-- name: find_event_keys :many
-- index: event_key_pkey
-- The events that these keys name.
-- $1 tenant_no, $2 keys
SELECT key, event_id AS id FROM ondot.event_key WHERE tenant_no = $1::integer AND key = ANY ($2::uuid[]);

-- name: find_answers :many
-- index: event_pkey, event_match_pkey
-- What was answered to events that were sent before. The bounds leave the partitions of a few days.
-- $1 tenant_no, $2 ids, $3 from id, $4 through id
SELECT e.id, e.matched,
       ARRAY(SELECT m.execution_id FROM ondot.event_match m
             WHERE m.event_id = e.id AND m.event_id BETWEEN $3::uuid AND $4::uuid AND m.tenant_no = $1::integer
               AND m.execution_id IS NOT NULL
             ORDER BY m.execution_id) AS execution_ids
FROM ondot.event e
WHERE e.id = ANY ($2::uuid[]) AND e.id BETWEEN $3 AND $4 AND e.tenant_no = $1;

-- name: get_event :one
-- index: event_pkey
-- $1 tenant_no, $2 id
SELECT id, received_at, matched, type, source, event_id, subject, time, body
FROM ondot.event WHERE id = $2::uuid AND tenant_no = $1::integer;

-- name: list_matches :many
-- index: event_match_pkey
-- $1 tenant_no, $2 event id
SELECT m.job_id, m.execution_id, m.outcome, j.name AS job_name
FROM ondot.event_match m LEFT JOIN ondot.job j ON j.id = m.job_id
WHERE m.event_id = $2::uuid AND m.tenant_no = $1::integer ORDER BY m.execution_id, m.job_id;

-- name: list_events :many
-- index: event_latest, event_type, backwards
-- Newest first, a few days at a time (store.newest).
-- $1 tenant_no, $2 from id, $3 before id, $4 limit, $5 type, $6 source, $7 subject, $8 whether it matched,
-- $9 from_at, $10 to_at
SELECT id, received_at, matched, type, source, event_id, subject, time, body FROM ondot.event
WHERE tenant_no = $1::integer AND id >= $2::uuid AND id < $3::uuid
  AND ($5::text IS NULL OR type = $5) AND ($6::text IS NULL OR source = $6) AND ($7::text IS NULL OR subject = $7)
  AND ($8::boolean IS NULL OR (matched > 0) = $8)
  AND ($9::timestamptz IS NULL OR received_at >= $9) AND ($10::timestamptz IS NULL OR received_at < $10)
ORDER BY id DESC LIMIT $4::integer;

-- name: find_event_of :many
-- index: event_match_execution
-- The event that started an execution; of several the first. Some days at a time (store.newest).
-- $1 tenant_no, $2 execution_id, $3 from id, $4 before id
SELECT event_id FROM ondot.event_match
WHERE execution_id = $2::uuid AND tenant_no = $1::integer AND event_id >= $3::uuid AND event_id < $4::uuid
ORDER BY event_id LIMIT 1;

-- name: list_held :many
-- index: event_match_held, event_pkey
-- Events that matched a paused job, newest first.
-- $1 tenant_no, $2 job_id, $3 limit, $4 from id
SELECT m.event_id AS id, e.body
FROM ondot.event_match m JOIN ondot.event e ON e.id = m.event_id AND e.id >= $4::uuid
WHERE m.job_id = $2::uuid AND m.tenant_no = $1::integer AND m.outcome = 'held' AND m.event_id >= $4
ORDER BY m.event_id DESC LIMIT $3::integer;

-- name: release_held :many
-- transition: plan        locks: matches, then gates        index: event_match_held
-- A paused job is resumed: these events of its pause start executions, the others are skipped.
-- $1 tenant_no, $2 job_id, $3 event ids, $4 execution_ids, $5 payloads (NULL: the job's own), $6 job_version, $7 pool_no,
-- $8 class, $9 gates (NULL: none), $10 from id
WITH held AS MATERIALIZED (
    SELECT m.event_id, n.execution_id, n.payload FROM ondot.event_match m
    LEFT JOIN unnest($3::uuid[], $4::uuid[], $5::text[]) AS n(event_id, execution_id, payload) USING (event_id)
    WHERE m.job_id = $2::uuid AND m.tenant_no = $1::integer AND m.outcome = 'held' AND m.event_id >= $10::uuid
), settled AS (
    UPDATE ondot.event_match m
    SET execution_id = h.execution_id, outcome = CASE WHEN h.execution_id IS NULL THEN 'skipped' ELSE 'started' END
    FROM held h WHERE m.event_id = h.event_id AND m.job_id = $2 AND m.tenant_no = $1 AND m.event_id >= $10
), fire AS (
    SELECT execution_id, $2 AS job_id, ondot.clock() AS fire_at, ondot.clock() AS ready_at, $1 AS tenant_no,
           $6::integer AS job_version, $7::integer AS pool_no, $8::smallint AS class, 'event' AS origin,
           $9::text AS stages, false AS is_fire, NULL::timestamptz AS start_by, payload::json AS payload,
           NULL::uuid AS replay_of, {{not_awaited}}
    FROM held WHERE execution_id IS NOT NULL
),
{{plan}}
SELECT pool_no, ready_at FROM planned;

-- name: drop_held :none
-- locks: matches        index: event_match_held
-- $1 tenant_no, $2 job_id, $3 from id
UPDATE ondot.event_match SET outcome = 'skipped'
WHERE job_id = $2::uuid AND tenant_no = $1::integer AND outcome = 'held' AND event_id >= $3::uuid;

-- name: forget_event_keys :one
-- index: event_key_age
-- $1 limit
WITH gone AS (
    DELETE FROM ondot.event_key WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ondot.event_key WHERE event_id < ondot.first_id_at(ondot.clock() - interval '7 days')
        ORDER BY event_id LIMIT $1::integer FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT count(*) AS count FROM gone;
