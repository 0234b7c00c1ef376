"""`/v1/secrets`: set, list and delete secrets (T5). No route returns a value."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Path
from pydantic import AfterValidator, BaseModel, Field

from ondot.api.dependencies import ByCaller, RequestServices, Tenant, needs
from ondot.api.openapi import takes
from ondot.api.parameters import Limit, only_known_parameters
from ondot.api.request_body import JsonBody
from ondot.document.fields import Body, FunctionName, PoolName, sentence
from ondot.document.reading import read_form
from ondot.flow.secrets import get_secret, remove_secret, set_secret
from ondot.model.access import Right
from ondot.model.errors import Fault, InvalidBody, InvalidParameters
from ondot.model.secret import MASK, MAX_BYTES, MAX_NAME, MIN_CHARACTERS, Destinations, is_host, is_secret_name
from ondot.store.secrets import SecretRow, list_secrets

router = APIRouter(tags=["secrets"], dependencies=[Depends(only_known_parameters), needs(Right.SECRETS_MANAGE)])

MOST_LISTED = 100


def _value(value: str) -> str:
    """A message never repeats the value."""
    if value.strip() == MASK:
        raise sentence(f"`value` is {MASK}, which stands for a hidden value: give the value itself.")
    if len(value.strip()) < MIN_CHARACTERS:
        raise sentence(
            f"`value` must have at least {MIN_CHARACTERS} characters: ondot removes values from output, and a shorter"
            " one would be removed from innocent text too."
        )
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise sentence("`value` must be text that UTF-8 can encode; send other data in base64.") from None
    if size > MAX_BYTES:
        raise sentence(f"`value` must have at most {MAX_BYTES:,} bytes.")
    return value


def _host(host: str) -> str:
    host = host.lower().rstrip(".")
    if not is_host(host):
        raise ValueError(
            "the name of a host without scheme, port and path, for example api.stripe.com or *.example.com"
        )
    return host.strip("[]")


def _each_once(items: list[str] | None) -> list[str] | None:
    return None if items is None else list(dict.fromkeys(items))


Host = Annotated[str, AfterValidator(_host)]


class SecretBody(Body):
    """A field that is left out stays as it is. null for a list removes it."""

    value: Annotated[str, AfterValidator(_value)] | None = Field(
        default=None,
        description="The value. It is encrypted and never shown again. The same value makes no new version.",
        examples=["a long random value"],
    )
    hosts: Annotated[list[Host], Field(min_length=1, max_length=MOST_LISTED), AfterValidator(_each_once)] | None = (
        Field(
            default=None,
            description="Hosts that it may be sent to; `*.example.com` stands for every host below example.com.",
            examples=[["api.stripe.com"]],
        )
    )
    functions: (
        Annotated[list[FunctionName], Field(min_length=1, max_length=MOST_LISTED), AfterValidator(_each_once)] | None
    ) = Field(default=None, description="Functions that may get it.", examples=[["charge"]])
    pools: Annotated[list[PoolName], Field(min_length=1, max_length=MOST_LISTED), AfterValidator(_each_once)] | None = (
        Field(default=None, description="Pools in which it may be used.", examples=[["default"]])
    )


class UsedByOut(BaseModel):
    id: UUID
    name: str


class SecretOut(BaseModel):
    """A secret without its value."""

    name: str
    version: int = Field(description="Grows with each new value.")
    hosts: list[str] | None = Field(description="null: any, unless `functions` are listed.")
    functions: list[str] | None = Field(description="null: any, unless `hosts` are listed.")
    pools: list[str] | None = Field(description="null: any.")
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str
    used_by: list[UsedByOut] = Field(
        description="Jobs that recur or have a key and refer to it, the newest 20. Other jobs are not listed."
    )


class SecretList(BaseModel):
    items: list[SecretOut]
    next_cursor: str | None


class SecretDeleted(BaseModel):
    name: str
    deleted: bool = True
    used_by: list[UsedByOut] = Field(description="Jobs that refer to it: their next runs fail.")


def _name(name: str) -> str:
    if not is_secret_name(name):
        raise InvalidParameters(
            f"{name[:80]!r} is not a name of a secret: use at most {MAX_NAME} lower-case letters, digits, _ . and -, a"
            " letter or digit first."
        )
    return name


SecretPath = Annotated[str, Path(max_length=200, description="The name of the secret.", examples=["stripe"])]


@router.get("/secrets", response_model=SecretList)
async def list_all_secrets(
    services: RequestServices, tenant_no: Tenant, limit: Limit = 50, cursor: str | None = None
) -> SecretList:
    """Secrets by name: versions, who changed them and when, where they may go, and jobs that use them."""
    async with services.database.connection() as connection:
        rows = await list_secrets(connection, tenant_no, after=_name(cursor) if cursor else "", limit=limit + 1)
    return SecretList(
        items=[_out(row) for row in rows[:limit]], next_cursor=rows[limit - 1].name if len(rows) > limit else None
    )


@router.get("/secrets/{name}", response_model=SecretOut)
async def get_one_secret(services: RequestServices, tenant_no: Tenant, name: SecretPath) -> SecretOut:
    """One secret, without its value."""
    return _out(await get_secret(services.database, tenant_no, _name(name)))


@router.put("/secrets/{name}", response_model=SecretOut, openapi_extra=takes(SecretBody))
async def put_secret(
    services: RequestServices, tenant_no: Tenant, name: SecretPath, body: JsonBody, by: ByCaller
) -> SecretOut:
    """Create a secret, or give it a new value. Attempts that start from now on get the new value."""
    wanted = read_form(SecretBody, body, 'for example {"value": "…", "hosts": ["api.stripe.com"]}')
    given = wanted.model_fields_set
    if "value" in given and wanted.value is None:
        message = "`value` is null: leave it out to keep the value, or delete the secret."
        raise InvalidBody(message, faults=(Fault("/value", message),))
    lists: dict[str, Any] = {
        field: None if (items := getattr(wanted, field)) is None else tuple(items)
        for field in ("hosts", "functions", "pools")
        if field in given
    }

    def change(destinations: Destinations) -> Destinations:
        return Destinations(
            **({field: getattr(destinations, field) for field in Destinations.__struct_fields__} | lists)
        )

    return _out(await set_secret(services.vault, tenant_no, _name(name), wanted.value, change, by=by))


@router.delete("/secrets/{name}", response_model=SecretDeleted)
async def delete_one_secret(
    services: RequestServices, tenant_no: Tenant, name: SecretPath, by: ByCaller
) -> SecretDeleted:
    """Delete a secret. The next attempts of jobs that refer to it fail without retries."""
    row = await remove_secret(services.database, tenant_no, _name(name), by=by)
    return SecretDeleted(name=row.name, used_by=[UsedByOut(id=job.id, name=job.name) for job in row.used_by])


def _out(row: SecretRow) -> SecretOut:
    destinations = row.destinations
    return SecretOut(
        name=row.name,
        version=row.version,
        hosts=None if destinations.hosts is None else list(destinations.hosts),
        functions=None if destinations.functions is None else list(destinations.functions),
        pools=None if destinations.pools is None else list(destinations.pools),
        created_at=row.created_at,
        created_by=row.created_by,
        updated_at=row.updated_at,
        updated_by=row.updated_by,
        used_by=[UsedByOut(id=job.id, name=job.name) for job in row.used_by],
    )
