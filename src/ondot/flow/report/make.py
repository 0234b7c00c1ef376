"""Makes the report of a window (O10): reads each kind of trouble by its index, and turns it into findings.

Nothing is locked or written. Every read is bounded: by rows, and the sum of successes by time; the report lists in
words what was not looked at.
"""

from dataclasses import replace
from typing import Final
from uuid import UUID

from ondot.flow.report import past
from ondot.flow.report.waiting import list_open_incidents, list_waiting
from ondot.model.ids import JobId, TenantNo
from ondot.model.report.findings import Report, sort_findings
from ondot.model.report.window import Window
from ondot.store import report as store
from ondot.store.check import list_found
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.dead_letters import find_job_names
from ondot.store.executions import list_missed
from ondot.store.expect import list_recent_misses
from ondot.store.incidents import IncidentFilter, list_causes, list_incidents

RANGES: Final = 1_000
"""Ranges of skipped fires that are read."""
MISSES: Final = 200
INCIDENTS: Final = 50
MEASURED: Final = 60
"""Jobs whose durations are compared with those before: the ones that took most time."""


async def make_report(database: Database, tenant_no: TenantNo, window: Window, *, is_whole: bool) -> Report:
    """`is_whole`: with what concerns the whole installation: lost workers, the self-check."""
    async with database.reading(tenant_no) as connection:
        sums = await store.sum_ended(connection, tenant_no, window.since, window.until)
        failed = await store.group_not_succeeded(connection, tenant_no, window.since, window.until)
        attempts = await store.group_attempts(connection, tenant_no, window.since, window.until)
        # Before the smallest position of that instant: those recorded until then.
        until = (window.until, JobId(UUID(int=0)), window.since)
        missed = await list_missed(
            connection, database.specs, tenant_no, since=window.since, before=until, limit=RANGES + 1
        )
        before = await _measure(connection, tenant_no, sums, window)
        findings = [
            *past.list_failed(failed, window),
            *past.list_missed(missed[:RANGES]),
            *past.list_late(sums, window),
            *past.list_retried(attempts),
            *past.list_slower(sums, before, window),
        ]
        misses = await list_recent_misses(
            connection, tenant_no, window.since, window.until, MISSES, ends_now=window.is_open
        )
        findings += past.list_expectations(misses, window)
        if window.is_open:
            findings += await list_waiting(connection, database, tenant_no, window)
        names = await find_job_names(
            connection, tenant_no, sorted({JobId(one.job_id) for one in findings if one.job_id})
        )
    if window.is_open:
        async with database.connection() as connection:
            rows = await list_incidents(connection, tenant_no, IncidentFilter(is_open=True), limit=INCIDENTS)
            causes = await list_causes(connection, tenant_no, [row.id for row in rows], 1) if rows else []
            findings += list_open_incidents(rows, causes)
    workers: list[store.LostWorker] = []
    if is_whole:
        # Tables of the installation, which the role of a tenant's reads cannot see.
        async with database.connection() as connection:
            workers = await store.list_lost_workers(connection, window.since, window.until)
            findings += past.list_self_check(await list_found(connection), window)
    findings += past.list_lost(attempts, workers)
    named = [
        one if one.job_id is None else replace(one, job_name=names.get(JobId(one.job_id), f"job {one.job_id}"))
        for one in findings
    ]
    limits = tuple(past.list_limits(sums, failed, attempts, is_cut=len(missed) > RANGES))
    return Report(database.clock.now(), window, past.count_ran(sums), sort_findings(named), limits)


async def _measure(
    connection: Connection, tenant_no: TenantNo, sums: store.Sums, window: Window
) -> dict[UUID, tuple[int, float]]:
    """The durations before the window of the jobs that took most time in it."""
    took = {job_id: job.took_s for job_id, job in sums.jobs.items() if job_id is not None and job.succeeded}
    most = sorted(took, key=lambda job_id: -took[job_id])[:MEASURED]
    return await store.measure_before(connection, tenant_no, most, window.since) if most else {}
