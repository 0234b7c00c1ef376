from collections.abc import AsyncIterator

import pytest

from tests.people.signing import Place, opened_place
from tests.world import World


@pytest.fixture
async def place(world: World) -> AsyncIterator[Place]:
    async with opened_place(world) as place:
        yield place
