"""The transport nats: poison, and a user without rights (C4, C5). On the session's NATS, with subjects of its own."""

import asyncio
from pathlib import Path

import nats
import pytest

from brokers import Nats
from ondot.ports.transport import Wake
from ondot.store.database import open_database
from ondot.telemetry.metrics import HINTS_UNREADABLE
from ondot.transports import listening
from tests.proves import proves
from tests.servers import settings_for
from tests.transports.receiving import AT, POOL, WITHIN_S, opened, receiving, until_received

FORBIDDEN = """
authorization {
  users = [{user: reader, password: r, permissions: {publish: "nothing", subscribe: "nothing"}}]
}
"""


@proves("C4", "C5")
async def test_what_others_send_to_a_subject_is_counted_and_ignored(database_url: str, nats_url: str) -> None:
    unreadable = HINTS_UNREADABLE.labels("nats")
    before = unreadable.value
    poison = (b"", b"nonsense", b"\xff\xfe\x00", b"wake 1 yesterday", b"9" * 900_000)
    prefix = "test-poison"
    async with (
        opened("nats", database_url, nats_url=nats_url, transport_prefix=prefix) as transport,
        receiving(transport) as received,
    ):
        await until_received(transport, received)
        client = await nats.connect(nats_url)
        for body in poison:
            await client.publish(f"{prefix}.wake.{POOL}", body)
        await client.flush()
        await client.close()
        await until_received(transport, received)
    assert unreadable.value - before == len(poison)


@proves("C5", "O4")
async def test_a_user_without_rights_is_refused_when_it_sends_and_reported_when_it_listens(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NATS answers all else as ever, so a listener would wait without an end."""
    for name, seconds in (("AWAY_S", 0.0), ("REPORT_EVERY_S", 0.0), ("RECONNECT_S", 0.01), ("CHECK_EVERY_S", 0.01)):
        monkeypatch.setattr(listening, name, seconds)
    rights = tmp_path / "nats.conf"
    rights.write_text(FORBIDDEN)

    class WithRights(Nats):
        def command(self) -> tuple[str, ...]:
            return (*super().command(), "-c", str(rights))

    with WithRights.running() as broker:
        url = broker.url.replace("nats://", "nats://reader:r@")
        async with opened("nats", database_url, nats_url=url) as transport:
            with pytest.raises(Exception, match=r"(?i)permissions violation"):
                await transport.publish([Wake(POOL, AT)])
            database = await open_database(settings_for(database_url))
            async with receiving(transport), asyncio.timeout(WITHIN_S), database.connection() as connection:
                while not (message := await connection.fetchval("SELECT message FROM ondot.condition")):
                    await asyncio.sleep(0.01)
            await database.close()
    assert "through nats, so its workers only poll" in message
