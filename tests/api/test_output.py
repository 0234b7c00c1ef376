"""Results and logs as a client reads them: whole, searched, followed."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from ondot.api.auth import Auth
from ondot.api.dependencies import Services
from ondot.api.server import build_api
from ondot.flow.attempt_log import AttemptLogs
from ondot.flow.complete import Done
from ondot.flow.lease import Assignment
from ondot.flow.output import Outputs
from ondot.model.completion import decide
from ondot.model.outcome import Succeeded
from ondot.objects import open_objects
from ondot.ports.objects import Objects
from tests.api.conftest import Caller
from tests.proves import proves
from tests.world import Worker, World, failed

WITHIN_S = 20


class Talker:
    """One attempt of a worker that stores its output, and the API that shows it."""

    def __init__(self, api: Caller, app: FastAPI, worker: Worker, assignment: Assignment, objects: Objects) -> None:
        self.api = api
        self.app = app
        self.worker = worker
        self.assignment = assignment
        self.notes = AttemptLogs(api.world.database, worker.id, objects)
        self.outputs = Outputs(objects, api.world.database, self.notes.say)
        self.path = f"/v1/executions/{assignment.leased.id}"

    async def say(self, *lines: str) -> None:
        for line in lines:
            self.notes.say(self.assignment.leased, "stdout", line)
        await self.notes.one_pass()

    async def succeed(self, result: str) -> None:
        assignment = self.assignment
        assert assignment.spec is not None
        completion = decide(assignment.leased, assignment.spec, Succeeded(result), lambda: 0.0)
        completion = await self.outputs.keep(assignment.leased, completion)
        await self.notes.close(assignment.leased)
        await self.worker.completer.write([Done(completion, assignment.lease_id)])

    async def logs(self, **parameters: Any) -> dict[str, Any]:
        return await self.api.get(f"{self.path}/logs", **parameters)

    async def text(self, **parameters: Any) -> str:
        answer = await self.api.http.get(f"{self.path}/logs", params={"whole": "true", **parameters})
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/plain; charset=utf-8"
        assert answer.headers["x-content-type-options"] == "nosniff"
        return answer.text


@pytest.fixture
async def talker(world: World, tmp_path: Path) -> AsyncIterator[Talker]:
    settings = {"auth": "off", "home": tmp_path, "inline_bytes": 2048, "log_lines": 10}
    world.database.settings = world.database.settings.model_copy(update=settings)
    objects = open_objects(world.database.settings)
    app = build_api(
        Services(world.database, world.dispatcher, Auth(world.database, world.database.settings, in_process=True))
    )
    app.state.services.objects = objects
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    caller = Caller(world, httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1200"))
    async with caller.http:
        await caller.create({"name": "talker", "function": "f", "max_retries": 1})
        worker = await world.worker()
        [assignment] = await worker.lease()
        talker = Talker(caller, app, worker, assignment, objects)
        yield talker
        await talker.notes.close(assignment.leased)


@proves("E14")
@pytest.mark.parametrize("result", ['{"exact":  1.10}', '["' + "x" * 300_000 + '"]'], ids=["small", "large"])
async def test_a_result_is_returned_whole_and_unchanged(talker: Talker, result: str) -> None:
    early = await talker.api.http.get(f"{talker.path}/result")
    assert early.status_code == 404
    assert "has not ended" in early.json()["detail"]
    await talker.succeed(result)
    answer = await talker.api.http.get(f"{talker.path}/result")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["content-length"] == str(len(result))
    assert answer.text == result


@proves("E14")
async def test_an_execution_without_a_result_has_the_result_null(api: Caller) -> None:
    await api.create({"name": "broken", "function": "f", "max_retries": 0})
    worker = await api.world.worker()
    assignment = await worker.run_one(failed())
    answer = await api.http.get(f"/v1/executions/{assignment.leased.id}/result")
    assert (answer.status_code, answer.text) == (200, "null")


@proves("E14")
async def test_a_result_in_an_unreachable_store_is_not_an_error_of_the_server(talker: Talker) -> None:
    await talker.succeed('"' + "x" * 10_000 + '"')
    talker.app.state.services.objects = None
    answer = await talker.api.http.get(f"{talker.path}/result")
    assert answer.status_code == 404
    assert "ONDOT_OBJECTS_URL" in answer.json()["detail"]


@proves("E14")
async def test_the_whole_log_of_an_attempt_is_returned_as_text(talker: Talker) -> None:
    await talker.say(*(f"line {n}" for n in range(500)))
    await talker.succeed("1")
    assert [line.split(" ", 2)[2] for line in (await talker.text()).splitlines()] == [f"line {n}" for n in range(500)]
    assert (await talker.text(attempt=1, q="LINE 77")).split(" ", 2)[2] == "line 77\n"
    page = await talker.logs()
    assert [entry["line"] for entry in page["items"]][-1] == "line 499"
    assert len(page["items"]) < 100
    assert page["ended"]
    none = await talker.api.http.get(f"{talker.path}/logs", params={"whole": "true", "attempt": 2})
    assert none.status_code == 404
    assert "its last one is 1" in none.json()["detail"]


@proves("E14")
async def test_lines_are_found_by_text_and_by_attempt(talker: Talker) -> None:
    await talker.say("An Error here", "all well", "100% _sure_")
    assert [entry["line"] for entry in (await talker.logs(q="error"))["items"]] == ["An Error here"]
    assert [entry["line"] for entry in (await talker.logs(q="0% _s"))["items"]] == ["100% _sure_"]
    assert (await talker.logs(q="%"))["items"] == (await talker.logs(q="_sure"))["items"]
    assert len((await talker.logs(attempt=1))["items"]) == 3
    assert (await talker.logs(attempt=2))["items"] == []


@proves("E14")
async def test_a_waiting_request_gets_the_next_lines_when_they_arrive(talker: Talker) -> None:
    await talker.say("first")
    cursor = (await talker.logs(wait=WITHIN_S))["next_cursor"]
    async with asyncio.timeout(WITHIN_S):
        waiting = asyncio.create_task(talker.logs(cursor=cursor, wait=30))
        # Other requests are served meanwhile, and it has looked once before the line arrives.
        for _ in range(3):
            assert not (await talker.logs(cursor=cursor))["items"]
        assert not waiting.done()
        await talker.say("second")
        page = await waiting
    assert [entry["line"] for entry in page["items"]] == ["second"]
    assert not page["ended"]


@proves("E14")
async def test_a_waiting_request_gets_the_end_at_once(talker: Talker) -> None:
    async with asyncio.timeout(WITHIN_S):
        waiting = asyncio.create_task(talker.logs(wait=30))
        for _ in range(3):
            assert not (await talker.logs())["ended"]
        assert not waiting.done()
        await talker.succeed("1")
        page = await waiting
    assert (page["items"], page["ended"]) == ([], True)


@proves("E14")
async def test_waiting_ends_when_its_time_is_over(talker: Talker) -> None:
    page = await talker.logs(wait=0.05)
    assert (page["items"], page["ended"]) == ([], False)
    refused = await talker.api.http.get(f"{talker.path}/logs", params={"wait": 31})
    assert refused.status_code == 422
    assert "30" in refused.json()["detail"]
