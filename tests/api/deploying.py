"""Workers of an app, as far as the API knows of them: what they register, and that they are live."""

from collections.abc import Callable
from typing import Any

from ondot.flow.known_functions import Functions, register
from ondot.model.app_release import AppRelease
from ondot.model.ids import DEFAULT_TENANT, TenantNo, WorkerId
from ondot.sdk.app import Ondot
from ondot.sdk.declared import declare_functions
from ondot.store.workers import leave_worker, register_worker
from tests.api.conftest import Caller


def app_of(*functions: Callable[..., Any], **options: Any) -> Ondot:
    """An app with these functions, all with the same options."""
    app = Ondot(name="shop")
    for function in functions:
        app.job(**options)(function)
    return app


async def deploy(
    api: Caller,
    app: Ondot,
    release: str = "1",
    *,
    tenants: frozenset[TenantNo] | None = frozenset({DEFAULT_TENANT}),
    pools: tuple[str, ...] = ("default",),
) -> WorkerId:
    """Start a worker of this release, and let the API know at once."""
    database = api.world.database
    of_app = AppRelease(app.name or "shop", release)
    await register(database, of_app, declare_functions(app), tenants)
    worker_id = WorkerId(database.clock.new_id())
    async with database.connection() as connection:
        numbers = await database.pools.register(connection, pools)
        await register_worker(
            connection,
            worker_id,
            host="box-7",
            pid=1,
            release="0",
            pool_nos=list(numbers.values()),
            slots=4,
            tenant_nos=tenants,
            app=of_app,
        )
    forget(api)
    return worker_id


async def stop(api: Caller, worker_id: WorkerId) -> None:
    async with api.world.database.connection() as connection:
        await leave_worker(connection, worker_id)
    forget(api)


def forget(api: Caller) -> None:
    """As a process of the API that has just started: readings are remembered for half a second."""
    api.services.functions = Functions(api.world.database)
