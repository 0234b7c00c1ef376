-- ondot.token_at_first(stage): what a new bucket starts with: the tokens that its job or key had taken when all its rates
-- shared one bucket. That row is removed an hour after it is full.
-- Callers: ondot.make_gates, ondot.make_gates_of. Exists only for databases of the release before.
CREATE OR REPLACE FUNCTION ondot.token_at_first(stage jsonb) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT ondot.token_full_at(g.token_at, stage, ondot.clock()) FROM ondot.gate g
    WHERE g.id = (stage->>'of')::uuid AND g.token_at > ondot.clock()
$$;
