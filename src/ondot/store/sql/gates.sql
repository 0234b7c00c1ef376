-- name: forget_gates :many
-- locks: gates and lines, SKIP LOCKED        index: gate_pkey, waiting_pkey, slot_pkey
-- Gates that nobody stands before or is through, and whose buckets are full, with their lines. Who comes to one at this
-- moment makes what is missing anew.
-- $1 limit
WITH idle AS MATERIALIZED (
    SELECT g.id FROM ondot.gate g
    WHERE (g.token_at IS NULL OR g.token_at < ondot.clock() - interval '1 hour')
      AND NOT EXISTS (SELECT FROM ondot.waiting w WHERE w.gate_id = g.id)
      AND NOT EXISTS (SELECT FROM ondot.slot s WHERE s.gate_id = g.id)
      AND NOT EXISTS (SELECT FROM ondot.line l WHERE l.gate_id = g.id AND l.look_at < 'infinity')
    LIMIT $1::integer FOR UPDATE SKIP LOCKED
), unlined AS (
    DELETE FROM ondot.line WHERE ctid = ANY (ARRAY(
        SELECT l.ctid FROM ondot.line l JOIN idle i ON i.id = l.gate_id WHERE l.look_at = 'infinity' FOR UPDATE SKIP LOCKED
    ))
)
DELETE FROM ondot.gate g USING idle i WHERE g.id = i.id
RETURNING g.id;

-- name: mend_slots :one
-- locks: slots, then lines        index: execution_pkey
-- Slots and gates of executions that are gone, and lines where somebody may pass and nobody looks; and lines that wait
-- for tokens longer than a minute, which a clock that was set back has put off.
WITH gone AS (
    DELETE FROM ondot.slot s
    WHERE s.held_at < ondot.clock() - interval '1 minute'
      AND NOT EXISTS (SELECT FROM ondot.execution e WHERE e.id = s.execution_id)
    RETURNING s.gate_id
), left_over AS (
    DELETE FROM ondot.gated d
    WHERE d.ready_at < ondot.clock() - interval '1 minute'
      AND NOT EXISTS (SELECT FROM ondot.execution e WHERE e.id = d.execution_id)
    RETURNING d.execution_id
), overlooked AS (
    SELECT l.gate_id, l.pool_no FROM ondot.line l CROSS JOIN LATERAL (
        SELECT w.ready_at, (d.stages->w.stage->>'limit')::integer AS most
        FROM ondot.waiting w JOIN ondot.gated d ON d.execution_id = w.execution_id
        WHERE w.gate_id = l.gate_id AND w.pool_no = l.pool_no ORDER BY w.ready_at, w.execution_id LIMIT 1
    ) w
    JOIN ondot.gate g ON g.id = l.gate_id AND g.kind <> 'order'
    WHERE l.look_at = 'infinity' AND w.ready_at < ondot.clock() - interval '1 minute'
      AND (w.most IS NULL OR (SELECT count(*) FROM ondot.slot s WHERE s.gate_id = l.gate_id) < w.most)
), called AS (
    UPDATE ondot.line l SET look_at = ondot.clock()
    WHERE l.gate_id = ANY (ARRAY(SELECT gate_id FROM gone))
       OR (l.gate_id, l.pool_no) IN (SELECT gate_id, pool_no FROM overlooked)
       OR l.is_rate AND l.look_at > ondot.clock() + interval '1 minute' AND l.look_at < 'infinity'
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM left_over) + (SELECT count(*) FROM overlooked) AS mended;
