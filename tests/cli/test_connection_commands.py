"""`ondot connection` and `ondot job create --publish` on a real server: passwords come in by standard input only."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from brokers import Redis
from ondot.kms import generate_key
from tests.cli.running import ondot
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

PASSWORD = "very-secret-canary"


@pytest.fixture
async def api(world: World) -> AsyncIterator[Served]:
    update = {"secret_key": generate_key(), "allow_private_targets": True}
    world.database.settings = world.database.settings.model_copy(update=update)
    async with served(world.database) as api:
        yield api


@proves("E3", "T5")
async def test_a_connection_is_added_tested_named_by_a_job_and_removed(api: Served) -> None:
    async def run(*words: str, code: int = 0, stdin: str = "") -> Any:
        settings: dict[str, Any] = {"url": api.url}
        ran = await asyncio.to_thread(ondot, *words, stdin=stdin, **settings)
        assert ran.code == code, (ran.out, ran.err)
        assert PASSWORD not in ran.out + ran.err
        return ran

    with Redis.running() as redis:
        place = ("main", "--kind", "redis", "--url", redis.url)
        added = await run("connection", "add", *place)
        assert "Connection main (redis), version 1. Try it: ondot connection test main" in added.out
        assert "It works." in (await run("connection", "test", "main")).out
        await run("connection", "add", *place, "--username", "bob", "--password-stdin", stdin=f"{PASSWORD}\n")
        assert "It does not work" in (await run("connection", "test", "main", code=1)).out
    [shown] = json.loads((await run("connection", "list", "-o", "json")).out)["items"]
    assert (shown["username"], shown["password"], shown["version"]) == ("bob", "•••", 2)
    assert "fails" in (await run("connection", "get", "main")).out
    wrong = await run("connection", "add", "main", "--kind", "kafka", "--url", redis.url, code=2)
    assert "needs `servers`" in wrong.err
    publish = ("job", "create", "--name", "out", "--every", "1h", "--publish")
    assert "kinds: redis, kafka" in (await run(*publish, "main:out", code=2)).err
    assert "Did you mean 'main'?" in (await run(*publish, "redis:mian:out", code=2)).err
    await run(*publish, "redis:main:out")
    assert "redis main out" in (await run("job", "get", "out")).out
    assert "Jobs name the connection 'main': out" in (await run("connection", "remove", "main", code=4)).err
    await run("connection", "remove", "main", "--force")
    assert "No connections." in (await run("connection", "list")).out
