"""A tenant as owners write it (T1): its name, weight, pools, quotas and where its calls may go; read with every fault
and its pointer."""

import re
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final

from msgspec import structs
from pydantic import AfterValidator, Field, WithJsonSchema

from ondot.document.fields import LARGEST_INTEGER, Body, sentence
from ondot.document.limits import RateBody, RateOrNone, or_text
from ondot.document.reading import read_form
from ondot.document.rules import POOL_NAME
from ondot.document.shorthand import rate_object
from ondot.model.addresses import parse_networks, parse_places
from ondot.model.errors import Fault, InvalidBody
from ondot.model.gates import Rate
from ondot.model.tenant import ALL_POOLS, NO_QUOTAS, PUBLIC_TARGETS, Quotas, TargetRules, Tenant

LEAST_WEIGHT, MOST_WEIGHT = 0.01, 1_000
RATES: Final = ("starts", "creates", "events")
STARTS_BURST_S: Final = 0.1
"""Work is leased in batches: the default burst of `starts` is what the rate allows in this time, as for pools."""
EXAMPLE: Final = 'for example {"name": "acme", "weight": 2, "pools": ["default"], "quotas": {"creates": "100/1s"}}'

_NAME: Final = re.compile(POOL_NAME)


def _tenant_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("a tenant's name: at most 63 lower-case letters, digits, _ . and -, a letter or digit first")
    return name


def _pools(pools: list[str]) -> list[str]:
    if ALL_POOLS in pools and len(set(pools)) > 1:
        raise ValueError('a list of pools, or ["*"] alone for all of them')
    return list(dict.fromkeys(pools))


def _pool_or_all(name: str) -> str:
    if name != ALL_POOLS and not _NAME.fullmatch(name):
        raise ValueError('a pool\'s name, or "*" for all: lower-case letters, digits, _ . and -, for example "default"')
    return name


def _networks(texts: list[str]) -> list[str]:
    try:
        return [str(network) for network in parse_networks(texts)]
    except ValueError as fault:
        raise sentence(f"`private_networks` {fault}.") from None


def _places(texts: list[str]) -> list[str]:
    lowered = [text.strip().lower().rstrip(".") for text in texts]
    try:
        parse_places(lowered)
    except ValueError as fault:
        raise sentence(f"The list {fault}.") from None
    return list(dict.fromkeys(lowered))


Networks = Annotated[list[str], Field(max_length=100), AfterValidator(_networks)]
Places = Annotated[list[str], Field(max_length=100), AfterValidator(_places)]
Name = Annotated[str, AfterValidator(_tenant_name), Field(json_schema_extra={"pattern": f"^{POOL_NAME}$"})]
Count = Annotated[int, Field(ge=1, le=LARGEST_INTEGER)]
Weight = Annotated[float, Field(ge=LEAST_WEIGHT, le=MOST_WEIGHT)]
Days = Annotated[int, Field(ge=1, le=3650)]
PoolNames = Annotated[
    list[Annotated[str, AfterValidator(_pool_or_all), WithJsonSchema({"type": "string", "maxLength": 63})]],
    Field(min_length=1, max_length=1_000),
    AfterValidator(_pools),
]


def _rate(description: str, example: str) -> Any:
    return Field(default=None, description=description, examples=[example], json_schema_extra=or_text(example))


class QuotasBody(Body):
    """Quotas of a tenant; null or absent: no quota. In a change, those that are left out stay."""

    jobs: Count | None = Field(default=None, description="Live jobs: with a coming fire, paused, waiting or running.")
    payload_bytes: Count | None = Field(default=None, description="The largest payload of a job or a run, in bytes.")
    concurrent: Count | None = Field(default=None, description="Attempts that run at once, over all pools.")
    reserved: Count | None = Field(default=None, description="Slots of each pool that are kept free for the tenant.")
    starts: RateOrNone = _rate("Attempts that start in a time.", "200/1s")
    creates: RateOrNone = _rate("Jobs that are created in a time, and runs that are asked for.", "100/1s")
    events: RateOrNone = _rate("Events that are sent in a time.", "500/1s")


class TargetsBody(Body):
    """Where a tenant's HTTP calls may go. A list that is left out is empty in a new tenant, and stays in a change."""

    private_networks: Networks = Field(
        default=[], description="Private networks that it may call.", examples=[["10.1.0.0/16"]]
    )
    allow: Places = Field(
        default=[],
        description="Hosts and networks; if there are any, it calls nothing else.",
        examples=[["*.example.com"]],
    )
    deny: Places = Field(
        default=[], description="Hosts and networks that it never calls.", examples=[["198.51.100.0/24"]]
    )


class TenantBody(Body):
    """A new tenant."""

    name: Name = Field(description="Unique among tenants, and stays.", examples=["acme"])
    weight: Weight = Field(default=1, description="Its share of a busy pool, beside other tenants.", examples=[2])
    pools: PoolNames = Field(
        default=["default"],
        description='The pools that it may name; ["*"]: all, also new ones.',
        examples=[["default"]],
    )
    quotas: QuotasBody = Field(default=QuotasBody(), description="Its quotas; none by default.")
    targets: TargetsBody = Field(default=TargetsBody(), description="Where its HTTP calls may go: the public internet.")
    retention_days: Days | None = Field(
        default=None, description="How long its history is kept, in days; null: as the installation's.", examples=[90]
    )


class TenantPatchBody(Body):
    """Changes of a tenant: fields that are left out stay, a quota that is null is removed."""

    weight: Weight | None = Field(
        default=None, description="Its share of a busy pool, beside the weights of others.", examples=[2]
    )
    pools: PoolNames | None = Field(default=None, description="The pools that it may name.")
    quotas: QuotasBody | None = Field(default=None, description="The quotas to change.")
    targets: TargetsBody | None = Field(default=None, description="The lists to change.")
    retention_days: Days | None = Field(
        default=None, description="How long its history is kept, in days; null: as the installation's.", examples=[90]
    )


@dataclass(frozen=True, slots=True)
class NewTenant:
    name: str
    weight: float
    pools: frozenset[str]
    quotas: Quotas
    targets: TargetRules = PUBLIC_TARGETS
    retention_days: int | None = None


def new_tenant(raw: object) -> NewTenant:
    """Raises InvalidBody."""
    body = read_form(TenantBody, _with_rates(raw), EXAMPLE)
    quotas, targets = _quotas(body.quotas, NO_QUOTAS), _targets(body.targets, PUBLIC_TARGETS)
    return NewTenant(body.name, body.weight, frozenset(body.pools), quotas, targets, body.retention_days)


def patched_tenant(raw: object, tenant: Tenant) -> Tenant:
    """A tenant after a patch. Raises InvalidBody."""
    if isinstance(raw, dict) and "name" in raw and raw["name"] != tenant.name:
        message = f"`name`: the name of a tenant stays {tenant.name!r}; leave it out, or create another tenant."
        raise InvalidBody(message, (Fault("/name", message),))
    given = {key: value for key, value in raw.items() if key != "name"} if isinstance(raw, dict) else raw
    body = read_form(TenantPatchBody, _with_rates(given), 'for example {"weight": 2, "quotas": {"jobs": 100000}}')
    if not body.model_fields_set:
        message = "The body changes nothing: give `weight`, `pools`, `quotas`, `targets` or `retention_days`."
        raise InvalidBody(message, (Fault("", message),))
    return replace(
        tenant,
        weight=tenant.weight if body.weight is None else body.weight,
        pools=tenant.pools if body.pools is None else frozenset(body.pools),
        quotas=tenant.quotas if body.quotas is None else _quotas(body.quotas, tenant.quotas),
        targets=tenant.targets if body.targets is None else _targets(body.targets, tenant.targets),
        retention_days=body.retention_days if "retention_days" in body.model_fields_set else tenant.retention_days,
    )


def _with_rates(raw: object) -> object:
    """With the short texts of rates as objects, as far as they are rates."""
    if not isinstance(raw, dict) or not isinstance(quotas := raw.get("quotas"), dict):
        return raw
    long = dict(quotas)
    for name in RATES:
        if isinstance(text := quotas.get(name), str) and (rate := rate_object(text)) is not None:
            long[name] = {"limit": rate["limit"], "per": rate["per"]}
    return raw | {"quotas": long}


def _quotas(body: QuotasBody, before: Quotas) -> Quotas:
    values: dict[str, Any] = {name: getattr(before, name) for name in Quotas.__struct_fields__}
    for name in body.model_fields_set:
        value = getattr(body, name)
        values[name] = _bucket(name, value) if isinstance(value, RateBody) else value
    quotas = Quotas(**values)
    if quotas.concurrent is not None and quotas.reserved is not None and quotas.reserved > quotas.concurrent:
        message = f"`quotas.reserved` must be at most `quotas.concurrent`, which is {quotas.concurrent}."
        raise InvalidBody(message, (Fault("/quotas/reserved", message),))
    return quotas


def _targets(body: TargetsBody, before: TargetRules) -> TargetRules:
    return structs.replace(before, **{name: tuple(getattr(body, name)) for name in body.model_fields_set})


def _bucket(name: str, body: RateBody) -> Rate:
    """By default a bucket holds what its rate allows in the whole time, so that a batch of that many is accepted."""
    if "burst" in body.model_fields_set:
        burst = body.burst
    elif name == "starts":
        burst = max(1, int(body.limit / body.per * STARTS_BURST_S))
    else:
        burst = body.limit
    return Rate(limit=body.limit, per_s=body.per, burst=burst)


def render_targets(targets: TargetRules) -> dict[str, list[str]]:
    return {name: list(getattr(targets, name)) for name in TargetRules.__struct_fields__}


def render_quotas(quotas: Quotas) -> dict[str, object]:
    """Those that there are."""
    rendered: dict[str, object] = {}
    for name in Quotas.__struct_fields__:
        value = getattr(quotas, name)
        if isinstance(value, Rate):
            rendered[name] = {"limit": value.limit, "per": value.per_s, "burst": value.burst}
        elif value is not None:
            rendered[name] = value
    return rendered
