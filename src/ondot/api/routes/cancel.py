"""`/v1/executions/{id}/cancel`: end an execution, whether it waits or runs (E8)."""

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends
from pydantic import Field

from ondot.api import responses
from ondot.api.dependencies import Asked, OptionalBody, Tenant, id_in_path, only_known_parameters
from ondot.api.openapi import takes
from ondot.api.routes.audit import Actor
from ondot.api.routes.jobs import specs_of
from ondot.api.views import execution_out
from ondot.document.fields import Body, PlainText
from ondot.document.reading import read_form
from ondot.flow.cancel import cancel
from ondot.model.ids import ExecutionId

router = APIRouter(tags=["executions"], dependencies=[Depends(only_known_parameters)])

ExecutionPath = Annotated[UUID, Depends(id_in_path("execution"))]


class CancelBody(Body):
    """Why an execution is cancelled."""

    reason: PlainText | None = Field(default=None, description="Why; it is kept.", examples=["wrong region"])


@router.post(
    "/executions/{id}/cancel",
    status_code=202,
    response_model=responses.ExecutionOut,
    openapi_extra=takes(CancelBody, required=False),
)
async def cancel_execution(
    asked: Asked, tenant_no: Tenant, actor: Actor, id_: ExecutionPath, body: OptionalBody
) -> responses.ExecutionOut:
    """Cancel it. What waits is CANCELLED at once; what runs hears of it within two seconds (`cancel_requested_at`), has
    the job's `cancel_grace` to end, and is ended by force after that."""
    reason = None if body is None else read_form(CancelBody, body, 'for example {"reason": "wrong region"}').reason
    row = await cancel(asked.database, tenant_no, ExecutionId(id_), actor=actor, reason=reason)
    specs = await specs_of(asked, [row])
    return execution_out(row, specs.get(row.id), whole=True)
