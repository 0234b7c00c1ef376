-- name: forget_gates :one
-- locks: gates and lines, SKIP LOCKED        index: gate_pkey, waiting_pkey, slot_pkey, line_pkey
-- Gates that nobody stands before or is through, and whose buckets are full, with their lines. Who comes to one at this
-- moment makes what is missing again. Some at a time, in the order of their ids: a gate for each of 300,000 customers
-- is as many rows. Returns the last one looked at (NULL: there is none), how many there were and how many are removed.
-- $1 after id, $2 limit
WITH seen AS MATERIALIZED (
    SELECT id FROM ondot.gate WHERE id > $1::uuid ORDER BY id LIMIT $2::integer
), idle AS MATERIALIZED (
    -- LIMIT: one probe for each. Left to itself the planner may hash the whole of a table.
    SELECT i.id FROM seen s CROSS JOIN LATERAL (
        SELECT g.id FROM ondot.gate g
        WHERE g.id = s.id AND (g.token_at IS NULL OR g.token_at < ondot.clock() - interval '1 hour')
          AND (SELECT true FROM ondot.waiting w WHERE w.gate_id = g.id LIMIT 1) IS NULL
          AND (SELECT true FROM ondot.slot s WHERE s.gate_id = g.id LIMIT 1) IS NULL
          AND (SELECT true FROM ondot.line l WHERE l.gate_id = g.id AND l.look_at < 'infinity' LIMIT 1) IS NULL
        LIMIT 1 FOR UPDATE SKIP LOCKED
    ) i
), unlined AS (
    DELETE FROM ondot.line WHERE ctid = ANY (ARRAY(
        SELECT l.row_at FROM idle i CROSS JOIN LATERAL (
            SELECT l.ctid AS row_at FROM ondot.line l
            WHERE l.gate_id = i.id AND l.look_at = 'infinity' FOR UPDATE SKIP LOCKED
        ) l
    ))
), gone AS (
    DELETE FROM ondot.gate WHERE id = ANY (ARRAY(SELECT id FROM idle)) RETURNING 1
)
SELECT (SELECT id FROM seen ORDER BY id DESC LIMIT 1) AS through, (SELECT count(*) FROM seen) AS looked_at,
       (SELECT count(*) FROM gone) AS removed;

-- name: call_put_off :none
-- locks: lines
-- Lines that wait for tokens longer than a minute, which a clock that was set back has put off.
UPDATE ondot.line SET look_at = ondot.clock()
WHERE is_rate AND look_at > ondot.clock() + interval '1 minute' AND look_at < 'infinity';
