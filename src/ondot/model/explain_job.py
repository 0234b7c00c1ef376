"""Why a job does not run, and when it may (E17): facts in, reasons out.

A job waits for a person (held with all others, paused, deleted), for its schedule, or for a scheduler; what its
executions wait for is `model.explain`'s, and goes along. What became of one fire is `model.explain_fire`'s.
"""

from dataclasses import replace
from datetime import datetime
from typing import Any

from ondot.model.execution import State
from ondot.model.explain_facts import Explanation, JobFacts, Reason, counted, told, why_held
from ondot.model.job import JobState
from ondot.model.schedule import Once, in_words, jitter_offset
from ondot.model.schedule.looks import A_TURN


def explain_job(facts: JobFacts, executions: tuple[Explanation, ...], last: Explanation | None = None) -> Explanation:
    """The job's own reasons; the summary also says what the oldest of its executions waits for.

    `last`: of a job with nothing to come, how its last execution ended. Unless that succeeded, it is the first reason:
    whoever asks why a one-time job did not run wants to know that it failed, not that no fire is left.
    """
    reasons = tuple(_reasons(facts))
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
    stands = facts.state in {JobState.PAUSED, JobState.DELETED} or any(
        one.code in {"held", "late_plan"} for one in reasons
    )
    waiting = [one for one in executions if one.reasons[0].code not in {"running", "not_due"}]
    if stands or not (waiting or facts.running):
        return own
    under_way = f"{counted(facts.live, 'execution')} under way or planned"
    if waiting:
        return f"{under_way}; the oldest that waits: {waiting[0].summary}"
    return f"{under_way}, {facts.running:,} running; {own[0].lower()}{own[1:]}"


def _may_start_at(facts: JobFacts, reasons: tuple[Reason, ...], executions: tuple[Explanation, ...]) -> datetime | None:
    starts = [one.may_start_at for one in executions if one.may_start_at is not None]
    stands_still = {"held", "late_plan", "paused", "deleted", "ended"}
    if facts.next_fire_at is not None and not any(one.code in stands_still for one in reasons):
        starts.append(facts.next_fire_at + jitter_offset(facts.id, facts.schedule.jitter_s))
    return min(starts, default=None)


def _reasons(facts: JobFacts) -> list[Reason]:
    match facts.state:
        case JobState.DELETED:
            since = told(facts.updated_at)
            message = f"The job was deleted at {since}: it does not fire any more."
            return [Reason("deleted", message, None, "Create it anew.", {"since": facts.updated_at})]
        case JobState.PAUSED:
            return [_paused(facts), *_catching_up(facts)]
        case JobState.ENDED:
            return [_ended(facts)]
        case JobState.ACTIVE:
            late = facts.timer_at is not None and facts.timer_at <= facts.now
            # A planned fire needs no scheduler any more; those to come do. Of what is held the schedulers stand still.
            needs_one = facts.held_at is None and (facts.timer_at is not None or facts.owed)
            missing = _no_scheduler(facts) if needs_one else []
            due = [_not_due(facts)] if facts.next_fire_at is not None and facts.next_fire_at > facts.now else []
            ended = [_ended(facts)] if facts.timer_at is None and not due and not facts.owed else []
            first = why_held(facts.held_at, facts.held_why) if facts.live or not ended else []
            if late:
                return [*first, *missing, _late_plan(facts), *_costly(facts), *_catching_up(facts), *due]
            return [*first, *_catching_up(facts), *due, *missing, *ended, *_costly(facts)]


def _paused(facts: JobFacts) -> Reason:
    why = f": {facts.state_reason}" if facts.state_reason else ", by hand"
    first = "mend what made it fail, then resume it" if facts.state_reason else "resume it"
    return Reason(
        "paused",
        f"The job is paused since {told(facts.updated_at)}{why}.",
        None,
        f"{first[0].upper()}{first[1:]}: `ondot job resume {facts.id}`.",
        {"since": facts.updated_at, "reason": facts.state_reason},
    )


def _last_run(last: Explanation) -> Reason:
    """How the last execution ended, and what to do about it, in the words of its own explanation."""
    [reason, *_] = last.reasons
    said = reason.message.removeprefix("It ended ")
    return replace(
        reason,
        message=f"Its last execution, {last.id}, ended {said}",
        facts={**reason.facts, "execution_id": last.id, "execution_state": last.state},
    )


def _ended(facts: JobFacts) -> Reason:
    schedule = facts.schedule
    if facts.fires_left == 0:
        why = (
            f"it has fired {schedule.max_fires:,} times, which is its max_fires"
            if schedule.max_fires
            else "all are used"
        )
        advice = "To go on, raise `max_fires`."
    elif isinstance(schedule.when, Once) and not schedule.include:
        why = f"it was to run once, at {told(schedule.when.at)}"
        advice = f"To run it again: `ondot job run {facts.id}`."
    elif schedule.end_at is not None and schedule.end_at <= facts.now:
        why = f"its end_at was {told(schedule.end_at)}"
        advice = "To go on, give it a later `end_at`."
    else:
        why = "its schedule has no further fire"
        advice = f"Look at what it means: `ondot job next {facts.id}`."
    message = f"No fire is left: {why}."
    return Reason("ended", message, None, advice, {"schedule": in_words(schedule), "fires_left": facts.fires_left})


def _not_due(facts: JobFacts) -> Reason:
    assert facts.next_fire_at is not None
    words = in_words(facts.schedule)
    ready_at = facts.next_fire_at + jitter_offset(facts.id, facts.schedule.jitter_s)
    message = f"Its next fire is at {told(facts.next_fire_at)} ({words})."
    told_facts = {"next_fire_at": facts.next_fire_at, "ready_at": ready_at, "schedule": words}
    return Reason("not_due", message, ready_at, None, told_facts)


def _no_scheduler(facts: JobFacts) -> list[Reason]:
    if facts.node is not None:
        return []
    if facts.nodes:
        message = (
            f"None of the {counted(facts.nodes, 'live scheduler')} has its partition yet: they take it within seconds."
        )
        advice = "If it stays so, run `ondot doctor`."
    else:
        seen = f": the last was seen at {told(facts.node_seen_at)}" if facts.node_seen_at else ""
        message = f"No scheduler is alive{seen}; nobody plans its fires."
        advice = "Start one: `ondot scheduler`."
    return [Reason("no_scheduler", message, None, advice, {"nodes": facts.nodes, "seen_at": facts.node_seen_at})]


def _late_plan(facts: JobFacts) -> Reason:
    assert facts.timer_at is not None
    message = f"Its fire at {told(facts.timer_at)} is due and not planned."
    if facts.held_at is not None or facts.node is None:
        when = "a scheduler lives" if facts.held_at is None else "the database is accepted"
        advice = f"It is planned as soon as {when}; the job's misfire policy says what becomes of missed fires."
    else:
        advice = f"Run `ondot doctor`, and look for this job in the log of the scheduler on {facts.node}."
    return Reason("late_plan", message, None, advice, {"next_fire_at": facts.timer_at, "node": facts.node})


def _catching_up(facts: JobFacts) -> list[Reason]:
    reasons = []
    for owed in facts.owed:
        what = "A backfill" if owed.reason == "backfill" else "Catch-up of missed fires"
        told_facts: dict[str, Any] = {
            "from_at": owed.from_at,
            "to_at": owed.to_at,
            "count": owed.count,
            "origin": owed.reason,
        }
        if owed.to_at < owed.from_at:
            message = f"{what} is almost through: its last executions have not ended."
        else:
            left = counted(owed.count, "fire") if owed.count is not None else "many fires"
            message = f"{what} has {left} left, from {told(owed.from_at)} to {told(owed.to_at)}, behind live work."
        if facts.state is JobState.PAUSED:
            message = f"{message.removesuffix('.')}; it waits while the job is paused."
        advice = None
        if owed.gave_up is not None:
            message = f"{message.removesuffix('.')}; but its fires cannot be found: {owed.gave_up}"
            advice = (
                f"Cancel it, and start it again for a shorter range; `ondot job backfills {facts.id}` lists its id."
                if owed.reason == "backfill"
                else f"Pause and resume the job, which records them as skipped: `ondot job pause {facts.id}`."
            )
            told_facts["gave_up"] = owed.gave_up
        reasons.append(Reason("catching_up", message, None, advice, told_facts))
    return reasons


def _costly(facts: JobFacts) -> list[Reason]:
    """Last of all unless a fire is late for it: it runs, but after the fires of all other jobs were planned."""
    cost = facts.cost
    if cost is None or not cost.is_planned_apart:
        return []
    message = (
        f"Its schedule is expensive to compute ({cost.looks:,} looks for the fire after {told(cost.after)}; "
        f"{A_TURN:,} are usual at most): it is planned after all others."
    )
    advice = "Simplify the schedule: exclude whole stretches by `cron`, or give fewer rules."
    if cost.gave_up is not None:
        message = f"{message} Its search gives up, and goes on from there in the next pass: {cost.gave_up}"
    told_facts = {"looks": cost.looks, "after": cost.after, "gave_up": cost.gave_up}
    return [Reason("costly_schedule", message, None, advice, told_facts)]
