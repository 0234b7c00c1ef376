"""Declarations as they are stored (D4): apps and their releases, what each declared of a job, and what was refused."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from ondot.model.app_release import AppRelease
from ondot.model.ids import JobId, TenantNo
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries

_SQL = load_queries("declared")


@dataclass(frozen=True, slots=True)
class DeclaredRow:
    """What an app's code declares of the job with this key. `release`: the one that last changed the document.

    `version`: of the job, if that is as declared. `dropped_release`: the first that no longer declares it.
    """

    key: str
    app: str
    job_id: JobId
    document: dict[str, Any]
    first_release: str
    release: str
    declared_at: datetime
    version: int | None
    dropped_at: datetime | None
    dropped_release: str | None
    is_gone: bool = False
    """The job was deleted, or has aged out."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    tenant_no: TenantNo
    app: str
    key: str
    release: str
    why: str
    refused_at: datetime


@dataclass(frozen=True, slots=True)
class DroppedRow:
    """A job that its app no longer declares."""

    tenant_no: TenantNo
    key: str
    app: str
    job_id: JobId
    dropped_release: str
    dropped_at: datetime


async def see_release(connection: Connection, tenant_no: TenantNo, app: AppRelease) -> str | None:
    """Record that a worker of this release is alive; returns the release whose declarations are in force."""
    in_force: str | None = await connection.fetchval(_SQL["see_release"].text, tenant_no, app.app, app.release)
    return in_force


async def lock_app(connection: Connection, tenant_no: TenantNo, app: AppRelease) -> None:
    """One declaration of an app at a time. Before all jobs."""
    await connection.fetchrow(_SQL["lock_app"].text, tenant_no, app.app)


async def find_newer_release(
    connection: Connection, tenant_no: TenantNo, app: AppRelease, within_s: float
) -> str | None:
    """A newer release that had a live worker within so many seconds."""
    newer: str | None = await connection.fetchval(
        _SQL["find_newer_release"].text, tenant_no, app.app, app.release, within_s
    )
    return newer


async def set_release(connection: Connection, tenant_no: TenantNo, app: AppRelease) -> None:
    await connection.execute(_SQL["set_release"].text, tenant_no, app.app, app.release)


async def read_declared(connection: Connection, tenant_no: TenantNo, keys: Collection[str]) -> dict[str, DeclaredRow]:
    """What was declared with these keys, by any app."""
    rows = await connection.fetch(_SQL["read_declared"].text, tenant_no, list(keys))
    return {row["key"]: _declared(row) for row in rows}


async def find_declared(
    connection: Connection, tenant_no: TenantNo, job_ids: Sequence[JobId]
) -> dict[JobId, DeclaredRow]:
    """Those of these jobs that an app declares, or declared."""
    rows = await connection.fetch(_SQL["find_declared"].text, tenant_no, job_ids)
    return {JobId(row["job_id"]): _declared(row) for row in rows}


async def put_declared(
    connection: Connection,
    tenant_no: TenantNo,
    key: str,
    app: AppRelease,
    job_id: JobId,
    document: Mapping[str, Any],
    version: int | None,
) -> None:
    text = msgspec.json.encode(document).decode()
    await connection.execute(_SQL["put_declared"].text, tenant_no, key, app.app, job_id, text, app.release, version)


async def set_declared_version(connection: Connection, tenant_no: TenantNo, job_id: JobId, version: int) -> None:
    """This version of the job is as declared."""
    await connection.execute(_SQL["set_declared_version"].text, tenant_no, job_id, version)


async def drop_declared(
    connection: Connection, tenant_no: TenantNo, app: AppRelease, keys: Collection[str]
) -> list[tuple[str, JobId]]:
    """Flag what the app declared with other keys than these; returns what is flagged now."""
    rows = await connection.fetch(_SQL["drop_declared"].text, tenant_no, app.app, list(keys), app.release)
    return [(row["key"], JobId(row["job_id"])) for row in rows]


async def adopt_declared(connection: Connection, tenant_no: TenantNo, job_id: JobId, app: str) -> bool:
    return await connection.fetchval(_SQL["adopt_declared"].text, tenant_no, job_id, app) is not None


async def put_refused(connection: Connection, tenant_no: TenantNo, app: AppRelease, refused: Mapping[str, str]) -> None:
    """The declarations of an app that are refused, with the reasons."""
    keys, reasons = list(refused), list(refused.values())
    await connection.execute(_SQL["put_refused"].text, tenant_no, app.app, app.release, keys, reasons)


async def list_refused(
    connection: Connection, tenant_no: TenantNo | None, *, key: str | None = None, limit: int = 100
) -> list[RefusedRow]:
    rows = await connection.fetch(_SQL["list_refused"].text, tenant_no, key, limit)
    return [RefusedRow(*row.values()) for row in rows]


async def list_dropped(connection: Connection, tenant_no: TenantNo | None, *, limit: int = 100) -> list[DroppedRow]:
    rows = await connection.fetch(_SQL["list_dropped"].text, tenant_no, limit)
    return [DroppedRow(*row.values()) for row in rows]


async def find_renamed(connection: Connection, tenant_no: TenantNo, app: str, release: str) -> list[DeclaredRow]:
    """What an app declares since this release."""
    rows = await connection.fetch(_SQL["find_renamed"].text, tenant_no, app, release)
    return [_declared(row) for row in rows]


def _declared(row: Record) -> DeclaredRow:
    values = dict(row)
    return DeclaredRow(
        **(values | {"job_id": JobId(values["job_id"]), "document": msgspec.json.decode(values["document"])})
    )
