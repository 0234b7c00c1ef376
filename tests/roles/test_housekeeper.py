"""Housekeeping repeats its passes: the self-check among them, beside the others."""

import asyncio

import pytest

from ondot.flow.dispatch import Dispatcher
from ondot.model import check
from ondot.roles import housekeeper
from ondot.roles.housekeeper import Housekeeper
from ondot.store.check import found_by_check
from ondot.store.database import open_database
from ondot.store.days import make_days
from ondot.transports.polling import PollingTransport
from tests.proves import proves
from tests.servers import settings_for


@proves("P5", "C1")
async def test_a_housekeeper_on_duty_checks_and_every_node_makes_partitions(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "SOONEST_S", 0.0)
    for name in ("CHECK_EVERY_S", "CHECK_GOES_ON_S", "PARTITIONS_EVERY_S"):
        monkeypatch.setattr(housekeeper, name, 0.01)
    database = await open_database(settings_for(database_url))
    await database.read_clock()
    await make_days(database)
    is_on_duty = False
    keeper = Housekeeper(database, Dispatcher(PollingTransport()), on_duty=lambda: is_on_duty)
    async with database.connection() as connection:
        await connection.execute("DELETE FROM ondot.partition WHERE partition_no = 0")
        await connection.execute("INSERT INTO ondot.ready VALUES (1, 2, 1, now() - interval '1 h', gen_random_uuid())")

        async def found(kind: str) -> None:
            while kind not in {entry.kind for entry in await found_by_check(connection)}:
                await asyncio.sleep(0.01)

        keeping = asyncio.create_task(keeper.run())
        async with asyncio.timeout(20):
            await found("partition")
            assert await connection.fetchval("SELECT count(*) FROM ondot.ready") == 1
            is_on_duty = True
            await found("queued_without_execution")
        assert await connection.fetchval("SELECT count(*) FROM ondot.ready") == 0
        keeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await keeping
    await database.close()
