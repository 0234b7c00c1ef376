"""The metrics of one process (O2): events that only it knows, and its own state. The API's `/metrics` adds values that
all processes share (queue depth, lag, workers), which it reads from the database.

`telemetry.serve` serves them; what a whole batch has in common is looked up once (`flow.measure`).
"""

from typing import Final

from ondot.telemetry.instruments import Counter, Gauge, Histogram, Registry

REGISTRY = Registry()

POOLS_SHOWN: Final = 100
"""The most pools with a series of their own: a client that may submit jobs may name a new pool with each."""
OTHER_POOLS: Final = "(other)"
"""The series of all further pools; no pool can have this name."""

FIRES_PLANNED = Counter("ondot_fires_planned_total", "Fires turned into executions", registry=REGISTRY)
FIRES_SKIPPED = Counter("ondot_fires_skipped_total", "Missed fires recorded as skipped", ["reason"], registry=REGISTRY)
FIRES_OWED = Counter("ondot_fires_owed_total", "Fires of the past turned into executions", registry=REGISTRY)
PLAN_CONFLICTS = Counter(
    "ondot_plan_conflicts_total",
    "Timers that had moved or were locked when their plan was written",
    registry=REGISTRY,
)
COSTLY_PLANS = Counter(
    "ondot_costly_plans_total",
    "Timers planned after all others, because their schedules take long to compute",
    registry=REGISTRY,
)
DOUBLE_FIRES = Counter(
    "ondot_double_fires_refused_total",
    "Fires that already had an execution, by the unique key",
    registry=REGISTRY,
)
BULK_ITEMS = Counter(
    "ondot_bulk_items_total",
    "Items that operations on many have reached: done, refused, or unchanged",
    ["of", "action", "result"],
    registry=REGISTRY,
)
EVENTS_RECEIVED = Counter("ondot_events_received_total", "Events stored", registry=REGISTRY)
EVENTS_REPEATED = Counter(
    "ondot_events_repeated_total", "Events that were sent before, and started nothing", registry=REGISTRY
)
EVENTS_MATCHED = Counter("ondot_events_matched_total", "Jobs that events matched", registry=REGISTRY)
LEASED = Counter("ondot_executions_leased_total", "Executions leased", registry=REGISTRY)
COMPLETED = Counter(
    "ondot_attempts_completed_total", "Outcomes written", ["outcome", "pool", "target"], registry=REGISTRY
)
RETRIES = Counter(
    "ondot_retries_total", "Attempts that ended with another one to follow", ["pool", "target"], registry=REGISTRY
)
STALE = Counter("ondot_stale_completions_total", "Outcomes of stale workers, refused (P6)", registry=REGISTRY)
REPEATED = Counter("ondot_repeated_completions_total", "Outcomes that were already recorded", registry=REGISTRY)
WORKERS_LOST = Counter("ondot_workers_lost_total", "Workers marked lost", registry=REGISTRY)
RECOVERED = Counter("ondot_executions_recovered_total", "Executions given back", ["how"], registry=REGISTRY)
SWEPT = Counter("ondot_late_ready_swept_total", "Queue rows found below every worker's bound", registry=REGISTRY)
HISTORY_REWRITTEN = Counter(
    "ondot_history_days_rewritten_total", "Days past their retention that were rewritten", ["table"], registry=REGISTRY
)
HISTORY_REMOVED = Counter(
    "ondot_history_rows_removed_total", "Rows that went because their retention is over", ["table"], registry=REGISTRY
)
OBJECTS_REMOVED = Counter(
    "ondot_history_objects_removed_total",
    "Objects deleted from storage because the rows that named them went",
    registry=REGISTRY,
)
EXECUTIONS_SKIPPED = Counter(
    "ondot_executions_skipped_total", "Executions skipped because they could not start", ["reason"], registry=REGISTRY
)
FOUND = Counter(
    "ondot_self_check_found_total", "Rows without an owner, found by the self-check: bugs", ["kind"], registry=REGISTRY
)
EXPECTATIONS_MISSED = Counter(
    "ondot_expectations_missed_total", "Fires that missed what their job expects", ["which"], registry=REGISTRY
)
DELIVERIES = Counter(
    "ondot_deliveries_total", "Attempts to deliver a message to a channel, by outcome", ["outcome"], registry=REGISTRY
)
SINK_EVENTS = Counter(
    "ondot_sink_events_total",
    "Events for sinks: sent, sent in short, refused, or failed and retried",
    ["result"],
    registry=REGISTRY,
)
CANCELS = Counter(
    "ondot_cancels_heard_total", "Cancels of running attempts, received by their worker", registry=REGISTRY
)
SUBMISSIONS_REFUSED = Counter(
    "ondot_submissions_refused_total",
    "Submissions refused because the queue of their pool was full",
    ["pool"],
    registry=REGISTRY,
)
QUOTA_REFUSALS = Counter(
    "ondot_quota_refusals_total",
    "Requests refused because a quota of their tenant was used up",
    ["quota"],
    registry=REGISTRY,
)
TENANT_QUOTA_REFUSALS = Counter(
    "ondot_tenant_quota_refusals_total",
    "Requests refused because a quota of this tenant was used up",
    ["tenant", "quota"],
    registry=REGISTRY,
)
ADVANCES = Counter("ondot_run_advances_total", "Passes over runs of workflows", registry=REGISTRY)
ARRIVALS = Histogram(
    "ondot_step_end_seen_seconds",
    "Time from the end of a step until its run went on",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    registry=REGISTRY,
)
RUNS_ENDED = Counter("ondot_runs_ended_total", "Runs of workflows that ended", ["state"], registry=REGISTRY)
RUNS_BLOCKED = Counter(
    "ondot_runs_blocked_total", "Runs of workflows that became BLOCKED: a step failed", registry=REGISTRY
)
LOG_DROPPED = Counter(
    "ondot_log_writes_dropped_total", "Writes to standard output or error that nobody read in time", registry=REGISTRY
)
ARCHIVED = Counter(
    "ondot_history_archived_rows_total", "Rows written to the archive and read back", ["table"], registry=REGISTRY
)
HINTS_SENT = Counter("ondot_hints_sent_total", "Wake-ups sent to pools, by transport", ["transport"], registry=REGISTRY)
HINTS_LOST = Counter(
    "ondot_hints_lost_total",
    "Wake-ups that a transport did not take: polling finds the work",
    ["transport"],
    registry=REGISTRY,
)
HINTS_RECEIVED = Counter(
    "ondot_hints_received_total", "Wake-ups that arrived at a worker", ["transport"], registry=REGISTRY
)
HINTS_UNREADABLE = Counter(
    "ondot_hints_unreadable_total",
    "Messages of a transport that could not be parsed",
    ["transport"],
    registry=REGISTRY,
)
BEATS_LOST = Counter(
    "ondot_transport_beats_lost_total", "Beats that a transport did not take in time", ["transport"], registry=REGISTRY
)
TRUST_LOST = Counter(
    "ondot_transport_trust_lost_total",
    "Times that a worker no longer knew whether hints arrive, and asked PostgreSQL each second",
    ["transport"],
    registry=REGISTRY,
)
SPANS = Counter("ondot_spans_total", "Spans recorded for traces", registry=REGISTRY)
SPANS_LOST = Counter(
    "ondot_spans_lost_total", "Spans that the collector did not take, or that did not fit the queue", registry=REGISTRY
)
WAITS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60, 600, 3600)
DURATIONS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 10, 30, 60, 300, 1800, 7200)
BY_POOL: Final = ("pool", "target")

LATENESS = Histogram(
    "ondot_start_lateness_seconds",
    "Time from when a fire or a run by hand was due to the start of its first attempt",
    BY_POOL,
    buckets=WAITS,
    registry=REGISTRY,
    has_exemplars=True,
)
QUEUE_WAIT = Histogram(
    "ondot_queue_wait_seconds",
    "Time that an attempt was ready and waited for a worker",
    BY_POOL,
    buckets=WAITS,
    registry=REGISTRY,
    has_exemplars=True,
)
DURATION = Histogram(
    "ondot_attempt_duration_seconds",
    "Time from the start of an attempt to its end",
    BY_POOL,
    buckets=DURATIONS,
    registry=REGISTRY,
    has_exemplars=True,
)
OF_JOB: Final = ("tenant", "job_name")
"""Not `job`: that is Prometheus's own label."""
JOB_LATENESS = Histogram(
    "ondot_job_lateness_seconds",
    "As ondot_start_lateness_seconds, of a job that asks for it",
    OF_JOB,
    buckets=WAITS,
    registry=REGISTRY,
    has_exemplars=True,
)
JOB_DURATION = Histogram(
    "ondot_job_duration_seconds",
    "As ondot_attempt_duration_seconds, of a job that asks for it",
    OF_JOB,
    buckets=DURATIONS,
    registry=REGISTRY,
    has_exemplars=True,
)
JOB_ATTEMPTS = Counter(
    "ondot_job_attempts_total", "Outcomes of a job that asks for it", [*OF_JOB, "outcome"], registry=REGISTRY
)
REQUESTS = Histogram(
    "ondot_http_request_seconds",
    "Requests to the API",
    ["method", "route", "status"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
    registry=REGISTRY,
)

# Of this process now. A supervisor adds those of its children up, by role.
PROCESSES = Gauge("ondot_processes", "Processes that report", registry=REGISTRY)
STARTS = Counter(
    "ondot_process_starts_total", "Starts of processes; more than their number: restarts", ["role"], registry=REGISTRY
)
TRANSPORT_TRUSTED = Gauge(
    "ondot_transport_trusted", "Workers that wake-ups reach for certain, by transport", ["transport"], registry=REGISTRY
)
STALLED = Gauge(
    "ondot_process_stalled_seconds",
    "How long the loop that does the work has not moved",
    registry=REGISTRY,
    merge="max",
)
SLOTS = Gauge("ondot_process_slots", "Slots of this worker", ["use"], registry=REGISTRY)
UNWRITTEN = Gauge("ondot_process_unwritten_outcomes", "Outcomes that the database does not have yet", registry=REGISTRY)
PARTITIONS_HELD = Gauge("ondot_process_partitions", "Partitions that this scheduler plans", registry=REGISTRY)
LEASE_AGE = Gauge(
    "ondot_process_lease_age_seconds",
    "Time since the last heartbeat that the database confirmed, which renews the lease",
    registry=REGISTRY,
    merge="max",
)
CONNECTIONS = Gauge(
    "ondot_process_database_connections", "Connections to the database", ["use", "state"], registry=REGISTRY
)
