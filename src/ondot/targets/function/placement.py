"""Where a function runs (E6, P13): in the worker, or in a child process once it has lost workers or blocked a loop.

Functions are suspects by degrees. After one lost worker, which may have been anybody's fault, they run as before; after
two in a child with a few others, after three alone. A function that blocked a worker's loop runs in a child at once,
alone, whichever execution it is for: there it holds up nobody, and can be ended by force.
"""

from typing import Final

from ondot.model.job import FunctionTarget
from ondot.model.outcome import Cancelled, Failed, Succeeded
from ondot.ports.target import Call, End, Interrupt
from ondot.targets.function.child import ChildCaller
from ondot.targets.function.target import FunctionCaller

APART_FROM_LOSSES: Final = 2


class Functions:
    def __init__(self, here: FunctionCaller, apart: ChildCaller | None = None) -> None:
        """`apart`: None if there is no app that a child could import; all functions run here then."""
        self._here = here
        self._apart = apart
        self._blocking: frozenset[str] = frozenset()
        """The functions that have blocked a loop lately, of this worker or of another."""

    @property
    def stuck(self) -> int:
        """How many functions hold up this process and will not end. A worker with any should go on as a new one."""
        return self._here.stuck

    async def call(self, spec: FunctionTarget, call: Call) -> Succeeded | Failed | Cancelled:
        """Raises ChildLost if it ran in a child, and that died."""
        is_blocking = spec.name in self._blocking
        if self._apart is None or not (is_blocking or call.losses >= APART_FROM_LOSSES):
            return await self._here.call(spec, call)
        # Others in the same child would be held up with it, and lost when it is ended by force.
        return await self._apart.call(spec, call, is_alone=is_blocking)

    def is_apart(self, name: str) -> bool:
        """Whether this function is not to be begun in this process."""
        return self._apart is not None and name in self._blocking

    def hear_of(self, blocking: frozenset[str]) -> None:
        """From any thread."""
        self._blocking = blocking

    def running(self) -> tuple[str, Call] | None:
        """As `FunctionCaller.running`."""
        return self._here.running()

    def begin(self, spec: FunctionTarget, call: Call, end: End) -> Interrupt | None:
        """As `FunctionCaller.begin`: of one that runs in this process."""
        return self._here.begin(spec, call, end)

    async def close(self) -> None:
        if self._apart is not None:
            await self._apart.close()
        await self._here.close()
