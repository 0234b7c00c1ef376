"""Which transports carry the hints of a pool (C4): its own or the installation's, and for 30 s after a change both.

Processes learn of a change within seconds, each at its own time. While senders and listeners use both, no hint is lost
between one that knows and one that does not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from ondot.model.ids import PoolNo

TransportName = Literal["postgres", "local", "redis", "kafka", "rabbitmq", "nats"]
WITHOUT_BEATS: Final = frozenset({"postgres", "local", "polling"})
"""Workers of pools with these poll each second (`model.beats`)."""
BOTH_FOR: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Route:
    """The transport of a pool, the one before, and when it changed. None: the installation's."""

    transport: str | None
    was: str | None
    changed_at: datetime


Routes = Mapping[PoolNo, Route]
"""Of pools whose transport was ever set; all others use the installation's."""


def names_of(route: Route | None, default: str, now: datetime) -> tuple[str, ...]:
    """The transports of a pool, the current one first. `default`: the installation's."""
    if route is None:
        return (default,)
    current, before = route.transport or default, route.was or default
    if before == current or now >= route.changed_at + BOTH_FOR:
        return (current,)
    return (current, before)


def pools_by_transport(
    pool_nos: Iterable[PoolNo], routes: Routes, default: str, now: datetime
) -> dict[str, tuple[PoolNo, ...]]:
    """The pools that each transport serves now."""
    served: dict[str, list[PoolNo]] = {}
    for pool_no in pool_nos:
        for name in names_of(routes.get(pool_no), default, now):
            served.setdefault(name, []).append(pool_no)
    return {name: tuple(of_name) for name, of_name in served.items()}
