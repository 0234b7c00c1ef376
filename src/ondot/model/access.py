"""Who may do what (T1, T7): roles, rights, and the caller of a request.

A role is a set of rights; each role of a tenant has those of the one before it. A key may narrow its role by scopes
and by pools: its rights are role ∩ scopes ∩ pools. Three rights are scopes of their own, because they reach beyond the
tenant's jobs: `shell`, `private-targets` and `secrets:use`. Admins and owners have them; others only if their key lists
them. Nobody grants more than they have.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final
from uuid import UUID

from ondot.model.errors import Forbidden
from ondot.model.ids import DEFAULT_TENANT, TenantNo


class Role(StrEnum):
    VIEWER = "viewer"
    OPERATOR = "operator"
    EDITOR = "editor"
    ADMIN = "admin"
    OWNER = "owner"
    """Of the installation: tenants, pools, fleet. An owner may act for any tenant."""
    WORKER = "worker"
    """A remote worker: it leases and completes, and nothing else."""


class Right(StrEnum):
    JOBS_READ = "jobs:read"
    JOBS_RUN = "jobs:run"
    JOBS_WRITE = "jobs:write"
    EVENTS_SEND = "events:send"
    """Send events, which start the jobs that they match."""
    AUDIT_READ = "audit:read"
    KEYS_MANAGE = "keys:manage"
    SECRETS_MANAGE = "secrets:manage"
    WEBHOOKS_MANAGE = "webhooks:manage"
    """Read and rotate the secrets that sign calls. Apart from `secrets:manage`, because these are shown."""
    USERS_MANAGE = "users:manage"
    TENANT_MANAGE = "tenant:manage"
    TENANTS_MANAGE = "tenants:manage"
    POOLS_MANAGE = "pools:manage"
    FLEET_MANAGE = "fleet:manage"
    WORK = "work"
    SHELL = "shell"
    PRIVATE_TARGETS = "private-targets"
    SECRETS_USE = "secrets:use"


SPECIAL: Final = frozenset({Right.SHELL, Right.PRIVATE_TARGETS, Right.SECRETS_USE})

_VIEWER: Final = frozenset({Right.JOBS_READ})
_OPERATOR: Final = _VIEWER | {Right.JOBS_RUN, Right.AUDIT_READ}
_EDITOR: Final = _OPERATOR | {Right.JOBS_WRITE, Right.EVENTS_SEND}
_ADMIN: Final = _EDITOR | {
    Right.KEYS_MANAGE,
    Right.SECRETS_MANAGE,
    Right.WEBHOOKS_MANAGE,
    Right.USERS_MANAGE,
    Right.TENANT_MANAGE,
}
_OWNER: Final = _ADMIN | {Right.TENANTS_MANAGE, Right.POOLS_MANAGE, Right.FLEET_MANAGE}

RIGHTS_OF: Final[Mapping[Role, frozenset[Right]]] = MappingProxyType(
    {
        Role.VIEWER: _VIEWER,
        Role.OPERATOR: _OPERATOR,
        Role.EDITOR: _EDITOR,
        Role.ADMIN: _ADMIN,
        Role.OWNER: _OWNER,
        Role.WORKER: frozenset({Right.WORK}),
    }
)
"""Without the special rights."""


def rights_of(role: Role, scopes: Collection[Right] | None = None) -> frozenset[Right]:
    """The rights of a role, narrowed by scopes. None: the whole role."""
    if scopes is None:
        return RIGHTS_OF[role] | (SPECIAL if role in {Role.ADMIN, Role.OWNER} else frozenset())
    return (RIGHTS_OF[role] | SPECIAL) & frozenset(scopes)


def least_role_with(right: Right) -> Role:
    """The role to ask for, to get a right. A special right must be listed besides, except for an admin."""
    return next((role for role in Role if right in RIGHTS_OF[role]), Role.ADMIN)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and for which tenant. `name` is recorded in the audit log."""

    tenant_no: TenantNo
    name: str
    role: Role
    rights: frozenset[Right]
    pools: frozenset[str] | None = None
    """The pools that the caller may name and see; None: all that the tenant may."""
    key_id: UUID | None = None
    user_id: UUID | None = None
    home_tenant_no: TenantNo | None = None
    """The owner's own tenant while it acts for another; None: the caller acts for its own."""

    @property
    def is_owner(self) -> bool:
        return self.role is Role.OWNER

    def sees(self, pool: str) -> bool:
        """Whether jobs and executions of a pool exist for the caller."""
        return self.pools is None or pool in self.pools

    def pools_among(self, wanted: str | None) -> list[str] | None:
        """The pools to look in, if one is wanted or all; None: no limit."""
        if wanted is None:
            return None if self.pools is None else sorted(self.pools)
        return [wanted] if self.sees(wanted) else []

    def may(self, right: Right) -> bool:
        return right in self.rights

    def require(self, right: Right) -> None:
        """Raises `Forbidden` if the caller lacks a right."""
        if right not in self.rights:
            raise Forbidden(_why_refused(self, right), right=right.value)

    def require_all_pools(self) -> None:
        """Raises `Forbidden` if the caller's key is limited to pools: what it asks for concerns the whole tenant."""
        if self.pools is not None:
            raise Forbidden(
                f"This key is limited to the pools {', '.join(sorted(self.pools))}, and this concerns the whole tenant."
                " Use a key without pools."
            )

    def may_grant(
        self, role: Role, scopes: Collection[Right] | None = None, pools: Collection[str] | None = None
    ) -> bool:
        """Whether the caller has all that a key or user with this role, these scopes and pools would get. An owner acts
        for every tenant, however few scopes it has, so only owners make one."""
        if role is Role.OWNER and not self.is_owner:
            return False
        if self.pools is not None and (pools is None or not self.pools.issuperset(pools)):
            return False
        granted = rights_of(role, scopes)
        # A worker's right is no part of any other role: those who manage keys grant it.
        return (self.rights | {Right.WORK}) >= granted


def _why_refused(caller: Caller, right: Right) -> str:
    least = least_role_with(right)
    if right in RIGHTS_OF[caller.role]:
        return f"This key's scopes leave out {right.value!r}. Use a key with that scope."
    if right in SPECIAL:
        return f"This needs the scope {right.value!r}. Use a key that lists it, or the key of an {Role.ADMIN.value}."
    article = "an" if least.value[0] in "aeiou" else "a"
    return (
        f"This needs the right {right.value!r}, which the role {caller.role.value!r} does not have."
        f" Use the key of {article} {least.value}."
    )


LOCAL_NAME: Final = "local"
"""The caller's name where no API key is required."""
LOCAL: Final = Caller(DEFAULT_TENANT, LOCAL_NAME, Role.OWNER, rights_of(Role.OWNER))
"""The person on whose machine ondot runs: an owner, acting for the first tenant."""
