"""A live page ends when its session does: signed out, disabled, or without the right to read."""

import asyncio
from contextlib import suppress
from typing import Final

import httpx2
import pytest

from ondot.people.sessions import COOKIE
from ondot.store.sessions import add_session, new_cookie
from tests.people.signing import add
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World

SOON_S: Final = 10.0
"""Far more than the promised second: the machine may be busy."""
ENDS: Final = {
    "signed out": "DELETE FROM ondot.session",
    "disabled": "UPDATE ondot.person SET state = 'DISABLED'",
    "deleted": "DELETE FROM ondot.person",
}


@proves("T1", "T7")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("end", ENDS)
async def test_a_live_page_ends_with_its_session(world: World, end: str) -> None:
    user, cookie = await add(world.database), new_cookie()
    async with world.database.connection() as connection:
        id_ = world.database.clock.new_id()
        await add_session(connection, id_, user.tenant_no, user.id, cookie, "password", "127.0.0.1", "test", 3600)
    headers = {"cookie": f"{COOKIE}={cookie}", "sec-fetch-site": "same-origin"}
    async with (
        served(world.database, auth="on", by_itself=True) as page,
        page.client.stream("GET", "/ui/live", headers=headers) as response,
    ):
        assert response.status_code == 200
        lines = response.aiter_lines()
        await anext(lines)
        async with world.database.connection() as connection:
            await connection.execute(ENDS[end])
        with suppress(httpx2.RemoteProtocolError):
            async with asyncio.timeout(SOON_S):
                async for _ in lines:
                    pass
