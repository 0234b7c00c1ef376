"""`/v1/audit`: who did what, and when (T6)."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field

from ondot.api.dependencies import RequestServices, Tenant, needs
from ondot.api.parameters import Cursor, Limit, only_known_parameters, parse_cursor
from ondot.api.responses import Page
from ondot.model.access import LOCAL_NAME, Right
from ondot.model.errors import InvalidParameters
from ondot.store.audit import list_audit

router = APIRouter(tags=["audit"], dependencies=[Depends(only_known_parameters)])


class AuditOut(BaseModel):
    """One action of a person or a program."""

    id: UUID
    at: datetime
    actor: str = Field(description=f"The name of the API key; `{LOCAL_NAME}` where none is required.")
    action: str = Field(examples=["dead_letter.replay"])
    subject: UUID | None = Field(description="The id of the job, execution or operation that it changed.")
    detail: Any


class AuditList(Page[AuditOut]):
    pass


@router.get("/audit", dependencies=[needs(Right.AUDIT_READ)], response_model=AuditList)
async def audit(
    services: RequestServices,
    tenant_no: Tenant,
    subject: Annotated[str | None, Query(description="Only actions on this id.")] = None,
    action: Annotated[
        str | None, Query(max_length=63, description="Only this action, for example dead_letter.replay.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> AuditList:
    """Actions of people and programs, newest first."""
    async with services.database.connection() as connection:
        rows = await list_audit(
            connection,
            tenant_no,
            subject=_parse_subject(subject),
            action=action,
            before=parse_cursor(cursor),
            limit=limit + 1,
        )
    return AuditList(
        items=[
            AuditOut(id=row.id, at=row.at, actor=row.actor, action=row.action, subject=row.subject, detail=row.detail)
            for row in rows[:limit]
        ],
        next_cursor=str(rows[limit - 1].id) if len(rows) > limit else None,
    )


def _parse_subject(written: str | None) -> UUID | None:
    try:
        return None if written is None else UUID(written)
    except ValueError:
        raise InvalidParameters(
            "subject must be an id, for example that of an execution: 019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a."
        ) from None
