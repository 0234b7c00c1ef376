"""The attempts that one incarnation of a worker runs (E1, E7): tasks, and functions that run without one.

Each occupies a slot from its start until its outcome is with the completer. The heartbeat's thread reads how many
there are.
"""

import asyncio
from collections.abc import Callable

from ondot.model.ids import ExecutionId
from ondot.ports.target import Interrupt

Attempt = tuple[ExecutionId, int]
"""An execution, and the number of its attempt."""


class InFlight:
    def __init__(self, on_free: Callable[[], None]) -> None:
        """`on_free`: called when a slot becomes free."""
        self._on_free = on_free
        self._interrupts: dict[Attempt, Interrupt | None] = {}
        self._suspects: set[Attempt] = set()
        self._none = asyncio.Event()
        self._none.set()
        self.on_end: Callable[[Attempt], None] | None = None
        """Called with each attempt that ends; None: nothing asks."""

    def __len__(self) -> int:
        return len(self._interrupts)

    @property
    def attempts(self) -> list[Attempt]:
        return list(self._interrupts)

    @property
    def suspects(self) -> int:
        return len(self._suspects)

    def add(self, attempt: Attempt, *, is_suspect: bool = False) -> None:
        """Occupy a slot, before the attempt starts."""
        self._interrupts[attempt] = None
        self._none.clear()
        if is_suspect:
            self._suspects.add(attempt)

    def set_interrupt(self, attempt: Attempt, interrupt: Interrupt) -> None:
        """It has started, and this interrupts it. It may already have ended."""
        if attempt in self._interrupts:
            self._interrupts[attempt] = interrupt

    def remove(self, attempt: Attempt) -> None:
        self._interrupts.pop(attempt, None)
        self._suspects.discard(attempt)
        if self.on_end is not None:
            self.on_end(attempt)
        if not self._interrupts:
            self._none.set()
        self._on_free()

    def interrupt_all(self) -> None:
        """The worker stops, or was declared lost and others run its work."""
        for interrupt in list(self._interrupts.values()):
            if interrupt is not None:
                interrupt()

    async def wait_until_none(self) -> None:
        await self._none.wait()
