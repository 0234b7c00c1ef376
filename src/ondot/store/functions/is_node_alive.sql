-- ondot.is_node_alive(expires_at, beat_at): whether a node's lease has not ended, so that it owns its partitions. A beat in the future
-- is from before the clock was set back: its node beats again soon, or is dead and must not stay an owner until then.
-- Callers: sql/nodes.sql, sql/fleet.sql, sql/overview.sql, sql/explain.sql, sql/check.sql. The planner inlines it.
CREATE OR REPLACE FUNCTION ondot.is_node_alive(expires_at timestamptz, beat_at timestamptz) RETURNS boolean
    LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT expires_at > ondot.clock() AND beat_at < ondot.clock() + interval '1 second' $$;
