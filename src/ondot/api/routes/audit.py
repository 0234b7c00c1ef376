"""`/v1/audit`: who did what, and when; as a file; and whether it is intact (T6)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from ondot.api.dependencies import CallerDep, RequestServices, Services, needs, while_allowed
from ondot.api.export import csv_row
from ondot.api.parameters import Cursor, Instant, Limit, check_instant, only_known_parameters, parse_cursor
from ondot.api.responses import Page
from ondot.flow.audit_seal import seal_keys
from ondot.flow.audit_verify import verify_audit
from ondot.model.access import LOCAL_NAME, Caller, Right
from ondot.model.errors import InvalidParameters
from ondot.model.ids import INSTALLATION, TenantNo
from ondot.model.tenant import Tenant
from ondot.store.audit import AuditFilter, AuditRow, list_audit

router = APIRouter(tags=["audit"], dependencies=[Depends(only_known_parameters)])

EXPORTED_AT_ONCE: Final = 1000
COLUMNS: Final = (
    *("id", "at", "actor", "action", "subject", "reason", "key_id", "user_id", "address", "request_id"),
    *("home_tenant", "before", "after", "detail"),
)

Names = Mapping[TenantNo, Tenant]

_verifying: Final = asyncio.Semaphore(1)
"""A verification reads the whole log: one at a time in a process."""


class AuditOut(BaseModel):
    """One action of a person or a program."""

    id: UUID
    at: datetime
    actor: str = Field(description=f"The name of the API key or user; `{LOCAL_NAME}` where none is required.")
    action: str = Field(examples=["dead_letter.replay"])
    subject: UUID | None = Field(description="The id of the job, execution or operation that it changed.")
    reason: str | None = Field(description="Why, if the caller stated it.")
    key_id: UUID | None = Field(description="The API key that was used.")
    user_id: UUID | None = Field(description="The user who was signed in.")
    address: str | None = Field(description="Where the request came from.", examples=["192.0.2.7"])
    request_id: str | None = Field(description="`X-Request-Id` of the request.")
    home_tenant: str | None = Field(description="The tenant of an owner who acted for this one.")
    before: Any = Field(description="The values that changed, as they were. Secrets are masked.")
    after: Any = Field(description="The same values after the change.")
    detail: Any


class AuditList(Page[AuditOut]):
    pass


class Fault(BaseModel):
    """What does not fit."""

    what: str = Field(examples=["Entry 019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a of 2026-11-15 12:00:00 UTC was changed."])
    seal: int | None = Field(description="The number of the seal.")
    entry: UUID | None = Field(description="The id of the entry, if it is about one.")


class Verification(BaseModel):
    """Whether the audit log is intact."""

    intact: bool
    entries: int = Field(description="Entries that were compared with their seal.")
    seals: int
    waiting: int = Field(description="Entries that wait for their seal, usually those of the last second.")
    signed: int = Field(description="Seals whose signature was checked. 0: this server has no audit key.")
    gone: int = Field(description="Entries that seals list and that are older than kept history.")
    first_seal: int = Field(description="The first seal that is left; those before went with their entries.")
    complete_since: datetime | None = Field(description="Entries before it may be gone; null: none is.")
    head: str | None = Field(description="The hash of the newest seal that was read.")
    head_seal: int = Field(description="The number of that seal.")
    fault_count: int
    faults: list[Fault] = Field(description="The first of them.")


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class _Wanted:
    where: AuditFilter


async def _wanted(
    subject: Annotated[str | None, Query(description="Only actions on this id.")] = None,
    action: Annotated[
        str | None, Query(max_length=63, description="Only this action, for example dead_letter.replay.")
    ] = None,
    actor: Annotated[
        str | None, Query(max_length=200, description="Only actions of this key or user, by name.")
    ] = None,
    key_id: Annotated[str | None, Query(description="Only actions with this API key.")] = None,
    user_id: Annotated[str | None, Query(description="Only actions of this user.")] = None,
    request_id: Annotated[str | None, Query(max_length=128, description="Only actions of this request.")] = None,
    from_at: Instant = None,
    to_at: Instant = None,
) -> _Wanted:
    return _Wanted(
        {
            "subject": _parse_id("subject", subject),
            "action": action,
            "actor": actor,
            "key_id": _parse_id("key_id", key_id),
            "user_id": _parse_id("user_id", user_id),
            "request_id": request_id,
            "from_at": check_instant("from_at", from_at),
            "to_at": check_instant("to_at", to_at),
        }
    )


Wanted = Annotated[_Wanted, Depends(_wanted)]
OfInstallation = Annotated[
    bool, Query(description="Of the installation itself: tenants, pools, fleet. Only for owners.")
]


def _tenant_of(caller: Caller, *, installation: bool) -> TenantNo:
    if not installation:
        return caller.tenant_no
    caller.require(Right.TENANTS_MANAGE)
    return INSTALLATION


@router.get("/audit", dependencies=[needs(Right.AUDIT_READ)], response_model=AuditList)
async def audit(
    services: RequestServices,
    caller: CallerDep,
    wanted: Wanted,
    installation: OfInstallation = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> AuditList:
    """Actions of people and programs, newest first."""
    tenant_no = _tenant_of(caller, installation=installation)
    async with services.database.reading(tenant_no) as connection:
        rows = await list_audit(connection, tenant_no, before=parse_cursor(cursor), limit=limit + 1, **wanted.where)
    names = await services.database.tenants.snapshot()
    return AuditList(
        items=[audit_out(row, names) for row in rows[:limit]],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


@router.get("/audit/export", dependencies=[needs(Right.AUDIT_READ)], response_class=StreamingResponse)
async def export_audit(
    request: Request,
    services: RequestServices,
    caller: CallerDep,
    wanted: Wanted,
    installation: OfInstallation = False,
    format: Annotated[  # noqa: A002 - the API's word
        ExportFormat, Query(description="`jsonl`: a JSON object in each line. `csv`: with a header.")
    ] = ExportFormat.JSONL,
) -> StreamingResponse:
    """All matching entries as a file, newest first. It is streamed: any number of entries."""
    tenant_no = _tenant_of(caller, installation=installation)
    is_csv = format is ExportFormat.CSV
    # Before the answer starts: a database that is away is a 503, not a file that ends early.
    first = await _read_page(services, tenant_no, wanted.where)
    lines = _stream(services, tenant_no, wanted.where, first, _csv_lines if is_csv else _json_lines)
    return StreamingResponse(
        while_allowed(request, lines),
        media_type="text/csv; charset=utf-8; header=present" if is_csv else "application/x-ndjson",
        headers={"Content-Disposition": f'attachment; filename="audit.{format.value}"'},
    )


@router.get("/audit/verify", dependencies=[needs(Right.AUDIT_READ)], response_model=Verification)
async def verify(
    services: RequestServices,
    caller: CallerDep,
    installation: OfInstallation = False,
    from_at: Instant = None,
    to_at: Instant = None,
    head: Annotated[
        str | None, Query(description="A hash from the log (`audit.sealed`) that must still be in the chain.")
    ] = None,
) -> Verification:
    """Check that no entry is missing, changed, inserted or reordered, and name those that do not fit."""
    tenant_no = _tenant_of(caller, installation=installation)
    database = services.database
    async with _verifying:
        verdict = await verify_audit(
            database,
            tenant_no,
            seal_keys(database.settings),
            from_at=check_instant("from_at", from_at),
            to_at=check_instant("to_at", to_at),
            head=_parse_hash(head),
        )
    return Verification.model_validate(verdict.as_dict())


def audit_out(row: AuditRow, tenants: Names) -> AuditOut:
    home = None if row.home_tenant_no is None else tenants.get(row.home_tenant_no)
    return AuditOut(
        id=row.id,
        at=row.at,
        actor=row.actor,
        action=row.action,
        subject=row.subject,
        reason=row.reason,
        key_id=row.key_id,
        user_id=row.user_id,
        address=row.address,
        request_id=row.request_id,
        home_tenant=None if home is None else home.name,
        before=row.before,
        after=row.after,
        detail=row.detail,
    )


async def _read_page(
    services: Services, tenant_no: TenantNo, where: AuditFilter, before: UUID | None = None
) -> list[AuditRow]:
    async with services.database.reading(tenant_no) as connection:
        return await list_audit(connection, tenant_no, before=before, limit=EXPORTED_AT_ONCE, **where)


async def _stream(
    services: Services,
    tenant_no: TenantNo,
    where: AuditFilter,
    rows: list[AuditRow],
    write: Callable[[list[AuditRow], Names, bool], str],
) -> AsyncIterator[str]:
    """A page at a time, each with a connection of its own: a slow reader holds none. `rows`: the first page."""
    is_first = True
    while True:
        if text := write(rows, await services.database.tenants.snapshot(), is_first):
            yield text
        if len(rows) < EXPORTED_AT_ONCE or services.stopping.is_set():
            return
        rows, is_first = await _read_page(services, tenant_no, where, rows[-1].id), False


def _json_lines(rows: list[AuditRow], names: Names, _is_first: bool) -> str:
    return "".join(audit_out(row, names).model_dump_json() + "\n" for row in rows)


def _csv_lines(rows: list[AuditRow], names: Names, is_first: bool) -> str:
    entries = (audit_out(row, names).model_dump(mode="json") for row in rows)
    lines = [csv_row([entry[column] for column in COLUMNS]) for entry in entries]
    return b"".join([csv_row(COLUMNS), *lines] if is_first else lines).decode()


def _parse_id(name: str, written: str | None) -> UUID | None:
    try:
        return None if written is None else UUID(written)
    except ValueError:
        raise InvalidParameters(
            f"{name} must be an id, for example that of an execution: 019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a."
        ) from None


def _parse_hash(written: str | None) -> bytes | None:
    try:
        found = None if written is None else bytes.fromhex(written)
    except ValueError:
        found = b""
    if found is not None and len(found) != 32:
        raise InvalidParameters("head must be a hash of 64 hexadecimal digits, as logged with audit.sealed.")
    return found
