"""What one incarnation of a worker runs (E1, E7): attempts that are tasks, and functions that are only watched.

Each has a slot from its start until its outcome is with the completer. Read by the beat's thread too, which needs no
more than how many there are.
"""

import asyncio
from collections.abc import Callable

from ondot.model.ids import ExecutionId
from ondot.ports.target import Interrupt

Attempt = tuple[ExecutionId, int]
"""An execution, and the number of its attempt."""


class Running:
    def __init__(self, on_free: Callable[[], None]) -> None:
        """`on_free`: called when a slot has come free."""
        self._on_free = on_free
        self._interrupts: dict[Attempt, Interrupt | None] = {}
        self._suspects: set[Attempt] = set()
        self._none = asyncio.Event()
        self._none.set()

    def __len__(self) -> int:
        return len(self._interrupts)

    @property
    def suspects(self) -> int:
        return len(self._suspects)

    def add(self, attempt: Attempt, *, is_suspect: bool = False) -> None:
        """It takes a slot, before anything of it is begun."""
        self._interrupts[attempt] = None
        self._none.clear()
        if is_suspect:
            self._suspects.add(attempt)

    def by(self, attempt: Attempt, interrupt: Interrupt | None) -> None:
        """It has begun, and can be interrupted so; it may have ended in the same moment."""
        if attempt in self._interrupts:
            self._interrupts[attempt] = interrupt

    def remove(self, attempt: Attempt) -> None:
        self._interrupts.pop(attempt, None)
        self._suspects.discard(attempt)
        if not self._interrupts:
            self._none.set()
        self._on_free()

    def interrupt(self) -> None:
        """All of them: the worker stops, or others run what it had."""
        for interrupt in list(self._interrupts.values()):
            if interrupt is not None:
                interrupt()

    async def ended(self) -> None:
        """Until none is left."""
        await self._none.wait()
