"""What carries wake-ups to a pool (C4): `ONDOT_TRANSPORT` chooses, or the pool's own `transport`. A wake-up is a hint,
never the truth: one that is lost costs a poll, one that arrives twice nothing.

Hints are broadcast: every process that listens for a pool receives them. A transport between processes also carries
beats, by which a worker knows that hints arrive (`model.beats`). `transports.wire` is how both look on the wire.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ondot.model.beats import Beat
from ondot.model.ids import PoolNo


@dataclass(frozen=True, slots=True)
class Wake:
    """Work of a pool may start at `ready_at`, now or soon."""

    pool_no: PoolNo
    ready_at: datetime


OnWake = Callable[[Wake], None]
OnBeat = Callable[[Beat, PoolNo], None]


class Hints(Protocol):
    """Where hints go: a transport, or those of all pools (`flow.pool_transports`)."""

    async def publish(self, wakes: Sequence[Wake]) -> None:
        """Send; raises if it cannot, and the caller continues without."""


class Transport(Hints, Protocol):
    name: str
    """As `ONDOT_TRANSPORT` spells it."""

    async def beat(self, beat: Beat, pool_nos: Sequence[PoolNo]) -> None:
        """Send a beat to each of these pools, behind all hints that were published before; raises if it cannot."""

    async def listen(self, pool_nos: Sequence[PoolNo], on_wake: OnWake, on_beat: OnBeat) -> None:
        """Call `on_wake` and `on_beat` for all that is sent to these pools, until cancelled; reconnects by itself."""

    async def close(self) -> None:
        """Release its connections. Nobody publishes or listens any more."""
