"""`ondot event` on a real server."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import ondot
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

JOB = {"name": "ship", "function": "ship", "schedule": {"event": {"type": "paid", "filter": {"data": {"n": [7]}}}}}


@pytest.fixture
async def api(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as api:
        yield api


@proves("S11")
async def test_an_event_is_sent_listed_and_shown(api: Served, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"url": api.url}

    async def run(*words: str, **more: Any) -> Any:
        return await asyncio.to_thread(ondot, *words, **settings, **more)

    (tmp_path / "job.json").write_text(json.dumps(JOB))
    assert (await run("job", "create", "-f", str(tmp_path / "job.json"))).code == 0
    sent = await run("event", "send", "paid", "--source", "/shop", "--id", "1", "--data", '{"n": 7}')
    assert sent.code == 0, sent.err
    assert "matched 1 job: " in sent.out
    again = await run("event", "send", "paid", "--source", "/shop", "--id", "1", "--data", '{"n": 7}')
    assert again.out == sent.out
    event = {"specversion": "1.0", "id": "2", "source": "/shop", "type": "paid", "data": {"n": 8}}
    (tmp_path / "events.json").write_text(json.dumps([event, event | {"id": "3"}]))
    many = await run("event", "send", "-f", str(tmp_path / "events.json"), "-o", "jsonl")
    assert [json.loads(line)["matched"] for line in many.out.splitlines()] == [0, 0]
    listed = await run("event", "list", "--matched")
    assert "paid" in listed.out
    assert listed.out.count("/shop") == 1
    page = json.loads((await run("event", "list", "--unmatched", "-o", "json")).out)
    assert [item["event"]["id"] for item in page["items"]] == ["3", "2"]
    shown = await run("event", "get", sent.out.split()[0])
    assert "ship" in shown.out
    assert "started" in shown.out
    unmatched = await run("event", "get", page["items"][0]["id"])
    assert "It matched no job." in unmatched.out
    for words in (["event", "send"], ["event", "send", "paid", "--data", "{"], ["event", "send", "ondot.x"]):
        wrong = await run(*words)
        assert wrong.code == 2, wrong.out
