"""①b Simple creates of one moment share a commit, and nothing else: no responses and no errors."""

import asyncio
from typing import Any
from uuid import UUID, uuid4

import pytest

from ondot.flow.group_commit import MOST_JOBS, GroupCommit
from ondot.flow.idempotency import Idempotency
from ondot.flow.new_jobs import Accepted
from ondot.model.errors import KeyReused, Unavailable
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.job import JobSpec
from tests.proves import proves
from tests.world import World, every, job, once

COMMITS = "SELECT count(DISTINCT xmin::text) FROM ondot.job_once"


@pytest.fixture
def group(world: World) -> GroupCommit:
    return GroupCommit(world.database, world.dispatcher)


def render(accepted: list[Accepted]) -> str:
    """The JSON that is stored with a key."""
    return f'"{" ".join(f"{entry.spec.name} {entry.id}" for entry in accepted)}"'


async def submit(group: GroupCommit, *specs: JobSpec, key: str | None = None, by: UUID | None = None) -> str:
    idempotency = None if key is None else Idempotency(key, specs[0].name.encode())
    moment = group._database.clock.moment()
    return await group.submit(
        DEFAULT_TENANT, specs, render=render, idempotency=idempotency, moment=moment, created_by=by
    )


async def stored(world: World) -> list[str]:
    return [row["name"] for row in await world.fetch("SELECT name FROM ondot.job_once ORDER BY name")]


@proves("S1", "P1")
async def test_creates_of_one_moment_share_a_commit_and_each_gets_its_own_response(
    world: World, group: GroupCommit
) -> None:
    specs = [job(f"job {n:02}") for n in range(30)] + [job("later", schedule=once(world.after(60)))]
    texts = await asyncio.gather(*(submit(group, spec) for spec in specs))
    rows = await world.fetch("SELECT name || ' ' || id AS text FROM ondot.job_once ORDER BY id")
    assert [text.strip('"') for text in texts] == [row["text"] for row in rows]
    assert await world.value(COMMITS) <= 2
    assert (await world.count("ready"), await world.count("timer")) == (30, 1)


@proves("T6")
@pytest.mark.parametrize("delay_s", [0, 60])
async def test_a_job_of_an_unknown_creator_does_not_get_the_creator_of_its_neighbour(
    world: World, group: GroupCommit, delay_s: int
) -> None:
    ann = uuid4()
    schedule = once(world.after(delay_s))
    creators = {"a": ann, "b": None, "c": ann}
    await asyncio.gather(*(submit(group, job(name, schedule=schedule), by=by) for name, by in creators.items()))
    assert await world.value(COMMITS) == 1
    rows = await world.fetch("SELECT name, created_by FROM ondot.job_once")
    assert {row["name"]: row["created_by"] for row in rows} == creators


@proves("S1")
async def test_requests_that_arrive_during_a_statement_share_the_next_one(world: World, group: GroupCommit) -> None:
    async with world.second_connection() as other:
        hold = other.transaction()
        await hold.start()
        await other.execute("LOCK TABLE ondot.ready IN EXCLUSIVE MODE")
        first = asyncio.create_task(submit(group, job("first")))
        await world.until_a_lock_is_awaited()
        others = [asyncio.create_task(submit(group, job(f"other {n}"))) for n in range(5)]
        await asyncio.sleep(0)
        assert not first.done()
        await hold.rollback()
    await asyncio.gather(first, *others)
    assert await world.value(COMMITS) == 2


@proves("S1")
async def test_an_error_reaches_only_the_request_that_caused_it(world: World, group: GroupCommit) -> None:
    specs = [job("a"), job("text that PostgreSQL refuses: \0"), job("b")]
    results = await asyncio.gather(*(submit(group, spec) for spec in specs), return_exceptions=True)
    assert [isinstance(result, str) for result in results] == [True, False, True]
    assert "0x00" in str(results[1])
    assert await stored(world) == ["a", "b"]


@proves("P2")
async def test_a_key_makes_one_job_and_one_response_for_all_requests_that_have_it(
    world: World, group: GroupCommit
) -> None:
    twins = await asyncio.gather(
        *(submit(group, job("a"), key="one") for _ in range(5)), submit(group, job("b"), key="two")
    )
    assert len(set(twins[:5])) == 1
    results = await asyncio.gather(
        submit(group, job("a"), key="one"),
        submit(group, job("other"), key="one"),
        submit(group, job("c")),
        return_exceptions=True,
    )
    assert results[0] == twins[0]
    assert isinstance(results[1], KeyReused)
    assert await stored(world) == ["a", "b", "c"]


@proves("P2")
async def test_a_batch_with_a_key_is_stored_once(world: World, group: GroupCommit) -> None:
    specs = [job(f"job {n:02}") for n in range(MOST_JOBS + 1)]
    assert await submit(group, *specs, key="k") == await submit(group, *specs, key="k")
    assert await world.count("job_once") == len(specs)


@proves("P2", "S1")
async def test_a_request_that_waits_for_a_key_waits_alone(world: World, group: GroupCommit) -> None:
    async with world.second_connection() as other:
        hold = other.transaction()
        await hold.start()
        await other.execute(
            "INSERT INTO ondot.idempotency (tenant_no, key, request_hash, created_at)"
            " VALUES ($1, 'k', '', ondot.clock())",
            DEFAULT_TENANT,
        )
        waits = asyncio.create_task(submit(group, job("a"), key="k"))
        await asyncio.gather(submit(group, job("b")), submit(group, job("c"), key="mine"))
        assert await stored(world) == ["b", "c"]
        assert not waits.done()
        await hold.rollback()
    await waits
    assert await stored(world) == ["a", "b", "c"]


@proves("P1")
async def test_each_request_learns_that_the_database_is_away_and_the_next_one_succeeds(
    world: World, group: GroupCommit
) -> None:
    await submit(group, job("before"))
    async with world.second_connection() as other, other.transaction():
        await other.execute("LOCK TABLE ondot.ready IN EXCLUSIVE MODE")
        tasks = [asyncio.create_task(submit(group, job(f"job {n}"))) for n in range(3)]
        await world.until_a_lock_is_awaited()
        await other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 3
    await submit(group, job("after"))
    assert await stored(world) == ["after", "before"]


@proves("S1")
async def test_a_caller_that_disconnects_cancels_no_other_request(world: World, group: GroupCommit) -> None:
    async with world.second_connection() as other:
        hold = other.transaction()
        await hold.start()
        await other.execute("LOCK TABLE ondot.ready IN EXCLUSIVE MODE")
        first, second = (asyncio.create_task(submit(group, job(name))) for name in ("first", "second"))
        await world.until_a_lock_is_awaited()
        first.cancel()
        await asyncio.wait({first})
        await hold.rollback()
    assert "second" in await second
    assert first.cancelled()
    assert await stored(world) == ["first", "second"]


@proves("S1", "S12")
@pytest.mark.parametrize("fields", [{"key": "mine"}, {"schedule": "every"}])
async def test_a_job_that_is_not_simple_is_submitted_alone(
    world: World, group: GroupCommit, fields: dict[str, Any]
) -> None:
    if fields.get("schedule"):
        fields = {"schedule": every(60, world.now)}
    assert "report" in await submit(group, job(**fields))
    assert (await world.count("job"), await world.count("job_once")) == (1, 0)
