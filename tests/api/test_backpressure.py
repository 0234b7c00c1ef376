"""A full queue: requests that would make it longer get 429, no others do, and accepted work is never dropped."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from ondot.api import backpressure
from ondot.model.errors import Conflict, QueueFull
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.retry import Retry
from ondot.store.pools import read_pool_depths
from tests.api.conftest import Caller, caller_of
from tests.proves import proves
from tests.world import World, failed, job, once

CEILING = 3
NOW = {"function": "f"}


@pytest.fixture
async def small(world: World) -> AsyncIterator[Caller]:
    caller = caller_of(world, auth="off", queue_ceiling=CEILING)
    async with caller.http:
        yield caller


async def fill(caller: Caller, **fields: str) -> None:
    for _ in range(CEILING):
        await caller.create(NOW | fields)


async def send(caller: Caller, body: object, path: str = "/v1/jobs", **headers: str) -> httpx2.Response:
    return await caller.http.post(path, json=body, headers=headers)


@proves("C7")
async def test_the_refusal_of_a_full_queue_states_the_pool_its_depth_and_what_to_do(small: Caller) -> None:
    await fill(small, pool="mail")
    answer = await send(small, NOW | {"pool": "mail"})
    assert answer.status_code == 429, answer.text
    problem = answer.json()
    assert problem["type"] == "urn:ondot:problem:queue-full"
    assert (problem["pool"], problem["waiting"], problem["ceiling"]) == ("mail", CEILING, CEILING)
    for words in ("ONDOT_QUEUE_CEILING", "ondot worker --pool mail", "later"):
        assert words in problem["detail"]
    assert int(answer.headers["retry-after"]) == problem["retry_after_s"]
    assert answer.headers["ratelimit"] == f'"queue";r=0;t={problem["retry_after_s"]}'
    assert answer.headers["ratelimit-policy"] == f'"queue";q={CEILING}'
    metrics = (await small.http.get("/metrics")).text
    assert 'ondot_submissions_refused_total{pool="mail"}' in metrics


@proves("C7")
async def test_accepted_work_runs_and_makes_room(small: Caller) -> None:
    await fill(small)
    assert (await send(small, NOW)).status_code == 429
    assert len(await small.run_all()) == CEILING
    await small.world.advance(1)
    await fill(small)
    assert (await send(small, NOW)).status_code == 429


@proves("C7")
async def test_another_pool_has_a_queue_of_its_own(small: Caller) -> None:
    await fill(small, pool="mail")
    await fill(small, pool="web")
    assert (await send(small, {"jobs": [NOW, NOW | {"pool": "web"}]}, "/v1/jobs/batch")).status_code == 429
    assert (await send(small, {"jobs": [NOW]}, "/v1/jobs/batch")).status_code == 201


@proves("C7")
async def test_recurring_jobs_and_work_for_later_are_accepted_by_a_full_queue(small: Caller) -> None:
    await fill(small)
    for body in ({"every": "5s"}, {"cron": "* * * * *"}, {"in": "1h"}):
        assert (await send(small, NOW | body)).status_code == 201
    for body in ({}, {"in": "10s"}):
        assert (await send(small, NOW | body)).status_code == 429


@proves("C7")
async def test_work_for_later_counts_from_when_it_is_due(small: Caller) -> None:
    for _ in range(CEILING):
        await small.create(NOW | {"in": "5s"})
    await small.world.advance(4.5)
    await small.create(NOW)
    await small.world.advance(0.7)  # too soon for another reading
    answer = await send(small, NOW)
    assert (answer.status_code, answer.json()["waiting"]) == (429, CEILING + 1)
    await small.run_all()
    await small.world.advance(1)
    assert (await send(small, NOW)).status_code == 201


@proves("C7")
async def test_many_jobs_for_later_are_accepted_at_once_while_nothing_is_due(small: Caller) -> None:
    answers = await asyncio.gather(*(send(small, NOW | {"in": "15s"}) for _ in range(4 * CEILING)))
    assert {answer.status_code for answer in answers} == {201}
    await fill(small)
    assert (await send(small, NOW)).status_code == 429


@pytest.mark.parametrize(
    ("fields", "taken"),
    [
        ({"unique": "u"}, 1),
        ({"throttle": {"key": "t", "per": "1h", "limit": 1}}, 1),
        ({"debounce": {"key": "d", "wait": "10s"}}, 0),
        ({"in": "10s", "unique": "u"}, 0),
    ],
)
@proves("C7", "E16")
async def test_jobs_that_their_own_key_refuses_or_replaces_do_not_count(
    small: Caller, fields: dict[str, Any], taken: int
) -> None:
    for _ in range(3 * CEILING):
        await small.create(NOW | fields)
    for _ in range(CEILING - taken):
        await small.create(NOW)
    assert (await send(small, NOW)).status_code == 429


@proves("C7", "C3")
async def test_work_expected_by_a_clock_that_was_ahead_is_dropped_after_it_is_set_back(world: World) -> None:
    gate = backpressure.Backpressure(world.database, CEILING)
    async with gate.room_for_jobs(DEFAULT_TENANT, [], world.now, None) as made:
        made([await world.submit(job(schedule=once(world.after(10)))) for _ in range(CEILING)])
    [queue] = gate._queues.values()
    assert queue.coming.total() == CEILING
    await world.set_clock(world.after(-3600))
    async with gate.room_now(DEFAULT_TENANT, {"default": 1}, None):
        assert not queue.coming


@proves("C7", "P2")
async def test_a_repeated_create_gets_its_answer_and_not_429(small: Caller) -> None:
    key = str(uuid4())
    first = await send(small, NOW, **{"Idempotency-Key": key})
    for _ in range(CEILING - 1):
        await small.create(NOW)
    again = await send(small, NOW, **{"Idempotency-Key": key})
    assert (again.status_code, again.json()) == (201, first.json())
    assert (await send(small, NOW | {"name": "x"}, **{"Idempotency-Key": key})).status_code == 422
    assert (await send(small, NOW, **{"Idempotency-Key": str(uuid4())})).status_code == 429


@proves("C7", "P2", "S12")
async def test_a_repeated_create_adds_nothing_to_the_queue(small: Caller) -> None:
    for _ in range(3 * CEILING):
        assert (await send(small, NOW, **{"Idempotency-Key": "one"})).status_code == 201
        await small.create(NOW | {"key": "mine"})
    for _ in range(CEILING - 2):
        await small.create(NOW)
    assert (await send(small, NOW)).status_code == 429


@proves("C7", "S12")
async def test_a_job_that_exists_by_its_key_may_be_sent_again(small: Caller) -> None:
    body = NOW | {"key": "mine"}
    first = await small.create(body)
    for _ in range(CEILING - 1):
        await small.create(NOW)
    assert (await small.create(body))["id"] == first["id"]
    assert (await send(small, NOW | {"key": "other"})).status_code == 429


@proves("C7", "E10")
async def test_run_now_retries_and_replays_are_refused_too(small: Caller, world: World) -> None:
    await world.submit(job("broken", retry=Retry(max_retries=0)))
    broken = await (await world.worker()).run_one(failed())
    recurring = await small.create(NOW | {"every": "1h"})
    id_ = broken.leased.id
    requests = [
        (f"/v1/jobs/{recurring['id']}/run", {}),
        (f"/v1/executions/{id_}/retry", {}),
        ("/v1/dead-letters/replay", {"ids": [str(id_)]}),
    ]
    await fill(small)
    for path, body in requests:
        assert (await send(small, body, path)).status_code == 429, path
    assert (await send(small, {"ids": [str(id_)], "dry_run": True}, "/v1/dead-letters/replay")).status_code == 200
    await small.run_all()
    await world.advance(1)
    assert [(await send(small, body, path)).status_code for path, body in requests[:2]] == [201, 201]


@proves("C7")
async def test_requests_at_the_same_moment_are_accepted_only_while_there_is_room(small: Caller) -> None:
    answers = await asyncio.gather(*(send(small, NOW) for _ in range(40)))
    assert sorted(answer.status_code for answer in answers) == [201] * CEILING + [429] * (40 - CEILING)
    async with small.world.database.connection() as connection:
        assert await read_pool_depths(connection, DEFAULT_TENANT, ["default"], 100) == {"default": CEILING}


@proves("C7")
async def test_the_depth_is_read_once_a_second_for_any_number_of_requests(
    small: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = 0

    async def counted(*arguments: Any) -> dict[str, int]:
        nonlocal readings
        readings += 1
        return await read_pool_depths(*arguments)

    monkeypatch.setattr(backpressure, "read_pool_depths", counted)
    await asyncio.gather(*(send(small, NOW) for _ in range(20)))
    assert readings == 1
    await small.world.advance(0.9)
    await send(small, NOW)
    await send(small, NOW | {"in": "1h"})
    assert readings == 1
    await small.world.advance(0.2)
    await send(small, NOW | {"in": "1h"})
    assert readings == 1  # it adds nothing to the queue, so the depth is not read
    await send(small, NOW)
    assert readings == 2


@proves("C7", "L4")
async def test_all_waiting_requests_get_503_while_the_database_is_away(small: Caller) -> None:
    await small.world.database.close()
    answers = await asyncio.gather(*(send(small, NOW) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {503}


@proves("C7")
async def test_pools_without_requests_are_dropped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpressure, "QUEUES_KEPT", 5)
    gate = backpressure.Backpressure(world.database, CEILING)
    for n in range(12):
        async with gate.room_now(DEFAULT_TENANT, {f"pool-{n}": 1}, None):
            await world.advance(2)
    assert len(gate._queues) <= 5


@proves("C7")
async def test_a_request_under_way_counts_until_it_is_stored_or_fails(world: World) -> None:
    gate = backpressure.Backpressure(world.database, CEILING)
    async with gate.room_now(DEFAULT_TENANT, {"default": CEILING}, None):
        await world.advance(5)  # a slow commit: a reading meanwhile does not include it
        with pytest.raises(QueueFull):
            await gate.room_now(DEFAULT_TENANT, {"default": 1}, None).__aenter__()
    with pytest.raises(QueueFull):  # stored, and not read since
        await gate.room_now(DEFAULT_TENANT, {"default": 1}, None).__aenter__()
    await world.advance(1)
    with pytest.raises(Conflict):
        async with gate.room_now(DEFAULT_TENANT, {"default": CEILING}, None):
            raise Conflict("It could not be stored.")
    async with gate.room_now(DEFAULT_TENANT, {"default": 1}, None):
        pass
