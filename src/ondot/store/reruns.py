"""Reruns (W8): a new run that takes over outcomes of an ended one, and runs that go on by another version.

The results stay where they are: the new run's steps and items name the executions of the run before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("reruns")


@dataclass(frozen=True, slots=True)
class NewRerun:
    """`payload`: JSON, None for the job's. `stages`: the gates it passes."""

    id: ExecutionId
    rerun_of: ExecutionId
    job_id: JobId
    job_version: int
    pool_no: PoolNo
    priority_class: int
    payload: str | None
    stages: str | None
    start_within_s: float | None


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step of a rerun. `old_no`: its number in the run before, None if that had none of its name."""

    step_no: int
    old_no: int | None
    is_kept: bool


async def insert_rerun(connection: Connection, tenant_no: TenantNo, new: NewRerun) -> tuple[PoolNo, datetime]:
    """Queue a run, and make its row; returns the pool to wake, and when."""
    row = await connection.fetchrow(
        _SQL["insert_rerun"].text,
        tenant_no,
        new.id,
        new.rerun_of,
        new.job_id,
        new.job_version,
        new.pool_no,
        new.priority_class,
        new.payload,
        new.stages,
        new.start_within_s,
    )
    assert row is not None
    return row["pool_no"], row["ready_at"]


async def copy_steps(
    connection: Connection,
    tenant_no: TenantNo,
    run_id: ExecutionId,
    rerun_of: ExecutionId,
    steps: Sequence[NewStep],
    reason: str,
) -> None:
    await connection.execute(
        _SQL["copy_steps"].text,
        tenant_no,
        run_id,
        rerun_of,
        [step.step_no for step in steps],
        [step.old_no for step in steps],
        [step.is_kept for step in steps],
        reason,
    )


async def copy_maps(
    connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, rerun_of: ExecutionId, steps: Sequence[NewStep]
) -> None:
    """The maps of these steps, with all their items."""
    numbers = [step.step_no for step in steps], [step.old_no for step in steps]
    await connection.execute(_SQL["copy_maps"].text, tenant_no, run_id, rerun_of, *numbers)


async def find_oldest_items(
    connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, step_nos: Sequence[int]
) -> dict[int, ExecutionId]:
    """Of each mapped step the oldest execution of an item that has succeeded."""
    rows = await connection.fetch(_SQL["find_oldest_items"].text, tenant_no, run_id, step_nos)
    return {row["step_no"]: row["execution_id"] for row in rows}


async def cancel_waiting_steps(
    connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, reason: str | None
) -> int:
    count: int = await connection.fetchval(_SQL["cancel_waiting_steps"].text, tenant_no, run_id, reason)
    return count


async def set_run_version(connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, version: int) -> None:
    await connection.execute(_SQL["set_run_version"].text, tenant_no, run_id, version)


async def add_steps(connection: Connection, tenant_no: TenantNo, run_id: ExecutionId, step_nos: Sequence[int]) -> None:
    await connection.execute(_SQL["add_steps"].text, tenant_no, run_id, step_nos)
