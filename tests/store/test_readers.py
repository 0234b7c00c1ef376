"""Readers: jobs and executions, live and ended together, for their own tenant only."""

from uuid import UUID

import pytest

from ondot.flow.change.change import delete, pause
from ondot.model.access import Role
from ondot.model.errors import Unavailable
from ondot.model.execution import State
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId, PoolNo, TenantNo
from ondot.model.job import JobState
from ondot.model.keys import new_key
from ondot.model.outcome import Succeeded
from ondot.store import executions, jobs, keys, logs, overview
from ondot.store.database import open_database
from tests.proves import proves
from tests.servers import settings_for
from tests.world import World, every, failed, job, once

OTHER = TenantNo(2)


async def live_and_ended(world: World) -> tuple[JobId, list[ExecutionId]]:
    """A recurring job with one execution ended, one retrying, one due, one planned; and a run-now."""
    accepted = await world.submit(job("mixed", schedule=every(10, world.now), labels={"team": "bi"}))
    worker = await world.worker()
    await world.advance(10)
    await worker.run_one(Succeeded("1"))
    await world.advance(10)
    await worker.run_one(failed())
    await world.plan()
    await world.advance(10)
    await world.run_now(accepted.id, b'{"by": "hand"}')
    return accepted.id, [execution.id for execution in await world.executions(accepted.id)]


@proves("O1", "O5")
async def test_executions_are_listed_newest_first_live_and_ended_as_one_page_by_page(world: World) -> None:
    job_id, ids = await live_and_ended(world)
    async with world.database.connection() as connection:
        every_one = await executions.list_executions(connection, DEFAULT_TENANT, limit=10, horizon_s=20)
        due = [id_ for id_ in ids if (await world.execution(id_)).fire_at <= world.now]
        assert len(due) == len(ids) - 1
        assert [row.id for row in every_one] == sorted(due, reverse=True)
        first = await executions.list_executions(connection, DEFAULT_TENANT, limit=2, horizon_s=20)
        rest = await executions.list_executions(connection, DEFAULT_TENANT, limit=10, horizon_s=20, before=first[-1].id)
        assert [*first, *rest] == every_one
        of_job = await executions.list_job_executions(connection, DEFAULT_TENANT, job_id, limit=10, horizon_s=20)
        assert [row.id for row in of_job] == [row.id for row in every_one]
        ended = await executions.list_executions(connection, DEFAULT_TENANT, limit=10, horizon_s=20, state="SUCCEEDED")
        assert [row.state for row in ended] == [State.SUCCEEDED]
        retrying = await executions.list_job_executions(
            connection, DEFAULT_TENANT, job_id, limit=9, horizon_s=20, state="RETRYING"
        )
        assert [row.failures for row in retrying] == [1]
        late = await executions.list_executions(connection, DEFAULT_TENANT, limit=10, horizon_s=20, from_at=world.now)
        assert {row.fire_at for row in late} == {row.fire_at for row in every_one if row.fire_at >= world.now}
        assert (
            await executions.list_executions(connection, DEFAULT_TENANT, limit=9, horizon_s=20, pool_nos=[PoolNo(99)])
            == []
        )


@proves("O1")
async def test_the_status_of_a_job_is_that_of_its_latest_execution(world: World) -> None:
    accepted = await world.submit(job(schedule=every(10, world.now)))
    async with world.database.connection() as connection:
        assert await executions.find_latest_execution(connection, DEFAULT_TENANT, accepted.id) is None
        await world.advance(10)
        latest = await executions.find_latest_execution(connection, DEFAULT_TENANT, accepted.id)
        assert latest == executions.LatestRow(State.PENDING, None, 0)
        worker = await world.worker()
        await worker.run_one(failed())
        latest = await executions.find_latest_execution(connection, DEFAULT_TENANT, accepted.id)
        assert latest is not None
        assert (latest.state, latest.retry_count) == (State.RETRYING, 1)


@proves("O1", "S9")
async def test_jobs_are_listed_newest_first_recurring_and_one_time_as_one(world: World) -> None:
    names = ["a", "b", "c", "d"]
    made = [
        await world.submit(job("a", schedule=every(10, world.now), labels={"team": "bi", "env": "prod"})),
        await world.submit(job("b", schedule=once(world.after(100)), labels={"team": "bi"})),
        await world.submit(job("c", schedule=every(3600, world.now), pool="other")),
        await world.submit(job("d")),
    ]
    await pause(world.database, DEFAULT_TENANT, made[2].id)
    await delete(world.database, DEFAULT_TENANT, made[1].id)
    worker = await world.worker()
    await worker.run_one()

    async def listed(**filters: object) -> list[str]:
        async with world.database.connection() as connection:
            rows = await jobs.list_jobs(connection, DEFAULT_TENANT, limit=10, **filters)  # type: ignore[arg-type]
        return [row.spec.name for row in rows]

    assert await listed() == ["d", "c", "a"]
    assert [await listed(state=state) for state in ("ACTIVE", "PAUSED", "DELETED", "ENDED")] == [
        ["a"],
        ["c"],
        ["b"],
        ["d"],
    ]
    assert await listed(before=made[2].id) == ["a"]
    assert await listed(name="d") == ["d"]
    assert await listed(part="C") == ["c"]
    assert await listed(labels={"team": "bi"}) == ["a"]
    other = await world.value("SELECT pool_no FROM ondot.pool WHERE name = 'other'")
    assert await listed(pool_nos=[other]) == ["c"]
    states = [(await world.job(accepted.id)).state for accepted in made]
    assert dict(zip(names, states, strict=True)) == {
        "a": JobState.ACTIVE,
        "b": JobState.DELETED,
        "c": JobState.PAUSED,
        "d": JobState.ENDED,
    }
    assert (await world.job(made[0].id)).next_fire_at == world.after(10)


@proves("E9", "E14", "P6")
async def test_logs_and_progress_are_kept_but_not_the_progress_of_a_stale_attempt(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    [assignment] = await worker.lease()
    id_ = assignment.leased.id
    async with world.database.connection() as connection:
        lines = [logs.LogLine(id_, 1, n, DEFAULT_TENANT, world.now, "stdout", f"line {n}") for n in (1, 2, 3)]
        await logs.add_log_lines(connection, lines)
        await logs.add_log_lines(connection, lines[:1])
        rows = await logs.list_log_lines(connection, DEFAULT_TENANT, id_, after=(1, 1), limit=10)
        assert [row.line for row in rows] == ["line 2", "line 3"]
        await logs.save_progress(connection, worker.id, [logs.Progress(id_, 1, '{"at":  5}', 0.5, "half")])
        await logs.save_progress(connection, worker.id, [logs.Progress(id_, 1, None, 0.75, None)])
        await logs.save_progress(connection, worker.id, [logs.Progress(id_, 2, "null", 0.0, "stale")])
        assert await logs.find_checkpoint(connection, id_) == '{"at":  5}'
        running = await overview.list_running(connection, DEFAULT_TENANT, 10)
    assert [(row.id, row.progress) for row in running] == [(id_, 0.75)]
    execution = await world.execution(id_)
    assert (execution.progress, execution.progress_message, execution.checkpoint) == (0.75, "half", {"at": 5})


@proves("T1")
async def test_an_api_key_identifies_its_owner_until_it_is_revoked_and_is_stored_as_a_hash(world: World) -> None:
    id_ = world.database.clock.new_id()
    key = new_key(id_)
    async with world.database.connection() as connection:
        await keys.add_key(connection, id_, DEFAULT_TENANT, "laptop", key)
        right, wrong = keys.present(key), keys.Presented(id_, keys.hash_key(key + "x"))
        [(presented, found)] = (await keys.find_callers(connection, [right, wrong])).items()
        caller = found.caller
        assert (presented, caller.tenant_no, caller.name, caller.role) == (right, DEFAULT_TENANT, "laptop", Role.ADMIN)
        assert not await keys.revoke_key(connection, OTHER, id_)
        assert await keys.revoke_key(connection, DEFAULT_TENANT, id_)
        assert await keys.find_callers(connection, [right]) == {}
        assert [row.name for row in await keys.list_keys(connection, DEFAULT_TENANT)] == ["laptop"]
    dump = await world.value("SELECT string_agg(k::text, '') FROM ondot.key k")
    assert key not in dump


@proves("P12", "T1")
async def test_no_reader_returns_a_row_of_another_tenant(world: World) -> None:
    job_id, ids = await live_and_ended(world)
    await world.submit(job("far", schedule=once(world.after(100))))
    async with world.database.connection() as connection:
        await keys.add_key(connection, UUID(int=1), DEFAULT_TENANT, "laptop", "secret")
        assert await jobs.get_job(connection, OTHER, job_id) is None
        assert await jobs.lock_job(connection, OTHER, job_id) is None
        assert await jobs.list_jobs(connection, OTHER, limit=10) == []
        assert await jobs.find_keys(connection, OTHER, ["k"]) == {}
        assert await executions.list_executions(connection, OTHER, limit=10, horizon_s=20) == []
        assert await executions.list_job_executions(connection, OTHER, job_id, limit=10, horizon_s=20) == []
        assert await executions.find_latest_execution(connection, OTHER, job_id) is None
        assert await overview.list_running(connection, OTHER, 10) == []
        assert await overview.list_coming_fires(connection, OTHER, planned=10, timers=10) == []
        assert await overview.list_latest_executions(connection, OTHER, 10) == []
        assert await overview.list_latest_dead_letters(connection, OTHER, 10) == []
        assert await executions.list_skipped(connection, OTHER, job_id, 10) == []
        for id_ in ids:
            assert await executions.get_execution(connection, OTHER, id_) is None
            assert await executions.list_attempts(connection, OTHER, id_) == []
            assert await logs.list_log_lines(connection, OTHER, id_, limit=10) == []
        assert await keys.list_keys(connection, OTHER) == []


@proves("L4")
async def test_a_database_that_is_away_raises_unavailable_and_no_error_of_asyncpg(database_url: str) -> None:
    database = await open_database(settings_for(database_url.replace("port=5432", "port=5433")))
    with pytest.raises(Unavailable):
        await database.read_clock()
    await database.close()
