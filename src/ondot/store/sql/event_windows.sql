-- name: take_windows :many
-- locks: windows, in the order in which they are given        index: event_window_open
-- The open window of each (job, key), locked; a new one if there is none. The caller makes the execution of a new one.
-- $1 tenant_no, $2 execution_ids of new ones, $3 job_ids, $4 keys
INSERT INTO ondot.event_window AS w (execution_id, job_id, key, opened_at, tenant_no, events, bytes, is_open)
SELECT n.execution_id, n.job_id, n.key, ondot.clock(), $1::integer, 0, 0, true
FROM unnest($2::uuid[], $3::uuid[], $4::uuid[]) WITH ORDINALITY AS n(execution_id, job_id, key, no)
ORDER BY n.no
ON CONFLICT (job_id, key) WHERE is_open DO UPDATE SET is_open = true
RETURNING w.execution_id, w.job_id, w.key, w.opened_at, w.events, w.bytes, w.marks, (xmax = 0) AS is_new,
          ondot.clock() AS now;

-- name: add_windows :none
-- Windows that are full from the start: nothing is added to them.
-- $1 tenant_no, $2 execution_ids, $3 job_ids, $4 keys, $5 events, $6 bytes, $7 marks
INSERT INTO ondot.event_window (execution_id, job_id, key, opened_at, tenant_no, events, bytes, is_open, marks)
SELECT n.execution_id, n.job_id, n.key, ondot.clock(), $1::integer, n.events, n.bytes, false, n.marks::jsonb
FROM unnest($2::uuid[], $3::uuid[], $4::uuid[], $5::integer[], $6::integer[], $7::text[])
     AS n(execution_id, job_id, key, events, bytes, marks);

-- name: set_windows :none
-- locks: windows, held already        index: event_window_pkey
-- $1 tenant_no, $2 execution_ids, $3 events, $4 bytes, $5 whether they stay open, $6 marks
UPDATE ondot.event_window w
SET events = n.events, bytes = n.bytes, is_open = n.is_open, marks = n.marks::jsonb
FROM unnest($2::uuid[], $3::integer[], $4::integer[], $5::boolean[], $6::text[])
     AS n(execution_id, events, bytes, is_open, marks)
WHERE w.execution_id = n.execution_id AND w.tenant_no = $1::integer;

-- name: close_windows :none
-- locks: windows, held already        index: event_window_pkey
-- Their executions have started, or ended.
-- $1 tenant_no, $2 execution_ids
DELETE FROM ondot.event_window WHERE execution_id = ANY ($2::uuid[]) AND tenant_no = $1::integer;

-- name: find_unstarted :many
-- index: execution_pkey
-- Which of these still wait for their first attempt.
-- $1 tenant_no, $2 ids
SELECT id FROM ondot.execution
WHERE id = ANY ($2::uuid[]) AND tenant_no = $1::integer AND state = 'PENDING' AND attempt_no = 0 AND cancel_at IS NULL;

-- name: fill_executions :many
-- locks: executions        index: execution_pkey
-- Gives executions that wait for their first attempt another payload. Those with a new instant were taken out of the queue
-- before, and enter it again; the lines before gates are the next statement's (move_in_line). Those that have started are
-- left alone, and are missing from the answer.
-- $1 tenant_no, $2 ids, $3 payloads (NULL: as it is), $4 whether they are more items of the list, $5 instants (NULL: as
-- it is)
WITH filled AS (
    UPDATE ondot.execution e
    SET payload = CASE WHEN n.payload IS NULL THEN e.payload
                       WHEN n.is_more THEN (coalesce(left(e.payload::text, -1) || ',', '[') || n.payload || ']')::json
                       ELSE n.payload::json END,
        start_by = e.start_by + (greatest(coalesce(n.ready_at, e.ready_at), e.ready_at) - e.ready_at),
        ready_at = CASE WHEN n.ready_at IS NULL THEN e.ready_at ELSE greatest(n.ready_at, ondot.clock()) END
    FROM unnest($2::uuid[], $3::text[], $4::boolean[], $5::timestamptz[]) AS n(id, payload, is_more, ready_at)
    WHERE e.id = n.id AND e.tenant_no = $1::integer AND e.state = 'PENDING' AND e.attempt_no = 0
      AND e.cancel_at IS NULL
    RETURNING e.id AS execution_id, e.pool_no, e.class, e.tenant_no, e.ready_at, e.gated, n.ready_at IS NOT NULL AS is_moved
), queued AS (
    {{insert_into_ready}}
    FROM filled WHERE is_moved AND NOT gated
)
SELECT execution_id AS id, pool_no, ready_at, gated AND is_moved AS is_in_line FROM filled;

-- name: move_in_line :none
-- locks: gates, by the trigger        index: gated_pkey
-- The trigger puts them into line again, at their new instant.
-- $1 tenant_no, $2 ids
UPDATE ondot.gated d SET ready_at = e.ready_at
FROM ondot.execution e
WHERE d.execution_id = ANY ($2::uuid[]) AND d.tenant_no = $1::integer AND e.id = d.execution_id;

-- name: open_executions :many
-- transition: plan        locks: none (new rows), then gates
-- $1 tenant_no, $2 ids, $3 job_ids, $4 job_versions, $5 pool_nos, $6 classes, $7 gates (NULL: none), $8 start deadlines in
-- seconds (NULL: none), $9 payloads (NULL: the job's own), $10 instants (NULL: now)
WITH fire AS (
    SELECT n.execution_id, n.job_id, ondot.clock() AS fire_at, greatest(n.ready_at, ondot.clock()) AS ready_at,
           $1::integer AS tenant_no, n.job_version, n.pool_no, n.class, 'event' AS origin, n.stages, true AS is_fire,
           greatest(n.ready_at, ondot.clock()) + make_interval(secs => n.deadline_s) AS start_by,
           n.payload::json AS payload, NULL::uuid AS replay_of, {{not_awaited}}
    FROM unnest($2::uuid[], $3::uuid[], $4::integer[], $5::integer[], $6::smallint[], $7::text[],
                $8::double precision[], $9::text[], $10::timestamptz[])
         AS n(execution_id, job_id, job_version, pool_no, class, stages, deadline_s, payload, ready_at)
),
{{plan}}
SELECT execution_id AS id, pool_no, ready_at FROM planned;

-- name: link_matches :none
-- locks: matches        index: event_match_pkey
-- Which execution took an event. The bounds leave the partitions of a few days.
-- $1 tenant_no, $2 event ids, $3 job_ids, $4 execution_ids, $5 from id, $6 through id
UPDATE ondot.event_match m SET execution_id = n.execution_id
FROM unnest($2::uuid[], $3::uuid[], $4::uuid[]) AS n(event_id, job_id, execution_id)
WHERE m.event_id = n.event_id AND m.job_id = n.job_id AND m.tenant_no = $1::integer
  AND m.event_id BETWEEN $5::uuid AND $6::uuid;

-- name: add_cancel_keys :none
-- $1 tenant_no, $2 job_ids, $3 keys, $4 execution_ids
INSERT INTO ondot.cancel_key (tenant_no, job_id, key, execution_id)
SELECT $1::integer, n.job_id, n.key, n.execution_id FROM unnest($2::uuid[], $3::uuid[], $4::uuid[])
     AS n(job_id, key, execution_id)
ON CONFLICT DO NOTHING;

-- name: remove_cancel_keys :none
-- index: cancel_key_execution
-- $1 tenant_no, $2 execution_ids
DELETE FROM ondot.cancel_key WHERE execution_id = ANY ($2::uuid[]) AND tenant_no = $1::integer;

-- name: find_to_cancel :many
-- index: cancel_key_pkey, execution_pkey, event_window_pkey
-- Live executions of these jobs whose event had these values; has_list: it has a list of events.
-- $1 tenant_no, $2 job_ids, $3 keys
SELECT DISTINCT c.execution_id AS id, w.marks IS NOT NULL AS has_list, n.no
FROM unnest($2::uuid[], $3::uuid[]) WITH ORDINALITY AS n(job_id, key, no)
JOIN ondot.cancel_key c ON c.job_id = n.job_id AND c.key = n.key AND c.tenant_no = $1::integer
JOIN ondot.execution e ON e.id = c.execution_id
LEFT JOIN ondot.event_window w ON w.execution_id = c.execution_id;

-- name: lock_list :one
-- locks: the window        index: event_window_pkey
-- $1 tenant_no, $2 execution_id
SELECT marks, is_open FROM ondot.event_window WHERE execution_id = $2::uuid AND tenant_no = $1::integer FOR UPDATE;

-- name: read_list :one
-- index: execution_pkey
-- $1 tenant_no, $2 execution_id
SELECT payload FROM ondot.execution
WHERE id = $2::uuid AND tenant_no = $1::integer AND state = 'PENDING' AND attempt_no = 0;

-- name: forget_windows :one
-- index: event_window_pkey, cancel_key_pkey, execution_pkey
-- Housekeeping: what is kept for executions that have started or ended.
-- $1 limit
WITH windows AS (
    DELETE FROM ondot.event_window WHERE ctid = ANY (ARRAY(
        SELECT w.ctid FROM ondot.event_window w
        WHERE w.opened_at < ondot.clock() - interval '1 minute'
          AND NOT EXISTS (SELECT FROM ondot.execution e WHERE e.id = w.execution_id AND e.state = 'PENDING'
                          AND e.attempt_no = 0)
        LIMIT $1::integer FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
), keys AS (
    DELETE FROM ondot.cancel_key WHERE ctid = ANY (ARRAY(
        SELECT c.ctid FROM ondot.cancel_key c
        WHERE c.execution_id < ondot.first_id_at(ondot.clock() - interval '1 minute')
          AND NOT EXISTS (SELECT FROM ondot.execution e WHERE e.id = c.execution_id)
        LIMIT $1 FOR UPDATE SKIP LOCKED
    ))
    RETURNING 1
)
SELECT (SELECT count(*) FROM windows) + (SELECT count(*) FROM keys) AS count;
