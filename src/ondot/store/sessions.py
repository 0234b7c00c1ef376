"""Sessions of users in the browser, and the failed tries to sign in (T1). The cookie is stored as its SHA-256 only."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

from ondot.model.access import Caller, Role, rights_of
from ondot.model.ids import TenantNo
from ondot.store.connection import Connection, Record
from ondot.store.queries import load_queries
from ondot.store.users import hash_secret

_SQL = load_queries("sessions")

SESSIONS_KEPT: Final = 50
"""Of one user: the oldest end when there are more."""
NOTED_EVERY_S: Final = 60.0
"""The last request of a session is noted once in so many seconds."""
FORGOTTEN_S: Final = 24 * 3600.0

Method = Literal["password", "oidc"]


@dataclass(frozen=True, slots=True)
class Session:
    """A live session, with the caller that it stands for."""

    id: UUID
    caller: Caller
    user_name: str
    home_tenant_no: TenantNo
    is_unseen: bool
    """Its last request is to be noted."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    id: UUID
    method: Method
    address: str
    agent: str
    created_at: datetime
    seen_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Failures:
    """Of an account or a network."""

    failures: int
    since_s: float
    wait_s: float
    """Seconds until the next try is allowed; not positive: now."""


def new_cookie() -> str:
    return secrets.token_urlsafe(32)


async def add_session(
    connection: Connection,
    id_: UUID,
    tenant_no: TenantNo,
    user_id: UUID,
    cookie: str,
    method: Method,
    address: str,
    agent: str,
    lasts_s: float,
) -> datetime:
    """Returns when it expires."""
    digest = hash_secret(cookie)
    expires_at: datetime = await connection.fetchval(
        _SQL["add_session"].text, id_, tenant_no, user_id, digest, method, address, agent, lasts_s
    )
    await connection.execute(_SQL["end_oldest_sessions"].text, tenant_no, user_id, SESSIONS_KEPT)
    return expires_at


async def find_sessions(connection: Connection, hashes: Sequence[bytes], idle_s: float) -> dict[bytes, Session]:
    """Live sessions by hash. Those that are unknown or over, or whose user is disabled, are left out."""
    rows = await connection.fetch(_SQL["find_sessions"].text, hashes, idle_s, NOTED_EVERY_S)
    found = {row["hash"]: _session(row) for row in rows}
    if unseen := [digest for digest, session in found.items() if session.is_unseen]:
        await connection.execute(_SQL["note_seen"].text, unseen)
    return found


async def list_sessions(connection: Connection, tenant_no: TenantNo, user_id: UUID, idle_s: float) -> list[SessionRow]:
    rows = await connection.fetch(_SQL["list_sessions"].text, tenant_no, user_id, idle_s)
    return [SessionRow(*row.values()) for row in rows]


async def end_session(connection: Connection, tenant_no: TenantNo, user_id: UUID, id_: UUID) -> bool:
    return await connection.fetchval(_SQL["end_session"].text, tenant_no, user_id, id_) is not None


async def end_sessions(connection: Connection, tenant_no: TenantNo, user_id: UUID, *, but: UUID | None = None) -> int:
    """End all sessions of a user, except `but`; returns how many."""
    return len(await connection.fetch(_SQL["end_sessions"].text, tenant_no, user_id, but))


async def act_for(
    connection: Connection, tenant_no: TenantNo, user_id: UUID, id_: UUID, other: TenantNo | None
) -> bool:
    """Let the session of an owner act for another tenant. The caller has checked that it may."""
    return await connection.fetchval(_SQL["act_for"].text, tenant_no, user_id, id_, other) is not None


async def forget_sessions(connection: Connection, idle_s: float, limit: int) -> int:
    return int(await connection.fetchval(_SQL["forget_sessions"].text, idle_s, limit))


# Failures ------------------------------------------------------------------------------------------------------------


async def lock_failures(connection: Connection, subjects: Sequence[bytes]) -> dict[bytes, Failures]:
    """The failures of accounts and networks, locked: tries at the same time wait for each other, so that none slips
    through uncounted. In a transaction."""
    await connection.execute(_SQL["make_failures"].text, subjects)
    rows = await connection.fetch(_SQL["lock_failures"].text, subjects)
    return {
        row["subject"]: Failures(row["failures"], row["since_failure"].total_seconds(), row["wait_s"]) for row in rows
    }


async def set_failures(connection: Connection, counts: Mapping[bytes, tuple[int, float]]) -> None:
    """By subject: the failures, and the seconds until the next try is allowed."""
    failures, waits_s = zip(*counts.values(), strict=True)
    await connection.execute(_SQL["set_failures"].text, list(counts), list(failures), list(waits_s))


async def forgive_failures(connection: Connection, account: bytes, network: bytes) -> None:
    # Two statements, each its own transaction: one would lock in another order than `lock_failures`.
    await connection.execute(_SQL["forgive_account"].text, account)
    await connection.execute(_SQL["forgive_network"].text, network)


async def forget_failures(connection: Connection, limit: int) -> int:
    return int(await connection.fetchval(_SQL["forget_failures"].text, FORGOTTEN_S, limit))


def _session(row: Record) -> Session:
    role, home = Role(row["role"]), TenantNo(row["tenant_no"])
    other = None if row["acts_for"] is None or role is not Role.OWNER else TenantNo(row["acts_for"])
    caller = Caller(
        home if other is None else other,
        row["email"],
        role,
        rights_of(role),
        user_id=row["user_id"],
        home_tenant_no=None if other is None else home,
    )
    return Session(row["id"], caller, row["name"], home, row["is_unseen"])
