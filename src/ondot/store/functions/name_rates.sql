-- ondot.name_rates(): trigger. Roles of the release before name the gate of a rate by its job or key alone; this gives each
-- rate a gate of its own (ondot.rate_gate). Exists only for the release before.
CREATE OR REPLACE FUNCTION ondot.name_rates() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.stages := (
        SELECT jsonb_agg(CASE WHEN s ? 'every_s' AND NOT s ? 'of' THEN s || jsonb_build_object(
                   'of', s->'gate',
                   'gate', ondot.rate_gate((s->>'gate')::uuid, (s->>'every_s')::double precision, (s->>'burst')::integer))
               ELSE s END ORDER BY no)
        FROM jsonb_array_elements(NEW.stages) WITH ORDINALITY AS e(s, no)
    );
    RETURN NEW;
END $$;

-- triggers
CREATE OR REPLACE TRIGGER gated_rates BEFORE INSERT OR UPDATE OF stages ON ondot.gated FOR EACH ROW
    WHEN (NEW.stages @? '$[*] ? (exists (@.every_s) && !exists (@.of))') EXECUTE FUNCTION ondot.name_rates();

-- Executions that wait before a rate move to its new gate: the triggers rewrite the stages and put them in line again.
UPDATE ondot.gated SET stages = stages WHERE stages @? '$[*] ? (exists (@.every_s) && !exists (@.of))';
