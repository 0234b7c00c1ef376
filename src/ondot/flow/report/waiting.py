"""What waits for a person or for capacity now, as findings of a report that ends now (O10)."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from ondot.model.held_back import HeldLine
from ondot.model.ids import JobId, TenantNo
from ondot.model.job import JobSpec
from ondot.model.report import repairs
from ondot.model.report.findings import Finding, Repair
from ondot.model.report.window import Window
from ondot.store import overview as store
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.incidents import CauseRow, IncidentRow
from ondot.store.jobs import get_jobs
from ondot.words.job import elapsed

SHOWN: Final = 50
WAITS_LONG: Final = timedelta(seconds=60)
"""A queue without a worker, or a line before a limit, is reported after this long."""


async def list_waiting(
    connection: Connection, database: Database, tenant_no: TenantNo, window: Window
) -> list[Finding]:
    blocked = await store.list_blocked_runs(connection, tenant_no, SHOWN)
    paused = await store.list_paused_by_itself(connection, tenant_no, SHOWN)
    pools = await store.list_pools_at_work(connection, tenant_no)
    held = await store.read_held_back(connection, database.specs, tenant_no, lines=SHOWN)
    jobs = await get_jobs(connection, tenant_no, [line.job_id for line in held.lines])
    return [
        *(
            Finding(
                "blocked",
                row.reason or "a step failed, and nothing handled it",
                1,
                is_open=True,
                last_at=row.blocked_at,
                job_id=row.job_id,
                run_id=row.id,
                repair=(repairs.retry_run(row.id),),
            )
            for row in blocked
        ),
        *(
            Finding(
                "paused",
                row.reason,
                1,
                is_open=True,
                last_at=row.paused_at,
                job_id=row.id,
                repair=(repairs.resume(row.id),),
            )
            for row in paused
        ),
        *_without_worker(pools, window),
        *_held_back(held.lines, {id_: row.spec for id_, row in jobs.items()}, window),
    ]


def list_open_incidents(rows: Sequence[IncidentRow], causes: Sequence[CauseRow]) -> Iterator[Finding]:
    """Open incidents that are about no job: a quota, a channel, a ping, the disk. Those of jobs have findings of their
    own. `causes`: the first of each, which knows the command that helps."""
    commands = {each.incident_id: str(command) for each in causes if (command := each.details.get("command"))}
    for row in rows:
        if row.job_id is None:
            yield Finding(
                "incident",
                row.title,
                row.causes,
                is_open=row.acknowledged_at is None,
                first_at=row.since,
                last_at=row.opened_at,
                repair=(
                    *((repairs.look_into(commands[row.id]),) if row.id in commands else ()),
                    *(() if row.acknowledged_at else (repairs.acknowledge(row.id),)),
                ),
                facts={"incident_id": str(row.id), "alert": row.alert},
            )


def _without_worker(pools: Sequence[store.PoolAtWork], window: Window) -> Iterator[Finding]:
    for pool in pools:
        if pool.oldest_at is None or window.until - pool.oldest_at < WAITS_LONG:
            continue
        waits = f"the oldest has waited {elapsed((window.until - pool.oldest_at).total_seconds())}"
        why = "no worker serves the pool" if not pool.workers else f"its {pool.slots:,} slots are not enough"
        yield Finding(
            "no_worker",
            f"{why}; {waits}",
            pool.waiting,
            is_open=not pool.workers,
            is_least=pool.waiting >= store.CEILING,
            first_at=pool.oldest_at,
            last_at=window.until,
            pool=pool.name,
            repair=(repairs.start_worker(pool.name),),
        )


def _held_back(lines: tuple[HeldLine, ...], specs: dict[JobId, JobSpec], window: Window) -> Iterator[Finding]:
    for line in lines:
        if window.until - line.oldest_at < WAITS_LONG:
            continue
        yield Finding(
            "held_back",
            f"{line.limit}; the oldest has waited {elapsed((window.until - line.oldest_at).total_seconds())}",
            line.count,
            is_open=False,
            is_least=line.count >= store.CEILING,
            first_at=line.oldest_at,
            last_at=window.until,
            job_id=line.job_id,
            pool=line.pool,
            repair=_raise_limit(line, specs.get(line.job_id)),
        )


def _raise_limit(line: HeldLine, spec: JobSpec | None) -> tuple[Repair, ...]:
    """Twice the concurrency of the job or of its key, if that is the limit that holds it."""
    limits = None if spec is None else spec.limits
    if limits is None:
        return ()
    for field, limit in (("concurrency", limits.concurrency), ("key_concurrency", limits.key_concurrency)):
        if limit is not None and line.limit.endswith(f"{limit:,} at a time"):
            return (repairs.raise_concurrency(line.job_id, field, limit),)
    return ()
