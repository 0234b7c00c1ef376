"""Counters of this process (O2). The API's `/metrics` reads shared values (queue depth, lag, workers) from the
database; these count events that only this process knows."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from ondot.telemetry.batch_histogram import BatchHistogram

REGISTRY = CollectorRegistry()

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
EVENTS_RECEIVED = Counter("ondot_events_received_total", "Events stored", registry=REGISTRY)
EVENTS_REPEATED = Counter(
    "ondot_events_repeated_total", "Events that were sent before, and started nothing", registry=REGISTRY
)
EVENTS_MATCHED = Counter("ondot_events_matched_total", "Jobs that events matched", registry=REGISTRY)
LEASED = Counter("ondot_executions_leased_total", "Executions leased", registry=REGISTRY)
COMPLETED = Counter("ondot_attempts_completed_total", "Outcomes written", ["outcome"], registry=REGISTRY)
STALE = Counter("ondot_stale_completions_total", "Outcomes of stale workers, refused (P6)", registry=REGISTRY)
REPEATED = Counter("ondot_repeated_completions_total", "Outcomes that were already recorded", registry=REGISTRY)
WORKERS_LOST = Counter("ondot_workers_lost_total", "Workers marked lost", registry=REGISTRY)
RECOVERED = Counter("ondot_executions_recovered_total", "Executions given back", ["how"], registry=REGISTRY)
SWEPT = Counter("ondot_late_ready_swept_total", "Queue rows found below every worker's bound", registry=REGISTRY)
EXECUTIONS_SKIPPED = Counter(
    "ondot_executions_skipped_total", "Executions skipped because they could not start", ["reason"], registry=REGISTRY
)
FOUND = Counter(
    "ondot_self_check_found_total", "Rows without an owner, found by the self-check: bugs", ["kind"], registry=REGISTRY
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
ARRIVALS = BatchHistogram(
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
LATENESS = BatchHistogram(
    "ondot_start_lateness_seconds",
    "Time from when an execution was due to its start",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
    registry=REGISTRY,
)
REQUESTS = Histogram(
    "ondot_http_request_seconds",
    "Requests to the API",
    ["method", "route", "status"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
    registry=REGISTRY,
)
