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

-- name: call_put_off :none
-- locks: lines
-- Lines that wait for tokens longer than a minute, which a clock that was set back has put off.
UPDATE ondot.line SET look_at = ondot.clock()
WHERE is_rate AND look_at > ondot.clock() + interval '1 minute' AND look_at < 'infinity';
