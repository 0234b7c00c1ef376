"""The person who looks at a page (T1, T7): the name, the tenant, and what the person may do.

Templates show only buttons that the person may use; the API checks the same rights when a request arrives.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from fastapi import Request
from starlette.requests import HTTPConnection

from ondot.model.access import LOCAL, Caller, Right
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.tenant import TenantState
from ondot.people.sessions import KnownSessions
from ondot.store.database import Database
from ondot.store.sessions import Session

TENANTS_LISTED: Final = 50
"""With more, an owner enters the name."""


class Auth(Protocol):
    """The caller of a request. Raises if the request is not allowed."""

    async def caller(self, request: HTTPConnection, /) -> Caller: ...

    async def session(self, request: HTTPConnection, /) -> Session | None: ...

    @property
    def sessions(self) -> KnownSessions: ...


@dataclass(frozen=True, slots=True)
class Me:
    name: str
    email: str
    role: str
    rights: frozenset[Right]
    is_signed_in: bool
    tenant: str | None = None
    """None: there is only one, and nobody needs its name."""
    tenants: tuple[str, ...] = ()
    """That an owner may act for; empty if there is only one, or too many to list."""
    may_switch: bool = False
    is_away: bool = False
    """An owner acts for another tenant than its own."""
    open_incidents: int = 0

    def may(self, right: str) -> bool:
        return Right(right) in self.rights


LOCAL_ME: Final = Me("", "", LOCAL.role.value, LOCAL.rights, is_signed_in=False)
"""On a person's own machine, where nobody signs in."""


async def read_me(database: Database, auth: Auth, request: Request, caller: Caller) -> Me:
    """`caller`: of this request, so that it is authorized already."""
    if caller is LOCAL:
        return LOCAL_ME
    tenants = await database.tenants.snapshot()
    names = sorted(tenant.name for tenant in tenants.values() if tenant.state is not TenantState.DELETED)
    has_several = len(names) > 1
    mine = tenants.get(caller.tenant_no)
    session = await auth.session(request)
    return Me(
        caller.name if session is None else session.user_name,
        caller.name,
        caller.role.value,
        caller.rights,
        is_signed_in=session is not None,
        tenant=mine.name if mine is not None and has_several else None,
        tenants=tuple(names) if caller.is_owner and 1 < len(names) <= TENANTS_LISTED else (),
        may_switch=caller.is_owner and has_several and session is not None,
        is_away=caller.home_tenant_no not in {None, caller.tenant_no} and caller.tenant_no != DEFAULT_TENANT,
    )
