"""The caller of an operation, as it is at this moment (T1): its rights may have changed since the request."""

from ondot.model.access import LOCAL, Caller, rights_of
from ondot.model.bulk import RIGHTS
from ondot.store.bulk import BulkTurn
from ondot.store.connection import Connection
from ondot.store.keys import KeyState, get_key
from ondot.store.users import get_user


async def find_caller(connection: Connection, turn: BulkTurn) -> Caller | str:
    """The caller; or why its operation must stop."""
    home = turn.tenant_no if turn.home_tenant_no is None else turn.home_tenant_no
    again = "Start it again with another one."
    if turn.key_id is not None:
        key = await get_key(connection, home, turn.key_id)
        if key is None or key.state is not KeyState.ACTIVE:
            gone = "revoked" if key is None or key.state is KeyState.REVOKED else "expired"
            return f"The key {turn.actor!r} that started it is {gone}. {again}"
        caller = Caller(
            turn.tenant_no,
            key.name,
            key.role,
            rights_of(key.role, key.scopes),
            None if key.pools is None else frozenset(key.pools),
            key_id=key.id,
            home_tenant_no=turn.home_tenant_no,
        )
    elif turn.user_id is not None:
        user = await get_user(connection, home, turn.user_id)
        if user is None or not user.is_active:
            return f"The user {turn.actor!r} who started it is gone or disabled. Start it again as another one."
        caller = Caller(
            turn.tenant_no,
            user.email,
            user.role,
            rights_of(user.role),
            user_id=user.id,
            home_tenant_no=turn.home_tenant_no,
        )
    else:
        # Started where no key is required, by the account that ondot runs as.
        return Caller(turn.tenant_no, turn.actor, LOCAL.role, LOCAL.rights)
    right = RIGHTS[turn.kind][turn.action]
    if not caller.may(right):
        return f"{turn.actor!r}, who started it, no longer has the right {right.value!r}. {again}"
    if turn.home_tenant_no is not None and not caller.is_owner:
        return f"{turn.actor!r}, who started it, is no longer an owner, and it is another tenant's. {again}"
    return caller
