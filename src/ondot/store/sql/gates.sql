-- name: forget_gates :one
-- locks: gates and lines, SKIP LOCKED        index: gate_pkey, waiting_pkey, slot_pkey, line_pkey
-- Removes gates without executions, before them or through them, and with a full bucket, together with their lines. An
-- execution that arrives at this moment creates again what is missing. Takes some at a time, in the order of their ids: a
-- gate for each of 300,000 customers is as many rows. Returns the last one looked at (NULL: none), how many it looked at
-- and how many it removed.
-- $1 after id, $2 limit
WITH seen AS MATERIALIZED (
    SELECT id FROM ondot.gate WHERE id > $1::uuid ORDER BY id LIMIT $2::integer
), idle AS MATERIALIZED (
    -- LIMIT forces one probe for each gate: otherwise the planner may hash a whole table.
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

-- name: call_delayed_lines :none
-- locks: lines
-- Lines that would wait longer than a minute for a token, because the clock was set back.
UPDATE ondot.line SET look_at = ondot.clock()
WHERE is_rate AND look_at > ondot.clock() + interval '1 minute' AND look_at < 'infinity';
