-- Written by docs/schema.py from the migrations and functions; `make check` fails when they differ.

CREATE TABLE ondot.alert (
    id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    muted_until timestamp with time zone,
    for_s double precision NOT NULL,
    repeat_s double precision,
    tenant_no integer NOT NULL,
    version integer NOT NULL DEFAULT 1,
    name text NOT NULL,
    "when" jsonb NOT NULL,
    scope jsonb NOT NULL,
    notify text[] NOT NULL,
    created_by text NOT NULL,
    CONSTRAINT alert_pkey PRIMARY KEY (id),
    CONSTRAINT alert_tenant_no_name_key UNIQUE (tenant_no, name)
);

CREATE TABLE ondot.alert_state (
    one_row boolean NOT NULL DEFAULT true,
    tenant_no integer NOT NULL DEFAULT 0,
    generation bigint NOT NULL DEFAULT 0,
    evaluator uuid,
    CONSTRAINT alert_state_one_row_check CHECK (one_row),
    CONSTRAINT alert_state_pkey PRIMARY KEY (one_row)
) WITH (fillfactor=50);

CREATE TABLE ondot.app (
    tenant_no integer NOT NULL,
    name text NOT NULL,
    release text,
    declared_at timestamp with time zone,
    CONSTRAINT app_pkey PRIMARY KEY (tenant_no, name)
);

CREATE TABLE ondot.app_release (
    tenant_no integer NOT NULL,
    app text NOT NULL,
    release text NOT NULL,
    no bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    first_seen_at timestamp with time zone NOT NULL DEFAULT clock(),
    seen_at timestamp with time zone NOT NULL DEFAULT clock(),
    CONSTRAINT app_release_pkey PRIMARY KEY (tenant_no, app, release)
);

CREATE TABLE ondot.archive_file (
    tenant_no integer NOT NULL,
    key text NOT NULL,
    parent text NOT NULL,
    name text NOT NULL,
    day date,
    days integer NOT NULL,
    at timestamp with time zone NOT NULL DEFAULT statement_timestamp(),
    rows bigint NOT NULL,
    bytes bigint NOT NULL,
    digest text NOT NULL,
    CONSTRAINT archive_file_pkey PRIMARY KEY (tenant_no, key)
);
CREATE INDEX archive_file_partition ON ondot.archive_file USING btree (parent, name, at);

CREATE TABLE ondot.arrival (
    run_id uuid NOT NULL,
    execution_id uuid NOT NULL,
    at timestamp with time zone NOT NULL,
    tenant_no integer NOT NULL,
    step_no integer,
    item_no integer,
    state text NOT NULL,
    CONSTRAINT arrival_pkey PRIMARY KEY (run_id, execution_id)
) WITH (fillfactor=70, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000);
CREATE INDEX arrival_at ON ondot.arrival USING btree (at);

CREATE TABLE ondot.attempt (
    execution_id uuid NOT NULL,
    attempt_no integer NOT NULL,
    tenant_no integer NOT NULL,
    worker_id uuid,
    outcome text NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone NOT NULL,
    error jsonb,
    CONSTRAINT attempt_pkey PRIMARY KEY (execution_id, attempt_no)
) PARTITION BY RANGE (execution_id);

CREATE TABLE ondot.audit (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    actor text NOT NULL,
    action text NOT NULL,
    subject uuid,
    detail jsonb,
    key_id uuid,
    user_id uuid,
    address text,
    request_id text,
    home_tenant_no integer,
    before jsonb,
    after jsonb,
    CONSTRAINT audit_pkey PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX audit_latest ON ONLY ondot.audit USING btree (tenant_no, id);
CREATE INDEX audit_subject ON ONLY ondot.audit USING btree (subject, id) WHERE (subject IS NOT NULL);
CREATE TRIGGER audit_entered AFTER INSERT ON ondot.audit REFERENCING NEW TABLE AS entered FOR EACH STATEMENT EXECUTE FUNCTION audit_entered();

CREATE TABLE ondot.audit_cut (
    tenant_no integer NOT NULL,
    seq bigint NOT NULL,
    hash bytea NOT NULL,
    at timestamp with time zone NOT NULL,
    key_id text,
    mac bytea,
    CONSTRAINT audit_cut_pkey PRIMARY KEY (tenant_no)
);

CREATE TABLE ondot.audit_open (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    CONSTRAINT audit_open_pkey PRIMARY KEY (id)
) WITH (fillfactor=70, autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000);

CREATE TABLE ondot.audit_seal (
    tenant_no integer NOT NULL,
    seq bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    from_id uuid NOT NULL,
    to_id uuid NOT NULL,
    count integer NOT NULL,
    format smallint NOT NULL,
    ids uuid[] NOT NULL,
    digests bytea NOT NULL,
    prev bytea NOT NULL,
    hash bytea NOT NULL,
    key_id text,
    mac bytea,
    CONSTRAINT audit_seal_pkey PRIMARY KEY (tenant_no, seq)
);
CREATE INDEX audit_seal_range ON ondot.audit_seal USING btree (tenant_no, to_id, from_id);

CREATE TABLE ondot.backfill (
    id uuid NOT NULL,
    job_id uuid NOT NULL,
    from_at timestamp with time zone NOT NULL,
    to_at timestamp with time zone NOT NULL,
    created_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    tenant_no integer NOT NULL,
    job_version integer NOT NULL,
    concurrency integer NOT NULL,
    total integer NOT NULL,
    made integer NOT NULL DEFAULT 0,
    existing integer NOT NULL DEFAULT 0,
    newest_first boolean NOT NULL,
    state text NOT NULL,
    traceparent text,
    CONSTRAINT backfill_pkey PRIMARY KEY (id),
    CONSTRAINT backfill_state_check CHECK ((state = ANY (ARRAY['RUNNING'::text, 'DONE'::text, 'CANCELLED'::text])))
) WITH (fillfactor=80);
CREATE INDEX backfill_ended ON ondot.backfill USING btree (ended_at) WHERE (ended_at IS NOT NULL);
CREATE INDEX backfill_job ON ondot.backfill USING btree (job_id, id);
CREATE UNIQUE INDEX backfill_open ON ondot.backfill USING btree (job_id) WHERE (state = 'RUNNING'::text);

CREATE TABLE ondot.bulk (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    action text NOT NULL,
    filter jsonb NOT NULL DEFAULT '{}'::jsonb,
    payload json,
    current_version boolean NOT NULL DEFAULT false,
    reason text,
    actor text NOT NULL,
    per_s double precision NOT NULL,
    total integer NOT NULL,
    done integer NOT NULL DEFAULT 0,
    state text NOT NULL,
    turn_at timestamp with time zone NOT NULL DEFAULT 'infinity'::timestamp with time zone,
    through_at timestamp with time zone,
    through_id uuid,
    passed_over boolean NOT NULL DEFAULT false,
    created_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    kind text NOT NULL DEFAULT 'dead_letters'::text,
    q text,
    ids uuid[],
    change jsonb,
    next_at timestamp with time zone,
    refused integer NOT NULL DEFAULT 0,
    unchanged integer NOT NULL DEFAULT 0,
    later uuid[] NOT NULL DEFAULT '{}'::uuid[],
    total_is_least boolean NOT NULL DEFAULT false,
    failures integer NOT NULL DEFAULT 0,
    stopped_because text,
    undo_of uuid,
    undone_by uuid,
    key_id uuid,
    user_id uuid,
    home_tenant_no integer,
    address text,
    request_id text,
    traceparent text,
    tracestate text,
    CONSTRAINT bulk_kind_check CHECK ((kind = ANY (ARRAY['executions'::text, 'jobs'::text, 'dead_letters'::text, 'runs'::text]))),
    CONSTRAINT bulk_pkey PRIMARY KEY (id),
    CONSTRAINT bulk_state_check CHECK ((state = ANY (ARRAY['RUNNING'::text, 'DONE'::text, 'CANCELLED'::text])))
) WITH (fillfactor=50);
CREATE INDEX bulk_latest ON ondot.bulk USING btree (tenant_no, id);
CREATE INDEX bulk_next ON ondot.bulk USING btree (COALESCE(next_at, turn_at)) WHERE (state = 'RUNNING'::text);
CREATE INDEX bulk_turn ON ondot.bulk USING btree (turn_at) WHERE (state = 'RUNNING'::text);

CREATE TABLE ondot.bulk_item (
    bulk_id uuid NOT NULL,
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    is_done boolean NOT NULL,
    detail text,
    before jsonb,
    made uuid,
    CONSTRAINT bulk_item_pkey PRIMARY KEY (bulk_id, id)
);

CREATE TABLE ondot.cancel_key (
    job_id uuid NOT NULL,
    key uuid NOT NULL,
    execution_id uuid NOT NULL,
    tenant_no integer NOT NULL,
    CONSTRAINT cancel_key_pkey PRIMARY KEY (job_id, key, execution_id)
);
CREATE INDEX cancel_key_execution ON ondot.cancel_key USING btree (execution_id);

CREATE TABLE ondot.cause (
    id uuid NOT NULL,
    alert_id uuid NOT NULL,
    incident_id uuid,
    job_id uuid,
    since timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    tenant_no integer NOT NULL,
    times integer NOT NULL DEFAULT 1,
    kind text NOT NULL,
    key text NOT NULL,
    reason text NOT NULL,
    subject text NOT NULL,
    message text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}'::jsonb,
    CONSTRAINT cause_pkey PRIMARY KEY (id)
) WITH (fillfactor=70);
CREATE INDEX cause_incident ON ondot.cause USING btree (incident_id, id) WHERE (incident_id IS NOT NULL);
CREATE INDEX cause_job ON ondot.cause USING btree (job_id) WHERE ((ended_at IS NULL) AND (incident_id IS NOT NULL) AND (job_id IS NOT NULL));
CREATE UNIQUE INDEX cause_live ON ondot.cause USING btree (alert_id, key) WHERE (ended_at IS NULL);

CREATE TABLE ondot.channel (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    name text NOT NULL,
    job_id uuid NOT NULL,
    spec jsonb NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    created_by text NOT NULL,
    updated_at timestamp with time zone,
    updated_by text,
    CONSTRAINT channel_pkey PRIMARY KEY (id),
    CONSTRAINT channel_tenant_no_name_key UNIQUE (tenant_no, name)
);

CREATE TABLE ondot.checkpoint (
    execution_id uuid NOT NULL,
    tenant_no integer NOT NULL,
    checkpoint json,
    progress real,
    message text,
    at timestamp with time zone NOT NULL,
    CONSTRAINT checkpoint_pkey PRIMARY KEY (execution_id)
) WITH (fillfactor=50);

CREATE TABLE ondot.claim (
    tenant_no integer NOT NULL,
    kind text NOT NULL,
    key text NOT NULL,
    job_id uuid NOT NULL,
    since_at timestamp with time zone NOT NULL,
    until_at timestamp with time zone NOT NULL,
    count integer NOT NULL DEFAULT 1,
    look_at timestamp with time zone NOT NULL DEFAULT clock(),
    CONSTRAINT claim_kind_check CHECK ((kind = ANY (ARRAY['unique'::text, 'debounce'::text, 'throttle'::text]))),
    CONSTRAINT claim_pkey PRIMARY KEY (tenant_no, kind, key)
);
CREATE INDEX claim_age ON ondot.claim USING btree (until_at);
CREATE INDEX claim_look ON ondot.claim USING btree (look_at);

CREATE TABLE ondot.condition (
    kind text NOT NULL,
    tenant_no integer NOT NULL,
    subject text NOT NULL,
    job_id uuid,
    since timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    until_at timestamp with time zone,
    message text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}'::jsonb,
    CONSTRAINT condition_pkey PRIMARY KEY (kind, tenant_no, subject)
) WITH (fillfactor=70);
CREATE INDEX condition_until ON ondot.condition USING btree (until_at) WHERE (until_at IS NOT NULL);

CREATE TABLE ondot.connection (
    tenant_no integer NOT NULL,
    name text NOT NULL,
    spec jsonb NOT NULL,
    version integer NOT NULL DEFAULT 1,
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    created_by text NOT NULL,
    updated_at timestamp with time zone NOT NULL DEFAULT clock(),
    updated_by text NOT NULL,
    tested_at timestamp with time zone,
    test_error text,
    CONSTRAINT connection_pkey PRIMARY KEY (tenant_no, name)
);

CREATE TABLE ondot.connection_use (
    tenant_no integer NOT NULL,
    name text NOT NULL,
    job_id uuid NOT NULL,
    CONSTRAINT connection_use_job_id_fkey FOREIGN KEY (job_id) REFERENCES job(id) ON DELETE CASCADE,
    CONSTRAINT connection_use_pkey PRIMARY KEY (tenant_no, name, job_id)
);
CREATE INDEX connection_use_job ON ondot.connection_use USING btree (job_id);

CREATE TABLE ondot.data_key (
    tenant_no integer NOT NULL,
    key_no integer NOT NULL,
    master text NOT NULL,
    wrapped bytea NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    wrapped_at timestamp with time zone NOT NULL DEFAULT clock(),
    CONSTRAINT data_key_pkey PRIMARY KEY (tenant_no, key_no)
);

CREATE TABLE ondot.day_copy (
    parent text NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    sources text[] NOT NULL,
    copy text NOT NULL,
    from_id uuid,
    before_id uuid NOT NULL,
    days integer NOT NULL,
    cutoff timestamp with time zone NOT NULL,
    tenant_nos integer[] NOT NULL,
    cutoffs timestamp with time zone[] NOT NULL,
    place integer NOT NULL DEFAULT 1,
    through_id uuid,
    is_copied boolean NOT NULL DEFAULT false,
    started_at timestamp with time zone NOT NULL DEFAULT statement_timestamp(),
    found bigint NOT NULL DEFAULT 0,
    bytes_before bigint NOT NULL DEFAULT 0,
    reasons jsonb NOT NULL DEFAULT '{}'::jsonb,
    CONSTRAINT day_copy_pkey PRIMARY KEY (parent)
) WITH (fillfactor=50);

CREATE TABLE ondot.day_rewritten (
    parent text NOT NULL,
    name text NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    days integer NOT NULL,
    at timestamp with time zone NOT NULL,
    took_s double precision NOT NULL,
    removed bigint NOT NULL,
    kept bigint NOT NULL,
    bytes_before bigint NOT NULL,
    bytes_after bigint NOT NULL,
    reasons jsonb NOT NULL,
    CONSTRAINT day_rewritten_pkey PRIMARY KEY (parent, name)
);

CREATE TABLE ondot.day_table (
    parent text NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    id_column text NOT NULL,
    first_day date NOT NULL,
    next_day date NOT NULL,
    CONSTRAINT day_table_pkey PRIMARY KEY (parent)
);

CREATE TABLE ondot.day_touched (
    parent text NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    id uuid NOT NULL
);

CREATE TABLE ondot.dead_letter (
    execution_id uuid NOT NULL,
    tenant_no integer NOT NULL,
    job_id uuid NOT NULL,
    job_version integer NOT NULL,
    failed_at timestamp with time zone NOT NULL,
    reason text,
    error jsonb,
    payload json,
    resolved_at timestamp with time zone,
    resolution text,
    resolved_by text,
    resolved_reason text,
    replay_id uuid,
    run_id uuid,
    step_no integer,
    CONSTRAINT dead_letter_pkey PRIMARY KEY (execution_id),
    CONSTRAINT dead_letter_resolution_check CHECK ((resolution = ANY (ARRAY['replayed'::text, 'discarded'::text, 'handled'::text])))
);
CREATE INDEX dead_letter_alike ON ondot.dead_letter USING btree (tenant_no, ((error ->> 'fingerprint'::text)), failed_at) WHERE (resolved_at IS NULL);
CREATE INDEX dead_letter_handled ON ondot.dead_letter USING btree (tenant_no, failed_at) WHERE (resolved_at IS NOT NULL);
CREATE INDEX dead_letter_job ON ondot.dead_letter USING btree (job_id, failed_at) WHERE (resolved_at IS NULL);
CREATE INDEX dead_letter_open ON ondot.dead_letter USING btree (tenant_no, failed_at, execution_id) WHERE (resolved_at IS NULL);
CREATE INDEX dead_letter_resolved ON ondot.dead_letter USING btree (tenant_no, resolved_at) WHERE (resolved_at IS NOT NULL);
CREATE INDEX dead_letter_run ON ondot.dead_letter USING btree (run_id) WHERE ((run_id IS NOT NULL) AND (resolved_at IS NULL));

CREATE TABLE ondot.declared (
    tenant_no integer NOT NULL,
    key text NOT NULL,
    app text NOT NULL,
    job_id uuid NOT NULL,
    document json NOT NULL,
    first_release text NOT NULL,
    release text NOT NULL,
    declared_at timestamp with time zone NOT NULL DEFAULT clock(),
    version integer,
    dropped_at timestamp with time zone,
    dropped_release text,
    CONSTRAINT declared_pkey PRIMARY KEY (tenant_no, key)
);
CREATE INDEX declared_app ON ondot.declared USING btree (tenant_no, app);
CREATE INDEX declared_job ON ondot.declared USING btree (job_id);

CREATE TABLE ondot.declared_refused (
    tenant_no integer NOT NULL,
    app text NOT NULL,
    key text NOT NULL,
    release text NOT NULL,
    why text NOT NULL,
    refused_at timestamp with time zone NOT NULL DEFAULT clock(),
    CONSTRAINT declared_refused_pkey PRIMARY KEY (tenant_no, app, key)
);

CREATE TABLE ondot.delivery (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    channel_id uuid NOT NULL,
    incident_id uuid,
    kind text NOT NULL,
    message jsonb NOT NULL,
    state text NOT NULL DEFAULT 'QUEUED'::text,
    is_open boolean NOT NULL DEFAULT false,
    joined jsonb,
    joined_more integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    answer text,
    error text,
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    tried_at timestamp with time zone,
    ended_at timestamp with time zone,
    CONSTRAINT delivery_pkey PRIMARY KEY (id)
) WITH (fillfactor=70);
CREATE INDEX delivery_age ON ondot.delivery USING btree (created_at);
CREATE INDEX delivery_channel ON ondot.delivery USING btree (channel_id, created_at);
CREATE INDEX delivery_incident ON ondot.delivery USING btree (incident_id) WHERE (incident_id IS NOT NULL);
CREATE INDEX delivery_joined ON ondot.delivery USING btree (tenant_no, created_at) WHERE (joined IS NOT NULL);
CREATE UNIQUE INDEX delivery_open ON ondot.delivery USING btree (channel_id) WHERE is_open;
CREATE INDEX delivery_unended ON ondot.delivery USING btree (created_at) WHERE (ended_at IS NULL);

CREATE TABLE ondot.dependency (
    parent_id uuid NOT NULL,
    child_id uuid NOT NULL,
    look_at timestamp with time zone NOT NULL,
    tenant_no integer NOT NULL,
    state text NOT NULL DEFAULT 'WAITING'::text,
    CONSTRAINT dependency_pkey PRIMARY KEY (parent_id, child_id)
) WITH (fillfactor=80);
CREATE INDEX dependency_child ON ondot.dependency USING btree (child_id);
CREATE INDEX dependency_look ON ondot.dependency USING btree (look_at) WHERE (state <> 'SUCCEEDED'::text);
CREATE INDEX dependency_open ON ondot.dependency USING btree (child_id) WHERE (state <> 'SUCCEEDED'::text);

CREATE TABLE ondot.dependent (
    child_id uuid NOT NULL,
    execution_id uuid NOT NULL,
    stuck_at timestamp with time zone,
    tenant_no integer NOT NULL,
    deadline_s double precision,
    stages text,
    CONSTRAINT dependent_pkey PRIMARY KEY (child_id)
) WITH (fillfactor=80);
CREATE INDEX dependent_stuck ON ondot.dependent USING btree (stuck_at) WHERE (stuck_at IS NOT NULL);

CREATE TABLE ondot.event (
    id uuid NOT NULL,
    received_at timestamp with time zone NOT NULL,
    "time" timestamp with time zone,
    tenant_no integer NOT NULL,
    matched integer NOT NULL,
    type text NOT NULL,
    source text NOT NULL,
    event_id text NOT NULL,
    subject text,
    body json NOT NULL,
    CONSTRAINT event_pkey PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX event_latest ON ONLY ondot.event USING btree (tenant_no, id);
CREATE INDEX event_type ON ONLY ondot.event USING btree (tenant_no, type, id);

CREATE TABLE ondot.event_key (
    key uuid NOT NULL,
    event_id uuid NOT NULL,
    tenant_no integer NOT NULL,
    CONSTRAINT event_key_pkey PRIMARY KEY (tenant_no, key)
) WITH (autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_threshold=10000);
CREATE INDEX event_key_age ON ondot.event_key USING btree (event_id);

CREATE TABLE ondot.event_match (
    event_id uuid NOT NULL,
    job_id uuid NOT NULL,
    execution_id uuid,
    tenant_no integer NOT NULL,
    outcome text NOT NULL,
    CONSTRAINT event_match_outcome_check CHECK ((outcome = ANY (ARRAY['started'::text, 'held'::text, 'skipped'::text]))),
    CONSTRAINT event_match_pkey PRIMARY KEY (event_id, job_id)
) PARTITION BY RANGE (event_id);
CREATE INDEX event_match_execution ON ONLY ondot.event_match USING btree (execution_id) WHERE (execution_id IS NOT NULL);
CREATE INDEX event_match_held ON ONLY ondot.event_match USING btree (job_id, event_id) WHERE (outcome = 'held'::text);

CREATE TABLE ondot.event_wait (
    execution_id uuid NOT NULL,
    run_id uuid NOT NULL,
    tenant_no integer NOT NULL,
    type text NOT NULL,
    rule json NOT NULL,
    CONSTRAINT event_wait_pkey PRIMARY KEY (execution_id)
);
CREATE INDEX event_wait_type ON ondot.event_wait USING btree (tenant_no, type);

CREATE TABLE ondot.event_window (
    execution_id uuid NOT NULL,
    job_id uuid NOT NULL,
    key uuid NOT NULL,
    opened_at timestamp with time zone NOT NULL,
    tenant_no integer NOT NULL,
    events integer NOT NULL,
    bytes integer NOT NULL,
    is_open boolean NOT NULL,
    marks jsonb,
    CONSTRAINT event_window_pkey PRIMARY KEY (execution_id)
) WITH (fillfactor=50);
CREATE UNIQUE INDEX event_window_open ON ondot.event_window USING btree (job_id, key) WHERE is_open;

CREATE TABLE ondot.execution (
    id uuid NOT NULL,
    job_id uuid NOT NULL,
    worker_id uuid,
    fire_at timestamp with time zone NOT NULL,
    ready_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    cancel_at timestamp with time zone,
    tenant_no integer NOT NULL,
    job_version integer NOT NULL,
    pool_no integer NOT NULL,
    attempt_no integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    losses integer NOT NULL DEFAULT 0,
    class smallint NOT NULL,
    state text NOT NULL,
    origin text NOT NULL,
    payload json,
    cancel_reason text,
    start_by timestamp with time zone,
    replay_of uuid,
    gated boolean NOT NULL DEFAULT false,
    awaited_by uuid,
    step_no integer,
    item_no integer,
    CONSTRAINT execution_pkey PRIMARY KEY (id)
) WITH (fillfactor=50, autovacuum_vacuum_scale_factor=0.02, autovacuum_vacuum_cost_delay=0);
CREATE INDEX execution_cancel ON ondot.execution USING btree (cancel_at) WHERE (cancel_at IS NOT NULL);
CREATE UNIQUE INDEX execution_fire ON ondot.execution USING btree (job_id, fire_at) WHERE (origin = ANY (ARRAY['fire'::text, 'backfill'::text]));
CREATE INDEX execution_other ON ondot.execution USING btree (job_id, fire_at) WHERE (origin <> ALL (ARRAY['fire'::text, 'backfill'::text]));
CREATE INDEX execution_start_by ON ondot.execution USING btree (start_by) WHERE (start_by IS NOT NULL);
CREATE INDEX execution_tenant ON ondot.execution USING btree (tenant_no) WHERE (tenant_no > 1);

CREATE TABLE ondot.found (
    kind text NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    count bigint NOT NULL,
    first_at timestamp with time zone NOT NULL,
    last_at timestamp with time zone NOT NULL,
    example jsonb NOT NULL,
    CONSTRAINT found_pkey PRIMARY KEY (kind)
) WITH (fillfactor=50);

CREATE TABLE ondot.function (
    name text NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    checksum text NOT NULL,
    release text NOT NULL,
    applied_at timestamp with time zone NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT function_pkey PRIMARY KEY (name)
);

CREATE TABLE ondot.gate (
    id uuid NOT NULL,
    token_at timestamp with time zone,
    tenant_no integer NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    CONSTRAINT gate_kind_check CHECK ((kind = ANY (ARRAY['order'::text, 'overlap'::text, 'concurrency'::text, 'rate'::text]))),
    CONSTRAINT gate_pkey PRIMARY KEY (id)
) WITH (fillfactor=50, autovacuum_vacuum_scale_factor=0.02);

CREATE TABLE ondot.gated (
    execution_id uuid NOT NULL,
    ready_at timestamp with time zone NOT NULL,
    tenant_no integer NOT NULL,
    pool_no integer NOT NULL,
    class smallint NOT NULL,
    is_fire boolean NOT NULL,
    is_over boolean NOT NULL DEFAULT false,
    stages jsonb NOT NULL,
    CONSTRAINT gated_pkey PRIMARY KEY (execution_id)
) WITH (fillfactor=50);
CREATE TRIGGER gated_again AFTER UPDATE ON ondot.gated REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION gated_changed();
CREATE TRIGGER gated_made AFTER INSERT ON ondot.gated REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION gated_changed();
CREATE TRIGGER gated_over AFTER DELETE ON ondot.gated REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION gated_changed();
CREATE TRIGGER gated_rates BEFORE INSERT OR UPDATE OF stages ON ondot.gated FOR EACH ROW WHEN ((new.stages @? '$[*]?(exists (@."every_s") && !(exists (@."of")))'::jsonpath)) EXECUTE FUNCTION name_rates();

CREATE TABLE ondot.history (
    id uuid NOT NULL,
    job_id uuid NOT NULL,
    worker_id uuid,
    fire_at timestamp with time zone NOT NULL,
    ready_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    ended_at timestamp with time zone NOT NULL,
    tenant_no integer NOT NULL,
    job_version integer NOT NULL,
    pool_no integer NOT NULL,
    attempt_no integer NOT NULL,
    failures integer NOT NULL,
    losses integer NOT NULL,
    class smallint NOT NULL,
    state text NOT NULL,
    origin text NOT NULL,
    reason text,
    payload json,
    result json,
    error jsonb,
    replay_of uuid,
    step_no integer,
    item_no integer,
    labels jsonb,
    CONSTRAINT history_pkey PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX history_job ON ONLY ondot.history USING btree (job_id, fire_at);
CREATE INDEX history_not_succeeded ON ONLY ondot.history USING btree (tenant_no, id) WHERE (state <> 'SUCCEEDED'::text);
CREATE INDEX history_tenant ON ONLY ondot.history USING btree (tenant_no, id) WHERE (tenant_no > 1);

CREATE TABLE ondot.hook (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    name text NOT NULL,
    type text NOT NULL,
    source text NOT NULL,
    signature text NOT NULL,
    header text NOT NULL,
    hash bytea NOT NULL,
    hash_before bytea,
    hash_until timestamp with time zone,
    key_no integer,
    sealed bytea,
    key_no_before integer,
    sealed_before bytea,
    sealed_until timestamp with time zone,
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    created_by text NOT NULL,
    rotated_at timestamp with time zone,
    last_used_at timestamp with time zone,
    CONSTRAINT hook_pkey PRIMARY KEY (id),
    CONSTRAINT hook_tenant_no_name_key UNIQUE (tenant_no, name)
);
CREATE UNIQUE INDEX hook_hash ON ondot.hook USING btree (hash);
CREATE UNIQUE INDEX hook_hash_before ON ondot.hook USING btree (hash_before) WHERE (hash_before IS NOT NULL);

CREATE TABLE ondot.idempotency (
    tenant_no integer NOT NULL,
    key text NOT NULL,
    request_hash bytea NOT NULL,
    answer json,
    created_at timestamp with time zone NOT NULL,
    CONSTRAINT idempotency_pkey PRIMARY KEY (tenant_no, key)
);
CREATE INDEX idempotency_age ON ondot.idempotency USING btree (created_at);

CREATE TABLE ondot.incident (
    id uuid NOT NULL,
    alert_id uuid NOT NULL,
    job_id uuid,
    since timestamp with time zone NOT NULL,
    opened_at timestamp with time zone NOT NULL,
    clear_at timestamp with time zone,
    remind_at timestamp with time zone,
    resolved_at timestamp with time zone,
    acknowledged_at timestamp with time zone,
    tenant_no integer NOT NULL,
    reopened integer NOT NULL DEFAULT 0,
    causes integer NOT NULL DEFAULT 0,
    messages integer NOT NULL DEFAULT 0,
    kind text NOT NULL,
    reason text NOT NULL,
    alert text NOT NULL,
    title text NOT NULL,
    notified text[] NOT NULL DEFAULT '{}'::text[],
    acknowledged_by text,
    resolved_by text,
    note text,
    CONSTRAINT incident_pkey PRIMARY KEY (id)
) WITH (fillfactor=70);
CREATE INDEX incident_latest ON ondot.incident USING btree (tenant_no, id);
CREATE INDEX incident_open ON ondot.incident USING btree (tenant_no, id) WHERE (resolved_at IS NULL);
CREATE INDEX incident_resolved ON ondot.incident USING btree (resolved_at) WHERE (resolved_at IS NOT NULL);

CREATE TABLE ondot.installation (
    tenant_no integer NOT NULL DEFAULT 0,
    partitions integer NOT NULL,
    oldest_release text NOT NULL,
    one_row boolean NOT NULL DEFAULT true,
    tzdata text,
    tzdata_next text,
    tzdata_through uuid,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    CONSTRAINT installation_one_row_check CHECK (one_row),
    CONSTRAINT installation_pkey PRIMARY KEY (one_row)
);

CREATE TABLE ondot.item (
    run_id uuid NOT NULL,
    execution_id uuid,
    step_no integer NOT NULL,
    item_no integer NOT NULL,
    tenant_no integer NOT NULL,
    generation integer NOT NULL DEFAULT 0,
    state text NOT NULL,
    CONSTRAINT item_pkey PRIMARY KEY (run_id, step_no, item_no)
) WITH (fillfactor=70);
CREATE INDEX item_waiting ON ondot.item USING btree (run_id, step_no, item_no) WHERE (state = 'WAITING'::text);

CREATE TABLE ondot.job (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    key text,
    name text NOT NULL,
    state text NOT NULL,
    version integer NOT NULL,
    pool_no integer NOT NULL,
    labels jsonb NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    state_reason text,
    CONSTRAINT job_pkey PRIMARY KEY (id),
    CONSTRAINT job_state_check CHECK ((state = ANY (ARRAY['ACTIVE'::text, 'PAUSED'::text, 'DELETED'::text])))
);
CREATE INDEX job_deleted ON ondot.job USING btree (updated_at, id) WHERE (state = 'DELETED'::text);
CREATE UNIQUE INDEX job_key ON ondot.job USING btree (tenant_no, key) WHERE ((key IS NOT NULL) AND (state <> 'DELETED'::text));
CREATE INDEX job_lower_name ON ondot.job USING btree (tenant_no, lower((name COLLATE "C")), id) WHERE (state <> 'DELETED'::text);
CREATE INDEX job_name ON ondot.job USING btree (tenant_no, name);
CREATE INDEX job_tenant ON ondot.job USING btree (tenant_no, id) WHERE (tenant_no > 1);

CREATE TABLE ondot.job_count (
    tenant_no integer NOT NULL,
    jobs bigint NOT NULL,
    counted_at timestamp with time zone NOT NULL,
    CONSTRAINT job_count_pkey PRIMARY KEY (tenant_no)
) WITH (fillfactor=50);

CREATE TABLE ondot.job_once (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    name text NOT NULL,
    pool_no integer NOT NULL,
    fire_at timestamp with time zone NOT NULL,
    labels jsonb NOT NULL,
    spec json NOT NULL,
    created_by uuid,
    CONSTRAINT job_once_pkey PRIMARY KEY (id)
) PARTITION BY RANGE (id);
CREATE INDEX job_once_tenant ON ONLY ondot.job_once USING btree (tenant_no, id) WHERE (tenant_no > 1);

CREATE TABLE ondot.job_version (
    job_id uuid NOT NULL,
    version integer NOT NULL,
    tenant_no integer NOT NULL,
    spec json NOT NULL,
    created_at timestamp with time zone NOT NULL,
    superseded_at timestamp with time zone,
    CONSTRAINT job_version_pkey PRIMARY KEY (job_id, version)
);
CREATE INDEX job_version_metrics ON ondot.job_version USING btree (job_id) WHERE ((superseded_at IS NULL) AND ((spec ->> 'metrics'::text) = 'true'::text));
CREATE INDEX job_version_superseded ON ondot.job_version USING btree (superseded_at) WHERE (superseded_at IS NOT NULL);

CREATE TABLE ondot.kept_from (
    tenant_no integer NOT NULL,
    at timestamp with time zone NOT NULL,
    CONSTRAINT kept_from_pkey PRIMARY KEY (tenant_no)
) WITH (fillfactor=50);

CREATE TABLE ondot.key (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    name text NOT NULL,
    hash bytea NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT statement_timestamp(),
    revoked_at timestamp with time zone,
    role text NOT NULL DEFAULT 'admin'::text,
    scopes text[],
    pools text[],
    expires_at timestamp with time zone,
    last_used_at timestamp with time zone,
    created_by text,
    replaced_by uuid,
    CONSTRAINT key_hash_key UNIQUE (hash),
    CONSTRAINT key_pkey PRIMARY KEY (id),
    CONSTRAINT key_role_check CHECK ((role = ANY (ARRAY['viewer'::text, 'operator'::text, 'editor'::text, 'admin'::text, 'owner'::text, 'worker'::text])))
);
CREATE INDEX key_of_tenant ON ondot.key USING btree (tenant_no, id);

CREATE TABLE ondot.known_function (
    tenant_no integer NOT NULL,
    name text NOT NULL,
    app text NOT NULL,
    release text NOT NULL,
    digest text NOT NULL,
    description text,
    options json NOT NULL,
    argument_defaults json NOT NULL,
    schema json,
    enqueued json NOT NULL,
    registered_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    CONSTRAINT known_function_pkey PRIMARY KEY (tenant_no, name, app, release)
);

CREATE TABLE ondot.lease (
    id uuid NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    worker_id uuid NOT NULL,
    leased_at timestamp with time zone NOT NULL,
    execution_ids uuid[] NOT NULL,
    attempt_nos integer[] NOT NULL,
    CONSTRAINT lease_pkey PRIMARY KEY (id)
) WITH (autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_cost_delay=0);
CREATE INDEX lease_worker ON ondot.lease USING btree (worker_id);

CREATE TABLE ondot.line (
    gate_id uuid NOT NULL,
    pool_no integer NOT NULL,
    tenant_no integer NOT NULL,
    is_rate boolean NOT NULL,
    look_at timestamp with time zone NOT NULL,
    CONSTRAINT line_pkey PRIMARY KEY (gate_id, pool_no)
) WITH (fillfactor=50, autovacuum_vacuum_scale_factor=0.02);
CREATE INDEX line_look ON ondot.line USING btree (pool_no, is_rate, look_at) WHERE (look_at < 'infinity'::timestamp with time zone);

CREATE TABLE ondot.lineage (
    is_one boolean NOT NULL DEFAULT true,
    tenant_no integer NOT NULL DEFAULT 0,
    system_id text NOT NULL,
    timeline integer NOT NULL,
    table_id bigint NOT NULL,
    is_synchronous boolean NOT NULL,
    since timestamp with time zone NOT NULL,
    accepted_at timestamp with time zone,
    held_at timestamp with time zone,
    held_why text,
    CONSTRAINT lineage_check CHECK (((held_at IS NULL) = (held_why IS NULL))),
    CONSTRAINT lineage_is_one_check CHECK (is_one),
    CONSTRAINT lineage_pkey PRIMARY KEY (is_one)
);

CREATE TABLE ondot.listener (
    id uuid NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    host text NOT NULL,
    addresses inet[] NOT NULL,
    port integer NOT NULL,
    url text NOT NULL,
    seen_at timestamp with time zone NOT NULL DEFAULT clock(),
    CONSTRAINT listener_pkey PRIMARY KEY (id)
);

CREATE TABLE ondot.log (
    execution_id uuid NOT NULL,
    attempt_no integer NOT NULL,
    line_no integer NOT NULL,
    tenant_no integer NOT NULL,
    at timestamp with time zone NOT NULL,
    stream text NOT NULL,
    line text NOT NULL,
    CONSTRAINT log_pkey PRIMARY KEY (execution_id, attempt_no, line_no)
) PARTITION BY RANGE (execution_id);

CREATE TABLE ondot.map_portion (
    run_id uuid NOT NULL,
    step_no integer NOT NULL,
    first_no integer NOT NULL,
    tenant_no integer NOT NULL,
    items json NOT NULL,
    CONSTRAINT map_portion_pkey PRIMARY KEY (run_id, step_no, first_no)
);

CREATE TABLE ondot.mapped (
    run_id uuid NOT NULL,
    step_no integer NOT NULL,
    tenant_no integer NOT NULL,
    total integer NOT NULL,
    cursor integer NOT NULL DEFAULT 0,
    waiting integer NOT NULL DEFAULT 0,
    active integer NOT NULL DEFAULT 0,
    stuck integer NOT NULL DEFAULT 0,
    succeeded integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    concurrency integer,
    tolerate_count integer,
    tolerate_percent double precision,
    is_open boolean NOT NULL DEFAULT false,
    CONSTRAINT mapped_pkey PRIMARY KEY (run_id, step_no)
) WITH (fillfactor=50);

CREATE TABLE ondot.migration (
    number integer NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    name text NOT NULL,
    checksum text NOT NULL,
    release text NOT NULL,
    applied_at timestamp with time zone NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT migration_pkey PRIMARY KEY (number)
);

CREATE TABLE ondot.miss (
    id uuid NOT NULL,
    job_id uuid NOT NULL,
    execution_id uuid,
    fire_at timestamp with time zone,
    due_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    cleared_at timestamp with time zone,
    tenant_no integer NOT NULL,
    count integer NOT NULL,
    predicted boolean NOT NULL,
    which text NOT NULL,
    reason text NOT NULL,
    CONSTRAINT miss_pkey PRIMARY KEY (id)
) WITH (fillfactor=70);
CREATE INDEX miss_age ON ondot.miss USING btree (seen_at);
CREATE INDEX miss_job ON ondot.miss USING btree (job_id, id);
CREATE INDEX miss_latest ON ondot.miss USING btree (tenant_no, due_at);
CREATE UNIQUE INDEX miss_open ON ondot.miss USING btree (job_id, which) WHERE (cleared_at IS NULL);

CREATE TABLE ondot.node (
    id uuid NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    host text NOT NULL,
    pid integer NOT NULL,
    release text NOT NULL,
    started_at timestamp with time zone NOT NULL,
    beat_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    stalled_at timestamp with time zone,
    stalled_in text,
    coordination text NOT NULL DEFAULT 'postgres'::text,
    away_since timestamp with time zone,
    away_why text,
    CONSTRAINT node_pkey PRIMARY KEY (id)
) WITH (fillfactor=50);

CREATE TABLE ondot.object (
    execution_id uuid NOT NULL,
    attempt_no integer NOT NULL,
    kind text NOT NULL,
    tenant_no integer NOT NULL,
    key text NOT NULL,
    bytes bigint NOT NULL,
    cut boolean NOT NULL DEFAULT false,
    CONSTRAINT object_kind_check CHECK ((kind = ANY (ARRAY['result'::text, 'log'::text]))),
    CONSTRAINT object_pkey PRIMARY KEY (execution_id, attempt_no, kind)
) PARTITION BY RANGE (execution_id);

CREATE TABLE ondot.outbox (
    xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    no bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at timestamp with time zone NOT NULL DEFAULT clock(),
    tenant_no integer NOT NULL,
    type text NOT NULL,
    job_ids uuid[] NOT NULL,
    execution_ids uuid[],
    attempt_nos integer[],
    retry_ats timestamp with time zone[],
    detail json,
    CONSTRAINT outbox_pkey PRIMARY KEY (tenant_no, no)
) WITH (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000);

CREATE TABLE ondot.owed (
    id uuid NOT NULL,
    job_id uuid NOT NULL,
    from_at timestamp with time zone NOT NULL,
    to_at timestamp with time zone NOT NULL,
    turn_at timestamp with time zone NOT NULL,
    count integer,
    tenant_no integer NOT NULL,
    job_version integer NOT NULL,
    concurrency integer NOT NULL,
    partition_no smallint NOT NULL,
    newest_first boolean NOT NULL,
    origin text NOT NULL,
    CONSTRAINT owed_origin_check CHECK ((origin = ANY (ARRAY['fire'::text, 'backfill'::text]))),
    CONSTRAINT owed_pkey PRIMARY KEY (id)
) WITH (fillfactor=50);
CREATE INDEX owed_job ON ondot.owed USING btree (job_id);
CREATE INDEX owed_turn ON ondot.owed USING btree (partition_no, turn_at);

CREATE TABLE ondot.own_event (
    no bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    at timestamp with time zone NOT NULL,
    job_id uuid NOT NULL,
    execution_id uuid,
    tenant_no integer NOT NULL,
    type text NOT NULL,
    reason text,
    CONSTRAINT own_event_pkey PRIMARY KEY (no)
) WITH (autovacuum_vacuum_scale_factor=0, autovacuum_vacuum_threshold=10000);
CREATE INDEX own_event_tenant ON ondot.own_event USING btree (tenant_no, no);

CREATE TABLE ondot.partition (
    partition_no smallint NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    owner uuid,
    epoch bigint NOT NULL DEFAULT 0,
    owned_since timestamp with time zone,
    CONSTRAINT partition_pkey PRIMARY KEY (partition_no)
) WITH (fillfactor=50);

CREATE TABLE ondot.past_step (
    run_id uuid NOT NULL,
    repair_id uuid NOT NULL,
    execution_id uuid,
    released_at timestamp with time zone,
    ended_at timestamp with time zone,
    step_no integer NOT NULL,
    tenant_no integer NOT NULL,
    generation integer NOT NULL,
    state text NOT NULL,
    reason text,
    CONSTRAINT past_step_pkey PRIMARY KEY (run_id, step_no, repair_id)
);

CREATE TABLE ondot.person (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    email text NOT NULL,
    name text NOT NULL,
    role text NOT NULL,
    state text NOT NULL DEFAULT 'ACTIVE'::text,
    password text,
    subject text,
    invitation bytea,
    invited_until timestamp with time zone,
    known_network text,
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    created_by text,
    last_sign_in_at timestamp with time zone,
    CONSTRAINT person_email UNIQUE (tenant_no, email),
    CONSTRAINT person_invitation_key UNIQUE (invitation),
    CONSTRAINT person_owner CHECK (((role <> 'owner'::text) OR (tenant_no = 1))),
    CONSTRAINT person_pkey PRIMARY KEY (id),
    CONSTRAINT person_role_check CHECK ((role = ANY (ARRAY['viewer'::text, 'operator'::text, 'editor'::text, 'admin'::text, 'owner'::text]))),
    CONSTRAINT person_state_check CHECK ((state = ANY (ARRAY['ACTIVE'::text, 'DISABLED'::text])))
);

CREATE TABLE ondot.ping (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    name text NOT NULL,
    hash bytea NOT NULL,
    schedule jsonb,
    period_s double precision,
    grace_s double precision NOT NULL,
    state text NOT NULL DEFAULT 'NEW'::text,
    due_at timestamp with time zone,
    started_at timestamp with time zone,
    pinged_at timestamp with time zone,
    took_s double precision,
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    created_by text NOT NULL,
    CONSTRAINT ping_pkey PRIMARY KEY (id),
    CONSTRAINT ping_tenant_no_name_key UNIQUE (tenant_no, name)
) WITH (fillfactor=70);
CREATE INDEX ping_due ON ondot.ping USING btree (due_at) WHERE (due_at IS NOT NULL);
CREATE UNIQUE INDEX ping_hash ON ondot.ping USING btree (hash);

CREATE TABLE ondot.ping_call (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    ping_id uuid NOT NULL,
    kind text NOT NULL,
    exit_code integer,
    took_s double precision,
    body text,
    address text,
    CONSTRAINT ping_call_pkey PRIMARY KEY (id)
);
CREATE INDEX ping_call_ping ON ondot.ping_call USING btree (ping_id, id);

CREATE TABLE ondot.pool (
    pool_no integer NOT NULL GENERATED ALWAYS AS IDENTITY,
    tenant_no integer NOT NULL DEFAULT 1,
    name text NOT NULL,
    transport text,
    created_at timestamp with time zone NOT NULL DEFAULT statement_timestamp(),
    concurrency integer,
    rate_limit integer,
    rate_per_s double precision,
    rate_burst integer,
    token_at timestamp with time zone,
    transport_was text,
    transport_at timestamp with time zone,
    CONSTRAINT pool_concurrency_check CHECK ((concurrency > 0)),
    CONSTRAINT pool_name_key UNIQUE (name),
    CONSTRAINT pool_pkey PRIMARY KEY (pool_no),
    CONSTRAINT pool_rate_burst_check CHECK ((rate_burst > 0)),
    CONSTRAINT pool_rate_limit_check CHECK ((rate_limit > 0)),
    CONSTRAINT pool_rate_per_s_check CHECK ((rate_per_s > (0)::double precision))
);

CREATE TABLE ondot.quota_token (
    tenant_no integer NOT NULL,
    quota text NOT NULL,
    token_at timestamp with time zone NOT NULL,
    CONSTRAINT quota_token_pkey PRIMARY KEY (tenant_no, quota)
) WITH (fillfactor=50);

CREATE TABLE ondot.ready (
    pool_no integer NOT NULL,
    class smallint NOT NULL,
    tenant_no integer NOT NULL,
    ready_at timestamp with time zone NOT NULL,
    execution_id uuid NOT NULL,
    CONSTRAINT ready_pkey PRIMARY KEY (pool_no, class, tenant_no, ready_at, execution_id)
) WITH (autovacuum_vacuum_scale_factor=0.01, autovacuum_vacuum_cost_delay=0);

CREATE TABLE ondot.repair (
    id uuid NOT NULL,
    run_id uuid NOT NULL,
    at timestamp with time zone NOT NULL,
    tenant_no integer NOT NULL,
    action text NOT NULL,
    actor text NOT NULL,
    reason text,
    steps text[] NOT NULL,
    CONSTRAINT repair_pkey PRIMARY KEY (id)
);
CREATE INDEX repair_run ON ondot.repair USING btree (run_id, id);

CREATE TABLE ondot.run (
    id uuid NOT NULL,
    job_id uuid NOT NULL,
    parent_run_id uuid,
    rerun_of uuid,
    fire_at timestamp with time zone,
    started_at timestamp with time zone,
    blocked_at timestamp with time zone,
    ended_at timestamp with time zone,
    look_at timestamp with time zone,
    tenant_no integer NOT NULL,
    job_version integer NOT NULL,
    parent_step_no integer,
    parent_item_no integer,
    depth smallint NOT NULL DEFAULT 0,
    class smallint NOT NULL DEFAULT 2,
    own_payload boolean NOT NULL DEFAULT false,
    is_paused boolean NOT NULL DEFAULT false,
    is_counted boolean NOT NULL DEFAULT false,
    waiting integer NOT NULL DEFAULT 0,
    active integer NOT NULL DEFAULT 0,
    succeeded integer NOT NULL DEFAULT 0,
    failed integer NOT NULL DEFAULT 0,
    skipped integer NOT NULL DEFAULT 0,
    blocked integer NOT NULL DEFAULT 0,
    superseded integer NOT NULL DEFAULT 0,
    state text NOT NULL,
    verdict text,
    reason text,
    results_from uuid,
    CONSTRAINT run_pkey PRIMARY KEY (id),
    CONSTRAINT run_state_check CHECK ((state = ANY (ARRAY['PENDING'::text, 'RUNNING'::text, 'BLOCKED'::text, 'ENDING'::text, 'SUCCEEDED'::text, 'FAILED'::text, 'CANCELLED'::text]))),
    CONSTRAINT run_verdict_check CHECK ((verdict = ANY (ARRAY['SUCCEEDED'::text, 'FAILED'::text, 'CANCELLED'::text])))
) WITH (fillfactor=50);
CREATE INDEX run_blocked ON ondot.run USING btree (tenant_no, blocked_at) WHERE ((blocked_at IS NOT NULL) AND (ended_at IS NULL));
CREATE INDEX run_ended ON ondot.run USING btree (tenant_no, ended_at) WHERE (ended_at IS NOT NULL);
CREATE INDEX run_job ON ondot.run USING btree (job_id, id);
CREATE INDEX run_live ON ondot.run USING btree (id) WHERE (ended_at IS NULL);
CREATE INDEX run_look ON ondot.run USING btree (look_at) WHERE (look_at IS NOT NULL);
CREATE INDEX run_parent ON ondot.run USING btree (parent_run_id) WHERE (parent_run_id IS NOT NULL);
CREATE INDEX run_tenant ON ondot.run USING btree (tenant_no, id);

CREATE TABLE ondot.saved_view (
    id uuid NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    updated_at timestamp with time zone NOT NULL DEFAULT clock(),
    tenant_no integer NOT NULL,
    kind text NOT NULL,
    name text NOT NULL,
    q text NOT NULL,
    owner text NOT NULL,
    created_by text NOT NULL,
    CONSTRAINT saved_view_kind_check CHECK ((kind = ANY (ARRAY['executions'::text, 'jobs'::text, 'dead_letters'::text, 'runs'::text]))),
    CONSTRAINT saved_view_pkey PRIMARY KEY (id),
    CONSTRAINT saved_view_tenant_no_owner_kind_name_key UNIQUE (tenant_no, owner, kind, name)
);

CREATE TABLE ondot.secret (
    tenant_no integer NOT NULL,
    name text NOT NULL,
    version integer NOT NULL,
    key_no integer NOT NULL,
    sealed bytea NOT NULL,
    mark bytea NOT NULL,
    hosts text[],
    functions text[],
    pools text[],
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    created_by text NOT NULL,
    updated_at timestamp with time zone NOT NULL DEFAULT clock(),
    updated_by text NOT NULL,
    CONSTRAINT secret_pkey PRIMARY KEY (tenant_no, name)
);

CREATE TABLE ondot.secret_use (
    tenant_no integer NOT NULL,
    name text NOT NULL,
    job_id uuid NOT NULL,
    CONSTRAINT secret_use_job_id_fkey FOREIGN KEY (job_id) REFERENCES job(id) ON DELETE CASCADE,
    CONSTRAINT secret_use_pkey PRIMARY KEY (tenant_no, name, job_id)
);
CREATE INDEX secret_use_job ON ondot.secret_use USING btree (job_id);

CREATE TABLE ondot.session (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    user_id uuid NOT NULL,
    hash bytea NOT NULL,
    method text NOT NULL,
    address text NOT NULL,
    agent text NOT NULL,
    acts_for integer,
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    seen_at timestamp with time zone NOT NULL DEFAULT clock(),
    expires_at timestamp with time zone NOT NULL,
    CONSTRAINT session_hash_key UNIQUE (hash),
    CONSTRAINT session_method_check CHECK ((method = ANY (ARRAY['password'::text, 'oidc'::text]))),
    CONSTRAINT session_pkey PRIMARY KEY (id),
    CONSTRAINT session_user_id_fkey FOREIGN KEY (user_id) REFERENCES person(id) ON DELETE CASCADE
);
CREATE INDEX session_seen_at ON ondot.session USING btree (seen_at);
CREATE INDEX session_user_id ON ondot.session USING btree (user_id, id);

CREATE TABLE ondot.sign_in_failure (
    subject bytea NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    failed_at timestamp with time zone NOT NULL DEFAULT clock(),
    free_at timestamp with time zone NOT NULL DEFAULT clock(),
    CONSTRAINT sign_in_failure_pkey PRIMARY KEY (subject)
);
CREATE INDEX sign_in_failure_failed_at ON ondot.sign_in_failure USING btree (failed_at);

CREATE TABLE ondot.signing_key (
    tenant_no integer NOT NULL,
    version integer NOT NULL,
    key_no integer NOT NULL,
    sealed bytea NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    ends_at timestamp with time zone,
    CONSTRAINT signing_key_pkey PRIMARY KEY (tenant_no, version)
);

CREATE TABLE ondot.sink (
    id uuid NOT NULL,
    tenant_no integer NOT NULL,
    name text NOT NULL,
    types text[] NOT NULL,
    spec json NOT NULL,
    is_paused boolean NOT NULL DEFAULT false,
    version integer NOT NULL DEFAULT 1,
    created_at timestamp with time zone NOT NULL DEFAULT clock(),
    created_by text NOT NULL,
    updated_at timestamp with time zone,
    updated_by text,
    CONSTRAINT sink_pkey PRIMARY KEY (id),
    CONSTRAINT sink_tenant_no_name_key UNIQUE (tenant_no, name)
);

CREATE TABLE ondot.sink_state (
    sink_id uuid NOT NULL,
    tenant_no integer NOT NULL,
    "position" bigint NOT NULL,
    sent bigint NOT NULL DEFAULT 0,
    shortened bigint NOT NULL DEFAULT 0,
    refused bigint NOT NULL DEFAULT 0,
    dropped bigint NOT NULL DEFAULT 0,
    sent_at timestamp with time zone,
    error text,
    error_at timestamp with time zone,
    failing_since timestamp with time zone,
    tries integer NOT NULL DEFAULT 0,
    retry_at timestamp with time zone,
    CONSTRAINT sink_state_pkey PRIMARY KEY (sink_id)
) WITH (fillfactor=50);
CREATE INDEX sink_state_tenant ON ondot.sink_state USING btree (tenant_no, "position");

CREATE TABLE ondot.skipped (
    job_id uuid NOT NULL,
    from_at timestamp with time zone NOT NULL,
    to_at timestamp with time zone NOT NULL,
    tenant_no integer NOT NULL,
    reason text NOT NULL,
    count integer,
    at timestamp with time zone NOT NULL DEFAULT statement_timestamp(),
    job_version integer,
    CONSTRAINT skipped_pkey PRIMARY KEY (job_id, from_at, to_at)
);
CREATE INDEX skipped_recent ON ondot.skipped USING btree (tenant_no, at);

CREATE TABLE ondot.slot (
    gate_id uuid NOT NULL,
    execution_id uuid NOT NULL,
    tenant_no integer NOT NULL,
    until_end boolean NOT NULL,
    held_at timestamp with time zone NOT NULL,
    CONSTRAINT slot_pkey PRIMARY KEY (gate_id, execution_id)
) WITH (autovacuum_vacuum_scale_factor=0.02);
CREATE INDEX slot_execution ON ondot.slot USING btree (execution_id);

CREATE TABLE ondot.step (
    run_id uuid NOT NULL,
    execution_id uuid,
    released_at timestamp with time zone,
    ended_at timestamp with time zone,
    step_no integer NOT NULL,
    tenant_no integer NOT NULL,
    generation integer NOT NULL DEFAULT 0,
    parents_succeeded integer NOT NULL DEFAULT 0,
    parents_failed integer NOT NULL DEFAULT 0,
    parents_skipped integer NOT NULL DEFAULT 0,
    state text NOT NULL,
    reason text,
    result json,
    payload json,
    CONSTRAINT step_pkey PRIMARY KEY (run_id, step_no)
) WITH (fillfactor=70);

CREATE TABLE ondot.step_wait (
    run_id uuid NOT NULL,
    execution_id uuid NOT NULL,
    due_at timestamp with time zone,
    ended_at timestamp with time zone,
    step_no integer NOT NULL,
    tenant_no integer NOT NULL,
    kind text NOT NULL,
    role text,
    state text,
    reason text,
    result json,
    CONSTRAINT step_wait_kind_check CHECK ((kind = ANY (ARRAY['time'::text, 'event'::text, 'approval'::text]))),
    CONSTRAINT step_wait_pkey PRIMARY KEY (run_id, execution_id),
    CONSTRAINT step_wait_state_check CHECK ((state = ANY (ARRAY['SUCCEEDED'::text, 'FAILED'::text])))
) WITH (fillfactor=70);
CREATE INDEX step_wait_due ON ondot.step_wait USING btree (due_at) WHERE ((ended_at IS NULL) AND (due_at IS NOT NULL));

CREATE TABLE ondot.streak (
    job_id uuid NOT NULL,
    tenant_no integer NOT NULL,
    failures integer NOT NULL,
    pause_after integer NOT NULL,
    succeeded boolean NOT NULL,
    CONSTRAINT streak_pkey PRIMARY KEY (job_id)
) WITH (fillfactor=50);
CREATE INDEX streak_over ON ondot.streak USING btree (job_id) WHERE (failures >= pause_after);

CREATE TABLE ondot.subscription (
    id uuid NOT NULL,
    generation bigint NOT NULL,
    paused_at timestamp with time zone,
    tenant_no integer NOT NULL,
    version integer NOT NULL,
    is_indexed boolean NOT NULL,
    kind text NOT NULL DEFAULT 'job'::text,
    type text NOT NULL,
    CONSTRAINT subscription_pkey PRIMARY KEY (id)
) WITH (fillfactor=70);
CREATE INDEX subscription_own ON ondot.subscription USING btree (tenant_no, type) WHERE (type ~~ 'ondot.%'::text);
CREATE INDEX subscription_tenant ON ondot.subscription USING btree (tenant_no, id) INCLUDE (generation);
CREATE INDEX subscription_type ON ondot.subscription USING btree (tenant_no, type) WHERE (NOT is_indexed);

CREATE TABLE ondot.subscription_generation (
    tenant_no integer NOT NULL,
    generation bigint NOT NULL,
    CONSTRAINT subscription_generation_pkey PRIMARY KEY (tenant_no)
) WITH (fillfactor=50);

CREATE TABLE ondot.tenant (
    tenant_no integer NOT NULL DEFAULT nextval('tenant_no'::regclass),
    name text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT statement_timestamp(),
    state text NOT NULL DEFAULT 'ACTIVE'::text,
    weight double precision NOT NULL DEFAULT 1,
    pools text[] NOT NULL DEFAULT '{default}'::text[],
    quotas jsonb NOT NULL DEFAULT '{}'::jsonb,
    version integer NOT NULL DEFAULT 1,
    updated_at timestamp with time zone,
    deleted_at timestamp with time zone,
    changed_xid xid8 NOT NULL DEFAULT pg_current_xact_id(),
    has_parked boolean NOT NULL DEFAULT false,
    removed bigint NOT NULL DEFAULT 0,
    removed_share real NOT NULL DEFAULT 0,
    purged_at timestamp with time zone,
    targets jsonb NOT NULL DEFAULT '{}'::jsonb,
    retention_days integer,
    CONSTRAINT tenant_pkey PRIMARY KEY (tenant_no),
    CONSTRAINT tenant_retention_days_check CHECK (((retention_days >= 1) AND (retention_days <= 3650))),
    CONSTRAINT tenant_state_check CHECK ((state = ANY (ARRAY['ACTIVE'::text, 'SUSPENDED'::text, 'DELETED'::text]))),
    CONSTRAINT tenant_weight_check CHECK ((weight > (0)::double precision))
);
CREATE INDEX tenant_changed ON ondot.tenant USING btree (changed_xid);
CREATE INDEX tenant_chores ON ondot.tenant USING btree (tenant_no) WHERE ((has_parked AND (state = 'ACTIVE'::text)) OR ((state = 'DELETED'::text) AND (purged_at IS NULL)));
CREATE UNIQUE INDEX tenant_name ON ondot.tenant USING btree (name) WHERE (state <> 'DELETED'::text);
CREATE INDEX tenant_stopped ON ondot.tenant USING btree (tenant_no) WHERE (state <> 'ACTIVE'::text);
CREATE TRIGGER tenant_changed BEFORE UPDATE ON ondot.tenant FOR EACH ROW EXECUTE FUNCTION mark_tenant_changed();
CREATE TRIGGER tenant_limits AFTER INSERT OR UPDATE ON ondot.tenant FOR EACH ROW EXECUTE FUNCTION tenant_limits_changed();

CREATE TABLE ondot.tenant_limit (
    tenant_no integer NOT NULL,
    is_stopped boolean NOT NULL,
    is_counted boolean NOT NULL DEFAULT false,
    concurrent integer,
    reserved integer,
    rate_limit integer,
    rate_per_s double precision,
    rate_burst integer,
    token_at timestamp with time zone,
    CONSTRAINT tenant_limit_pkey PRIMARY KEY (tenant_no)
) WITH (fillfactor=50);

CREATE TABLE ondot.tenant_running (
    tenant_no integer NOT NULL,
    worker_id uuid NOT NULL,
    pool_no integer NOT NULL,
    running integer NOT NULL,
    CONSTRAINT tenant_running_pkey PRIMARY KEY (tenant_no, worker_id, pool_no)
) WITH (fillfactor=50, autovacuum_vacuum_scale_factor=0.02);

CREATE TABLE ondot.timer (
    job_id uuid NOT NULL,
    next_fire_at timestamp with time zone NOT NULL,
    fired_through timestamp with time zone,
    version integer NOT NULL,
    job_version integer NOT NULL,
    fires_left integer,
    tenant_no integer NOT NULL,
    partition_no smallint NOT NULL,
    guard_until timestamp with time zone,
    CONSTRAINT timer_pkey PRIMARY KEY (job_id)
) WITH (fillfactor=80, autovacuum_vacuum_scale_factor=0.02, autovacuum_analyze_scale_factor=0.05);
CREATE INDEX timer_due ON ondot.timer USING btree (partition_no, next_fire_at);
CREATE INDEX timer_over ON ondot.timer USING btree (fired_through, job_id) WHERE (next_fire_at = 'infinity'::timestamp with time zone);
CREATE INDEX timer_tenant ON ondot.timer USING btree (tenant_no) WHERE (tenant_no > 1);

CREATE TABLE ondot.trace (
    execution_id uuid NOT NULL,
    tenant_no integer NOT NULL,
    traceparent text NOT NULL,
    tracestate text,
    CONSTRAINT trace_pkey PRIMARY KEY (execution_id)
);

CREATE TABLE ondot.unknown_call (
    tenant_no integer NOT NULL,
    function text NOT NULL,
    pool_no integer NOT NULL,
    execution_id uuid NOT NULL,
    CONSTRAINT unknown_call_pkey PRIMARY KEY (tenant_no, function, pool_no, execution_id)
);

CREATE TABLE ondot.waiting (
    gate_id uuid NOT NULL,
    pool_no integer NOT NULL,
    ready_at timestamp with time zone NOT NULL,
    execution_id uuid NOT NULL,
    tenant_no integer NOT NULL,
    stage smallint NOT NULL,
    CONSTRAINT waiting_pkey PRIMARY KEY (gate_id, pool_no, ready_at, execution_id)
) WITH (autovacuum_vacuum_scale_factor=0.02);
CREATE INDEX waiting_execution ON ondot.waiting USING btree (execution_id);

CREATE TABLE ondot.watch (
    job_id uuid NOT NULL,
    after_at timestamp with time zone NOT NULL,
    look_at timestamp with time zone NOT NULL,
    tenant_no integer NOT NULL,
    which text NOT NULL,
    CONSTRAINT watch_pkey PRIMARY KEY (job_id, which),
    CONSTRAINT watch_which_check CHECK ((which = ANY (ARRAY['start_within'::text, 'end_within'::text, 'end_by'::text, 'success_every'::text])))
) WITH (fillfactor=50);
CREATE INDEX watch_look ON ondot.watch USING btree (look_at);

CREATE TABLE ondot.worker (
    id uuid NOT NULL,
    tenant_no integer NOT NULL DEFAULT 0,
    state text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    release text NOT NULL,
    pool_nos integer[] NOT NULL,
    slots integer NOT NULL,
    running integer NOT NULL DEFAULT 0,
    lease_ids uuid[] NOT NULL DEFAULT '{}'::uuid[],
    bounds jsonb NOT NULL DEFAULT '[]'::jsonb,
    started_at timestamp with time zone NOT NULL,
    beat_at timestamp with time zone NOT NULL,
    beat_no bigint NOT NULL DEFAULT 0,
    ended_at timestamp with time zone,
    stalled_at timestamp with time zone,
    stalled_in text,
    stalled_by uuid,
    blocked_at timestamp with time zone,
    blocked_by text,
    held jsonb NOT NULL DEFAULT '[]'::jsonb,
    tenant_nos integer[],
    app text,
    app_release text,
    trusts text[],
    CONSTRAINT worker_pkey PRIMARY KEY (id),
    CONSTRAINT worker_state_check CHECK ((state = ANY (ARRAY['ALIVE'::text, 'DRAINING'::text, 'GONE'::text, 'LOST'::text])))
) WITH (fillfactor=50);
CREATE INDEX worker_blocked ON ondot.worker USING btree (blocked_at) WHERE (blocked_by IS NOT NULL);

-- ondot.add_days(parent_name text, through date)
-- ondot.admit(of_pools integer[], at_rates boolean, free integer, free_for_suspects integer, of_tenants integer[], of_limited integer)
-- ondot.audit_entered()
-- ondot.call_lines(gates uuid[])
-- ondot.check_spec(spec json)
-- ondot.clock()
-- ondot.day_name(parent_name text, day date)
-- ondot.day_starts(day date)
-- ondot.day_touched()
-- ondot.drop_copy(parent_name text)
-- ondot.due_at(id uuid, fire_at timestamp with time zone)
-- ondot.enqueue(function text, payload jsonb, at timestamp with time zone, pool text, priority text, name text, labels jsonb, max_retries integer, timeout_s double precision, start_deadline_s double precision, tenant text)
-- ondot.find_once(tenant integer, job uuid)
-- ondot.first_id_at(instant timestamp with time zone)
-- ondot.gated_changed()
-- ondot.id_of(tick bigint)
-- ondot.is_live(job uuid)
-- ondot.is_node_alive(expires_at timestamp with time zone, beat_at timestamp with time zone)
-- ondot.labels_of(tenant integer, job uuid)
-- ondot.live_executions(job uuid)
-- ondot.lock_gates(ids uuid[])
-- ondot.make_gates(of_tenant integer, stages jsonb)
-- ondot.make_gates_of(ids uuid[])
-- ondot.mark_tenant_changed()
-- ondot.name_rates()
-- ondot.new_id()
-- ondot.next_stages(ids uuid[])
-- ondot.object_keys_of_tenants(of_table oid, tenants integer[], first_page bigint, pages bigint)
-- ondot.options_of(tenant text, function text, payload jsonb)
-- ondot.partition_of(job_id uuid)
-- ondot.pool_gate(pool_no integer)
-- ondot.pool_no_of(tenant integer, pool text)
-- ondot.rate_gate(of_gate uuid, every_s double precision, burst integer)
-- ondot.remove_days(parent_name text, after date, few integer)
-- ondot.remove_rows_of_tenants(of_table oid, tenants integer[], first_page bigint, pages bigint)
-- ondot.stand_in_line(ids uuid[])
-- ondot.start_copy(parent_name text, source_names text[], days integer, cutoff timestamp with time zone, tenant_nos integer[], cutoffs timestamp with time zone[])
-- ondot.submit_spec(spec json, fire_at timestamp with time zone, tenant text)
-- ondot.submit_specs(specs json[], payloads json[], tenant text)
-- ondot.swap_copy(parent_name text)
-- ondot.take_quota(of_tenant integer, of_quota text, every_s double precision, burst integer, least_count integer, wanted integer)
-- ondot.take_runs(run_ids uuid[], most integer)
-- ondot.tenant_limits_changed()
-- ondot.tenant_no_of(tenant text, jobs integer, payload_bytes integer)
-- ondot.token_at_first(stage jsonb)
-- ondot.token_burst(stage jsonb)
-- ondot.token_carried(token_at timestamp with time zone, old_every_s double precision, new_every_s double precision)
-- ondot.token_free_at(token_at timestamp with time zone, stage jsonb, instant timestamp with time zone)
-- ondot.token_full_at(token_at timestamp with time zone, stage jsonb, instant timestamp with time zone)
-- ondot.token_taken(token_at timestamp with time zone, stage jsonb, instant timestamp with time zone)
