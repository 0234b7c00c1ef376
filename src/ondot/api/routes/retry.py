"""`/v1/executions/{id}/retry`: run an execution again by hand (E10)."""

from typing import Annotated
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Request, Response

from ondot.api import responses
from ondot.api.backpressure import QUEUE_FULL
from ondot.api.dead_letter_bodies import RetryExecutionBody, replay_of, retry_request
from ondot.api.dependencies import Asked, OptionalBody, Tenant, id_in_path, only_known_parameters
from ondot.api.openapi import takes
from ondot.api.routes.audit import Actor
from ondot.api.routes.jobs import Key, idempotency_of
from ondot.api.views import execution_out
from ondot.flow.retry import retry
from ondot.model.ids import ExecutionId
from ondot.store.audit import By
from ondot.store.executions import get_execution

router = APIRouter(tags=["executions"], dependencies=[Depends(only_known_parameters)])

ExecutionPath = Annotated[UUID, Depends(id_in_path("execution"))]


class _Identified(msgspec.Struct):
    id: UUID


@router.post(
    "/executions/{id}/retry",
    status_code=201,
    response_model=responses.ExecutionOut,
    responses={
        202: {"model": responses.ExecutionOut, "description": "It was waiting for its next attempt."},
        **QUEUE_FULL,
    },
    openapi_extra=takes(RetryExecutionBody, required=False),
)
async def retry_execution(
    request: Request,
    asked: Asked,
    tenant_no: Tenant,
    actor: Actor,
    id_: ExecutionPath,
    body: OptionalBody,
    key: Key = None,
) -> Response:
    """Run it again: the next attempt now if it waits for one (202), a new execution if it has ended (201)."""
    wanted = retry_request(body)
    idempotency = idempotency_of(request, key)

    async def pools() -> dict[str, int]:
        async with asked.database.connection() as connection:
            found = await get_execution(connection, tenant_no, ExecutionId(id_))
        return {found.pool: 1} if found else {}

    async with asked.room_now(tenant_no, pools, idempotency):
        text = await retry(
            asked.database,
            asked.dispatcher,
            tenant_no,
            ExecutionId(id_),
            replay_of(wanted),
            by=By(actor, wanted.reason),
            render=lambda retried: execution_out(retried.execution, retried.spec, whole=True).model_dump_json(),
            idempotency=idempotency,
        )
    # Of the answer's text, which for a repeated Idempotency-Key is that of the first time.
    status = 202 if msgspec.json.decode(text, type=_Identified).id == id_ else 201
    return Response(text, status_code=status, media_type="application/json")
