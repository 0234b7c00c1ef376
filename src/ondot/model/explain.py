"""Why an execution is not running, and when it may start (E17): facts in, reasons out, the most decisive first.

`store.explain` reads all facts at one instant. Reasons are listed in the order in which they have to go away: nothing
starts on this database, the execution is cancelled, it is not due, a gate keeps it, its pool has no room. Nothing is
guessed: `may_start_at` is null where it depends on the end of another execution. `model.explain_job` does the same for
jobs. Codes are stable, sentences may change.
"""

from datetime import datetime, timedelta
from typing import Any, Final

from ondot.model.execution import PriorityClass, State
from ondot.model.explain_facts import (
    COUNTED_AT_MOST,
    HOLDERS_SHOWN,
    WHY_ENDED,
    ExecutionFacts,
    Explanation,
    HeldSlots,
    Line,
    Pool,
    Reason,
    format_instant,
    pluralize,
    why_held,
)
from ondot.model.explain_parents import explain_parents
from ondot.model.explain_tenant import describe_turns, explain_quota
from ondot.model.fairness import PENALTY_S
from ondot.model.held_back import of_function
from ondot.model.liveness import SILENT, when_lost
from ondot.model.schedule.words import duration

SOON: Final = timedelta(seconds=5)
"""A due execution with nothing ahead starts within milliseconds. After this long, something delays it."""


def goes_before(priority_class: PriorityClass, ready_at: datetime) -> list[tuple[PriorityClass, datetime]]:
    """For each class, the instant before which a ready execution is served first."""
    own = PENALTY_S[priority_class]
    return [(other, ready_at + timedelta(seconds=own - PENALTY_S[other])) for other in PriorityClass]


def explain_execution(facts: ExecutionFacts) -> Explanation:
    reasons = tuple(_reasons(facts))
    first = reasons[0]
    summary = first.message
    waits_more = [reason for reason in reasons[1:] if reason.code not in {"running", "start_deadline", "no_function"}]
    if waits_more:
        also = waits_more[0].message
        summary = f"{summary.removesuffix('.')}; also, {also[0].lower()}{also[1:]}"
    return Explanation(facts.id, facts.state.value, summary, _may_start_at(facts, reasons), reasons, facts.now)


def _may_start_at(facts: ExecutionFacts, reasons: tuple[Reason, ...]) -> datetime | None:
    """The latest instant at which its reasons end. None if a reason has no known end, or it no longer waits.

    If it is not due yet, only the instants count: other obstacles may be gone by then.
    """
    if facts.state not in {State.PENDING, State.RETRYING} or facts.cancel_at is not None or facts.held_at is not None:
        return None
    ends = []
    for reason in reasons:
        if reason.code == "no_function" and _lacks_function(facts):
            return None
        if reason.code in {"start_deadline", "no_function", "next"}:
            continue
        if reason.until is not None:
            ends.append(reason.until)
        elif facts.ready_at <= facts.now:
            return None
    may_at = max(ends, default=facts.now)
    return None if facts.start_by is not None and facts.attempt_no == 0 and may_at > facts.start_by else may_at


def _reasons(facts: ExecutionFacts) -> list[Reason]:
    match facts.state:
        case State.SUCCEEDED | State.FAILED | State.CANCELLED | State.SKIPPED:
            return [_explain_end(facts)]
        case State.RUNNING:
            return [*_cancelling(facts), _running(facts)]
        case State.BLOCKED if facts.parents is not None:
            return explain_parents(facts, facts.parents)
        case State.BLOCKED:
            return [
                *_cancelling(facts),
                Reason("blocked", "It waits for earlier steps of its workflow to succeed."),
            ]
        case State.PENDING | State.RETRYING:
            waits = [*why_held(facts.held_at, facts.held_why), *_cancelling(facts)]
            if facts.held_at is None and _lacks_function(facts):
                return [*waits, *_no_function(facts), *_gate(facts), *_start_deadline(facts)]
            waits += [*_time(facts), *_gate(facts)]
            if facts.held_at is None:  # workers that are held send no heartbeats, so they look dead
                waits += _pool(facts, is_kept=bool(waits))
            return [*waits, *_no_function(facts), *_start_deadline(facts)]


def _explain_end(facts: ExecutionFacts) -> Reason:
    because = f": {WHY_ENDED.get(facts.reason, facts.reason)}" if facts.reason else ""
    error = _in_a_line(facts.error)
    if error and facts.state is State.FAILED:
        because += f"{'; ' if because else ': '}the last error was {error.rstrip('.')}"
    advice = {
        State.FAILED: f"Fix the cause, then run it again: `ondot dead-letter replay {facts.id}`.",
        State.SKIPPED: f"To run the job now: `ondot job run {facts.job_id}`.",
        State.CANCELLED: f"To run the job now: `ondot job run {facts.job_id}`.",
    }.get(facts.state)
    assert facts.ended_at is not None, "an execution in a final state has an end"
    return Reason(
        "ended",
        f"It ended {facts.state.value} at {format_instant(facts.ended_at)}{because}.",
        what_to_do=advice,
        facts={
            "ended_at": facts.ended_at,
            "reason": facts.reason,
            "error": error,
            "attempts": facts.attempt_no,
            "failures": facts.failures,
            "losses": facts.losses,
        },
    )


def _cancelling(facts: ExecutionFacts) -> list[Reason]:
    if facts.cancel_at is None:
        return []
    because = f" ({facts.cancel_reason})" if facts.cancel_reason else ""
    rest = "may finish within its grace period" if facts.state is State.RUNNING else "will not start"
    message = f"It was cancelled at {format_instant(facts.cancel_at)}{because}; it {rest}."
    return [Reason("cancelling", message, facts={"since": facts.cancel_at, "reason": facts.cancel_reason})]


def _running(facts: ExecutionFacts) -> Reason:
    since = facts.started_at or facts.now
    on = f" on {facts.worker_host}" if facts.worker_host else ""
    message = f"It has been running{on} since {format_instant(since)} (attempt {facts.attempt_no})"
    if facts.progress is not None:
        message += f", {facts.progress:.0%} done"
    if facts.progress_message:
        message += f": {facts.progress_message}"
    silent_s = max((facts.now - (facts.worker_beat_at or facts.now)).total_seconds(), 0.0)
    advice = None
    last_beat_at = facts.worker_beat_at if silent_s > facts.heartbeat_s * SILENT else None
    if last_beat_at is not None:
        message += (
            f"; but its worker has sent no heartbeat since {format_instant(last_beat_at)}."
            f" {when_lost(facts.heartbeat_s)}. The execution then starts again and counts one more lost worker"
        )
    if silent_s > facts.heartbeat_s * 2:
        advice = "If there was no outage, check that a scheduler is running: `ondot doctor`."
    progress = None
    if facts.progress is not None or facts.progress_message is not None:
        progress = {"fraction": facts.progress, "message": facts.progress_message}
    return Reason(
        "running",
        f"{message}.",
        what_to_do=advice,
        facts={
            "since": since,
            "attempt": facts.attempt_no,
            "worker_id": facts.worker_id,
            "worker_host": facts.worker_host,
            "silent_since": last_beat_at,
            "progress": progress,
        },
    )


def _time(facts: ExecutionFacts) -> list[Reason]:
    if facts.ready_at <= facts.now:
        return []
    if facts.state is State.PENDING:
        message = f"It is due at {format_instant(facts.ready_at)}, in {_wait(facts.ready_at - facts.now)}."
        return [Reason("not_due", message, facts.ready_at, facts={"ready_at": facts.ready_at})]
    error = _in_a_line(facts.last_error)
    after = f"; the last attempt ended {facts.last_outcome.value}" if facts.last_outcome else ""
    after += f" with {error.rstrip('.')}" if after and error else ""
    of = f" of {facts.retry.max_retries}" if facts.retry else ""
    when = f"{format_instant(facts.ready_at)}, in {_wait(facts.ready_at - facts.now)}"
    message = f"Retry {facts.failures}{of} is at {when}{after}."
    return [
        Reason(
            "backoff",
            message,
            facts.ready_at,
            facts={
                "ready_at": facts.ready_at,
                "retry": facts.failures,
                "max_retries": facts.retry.max_retries if facts.retry else None,
                "losses": facts.losses,
                "outcome": facts.last_outcome,
                "error": error,
            },
        )
    ]


def _gate(facts: ExecutionFacts) -> list[Reason]:
    line = facts.line
    if line is None:
        return []
    reason = _rate(facts, line) if line.kind == "rate" else _slots(facts, line)
    return [] if reason is None else [reason]


def _rate(facts: ExecutionFacts, line: Line) -> Reason | None:
    token_at = _token_at(line.token_at, line.every_s, line.burst, line.ahead, facts.now)
    if token_at <= max(facts.now, facts.ready_at):
        return None
    message = (
        f"Waiting for {_owner(line)} rate limit, one start every {duration(line.every_s or 0.0)}: it is {_place(line)}"
        f" and may start at {format_instant(token_at)} at the earliest."
    )
    rate = {"every_s": line.every_s, "token_at": token_at}
    return Reason("rate", message, token_at, "Wait for its turn, or raise the rate.", _in_line(line) | rate)


def _slots(facts: ExecutionFacts, line: Line) -> Reason | None:
    limit = line.limit or 1
    if line.held.count + line.ahead < limit:
        return None
    taken = _describe_slots(line.held) if line.held.count >= limit else "earlier executions go first"
    is_due = facts.ready_at <= facts.now
    waits = "Waiting for" if is_due else "At present it would wait for"
    message = (
        f"{waits} {_owner(line)} limit, {limit:,} at a time: {taken}, and it is {_place(line)}{_policy(line, is_due)}."
    )
    advice = {
        "order": "Wait for the one before it, which keeps its place while it retries",
        "overlap": "Wait for it",
        "concurrency": "Wait for one of them, or raise the limit",
    }[line.kind]
    if line.held.holders:
        advice += f"; or cancel it: `ondot execution cancel {line.held.holders[0].id}`"
    elif line.first is not None:
        advice += f"; to see what the first in line waits for: `ondot execution explain {line.first}`"
    return Reason(line.kind, message, None, f"{advice}.", _in_line(line) | {"limit": limit} | _holding(line.held))


def _in_line(line: Line) -> dict[str, Any]:
    place = line.ahead + 1
    return {"gate": line.name, "place": place, "first_in_line": line.first, "gates_beyond": list(line.beyond)}


def _place(line: Line) -> str:
    return f"number {line.ahead + 1:,} in line" if line.ahead < COUNTED_AT_MOST else "far back in line"


def _owner(line: Line) -> str:
    """The owner of a limit, in the possessive."""
    of, _, name = line.name.partition(":")
    if of == "job":
        return "its job's"
    if function := of_function(name):
        return f"{function}'s"
    return f"order key {name!r}'s" if line.kind == "order" else f"concurrency key {name!r}'s"


def _policy(line: Line, is_due: bool) -> str:
    match line.overlap, line.is_fire:
        case "skip", True:
            return "; if that is still so when it is due, it is skipped"
        case "skip", False:
            return "; a fire would be skipped, but a run that a person started waits"
        case "cancel", True:
            return "; the running one was cancelled for it" if is_due else "; if one still runs then, it is cancelled"
    return ""


def _describe_slots(held: HeldSlots) -> str:
    states = [holder.state for holder in held.holders]
    retrying = states.count(State.RETRYING)
    words = f"{pluralize(held.count, 'slot')} {'is' if held.count == 1 else 'are'} taken"
    if held.holders:
        words += f" ({'since' if held.count == 1 else 'the first since'} {format_instant(held.holders[0].since)})"
    if retrying:
        words += f", {retrying} by {'an execution that waits' if retrying == 1 else 'executions that wait'} for a retry"
    return words


def _holding(held: HeldSlots) -> dict[str, Any]:
    holders = [{"id": one.id, "since": one.since, "state": one.state} for one in held.holders[:HOLDERS_SHOWN]]
    return {"held": held.count, "holders": holders}


def _pool(facts: ExecutionFacts, *, is_kept: bool) -> list[Reason]:
    """Reasons in its pool. While something else keeps it (`is_kept`), only those that do not pass by themselves."""
    pool = facts.pool
    if pool.alive == 0:
        return [_no_worker(pool)]
    ahead = sum(facts.queue_ahead.values())
    quota = None if is_kept else _quota(facts, ahead)
    if is_kept or quota is not None:
        return [quota] if quota is not None else []
    name = f"The pool {pool.name!r}"
    if pool.concurrency is not None and pool.held.count >= pool.concurrency:
        message = f"{name} runs at most {pool.concurrency:,} at a time: {_describe_slots(pool.held)}."
        advice = f"Wait for one of them, or raise the concurrency of {pool.name!r}."
        return [Reason("pool_concurrency", message, None, advice, {"limit": pool.concurrency} | _holding(pool.held))]
    if pool.every_s is not None:
        token_at = _token_at(pool.token_at, pool.every_s, pool.burst, ahead, facts.now)
        if token_at > facts.now:
            message = (
                f"{name} starts at most one every {duration(pool.every_s)}: with {_queue(facts)} before it,"
                f" it may start at {format_instant(token_at)} at the earliest."
            )
            advice = f"Wait for its turn, or raise the rate of {pool.name!r}."
            details = {"every_s": pool.every_s, "token_at": token_at, "ahead": _by_class(facts)}
            return [Reason("pool_rate", message, token_at, advice, details)]
    is_suspect = facts.priority_class is PriorityClass.SUSPECT
    if pool.running >= pool.slots:
        busy = f"All slots of the pool {pool.name!r} are busy"
    elif not is_suspect and ahead >= pool.slots - pool.running:
        busy = f"The pool {pool.name!r} is working through its queue"
    else:
        return [_suspect(facts) if is_suspect else _next(facts, ahead)]
    message = (
        f"{busy}: {pool.running:,} of {pool.slots:,} slots taken on {pluralize(pool.alive, 'worker')},"
        f" with {_queue(facts)} before it."
    )
    turns, shares = describe_turns(facts.tenant)
    message += turns
    advice = f"Wait, or add workers: `ondot worker --pool {pool.name}`. If the queue does not move, run `ondot doctor`."
    return [Reason("pool_full", message, None, advice, _fleet(pool) | {"ahead": _by_class(facts)} | shares)]


def _quota(facts: ExecutionFacts, ahead: int) -> Reason | None:
    tenant, token_at = facts.tenant, facts.now
    if tenant is not None and tenant.every_s is not None:
        token_at = _token_at(tenant.token_at, tenant.every_s, tenant.burst, ahead, facts.now)
    return explain_quota(tenant, token_at, facts.now, _queue(facts))


def _no_worker(pool: Pool) -> Reason:
    message = f"No live worker serves the pool {pool.name!r}"
    if pool.for_others:
        message = f"No live worker serves this tenant in the pool {pool.name!r}"
    if pool.draining:
        message += f": {pluralize(pool.draining, 'worker')} {'is' if pool.draining == 1 else 'are'} stopping"
    elif pool.seen_at is not None:
        message += f": the last heartbeat of one was at {format_instant(pool.seen_at)}"
    advice = f"Start one: `ondot worker --pool {pool.name}`."
    if pool.for_others:
        others = f"{pluralize(pool.for_others, 'worker')} there {'runs' if pool.for_others == 1 else 'run'}"
        message += f"; {others} the work of other tenants"
        advice = f"Ask the operator to start one for this tenant: `ondot worker --pool {pool.name} --tenant NAME`."
    return Reason("no_worker", f"{message}.", None, advice, _fleet(pool) | {"seen_at": pool.seen_at})


def _suspect(facts: ExecutionFacts) -> Reason:
    """A function that crashed its workers. Few of these run at once, so a long wait is expected."""
    pool, ahead = facts.pool, facts.queue_ahead.get(PriorityClass.SUSPECT, 0)
    if facts.now - facts.ready_at <= SOON and pool.suspects + ahead < pool.suspect_slots:
        return _next(facts, sum(facts.queue_ahead.values()))
    message = (
        f"{pluralize(facts.losses, 'worker')} died while running it, so it runs in a child process. The pool"
        f" {pool.name!r} runs at most {pool.suspect_slots:,} such executions at once; {pool.suspects:,}"
        f" {'runs' if pool.suspects == 1 else 'run'} now, and {ahead:,} {'waits' if ahead == 1 else 'wait'} before it."
    )
    advice = (
        f"Wait, or fix the function that crashes its workers; to see its attempts: `ondot execution get {facts.id}`."
    )
    details = {"losses": facts.losses, "at_once": pool.suspect_slots, "suspects": pool.suspects}
    return Reason("suspect", message, None, advice, _fleet(pool) | details | {"ahead": _by_class(facts)})


def _next(facts: ExecutionFacts, ahead: int) -> Reason:
    details = _fleet(facts.pool) | {"ahead": _by_class(facts), "since": facts.ready_at}
    waited = facts.now - facts.ready_at
    before = f" after {_queue(facts)} before it" if ahead else ""
    if waited <= SOON:
        return Reason("next", f"A worker should start it any moment{before}.", facts=details)
    where = "" if facts.queued or facts.line else ", and it is in no queue"
    message = (
        f"It has been ready for {_wait(waited)}{where}, and a worker should have started it{before}. Possible causes:"
        " a recent outage of PostgreSQL, workers that send no heartbeats, a very busy machine."
    )
    advice = (
        "Look again in a few seconds. If it still waits then, something is wrong: run `ondot doctor` and read the"
        " workers' logs."
    )
    return Reason("next", message, None, advice, details)


def _lacks_function(facts: ExecutionFacts) -> bool:
    """Whether no live worker of its pool has its function. Before it is due, one may still come."""
    function = facts.function
    if function is None or facts.pool.name in function.pools or not facts.pool.alive:
        return False
    return facts.ready_at <= facts.now or _was_returned(facts)


def _was_returned(facts: ExecutionFacts) -> bool:
    return facts.last_error is not None and facts.last_error.get("code") == "unknown_function"


def _no_function(facts: ExecutionFacts) -> list[Reason]:
    function = facts.function
    if function is None or not _lacks_function(facts):
        if not _was_returned(facts):
            return []
        message = f"The last worker that leased it does not have its function: {_in_a_line(facts.last_error)}."
        return [Reason("no_function", message, None, "Other workers have it: it goes to them.")]
    name, pool = function.name, facts.pool.name
    start = f"Start workers with the module that registers it: `ondot worker --pool {pool} MODULE:APP`."
    if function.pools:
        others = ", ".join(repr(one) for one in sorted(function.pools)[:HOLDERS_SHOWN])
        message = f"No live worker of the pool {pool!r} has its function {name!r}; those of {others} have it."
        advice = f"Give the job another pool, or start workers there: `ondot worker --pool {pool} MODULE:APP`."
    elif function.is_known:
        message = f"No live worker has its function {name!r}: the workers that had it have stopped."
        advice = start
    else:
        near = "" if function.nearest is None else f" Did you mean {function.nearest!r}?"
        message = f"No worker has registered its function {name!r}.{near}"
        advice = f"{start} It waits until then, at no cost of an attempt."
    details = {"function": name, "pools": sorted(function.pools), "nearest": function.nearest}
    return [Reason("no_function", message, None, advice, details)]


def _start_deadline(facts: ExecutionFacts) -> list[Reason]:
    if facts.start_by is None or facts.attempt_no > 0:
        return []
    message = f"If it has not started by {format_instant(facts.start_by)}, its start deadline, it ends SKIPPED."
    return [Reason("start_deadline", message, facts.start_by, facts={"start_by": facts.start_by})]


def _token_at(full_at: datetime | None, every_s: float | None, burst: int, ahead: int, now: datetime) -> datetime:
    """When a token bucket that is full again at `full_at` has a token for an execution with `ahead` before it."""
    every = timedelta(seconds=every_s or 0.0)
    # Never emptier than empty, as in `ondot.token_full_at`: the instant may be from before the clock was set back.
    full_at = min(max(full_at or now, now), now + burst * every)
    return max(now, full_at + (ahead - (burst - 1)) * every)


def _fleet(pool: Pool) -> dict[str, Any]:
    return {
        "pool": pool.name,
        "workers": pool.alive,
        "silent_workers": pool.silent,
        "running": pool.running,
        "slots": pool.slots,
    }


def _queue(facts: ExecutionFacts) -> str:
    counts = facts.queue_ahead.values()
    is_cut = any(count >= COUNTED_AT_MOST for count in counts)
    total = sum(counts)
    return f"{total:,}{' or more' if is_cut else ''} execution{'' if total == 1 else 's'}"


def _by_class(facts: ExecutionFacts) -> dict[str, int]:
    return {one.name.lower(): count for one, count in sorted(facts.queue_ahead.items()) if count}


def _in_a_line(error: dict[str, Any] | None) -> str | None:
    if not error:
        return None
    text = str(error.get("message") or error.get("code") or "an error")
    line = text.strip().partition("\n")[0]
    return f"{line[:199]}…" if len(line) > 200 else line


def _wait(length: timedelta) -> str:
    """A duration for people: no fractions of a second, unless it is shorter than one."""
    seconds = length.total_seconds()
    return duration(round(seconds) if seconds >= 1 else round(seconds, 3))
