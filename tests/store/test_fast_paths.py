"""The fast paths of plain jobs write the rows that the general statements write, column by column (E5, E11)."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
from msgspec.structs import replace

from ondot.flow.new_jobs import new_once_jobs
from ondot.model.completion import succeed
from ondot.model.execution import State
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.target import FunctionTarget
from ondot.store.connection import Connection
from ondot.store.jobs import NewOnceJob, insert_once_jobs
from ondot.store.outcomes import Written, complete_executions, succeed_executions
from tests.proves import proves
from tests.store.test_enqueue import lines_of
from tests.store.test_submit_specs import SPEC, SUBMIT, text
from tests.world import DEFAULT_POOL, World, failed, job, once

TABLES = (
    *("job", "job_once", "job_version", "timer", "execution", "ready", "gated", "waiting", "slot", "lease", "history"),
    *("attempt", "dead_letter", "streak", "skipped", "owed"),
)
SPECS = [
    job(),
    job("other", priority="high", labels={"team": "bi"}, payload=b'{"a": 1}'),
    job("third", priority="low", timeout_s=5.0),
]


async def rows_after(world: World, act: Callable[[Connection], Awaitable[object]]) -> dict[str, list[str]]:
    """Every row of every table after `act`, as text; `act` is rolled back, so that another way starts from the same."""
    async with world.second_connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await act(connection)
        rows = {
            table: [row["t"] for row in await connection.fetch(f"SELECT t::text FROM ondot.{table} t ORDER BY 1")]
            for table in TABLES
        }
        await transaction.rollback()
    return rows


def once_jobs(world: World, ahead_s: Sequence[float]) -> list[NewOnceJob]:
    specs = [replace(spec, schedule=once(world.after(seconds))) for spec, seconds in zip(SPECS, ahead_s, strict=True)]
    return new_once_jobs(world.database, specs, {"default": DEFAULT_POOL}, world.now)


@proves("E5", "E11")
@pytest.mark.parametrize("ahead_s", [(0.0, 0.0, 0.0), (-5.0, 0.0, 12.0)], ids=["at once", "at different instants"])
async def test_plain_jobs_are_stored_as_by_the_general_statement(
    world: World, monkeypatch: pytest.MonkeyPatch, ahead_s: Sequence[float]
) -> None:
    jobs = once_jobs(world, ahead_s)
    assert all(each.is_plain for each in jobs)

    async def store(connection: Connection) -> None:
        await insert_once_jobs(connection, DEFAULT_TENANT, jobs)

    fast = await rows_after(world, store)
    monkeypatch.setattr(NewOnceJob, "is_plain", False)
    assert await rows_after(world, store) == fast
    assert len(fast["execution"]) == len(fast["ready"]) == len(jobs)


@proves("E5", "E11")
async def test_many_specs_by_sql_are_stored_as_by_a_submit(world: World) -> None:
    await world.submit_all([job("a", target=FunctionTarget(name="a"))] * 2)
    ours = await lines_of(world)
    await world.fetch(SUBMIT, [text(SPEC)] * 2, [None, None])
    assert await lines_of(world) == [*ours, *ours]


@proves("E5", "S6")
async def test_a_fire_planned_at_submit_has_the_row_of_one_that_the_planner_makes(world: World) -> None:
    jobs = [
        replace(each, spec=replace(each.spec, start_deadline_s=60.0)) if n == 1 else each
        for n, each in enumerate(once_jobs(world, (1.0, 2.0, 3.0)))
    ]
    async with world.database.connection() as connection:
        await insert_once_jobs(connection, DEFAULT_TENANT, jobs)
    planned = "SELECT to_jsonb(e) - 'id' AS row FROM ondot.execution e ORDER BY job_id"
    at_submit = await world.fetch(planned)
    await world.fetch("TRUNCATE ondot.execution, ondot.ready, ondot.job_once")
    async with world.database.connection() as connection:
        await insert_once_jobs(connection, DEFAULT_TENANT, [replace(each, execution_id=None) for each in jobs])
    assert await world.plan() == len(jobs)
    assert await world.fetch(planned) == at_submit
    assert len(at_submit) == len(jobs)


@proves("E5", "E11")
async def test_plain_successes_are_written_as_by_the_general_statement(world: World) -> None:
    await world.submit_all(SPECS)
    worker = await world.worker()
    first, *_ = await worker.lease(1)
    await worker.complete(first, failed())
    await world.advance(3600)
    assignments = await worker.lease()
    assert {assignment.leased.attempt_no for assignment in assignments} == {1, 2}
    completions = [
        succeed(assignment.leased, result) for assignment, result in zip(assignments, ('"x"', None, "7"), strict=True)
    ]
    leases = list({assignment.lease_id for assignment in assignments})
    answers: list[list[Written]] = []

    async def write_fast(connection: Connection) -> None:
        answers.append(await succeed_executions(connection, worker.id, completions, leases))

    async def write(connection: Connection) -> None:
        answers.append(await complete_executions(connection, worker.id, completions, leases))

    fast = await rows_after(world, write_fast)
    assert await rows_after(world, write) == fast
    by_fast, by_general = (sorted(answer, key=lambda written: written.execution_id) for answer in answers)
    assert by_fast == by_general
    assert [written.state for written in by_fast] == [State.SUCCEEDED] * 3
    assert (len(fast["history"]), fast["execution"], fast["lease"]) == (3, [], [])


@proves("E5", "E12")
async def test_an_execution_with_more_to_do_at_its_end_is_left_to_the_general_statement(world: World) -> None:
    await world.submit(SPECS[0])
    worker = await world.worker()
    [assignment] = await worker.lease()
    await world.fetch("UPDATE ondot.execution SET gated = true")
    async with world.database.connection() as connection:
        completions = [succeed(assignment.leased)]
        assert await succeed_executions(connection, worker.id, completions, [assignment.lease_id]) == []
        [written] = await complete_executions(connection, worker.id, completions, [assignment.lease_id])
    assert (written.state, written.gated) == (State.SUCCEEDED, True)
