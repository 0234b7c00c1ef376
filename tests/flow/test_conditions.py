"""Facts that other parts report for alerts (O4)."""

from ondot.flow.alerts.conditions import clear_condition, report_condition
from ondot.model.ids import DEFAULT_TENANT
from ondot.store.conditions import forget_conditions
from tests.proves import proves
from tests.world import World

ROWS = "SELECT kind, tenant_no, subject, since, seen_at, message FROM ondot.condition ORDER BY kind, tenant_no"


@proves("O4")
async def test_a_condition_keeps_its_start_until_it_is_cleared_or_not_reported_for_long_enough(world: World) -> None:
    began = world.now
    async with world.database.connection() as connection:
        await report_condition(connection, "archive", message="S3 refused")
        await report_condition(connection, "quota", DEFAULT_TENANT, "jobs", "10 of 10", {"limit": 10}, holds_s=60)
        await world.advance(50)
        await report_condition(connection, "archive", message="S3 timed out")
        await report_condition(connection, "quota", DEFAULT_TENANT, "jobs", "10 of 10", holds_s=60)
        rows = [tuple(row) for row in await connection.fetch(ROWS)]
        assert rows == [
            ("archive", 0, "", began, world.now, "S3 timed out"),
            ("quota", 1, "jobs", began, world.now, "10 of 10"),
        ]
        await world.advance(61)
        await report_condition(connection, "quota", DEFAULT_TENANT, "jobs", "10 of 10", holds_s=60)
        assert [row["since"] for row in await connection.fetch(ROWS)] == [began, world.now]

        await clear_condition(connection, "archive")
        await world.advance(121)
        await forget_conditions(connection)
        assert await connection.fetch(ROWS) == []
