"""⑤ One attempt, from its lease to its outcome (E3, E7, E11). `Runner.run` is the list of its steps:

    read its checkpoint → fill in its secrets → may it start? → build the call → call its target within the deadline
    → decide what follows → keep its output → complete

Functions take the same steps by callbacks (`Runner.start`): a task that waits for a short function would cost more than
the function. Nothing here talks to PostgreSQL: the outcome goes to the completer, which keeps it until it is written.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from random import random
from typing import Any

from msgspec import structs

from ondot.flow.attempt_log import AttemptLogs
from ondot.flow.complete import Completer, end_attempt
from ondot.flow.handler_transaction import Transactor
from ondot.flow.in_flight import Attempt, InFlight
from ondot.flow.lease import Assignment
from ondot.flow.output import Outputs
from ondot.flow.resolve import Resolved, resolve_secrets
from ondot.flow.vault import Vault
from ondot.flow.workflows.attempts import StepAttempt
from ondot.model.completion import Completion, decide, expire, stop, succeed, with_labels
from ondot.model.errors import Unavailable
from ondot.model.ids import TenantNo
from ondot.model.job import JobSpec
from ondot.model.outcome import (
    AttemptError,
    Cancelled,
    Failed,
    Interrupted,
    NoFunction,
    NotBegun,
    Report,
    Succeeded,
    timed_out,
)
from ondot.model.retry import Retry
from ondot.model.scrub import Scrubber, SecretValues
from ondot.model.target import FunctionTarget
from ondot.model.workflow.spec import WorkflowTarget
from ondot.model.workflow.step_results import StepResults
from ondot.ports.target import Call, CallReport, Cancel, Interrupt, OpenTransaction, Target, Targets
from ondot.store.queue import Leased
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import CANCELS

ENDS_WITHIN_S = 10.0
"""How much longer than its timeout a target may take to end a call, before the attempt is reported without it."""

INTERRUPTED = Interrupted("The worker stopped before the attempt ended, its grace was over.")
GONE = JobSpec(name="", target=FunctionTarget(name=""), retry=Retry(max_retries=0))

BEGIN_AGAIN_S = 0.5
RESULT_BYTES = 16 * 1024 * 1024
"""Of an answer or of standard output, if another step may read it: a list of 100,000 items fits."""

BeginRun = Callable[[Leased, Completion | None], Awaitable[Completion | bool]]
ReadResults = Callable[[StepAttempt, TenantNo], Awaitable[StepResults]]
MakeCall = Callable[[Assignment, JobSpec], Call]
MayStart = Callable[[], str | None]
"""Why no call may start now (the worker is stopping, or may have been declared lost), or None."""

log = get_logger()


class Runner:
    """Runs the attempts of one incarnation of a worker."""

    def __init__(
        self,
        targets: Targets,
        notes: AttemptLogs,
        transactor: Transactor,
        completer: Completer,
        *,
        outputs: Outputs | None = None,
        vault: Vault | None = None,
        begin_run: BeginRun | None = None,
        read_results: ReadResults | None = None,
        may_start: MayStart = lambda: None,
        on_free: Callable[[], None] = lambda: None,
        on_fault: Callable[[], None] = lambda: None,
    ) -> None:
        """`begin_run`: see `flow.workflows.begin`. `read_results`: see `flow.workflows.results`. `on_free`: called when
        a slot becomes free. `on_fault`: called when a fault of ours lost an outcome."""
        self._targets = targets
        self._notes = notes
        self._transactor = transactor
        self._completer = completer
        self._outputs = outputs
        self._vault = vault
        self._begin_run = begin_run
        self._read_results = read_results
        self.may_start = may_start
        self._on_fault = on_fault
        self._loop = asyncio.get_running_loop()
        self.in_flight = InFlight(on_free)
        self.cancels: dict[Attempt, Cancel] = {}
        """By attempt that runs."""

    async def run(self, assignment: Assignment) -> Completion:
        """All steps but the last; `complete` follows."""
        checkpoint = await self._read_checkpoint(assignment.leased)
        resolved = await self._fill_in_secrets(assignment)
        if isinstance(resolved, Completion):
            return await self._keep_output(assignment.leased, resolved)
        assignment, secrets = resolved
        results = await self._read_results_above(assignment)
        if isinstance(results, Completion):
            return await self._keep_output(assignment.leased, results)
        build_call = partial(self._build_call, checkpoint=checkpoint, secrets=secrets, results=results)
        completion = await run_attempt(assignment, self._targets, build_call, self.may_start, secrets)
        return await self._keep_output(assignment.leased, completion)

    def start(self, group: asyncio.TaskGroup, assignment: Assignment) -> None:
        """Take all steps: by callbacks if its target can, else in a task."""
        leased = assignment.leased
        attempt = (leased.id, leased.attempt_no)
        self.in_flight.add(attempt, is_suspect=assignment.is_suspect)
        target = direct_target(assignment, self._targets)
        if target is None:
            self._start_task(group, attempt, self._run_and_complete(assignment))
            return
        end = partial(self._end_directly, group, assignment)
        interrupt = begin_attempt(assignment, target, self._build_call, self.may_start, end)
        if interrupt is not None:
            self.in_flight.set_interrupt(attempt, interrupt)

    def complete(self, assignment: Assignment, completion: Completion) -> None:
        if not self.is_committed(assignment, completion):
            self._completer.add(end_attempt(assignment, completion))

    def is_committed(self, assignment: Assignment, completion: Completion) -> bool:
        """Whether the handler's own transaction has written the outcome: nothing is left to do but to end the lease."""
        if not self._transactor.settled(completion):
            return False
        # Whatever the handler has reported since, the execution has succeeded.
        written = succeed(assignment.leased)
        self._completer.release(assignment.lease_id, end_attempt(assignment, written))
        return True

    def cancel(self, attempts: Iterable[Attempt]) -> None:
        """Ask these attempts to end, once each."""
        for attempt in attempts:
            cancel = self.cancels.get(attempt)
            if cancel is not None and not cancel.requested:
                CANCELS.inc()
                log.info("attempt.cancelled", execution_id=str(attempt[0]), attempt=attempt[1], grace_s=cancel.grace_s)
                cancel.request()

    # The steps -------------------------------------------------------------------------------------------------------

    async def _read_checkpoint(self, leased: Leased) -> str | None:
        # Before it is asked whether the call may start: cancelled here, the worker is stopping, and it will not.
        with suppress(Unavailable, asyncio.CancelledError):
            return await self._notes.checkpoint_of(leased)
        return None

    async def _fill_in_secrets(self, assignment: Assignment) -> tuple[Assignment, SecretValues | None] | Completion:
        """The attempt with the values of its secrets; or its outcome, if it has none without them."""
        spec = assignment.spec
        if spec is None:
            return assignment, None
        target = self._targets.get(type(spec.target))
        declared = () if target is None else target.secrets_of(spec.target)
        if spec.secrets is None and not declared:
            return assignment, None
        if (refusal := refuse(assignment, spec, self.may_start)) is not None:
            return refusal
        report: Resolved | Failed | NotBegun = NotBegun("The worker is stopping.")
        with suppress(asyncio.CancelledError):
            report = await resolve_secrets(self._vault, assignment, spec, declared)
        if isinstance(report, Resolved):
            return report.assignment, report.secrets
        return decide(assignment.leased, spec, report, random)

    async def _read_results_above(self, assignment: Assignment) -> StepResults | Completion | None:
        """The results of the steps above, if the function may ask for them; or the outcome, if they cannot be read."""
        spec, step = assignment.spec, assignment.step
        if spec is None or step is None or self._read_results is None:
            return None
        target = self._targets.get(type(spec.target))
        if target is None or not target.reads_results(spec.target):
            return None
        report = NotBegun("The worker is stopping.")
        try:
            return await self._read_results(step, assignment.leased.tenant_no)
        except Unavailable as error:
            report = NotBegun(f"The results of the steps above cannot be read: {error.message}")
        except asyncio.CancelledError:
            pass
        return decide(assignment.leased, spec, report, random)

    def _build_call(
        self,
        assignment: Assignment,
        spec: JobSpec,
        checkpoint: str | None = None,
        secrets: SecretValues | None = None,
        results: StepResults | None = None,
    ) -> Call:
        leased = assignment.leased
        cancel = self.cancels[leased.id, leased.attempt_no] = Cancel(spec.cancel_grace_s)
        transaction = self._transactor.opener(assignment, spec)
        return build_call(
            assignment,
            spec,
            self._notes,
            cancel,
            checkpoint=checkpoint,
            transaction=transaction,
            secrets=secrets,
            results=results,
        )

    async def _keep_output(self, leased: Leased, completion: Completion) -> Completion:
        self.cancels.pop((leased.id, leased.attempt_no), None)
        if self._outputs is not None:
            completion = await self._outputs.keep(leased, completion)
        # Cancelled meanwhile: the worker stops, the last lines may be lost, the outcome may not.
        with suppress(asyncio.CancelledError):
            await self._notes.close(leased)
        return completion

    # A task ----------------------------------------------------------------------------------------------------------

    def _start_task(self, group: asyncio.TaskGroup, attempt: Attempt, work: Coroutine[Any, Any, None]) -> None:
        task = group.create_task(work, name="attempt")
        task.add_done_callback(lambda _task: self.in_flight.remove(attempt))
        # Not before its first step: a task that is cancelled sooner does nothing at all, and its outcome would be lost.
        self.in_flight.set_interrupt(attempt, partial(self._loop.call_soon, task.cancel))

    async def _run_and_complete(self, assignment: Assignment) -> None:
        spec = assignment.spec
        if spec is None or not isinstance(spec.target, WorkflowTarget):
            self.complete(assignment, await self.run(assignment))
        elif (completion := await self._begin(assignment, spec)) is not None:
            self.complete(assignment, completion)
        else:
            self._completer.release(assignment.lease_id)

    async def _begin(self, assignment: Assignment, spec: JobSpec) -> Completion | None:
        """Begin a run instead of a call; or the outcome to be written, if it has not begun."""
        leased = assignment.leased
        assert self._begin_run is not None
        report: Report
        try:
            while (reason := self.may_start()) is None:
                try:
                    begun = await self._begin_run(leased, refuse(assignment, spec))
                except Unavailable as error:
                    # It may have begun: the next try finds it so.
                    log.warning("run.not_begun", execution_id=str(leased.id), error=error.message)
                    await asyncio.sleep(BEGIN_AGAIN_S)
                    continue
                if isinstance(begun, Completion):
                    return begun
                return None if begun else with_labels(stop(leased, reason="cancelled"), spec)
            report = NotBegun(reason)
        except asyncio.CancelledError:
            report = NotBegun("The worker is stopping.")
        except Exception as error:
            log.exception("run.not_begun", execution_id=str(leased.id))
            report = _internal(error)
        return decide(leased, spec, report, random)

    # Callbacks -------------------------------------------------------------------------------------------------------

    def _end_directly(self, group: asyncio.TaskGroup, assignment: Assignment, completion: Completion) -> None:
        """A fault of ours in what follows must not leave the execution with a live worker."""
        leased = assignment.leased
        attempt = (leased.id, leased.attempt_no)
        try:
            self._keep_output_and_complete(group, assignment, attempt, completion)
        except Exception:
            log.exception("attempt.unsettled", execution_id=str(leased.id), then="the worker is recycled")
            self.in_flight.remove(attempt)
            self._on_fault()

    def _keep_output_and_complete(
        self, group: asyncio.TaskGroup, assignment: Assignment, attempt: Attempt, completion: Completion
    ) -> None:
        """Most attempts have no output to keep, and so need no task."""
        leased = assignment.leased
        fits = self._outputs is None or self._outputs.fits(completion)
        if fits and not self._notes.has_lines_of(leased):
            self.cancels.pop(attempt, None)
            self.complete(assignment, completion)
            self.in_flight.remove(attempt)
        else:
            self._start_task(group, attempt, self._keep_and_complete(assignment, completion))

    async def _keep_and_complete(self, assignment: Assignment, completion: Completion) -> None:
        self.complete(assignment, await self._keep_output(assignment.leased, completion))


async def run_attempt(
    assignment: Assignment,
    targets: Targets,
    make_call: MakeCall,
    may_start: MayStart,
    secrets: SecretValues | None = None,
) -> Completion:
    """Raises nothing but its own cancellation, and that only before the call."""
    spec = assignment.spec
    if spec is None:
        return _fail_without_spec(assignment)
    if (refusal := refuse(assignment, spec, may_start)) is not None:
        return refusal
    try:
        report: Report = await _call(spec, targets, make_call(assignment, spec))
    except asyncio.CancelledError:
        report = INTERRUPTED
    if secrets is not None:
        report = secrets.scrubber.report(report)
    return decide(assignment.leased, spec, report, random)


def begin_attempt(
    assignment: Assignment,
    target: Target[Any],
    make_call: MakeCall,
    may_start: MayStart,
    end: Callable[[Completion], None],
) -> Interrupt | None:
    """The same by callbacks, without a task; None: `end` has already been called."""
    spec = assignment.spec
    assert spec is not None
    if (refusal := refuse(assignment, spec, may_start)) is not None:
        end(refusal)
        return None

    def decide_and_end(report: Succeeded | Failed | Cancelled | NoFunction | None) -> None:
        end(decide(assignment.leased, spec, INTERRUPTED if report is None else report, random))

    try:
        return target.begin(spec.target, make_call(assignment, spec), decide_and_end)
    except Exception as error:  # noqa: BLE001 - a fault of ours must end the attempt, not the worker
        decide_and_end(_internal(error))
        return None


def direct_target(assignment: Assignment, targets: Targets) -> Target[Any] | None:
    """The target, if `begin_attempt` may be used: a later attempt has to read its checkpoint first, and an attempt with
    secrets has to read those."""
    spec = assignment.spec
    if spec is None or assignment.leased.attempt_no > 1 or spec.secrets is not None:
        return None
    target = targets.get(type(spec.target))
    if target is None or not target.can_begin(spec.target):
        return None
    return None if assignment.step is not None and target.reads_results(spec.target) else target


def refuse(assignment: Assignment, spec: JobSpec, may_start: MayStart = lambda: None) -> Completion | None:
    """The outcome of an attempt whose call must not be made; None if it may."""
    if assignment.over:
        return with_labels(stop(assignment.leased, reason=assignment.over), spec)
    if (late := _expire_if_late(assignment)) is not None:
        return with_labels(late, spec)
    if reason := may_start():
        return decide(assignment.leased, spec, NotBegun(reason), random)
    return None


def build_call(
    assignment: Assignment,
    spec: JobSpec,
    notes: AttemptLogs,
    cancel: Cancel,
    *,
    checkpoint: str | None = None,
    transaction: OpenTransaction | None = None,
    secrets: SecretValues | None = None,
    results: StepResults | None = None,
) -> Call:
    """Everything that the target may know; its lines and progress go to `notes`, without secrets."""
    leased = assignment.leased
    say, progress = notes.speaker(leased), partial(notes.progress, leased)
    if secrets is not None:
        say, progress = partial(_say, say, secrets.scrubber), partial(_progress, progress, secrets.scrubber)
    call = Call(
        execution_id=leased.id,
        job_id=leased.job_id,
        job_name=spec.name,
        attempt_no=leased.attempt_no,
        fire_s=leased.fire_s,
        payload=assignment.payload,
        timeout_s=spec.attempt_timeout_s,
        say=say,
        progress=progress,
        checkpoint=checkpoint,
        cancel=cancel,
        transaction=transaction,
        secrets=secrets,
        losses=leased.losses,
        tenant_no=leased.tenant_no,
        pool=spec.pool,
    )
    if assignment.hops is not None:
        call = structs.replace(call, hops=assignment.hops)
    if assignment.trace is not None:
        call = structs.replace(call, traceparent=assignment.trace.traceparent, tracestate=assignment.trace.state)
    elif spec.trace is not None and not spec.recurs:
        call = structs.replace(call, traceparent=spec.trace, tracestate=spec.tracestate)
    return call if assignment.step is None else _as_step(call, assignment.step, results)


def _as_step(call: Call, step: StepAttempt, results: StepResults | None) -> Call:
    """Separate, so that jobs outside of workflows do not pay for it."""
    return structs.replace(
        call,
        job_id=step.job_id,
        run_id=step.run_id,
        step=step.step,
        item_no=step.item_no,
        results=results,
        result_bytes=RESULT_BYTES if step.is_read else None,
    )


def _say(say: Callable[[str, str], None], scrubber: Scrubber, stream: str, line: str) -> None:
    say(stream, scrubber.text(line))


def _progress(
    progress: Callable[[float | None, str | None, str | None], None],
    scrubber: Scrubber,
    fraction: float | None,
    message: str | None,
    checkpoint: str | None,
) -> None:
    message = None if message is None else scrubber.text(message)
    progress(fraction, message, None if checkpoint is None else scrubber.json(checkpoint))


async def _call(spec: JobSpec, targets: Targets, call: Call) -> CallReport:
    timeout_s = spec.attempt_timeout_s
    try:
        target = targets[type(spec.target)]
        # A cancel may arrive in the last moment, and its grace is its own.
        more_s = spec.cancel_grace_s + ENDS_WITHIN_S + target.startup_s(spec.target, call)
        async with asyncio.timeout(None if timeout_s is None else timeout_s + more_s):
            return await target.call(spec.target, call)
    except TimeoutError as error:
        return _internal(error) if timeout_s is None else timed_out(timeout_s)
    except Exception as error:  # noqa: BLE001 - a fault of a target must end the attempt, not the worker
        return _internal(error)


def _fail_without_spec(assignment: Assignment) -> Completion:
    error = AttemptError("spec_gone", "The job's definition is gone.")
    return decide(assignment.leased, GONE, Failed(error, retryable=False), random)


def _expire_if_late(assignment: Assignment) -> Completion | None:
    """An execution expires if its first call would start after its start deadline."""
    leased = assignment.leased
    was_called = leased.failures > 0 or leased.losses > 0
    if leased.start_by_s is None or leased.started_s <= leased.start_by_s or was_called:
        return None
    return expire(leased, datetime.fromtimestamp(leased.start_by_s, UTC))


def _internal(error: Exception) -> Failed:
    return Failed(AttemptError("internal", f"{type(error).__name__}: {error}"))
