"""`ondot channel` and `ondot ping` on a real server: credentials come from standard input, a URL is shown once."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from ondot.kms import generate_key
from tests.cli.running import ondot
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

URL = "https://hooks.slack.example.com/services/canary"


@pytest.fixture
async def api(world: World) -> AsyncIterator[Served]:
    world.database.settings = world.database.settings.model_copy(update={"secret_key": generate_key()})
    async with served(world.database) as api:
        yield api


async def page(api: Served, path: str) -> str:
    async with httpx2.AsyncClient(base_url=api.url, timeout=60) as client:
        answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


@proves("O4", "T5")
async def test_channels_and_pings_are_created_shown_and_deleted(api: Served) -> None:
    async def run(*words: str, **more: Any) -> Any:
        return await asyncio.to_thread(ondot, *words, url=api.url, **more)

    made = await run("channel", "create", "ops", "--slack", stdin=URL)
    assert made.code == 0, made.err
    mails = await run("channel", "create", "mail", "--email", "a@example.com", "--email", "b@example.com")
    assert mails.code == 0, mails.err
    none = await run("channel", "create", "none")
    assert none.code == 2
    listed = await run("channel", "list")
    assert "a@example.com" in listed.out
    assert "a@example.com" in await page(api, "/channels")
    changed = await run("channel", "update", "ops", "--webhook", "https://example.com/x")
    assert "version 2" in changed.out
    shown = await run("channel", "get", "ops", "-o", "json")
    assert json.loads(shown.out)["webhook"]["url"] == "https://example.com/x"
    deleted = await run("channel", "delete", "ops", "--yes")
    assert "Deleted the channel ops." in deleted.out
    assert all(URL not in ran.out + ran.err for ran in (made, listed, changed, shown, deleted))
    ping = await run("ping", "create", "backup", "--every", "1d")
    assert "/ping/ondp_" in ping.out, ping.err
    bad = await run("ping", "create", "other", "--cron", "99 * * * *")
    assert bad.code == 2
    assert "backup" in (await run("ping", "list")).out
    shown_page = await page(api, "/pings")
    assert "backup" in shown_page
    assert "ondp_" not in shown_page
    assert "/ping/ondp_" in (await run("ping", "rotate", "backup")).out
    assert "ondp_" not in (await run("ping", "get", "backup")).out
    assert "Deleted the ping backup." in (await run("ping", "delete", "backup", "--yes")).out
