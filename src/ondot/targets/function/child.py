"""Functions that are suspected of killing their workers, in processes of their own (E6).

A crash takes innocent neighbours along, so a function that lost two workers runs in a child process with a few others
at most, and one that lost three alone: what dies then is the child, and the worker goes on. A child's death is raised
as `ChildLost` in every call that it held, with how it died. A child that does not answer in time is killed, with all
that it began; so is one with a function that will not end, once its other calls have. Idle children are ended soon.
"""

import asyncio
from typing import Final

from ondot.model.execution import Outcome
from ondot.model.job import FunctionTarget
from ondot.model.outcome import AttemptError, Cancelled, Failed, Succeeded
from ondot.ports.target import Call
from ondot.targets.cancelling import not_called, until_cancel
from ondot.targets.function.child_process import Child, ChildLost, Held
from ondot.targets.function.child_protocol import Ask, Drop
from ondot.targets.reports import timed_out

__all__ = ["ChildCaller", "ChildLost"]

ALONE_FROM_LOSSES: Final = 3
ANSWERS_WITHIN_S: Final = 2.0
"""How much longer than a call's own time its child may take to report, before it is taken for hung."""
PLACE_WITHIN_S: Final = 300.0
"""How long a call without a timeout waits for a place in a child: then it is tried again later."""
STARTS_WITHIN_S: Final = 60.0
"""How long the app may take to be imported."""


class ChildCaller:
    def __init__(
        self,
        app: str,
        *,
        module: str = "ondot.targets.function.child_main",
        at_once: int = 6,
        most_children: int = 4,
        idle_s: float = 10.0,
        ends_within_s: float = 1.0,
        answers_within_s: float = ANSWERS_WITHIN_S,
        starts_within_s: float = STARTS_WITHIN_S,
    ) -> None:
        """`app` is MODULE:APP. At most so many calls in a child that is shared, and so many children.

        `module` is what a child runs: `child_main`, or one that calls its `main` with transactions.
        """
        self._app = app
        self._module = module
        self._at_once = at_once
        self._most_children = most_children
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

    async def call(self, spec: FunctionTarget, call: Call, *, is_alone: bool = False) -> Succeeded | Failed | Cancelled:
        """Raises ChildLost if the child dies. `is_alone`: with no other call in the same child at the same time."""
        if call.cancel.requested:
            return not_called()
        placing = asyncio.ensure_future(self._place(call, is_alone=is_alone))
        try:
            asked = await until_cancel(placing, call.cancel, None)
        except asyncio.CancelledError:
            await self._unplace(placing)
            raise
        if asked:
            await self._unplace(placing)
            return not_called()
        child = placing.result()
        if child is None:
            return self._no_place()
        number, held = child.begin(spec, call)
        try:
            return await self._watch(child, number, held)
        except asyncio.CancelledError:
            child.send(Drop(number))
            await asyncio.wait({held.report}, timeout=self._answers_within_s)
            if not held.report.done():
                child.kill("another function in it did not end")
            raise
        finally:
            held.end(None)
            child.forget(number)
            self._leave(child)

    async def close(self) -> None:
        for child in list(self._children):
            self._end(child)
        if self._endings:
            await asyncio.wait(self._endings)

    async def _watch(self, child: Child, number: int, held: Held) -> Succeeded | Failed | Cancelled:
        cancel, timeout_s = held.call.cancel, held.call.timeout_s
        within_s = None if timeout_s is None else timeout_s + self._answers_within_s
        asked = await until_cancel(held.report, cancel, within_s)
        if asked and not held.report.done():
            child.send(Ask(number))
            await asyncio.wait({held.report}, timeout=cancel.grace_s + self._answers_within_s)
        if not held.report.done():
            # Its loop is held up: by this function or by a neighbour, nobody can tell.
            child.kill("another function in it did not answer")
            if asked or timeout_s is None:
                return Cancelled("It did not answer when it was cancelled, and its process was ended.", forced=True)
            return timed_out(timeout_s, "It did not answer either, and its process was ended.")
        report = held.report.result()
        assert report is not None
        if isinstance(report, ChildLost):
            raise report
        return _as_told_here(report, child, held.call)

    # Who runs where ---------------------------------------------------------------------------------------------------

    async def _place(self, call: Call, *, is_alone: bool) -> Child | None:
        """A child that is ready, with a place taken in it; None if none was free in time.

        The time to import the app is not the call's: a suspect that never got to its first line would be no wiser.
        """
        is_shared = call.losses < ALONE_FROM_LOSSES
        try:
            async with asyncio.timeout(PLACE_WITHIN_S if call.timeout_s is None else call.timeout_s):
                while (child := self._found(is_shared=is_shared, is_alone=is_alone)) is None:
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            return None
        child.places += 1
        child.is_taken = is_alone
        if child.idle is not None:
            child.idle.cancel()
        try:
            await child.ready()
        except BaseException:
            self._leave(child)
            raise
        return child

    def _found(self, *, is_shared: bool, is_alone: bool) -> Child | None:
        if is_shared:
            at_once = 1 if is_alone else self._at_once
            for child in self._children:
                if child.is_shared and not (child.is_retired or child.is_taken) and child.places < at_once:
                    return child
        if len(self._children) >= self._most_children:
            # One that idles makes room for one that is needed.
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
            f"It had not begun: all {self._most_children} child processes were busy. It runs in one since it lost "
            "workers before."
        )
        return Failed(AttemptError("no_child", message))

    async def _unplace(self, placing: asyncio.Future[Child | None]) -> None:
        placing.cancel()
        await asyncio.wait({placing})
        if not placing.cancelled() and placing.exception() is None and (child := placing.result()) is not None:
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
        task = asyncio.create_task(self._ended(child), name="ondot child's end")
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _ended(self, child: Child) -> None:
        if child.left_behind:
            # A plain function has just learned from ctx.cancelled that it should end: the same moment as in a worker.
            await asyncio.sleep(self._ends_within_s)
        await child.end()
        self._children.discard(child)
        self._freed.set()


def _as_told_here(report: Succeeded | Failed | Cancelled, child: Child, call: Call) -> Succeeded | Failed | Cancelled:
    """The child does not know that what it left behind is ended with it."""
    remark = "What is left of it is ended with its process." if child.left_behind else ""
    match report:
        case Failed(outcome=Outcome.TIMED_OUT) if call.timeout_s is not None:
            return timed_out(call.timeout_s, remark)
        case Cancelled(forced=True):
            message = f"It did not end within its grace of {call.cancel.grace_s:g} s after it was cancelled. {remark}"
            return Cancelled(message.rstrip(), forced=True)
        case _:
            return report
