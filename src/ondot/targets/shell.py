"""Programs (E3, E7, E8, T4): argv without a shell, the payload on standard input, the facts in `ONDOT_*` variables.

Off unless the operator of the worker allows it, and then for the first tenant alone, unless the operator names tenants
and pools. A program starts in a session of its own, so that a timeout or a cancel
ends all its processes: TERM to the whole group, KILL after a while (after the grace of a cancel), and the same to
processes that have left the group (see `descendants`). The worker's death ends it too (see `guard`). `confine` limits
what it gets from its worker. Exit code 0 succeeds.
"""

import asyncio
import errno
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC
from pathlib import Path
from typing import Final

import msgspec

from ondot.model.ids import TenantNo
from ondot.model.outcome import AttemptError, Cancelled, Failed, Succeeded, timed_out
from ondot.model.target import ShellTarget
from ondot.ports.target import Call, Target
from ondot.targets.cancelling import not_called
from ondot.targets.output import Output
from ondot.targets.processes.confine import UNCONFINED, Confinement, Limits
from ondot.targets.processes.guard import Guard
from ondot.targets.processes.process import Process, new_mark
from ondot.targets.processes.scratch import remove_if_empty, remove_scratch
from ondot.targets.text import one_line, storable_bytes
from ondot.telemetry.log import get_logger

DETAIL_LINES: Final = 20

log = get_logger()

_NOT_ALLOWED: Final = Failed(
    AttemptError(
        "shell_not_allowed",
        "This worker runs no shell targets; start it with --allow-shell or ONDOT_ALLOW_SHELL=1.",
    ),
    retryable=False,
)
_WILL_NEVER_START: Final = frozenset({errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.EPERM})


WhyNot = Callable[[TenantNo, str], Awaitable[str | None]]
"""Why a worker that allows shell commands runs none of this tenant in this pool, as a sentence; None: it does."""


class ShellCaller(Target[ShellTarget]):
    def __init__(
        self,
        *,
        allow: bool = False,
        why_not: WhyNot | None = None,
        confinement: Confinement = UNCONFINED,
        kill_after_s: float = 5.0,
        drain_s: float = 1.0,
    ) -> None:
        self._allow = allow
        self._why_not = why_not
        self._confinement = confinement
        self._kill_after_s = kill_after_s
        self._drain_s = drain_s
        self._guard = Guard()

    async def call(self, spec: ShellTarget, call: Call) -> Succeeded | Failed | Cancelled:
        if not self._allow:
            return _NOT_ALLOWED
        if self._why_not is not None and (why := await self._why_not(call.tenant_no, call.pool)) is not None:
            return Failed(AttemptError("shell_not_allowed", why), retryable=False)
        if call.cancel.requested:
            return not_called()
        mark = new_mark()
        try:
            scratch = self._confinement.make_scratch(mark)
        except OSError as error:
            return Failed(AttemptError("not_started", f"No directory could be created for the program: {error}."))
        output = Output(call.say)
        try:
            return await self._run(spec, call, output, mark, scratch)
        finally:
            output.close()
            if not remove_if_empty(scratch) and not await asyncio.to_thread(remove_scratch, scratch):
                log.warning("shell.scratch_left", path=str(scratch), execution_id=str(call.execution_id))

    async def _run(
        self, spec: ShellTarget, call: Call, output: Output, mark: str, scratch: Path
    ) -> Succeeded | Failed | Cancelled:
        try:
            async with asyncio.timeout(call.timeout_s) as deadline:
                process = await Process.start(
                    spec.command,
                    self._confinement.environment(os.environ) | {"TMPDIR": str(scratch)} | facts(call),
                    call.payload,
                    output,
                    kill_after_s=self._kill_after_s,
                    guard=self._guard,
                    mark=mark,
                    cwd=scratch,
                    confinement=self._confinement,
                    max_kept=call.result_bytes or 0,
                )
        except TimeoutError:
            if not deadline.expired() or call.timeout_s is None:
                raise
            # It may have started and written output: the pipes are attached one by one.
            return timed_out(call.timeout_s, "It was still being started, and all its processes were ended.")
        except (OSError, ValueError) as error:
            return _not_started(spec.command, error)
        over_at = deadline.when()
        left_s = None if over_at is None else max(over_at - asyncio.get_running_loop().time(), 0.0)
        try:
            return await self._wait_for_end(process, call, left_s)
        except asyncio.CancelledError:
            await process.end(self._kill_after_s)
            raise
        finally:
            process.close()

    async def _wait_for_end(self, process: Process, call: Call, left_s: float | None) -> Succeeded | Failed | Cancelled:
        exit_code = await process.wait(left_s, call.cancel)
        if exit_code is not None:
            await process.drain(self._drain_s)
            return _report(exit_code, process, self._confinement.limits, call.result_bytes)
        if not call.cancel.requested and call.timeout_s is not None:
            await process.end(self._kill_after_s)
            return timed_out(call.timeout_s, "The program and all its processes were ended.")
        forced = await process.end(call.cancel.grace_s)
        return _report_cancel(await process.wait(0), process, call.cancel.grace_s, forced=forced)


def facts(call: Call) -> dict[str, str]:
    known = {
        "ONDOT_EXECUTION_ID": str(call.execution_id),
        "ONDOT_JOB_ID": str(call.job_id),
        "ONDOT_JOB_NAME": call.job_name.replace("\0", ""),
        "ONDOT_FIRE_AT": call.fire_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "ONDOT_ATTEMPT": str(call.attempt_no),
        "ONDOT_FENCING_TOKEN": str(call.fencing_token),
    }
    if call.run_id is not None:
        known |= {"ONDOT_RUN_ID": str(call.run_id), "ONDOT_STEP": call.step or ""}
        if call.item_no is not None:
            known["ONDOT_ITEM"] = str(call.item_no)
    if call.hops is not None:
        known["ONDOT_HOPS"] = str(call.hops)
    if call.traceparent is not None:
        known["TRACEPARENT"] = call.traceparent
    if call.tracestate is not None:
        known["TRACESTATE"] = call.tracestate
    return known


def _report(exit_code: int, process: Process, limits: Limits, max_bytes: int | None = None) -> Succeeded | Failed:
    if exit_code == 0:
        return Succeeded(_result(exit_code, process) if max_bytes is None else _whole_result(process, max_bytes))
    lines = storable_bytes(process.tail("stderr")).splitlines()[-DETAIL_LINES:]
    detail = "\n".join(lines) or None
    reached = limits.find_reached(exit_code, detail or "")
    remark = f" It reached its limit: {reached.sentence}." if reached else ""
    limit = {"limit": reached.name} if reached else {}
    if exit_code > 0:
        message = f"The program ended with exit code {exit_code}.{remark}"
        return Failed(AttemptError("exit_code", message, detail=detail, facts={"exit_code": exit_code, **limit}))
    name = _signal_name(-exit_code)
    message = f"The program was ended by {name}.{remark}"
    return Failed(AttemptError("signal", message, detail=detail, facts={"signal": name, **limit}))


def _report_cancel(exit_code: int | None, process: Process, grace_s: float, *, forced: bool) -> Cancelled:
    if exit_code is None:
        return Cancelled("It was ended by SIGKILL after its grace, and is not gone yet.", forced=True)
    if forced:
        message = f"It did not end within its grace of {grace_s:g} s after SIGTERM, and was ended by SIGKILL."
    elif exit_code >= 0:
        message = f"It ended with exit code {exit_code} after SIGTERM."
    else:
        message = f"It was ended by {_signal_name(-exit_code)}."
    return Cancelled(message, forced=forced, result=_result(exit_code, process))


def _result(exit_code: int, process: Process) -> str:
    result = {"exit_code": exit_code, "stdout": storable_bytes(process.tail("stdout"))}
    return msgspec.json.encode(result).decode()


def _whole_result(process: Process, max_bytes: int) -> str:
    """For a step whose result another may read: the whole output, and its value if it is JSON."""
    result: dict[str, object] = {"exit_code": 0, "stdout": storable_bytes(process.stdout)}
    if process.stdout_bytes > max_bytes:
        result["cut"] = f"only the first {max_bytes:,} of {process.stdout_bytes:,} bytes of its output are kept"
    else:
        with suppress(msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            msgspec.json.decode(process.stdout)
            result["json"] = msgspec.Raw(process.stdout)
    return msgspec.json.encode(result).decode()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _not_started(command: tuple[str, ...], error: Exception) -> Failed:
    program = one_line(command[0])[:200] if command else ""
    if isinstance(error, OSError) and error.errno not in _WILL_NEVER_START | {errno.E2BIG}:
        return Failed(AttemptError("not_started", one_line(f"{program} could not be started: {error.strerror}")))
    if isinstance(error, OSError) and error.errno in _WILL_NEVER_START:
        message = f"{program}: {error.strerror}; is it installed on this worker, executable, and in its PATH?"
        return Failed(AttemptError("not_found", one_line(message)), retryable=False)
    return Failed(AttemptError("bad_command", one_line(f"{program} cannot be started: {error}")), retryable=False)
