"""`/v1/webhooks`: the secrets that sign HTTP calls (T3). They are shown, because receivers need them; a secret that was
stored with `/v1/secrets` never is."""

from datetime import datetime
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, RequestServices, Tenant, needs
from ondot.api.openapi import takes
from ondot.api.parameters import only_known_parameters
from ondot.api.request_body import OptionalJsonBody
from ondot.document.fields import Body, Duration
from ondot.document.reading import read_form
from ondot.flow.signing import OVERLAP_S
from ondot.model.access import Right
from ondot.model.errors import InvalidParameters
from ondot.model.signature import signing_host, write_secret

router = APIRouter(tags=["webhooks"], dependencies=[Depends(only_known_parameters), needs(Right.WEBHOOKS_MANAGE)])

LONGEST_OVERLAP_S: Final = 30 * 86_400
NEVER_STORED: Final = "no-store"


class SecretInForce(BaseModel):
    secret: str
    version: int
    created_at: datetime
    ends_at: datetime | None = Field(description="null: the current one.")


class SigningSecretOut(BaseModel):
    """The secrets of one host. A call is signed with each of them."""

    host: str
    secret: str = Field(description="The current one: `whsec_` and base64.", examples=["whsec_…"])
    secrets: list[SecretInForce] = Field(description="All in force, the current one first.")


class RotateBody(Body):
    overlap: Annotated[Duration, Field(le=LONGEST_OVERLAP_S)] = Field(
        default=OVERLAP_S,
        description="How long calls are signed with the old secret too. 0: it ends at once.",
        examples=["24h"],
    )


class VersionInForce(BaseModel):
    version: int
    created_at: datetime
    ends_at: datetime | None = Field(description="null: the current one.")


class RotatedOut(BaseModel):
    """The versions in force, the current one first. Each host reads its new secret from `/signing-secret`."""

    versions: list[VersionInForce]


@router.get("/webhooks/signing-secret", response_model=SigningSecretOut)
async def get_signing_secret(
    services: RequestServices,
    tenant_no: Tenant,
    by: ByCaller,
    response: Response,
    host: Annotated[
        str,
        Query(max_length=2000, description="The host of the receiver, or a URL on it.", examples=["api.example.com"]),
    ],
) -> SigningSecretOut:
    """The secret with which calls to a host are signed. Each host has its own; reading it is recorded."""
    try:
        name = signing_host(host)
    except ValueError as fault:
        raise InvalidParameters(f"`host`: {fault}.") from None
    keys = await services.signing.read_host_keys(tenant_no, name, by=by)
    response.headers["Cache-Control"] = NEVER_STORED
    secrets = [
        SecretInForce(secret=write_secret(key.key), version=key.version, created_at=key.created_at, ends_at=key.ends_at)
        for key in keys
    ]
    return SigningSecretOut(host=name, secret=secrets[0].secret, secrets=secrets)


@router.post(
    "/webhooks/signing-secret/rotate",
    response_model=RotatedOut,
    openapi_extra=takes(RotateBody, required=False),
)
async def rotate_signing_secret(
    services: RequestServices, tenant_no: Tenant, body: OptionalJsonBody, by: ByCaller
) -> RotatedOut:
    """Give every host a new secret. Calls are signed with the old one too, for 24 hours unless `overlap` is set."""
    wanted = read_form(RotateBody, {} if body is None else body, 'for example {"overlap": "24h"}')
    rows = await services.signing.rotate(tenant_no, wanted.overlap, by=by)
    return RotatedOut(
        versions=[VersionInForce(version=row.version, created_at=row.created_at, ends_at=row.ends_at) for row in rows]
    )
