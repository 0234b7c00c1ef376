"""API keys as people write them: the bodies that create and rotate one (T1)."""

from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from ondot.document.fields import Body, Duration, PlainText, PoolName
from ondot.model.access import Right, Role

DAY_S: Final = 86_400.0
LONGEST_LIFE_S: Final = 3650 * DAY_S
LONGEST_OVERLAP_S: Final = 30 * DAY_S
MOST_POOLS: Final = 100


def _role(written: object) -> Role:
    try:
        return Role(str(written))
    except ValueError:
        raise ValueError(f"one of {', '.join(Role)}") from None


def _scope(written: object) -> Right:
    try:
        return Right(str(written))
    except ValueError:
        raise ValueError(f"one of {', '.join(Right)}") from None


def _life(seconds: float) -> float:
    if not 1 <= seconds <= LONGEST_LIFE_S:
        raise ValueError('a duration from 1 second to 10 years, for example "90d"')
    return seconds


def _overlap(seconds: float) -> float:
    if seconds > LONGEST_OVERLAP_S:
        raise ValueError('a duration of at most 30 days, for example "24h"')
    return seconds


RoleName = Annotated[Role, BeforeValidator(_role), WithJsonSchema({"type": "string", "enum": list(Role)})]
Scope = Annotated[Right, BeforeValidator(_scope), WithJsonSchema({"type": "string", "enum": list(Right)})]


class KeyBody(Body):
    """A new API key."""

    name: PlainText = Field(description="The user of the key, for people and the audit log.", examples=["ci"])
    role: RoleName = Field(
        description="`viewer` reads; `operator` also runs, cancels, replays and pauses; `editor` also creates and"
        " changes; `admin` also manages keys, secrets and users; `owner` also manages tenants, pools and the fleet;"
        " `worker` leases and completes, and nothing else.",
        examples=["editor"],
    )
    scopes: Annotated[list[Scope], Field(max_length=len(Right))] | None = Field(
        default=None,
        description="Only these rights of the role, and the special ones that it lists: `shell`, `private-targets`,"
        " `secrets:use`. Default: all of the role.",
        examples=[["jobs:read", "jobs:write"]],
    )
    pools: Annotated[list[PoolName], Field(min_length=1, max_length=MOST_POOLS)] | None = Field(
        default=None, description="Only jobs and executions of these pools. Default: all pools.", examples=[["batch"]]
    )
    expires_in: Annotated[Duration, AfterValidator(_life)] | None = Field(
        default=None, description="How long it works. Default: until it is revoked.", examples=["90d"]
    )


class RotateBody(Body):
    """How an API key is replaced."""

    overlap: Annotated[Duration, AfterValidator(_overlap)] = Field(
        default=DAY_S, description="How long the old key still works; 0: not at all.", examples=["24h"]
    )
