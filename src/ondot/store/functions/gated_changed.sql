-- ondot.gated_changed(): trigger. Lines and slots follow a row of gated: a new or changed row waits in line, a removed one
-- holds nothing. No statement can forget it.
-- Locks: the missing gates are created, then gates and lines are locked in the order of their keys. They are read in
-- statements that start after the lock: one that started before it would miss an execution that entered a line meanwhile,
-- and nothing would call it.
CREATE OR REPLACE FUNCTION ondot.gated_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    ids uuid[];    -- executions that wait in line now; a running one does not, it only has other gates
    ended uuid[];  -- executions that have ended
    gates uuid[];
BEGIN
    IF TG_OP = 'INSERT' THEN
        ids := ARRAY(SELECT c.execution_id FROM changed c JOIN ondot.execution e ON e.id = c.execution_id
                     WHERE e.state <> 'RUNNING');
        IF ids <> '{}' THEN
            PERFORM ondot.stand_in_line(ids);
        END IF;
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' THEN
        ids := '{}';
        ended := ARRAY(SELECT execution_id FROM removed);
        gates := ARRAY(SELECT (s->>'gate')::uuid FROM removed, jsonb_array_elements(stages) s);
    ELSIF NOT EXISTS (SELECT FROM changed) THEN
        RETURN NULL;
    ELSE
        ids := ARRAY(SELECT c.execution_id FROM changed c JOIN ondot.execution e ON e.id = c.execution_id
                     WHERE e.state <> 'RUNNING' AND NOT c.is_over);
        ended := ARRAY(SELECT execution_id FROM changed WHERE is_over);
        gates := ARRAY(SELECT (s->>'gate')::uuid FROM changed, jsonb_array_elements(stages) s);
    END IF;
    -- Before any is locked: a transaction that creates the same gate may wait for a line that is locked here.
    IF ids <> '{}' THEN
        PERFORM ondot.make_gates_of(ids);
    END IF;
    -- And the former gates, if they have changed.
    gates := gates || ARRAY(SELECT gate_id FROM ondot.slot WHERE execution_id = ANY (ids || ended)
                            UNION SELECT gate_id FROM ondot.waiting WHERE execution_id = ANY (ids || ended));
    PERFORM ondot.lock_gates(gates);
    DELETE FROM ondot.slot WHERE execution_id = ANY (ended);
    DELETE FROM ondot.slot h USING ondot.gated d
    WHERE h.execution_id = ANY (ids) AND d.execution_id = h.execution_id
      AND (NOT h.until_end OR NOT d.stages @> jsonb_build_array(jsonb_build_object('gate', h.gate_id)));
    -- No execution waits at a gate and holds one beyond it: two of them could wait for each other for ever.
    DELETE FROM ondot.slot h
    USING ondot.next_stages(ids) n JOIN ondot.gated d ON d.execution_id = n.execution_id,
          jsonb_array_elements(d.stages) WITH ORDINALITY AS e(stage, no)
    WHERE h.execution_id = n.execution_id AND h.gate_id = (e.stage->>'gate')::uuid AND e.no - 1 > n.stage;
    DELETE FROM ondot.waiting WHERE execution_id = ANY (ids || ended);
    PERFORM ondot.call_lines(gates);
    IF ids <> '{}' THEN
        PERFORM ondot.stand_in_line(ids);
    END IF;
    IF TG_OP = 'UPDATE' AND ended <> '{}' THEN
        DELETE FROM ondot.gated WHERE execution_id = ANY (ended);
    END IF;
    RETURN NULL;
END $$;

-- triggers
CREATE OR REPLACE TRIGGER gated_made AFTER INSERT ON ondot.gated REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION ondot.gated_changed();
CREATE OR REPLACE TRIGGER gated_again AFTER UPDATE ON ondot.gated REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION ondot.gated_changed();
CREATE OR REPLACE TRIGGER gated_over AFTER DELETE ON ondot.gated REFERENCING OLD TABLE AS removed
    FOR EACH STATEMENT EXECUTE FUNCTION ondot.gated_changed();
