"""Opens a world: creates its database, registers the app's schedules as a worker does, redirects the app's client."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, NoReturn

from ondot.app import release_of
from ondot.flow.connections.opened import OpenedConnections
from ondot.flow.declare import Declarer
from ondot.flow.dispatch import Dispatcher
from ondot.flow.signing import Signing
from ondot.flow.vault import Vault
from ondot.kms import generate_key, open_kms
from ondot.model.addresses import EVERYWHERE
from ondot.model.app_release import AppRelease
from ondot.model.errors import Misconfigured
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.target import FunctionTarget, GrpcTarget, HttpTarget, PublishTarget, ShellTarget
from ondot.sdk.app import Ondot
from ondot.sdk.release import compute_release
from ondot.store.database import Database, open_database
from ondot.targets.function.target import FunctionCaller
from ondot.targets.grpc.target import GrpcCaller
from ondot.targets.http.target import HttpCaller
from ondot.targets.publish.publishers import OpenPublishers
from ondot.targets.publish.target import PublishCaller
from ondot.targets.shell import ShellCaller
from ondot.testing.api import WorldTransport, redirect
from ondot.testing.clock import parse_instant, turn_clock
from ondot.testing.engine import Engine
from ondot.testing.failures import with_failures
from ondot.testing.grpc import OfflineGrpc
from ondot.testing.http import OfflineHttp, Receivers
from ondot.testing.publish import OfflinePublishers
from ondot.testing.server import new_database, server, settings_for
from ondot.testing.world import World
from ondot.transports.polling import PollingTransport

HOW = "Open a world with `async with open_world(…) as world:`, inside an async test."


def open_world(
    app: Ondot | None = None,
    *,
    at: datetime | str,
    network: bool = False,
    allow_shell: bool = False,
    slots: int = 100,
) -> "Opening":
    """A world that starts at an instant, with the schedules of the app's functions registered as a worker does.

    Without an app there are only the jobs that the test creates. With `network`, HTTP and gRPC targets and brokers are
    really called, in private ranges too; otherwise `World.on_http` answers. `allow_shell` lets commands run. `slots` is
    how many attempts run at the same time. The first world of a process starts its PostgreSQL, which takes a second or
    two.
    """
    return Opening(_open(app, at=at, network=network, allow_shell=allow_shell, slots=slots))


class Opening(AbstractAsyncContextManager[World]):
    """Returned by `open_world`, for `async with`; any other use raises an error that says so."""

    def __init__(self, opened: AbstractAsyncContextManager[World]) -> None:
        self._opened = opened

    async def __aenter__(self) -> World:
        return await self._opened.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._opened.__aexit__(kind, error, trace)

    def __await__(self) -> NoReturn:
        raise TypeError(HOW)

    def __enter__(self) -> NoReturn:
        raise TypeError(HOW)

    def __exit__(self, *_: object) -> None:
        """Never reached: `__enter__` raises."""

    def __getattr__(self, name: str) -> Any:
        if hasattr(World, name):
            raise TypeError(f"There is no world yet that has a {name!r}: {HOW}")
        raise AttributeError(f"{HOW} It has no {name!r}.", name=name, obj=self)


@asynccontextmanager
async def _open(
    app: Ondot | None, *, at: datetime | str, network: bool, allow_shell: bool, slots: int
) -> AsyncIterator[World]:
    starts_at = parse_instant(at)
    if app is not None and not app.handlers:
        raise Misconfigured(
            "The app has no functions: import the modules that register them with @app.job, or open the world without "
            "an app."
        )
    async with new_database(server()) as url:
        database = await open_database(settings_for(url, allow_shell=allow_shell))
        try:
            await turn_clock(database, starts_at)
            async with _run_world(database, app or Ondot(), network=network, slots=slots) as world:
                yield world
        finally:
            await database.close()


@asynccontextmanager
async def _run_world(database: Database, app: Ondot, *, network: bool, slots: int) -> AsyncIterator[World]:
    dispatcher = Dispatcher(PollingTransport())
    kms = open_kms(generate_key())
    assert kms is not None
    transport = WorldTransport(database, dispatcher, kms)
    receivers = Receivers(database.clock.now)
    vault = Vault(database, kms)
    keys_for = Signing(vault).keys_for
    http = HttpCaller(reach=EVERYWHERE, keys_for=keys_for) if network else OfflineHttp(receivers, keys_for)
    connection_of = OpenedConnections(vault).open
    grpc = GrpcCaller(reach=EVERYWHERE, connection_of=connection_of) if network else OfflineGrpc()
    failures: dict[str, list[Exception]] = {}
    function = FunctionCaller(with_failures(app.handlers, failures), slots=slots)
    shell = ShellCaller(allow=database.settings.allow_shell)
    publish = PublishCaller(
        OpenPublishers() if network else OfflinePublishers(),
        reach=EVERYWHERE,
        connection_of=connection_of,
    )
    engine = Engine(
        database,
        dispatcher,
        {
            HttpTarget: http,
            GrpcTarget: grpc,
            PublishTarget: publish,
            FunctionTarget: function,
            ShellTarget: shell,
        },
        slots,
        vault,
    )
    try:
        with redirect(app.client, transport):
            await engine.start()
            release = release_of(app, database.settings) or AppRelease("world", compute_release(app))
            await Declarer(database, app.schedules(), release).declare_for(DEFAULT_TENANT)
            world = World(database, engine, app.client, receivers, app, transport.created, failures)
            transport.run_due = world.run_due_if_idle
            try:
                yield world
            finally:
                world.end()
    finally:
        await function.close()
        await http.close()
        await grpc.close()
        await publish.close()
