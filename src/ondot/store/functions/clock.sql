-- ondot.clock(): the only clock. It decides what is due, what is late, and the time inside an id.
-- The planner inlines it, so that an index condition can use it. Test databases replace it by a clock turned by hand.
-- Callers: nearly every statement.
CREATE OR REPLACE FUNCTION ondot.clock() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE
    AS 'SELECT statement_timestamp()';
