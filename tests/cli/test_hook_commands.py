"""`ondot hook` on a real server: a URL is shown once, a signing secret is read from standard input."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ondot.kms import generate_key
from tests.cli.running import ondot
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

SECRET = "whsec_of_stripe_canary"


@pytest.fixture
async def api(world: World) -> AsyncIterator[Served]:
    world.database.settings = world.database.settings.model_copy(update={"secret_key": generate_key()})
    async with served(world.database) as api:
        yield api


@proves("S11", "T5")
async def test_a_hook_is_created_rotated_and_deleted(api: Served) -> None:
    settings: dict[str, Any] = {"url": api.url}

    async def run(*words: str, **more: Any) -> Any:
        return await asyncio.to_thread(ondot, "hook", *words, **settings, **more)

    made = await run(
        "create", "payments", "--type", "com.stripe", "--signature", "stripe", "--secret-stdin", stdin=SECRET
    )
    assert made.code == 0, made.err
    assert "/v1/hooks/ondh_" in made.out
    assert "shown once" in made.out
    without = await run("create", "other", "--type", "com.stripe", "--signature", "slack")
    assert without.code != 0
    assert "Slack chooses the signing secret" in without.err
    listed = await run("list", "-o", "json")
    [hook] = json.loads(listed.out)["items"]
    shown = await run("get", hook["id"])
    assert "payments" in shown.out
    rotated = await run("rotate", hook["id"], "--overlap", "1h")
    assert "/v1/hooks/ondh_" in rotated.out
    by_secret = await run("rotate", hook["id"], "--secret-stdin", "--overlap", "0", stdin=f"{SECRET}-2\n")
    assert "the URL stays" in by_secret.out
    deleted = await run("delete", hook["id"], "--yes")
    assert "Deleted the hook payments." in deleted.out
    none = await run("list")
    assert "No hooks." in none.out
    for ran in (made, without, listed, shown, rotated, by_secret, deleted):
        assert SECRET not in ran.out + ran.err
