"""A full queue: what would make it longer is refused with 429, nothing else is, and nothing taken is dropped."""

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


async def sent(caller: Caller, body: object, path: str = "/v1/jobs", **headers: str) -> httpx2.Response:
    return await caller.http.post(path, json=body, headers=headers)


@proves("C7")
async def test_a_full_queue_refuses_and_says_which_how_deep_and_what_to_do(small: Caller) -> None:
    await fill(small, pool="mail")
    answer = await sent(small, NOW | {"pool": "mail"})
    assert answer.status_code == 429, answer.text
    told = answer.json()
    assert told["type"] == "urn:ondot:problem:queue-full"
    assert (told["pool"], told["waiting"], told["ceiling"]) == ("mail", CEILING, CEILING)
    for words in ("ONDOT_QUEUE_CEILING", "ondot worker --pool mail", "later"):
        assert words in told["detail"]
    assert int(answer.headers["retry-after"]) == told["retry_after_s"]
    assert answer.headers["ratelimit"] == f'"queue";r=0;t={told["retry_after_s"]}'
    assert answer.headers["ratelimit-policy"] == f'"queue";q={CEILING}'
    metrics = (await small.http.get("/metrics")).text
    assert 'ondot_submissions_refused_total{pool="mail"}' in metrics


@proves("C7")
async def test_what_was_taken_runs_and_then_there_is_room_again(small: Caller) -> None:
    await fill(small)
    assert (await sent(small, NOW)).status_code == 429
    assert len(await small.run_all()) == CEILING
    await small.world.advance(1)
    await fill(small)
    assert (await sent(small, NOW)).status_code == 429


@proves("C7")
async def test_another_pool_has_a_queue_of_its_own(small: Caller) -> None:
    await fill(small, pool="mail")
    await fill(small, pool="web")
    assert (await sent(small, {"jobs": [NOW, NOW | {"pool": "web"}]}, "/v1/jobs/batch")).status_code == 429
    assert (await sent(small, {"jobs": [NOW]}, "/v1/jobs/batch")).status_code == 201


@proves("C7")
async def test_recurring_jobs_and_work_for_later_are_taken_all_the_same(small: Caller) -> None:
    await fill(small)
    for body in ({"every": "5s"}, {"cron": "* * * * *"}, {"in": "1h"}):
        assert (await sent(small, NOW | body)).status_code == 201
    for body in ({}, {"in": "10s"}):
        assert (await sent(small, NOW | body)).status_code == 429


@proves("C7")
async def test_what_is_for_later_counts_as_soon_as_it_is_due_and_not_before(small: Caller) -> None:
    for _ in range(CEILING):
        await small.create(NOW | {"in": "5s"})
    await small.world.advance(4.5)
    await small.create(NOW)
    await small.world.advance(0.7)  # too soon for another look
    answer = await sent(small, NOW)
    assert (answer.status_code, answer.json()["waiting"]) == (429, CEILING + 1)
    await small.run_all()
    await small.world.advance(1)
    assert (await sent(small, NOW)).status_code == 201


@proves("C7")
async def test_many_who_come_at_once_for_later_are_taken_while_nothing_is_due(small: Caller) -> None:
    answers = await asyncio.gather(*(sent(small, NOW | {"in": "15s"}) for _ in range(4 * CEILING)))
    assert {answer.status_code for answer in answers} == {201}
    await fill(small)
    assert (await sent(small, NOW)).status_code == 429


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
async def test_what_its_own_key_refuses_or_replaces_does_not_count(
    small: Caller, fields: dict[str, Any], taken: int
) -> None:
    for _ in range(3 * CEILING):
        await small.create(NOW | fields)
    for _ in range(CEILING - taken):
        await small.create(NOW)
    assert (await sent(small, NOW)).status_code == 429


@proves("C7", "C3")
async def test_a_clock_that_was_set_back_leaves_nothing_coming(world: World) -> None:
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
    first = await sent(small, NOW, **{"Idempotency-Key": key})
    for _ in range(CEILING - 1):
        await small.create(NOW)
    again = await sent(small, NOW, **{"Idempotency-Key": key})
    assert (again.status_code, again.json()) == (201, first.json())
    assert (await sent(small, NOW | {"name": "x"}, **{"Idempotency-Key": key})).status_code == 422
    assert (await sent(small, NOW, **{"Idempotency-Key": str(uuid4())})).status_code == 429


@proves("C7", "P2", "S12")
async def test_who_repeats_a_create_fills_no_queue(small: Caller) -> None:
    for _ in range(3 * CEILING):
        assert (await sent(small, NOW, **{"Idempotency-Key": "one"})).status_code == 201
        await small.create(NOW | {"key": "mine"})
    for _ in range(CEILING - 2):
        await small.create(NOW)
    assert (await sent(small, NOW)).status_code == 429


@proves("C7", "S12")
async def test_a_job_that_is_there_by_its_key_may_be_sent_again(small: Caller) -> None:
    body = NOW | {"key": "mine"}
    first = await small.create(body)
    for _ in range(CEILING - 1):
        await small.create(NOW)
    assert (await small.create(body))["id"] == first["id"]
    assert (await sent(small, NOW | {"key": "other"})).status_code == 429


@proves("C7", "E10")
async def test_run_now_retries_and_replays_are_refused_too(small: Caller, world: World) -> None:
    await world.submit(job("broken", retry=Retry(max_retries=0)))
    broken = await (await world.worker()).run_one(failed())
    recurring = await small.create(NOW | {"every": "1h"})
    id_ = broken.leased.id
    asked = [
        (f"/v1/jobs/{recurring['id']}/run", {}),
        (f"/v1/executions/{id_}/retry", {}),
        ("/v1/dead-letters/replay", {"ids": [str(id_)]}),
    ]
    await fill(small)
    for path, body in asked:
        assert (await sent(small, body, path)).status_code == 429, path
    assert (await sent(small, {"ids": [str(id_)], "dry_run": True}, "/v1/dead-letters/replay")).status_code == 200
    await small.run_all()
    await world.advance(1)
    assert [(await sent(small, body, path)).status_code for path, body in asked[:2]] == [201, 201]


@proves("C7")
async def test_of_many_who_come_at_once_no_more_are_taken_than_there_is_room_for(small: Caller) -> None:
    answers = await asyncio.gather(*(sent(small, NOW) for _ in range(40)))
    assert sorted(answer.status_code for answer in answers) == [201] * CEILING + [429] * (40 - CEILING)
    async with small.world.database.connection() as connection:
        assert await read_pool_depths(connection, DEFAULT_TENANT, ["default"], 100) == {"default": CEILING}


@proves("C7")
async def test_the_depth_is_read_once_a_second_however_many_ask(small: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    async def counted(*arguments: Any) -> dict[str, int]:
        nonlocal looks
        looks += 1
        return await read_pool_depths(*arguments)

    monkeypatch.setattr(backpressure, "read_pool_depths", counted)
    await asyncio.gather(*(sent(small, NOW) for _ in range(20)))
    assert looks == 1
    await small.world.advance(0.9)
    await sent(small, NOW)
    await sent(small, NOW | {"in": "1h"})
    assert looks == 1
    await small.world.advance(0.2)
    await sent(small, NOW | {"in": "1h"})
    assert looks == 1  # it adds nothing to the queue: nobody looks
    await sent(small, NOW)
    assert looks == 2


@proves("C7", "L4")
async def test_with_a_ceiling_a_database_that_is_away_is_503_for_all_who_wait(small: Caller) -> None:
    await small.world.database.close()
    answers = await asyncio.gather(*(sent(small, NOW) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {503}


@proves("C7")
async def test_pools_that_nobody_asks_for_are_forgotten(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backpressure, "QUEUES_KEPT", 5)
    gate = backpressure.Backpressure(world.database, CEILING)
    for n in range(12):
        async with gate.room_now(DEFAULT_TENANT, {f"pool-{n}": 1}, None):
            await world.advance(2)
    assert len(gate._queues) <= 5


@proves("C7")
async def test_what_is_not_stored_yet_counts_until_it_is_or_never_will_be(world: World) -> None:
    gate = backpressure.Backpressure(world.database, CEILING)
    async with gate.room_now(DEFAULT_TENANT, {"default": CEILING}, None):
        await world.advance(5)  # a slow commit: a look meanwhile does not see it
        with pytest.raises(QueueFull):
            await gate.room_now(DEFAULT_TENANT, {"default": 1}, None).__aenter__()
    with pytest.raises(QueueFull):  # stored, and not looked at since
        await gate.room_now(DEFAULT_TENANT, {"default": 1}, None).__aenter__()
    await world.advance(1)
    with pytest.raises(Conflict):
        async with gate.room_now(DEFAULT_TENANT, {"default": CEILING}, None):
            raise Conflict("It could not be stored.")
    async with gate.room_now(DEFAULT_TENANT, {"default": 1}, None):
        pass
