"""What the code declares of a job beside what is in force, for people; and the ways back to the code (D4)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from ondot.document.declared import Difference, declared_document, find_differences, find_same, refreshed
from ondot.flow.work import begin
from ondot.model.app_release import check_app
from ondot.model.errors import InvalidParameters, NotFound
from ondot.model.ids import JobId, TenantNo
from ondot.store.audit import By, record_change
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.declared import (
    DeclaredRow,
    RefusedRow,
    adopt_declared,
    find_declared,
    find_renamed,
    list_refused,
)
from ondot.store.jobs import JobRow, lock_job


@dataclass(frozen=True, slots=True)
class Declaration:
    """`differs`: the fields in force that are not as declared; `same`: the others, but those at their defaults.

    `renamed_to`: keys that the app declares since it no longer declares this one, with the same schedule.
    """

    row: DeclaredRow
    differs: Sequence[Difference]
    same: Sequence[Difference] = ()
    refused: Sequence[RefusedRow] = ()
    renamed_to: Sequence[str] = ()

    @property
    def is_off_the_code(self) -> bool:
        return bool(self.differs) or self.row.dropped_at is not None

    @property
    def in_words(self) -> str:
        """One sentence: whose the job is, and whether it is as declared."""
        row = self.row
        if row.dropped_at is not None:
            instead = f", which declares {', '.join(self.renamed_to)} instead" if self.renamed_to else ""
            return f"No longer declared by {row.app} since release {row.dropped_release}{instead}."
        if self.differs:
            fields = ", ".join(difference.field for difference in self.differs)
            return f"Differs from the code of {row.app}, release {row.release}: {fields}."
        return f"As declared by {row.app}, release {row.release}."


async def read_declaration(connection: Connection, tenant_no: TenantNo, job: JobRow) -> Declaration | None:
    """None: no app declares this job."""
    row = (await find_declared(connection, tenant_no, [job.id])).get(job.id)
    if row is None:
        return None
    code, in_force = await asyncio.to_thread(
        lambda: (refreshed(row.document, job.updated_at), declared_document(job.spec))
    )
    renamed_to: list[str] = []
    if row.dropped_release is not None:
        since = await find_renamed(connection, tenant_no, row.app, row.dropped_release)
        renamed_to = [other.key for other in since if other.document.get("schedule") == row.document.get("schedule")]
    return Declaration(
        row,
        find_differences(code, in_force),
        find_same(code, in_force),
        await list_refused(connection, tenant_no, key=row.key),
        renamed_to,
    )


async def read_declarations(
    connection: Connection, tenant_no: TenantNo, jobs: Sequence[JobRow]
) -> dict[JobId, Declaration]:
    """Of those of these jobs that an app declares. A job whose version is known to be as declared is not compared."""
    rows = await find_declared(connection, tenant_no, [job.id for job in jobs if job.spec.key is not None])
    if not rows:
        return {}
    return await asyncio.to_thread(
        lambda: {job.id: Declaration(rows[job.id], _compare(rows[job.id], job)) for job in jobs if job.id in rows}
    )


def _compare(row: DeclaredRow, job: JobRow) -> list[Difference]:
    if row.version == job.version:
        return []
    return find_differences(refreshed(row.document, job.updated_at), declared_document(job.spec))


async def adopt(database: Database, tenant_no: TenantNo, job_id: JobId, app: str, *, by: By) -> None:
    """Hand a job over to another app, whose declarations of its key count from now on."""
    try:
        check_app(app)
    except ValueError as error:
        raise InvalidParameters(str(error)) from None
    async with begin(database, tenant_no) as work:
        job = await lock_job(work.connection, tenant_no, job_id)
        before = (await find_declared(work.connection, tenant_no, [job_id])).get(job_id)
        if job is None or before is None:
            raise undeclared(job_id)
        if before.app != app:
            await adopt_declared(work.connection, tenant_no, job_id, app)
            detail = {"name": job.spec.name, "key": before.key}
            await record_change(
                *(work.connection, tenant_no, by, "job.adopt", job_id, detail),
                before={"app": before.app},
                after={"app": app},
            )


def undeclared(job_id: JobId) -> NotFound:
    return NotFound(f"No app declares the job {job_id}: it is only as people change it.")
