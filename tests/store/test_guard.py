"""The guard of test databases rejects every step that is not in the state machine: all tests rely on it."""

import asyncpg
import pytest

from tests.proves import proves
from tests.servers import connected
from tests.world import World, job

MAKE = """
INSERT INTO ondot.execution (id, job_id, fire_at, ready_at, tenant_no, job_version, pool_no, class, state, origin)
SELECT gen_random_uuid(), gen_random_uuid(), now(), now(), 1, 1, 1, 2, $1, 'fire' RETURNING id
"""
END = """
INSERT INTO ondot.history (id, job_id, fire_at, ready_at, ended_at, tenant_no, job_version, pool_no, attempt_no,
    failures, losses, class, state, origin)
SELECT $1::uuid, gen_random_uuid(), now(), now(), now(), 1, 1, 1, 0, 0, 0, 2, $2::text, 'fire'
"""
refused = pytest.raises(asyncpg.IntegrityConstraintViolationError)


@proves("E5", "P5")
async def test_a_new_execution_is_pending_and_starts_with_the_next_attempt(database_url: str) -> None:
    async with connected(database_url) as connection:
        id_ = await connection.fetchval(MAKE, "PENDING")
        with refused:
            await connection.fetchval(MAKE, "RUNNING")
        with refused:
            await connection.execute("UPDATE ondot.execution SET state = 'RUNNING' WHERE id = $1", id_)
        with refused:
            await connection.execute("UPDATE ondot.execution SET state = 'RETRYING' WHERE id = $1", id_)
        await connection.execute("UPDATE ondot.execution SET state = 'RUNNING', attempt_no = 1 WHERE id = $1", id_)
        with refused:
            await connection.execute("UPDATE ondot.execution SET attempt_no = 2 WHERE id = $1", id_)


@proves("E5", "P5")
async def test_a_running_execution_cannot_vanish_and_one_that_has_not_run_cannot_succeed(database_url: str) -> None:
    async with connected(database_url) as connection:
        pending = await connection.fetchval(MAKE, "PENDING")
        running = await connection.fetchval(MAKE, "PENDING")
        await connection.execute("UPDATE ondot.execution SET state = 'RUNNING', attempt_no = 1 WHERE id = $1", running)
        with refused:
            await connection.execute("DELETE FROM ondot.execution WHERE id = $1", running)
        with refused:
            await connection.execute(END, running, "SUCCEEDED")
        with refused:
            async with connection.transaction():
                await connection.execute("DELETE FROM ondot.execution WHERE id = $1", pending)
                await connection.execute(END, pending, "SUCCEEDED")
        async with connection.transaction():
            await connection.execute("DELETE FROM ondot.execution WHERE id = $1", running)
            await connection.execute(END, running, "SUCCEEDED")
        await connection.execute("DELETE FROM ondot.execution WHERE id = $1", pending)


@proves("P5")
async def test_history_is_never_changed_again(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    await worker.run_one()
    with refused:
        await world.value("UPDATE ondot.history SET state = 'FAILED'")
    with refused:
        await world.value("DELETE FROM ondot.history")
