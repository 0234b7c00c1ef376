"""`/v1/users`: the people of a tenant who sign in to the pages, and their sessions (T1, T7)."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from ondot.api.dependencies import ByCaller, CallerDep, RequestServices, needs, services_of
from ondot.api.openapi import takes
from ondot.api.parameters import Cursor, Limit, id_in_path, only_known_parameters, parse_cursor
from ondot.api.request_body import JsonBody
from ondot.document.fields import Body
from ondot.document.reading import read_form
from ondot.model.access import Caller, Right, Role
from ondot.model.errors import Fault, InvalidBody, NotFound
from ondot.model.ids import TenantNo
from ondot.model.sign_in import MAX_EMAIL, MAX_NAME, parse_email, parse_name
from ondot.people import users
from ondot.people.users import Changes, Invitation
from ondot.store.sessions import SessionRow, end_session, end_sessions, list_sessions
from ondot.store.users import UserRow, UserState, get_user, list_users

router = APIRouter(tags=["users"], dependencies=[Depends(only_known_parameters)])

UserPath = Annotated[UUID, Depends(id_in_path("user"))]
SessionPath = Annotated[UUID, Depends(id_in_path("session"))]
UserRole = Literal["viewer", "operator", "editor", "admin", "owner"]
EXAMPLE = 'for example {"email": "ada@example.com", "name": "Ada", "role": "editor"}'


class UserBody(Body):
    """A user to invite."""

    email: str = Field(max_length=MAX_EMAIL, description="With which the user signs in.", examples=["ada@example.com"])
    name: str | None = Field(
        default=None, max_length=MAX_NAME, description="Shown in the pages. Default: the e-mail address."
    )
    role: UserRole = Field(default="viewer", description="Not more than your own.", examples=["editor"])


class UserChangeBody(Body):
    """A field that is left out stays as it is."""

    name: str | None = Field(default=None, max_length=MAX_NAME, examples=["Ada Lovelace"])
    role: UserRole | None = Field(default=None, description="Not more than your own.", examples=["operator"])
    state: Literal["ACTIVE", "DISABLED"] | None = Field(
        default=None, description="A disabled user cannot sign in, and all its sessions end.", examples=["DISABLED"]
    )


class UserOut(BaseModel):
    id: UUID
    email: str
    name: str
    role: str
    state: str
    has_password: bool = Field(description="False: the user signs in through the OpenID provider, or is invited.")
    uses_provider: bool = Field(description="Whether the user has signed in through the OpenID provider.")
    invited_until: datetime | None = Field(description="When an invitation that was not used yet expires.")
    created_at: datetime
    last_sign_in_at: datetime | None


class InvitationOut(BaseModel):
    url: str = Field(description="With it the user sets a password, once. Shown only in this response.")
    expires_at: datetime


class InvitedUserOut(UserOut):
    invitation: InvitationOut


class UserList(BaseModel):
    items: list[UserOut]
    next_cursor: str | None


class SessionOut(BaseModel):
    id: UUID
    method: str = Field(description="password or oidc.")
    address: str
    agent: str = Field(description="The browser, as it calls itself.")
    created_at: datetime
    seen_at: datetime = Field(description="The last request, to the minute.")
    expires_at: datetime


class SessionList(BaseModel):
    items: list[SessionOut]


@router.get("/users", dependencies=[needs(Right.USERS_MANAGE)], response_model=UserList)
async def find_users(
    services: RequestServices, caller: CallerDep, limit: Limit = 100, cursor: Cursor = None
) -> UserList:
    """The users of the tenant, oldest first."""
    async with services.database.connection() as connection:
        rows = await list_users(connection, caller.tenant_no, after=parse_cursor(cursor), limit=limit + 1)
    next_cursor = str(rows[limit - 1].id) if len(rows) > limit else None
    return UserList(items=[_out(row) for row in rows[:limit]], next_cursor=next_cursor)


@router.post(
    "/users",
    status_code=201,
    dependencies=[needs(Right.USERS_MANAGE)],
    response_model=InvitedUserOut,
    openapi_extra=takes(UserBody),
)
async def create_user(request: Request, caller: CallerDep, by: ByCaller, body: JsonBody) -> InvitedUserOut:
    """Invite a user. The response has the link with which the user sets a password: pass it on."""
    wanted = read_form(UserBody, body, EXAMPLE)
    email = parse_email(wanted.email)
    if email is None:
        raise _invalid("/email", f"{wanted.email!r} is not an e-mail address. Write it as ada@example.com.")
    row, invitation = await users.create(
        services_of(request).database,
        caller,
        by,
        email=email,
        name=_name(wanted.name) or email,
        role=Role(wanted.role),
    )
    assert invitation is not None
    return _invited(request, row, invitation)


@router.get("/users/{id}", dependencies=[needs(Right.USERS_MANAGE)], response_model=UserOut)
async def read_user(services: RequestServices, caller: CallerDep, id_: UserPath) -> UserOut:
    """One user of the tenant."""
    async with services.database.connection() as connection:
        row = await get_user(connection, caller.tenant_no, id_)
    if row is None:
        raise NotFound(f"There is no user {id_}.")
    return _out(row)


@router.patch(
    "/users/{id}",
    dependencies=[needs(Right.USERS_MANAGE)],
    response_model=UserOut,
    openapi_extra=takes(UserChangeBody),
)
async def change_user(
    services: RequestServices, caller: CallerDep, by: ByCaller, id_: UserPath, body: JsonBody
) -> UserOut:
    """Change the name, the role or the state of a user. It holds within a second, also on pages that are open."""
    wanted = read_form(UserChangeBody, body, 'for example {"role": "operator"}')
    changes = Changes(
        _name(wanted.name),
        None if wanted.role is None else Role(wanted.role),
        None if wanted.state is None else UserState(wanted.state),
    )
    return _out(await users.change(services.database, caller, by, id_, changes))


@router.delete("/users/{id}", dependencies=[needs(Right.USERS_MANAGE)])
async def delete_user(
    services: RequestServices, caller: CallerDep, by: ByCaller, id_: UserPath
) -> dict[str, UUID | bool]:
    """Delete a user; all its sessions end. The last owner of the installation stays."""
    await users.delete(services.database, caller, by, id_)
    return {"id": id_, "deleted": True}


@router.post("/users/{id}/reset", dependencies=[needs(Right.USERS_MANAGE)], response_model=InvitedUserOut)
async def reset_user(request: Request, caller: CallerDep, by: ByCaller, id_: UserPath) -> InvitedUserOut:
    """End the password, the binding to the OpenID provider and all sessions of a user, and invite it again."""
    database = services_of(request).database
    _, invitation = await users.reset(database, caller, by, id_)
    async with database.connection() as connection:
        row = await get_user(connection, caller.tenant_no, id_)
    if row is None:
        raise NotFound(f"There is no user {id_}.")
    return _invited(request, row, invitation)


@router.get("/sessions", dependencies=[needs(Right.JOBS_READ)], response_model=SessionList)
async def own_sessions(services: RequestServices, caller: CallerDep) -> SessionList:
    """The live sessions of the user who sent the request, newest first. A key has none."""
    if caller.user_id is None:
        return SessionList(items=[])
    async with services.database.connection() as connection:
        idle_s = services.database.settings.session_idle_s
        rows = await list_sessions(connection, _home(caller), caller.user_id, idle_s)
    return SessionList(items=[_session_out(row) for row in rows])


@router.delete("/sessions", dependencies=[needs(Right.JOBS_READ)])
async def end_own_sessions(services: RequestServices, caller: CallerDep) -> dict[str, int]:
    """Sign out everywhere, here too."""
    if caller.user_id is None:
        return {"ended": 0}
    async with services.database.connection() as connection:
        return {"ended": await end_sessions(connection, _home(caller), caller.user_id)}


@router.delete("/sessions/{id}", dependencies=[needs(Right.JOBS_READ)])
async def end_own_session(services: RequestServices, caller: CallerDep, id_: SessionPath) -> dict[str, UUID | bool]:
    """Sign out one session of the user who sent the request."""
    async with services.database.connection() as connection:
        user_id = caller.user_id
        if user_id is None or not await end_session(connection, _home(caller), user_id, id_):
            raise NotFound(f"There is no session {id_}.")
    return {"id": id_, "ended": True}


def _home(caller: Caller) -> TenantNo:
    return caller.tenant_no if caller.home_tenant_no is None else caller.home_tenant_no


def _name(written: str | None) -> str | None:
    if written is None:
        return None
    name = parse_name(written)
    if name is None:
        raise _invalid("/name", f"A name has 1 to {MAX_NAME} printable characters.")
    return name


def _invalid(pointer: str, message: str) -> InvalidBody:
    return InvalidBody(message, (Fault(pointer, message),))


def _out(row: UserRow) -> UserOut:
    return UserOut(
        id=row.id,
        email=row.email,
        name=row.name,
        role=row.role.value,
        state=row.state.value,
        has_password=row.has_password,
        uses_provider=row.subject is not None,
        invited_until=row.invited_until,
        created_at=row.created_at,
        last_sign_in_at=row.last_sign_in_at,
    )


def _invited(request: Request, row: UserRow, invitation: Invitation) -> InvitedUserOut:
    base = services_of(request).database.settings.public_url or str(request.base_url).rstrip("/")
    out = InvitationOut(url=invitation.url(base), expires_at=invitation.expires_at)
    return InvitedUserOut(**_out(row).model_dump(), invitation=out)


def _session_out(row: SessionRow) -> SessionOut:
    return SessionOut(
        id=row.id,
        method=row.method,
        address=row.address,
        agent=row.agent,
        created_at=row.created_at,
        seen_at=row.seen_at,
        expires_at=row.expires_at,
    )
