"""Keys with a role and scopes, for tests of rights."""

from collections.abc import Sequence

from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.keys import new_key
from ondot.store.keys import hash_key
from tests.world import World


async def make_key_with(
    world: World, role: str, scopes: Sequence[str] | None = None, *, tenant_no: TenantNo = DEFAULT_TENANT
) -> dict[str, str]:
    """The headers of a request with a new key."""
    id_ = world.database.clock.new_id()
    key = new_key(id_)
    sql = "INSERT INTO ondot.key (id, tenant_no, name, hash, role, scopes) VALUES ($1, $2, $3, $4, $5, $6)"
    async with world.database.connection() as connection:
        await connection.execute(sql, id_, tenant_no, f"a {role}", hash_key(key), role, scopes)
    return {"authorization": f"Bearer {key}"}
