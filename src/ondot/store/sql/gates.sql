-- name: forget_gates :many
-- locks: gates, SKIP LOCKED        index: gate_pkey, waiting_pkey, slot_pkey
-- Who comes into line changes the gate in the same transaction: a gate that somebody comes to at this moment is locked,
-- or is no more as it was seen.
-- $1 limit
DELETE FROM ondot.gate WHERE ctid = ANY (ARRAY(
    SELECT g.ctid FROM ondot.gate g
    WHERE g.look_at = 'infinity' AND (g.token_at IS NULL OR g.token_at < ondot.clock() - interval '1 hour')
      AND NOT EXISTS (SELECT FROM ondot.waiting w WHERE w.gate_id = g.id)
      AND NOT EXISTS (SELECT FROM ondot.slot s WHERE s.gate_id = g.id)
    LIMIT $1::integer FOR UPDATE SKIP LOCKED
))
RETURNING id;

-- name: mend_slots :one
-- locks: slots, then gates        index: execution_pkey
-- Slots and places in line of executions that are gone, and gates where somebody may pass and nobody looks.
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
), called AS (
    UPDATE ondot.gate g SET look_at = ondot.clock() WHERE g.id = ANY (ARRAY(SELECT gate_id FROM gone))
)
SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM left_over) AS mended;
