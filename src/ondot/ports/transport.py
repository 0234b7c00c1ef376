"""What carries wake-ups to a pool (C4). A hint, never the truth: a lost one costs a poll, a doubled one nothing."""

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
        """Send; raises when it cannot, and the caller goes on without."""

    async def listen(self, on_wake: Callable[[Wake], None]) -> None:
        """Call `on_wake` for every wake-up, until cancelled; comes back by itself when the transport does."""
