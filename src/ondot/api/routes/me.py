"""`GET /v1/me`: who the caller is to this server, so that a person can check a key (D5)."""

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from ondot import __version__
from ondot.api.dependencies import CallerDep, RequestServices, needs
from ondot.api.parameters import only_known_parameters
from ondot.model.access import Right

router = APIRouter(tags=["keys"], dependencies=[Depends(only_known_parameters)])


class MeOut(BaseModel):
    name: str = Field(description="As the audit log names the caller.")
    role: str
    tenant: str | None = Field(description="The tenant that the caller acts for.")
    rights: list[str]
    pools: list[str] | None = Field(description="The pools that the key is limited to; null: all.")
    release: str = Field(description="The release of ondot that answers.")


@router.get("/me", dependencies=[needs(Right.JOBS_READ, by_pool=True)], response_model=MeOut)
async def me(services: RequestServices, caller: CallerDep) -> MeOut:
    """Who sent this request, and with which rights."""
    tenant = await services.database.tenants.get(caller.tenant_no)
    return MeOut(
        name=caller.name,
        role=caller.role.value,
        tenant=tenant.name if tenant else None,
        rights=sorted(right.value for right in caller.rights),
        pools=None if caller.pools is None else sorted(caller.pools),
        release=__version__,
    )
