"""Facts that hold for a while and that alerts read (O4): rows of `condition`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from ondot.model.ids import JobId, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("conditions")


async def put_condition(
    connection: Connection,
    tenant_no: TenantNo,
    kind: str,
    subject: str,
    *,
    job_id: JobId | None,
    since: datetime | None,
    holds_s: float | None,
    message: str,
    details: dict[str, Any],
) -> None:
    await connection.execute(
        _SQL["put_condition"].text,
        tenant_no,
        kind,
        subject,
        job_id,
        since,
        holds_s,
        message,
        msgspec.json.encode(details).decode(),
    )


async def remove_condition(connection: Connection, tenant_no: TenantNo, kind: str, subject: str) -> None:
    await connection.execute(_SQL["remove_condition"].text, tenant_no, kind, subject)


async def list_messages(connection: Connection, tenant_no: TenantNo, kinds: Sequence[str]) -> list[str]:
    """The texts of those that hold now, oldest first."""
    return [row["message"] for row in await connection.fetch(_SQL["list_messages"].text, tenant_no, kinds)]


async def forget_conditions(connection: Connection) -> None:
    """Those that ended by themselves."""
    await connection.execute(_SQL["forget_conditions"].text)
