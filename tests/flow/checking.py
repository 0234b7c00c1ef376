"""A self-check in a world whose clock is set by hand, and ways to break invariants."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from structlog.testing import capture_logs

from ondot.flow.check import OVERDUE_S, PLACES, SelfCheck
from ondot.flow.pools import PoolLimits, set_limits
from ondot.model.check import Kind, Suspect
from ondot.model.ids import DEFAULT_TENANT, NodeId
from ondot.store.audit import By
from ondot.store.check import Found, list_found, look_at, look_at_partitions, look_at_timers, walk_start
from ondot.store.nodes import beat_node, take_partitions
from tests.world import World

FOR_A_WHILE_S = 130.0
"""After this long a suspect is checked once more."""


@dataclass
class Checker:
    """A self-check whose own clock follows the world's."""

    world: World
    rows_a_look: int | None = None
    logged: list[MutableMapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.check = SelfCheck(self.world.database, self.world.dispatcher, self._monotonic, self.rows_a_look)

    def _monotonic(self) -> float:
        return self.world.now.timestamp()

    async def round(self) -> None:
        """One look at everything, after suspects that are old enough were repaired."""
        with capture_logs() as logs:
            for _ in PLACES:
                while await self.check.one_pass():
                    pass
        self.logged += [entry for entry in logs if entry["event"] == "self_check.found"]

    async def look_twice(self, apart_s: float = FOR_A_WHILE_S) -> list[Found]:
        """Two rounds of a housekeeper; returns what is recorded then."""
        await self.world.advance(0.001)  # what has an id of this very millisecond is the next walk's
        await self.round()
        await self.world.advance(apart_s)
        await self.round()
        return await self.found()

    async def suspects(self) -> list[Suspect]:
        """All suspects of one look, before they are checked again."""
        async with self.world.database.connection() as connection:
            seen = await look_at_timers(connection, OVERDUE_S, 50) + await look_at_partitions(connection)
            for place in PLACES[: PLACES.index("timers")]:
                looked = await look_at(connection, place, walk_start(place, self.world.now), 1000)
                assert looked.through is None
                seen += looked.suspects
        return seen

    async def found(self) -> list[Found]:
        async with self.world.database.connection() as connection:
            return await list_found(connection)

    async def counts(self) -> dict[str, int]:
        return {entry.kind: entry.count for entry in await self.found()}


async def limit_pool(world: World, concurrency: int) -> None:
    limits = PoolLimits(concurrency, None)
    await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", limits, by=By("ops"))


async def own_partitions(world: World, *, lease_s: float = 1e6) -> NodeId:
    node_id = NodeId(world.database.clock.new_id())
    async with world.database.connection() as connection:
        await beat_node(connection, node_id, host="here", pid=1, release="0", lease_s=lease_s)
        await take_partitions(connection, node_id, 64)
    return node_id


async def unmake(world: World, execution_id: UUID) -> None:
    """Remove an execution without a record, which the guard of test databases would reject."""
    async with world.second_connection() as connection:
        await connection.execute("SET session_replication_role = replica")
        await connection.execute("DELETE FROM ondot.execution WHERE id = $1", execution_id)


def assert_logged(checker: Checker, kind: Kind, name: object, *, count: int = 1) -> None:
    """Counted and logged: which, how many, and what was done."""
    [entry] = [entry for entry in checker.logged if entry["kind"] == kind]
    assert (entry["log_level"], entry["count"]) == ("error", count)
    assert str(name) in entry["ids"]
    assert entry["then"]
    assert entry["advice"]
