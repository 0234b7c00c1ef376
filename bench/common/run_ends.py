"""Many steps of one run end, with a few or many of them in a transaction, and the run is advanced after each."""

import asyncio
import time
from uuid import UUID, uuid4

import asyncpg
from client import Client, client
from fleet import Fleet
from msgspec import Struct
from question import Result, say

from ondot.flow.workflows.advance import advance_run
from ondot.model.completion import succeed
from ondot.model.ids import ExecutionId, WorkerId
from ondot.model.job import JobSpec
from ondot.model.target import FunctionTarget
from ondot.model.workflow.spec import StepSpec, WorkflowTarget
from ondot.store.outcomes import complete_executions

NOTHING = FunctionTarget(name="nothing")
NOBODY = "nobody"
"""A pool without workers: the benchmark itself takes its steps."""
SIZES = (1, 10, 500)
WITHIN_S = 120.0

TAKE = """
WITH taken AS (
    DELETE FROM ondot.ready r USING ondot.execution e WHERE e.job_id = $1 AND r.execution_id = e.id RETURNING e.id
)
UPDATE ondot.execution e SET state = 'RUNNING', worker_id = $2, attempt_no = 1, started_at = ondot.clock()
FROM taken t WHERE e.id = t.id RETURNING e.id
"""


class Attempt(Struct, frozen=True):
    id: ExecutionId
    attempt_no: int = 1


async def fan_in(started: Fleet, quick: bool) -> Result:
    count = 2_000 if quick else 10_000
    connection = await started.connect()
    found: Result = {"fan_in_steps": count}
    async with client(started.url) as from_here:
        started.worker(processes=1)  # and no scheduler: its self-check would recover what no worker runs
        for size in SIZES:
            ends_s, release_s = await _end_all(from_here, connection, count, size)
            found[f"fan_in_{size}"] = {"per_s": round(count / ends_s), "release_ms": round(release_s * 1000, 1)}
            say(f"fan-in of {count:,}, {size} in a transaction: {found[f'fan_in_{size}']}")
    await connection.close()
    return found


async def _end_all(from_here: Client, connection: asyncpg.Connection, count: int, size: int) -> tuple[float, float]:
    """Seconds until all ends are written, and from then until the join is released."""
    run_id = await _begin(from_here, connection, count)
    worker_id = WorkerId(uuid4())
    ids = [row["id"] for row in await connection.fetch(TAKE, run_id, worker_id)]
    if len(ids) != count:
        raise RuntimeError(f"{len(ids)} of {count} steps were released")
    begun_s = time.monotonic()
    for start in range(0, count, size):
        async with from_here.database.connection() as own:
            ends = [succeed(Attempt(ExecutionId(id_))) for id_ in ids[start : start + size]]
            await complete_executions(own, worker_id, ends, [])
        committed_s = time.monotonic()
        await advance_run(from_here.database, from_here.dispatcher, run_id)
    ended_s = time.monotonic()
    ran = await connection.fetchval("SELECT succeeded FROM ondot.run WHERE id = $1", run_id)
    if ran < count + 1:
        raise RuntimeError(f"the run knows of {ran} ends instead of {count + 1}")
    await _wait(connection, "SELECT state = 'SUCCEEDED' FROM ondot.run WHERE id = $1", run_id)
    return ended_s - begun_s, ended_s - committed_s


async def _begin(from_here: Client, connection: asyncpg.Connection, count: int) -> UUID:
    """Begin a run whose steps beside each other have been released, and are waiting in a pool without workers."""
    middle = [f"s{no}" for no in range(count)]
    steps = {"first": StepSpec(target=NOTHING)}
    steps |= {name: StepSpec(target=NOTHING, depends_on=("first",), pool=NOBODY) for name in middle}
    steps["last"] = StepSpec(target=NOTHING, depends_on=tuple(middle))
    [job] = await from_here.submit(JobSpec(name="fan", target=WorkflowTarget(steps=steps)), 1)
    await _wait(connection, "SELECT active = $2 FROM ondot.run WHERE job_id = $1", job, count)
    run_id: UUID = await connection.fetchval("SELECT id FROM ondot.run WHERE job_id = $1", job)
    return run_id


async def _wait(connection: asyncpg.Connection, query: str, *values: object) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while not await connection.fetchval(query, *values):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not within {WITHIN_S:g} s: {query}")
        await asyncio.sleep(0.02)
