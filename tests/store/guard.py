"""The state machine as triggers: every test runs under them, so a step that `TRANSITIONS` does not allow fails.

Generated from the table in `model.execution`. An execution that leaves `execution` is judged when its transaction
commits, against the row of `history` it has become; without one it was taken back. `attempt_no` rises by one with a
start and never otherwise, since it is the fencing token; history is never changed again.
"""

from ondot.model.execution import TERMINAL, TRANSITIONS

_ALLOWED = sorted(
    {
        (source.value if source else "", transition.target.value if transition.target else "")
        for transition in TRANSITIONS
        for source in (transition.sources or {None})
    }
)
_VALUES = ", ".join(f"('{source}', '{target}')" for source, target in _ALLOWED)
_TERMINAL = ", ".join(f"'{state}'" for state in sorted(TERMINAL))

GUARD = f"""
CREATE TABLE ondot.guard_allowed (source text, target text, PRIMARY KEY (source, target));
INSERT INTO ondot.guard_allowed VALUES {_VALUES};
CREATE UNLOGGED TABLE ondot.guard_left (id uuid PRIMARY KEY, state text NOT NULL);

CREATE FUNCTION ondot.guard_check(id uuid, old_state text, new_state text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM ondot.guard_allowed WHERE source = old_state AND target = new_state) THEN
        RAISE EXCEPTION 'the state machine knows no way from "%" to "%" (execution %)', old_state, new_state, id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
END $$;

CREATE FUNCTION ondot.guard_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ondot.guard_check(NEW.id, '', NEW.state);
    RETURN NULL;
END $$;
CREATE TRIGGER guard_made AFTER INSERT ON ondot.execution FOR EACH ROW EXECUTE FUNCTION ondot.guard_made();

CREATE FUNCTION ondot.guard_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.state <> NEW.state THEN
        PERFORM ondot.guard_check(NEW.id, OLD.state, NEW.state);
    END IF;
    IF NEW.attempt_no <> OLD.attempt_no + (OLD.state <> 'RUNNING' AND NEW.state = 'RUNNING')::integer THEN
        RAISE EXCEPTION 'attempt_no went from % to % on the way from % to %',
            OLD.attempt_no, NEW.attempt_no, OLD.state, NEW.state USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER guard_moved AFTER UPDATE ON ondot.execution FOR EACH ROW EXECUTE FUNCTION ondot.guard_moved();

CREATE FUNCTION ondot.guard_left() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO ondot.guard_left VALUES (OLD.id, OLD.state);
    RETURN NULL;
END $$;
CREATE TRIGGER guard_left AFTER DELETE ON ondot.execution FOR EACH ROW EXECUTE FUNCTION ondot.guard_left();

CREATE FUNCTION ondot.guard_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM ondot.history WHERE id = OLD.id) THEN
        PERFORM ondot.guard_check(OLD.id, OLD.state, '');
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER guard_gone AFTER DELETE ON ondot.execution DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ondot.guard_gone();

CREATE FUNCTION ondot.guard_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM ondot.guard_check(NEW.id, coalesce((SELECT state FROM ondot.guard_left WHERE id = NEW.id), ''), NEW.state);
    IF NEW.state NOT IN ({_TERMINAL}) OR EXISTS (SELECT FROM ondot.execution WHERE id = NEW.id) THEN
        RAISE EXCEPTION 'execution % is in history as %, and has not ended', NEW.id, NEW.state
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER guard_ended AFTER INSERT ON ondot.history DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION ondot.guard_ended();

CREATE FUNCTION ondot.guard_history() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND EXISTS (SELECT FROM ondot.tenant WHERE tenant_no = OLD.tenant_no AND state = 'DELETED') THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'history is never changed again' USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER guard_history BEFORE UPDATE OR DELETE ON ondot.history
    FOR EACH ROW EXECUTE FUNCTION ondot.guard_history();
"""
