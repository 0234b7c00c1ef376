"""Why a job does not run, and when it may (E17): facts in, reasons out.

A job waits for a person (held with all others, paused, deleted, its tenant suspended), for its schedule, or for a
scheduler. `model.explain` explains its executions, `model.explain_fire` one fire.
"""

from dataclasses import replace
from datetime import datetime
from typing import Any

from ondot.model.execution import State
from ondot.model.explain_event import EventFacts, explain_event
from ondot.model.explain_facts import Explanation, JobFacts, Reason, format_instant, pluralize, why_held
from ondot.model.explain_tenant import explain_lost_pool, explain_suspension
from ondot.model.job import JobState
from ondot.model.schedule import Once, in_words, start_delay
from ondot.model.schedule.looks import A_TURN


def explain_job(
    facts: JobFacts,
    executions: tuple[Explanation, ...],
    last: Explanation | None = None,
    event: EventFacts | None = None,
) -> Explanation:
    """The job's own reasons; the summary also states what its oldest execution waits for.

    `last`: the end of the last execution of a job with no fire left. Unless it succeeded, it is the first reason: for a
    one-time job that failed, the failure explains more than that no fire is left. `event`: what is known of the events
    that start the job, if events do.
    """
    reasons = tuple(_reasons(facts, event))
    if last is not None and last.state != State.SUCCEEDED and facts.state is not JobState.DELETED:
        reasons = (_last_run(last), *reasons)
    elif last is not None and reasons and reasons[0].code == "ended":
        first = replace(reasons[0], message=f"{reasons[0].message} Its last execution succeeded ({last.id}).")
        reasons = (first, *reasons[1:])
    return Explanation(
        facts.id,
        facts.state.value,
        _summary(facts, reasons, executions),
        _may_start_at(facts, reasons, executions),
        reasons,
        facts.now,
    )


def _summary(facts: JobFacts, reasons: tuple[Reason, ...], executions: tuple[Explanation, ...]) -> str:
    own = reasons[0].message if reasons else "It has no fire to wait for."
    is_stopped = facts.state in {JobState.PAUSED, JobState.DELETED} or any(
        one.code in {"held", "late_plan", "tenant_suspended"} for one in reasons
    )
    waiting = [one for one in executions if one.reasons[0].code not in {"running", "not_due"}]
    if is_stopped or not (waiting or facts.running):
        return own
    live = f"{pluralize(facts.live, 'execution')} running or planned"
    if waiting:
        return f"{live}; the oldest one waits: {waiting[0].summary}"
    return f"{live}, {facts.running:,} running; {own[0].lower()}{own[1:]}"


def _may_start_at(facts: JobFacts, reasons: tuple[Reason, ...], executions: tuple[Explanation, ...]) -> datetime | None:
    starts = [one.may_start_at for one in executions if one.may_start_at is not None]
    stopping = {"held", "late_plan", "tenant_suspended", "paused", "deleted", "ended"}
    if facts.next_fire_at is not None and not any(one.code in stopping for one in reasons):
        starts.append(facts.next_fire_at + start_delay(facts.schedule, facts.id))
    return min(starts, default=None)


def _reasons(facts: JobFacts, event: EventFacts | None) -> list[Reason]:
    match facts.state:
        case JobState.DELETED:
            since = format_instant(facts.updated_at)
            message = f"The job was deleted at {since}."
            return [Reason("deleted", message, None, "Create it again.", {"since": facts.updated_at})]
        case JobState.PAUSED:
            return [_explain_pause(facts), *_suspension(facts), *_catching_up(facts), *_lost_pool(facts)]
        case JobState.ENDED:
            return [_explain_end(facts)]
        case JobState.ACTIVE:
            late = facts.timer_at is not None and facts.timer_at <= facts.now
            # A planned fire needs no scheduler; later ones do. While everything is held, the schedulers do nothing.
            needs_one = facts.held_at is None and (facts.timer_at is not None or facts.owed)
            missing = _no_scheduler(facts) if needs_one else []
            due = [_not_due(facts)] if facts.next_fire_at is not None and facts.next_fire_at > facts.now else []
            due += [explain_event(event)] if event is not None else []
            ended = [_explain_end(facts)] if facts.timer_at is None and not due and not facts.owed else []
            first = why_held(facts.held_at, facts.held_why) if facts.live or not ended else []
            if facts.is_suspended and (facts.live or not ended):
                # Its fires are settled by the misfire policy on resume: none is late.
                return [*first, *_suspension(facts), *_catching_up(facts), *due, *_lost_pool(facts)]
            if late:
                found = [*first, *missing, _late_plan(facts), *_costly(facts), *_catching_up(facts), *due]
            else:
                found = [*first, *_catching_up(facts), *due, *missing, *ended, *_costly(facts)]
            return [*found, *_lost_pool(facts)]


def _suspension(facts: JobFacts) -> list[Reason]:
    return [explain_suspension(facts.tenant)] if facts.is_suspended else []


def _lost_pool(facts: JobFacts) -> list[Reason]:
    return [] if facts.lost_pool is None else [explain_lost_pool(facts.tenant, facts.lost_pool)]


def _explain_pause(facts: JobFacts) -> Reason:
    why = f": {facts.state_reason}" if facts.state_reason else ", by hand"
    first = "fix the cause of the failures, then resume it" if facts.state_reason else "resume it"
    return Reason(
        "paused",
        f"The job has been paused since {format_instant(facts.updated_at)}{why}.",
        None,
        f"{first[0].upper()}{first[1:]}: `ondot job resume {facts.id}`.",
        {"since": facts.updated_at, "reason": facts.state_reason},
    )


def _last_run(last: Explanation) -> Reason:
    """How the last execution ended and what to do, in the words of its own explanation."""
    [reason, *_] = last.reasons
    how = reason.message.removeprefix("It ended ")
    return replace(
        reason,
        message=f"Its last execution, {last.id}, ended {how}",
        facts={**reason.facts, "execution_id": last.id, "execution_state": last.state},
    )


def _explain_end(facts: JobFacts) -> Reason:
    schedule = facts.schedule
    if facts.fires_left == 0:
        why = (
            f"it has fired {schedule.max_fires:,} times, which is its max_fires"
            if schedule.max_fires
            else "all are used"
        )
        advice = "To continue, raise `max_fires`."
    elif isinstance(schedule.when, Once) and not schedule.include:
        why = f"it runs once, at {format_instant(schedule.when.at)}"
        advice = f"To run it again: `ondot job run {facts.id}`."
    elif schedule.end_at is not None and schedule.end_at <= facts.now:
        why = f"its end_at was {format_instant(schedule.end_at)}"
        advice = "To continue, set a later `end_at`."
    else:
        why = "its schedule has no further fire"
        advice = f"Preview the schedule: `ondot job next {facts.id}`."
    message = f"No fire is left: {why}."
    return Reason("ended", message, None, advice, {"schedule": in_words(schedule), "fires_left": facts.fires_left})


def _not_due(facts: JobFacts) -> Reason:
    assert facts.next_fire_at is not None
    words = in_words(facts.schedule)
    ready_at = facts.next_fire_at + start_delay(facts.schedule, facts.id)
    message = f"Its next fire is at {format_instant(facts.next_fire_at)} ({words})."
    details = {"next_fire_at": facts.next_fire_at, "ready_at": ready_at, "schedule": words}
    return Reason("not_due", message, ready_at, None, details)


def _no_scheduler(facts: JobFacts) -> list[Reason]:
    if facts.node is not None:
        return []
    if facts.nodes:
        schedulers = pluralize(facts.nodes, "live scheduler")
        message = f"None of the {schedulers} owns its partition yet; one takes it within seconds."
        advice = "If this lasts, run `ondot doctor`."
    elif facts.away:
        message = f"Schedulers run, but have no lease because {facts.away} is away, so its fires are not planned."
        advice = "Run `ondot doctor`."
    else:
        seen = f" (last heartbeat {format_instant(facts.node_seen_at)})" if facts.node_seen_at else ""
        message = f"No scheduler is alive{seen}, so its fires are not planned."
        advice = "Start one: `ondot scheduler`."
    return [Reason("no_scheduler", message, None, advice, {"nodes": facts.nodes, "seen_at": facts.node_seen_at})]


def _late_plan(facts: JobFacts) -> Reason:
    assert facts.timer_at is not None
    message = f"Its fire at {format_instant(facts.timer_at)} is due and not planned."
    if facts.held_at is not None or facts.node is None:
        when = "a scheduler is alive" if facts.held_at is None else "the database is accepted"
        advice = f"It is planned as soon as {when}; the job's misfire policy decides which missed fires run."
    else:
        advice = f"Run `ondot doctor`, and search the log of the scheduler on {facts.node} for this job."
    return Reason("late_plan", message, None, advice, {"next_fire_at": facts.timer_at, "node": facts.node})


def _catching_up(facts: JobFacts) -> list[Reason]:
    reasons = []
    for owed in facts.owed:
        what = "A backfill" if owed.reason == "backfill" else "Catch-up of missed fires"
        details: dict[str, Any] = {
            "from_at": owed.from_at,
            "to_at": owed.to_at,
            "count": owed.count,
            "origin": owed.reason,
        }
        if owed.to_at < owed.from_at:
            message = f"{what} is almost done: its last executions have not ended."
        else:
            left = pluralize(owed.count, "fire") if owed.count is not None else "many fires"
            between = f"from {format_instant(owed.from_at)} to {format_instant(owed.to_at)}"
            message = f"{what} has {left} left, {between}, behind live work."
        if facts.state is JobState.PAUSED:
            message = f"{message.removesuffix('.')}; it waits while the job is paused."
        advice = None
        if owed.gave_up is not None:
            message = f"{message.removesuffix('.')}; but its fires cannot be computed: {owed.gave_up}"
            advice = (
                f"Cancel it, and start it again for a shorter range; `ondot job backfills {facts.id}` lists its id."
                if owed.reason == "backfill"
                else f"Pause and resume the job, which records them as skipped: `ondot job pause {facts.id}`."
            )
            details["gave_up"] = owed.gave_up
        reasons.append(Reason("catching_up", message, None, advice, details))
    return reasons


def _costly(facts: JobFacts) -> list[Reason]:
    """Listed last, unless it makes a fire late: the job runs, but its fires are planned after those of all others."""
    cost = facts.cost
    if cost is None or not cost.is_planned_apart:
        return []
    message = (
        f"Its schedule is expensive to compute ({cost.looks:,} steps to find the fire after"
        f" {format_instant(cost.after)}; {A_TURN:,} is the usual limit), so it is planned after all other jobs."
    )
    advice = "Simplify the schedule: exclude long periods by `cron`, or use fewer rules."
    if cost.gave_up is not None:
        message = f"{message} The search stops there and continues in the next pass: {cost.gave_up}"
    details = {"looks": cost.looks, "after": cost.after, "gave_up": cost.gave_up}
    return [Reason("costly_schedule", message, None, advice, details)]
