"""Functions that are suspected of killing their workers, called in child processes (E6).

A crash takes innocent neighbours along. So a function that lost two workers runs in a child process with at most a few
others, and one that lost three runs alone: then the child dies, and the worker lives. When a child dies, every call in
it is reported as `Interrupted`, with how it died. A child that does not answer in time is killed, with all processes
that it started; so is a child with a function that does not end, once its other calls have ended. Idle children are
ended soon.
"""

import asyncio
from typing import Final

from ondot.model.execution import Outcome
from ondot.model.outcome import AttemptError, Cancelled, Failed, Interrupted, timed_out
from ondot.model.target import FunctionTarget
from ondot.ports.target import Call, CallReport, Target
from ondot.targets.cancelling import not_called, until_cancel
from ondot.targets.function.child_process import Child, ChildCall
from ondot.targets.function.child_protocol import Ask, Drop

ALONE_FROM_LOSSES: Final = 3
ANSWERS_WITHIN_S: Final = 2.0
"""How much longer than a call's own timeout its child may take to report, before it counts as hung."""
PLACE_WITHIN_S: Final = 300.0
"""How long a call without a timeout waits for a place in a child; then it is retried later."""
STARTS_WITHIN_S: Final = 60.0
"""How long importing the app may take."""


class ChildCaller(Target[FunctionTarget]):
    def __init__(
        self,
        app: str,
        *,
        module: str = "ondot.targets.function.child_main",
        max_calls: int = 6,
        max_children: int = 4,
        idle_s: float = 10.0,
        ends_within_s: float = 1.0,
        answers_within_s: float = ANSWERS_WITHIN_S,
        starts_within_s: float = STARTS_WITHIN_S,
    ) -> None:
        """`app` is MODULE:APP. `max_calls`: in one shared child.

        `module` is what a child runs: `child_main`, or a module that calls its `main` with transactions.
        """
        self._app = app
        self._module = module
        self._max_calls = max_calls
        self._max_children = max_children
        self._idle_s = idle_s
        self._ends_within_s = ends_within_s
        self._starts_within_s = starts_within_s
        self._answers_within_s = ends_within_s + answers_within_s
        self._children: set[Child] = set()
        self._endings: set[asyncio.Task[None]] = set()
        self._freed = asyncio.Event()

    @property
    def children(self) -> int:
        return len(self._children)

    async def call(self, spec: FunctionTarget, call: Call, *, is_alone: bool = False) -> CallReport:
        """`is_alone`: with no other call in the same child at the same time."""
        if call.cancel.requested:
            return not_called()
        placing = asyncio.ensure_future(self._place(call, is_alone=is_alone))
        try:
            is_cancelled = await until_cancel(placing, call.cancel, None)
        except asyncio.CancelledError:
            await self._unplace(placing)
            raise
        if is_cancelled:
            await self._unplace(placing)
            return not_called()
        child = placing.result()
        if not isinstance(child, Child):
            return child
        number, child_call = child.begin(spec, call)
        try:
            return await self._watch(child, number, child_call)
        except asyncio.CancelledError:
            child.send(Drop(number))
            await asyncio.wait({child_call.report}, timeout=self._answers_within_s)
            if not child_call.report.done():
                child.kill("another function in it did not end")
            raise
        finally:
            child_call.end(None)
            child.forget(number)
            self._leave(child)

    async def close(self) -> None:
        for child in list(self._children):
            self._end(child)
        if self._endings:
            await asyncio.wait(self._endings)

    async def _watch(self, child: Child, number: int, child_call: ChildCall) -> CallReport:
        cancel, timeout_s = child_call.call.cancel, child_call.call.timeout_s
        within_s = None if timeout_s is None else timeout_s + self._answers_within_s
        is_cancelled = await until_cancel(child_call.report, cancel, within_s)
        if is_cancelled and not child_call.report.done():
            child.send(Ask(number))
            await asyncio.wait({child_call.report}, timeout=cancel.grace_s + self._answers_within_s)
        if not child_call.report.done():
            # Its loop is blocked, by this function or by a neighbour: it cannot be known which.
            child.kill("another function in it did not answer")
            if is_cancelled or timeout_s is None:
                return Cancelled("It did not answer when it was cancelled, and its process was ended.", forced=True)
            return timed_out(timeout_s, "It did not answer either, and its process was ended.")
        report = child_call.report.result()
        assert report is not None
        return _with_end_of_child(report, child, child_call.call)

    # Placing ----------------------------------------------------------------------------------------------------------

    async def _place(self, call: Call, *, is_alone: bool) -> Child | Failed | Interrupted:
        """A child that is ready, with a place taken in it; or why there is none.

        Importing the app does not count towards the call's timeout: it would say nothing about the function.
        """
        is_shared = call.losses < ALONE_FROM_LOSSES
        try:
            async with asyncio.timeout(PLACE_WITHIN_S if call.timeout_s is None else call.timeout_s):
                while (child := self._find_or_start(is_shared=is_shared, is_alone=is_alone)) is None:
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            return self._no_place()
        child.places += 1
        child.is_taken = is_alone
        if child.idle is not None:
            child.idle.cancel()
        try:
            loss = await child.wait_until_ready()
        except BaseException:
            self._leave(child)
            raise
        if loss is None:
            return child
        self._leave(child)
        return loss

    def _find_or_start(self, *, is_shared: bool, is_alone: bool) -> Child | None:
        if is_shared:
            max_calls = 1 if is_alone else self._max_calls
            for child in self._children:
                if child.is_shared and not (child.is_retired or child.is_taken) and child.places < max_calls:
                    return child
        if len(self._children) >= self._max_children:
            # An idle child makes room for one that is needed.
            if (idle := next((child for child in self._children if not child.places), None)) is not None:
                self._end(idle)
            return None
        child = Child(
            self._app,
            module=self._module,
            is_shared=is_shared,
            ends_within_s=self._ends_within_s,
            starts_within_s=self._starts_within_s,
        )
        self._children.add(child)
        return child

    def _no_place(self) -> Failed:
        message = (
            f"It did not start: all {self._max_children} child processes were busy. It runs in one because it lost "
            "workers before."
        )
        return Failed(AttemptError("no_child", message))

    async def _unplace(self, placing: asyncio.Future[Child | Failed | Interrupted]) -> None:
        placing.cancel()
        await asyncio.wait({placing})
        if not placing.cancelled() and placing.exception() is None and isinstance(child := placing.result(), Child):
            self._leave(child)

    def _leave(self, child: Child) -> None:
        child.places -= 1
        self._freed.set()
        if child.places:
            return
        child.is_taken = False
        if child.is_retired or not child.is_shared:
            self._end(child)
        else:
            child.idle = asyncio.get_running_loop().call_later(self._idle_s, self._end, child)

    def _end(self, child: Child) -> None:
        if child not in self._children or child.is_ending:
            return
        child.is_ending = child.is_retired = True
        task = asyncio.create_task(self._wait_for_end(child), name="ondot child's end")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _wait_for_end(self, child: Child) -> None:
        if child.left_behind:
            # A plain function has just learned from ctx.cancelled that it should end: it gets as long as in a worker.
            await asyncio.sleep(self._ends_within_s)
        await child.end()
        self._children.discard(child)
        self._freed.set()


def _with_end_of_child(report: CallReport, child: Child, call: Call) -> CallReport:
    """The child does not know that the functions it left behind end with it."""
    remark = "Whatever is left of it ends with its process." if child.left_behind else ""
    match report:
        case Failed(outcome=Outcome.TIMED_OUT) if call.timeout_s is not None:
            return timed_out(call.timeout_s, remark)
        case Cancelled(forced=True):
            message = f"It did not end within its grace of {call.cancel.grace_s:g} s after it was cancelled. {remark}"
            return Cancelled(message.rstrip(), forced=True)
        case _:
            return report
