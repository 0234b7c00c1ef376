"""Signing in and out (T1): from an e-mail and a password, an invitation, or the provider's word to a session.

Every try is counted before its password is checked, by account and by network, in the database: so no number of
parallel tries, processes or restarts gives more guesses. After five failures each further one doubles the wait, up to a
minute; it never becomes a lock. Failures of others do not slow down the network from which the user signed in last.
Unknown accounts are counted and checked like known ones.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime
from math import ceil
from typing import Final

from ondot.model.access import Role
from ondot.model.errors import Conflict, Forbidden, InvalidRequest, NotFound, TooManySignIns, WrongPassword
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.networks import network_of
from ondot.model.sign_in import failures_after, fault_of_password, parse_email, wait_after
from ondot.people.oidc import Identity
from ondot.people.passwords import Passwords
from ondot.store.audit import By, record
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.sessions import (
    Method,
    Session,
    add_session,
    end_session,
    end_sessions,
    forgive_failures,
    lock_failures,
    new_cookie,
    set_failures,
)
from ondot.store.users import (
    NewUser,
    UserRow,
    accept_invitation,
    add_user,
    bind_subject,
    find_by_email,
    find_by_invitation,
    get_user,
    lock_user,
    note_sign_in,
    set_password,
)
from ondot.telemetry.log import get_logger

MAX_AGENT: Final = 200
NO_TENANT: Final = TenantNo(0)
"""Has no users: what an unknown tenant is looked up as."""

log = get_logger()


@dataclass(frozen=True, slots=True)
class Visitor:
    address: str
    agent: str

    @property
    def network(self) -> str:
        return network_of(self.address)


@dataclass(frozen=True, slots=True)
class SignedIn:
    cookie: str
    expires_at: datetime
    lasts_s: int


class SignIn:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._settings = database.settings
        self.passwords = Passwords()

    async def with_password(self, tenant: str, email: str, password: str, visitor: Visitor) -> SignedIn:
        """Raises `WrongPassword`, whatever was wrong; `TooManySignIns` after too many failures."""
        tenant_no = await self._tenant_no(tenant)
        address = parse_email(email) or ""
        async with self._database.connection() as connection:
            user, stored = await find_by_email(connection, tenant_no, address)
        # By number: the first tenant has a name and may be left out, which would be two counts for one account.
        account = _subject("account", tenant if tenant_no == NO_TENANT else str(tenant_no), address)
        await self._count_try(account, visitor, is_known=user is not None and user.known_network == visitor.network)
        is_right = await self.passwords.verify(stored, password)
        if not is_right or user is None or not user.is_active:
            log.warning("sign_in.refused", address=visitor.address, user=str(user.id) if user else None)
            raise WrongPassword("The e-mail address or the password is wrong. Check both, and Caps Lock.")
        if stored is not None and self.passwords.is_outdated(stored):
            stored = await self.passwords.hash(password)
            async with self._database.connection() as connection:
                await set_password(connection, user.tenant_no, user.id, stored)
        async with self._database.connection() as connection:
            await forgive_failures(connection, account, _subject("network", visitor.network))
        return await self._start(user, "password", visitor)

    async def with_invitation(self, invitation: str, password: str, visitor: Visitor) -> SignedIn:
        """Set the first password, or a new one after a reset, and sign in."""
        user = await self.find_invited(invitation)
        if fault := fault_of_password(password, user.email):
            raise InvalidRequest(fault)
        hashed = await self.passwords.hash(password)
        async with self._database.transaction() as connection:
            if not await accept_invitation(connection, user.tenant_no, user.id, hashed, invitation):
                raise _no_invitation()
            await end_sessions(connection, user.tenant_no, user.id)
            by = By(user.email, user_id=user.id, address=visitor.address)
            await record(connection, user.tenant_no, by, "user.password", user.id)
        return await self._start(user, "password", visitor)

    async def find_invited(self, invitation: str) -> UserRow:
        async with self._database.connection() as connection:
            user = await find_by_invitation(connection, invitation)
        if user is None:
            raise _no_invitation()
        return user

    async def with_provider(self, tenant: str, identity: Identity, visitor: Visitor) -> SignedIn:
        """The provider says who it is; a user with that verified address must exist, or its domain be allowed."""
        address = parse_email(identity.email or "")
        if address is None or not identity.is_verified:
            raise Forbidden("The provider does not vouch for your e-mail address. Verify it there, and sign in again.")
        tenant_no = await self._tenant_no(tenant)
        async with self._database.transaction() as connection:
            user, _ = await find_by_email(connection, tenant_no, address)
            if user is None and tenant_no == DEFAULT_TENANT and self._is_of_our_domain(address):
                user = await self._create(connection, address, identity)
            if user is None or not user.is_active:
                log.warning("sign_in.refused", address=visitor.address, user=str(user.id) if user else None)
                raise Forbidden(f"{address} is no user here. Ask an admin to add you, then sign in again.")
            if not await bind_subject(connection, user.tenant_no, user.id, identity.subject):
                raise Forbidden(
                    f"{address} belongs to another person of the provider. Ask an admin to reset the user, then sign"
                    " in again."
                )
        return await self._start(user, "oidc", visitor)

    async def change_password(self, session: Session, old: str, new: str, visitor: Visitor) -> None:
        """Needs the old one, and ends all other sessions of the user."""
        assert session.caller.user_id is not None
        async with self._database.connection() as connection:
            user = await get_user(connection, session.home_tenant_no, session.caller.user_id)
            stored = (await find_by_email(connection, user.tenant_no, user.email))[1] if user else None
        if user is None or stored is None:
            raise Conflict("You sign in through the provider and have no password here. Ask an admin for a reset.")
        account = _subject("password", str(user.id))
        await self._count_try(account, visitor)
        if not await self.passwords.verify(stored, old):
            raise WrongPassword("The old password is wrong.")
        if fault := fault_of_password(new, user.email):
            raise InvalidRequest(fault)
        hashed = await self.passwords.hash(new)
        async with self._database.transaction() as connection:
            if await lock_user(connection, user.tenant_no, user.id) is None:
                raise NotFound("The user was deleted.")
            await set_password(connection, user.tenant_no, user.id, hashed)
            await end_sessions(connection, user.tenant_no, user.id, but=session.id)
            await record(connection, user.tenant_no, user.email, "user.password", user.id)
        async with self._database.connection() as connection:
            await forgive_failures(connection, account, _subject("network", visitor.network))

    async def out(self, session: Session) -> None:
        assert session.caller.user_id is not None
        async with self._database.connection() as connection:
            await end_session(connection, session.home_tenant_no, session.caller.user_id, session.id)

    # Steps -----------------------------------------------------------------------------------------------------------

    async def _tenant_no(self, name: str) -> TenantNo:
        if not name:
            return DEFAULT_TENANT
        tenant = await self._database.tenants.by_name(name, by_stranger=True)
        return NO_TENANT if tenant is None else tenant.tenant_no

    async def _count_try(self, account: bytes, visitor: Visitor, *, is_known: bool = False) -> None:
        """Count a failure before the password is checked; a success takes it back. Raises if it is too early."""
        subjects = sorted({_subject("network", visitor.network), *(() if is_known else (account,))})
        async with self._database.transaction() as connection:
            found = await lock_failures(connection, subjects)
            wait_s = max(failures.wait_s for failures in found.values())
            if wait_s <= 0:
                counts = {name: failures_after(each.failures, each.since_s) for name, each in found.items()}
                await set_failures(connection, {name: (count, wait_after(count)) for name, count in counts.items()})
        if wait_s > 0:
            seconds = ceil(wait_s)
            raise TooManySignIns(
                f"There were too many failed tries. Wait {seconds} {'second' if seconds == 1 else 'seconds'}, then try"
                " again.",
                retry_after_s=seconds,
            )

    async def _create(self, connection: Connection, email: str, identity: Identity) -> UserRow | None:
        name = (identity.name or email).strip()[:200] or email
        user = NewUser(self._database.clock.new_id(), DEFAULT_TENANT, email, name, Role.VIEWER, "oidc")
        if await add_user(connection, user):
            detail = {"email": email, "role": user.role.value, "by": "ONDOT_OIDC_DOMAIN"}
            await record(connection, DEFAULT_TENANT, email, "user.create", user.id, detail)
        return (await find_by_email(connection, DEFAULT_TENANT, email))[0]

    def _is_of_our_domain(self, email: str) -> bool:
        domain = self._settings.oidc_domain
        return domain is not None and email.rpartition("@")[2] == domain.lower()

    async def _start(self, user: UserRow, method: Method, visitor: Visitor) -> SignedIn:
        """A new session, with an id that nobody has seen before."""
        cookie, id_ = new_cookie(), self._database.clock.new_id()
        lasts_s = self._settings.session_s
        async with self._database.transaction() as connection:
            # Locked: a user who is deleted or disabled at this moment gets no session.
            current = await lock_user(connection, user.tenant_no, user.id)
            if current is None or not current.is_active:
                raise WrongPassword("The user was disabled. Ask an admin.")
            expires_at = await add_session(
                connection,
                id_,
                user.tenant_no,
                user.id,
                cookie,
                method,
                visitor.address,
                visitor.agent[:MAX_AGENT],
                lasts_s,
            )
            await note_sign_in(connection, user.tenant_no, user.id, visitor.network)
            by = By(user.email, user_id=user.id, address=visitor.address)
            await record(connection, user.tenant_no, by, "user.sign_in", user.id, {"method": method})
        log.info("sign_in.accepted", user=str(user.id), method=method, session=str(id_))
        return SignedIn(cookie, expires_at, int(lasts_s))


def _subject(*parts: str) -> bytes:
    return hashlib.sha256("\n".join(parts).encode()).digest()


def _no_invitation() -> NotFound:
    return NotFound("This invitation was used, replaced or has expired. Ask an admin for a new one.")
