"""`enqueue_many`: one function with many arguments, by few requests or one statement."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx2
import msgspec
import pytest
from aiohttp import web

from ondot import Ondot
from ondot.api.auth import Auth
from ondot.api.dependencies import Services
from ondot.api.server import build_api
from ondot.model.errors import InvalidBody, TooLarge
from ondot.model.execution import State
from ondot.sdk.app import BYTES_A_REQUEST, JOBS_A_REQUEST, batches
from ondot.sdk.handler import Handler
from tests.proves import proves
from tests.receiver import open_receiver
from tests.store.test_enqueue import lines_of
from tests.world import World

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
async def app() -> AsyncIterator[Ondot]:
    """Its server cannot be reached, so every request fails."""
    async with Ondot(NOWHERE, "key") as app:
        yield app


@proves("E3")
async def test_many_are_sent_by_requests_of_a_thousand_and_answered_in_their_order() -> None:
    async with open_receiver() as receiver:
        receiver.answer(lambda: web.json_response({"items": [{"id": len(receiver.received)}]}, status=201))
        async with Ondot(receiver.url, "key") as app:

            @app.job(retries=5)
            async def report(number: int) -> None: ...

            handles = await report.enqueue_many(report.args(number) for number in range(2 * JOBS_A_REQUEST + 1))
            assert await report.enqueue_many([]) == []
        assert [request.path for request in receiver.received] == ["/v1/jobs/batch"] * 3
        sent = [job for request in receiver.received for job in json.loads(request.body)["jobs"]]
        assert [job["payload"]["number"] for job in sent] == list(range(2 * JOBS_A_REQUEST + 1))
        assert sent[0]["retry"] == {"max_retries": 5}
        assert [handle.id for handle in handles] == ["1", "2", "3"]


@proves("E3")
async def test_if_one_does_not_fit_none_is_sent(app: Ondot) -> None:
    @app.job
    async def report(number: int) -> None: ...

    @app.job
    async def other(number: int) -> None: ...

    with pytest.raises(TypeError, match="report: got an unexpected keyword argument 'numbre'"):
        await report.enqueue_many([report.args(1), report.args(numbre=2)])  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"report: enqueue_many takes the arguments of calls, such as report\.args\("):
        await report.enqueue_many([{"number": 1}])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="got <Arguments of other>"):
        await report.enqueue_many([report.args(1), other.args(1)])
    with pytest.raises(RuntimeError, match="belongs to no app"):
        await Handler(lambda: None, name="alone").enqueue_many([])


@proves("E11", "E3")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"retries": 5, "timeout": "2m", "priority": "high", "labels": {"team": "bi"}, "pool": "bulk"},
        {"start_deadline": "10m", "cancel_grace": 3},
        {"concurrency_key": "region:{region}", "key_concurrency": 2},
    ],
)
async def test_many_in_a_transaction_are_stored_as_one_by_one(
    world: World, app: Ondot, options: dict[str, Any]
) -> None:
    @app.job(**options)
    async def report(region: str, number: int = 0) -> None: ...

    regions = ("eu", "us", 'ü"\\', "eu")
    arguments: list[dict[str, Any]] = [{"region": region, "number": n} for n, region in enumerate(regions)]
    async with world.second_connection() as mine, mine.transaction(), app.transaction(mine):
        single = [await report.enqueue(**given) for given in arguments]
        many = await report.enqueue_many(report.args(**given) for given in arguments)
        assert await world.count("job_once") == 0
        assert await report.enqueue_many([]) == []
    lines = await lines_of(world)
    assert sorted(lines[:4], key=str) == sorted(lines[4:], key=str)
    rows = await world.fetch("SELECT id, spec FROM ondot.job_once")
    specs = {str(row["id"]): msgspec.json.decode(row["spec"]) for row in rows}
    assert [specs[handle.id] for handle in many] == [specs[handle.id] for handle in single]
    assert [handle.id for handle in many] == sorted(handle.id for handle in many)
    assert [without_id(handle.job) for handle in many] == [without_id(handle.job) for handle in single]


def without_id(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "id"}


@proves("E11")
async def test_many_in_a_transaction_run_once_it_is_committed_and_never_were_if_it_is_not(
    world: World, app: Ondot
) -> None:
    @app.job
    async def report(number: int) -> None: ...

    async with world.second_connection() as mine:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tried
            async with mine.transaction(), app.transaction(mine):
                await report.enqueue_many([report.args(1)])
                raise ZeroDivisionError
        assert await world.count("job_once") == 0
        async with mine.transaction(), app.transaction(mine):
            await asyncio.gather(*(report.enqueue_many([report.args(n), report.args(-n)]) for n in (1, 2)))
    worker = await world.worker()
    assignments = await worker.lease()
    await worker.complete_all(assignments)
    assert sorted(msgspec.json.decode(each.payload)["number"] for each in assignments) == [-2, -1, 1, 2]
    assert await world.states() == [State.SUCCEEDED] * 4


@proves("E11")
async def test_errors_in_a_transaction_are_those_of_the_api(world: World, app: Ondot) -> None:
    @app.job(unique="only")
    async def once_only() -> None: ...

    @app.job
    async def report(text: str) -> None: ...

    async with world.second_connection() as mine:
        async with mine.transaction(), app.transaction(mine):
            with pytest.raises(InvalidBody, match="unique"):
                await once_only.enqueue_many([once_only.args()])
            with pytest.raises(TooLarge):
                await report.enqueue_many([report.args("short"), report.args("x" * 1_048_577)])
        with pytest.raises(InvalidBody, match="no tenant"):
            async with mine.transaction(), app.transaction(mine, tenant="nobody"):
                await report.enqueue_many([report.args("short")])
    assert await world.count("job_once") == 0


@proves("E3", "P2")
async def test_many_over_the_api_are_made_once(world: World) -> None:
    world.database.settings = world.database.settings.model_copy(update={"auth": "off"})
    services = Services(
        world.database, world.dispatcher, Auth(world.database, world.database.settings, in_process=True)
    )
    transport = httpx2.ASGITransport(app=build_api(services))
    async with (
        Ondot("http://127.0.0.1:1200", "key") as app,
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1200") as http,
    ):

        @app.job
        async def report(number: int) -> None: ...

        bodies = [report.body(number) for number in range(50)]
        answers = [
            await http.post("/v1/jobs/batch", json={"jobs": bodies}, headers={"idempotency-key": "k"}) for _ in range(2)
        ]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json() == answers[1].json()
    assert await world.count("job_once") == 50


@proves("E3")
def test_large_bodies_are_sent_by_requests_that_a_server_accepts() -> None:
    small, large = {"payload": 1}, {"payload": "x" * (BYTES_A_REQUEST // 2)}
    assert [len(batch) for batch in batches([large, small, large, large, small])] == [2, 1, 2]
    too_large = {"payload": "x" * 2 * BYTES_A_REQUEST}
    assert list(batches([small, too_large, small])) == [[small], [too_large], [small]]
