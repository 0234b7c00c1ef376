"""Functions that workers have registered (D1), by tenant, name, app and release.

A release is live while a worker runs it for the tenant. The one in force is the newest live one, else the newest.
Workers that serve all tenants register once, for tenant 0.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from ondot.model.app_release import AppRelease
from ondot.model.function import DeclaredFunction
from ondot.model.ids import ExecutionId, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("known_functions")

ALL_TENANTS: Final = TenantNo(0)


@dataclass(frozen=True, slots=True)
class Mark:
    """One release of a function, without what is long."""

    name: str
    app: str
    release: str
    digest: str
    is_live: bool


@dataclass(frozen=True, slots=True)
class Definition:
    digest: str
    name: str
    options: dict[str, Any]
    argument_defaults: dict[str, Any]
    schema: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """A function in a list: as its release in force has it."""

    name: str
    app: str
    release: str
    description: str | None
    options: dict[str, Any]
    registered_at: datetime
    seen_at: datetime
    releases: int
    workers: int


@dataclass(frozen=True, slots=True)
class ReleaseRow:
    name: str
    app: str
    release: str
    description: str | None
    options: dict[str, Any]
    argument_defaults: dict[str, Any]
    schema: dict[str, Any] | None
    registered_at: datetime
    seen_at: datetime
    workers: int


@dataclass(frozen=True, slots=True)
class FunctionWorker:
    id: UUID
    host: str
    pid: int
    app: str
    release: str
    started_at: datetime
    pools: list[str]


async def register_functions(
    connection: Connection, tenant_no: TenantNo, app: AppRelease, functions: Sequence[DeclaredFunction]
) -> None:
    """All functions of a release, for one tenant or for `ALL_TENANTS`."""
    by_name = sorted(functions, key=lambda function: function.name)
    await connection.execute(
        _SQL["register_functions"].text,
        tenant_no,
        app.app,
        app.release,
        [function.name for function in by_name],
        [function.digest for function in by_name],
        [function.description for function in by_name],
        [_text(function.options) for function in by_name],
        [_text(function.argument_defaults) for function in by_name],
        [None if function.schema is None else _text(function.schema) for function in by_name],
        [_text(function.enqueued) for function in by_name],
    )


async def list_known(connection: Connection, tenant_no: TenantNo) -> list[Mark]:
    """By name, the release in force of each first."""
    return [Mark(*row.values()) for row in await connection.fetch(_SQL["list_known"].text, tenant_no)]


async def read_definitions(connection: Connection, tenant_no: TenantNo, digests: Collection[str]) -> list[Definition]:
    rows = await connection.fetch(_SQL["read_definitions"].text, tenant_no, list(digests))
    return [Definition(digest, name, *map(_json, rest)) for digest, name, *rest in (row.values() for row in rows)]


async def list_functions(
    connection: Connection,
    tenant_no: TenantNo,
    *,
    after: str = "",
    part: str | None = None,
    app: str | None = None,
    limit: int,
) -> list[FunctionRow]:
    rows = await connection.fetch(_SQL["list_functions"].text, tenant_no, after, part and part.lower(), app, limit)
    return [FunctionRow(**{**row, "options": _json(row["options"])}) for row in rows]


async def get_function(connection: Connection, tenant_no: TenantNo, name: str) -> list[ReleaseRow]:
    """Its releases, the one in force first; empty if it is not known."""
    rows = await connection.fetch(_SQL["get_function"].text, tenant_no, name)
    long = ("options", "argument_defaults", "schema")
    return [ReleaseRow(**{**row, **{field: _json(row[field]) for field in long}}) for row in rows]


async def list_workers_of_function(
    connection: Connection, tenant_no: TenantNo, name: str, limit: int
) -> list[FunctionWorker]:
    rows = await connection.fetch(_SQL["list_workers_of_function"].text, tenant_no, name, limit)
    return [FunctionWorker(**row) for row in rows]


async def mark_live_functions(connection: Connection) -> None:
    await connection.execute(_SQL["mark_live_functions"].text)


async def forget_functions(connection: Connection, days: int, limit: int) -> int:
    return int(await connection.fetchval(_SQL["forget_functions"].text, days, limit))


async def find_known_calls(connection: Connection, limit: int) -> list[tuple[TenantNo, ExecutionId]]:
    """Executions that a worker returned, and whose function another has now."""
    rows = await connection.fetch(_SQL["find_known_calls"].text, limit)
    return [(TenantNo(row["tenant_no"]), ExecutionId(row["execution_id"])) for row in rows]


async def forget_call(connection: Connection, tenant_no: TenantNo, id_: ExecutionId) -> None:
    """It is no longer returned."""
    await connection.execute(_SQL["forget_call"].text, tenant_no, id_)


async def count_unknown_calls(connection: Connection, limit: int) -> list[tuple[str, int]]:
    rows = await connection.fetch(_SQL["count_unknown_calls"].text, limit)
    return [(row["function"], row["count"]) for row in rows]


async def list_shared_names(connection: Connection, limit: int) -> list[tuple[str, list[str], str]]:
    """Functions of one name in several apps whose workers serve the same pool: name, apps, pool."""
    rows = await connection.fetch(_SQL["list_shared_names"].text, limit)
    return [(row["name"], row["apps"], row["pool"]) for row in rows]


async def forget_unknown_calls(connection: Connection, limit: int) -> int:
    return int(await connection.fetchval(_SQL["forget_unknown_calls"].text, limit))


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _json(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
