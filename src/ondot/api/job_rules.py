"""What a caller's key says about the jobs that it may write and see (T1): its pools, and the scopes `shell` and
`private-targets`."""

from collections.abc import Iterable, Sequence

from msgspec import structs

from ondot.api.dependencies import Services
from ondot.model.access import Caller, Right
from ondot.model.errors import Conflict, Fault, InvalidBody
from ondot.model.job import JobSpec
from ondot.model.target import HttpTarget, ShellTarget
from ondot.store.jobs import find_pools_of_keys


def check_jobs(caller: Caller, specs: Iterable[JobSpec]) -> None:
    """Refuse jobs that the caller may not write: those of pools beyond its key's, which are unknown to it, and shell
    commands without the scope."""
    if caller.pools is None and Right.SHELL in caller.rights:
        return
    for spec in specs:
        if not caller.sees(spec.pool):
            known = ", ".join(sorted(caller.pools or ()))
            fault = f"Unknown pool {spec.pool!r}. Use one of: {known}; or ask an owner of the installation to grant it."
            raise InvalidBody(fault, (Fault("/pool", fault),), pool=spec.pool)
        if isinstance(spec.target, ShellTarget):
            caller.require(Right.SHELL)


def limit_reach(caller: Caller, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
    """The specs as they are stored: without the scope `private-targets` their calls never reach a private address,
    whatever the worker allows. The writer of a version decides, so that a patch cannot borrow the right of another."""
    if Right.PRIVATE_TARGETS in caller.rights:
        return specs
    return [
        structs.replace(spec, target=structs.replace(spec.target, only_public=True))
        if isinstance(spec.target, HttpTarget)
        else spec
        for spec in specs
    ]


async def check_keys(services: Services, caller: Caller, specs: Sequence[JobSpec]) -> None:
    """A job with the `key` of another is a new version of it: a key that is limited to pools must not take a job away
    from a pool that it does not see."""
    keys = [spec.key for spec in specs if spec.key is not None]
    if not keys:
        return
    async with services.database.connection() as connection:
        pools = await find_pools_of_keys(connection, caller.tenant_no, keys)
    for key, pool in pools.items():
        if not caller.sees(pool):
            raise Conflict(f"The key {key!r} belongs to a job of a pool that your API key does not reach. Use another.")
