"""Why something does not run: facts in, reasons out. What the database says is `tests/flow/test_explain.py`'s."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.execution import TERMINAL, Outcome, PriorityClass, State
from ondot.model.explain import explain_execution, goes_before
from ondot.model.explain_facts import ExecutionFacts, HeldSlots, Holder, JobFacts, Line, Pool, Range
from ondot.model.explain_fire import FireExecution, OnRecord, explain_fire, read_schedule
from ondot.model.explain_job import explain_job
from ondot.model.fairness import Lane, Waiting, order_lanes
from ondot.model.gates import GateKind
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo
from ondot.model.job import JobState
from ondot.model.retry import Retry
from ondot.model.schedule import Calendar, Cron, Interval, Once, Schedule
from tests.proves import proves

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
ID = ExecutionId(UUID(int=1))
OTHER = ExecutionId(UUID(int=2))
JOB = JobId(UUID(int=3))
FREE = Pool("default", alive=2, slots=20, running=3)
HELD: dict[str, Any] = {"held_at": datetime(2026, 11, 16, 11, 59, tzinfo=UTC), "held_why": "it is another cluster"}


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def waiting(**fields: Any) -> ExecutionFacts:
    """An execution that is due, and waits for nothing."""
    base: dict[str, Any] = {
        "id": ID,
        "job_id": JOB,
        "state": State.PENDING,
        "ready_at": NOW,
        "now": NOW,
        "priority_class": PriorityClass.NORMAL,
        "pool": FREE,
        "retry": Retry(),
    }
    return ExecutionFacts(**base | fields)


def gate(kind: GateKind, **fields: Any) -> Line:
    base: dict[str, Any] = {"limit": 1, "held": HeldSlots(1, (Holder(OTHER, after(-60), State.RUNNING),))}
    return Line(kind, "job:x", **base | fields)


def codes(facts: ExecutionFacts) -> list[str]:
    return [reason.code for reason in explain_execution(facts).reasons]


@proves("E17")
def test_what_nothing_keeps_is_next_and_may_start_now() -> None:
    explained = explain_execution(waiting())
    assert [reason.code for reason in explained.reasons] == ["next"]
    assert explained.may_start_at == NOW
    assert explained.reasons[0].what_to_do is None


@proves("E17")
def test_what_is_next_for_more_than_five_seconds_says_what_may_have_held_it_up_and_what_to_do_if_it_stays_so() -> None:
    [reason] = explain_execution(waiting(ready_at=after(-7))).reasons
    assert reason.message.startswith("It has been ready for 7 seconds, and a worker should have started it.")
    assert "a recent outage of PostgreSQL" in reason.message
    assert "wrong" not in reason.message
    assert "If it still waits then, something is wrong: run `ondot doctor`" in str(reason.what_to_do)
    [lost] = explain_execution(waiting(ready_at=after(-6), queued=False)).reasons
    assert "no queue" in lost.message
    [soon] = explain_execution(waiting(ready_at=after(-5))).reasons
    assert "any moment" in soon.message


@proves("E17")
def test_a_fire_to_come_is_not_due_and_a_retry_backs_off_with_its_last_error() -> None:
    explained = explain_execution(waiting(ready_at=after(90)))
    assert (explained.reasons[0].code, explained.reasons[0].until, explained.may_start_at) == (
        "not_due",
        after(90),
        after(90),
    )
    assert "1 minute 30 seconds" in explained.summary
    error = {"code": "http_status", "message": "answered 500\nand more"}
    explained = explain_execution(
        waiting(
            state=State.RETRYING,
            ready_at=after(4),
            failures=2,
            attempt_no=2,
            last_outcome=Outcome.FAILED,
            last_error=error,
        )
    )
    [reason] = explained.reasons
    assert (reason.code, reason.facts["retry"], reason.facts["max_retries"]) == ("backoff", 2, 3)
    assert "Retry 2 of 3" in reason.message
    assert "answered 500" in reason.message
    assert "and more" not in reason.message


@proves("E17")
def test_a_pool_without_workers_is_reported_also_for_executions_that_are_not_due() -> None:
    pool = Pool("gpu", seen_at=after(-300), silent=1)
    explained = explain_execution(waiting(ready_at=after(90), pool=pool))
    assert [reason.code for reason in explained.reasons] == ["not_due", "no_worker"]
    assert explained.may_start_at == after(90)
    assert explain_execution(waiting(pool=pool)).may_start_at is None
    assert explained.reasons[1].what_to_do == "Start one: `ondot worker --pool gpu`."
    assert "gpu" in explained.summary
    assert codes(waiting(pool=replace(FREE, running=20))) == ["pool_full"]


@proves("E17")
def test_a_full_pool_shows_its_slots_and_the_queue_by_class() -> None:
    ahead = {PriorityClass.NORMAL: 7, PriorityClass.HIGH: 2, PriorityClass.LOW: 0}
    explained = explain_execution(waiting(pool=replace(FREE, running=20), queue_ahead=ahead))
    [reason] = explained.reasons
    assert reason.facts["ahead"] == {"high": 2, "normal": 7}
    assert (reason.facts["running"], reason.facts["slots"]) == (20, 20)
    assert "9 executions before it" in reason.message
    assert explained.may_start_at is None


@proves("E17")
def test_who_has_more_before_it_than_there_are_free_slots_waits_for_the_queue() -> None:
    ahead = {PriorityClass.HIGH: 1_000, PriorityClass.NORMAL: 3}
    [reason] = explain_execution(waiting(ready_at=after(-60), queue_ahead=ahead)).reasons
    assert (reason.code, "1,003 or more executions" in reason.message) == ("pool_full", True)
    assert codes(waiting(queue_ahead={PriorityClass.HIGH: 16})) == ["next"]
    [reason] = explain_execution(waiting(queue_ahead={PriorityClass.HIGH: 17})).reasons
    assert (reason.code, "17 executions" in reason.message) == ("pool_full", True)


SUSPECT: dict[str, Any] = {"priority_class": PriorityClass.SUSPECT, "state": State.RETRYING, "losses": 2}


@proves("E6", "E17")
def test_a_suspect_shows_how_many_suspects_run_at_once_and_never_that_something_is_wrong() -> None:
    pool = replace(FREE, suspect_slots=2, suspects=2)
    explained = explain_execution(waiting(**SUSPECT, pool=pool, queue_ahead={PriorityClass.SUSPECT: 3}))
    [reason] = explained.reasons
    assert (reason.code, explained.may_start_at) == ("suspect", None)
    assert "2 workers died while running it, so it runs in a child process" in reason.message
    assert "at most 2 such executions at once; 2 run now, and 3 wait before it" in reason.message
    assert f"ondot execution get {ID}" in str(reason.what_to_do)
    assert (reason.facts["losses"], reason.facts["at_once"], reason.facts["suspects"]) == (2, 2, 2)
    for suspects in (0, 1, 2):
        [late] = explain_execution(
            waiting(**SUSPECT, ready_at=after(-3600), pool=replace(pool, suspects=suspects))
        ).reasons
        assert late.code == "suspect"
        assert "doctor" not in f"{late.message} {late.what_to_do}"


@proves("E6", "E17")
def test_a_suspect_with_room_is_next_and_a_full_pool_comes_before_its_own_limit() -> None:
    pool = replace(FREE, suspect_slots=2, suspects=1)
    assert codes(waiting(**SUSPECT, pool=pool)) == ["next"]
    assert codes(waiting(**SUSPECT, pool=pool, queue_ahead={PriorityClass.SUSPECT: 1})) == ["suspect"]
    assert codes(waiting(**SUSPECT, pool=replace(pool, running=20))) == ["pool_full"]
    assert codes(waiting(**SUSPECT, pool=Pool("gpu"))) == ["no_worker"]


@proves("E17")
def test_limits_of_a_pool_come_before_its_slots() -> None:
    held = HeldSlots(4, (Holder(OTHER, after(-9), State.RUNNING),))
    full = replace(FREE, running=20, concurrency=4, held=held)
    [reason] = explain_execution(waiting(pool=full)).reasons
    assert (reason.code, reason.facts["limit"], reason.facts["held"]) == ("pool_concurrency", 4, 4)
    rated = replace(FREE, every_s=2.0, burst=1, token_at=after(1))
    explained = explain_execution(waiting(pool=rated, queue_ahead={PriorityClass.NORMAL: 2}))
    assert (explained.reasons[0].code, explained.may_start_at) == ("pool_rate", after(5))
    # An instant of before the clock was set back: the bucket is empty, and not emptier.
    far = explain_execution(waiting(pool=replace(rated, token_at=after(3600))))
    assert far.may_start_at == after(2)
    assert codes(waiting(pool=replace(FREE, every_s=2.0, burst=5, token_at=after(8)))) == ["next"]


@proves("E17")
@pytest.mark.parametrize("kind", ["order", "overlap", "concurrency"])
def test_a_gate_shows_its_limit_its_holders_and_the_place_in_line(kind: GateKind) -> None:
    holders = (Holder(OTHER, after(-60), State.RETRYING),)
    explained = explain_execution(waiting(line=gate(kind, ahead=2, held=HeldSlots(1, holders))))
    [reason] = explained.reasons
    assert (reason.code, reason.facts["limit"], reason.facts["place"]) == (kind, 1, 3)
    assert reason.facts["holders"] == [{"id": OTHER, "since": after(-60), "state": State.RETRYING}]
    assert "waits for a retry" in reason.message
    assert "number 3 in line" in reason.message
    assert str(OTHER) in str(reason.what_to_do)
    assert explained.may_start_at is None


@proves("E17", "E12")
def test_the_overlap_policy_says_what_becomes_of_a_fire_that_finds_its_job_running() -> None:
    def message(**fields: Any) -> str:
        return explain_execution(waiting(ready_at=after(5), line=gate("overlap", **fields))).reasons[1].message

    assert "it is skipped" in message(overlap="skip")
    assert "a run that a person started waits" in message(overlap="skip", is_fire=False)
    assert "if one still runs then, it is cancelled" in message(overlap="cancel")
    assert message(overlap="queue").endswith("number 1 in line.")
    explained = explain_execution(waiting(ready_at=after(5), line=gate("overlap", overlap="queue")))
    assert explained.may_start_at == after(5)


@proves("E17")
def test_a_gate_with_room_keeps_nobody() -> None:
    assert codes(waiting(line=gate("concurrency", limit=3, ahead=1))) == ["next"]
    assert codes(waiting(line=gate("concurrency", limit=3, ahead=2))) == ["concurrency"]


@proves("E17")
def test_an_execution_behind_others_at_an_open_gate_shows_the_first_one() -> None:
    [reason] = explain_execution(waiting(line=gate("order", held=HeldSlots(), ahead=1, first=OTHER))).reasons
    assert "earlier executions go first" in reason.message
    assert f"ondot execution explain {OTHER}" in str(reason.what_to_do)


@proves("E17")
def test_a_rate_shows_the_instant_of_the_token_for_its_place() -> None:
    line = gate("rate", limit=None, held=HeldSlots(), every_s=10.0, burst=2, token_at=after(15), ahead=1)
    explained = explain_execution(waiting(line=line))
    # The bucket of two is full again in 15 s: the first token comes after 5 s, and is for the one before it.
    assert (explained.reasons[0].code, explained.may_start_at) == ("rate", after(15))
    assert codes(waiting(line=replace(line, token_at=None, ahead=0))) == ["next"]
    assert codes(waiting(line=line, ready_at=after(40))) == ["not_due"]


@proves("E17", "P3")
@pytest.mark.parametrize("state", [State.PENDING, State.RETRYING])
@pytest.mark.parametrize("pool", [FREE, Pool("gpu", silent=1)])
def test_what_is_held_says_so_first_and_blames_no_worker(state: State, pool: Pool) -> None:
    explained = explain_execution(waiting(state=state, pool=pool, **HELD))
    [reason] = explained.reasons
    assert (reason.code, explained.may_start_at) == ("held", None)
    assert reason.facts == {"since": after(-60), "reason": "it is another cluster"}
    assert explained.summary == "Nothing starts since 2026-11-16 11:59:00 UTC: it is another cluster."
    assert "`ondot doctor --accept-database`" in str(reason.what_to_do)
    later = explain_execution(waiting(state=state, pool=pool, ready_at=after(90), line=gate("overlap"), **HELD))
    assert [reason.code for reason in later.reasons][::2] == ["held", "overlap"]
    assert later.may_start_at is None


@proves("E17", "P3")
@pytest.mark.parametrize("state", [state for state in State if state not in {State.PENDING, State.RETRYING}])
def test_a_hold_is_not_shown_for_executions_that_do_not_wait_for_a_worker(state: State) -> None:
    assert "held" not in codes(waiting(state=state, ended_at=NOW, **HELD))


@proves("E17")
def test_a_start_deadline_is_shown_and_nothing_starts_after_it() -> None:
    explained = explain_execution(waiting(ready_at=after(5), start_by=after(60)))
    assert [reason.code for reason in explained.reasons] == ["not_due", "start_deadline"]
    assert (explained.reasons[1].until, explained.may_start_at) == (after(60), after(5))
    line = gate("rate", limit=None, held=HeldSlots(), every_s=100.0, token_at=after(90))
    assert explain_execution(waiting(line=line, start_by=after(60))).may_start_at is None
    assert codes(waiting(state=State.RETRYING, ready_at=after(5), attempt_no=1, start_by=after(60))) == ["backoff"]


@proves("E17")
def test_a_function_that_no_worker_had_is_named() -> None:
    error = {"code": "unknown_function", "message": "there is no function 'f' here"}
    explained = waiting(state=State.RETRYING, ready_at=after(5), attempt_no=1, failures=1, last_error=error)
    assert codes(explained) == ["backoff", "no_function"]


@proves("E17")
def test_a_running_execution_shows_where_since_when_and_how_far() -> None:
    running = waiting(
        state=State.RUNNING,
        started_at=after(-5),
        worker_host="tarn",
        attempt_no=2,
        progress=0.5,
        progress_message="half",
    )
    explained = explain_execution(running)
    assert (explained.reasons[0].code, explained.may_start_at) == ("running", None)
    assert "tarn" in explained.summary
    assert "50% done: half" in explained.summary
    explained = explain_execution(replace(running, cancel_at=after(-1), cancel_reason="cancelled by ada"))
    assert [reason.code for reason in explained.reasons] == ["cancelling", "running"]
    assert "cancelled by ada" in explained.summary


@proves("E17", "L3")
@pytest.mark.parametrize(
    ("silent_s", "words", "advice"),
    [(3, False, None), (9, True, None), (40, True, "a scheduler is running")],
)
def test_what_runs_on_a_worker_that_is_silent_says_so(silent_s: int, words: bool, advice: str | None) -> None:
    running = waiting(state=State.RUNNING, started_at=after(-50), worker_beat_at=after(-silent_s), heartbeat_s=10)
    [reason] = explain_execution(running).reasons
    assert ("; but its worker has sent no heartbeat since" in reason.message) is words
    assert reason.facts["silent_since"] == (after(-silent_s) if words else None)
    assert (advice or "") in (reason.what_to_do or "")


@proves("E17")
@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_what_has_ended_says_how_and_why(state: State) -> None:
    error = {"code": "x", "message": "no such table"} if state is State.FAILED else None
    explained = explain_execution(waiting(state=state, ended_at=NOW, reason="because of that", error=error))
    [reason] = explained.reasons
    assert reason.code == "ended"
    assert state.value in reason.message
    assert "because of that" in reason.message
    assert ("no such table" in reason.message) == (state is State.FAILED)
    assert (reason.what_to_do is None) == (state is State.SUCCEEDED)


@proves("E17")
@given(
    state=st.sampled_from([state for state in State if state not in TERMINAL]),
    ready_s=st.integers(-100, 100),
    alive=st.integers(0, 2),
    running=st.integers(0, 20),
    kind=st.sampled_from(["order", "overlap", "concurrency", "rate", None]),
    ahead=st.integers(0, 3),
    limit=st.integers(1, 3),
    held=st.integers(0, 3),
    start_by_s=st.none() | st.integers(-10, 200),
    cancelled=st.booleans(),
)
def test_every_live_execution_has_a_reason_and_nothing_may_start_before_it_is_ready(
    state: State,
    ready_s: int,
    alive: int,
    running: int,
    kind: GateKind | None,
    ahead: int,
    limit: int,
    held: int,
    start_by_s: int | None,
    cancelled: bool,
) -> None:
    line = Line(kind, "key:k", ahead, limit=limit, every_s=3.0, held=HeldSlots(held)) if kind else None
    explained = explain_execution(
        waiting(
            state=state,
            ready_at=after(ready_s),
            pool=Pool("p", alive=alive, slots=10 * alive, running=running),
            line=line,
            start_by=None if start_by_s is None else after(start_by_s),
            cancel_at=NOW if cancelled else None,
        )
    )
    assert explained.reasons
    assert explained.summary.endswith(".")
    if explained.may_start_at is not None:
        assert explained.may_start_at >= max(NOW, after(ready_s))
        assert alive or ready_s > 0
        assert state in {State.PENDING, State.RETRYING}


@proves("E17", "E2")
@given(mine=st.sampled_from(PriorityClass), other=st.sampled_from(PriorityClass), ready_s=st.integers(-300, 0))
def test_what_is_counted_before_it_is_what_a_worker_would_take_first(
    mine: PriorityClass, other: PriorityClass, ready_s: int
) -> None:
    def lane(priority_class: PriorityClass) -> Lane:
        return Lane(PoolNo(1), priority_class, TenantNo(1))

    own = Waiting(lane(mine), NOW)
    if mine is other:
        return
    before_at = dict(goes_before(mine, NOW))[other]
    # At the same instant the better class goes first; a count need not distinguish them.
    for seconds in (ready_s - 0.5, 0.5 - ready_s):
        first, _ = order_lanes([own, Waiting(lane(other), after(seconds))])
        assert (first == lane(other)) == (after(seconds) < before_at)


# Jobs ----------------------------------------------------------------------------------------------------------------

NINE = Schedule(when=Cron(expression="0 9 * * *"))


def job(**fields: Any) -> JobFacts:
    """An active job that fires daily at nine and fired today, on a fleet that is well."""
    base: dict[str, Any] = {
        "id": JOB,
        "state": JobState.ACTIVE,
        "schedule": NINE,
        "created_at": after(-10 * 86_400),
        "updated_at": after(-3600),
        "now": NOW,
        "timer_at": after(21 * 3600),
        "next_fire_at": after(21 * 3600),
        "fired_through": after(-3 * 3600),
        "node": "tarn",
        "nodes": 1,
    }
    return JobFacts(**base | fields)


def job_codes(facts: JobFacts) -> list[str]:
    return [reason.code for reason in explain_job(facts, ()).reasons]


@proves("E17")
def test_a_job_that_is_well_waits_for_its_next_fire_in_words() -> None:
    explained = explain_job(job(), ())
    [reason] = explained.reasons
    assert (reason.code, explained.may_start_at) == ("not_due", after(21 * 3600))
    assert "At 09:00" in explained.summary


@proves("E17")
def test_a_paused_job_says_since_when_why_and_how_to_go_on() -> None:
    explained = explain_job(job(state=JobState.PAUSED, state_reason="5 failures in a row", timer_at=None), ())
    [reason] = explained.reasons
    assert (reason.code, reason.facts["since"], explained.may_start_at) == ("paused", after(-3600), None)
    assert "5 failures in a row" in explained.summary
    assert f"ondot job resume {JOB}" in str(reason.what_to_do)
    assert "by hand" in explain_job(job(state=JobState.PAUSED), ()).summary
    assert job_codes(job(state=JobState.DELETED)) == ["deleted"]


@proves("E17")
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schedule": Schedule(when=Once(at=after(-60)))}, "runs once"),
        ({"schedule": Schedule(when=NINE.when, end_at=after(-60))}, "end_at"),
        ({"schedule": Schedule(when=NINE.when, max_fires=3), "fires_left": 0}, "fired 3 times"),
        ({}, "no further fire"),
    ],
)
def test_a_job_that_has_ended_says_why_no_fire_is_left(fields: dict[str, Any], words: str) -> None:
    explained = explain_job(job(state=JobState.ENDED, timer_at=None, next_fire_at=None, **fields), ())
    assert [reason.code for reason in explained.reasons] == ["ended"]
    assert words in explained.summary


@proves("E17")
def test_without_a_scheduler_a_late_fire_comes_first_and_a_coming_one_is_warned_of() -> None:
    gone: dict[str, Any] = {"node": None, "nodes": 0, "node_seen_at": after(-600)}
    late = explain_job(job(timer_at=after(-5), next_fire_at=after(-5), **gone), ())
    assert [reason.code for reason in late.reasons] == ["no_scheduler", "late_plan"]
    assert "ondot scheduler" in str(late.reasons[0].what_to_do)
    assert late.may_start_at is None
    coming = explain_job(job(**gone), ())
    assert [reason.code for reason in coming.reasons] == ["not_due", "no_scheduler"]
    assert coming.may_start_at == after(21 * 3600)
    assert job_codes(job(timer_at=after(-5), next_fire_at=after(-5))) == ["late_plan"]
    assert "within seconds" in explain_job(job(node=None, nodes=2), ()).reasons[1].message
    without_lease = explain_job(job(away="etcd", **gone), ()).reasons[1]
    assert "have no lease because etcd is away" in without_lease.message
    assert "ondot scheduler" not in str(without_lease.what_to_do)


@proves("E17", "P3")
def test_an_active_job_that_is_held_says_so_first_and_asks_for_no_scheduler() -> None:
    gone: dict[str, Any] = {"node": None, "nodes": 0, "node_seen_at": after(-600)} | HELD
    late = explain_job(job(timer_at=after(-5), next_fire_at=after(-5), **gone), ())
    assert [reason.code for reason in late.reasons] == ["held", "late_plan"]
    assert "`ondot doctor --accept-database`" in str(late.reasons[0].what_to_do)
    assert "as soon as the database is accepted" in str(late.reasons[1].what_to_do)
    waits = explain_execution(waiting(ready_at=after(9), **HELD))
    coming = explain_job(job(live=1, **gone), (waits,))
    assert [reason.code for reason in coming.reasons] == ["held", "not_due"]
    assert (coming.summary, coming.may_start_at) == (coming.reasons[0].message, None)


@proves("E17", "P3")
def test_a_hold_is_shown_only_for_jobs_that_have_something_to_run() -> None:
    over: dict[str, Any] = {"timer_at": None, "next_fire_at": None} | HELD
    assert job_codes(job(**over)) == ["ended"]
    assert job_codes(job(live=1, **over)) == ["held", "ended"]
    for state, codes in ((JobState.PAUSED, ["paused"]), (JobState.DELETED, ["deleted"]), (JobState.ENDED, ["ended"])):
        assert job_codes(job(state=state, **over)) == codes


@proves("E17")
def test_a_job_that_catches_up_shows_the_range_and_how_many_are_left() -> None:
    owed = Range(after(-86_400), after(-3600), "fire", 12)
    explained = explain_job(job(owed=(owed,)), ())
    assert [reason.code for reason in explained.reasons] == ["catching_up", "not_due"]
    assert "12 fires left" in explained.summary
    held = explain_job(job(state=JobState.PAUSED, owed=(replace(owed, reason="backfill"),)), ())
    assert [reason.code for reason in held.reasons] == ["paused", "catching_up"]
    assert "while the job is paused" in held.reasons[1].message


@proves("E17")
def test_a_job_with_a_waiting_execution_shows_what_that_waits_for() -> None:
    stuck = explain_execution(waiting(line=gate("overlap")))
    explained = explain_job(job(live=1), (stuck,))
    assert stuck.summary in explained.summary
    assert explained.may_start_at == after(21 * 3600)
    runs = explain_execution(waiting(state=State.RUNNING, started_at=NOW))
    assert "1 running" in explain_job(job(live=1, running=1), (runs,)).summary


# Fires ---------------------------------------------------------------------------------------------------------------

TODAY_NINE = after(-3 * 3600)
NOTHING = OnRecord()


def what_of(
    facts: JobFacts, at: datetime, found: OnRecord = NOTHING, nearest: OnRecord | None = None
) -> tuple[str, str]:
    explained = explain_fire(facts, at, read_schedule(facts.schedule, at), found, nearest)
    return explained.code, explained.message


@proves("E17")
@pytest.mark.parametrize(
    ("state", "ready_s", "code"),
    [
        (State.SUCCEEDED, -9, "executed"),
        (State.FAILED, -9, "executed"),
        (State.RETRYING, 9, "executed"),
        (State.PENDING, -9, "waiting"),
        (State.PENDING, 9, "not_yet"),
        (State.SKIPPED, -9, "skipped"),
        (State.CANCELLED, -9, "cancelled"),
    ],
)
def test_a_fire_with_an_execution_is_explained_by_it(state: State, ready_s: int, code: str) -> None:
    execution = FireExecution(ID, TODAY_NINE, after(ready_s), state, "that")
    explained = explain_fire(job(), TODAY_NINE, None, OnRecord(execution))
    assert (explained.code, explained.facts["execution_id"], explained.fire_at) == (code, ID, TODAY_NINE)


@proves("E17")
def test_a_fire_in_a_skipped_range_is_explained_by_its_reason() -> None:
    skipped = Range(after(-27 * 3600), TODAY_NINE, "misfire", 2)
    code, message = what_of(job(), TODAY_NINE, OnRecord(skipped=skipped))
    assert code == "skipped"
    assert "2 in all" in message
    assert "misfire policy" in message
    assert what_of(job(), TODAY_NINE, OnRecord(owed=skipped))[0] == "catching_up"


@proves("E17")
def test_a_fire_without_a_record_is_explained_by_the_state_of_its_job() -> None:
    assert what_of(job(), after(21 * 3600))[0] == "not_yet"
    assert what_of(job(), TODAY_NINE)[0] == "no_record"
    before: dict[str, Any] = {"fired_through": after(-27 * 3600)}
    assert what_of(job(timer_at=TODAY_NINE, **before), TODAY_NINE)[0] == "late_plan"
    code, message = what_of(job(timer_at=TODAY_NINE, **before, **HELD), TODAY_NINE)
    assert (code, message.partition(": ")[2]) == ("late_plan", "nothing starts since 2026-11-16 11:59:00 UTC.")
    assert what_of(job(state=JobState.PAUSED, timer_at=None, **before), TODAY_NINE)[0] == "paused"
    assert what_of(job(state=JobState.DELETED, timer_at=None, **before), TODAY_NINE)[0] == "deleted"
    assert what_of(job(fires_left=0, timer_at=None, **before), TODAY_NINE)[0] == "ended"
    # What was settled before the pause is not the pause's.
    assert what_of(job(state=JobState.PAUSED, timer_at=None), TODAY_NINE)[0] == "no_record"
    assert explain_fire(job(), after(-(10**7)), None, NOTHING).code == "before_job"


@proves("E17")
@pytest.mark.parametrize(
    ("calendar", "reason"),
    [
        (Calendar(exclude_dates=("2026-11-16",)), "date"),
        (Calendar(exclude_holidays="DE"), "holiday"),
        (Calendar(business_days=True), "weekend"),
    ],
)
def test_a_fire_that_the_calendar_leaves_out_says_so(calendar: Calendar, reason: str) -> None:
    at = {"date": TODAY_NINE, "holiday": datetime(2026, 12, 25, 9, tzinfo=UTC)}.get(
        reason, datetime(2026, 11, 15, 9, tzinfo=UTC)
    )
    facts = job(schedule=Schedule(when=NINE.when, calendar=calendar))
    explained = explain_fire(facts, at, read_schedule(facts.schedule, at), NOTHING)
    assert (explained.code, explained.fire_at, explained.facts["reason"]) == ("left_out", at, reason)
    excluded = Schedule(when=NINE.when, exclude=(Cron(expression="0 9 16 * *"),))
    assert explain_fire(facts, TODAY_NINE, read_schedule(excluded, TODAY_NINE), NOTHING).facts["reason"] == "excluded"


@proves("E17")
def test_an_instant_that_is_no_fire_names_the_fires_around_it_and_what_became_of_the_nearest() -> None:
    at = TODAY_NINE + timedelta(minutes=5)
    execution = FireExecution(ID, TODAY_NINE, TODAY_NINE, State.SUCCEEDED, None)
    explained = explain_fire(job(), at, read_schedule(NINE, at), NOTHING, OnRecord(execution))
    assert (explained.code, explained.fire_at) == ("not_a_fire", None)
    assert (explained.facts["before_at"], explained.facts["after_at"]) == (TODAY_NINE, TODAY_NINE + timedelta(days=1))
    assert explained.facts["nearest"]["code"] == "executed"
    assert "SUCCEEDED" in explained.message


@proves("E17")
def test_a_fire_within_a_second_is_the_one_that_is_meant() -> None:
    schedule = Schedule(when=Interval(every_s=60, anchor_at=NOW + timedelta(milliseconds=250)))
    assert read_schedule(schedule, NOW).fire_at == NOW + timedelta(milliseconds=250)
    assert read_schedule(schedule, NOW + timedelta(seconds=30)).fire_at is None


@proves("E17")
def test_a_yearly_schedule_finds_the_fire_before_an_instant() -> None:
    leap = Schedule(when=Cron(expression="0 9 29 2 *"))
    reading = read_schedule(leap, NOW)
    assert reading.before_at == datetime(2024, 2, 29, 9, tzinfo=UTC)
    assert reading.after_at == datetime(2028, 2, 29, 9, tzinfo=UTC)
