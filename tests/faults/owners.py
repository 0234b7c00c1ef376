"""The owners of partitions, read from outside the fleet many times a second: how long takeovers took (C2, L2)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

import asyncpg

from tests.faults.fleet import Member

LOOK_EVERY_S = 0.1
ASK_AT_MOST_S = 1.0
SEEN_WITHIN_S = 1.0
"""Two looks further apart than this (the database was away) do not show what happened between them."""
GONE = ("scheduler.kill", "scheduler.freeze_long", "scheduler.hung", "scheduler.restart")
BEFORE_S = 1.0

_OWNERS = "SELECT owner::text, count(*) AS owned FROM ondot.partition GROUP BY owner"


@dataclass(frozen=True, slots=True)
class Look:
    """How many partitions each node owned; None: no node."""

    at_s: float
    owned: Mapping[str | None, int]


@dataclass(slots=True)
class Owners:
    connect: Callable[[], Awaitable[asyncpg.Connection]]
    looks: list[Look] = field(default_factory=list)

    async def watch(self) -> None:
        """Look until cancelled, except while the database is away."""
        connection: asyncpg.Connection | None = None
        try:
            while True:
                try:
                    async with asyncio.timeout(ASK_AT_MOST_S):
                        if connection is None or connection.is_closed():
                            connection = await self.connect()
                        rows = await connection.fetch(_OWNERS)
                    self.looks.append(Look(time.time(), {row["owner"]: row["owned"] for row in rows}))
                except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    if connection is not None:
                        connection.terminate()
                    connection = None
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            if connection is not None:
                connection.terminate()

    def takeovers_s(self, faults: Iterable[Mapping[str, Any]], schedulers: Sequence[Member]) -> dict[str, list[float]]:
        """By kind of fault, how long it took until all partitions of the node had other owners.

        Only where PostgreSQL and the other schedulers had no fault meanwhile, which could have delayed it.
        """
        took: dict[str, list[float]] = {}
        members = {member.name: member for member in schedulers}
        everything = list(faults)
        for fault in everything:
            if fault["kind"] not in GONE:
                continue
            seconds = self._takeover_s(_node_at(members[fault["target"]], fault["began_s"]), fault["began_s"])
            if seconds is not None and not any(_interferes(other, fault, seconds) for other in everything):
                took.setdefault(fault["kind"], []).append(seconds)
        return {kind: sorted(seconds) for kind, seconds in took.items()}

    def _takeover_s(self, node_id: str | None, gone_s: float) -> float | None:
        """None: it owned nothing, or no look shows it."""
        for before, after in pairwise(self.looks):
            if after.at_s < gone_s:
                continue
            if after.at_s - before.at_s > SEEN_WITHIN_S or (before.at_s < gone_s and not before.owned.get(node_id)):
                return None
            if not after.owned.get(node_id) and not after.owned.get(None):
                return after.at_s - gone_s
        return None


def _interferes(other: Mapping[str, Any], fault: Mapping[str, Any], seconds: float) -> bool:
    befalls = other["kind"].startswith(("postgres.", "etcd.")) or "scheduler" in other["target"]
    overlaps = other["began_s"] < fault["began_s"] + seconds and other["ended_s"] > fault["began_s"] - BEFORE_S
    return other is not fault and befalls and overlaps


def _node_at(member: Member, at_s: float) -> str | None:
    """The node id of this member at an instant, by its log."""
    started = [
        (datetime.fromisoformat(event["timestamp"]).timestamp(), event["node_id"])
        for event in member.events("scheduler.started")
    ]
    return max((entry for entry in started if entry[0] <= at_s), default=(0.0, None))[1]
