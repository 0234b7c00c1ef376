"""Options of connections: how long a transaction of the API may be idle."""

import pytest

from ondot.store.database import open_database
from tests.proves import proves
from tests.servers import settings_for


@pytest.mark.parametrize(("horizon_s", "timeout_s", "idle_s"), [(20, 30, 15), (600, 30, 30)])
@proves("L1")
async def test_a_frozen_api_keeps_its_locks_for_less_than_the_horizon(
    database_url: str, horizon_s: float, timeout_s: float, idle_s: float
) -> None:
    settings = settings_for(database_url, horizon_s=horizon_s, statement_timeout_s=timeout_s)
    database = await open_database(settings, brief=True)
    try:
        async with database.connection() as connection:
            idle_ms = await connection.fetchval(
                "SELECT setting::integer FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
            )
    finally:
        await database.close()
    assert idle_ms == idle_s * 1000 < horizon_s * 1000
