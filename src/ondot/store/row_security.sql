-- Row-level security for the reads of the API (P12, T1), as an option: `ondot migrate up --row-security`. Safe to repeat.
--
-- A read of the API then runs as ondot_reader, which sees the rows of one tenant: that of the setting ondot.tenant_no, which
-- the transaction of the read sets. A query that forgets its filter returns the caller's rows, and nothing without the
-- setting. The role can read these tables and nothing else; keys, secrets and users are not among them. All others, owner or
-- not, see and write everything as before: their policy is `true`, and the owner of the tables has none at all.
--
-- Reads go through the parents of the day tables, so the days need neither rights nor policies.

DO $$
DECLARE
    name text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'ondot_reader') THEN
        BEGIN
            CREATE ROLE ondot_reader NOLOGIN;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL; -- another database of this server made it meanwhile
        END;
    END IF;
    IF NOT pg_has_role(current_user, 'ondot_reader', 'MEMBER') THEN
        EXECUTE format('GRANT ondot_reader TO %I', current_user);
    END IF;
    GRANT USAGE ON SCHEMA ondot TO ondot_reader;

    -- Of the installation.
    FOREACH name IN ARRAY ARRAY['day_table', 'installation', 'lease', 'node', 'partition', 'pool', 'tenant', 'worker'] LOOP
        EXECUTE format('GRANT SELECT ON ondot.%I TO ondot_reader', name);
    END LOOP;

    -- Of tenants.
    FOREACH name IN ARRAY ARRAY[
        'alert', 'arrival', 'attempt', 'audit', 'audit_open', 'audit_seal', 'backfill', 'bulk', 'bulk_item', 'cause', 'checkpoint',
        'claim', 'condition', 'incident',
        'dead_letter', 'declared', 'declared_refused', 'dependency', 'dependent', 'event', 'event_match', 'event_wait',
        'event_window', 'execution',
        'gate', 'gated', 'history', 'item', 'job', 'job_once', 'job_version', 'known_function', 'line', 'log',
        'map_portion', 'mapped', 'miss', 'object', 'owed', 'past_step', 'ready', 'repair', 'run', 'skipped', 'slot', 'step', 'step_wait',
        'saved_view', 'streak', 'subscription', 'timer', 'trace', 'unknown_call', 'waiting', 'watch'
    ] LOOP
        IF EXISTS (SELECT FROM pg_policy WHERE polrelid = format('ondot.%I', name)::regclass AND polname = 'own_tenant') THEN
            CONTINUE;
        END IF;
        EXECUTE format('GRANT SELECT ON ondot.%I TO ondot_reader', name);
        EXECUTE format('CREATE POLICY everyone ON ondot.%I USING (true) WITH CHECK (true)', name);
        EXECUTE format('CREATE POLICY own_tenant ON ondot.%I AS RESTRICTIVE TO ondot_reader USING (%stenant_no ='
                       ' (SELECT nullif(current_setting(''ondot.tenant_no'', true), '''')::integer))', name,
                       -- Those of tenant 0 are of workers that serve all tenants.
                       CASE name WHEN 'known_function' THEN 'tenant_no = 0 OR ' END);
        EXECUTE format('ALTER TABLE ondot.%I ENABLE ROW LEVEL SECURITY', name);
    END LOOP;
END $$;
