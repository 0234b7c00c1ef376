"""The doctor tries every transport that a pool uses (C4, C5)."""

from ondot.app import open_transport
from ondot.doctor.examine import examine_database
from tests.proves import proves
from tests.servers import connected, settings_for


@proves("C4", "C5")
async def test_every_transport_that_a_pool_uses_is_tried(database_url: str, redis_url: str) -> None:
    async def find(**changes: object) -> tuple[str, str]:
        settings = settings_for(database_url, transport_prefix="doctor", **changes)
        findings = await examine_database(settings, open_transport)
        [finding] = [each for each in findings if each.check == "transports"]
        return finding.level, finding.message

    assert await find() == ("ok", "Wake-ups go through PostgreSQL, or stay within a process.")
    assert await find(transport="redis", redis_url=redis_url) == ("ok", "redis took a hint.")
    level, message = await find(transport="redis", redis_url="redis://127.0.0.1:1/0")
    assert level == "problem"
    assert message.startswith("The transport redis takes no hints: Error")
    async with connected(database_url) as connection:
        await connection.execute("UPDATE ondot.pool SET transport = 'redis', transport_at = ondot.clock()")
    level, message = await find()
    assert level == "problem"
    assert "The transport redis needs its server: set ONDOT_REDIS_URL=redis://host:6379/0" in message
