"""⑤ One attempt: it always has an outcome, whatever its target does."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import get_args

import pytest
from msgspec import structs

from ondot.flow import run
from ondot.flow.lease import Assignment
from ondot.flow.run import run_attempt
from ondot.model.completion import Completion
from ondot.model.execution import Outcome, State
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId, LeaseId
from ondot.model.job import JobSpec, TargetSpec, decode_spec, encode_spec
from ondot.model.outcome import Cancelled, Failed, Succeeded, timed_out
from ondot.model.retry import Retry
from ondot.model.target import AttemptTarget, FunctionTarget, GrpcTarget, HttpTarget, ShellTarget
from ondot.ports.target import Call, End, Target, Targets
from ondot.store.clock import DatabaseClock
from ondot.store.queue import Leased
from tests.proves import proves
from tests.world import DEFAULT_POOL, failed, job

NOON = datetime(2031, 3, 3, 12, tzinfo=UTC)

Handler = Callable[[Call], Awaitable[Succeeded | Failed]]


class Calls(Target[AttemptTarget]):
    """A target of every kind: passes the call to the test's own function."""

    def __init__(self, kind: type[AttemptTarget], handler: Handler, seen: list[str]) -> None:
        self._kind = str(kind.__struct_config__.tag)
        self._handler = handler
        self._seen = seen

    async def call(self, spec: AttemptTarget, call: Call) -> Succeeded | Failed:
        self._seen.append(self._kind)
        return await self._handler(call)


async def succeed(call: Call) -> Succeeded:
    return Succeeded(f'"{call.payload.decode()}"')


def leased_of(spec: JobSpec | None, *, failures: int = 0, losses: int = 0) -> Assignment:
    clock = DatabaseClock()
    clock.freeze(NOON)
    leased = Leased(
        ExecutionId(clock.new_id()),
        JobId(clock.new_id()),
        1,
        DEFAULT_TENANT,
        DEFAULT_POOL,
        2,
        NOON.timestamp(),
        NOON.timestamp(),
        NOON.timestamp(),
        failures + losses + 1,
        failures,
        losses,
        "fire",
        own_payload=False,
        has_more_at_end=False,
    )
    return Assignment(leased, LeaseId(clock.new_id()), spec, b"7")


def make_call(assignment: Assignment, spec: JobSpec) -> Call:
    leased = assignment.leased
    return Call(
        execution_id=leased.id,
        job_id=leased.job_id,
        job_name=spec.name,
        attempt_no=leased.attempt_no,
        fire_s=leased.fire_s,
        payload=assignment.payload,
        timeout_s=spec.attempt_timeout_s,
        say=lambda _stream, _line: None,
        progress=lambda _fraction, _message, _checkpoint: None,
    )


async def attempt(
    assignment: Assignment, handler: Handler = succeed, *, stopping: str | None = None, seen: list[str] | None = None
) -> Completion:
    kinds: list[str] = [] if seen is None else seen
    targets: Targets = {kind: Calls(kind, handler, kinds) for kind in get_args(TargetSpec)}
    return await run_attempt(assignment, targets, make_call, lambda: stopping)


@proves("E3")
@pytest.mark.parametrize(
    ("target", "kind"),
    [
        (HttpTarget(url="http://there"), "http"),
        (FunctionTarget(name="report"), "function"),
        (ShellTarget(command=("true",)), "shell"),
    ],
    ids=["http", "function", "shell"],
)
async def test_each_kind_of_target_gets_its_calls_and_its_result_is_the_outcome(
    target: HttpTarget | FunctionTarget | ShellTarget, kind: str
) -> None:
    seen: list[str] = []
    completion = await attempt(leased_of(job(target=target)), seen=seen)
    assert (completion.state, completion.outcome, completion.result) == (State.SUCCEEDED, Outcome.SUCCEEDED, '"7"')
    assert seen == [kind]


@proves("E11", "P7")
async def test_a_worker_that_may_start_no_call_gives_the_work_back() -> None:
    seen: list[str] = []
    completion = await attempt(leased_of(job()), stopping="the worker stops", seen=seen)
    assert (completion.state, completion.outcome) == (State.PENDING, Outcome.PREEMPTED)
    assert seen == []


@proves("P5")
async def test_an_attempt_whose_definition_is_gone_fails_for_good() -> None:
    completion = await attempt(leased_of(None))
    assert (completion.state, completion.outcome) == (State.FAILED, Outcome.FAILED)
    assert completion.error is not None
    assert "spec_gone" in completion.error


@proves("E4", "P5")
@pytest.mark.parametrize("message", ["it broke", "NUL \0", "half of a pair \ud800"])
async def test_a_target_that_raises_fails_its_attempt_and_not_its_worker(message: str) -> None:
    async def raises(_: Call) -> Succeeded:
        raise RuntimeError(message)

    completion = await attempt(leased_of(job()), raises)
    assert (completion.state, completion.outcome) == (State.RETRYING, Outcome.FAILED)
    assert completion.error is not None
    assert "RuntimeError" in completion.error


@proves("E7")
@pytest.mark.parametrize(
    ("target", "default_s"),
    [
        (HttpTarget(url="http://there"), 300),
        (GrpcTarget(address="there:1", method="a.B/C"), 300),
        (FunctionTarget(name="report"), None),
        (ShellTarget(command=("true",)), None),
    ],
)
async def test_only_a_call_of_a_server_has_a_default_timeout(target: TargetSpec, default_s: float | None) -> None:
    seen: list[float | None] = []

    async def look(call: Call) -> Succeeded:
        seen.append(call.timeout_s)
        return Succeeded()

    await attempt(leased_of(job(target=target)), look)
    await attempt(leased_of(job(target=target, timeout_s=300)), look)
    assert seen == [default_s, 300]


@proves("E7", "E17")
async def test_an_error_names_the_default_timeout_but_not_the_jobs_own() -> None:
    async def over(call: Call) -> Failed:
        return timed_out(call.timeout_s or 0)

    by_default = (await attempt(leased_of(job(target=HttpTarget(url="http://there"))), over)).error or ""
    own = (await attempt(leased_of(job(target=HttpTarget(url="http://there"), timeout_s=300)), over)).error or ""
    assert "within 300 s, the default timeout of an HTTP call" in by_default
    grpc = job(target=GrpcTarget(address="there:1", method="a.B/C"))
    assert "the default timeout of a gRPC call" in ((await attempt(leased_of(grpc), over)).error or "")
    assert "set the job's `timeout`" in by_default
    assert '"is_default":true' in by_default
    assert "default" not in own


@proves("E7")
def test_a_spec_stored_without_a_timeout_has_todays_default_and_an_explicit_300_s_is_kept() -> None:
    before = decode_spec('{"name":"report","target":{"kind":"function","name":"report"}}')
    assert before.attempt_timeout_s is None
    kept = decode_spec(encode_spec(structs.replace(before, timeout_s=300.0)))
    assert kept.attempt_timeout_s == 300


@proves("E7")
async def test_a_target_that_does_not_return_is_timed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Call) -> Succeeded:
        await asyncio.Event().wait()
        return Succeeded()

    monkeypatch.setattr(run, "ENDS_WITHIN_S", 0.0)
    completion = await attempt(leased_of(job(timeout_s=0.001, cancel_grace_s=0)), never)
    assert (completion.state, completion.outcome) == (State.RETRYING, Outcome.TIMED_OUT)


@proves("E6", "P7")
async def test_an_interrupted_attempt_costs_a_loss() -> None:
    begun = asyncio.Event()

    async def never(_: Call) -> Succeeded:
        begun.set()
        await asyncio.Event().wait()
        return Succeeded()

    for losses, state in ((0, State.RETRYING), (3, State.FAILED)):
        begun.clear()
        task = asyncio.create_task(attempt(leased_of(job(), losses=losses), never))
        await begun.wait()
        task.cancel()
        completion = await task
        assert (completion.state, completion.outcome) == (state, Outcome.WORKER_LOST)


@proves("E4")
async def test_the_last_allowed_failure_is_retried_and_the_next_is_not() -> None:
    async def fail(_: Call) -> Failed:
        return failed()

    spec = job(retry=Retry(max_retries=2, backoff="fixed", initial_s=5, jitter=False))
    last = await attempt(leased_of(spec, failures=1), fail)
    assert (last.state, last.delay_s) == (State.RETRYING, 5)
    over = await attempt(leased_of(spec, failures=2), fail)
    assert (over.state, over.reason) == (State.FAILED, "2 retries used, none left")


class Direct(Target[TargetSpec]):
    """Reports the same by both paths; None: the call is interrupted."""

    def __init__(self, report: Succeeded | Failed | Cancelled | Exception | None) -> None:
        self._report = report

    def can_begin(self, spec: TargetSpec) -> bool:
        return True

    def begin(self, spec: TargetSpec, call: Call, end: End) -> None:
        if isinstance(self._report, Exception):
            raise self._report
        end(self._report)

    async def call(self, spec: TargetSpec, call: Call) -> Succeeded | Failed | Cancelled:
        if isinstance(self._report, Exception):
            raise self._report
        if self._report is None:
            raise asyncio.CancelledError
        return self._report


@proves("E3", "E11")
@pytest.mark.parametrize("stopping", [None, "the worker stops"])
@pytest.mark.parametrize(
    "report",
    [
        Succeeded('"done"'),
        failed(),
        failed(retryable=False),
        timed_out(3),
        Cancelled("It ended.", forced=True),
        RuntimeError("a fault of ours"),
        None,
    ],
    ids=lambda report: type(report).__name__ if not isinstance(report, str) else "stopping",
)
async def test_an_attempt_without_a_task_has_the_same_outcome_as_in_a_task(
    report: Succeeded | Failed | Cancelled | Exception | None, stopping: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "random", lambda: 0.5)
    assignment, target = leased_of(job()), Direct(report)
    assert assignment.spec is not None
    targets: Targets = {type(assignment.spec.target): target}
    assert run.direct_target(assignment, targets) is target
    ended: list[Completion] = []
    assert run.begin_attempt(assignment, target, make_call, lambda: stopping, ended.append) is None
    assert ended == [await run_attempt(assignment, targets, make_call, lambda: stopping)]


async def test_a_later_attempt_is_not_begun_without_a_task() -> None:
    """It has to read its checkpoint first."""
    assignment = leased_of(job(), failures=1)
    assert assignment.spec is not None
    assert run.direct_target(assignment, {type(assignment.spec.target): Direct(Succeeded())}) is None
