-- name: insert_once_jobs :one
-- transition: plan, refuse        locks: none (new rows), then gates
-- One-time jobs in one statement: those due before the horizon are planned here, the others get a timer.
-- $1 tenant_no, $2 ids, $3 names, $4 pool_nos, $5 fire_ats, $6 labels, $7 specs,
-- $8 execution_ids (NULL: due after the horizon), $9 classes, $10 ready_ats, $11 partition_nos (instants are seconds since
-- 1970; $3 to $6, $9 and $10 have one entry if it is equal for all), $12 gates (NULL: none),
-- $13 start deadlines in seconds (NULL: none), $14 why it does not run after all (NULL: it does),
-- $15, $16 the clock must be between these instants, because the others were computed from it: otherwise nothing is stored,
-- $17 created_bys (NULL: not known), one entry if it is equal for all
WITH new AS (
    SELECT id, coalesce(name, ($3)[1]) AS name, coalesce(pool_no, ($4)[1]) AS pool_no,
           to_timestamp(coalesce(fire_s, ($5)[1])) AS fire_at, coalesce(labels, ($6)[1]) AS labels, spec, execution_id,
           coalesce(class, ($9)[1]) AS class, partition_no, stages, deadline_s, refusal,
           CASE WHEN cardinality($17) = 1 THEN ($17)[1] ELSE created_by END AS created_by,
           greatest(to_timestamp(coalesce(ready_s, ($10)[1])), ondot.clock()) AS ready_at
    FROM unnest($2::uuid[], $3::text[], $4::integer[], $5::double precision[], $6::text[], $7::text[],
                $8::uuid[], $9::smallint[], $10::double precision[], $11::smallint[], $12::text[],
                $13::double precision[], $14::text[], $17::uuid[])
         AS n(id, name, pool_no, fire_s, labels, spec, execution_id, class, ready_s, partition_no, stages, deadline_s,
              refusal, created_by)
    WHERE ondot.clock() BETWEEN to_timestamp($15::double precision) AND to_timestamp($16::double precision)
), stored AS (
    INSERT INTO ondot.job_once (id, tenant_no, name, pool_no, fire_at, labels, spec, created_by)
    SELECT id, $1::integer, name, pool_no, fire_at, labels::jsonb, spec::json, created_by FROM new
), timed AS (
    INSERT INTO ondot.timer (job_id, next_fire_at, version, job_version, tenant_no, partition_no)
    SELECT id, fire_at, 1, 1, $1, partition_no FROM new WHERE execution_id IS NULL
), fire AS (
    SELECT execution_id, id AS job_id, fire_at, ready_at, $1 AS tenant_no, 1 AS job_version, pool_no, class,
           'fire' AS origin, stages, true AS is_fire, ready_at + make_interval(secs => deadline_s) AS start_by,
           NULL::json AS payload, NULL::uuid AS replay_of, {{not_awaited}}
    FROM new WHERE execution_id IS NOT NULL AND refusal IS NULL
),
{{plan}},
ended AS (
    SELECT execution_id AS id, id AS job_id, fire_at, ready_at, $1 AS tenant_no, 1 AS job_version, pool_no, class,
           refusal AS reason, nullif(labels, '{}') AS labels,
           {{never_made}}
    FROM new WHERE refusal IS NOT NULL
),
{{end}}
SELECT ondot.clock() AS now FROM new LIMIT 1;

-- name: insert_due_jobs :one
-- transition: plan        locks: none (new rows)
-- The fast path of insert_once_jobs for jobs that go straight into the queue.
-- $1 tenant_no, $2 ids, $3 names, $4 pool_nos, $5 fire_ats, $6 labels, $7 specs, $8 execution_ids, $9 classes,
-- $10 ready_ats; instants are seconds since 1970, and all but ids and specs have one entry if it is equal for all
-- $11, $12, $13 as $15, $16, $17 there
WITH new AS (
    SELECT id, coalesce(name, ($3)[1]) AS name, coalesce(pool_no, ($4)[1]) AS pool_no,
           to_timestamp(coalesce(fire_s, ($5)[1])) AS fire_at, coalesce(labels, ($6)[1]) AS labels, spec, execution_id,
           coalesce(class, ($9)[1]) AS class,
           CASE WHEN cardinality($13) = 1 THEN ($13)[1] ELSE created_by END AS created_by,
           greatest(to_timestamp(coalesce(ready_s, ($10)[1])), ondot.clock()) AS ready_at
    FROM unnest($2::uuid[], $3::text[], $4::integer[], $5::double precision[], $6::text[], $7::text[],
                $8::uuid[], $9::smallint[], $10::double precision[], $13::uuid[])
         AS n(id, name, pool_no, fire_s, labels, spec, execution_id, class, ready_s, created_by)
    WHERE ondot.clock() BETWEEN to_timestamp($11::double precision) AND to_timestamp($12::double precision)
), stored AS (
    INSERT INTO ondot.job_once (id, tenant_no, name, pool_no, fire_at, labels, spec, created_by)
    SELECT id, $1::integer, name, pool_no, fire_at, labels::jsonb, spec::json, created_by FROM new
), queued AS (
    {{insert_into_ready}}
    FROM (SELECT *, $1 AS tenant_no FROM new) n
), planned AS (
    {{insert_into_execution}}
    FROM (SELECT *, id AS job_id, $1 AS tenant_no, 1 AS job_version, 'fire' AS origin, NULL AS stages,
                 NULL::timestamptz AS start_by, NULL::json AS payload, NULL::uuid AS replay_of,
                 {{not_awaited}} FROM new) n
)
SELECT ondot.clock() AS now FROM new LIMIT 1;

-- name: insert_jobs :one
-- locks: none (new rows)
-- $1 tenant_no, $2 ids, $3 keys, $4 names, $5 pool_nos, $6 labels, $7 specs, $8 partition_nos,
-- $9 next_fire_ats (NULL: none), $10 fires_left, $11 fired_throughs, $12, $13 as $15, $16 of insert_once_jobs
WITH new AS (
    SELECT * FROM unnest($2::uuid[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::text[], $8::smallint[],
                         $9::timestamptz[], $10::integer[], $11::timestamptz[])
         AS n(id, key, name, pool_no, labels, spec, partition_no, next_fire_at, fires_left, fired_through)
    WHERE ondot.clock() BETWEEN to_timestamp($12::double precision) AND to_timestamp($13::double precision)
), stored AS (
    INSERT INTO ondot.job (id, tenant_no, key, name, state, version, pool_no, labels, created_at, updated_at)
    SELECT id, $1::integer, key, name, 'ACTIVE', 1, pool_no, labels::jsonb, ondot.clock(), ondot.clock() FROM new
), versioned AS (
    INSERT INTO ondot.job_version (job_id, version, tenant_no, spec, created_at)
    SELECT id, 1, $1, spec::json, ondot.clock() FROM new
), timed AS (
    INSERT INTO ondot.timer (job_id, next_fire_at, fired_through, version, job_version, fires_left, tenant_no,
                             partition_no)
    SELECT id, coalesce(next_fire_at, 'infinity'), fired_through, 1, 1, fires_left, $1, partition_no FROM new
)
SELECT ondot.clock() AS now FROM new LIMIT 1;

-- name: lock_keys :many
-- locks: job rows in the order of their keys, then their runs in the order of ids, as lock_job        index: job_key
-- $1 tenant_no, $2 keys, sorted
WITH locked AS MATERIALIZED (
    SELECT id FROM ondot.job
    WHERE tenant_no = $1::integer AND key = ANY($2::text[]) AND key IS NOT NULL AND state <> 'DELETED'
    ORDER BY key FOR UPDATE
)
SELECT id, pg_advisory_xact_lock(('x' || right(translate(id::text, '-', ''), 16))::bit(64)::bigint)
FROM (SELECT id FROM locked ORDER BY id) l;

-- name: adopt_once_job :one
-- locks: the new job row; a concurrent twin waits here
-- A one-time job that is changed moves to job, which takes precedence from then on.
-- $1 tenant_no, $2 id, $3 when it was created
WITH adopted AS (
    INSERT INTO ondot.job (id, tenant_no, name, state, version, pool_no, labels, created_at, updated_at)
    SELECT id, tenant_no, name, 'ACTIVE', 1, pool_no, labels, $3::timestamptz, ondot.clock()
    FROM ondot.job_once WHERE id = $2::uuid AND tenant_no = $1::integer
    ON CONFLICT (id) DO NOTHING
    RETURNING id
)
INSERT INTO ondot.job_version (job_id, version, tenant_no, spec, created_at)
SELECT o.id, 1, o.tenant_no, o.spec, $3
FROM ondot.job_once o JOIN adopted a ON a.id = o.id
WHERE o.id = $2
ON CONFLICT DO NOTHING
RETURNING job_id;

-- name: time_adopted_job :none
-- locks: the timer row (the job is locked)        index: job_once_pkey, timer_pkey
-- Every row of job has a timer, even if nothing is changed after all: the job is removed by it when it is old. A timer at
-- version 1 would be removed when its fire is planned. Runs after the job is locked, so that runs of it wait meanwhile.
-- $1 tenant_no, $2 id
INSERT INTO ondot.timer (job_id, next_fire_at, fired_through, version, job_version, tenant_no, partition_no)
SELECT id, 'infinity', fire_at, 2, 1, tenant_no, ondot.partition_of(id)
FROM ondot.job_once WHERE id = $2::uuid AND tenant_no = $1::integer
ON CONFLICT (job_id) DO UPDATE SET version = ondot.timer.version + 1;

-- name: lock_job :one
-- locks: the job row, then its runs: waits for those that started before, and later ones wait        index: job_pkey
-- $1 tenant_no, $2 id
WITH locked AS MATERIALIZED (
    SELECT id FROM ondot.job WHERE id = $2::uuid AND tenant_no = $1::integer FOR UPDATE
)
SELECT id, pg_advisory_xact_lock(('x' || right(translate(id::text, '-', ''), 16))::bit(64)::bigint) FROM locked;

-- name: share_jobs :many
-- locks: the runs of jobs, shared, in the order of their ids
-- Before a person's run, replay or retry reads the jobs: no change commits between that and its own commit. Runs of one
-- job do not wait for each other. It is an advisory lock of the transaction, by the random half of the id, and not the row FOR
-- SHARE: share locks of a row overtake a change that waits (16 callers kept a delete waiting for 16 s), here they queue
-- behind it. And a one-time job has no row in `job` until its first change.
-- $1 ids
SELECT pg_advisory_xact_lock_shared(('x' || right(translate(id::text, '-', ''), 16))::bit(64)::bigint)
FROM (SELECT DISTINCT id FROM unnest($1::uuid[]) AS n(id) ORDER BY id) n;

-- name: read_locked :many
-- index: job_pkey, job_version_pkey
-- Locked jobs, as they are now. Separate from the locking: a statement that waited for a lock sees the new row, but joins it
-- only with rows from before, and finds no version for it.
-- $1 tenant_no, $2 ids
SELECT j.key, j.id, j.state, j.state_reason, j.version, v.spec, ondot.clock() AS now
FROM ondot.job j JOIN ondot.job_version v ON v.job_id = j.id AND v.version = j.version
WHERE j.id = ANY ($2::uuid[]) AND j.tenant_no = $1::integer;

-- name: change_job :none
-- locks: the job row, held already
-- $1 tenant_no, $2 id, $3 state, $4 version, $5 spec (NULL: as it was), $6 name, $7 pool_no, $8 labels, $9 why this state
WITH versioned AS (
    INSERT INTO ondot.job_version (job_id, version, tenant_no, spec, created_at)
    SELECT $2::uuid, $4::integer, $1::integer, $5::text::json, ondot.clock() WHERE $5 IS NOT NULL
), superseded AS (
    UPDATE ondot.job_version SET superseded_at = ondot.clock()
    WHERE job_id = $2 AND tenant_no = $1 AND version < $4 AND superseded_at IS NULL AND $5 IS NOT NULL
)
UPDATE ondot.job
SET state = $3::text, version = $4, name = coalesce($6::text, name), pool_no = coalesce($7::integer, pool_no),
    labels = coalesce($8::text::jsonb, labels), state_reason = $9::text, updated_at = ondot.clock()
WHERE id = $2 AND tenant_no = $1;

-- name: find_stopped_jobs :many
-- index: job_pkey
-- Those of these jobs that are paused or deleted.
-- $1 ids
SELECT id, state FROM ondot.job WHERE id = ANY ($1::uuid[]) AND state IN ('PAUSED', 'DELETED');

-- name: find_once_specs :many
-- index: job_once_pkey
-- Specs of one-time jobs that were never changed. The bounds leave the partitions of one or two days, in a plan that is made
-- once too: `id = ANY($1)` alone would not. They are part of the text (store.day_bounds): with bounds as parameters such a
-- plan still locks all days at each use.
-- $1 job_ids, $2 from id, $3 before id
SELECT id, spec FROM ondot.job_once WHERE id >= $2::uuid AND id < $3::uuid AND id = ANY ($1::uuid[]);

-- name: find_specs :many
-- index: job_version_pkey
-- Specs by version. LIMIT makes the planner probe for each; otherwise it hashes the whole table.
-- $1 job_ids, $2 versions
SELECT n.job_id, n.version, v.spec
FROM unnest($1::uuid[], $2::integer[]) AS n(job_id, version)
CROSS JOIN LATERAL (
    SELECT spec FROM ondot.job_version WHERE job_id = n.job_id AND version = n.version LIMIT 1
) v;

-- name: get_jobs :many
-- index: job_pkey, job_once_pkey, timer_pkey, execution_fire, execution_other
-- $1 tenant_no, $2 ids
SELECT j.*, t.next_fire_at AS timer_at, live.count AS live, live.next_fire_at AS planned_at, ondot.clock() AS now
FROM (
    SELECT b.id, b.key, b.name, b.state, b.state_reason, b.version, b.pool_no, b.created_at, b.updated_at, v.spec
    FROM ondot.job b JOIN ondot.job_version v ON v.job_id = b.id AND v.version = b.version
    WHERE b.id = ANY ($2::uuid[]) AND b.tenant_no = $1::integer
    UNION ALL
    SELECT o.id, NULL, o.name, 'ACTIVE', NULL, 1, o.pool_no, NULL, NULL, o.spec
    FROM ondot.job_once o
    WHERE o.id = ANY ($2) AND o.tenant_no = $1 AND NOT EXISTS (SELECT FROM ondot.job b WHERE b.id = o.id)
) j
LEFT JOIN ondot.timer t ON t.job_id = j.id AND t.next_fire_at < 'infinity'
CROSS JOIN LATERAL ondot.live_executions(j.id) live;

-- name: find_pools_of_keys :many
-- index: job_key
-- $1 tenant_no, $2 keys
SELECT j.key, p.name AS pool FROM ondot.job j JOIN ondot.pool p ON p.pool_no = j.pool_no
WHERE j.tenant_no = $1::integer AND j.key = ANY ($2::text[]) AND j.key IS NOT NULL AND j.state <> 'DELETED';

-- name: list_jobs :many
-- index: job_pkey, job_once_pkey, backwards
-- Newest first, a few days at a time (store.newest).
-- $1 tenant_no, $2 from id, $3 limit, $4 state, $5 name, $6 labels (jsonb object), $7 pool_nos, $8 part of a name,
-- $9 before id, $10 workflows only (their text is searched first: reading the JSON of every job takes longer)
WITH candidate AS (
    (SELECT b.id, b.key, b.name, b.state, b.state_reason, b.version, b.pool_no, b.created_at, b.updated_at, v.spec
     FROM ondot.job b JOIN ondot.job_version v ON v.job_id = b.id AND v.version = b.version
     WHERE b.tenant_no = $1::integer AND b.id >= $2::uuid AND b.id < $9::uuid
       AND ($5::text IS NULL OR b.name = $5) AND ($6::text IS NULL OR b.labels @> $6::jsonb)
       AND ($7::integer[] IS NULL OR b.pool_no = ANY ($7))
       AND ($8::text IS NULL OR strpos(lower(b.name), lower($8)) > 0)
       AND (NOT $10::boolean
            OR (strpos(v.spec::text, '"kind":"workflow"') > 0 AND v.spec #>> '{target,kind}' = 'workflow'))
       AND CASE $4::text
           WHEN 'PAUSED' THEN b.state = 'PAUSED'
           WHEN 'DELETED' THEN b.state = 'DELETED'
           WHEN 'ACTIVE' THEN b.state = 'ACTIVE' AND ondot.is_live(b.id)
           WHEN 'ENDED' THEN b.state = 'ACTIVE' AND NOT ondot.is_live(b.id)
           ELSE b.state <> 'DELETED' END
     ORDER BY b.id DESC LIMIT $3::integer)
    UNION ALL
    (SELECT o.id, NULL, o.name, 'ACTIVE', NULL, 1, o.pool_no, NULL, NULL, o.spec
     FROM ondot.job_once o
     WHERE o.tenant_no = $1 AND o.id >= $2 AND o.id < $9
       AND ($5 IS NULL OR o.name = $5) AND ($6 IS NULL OR o.labels @> $6::jsonb)
       AND ($7 IS NULL OR o.pool_no = ANY ($7))
       AND ($8 IS NULL OR strpos(lower(o.name), lower($8)) > 0)
       AND (NOT $10 OR (strpos(o.spec::text, '"kind":"workflow"') > 0 AND o.spec #>> '{target,kind}' = 'workflow'))
       AND NOT EXISTS (SELECT FROM ondot.job b WHERE b.id = o.id)
       AND CASE $4
           WHEN 'ACTIVE' THEN ondot.is_live(o.id)
           WHEN 'ENDED' THEN NOT ondot.is_live(o.id)
           ELSE $4 IS NULL END
     ORDER BY o.id DESC LIMIT $3)
)
SELECT j.*, t.next_fire_at AS timer_at, live.count AS live, live.next_fire_at AS planned_at, ondot.clock() AS now
FROM (SELECT * FROM candidate ORDER BY id DESC LIMIT $3) j
LEFT JOIN ondot.timer t ON t.job_id = j.id AND t.next_fire_at < 'infinity'
CROSS JOIN LATERAL ondot.live_executions(j.id) live
ORDER BY j.id DESC;

-- name: find_creator :one
-- index: job_once_pkey
-- The key or user that created a one-time job.
-- $1 tenant_no, $2 id
SELECT created_by FROM ondot.job_once WHERE id = $2::uuid AND tenant_no = $1::integer;
