"""What carries wake-ups to a pool (C4): `ONDOT_TRANSPORT` chooses. A wake-up is a hint, never the truth: one that is
lost costs a poll, one that arrives twice nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ondot.model.ids import PoolNo


@dataclass(frozen=True, slots=True)
class Wake:
    """Work of a pool may start at `ready_at`, now or soon."""

    pool_no: PoolNo
    ready_at: datetime


class Transport(Protocol):
    async def publish(self, wakes: Sequence[Wake]) -> None:
        """Send; raises if it cannot, and the caller continues without."""

    async def listen(self, on_wake: Callable[[Wake], None]) -> None:
        """Call `on_wake` for every wake-up until cancelled; reconnects by itself."""

    async def close(self) -> None:
        """Release its connections. Nobody publishes or listens any more."""
