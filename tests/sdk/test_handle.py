"""Handles: what `enqueue` returns, and how a job's end arrives in the program that awaits it (D2)."""

import asyncio
import pickle
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from ondot import Handle, NotCommitted, NotSucceeded, Ondot, ResultGone
from ondot.model.errors import Conflict, Unavailable
from ondot.sdk.awaited import awaited_jobs
from ondot.testing import open_world
from ondot.testing.world import World
from tests.proves import proves

AT = "2026-01-01T00:00:00Z"
STRANGER = "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"

app = Ondot()


@app.job(retries=0)
def divide(a: int, b: int) -> float:
    return a / b


@app.job
def repeat(text: str, times: int) -> str:
    return text * times


def handle_of(job: dict[str, Any], *, committed: bool = True) -> Handle[Any]:
    return Handle(app.client, job, lambda result: result, committed)


async def divided(world: World, a: int, b: int, **fields: Any) -> Handle[Any]:
    body = {"name": "divide", "function": "divide", "payload": {"a": a, "b": b}, "max_retries": 0}
    return handle_of(await world.create(body | fields))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world(app, at=AT) as world:
        yield world


@proves("D2")
async def test_a_handle_returns_what_the_function_returned(world: World) -> None:
    handle = await divided(world, 6, 3)
    assert await handle.state() == "PENDING"
    assert await handle.result(timeout=timedelta(minutes=1)) == 2.0
    assert await handle.state() == "SUCCEEDED"
    execution = await handle.execution()
    assert execution is not None
    assert execution["job_id"] == handle.id
    assert "SUCCEEDED" in str(await handle.explain())
    same = app.handle(handle.id)
    assert await same.result() == 2.0
    assert await same.result(timeout=0) == 2.0
    assert handle == same
    assert len({handle, same}) == 1
    assert repr(handle) == f"<Handle {handle.id} of divide>"
    with pytest.raises(TypeError, match=f"Pass its id, '{handle.id}'"):
        pickle.dumps(handle)


@proves("D2")
async def test_without_time_to_wait_a_handle_asks_once(world: World) -> None:
    later = await divided(world, 6, 3, **{"in": "1h"})
    with pytest.raises(TimeoutError, match="has not ended within 0 s"):
        await later.result(timeout=0)
    with pytest.raises(ResultGone):
        await app.handle(STRANGER).result(timeout=0)


@proves("D2")
async def test_a_failed_job_raises_with_its_error_and_the_command_that_shows_more(world: World) -> None:
    handle = await divided(world, 1, 0)
    with pytest.raises(
        NotSucceeded, match=r"^divide is FAILED: ZeroDivisionError.*`ondot execution get .+`\.$"
    ) as raised:
        await handle.result()
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.state, error.error_type, error.attempts) == ("FAILED", "ZeroDivisionError", 1)
    assert error.job_id == handle.id
    assert str(error) == str(raised.value)


@proves("D2", "E16")
async def test_jobs_that_never_ran_are_answered_with_the_reason(world: World) -> None:
    later = await divided(world, 1, 1, **{"in": "1h"})
    assert await later.state() == "PENDING"
    assert await later.execution() is None
    with pytest.raises(Conflict, match="Turn the clock"):
        await later.result()
    await later.cancel("wrong day")
    with pytest.raises(ResultGone, match="deleted before it ran"):
        await later.result()
    first = await divided(world, 1, 1, debounce={"key": "k", "wait": "1m"})
    second = await divided(world, 4, 1, debounce={"key": "k", "wait": "1m"})
    with pytest.raises(NotSucceeded, match=f"divide is SKIPPED: debounce: the job {second.id} replaced it") as skipped:
        await first.result()
    assert (skipped.value.state, skipped.value.attempts) == ("SKIPPED", 0)
    await world.advance(minutes=2)
    assert await second.result() == 4.0
    waiting = await divided(world, 1, 1)
    await waiting.cancel("not needed")
    with pytest.raises(NotSucceeded, match=r"CANCELLED: .*not needed"):
        await waiting.result()
    with pytest.raises(Conflict):
        await second.cancel()


@proves("D2", "E11")
async def test_what_the_server_does_not_know_is_gone_or_not_committed(world: World) -> None:
    with pytest.raises(ResultGone, match="There is no job"):
        await app.handle(STRANGER).result()
    with pytest.raises(ResultGone):
        await app.handle(STRANGER).state()
    with pytest.raises(NotCommitted, match="Commit it first"):
        await handle_of({"id": STRANGER}, committed=False).result()
    with pytest.raises(ValueError, match="a UUID, got 'divide'"):
        app.handle("divide")


@proves("D2", "E14")
async def test_a_large_result_arrives_whole(world: World) -> None:
    body = {"name": "repeat", "function": "repeat", "payload": {"text": "x", "times": 30_000}}
    assert await handle_of(await world.create(body)).result() == "x" * 30_000


@proves("D2")
async def test_handles_awaited_together_share_one_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = [await divided(world, n, 1) for n in range(50)]
    requests: list[int] = []
    ask = app.client.wait_for_jobs

    async def counted(ids: list[str], wait: float) -> dict[str, Any]:
        requests.append(len(ids))
        return await ask(ids, wait)

    monkeypatch.setattr(app.client, "wait_for_jobs", counted)
    assert await asyncio.gather(*(handle.result() for handle in handles)) == list(range(50))
    assert requests[0] == 50
    assert len(requests) <= 3
    assert awaited_jobs(app.client)._awaited == {}


@proves("D2")
async def test_a_handle_that_is_no_longer_awaited_ends_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asyncio.Event()
    ended = asyncio.Event()

    async def never(ids: list[str], wait: float) -> dict[str, Any]:
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    other = Ondot("http://127.0.0.1:1")
    monkeypatch.setattr(other.client, "wait_for_jobs", never)
    waiting = asyncio.create_task(other.handle(STRANGER).result())
    await asked.wait()
    waiting.cancel()
    async with asyncio.timeout(30):
        await ended.wait()
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.01 s"):
        await other.handle(STRANGER).result(timeout=0.01)
    await other.close()


@proves("D2")
async def test_a_server_that_is_away_for_a_while_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ondot.sdk.awaited.RETRY_S", 0)
    answers: list[Exception] = [Unavailable("restarting"), Unavailable("restarting")]
    ended = {"job_id": STRANGER, "execution_id": STRANGER, "state": "SUCCEEDED", "result": 7, "result_omitted": False}

    async def answer(ids: list[str], wait: float) -> dict[str, Any]:
        if answers:
            raise answers.pop()
        return {"items": [ended], "unknown": []}

    other = Ondot("http://127.0.0.1:1")
    monkeypatch.setattr(other.client, "wait_for_jobs", answer)
    assert await other.handle(STRANGER).result() == 7
    monkeypatch.setattr("ondot.sdk.awaited.AWAY_S", -1)
    answers.append(Unavailable("gone for good"))
    with pytest.raises(Unavailable, match="gone for good"):
        await other.handle(STRANGER).result()
    await other.close()
