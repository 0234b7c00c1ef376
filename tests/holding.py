"""A database on which everything is held, as `store.lineage` leaves it when it finds another server."""

from tests.world import World

WHY = "this is another PostgreSQL cluster than the one that ondot last ran on"
COMMAND = "ondot doctor --accept-database"


async def hold(world: World) -> None:
    await world.value(
        "INSERT INTO ondot.lineage (system_id, timeline, table_id, is_synchronous, since, held_at, held_why)"
        " VALUES ('7', 1, 1, false, $1, $1, $2)",
        world.now,
        WHY,
    )


async def accept(world: World) -> None:
    await world.value("UPDATE ondot.lineage SET held_at = NULL, held_why = NULL")
