"""The one place that wires: settings → database, transport, targets → roles and API.

Only this module chooses implementations: `TRANSPORTS` by name, `open_targets` by kind. Its `run_…` functions are what
the command line calls; each blocks until its role has ended, and raises an `OndotError` that says what to do if it
cannot start. Imports that only one role needs are made where that role is wired: `ondot up` starts several processes at
once, and importing everything in each would cost a second.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ondot.coordination.postgres import PostgresCoordinator
from ondot.environment import hide_master_keys
from ondot.flow.dispatch import Dispatcher
from ondot.flow.pool_transports import PoolTransports
from ondot.model.app_release import AppRelease
from ondot.model.errors import Misconfigured, Unavailable
from ondot.model.target import FunctionTarget, GrpcTarget, HttpTarget, PublishTarget, ShellTarget
from ondot.ports.transport import Transport
from ondot.roles.metrics import follow_connections, open_metrics
from ondot.roles.process import recycle, run_role
from ondot.roles.pulse import OnHung
from ondot.settings import Settings, default_home
from ondot.store.database import Database, check_server, open_database
from ondot.store.migrate import check_schema
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import STALLED
from ondot.transports.kafka import KafkaTransport
from ondot.transports.local import LocalTransport
from ondot.transports.nats import NatsTransport
from ondot.transports.postgres import PostgresTransport
from ondot.transports.rabbitmq import RabbitmqTransport
from ondot.transports.redis import RedisTransport

if TYPE_CHECKING:
    from ondot.flow.channels.deliver import ChannelCaller
    from ondot.flow.sinks.send import Sender
    from ondot.flow.vault import Vault
    from ondot.model.ids import PoolNo
    from ondot.ports.coordinator import Coordinator
    from ondot.ports.objects import Objects
    from ondot.ports.target import Targets
    from ondot.roles.deliveries import Deliveries
    from ondot.roles.sinks import Sinks
    from ondot.sdk.app import Ondot
    from ondot.store.connection import Connection
    from ondot.targets.processes.confine import Confinement

WAIT_FOR_DATABASE_S = 0.5
LOG_EVERY_TRIES = 30
"""While the database is away, a warning is logged for one try in so many: each half minute."""
CLOCK_EVERY_S = 2.0
API_STALLS_S = 5.0
API_HUNG_S = 30.0
SUSPECTS_SHARE = 16
"""Up to a sixteenth of a worker's slots of suspects share a child process, before each runs alone."""
MAX_CHILDREN = 8
"""Child processes of one worker, each of which imports the app. There are none until a function is suspected."""

log = get_logger()


# Roles ---------------------------------------------------------------------------------------------------------------


def run_api(settings: Settings, metrics_pages: Sequence[int] = ()) -> None:
    """Serve the API and the page until SIGTERM or Ctrl-C. `metrics_pages`: see `roles.metrics`, here and below."""
    from ondot.roles.listen import listen

    hide_master_keys()
    listener = listen(settings.host, settings.port)
    run_role("api", settings, lambda stop, on_hung: _api(settings, listener, metrics_pages, stop, on_hung))


async def _api(
    settings: Settings, listener: socket.socket, metrics_pages: Sequence[int], stop: asyncio.Event, on_hung: OnHung
) -> None:
    from ondot.api.auth import Auth
    from ondot.api.dependencies import Services
    from ondot.api.known_keys import USES_EVERY_S
    from ondot.api.page_writes import PageWrites
    from ondot.api.serve import serve
    from ondot.api.server import build_api
    from ondot.api.shared_metrics import read_from_thread
    from ondot.document.requests import preview_request
    from ondot.kms import open_kms
    from ondot.objects import open_objects
    from ondot.roles.listen import SHOW_EVERY_S, ShownListener
    from ondot.roles.loop import every
    from ondot.roles.pulse import Pulse
    from ondot.store.row_security import check_row_security
    from ondot.ui.pages import build_pages

    metrics = open_metrics(settings, "api", metrics_pages)
    async with opened(settings, stop, brief=True) as database:
        if database is None:
            return
        if settings.row_security:
            async with database.connection() as connection:
                await check_row_security(connection)
        auth = Auth(database, settings, **_open_token(settings))
        async with open_transports(database) as transports, asyncio.TaskGroup() as group:
            dispatcher = Dispatcher(transports)
            services = Services(
                database,
                dispatcher,
                auth,
                open_objects(settings),
                open_kms(settings.secret_key),
                stopping=stop,
                process_metrics=metrics,
            )
            metrics.shared = partial(read_from_thread, database, asyncio.get_running_loop())
            app = build_api(services)
            feed = build_pages(app, database, auth, preview_request, PageWrites(services))
            shown = ShownListener(database, listener)
            duties = [
                group.create_task(dispatcher.run(), name="dispatcher"),
                group.create_task(every(SHOW_EVERY_S, shown.one_pass, name="listener"), name="listener"),
                group.create_task(every(CLOCK_EVERY_S, database.read_clock, name="clock"), name="clock"),
                group.create_task(every(USES_EVERY_S, auth.write_uses, name="key-uses"), name="key-uses"),
                group.create_task(feed.run(), name="feed"),
                group.create_task(services.advancer.run(), name="advancer"),
                group.create_task(_close_when(stop, feed.close), name="close-feed"),
            ]
            log.info("api.started", address="{}:{}".format(*listener.getsockname()[:2]), auth=settings.auth)
            pulse = Pulse(API_STALLS_S, on_hung=on_hung, hung_after_s=API_HUNG_S)
            STALLED.follow(lambda: pulse.stalled_s)
            pulse.start()
            try:
                await serve(app, listener, stop, settings.trusted_proxies)
            finally:
                pulse.stop()
            for duty in duties:
                duty.cancel()
            with suppress(Unavailable):
                await shown.remove()


class _Token(TypedDict, total=False):
    token: str
    token_path: Path


def _open_token(settings: Settings) -> _Token:
    """What other accounts need where no API key is required. If the home cannot store it, the API starts all the same
    and answers only its own account."""
    from ondot.account.token import NAME, keep_token

    if settings.auth == "on":
        return {}
    home = (settings.home or default_home()).expanduser().absolute()
    try:
        return {"token": keep_token(home), "token_path": home / NAME}
    except Misconfigured as trouble:
        log.warning("token.not_kept", error=trouble.message)
        return {}


async def _close_when(stop: asyncio.Event, close: Callable[[], object]) -> None:
    """End open event streams at once: the server would wait for them."""
    await stop.wait()
    close()


def run_scheduler(settings: Settings, metrics_pages: Sequence[int] = ()) -> None:
    """Plan fires and do the housekeeping until SIGTERM or Ctrl-C."""
    from ondot.objects import open_archive, open_objects
    from ondot.roles.dead_man import DeadMan
    from ondot.roles.scheduler import Scheduler

    hide_master_keys()

    async def role(stop: asyncio.Event, on_hung: OnHung) -> None:
        open_metrics(settings, "scheduler", metrics_pages)
        async with opened(settings, stop, hurried=True) as database:
            if database is not None:
                objects = open_objects(settings)
                async with (
                    open_transports(database) as transports,
                    open_deliveries(database, transports, objects) as sent,
                ):
                    url = settings.dead_man_url
                    dead_man = None if url is None else DeadMan(database, url)
                    archive = open_archive(settings)
                    coordinator = COORDINATORS[settings.coordination](database)
                    async with open_sinks(database) as sinks:
                        scheduler = Scheduler(
                            database, transports, coordinator, on_hung, objects, sent, dead_man, archive, sinks
                        )
                        await scheduler.run(stop)

    run_role("scheduler", settings, role)


def run_worker(
    settings: Settings,
    *,
    app_reference: str | None,
    pools: Sequence[str],
    slots: int | None,
    tenants: Sequence[str] = (),
    declare: str = "merge",
    metrics_pages: Sequence[int] = (),
) -> None:
    """Run attempts of these pools; with an app (`module:app`) also its functions, whose schedules are declared.

    `tenants`: whose work it runs, see `flow.served_tenants`. `declare`: see `flow.declare.Mode`.
    """
    from ondot.flow.declare import Declarer, Mode
    from ondot.flow.served_tenants import ServedTenants
    from ondot.flow.vault import Vault
    from ondot.kms import open_kms
    from ondot.objects import open_objects
    from ondot.roles.worker import Worker
    from ondot.sdk.app import Ondot
    from ondot.sdk.declared import declare_functions
    from ondot.sdk.load import load_app
    from ondot.targets.function.prints import capture_prints
    from ondot.targets.processes.confine import read_confinement

    hide_master_keys()
    app = load_app(app_reference) if app_reference else Ondot()
    release, functions = release_of(app, settings), declare_functions(app)
    slots = slots or settings.slots
    confinement = read_confinement(settings)

    async def role(stop: asyncio.Event, on_hung: OnHung) -> None:
        is_unfit = False
        open_metrics(settings, "worker", metrics_pages)
        # After the logs were configured: they must not become output of attempts.
        capture_prints()
        async with opened(settings, stop, by_key=True, hurried=True) as database:
            if database is None:
                return
            pool_nos: list[PoolNo] = []
            served = ServedTenants(database, tenants, pools, has_functions=app_reference is not None)

            declarer = None if release is None else Declarer(database, app.schedules(), release, Mode(declare))

            async def register() -> None:
                await served.read()
                async with database.connection() as connection:
                    pool_nos[:] = (await database.pools.register(connection, pools)).values()

            vault = Vault(database, open_kms(settings.secret_key))
            async with (
                open_targets(settings, app, slots, app_reference, confinement, database, vault) as targets,
                open_transports(database) as transports,
            ):
                if await patiently(register, stop):
                    objects = open_objects(settings)
                    worker = Worker(
                        *(database, transports, targets, pool_nos, slots, objects, on_hung, served, vault),
                        app=release,
                        functions=functions,
                        declarer=declarer,
                    )
                    is_unfit = await worker.run(stop)
        if is_unfit and not stop.is_set():
            recycle()

    run_role("worker", settings, role)


def release_of(app: "Ondot", settings: Settings) -> AppRelease | None:
    """Which app a worker runs, and which release of it; None: it runs none."""
    from ondot.sdk.release import compute_release

    if app.name is None:
        return None
    return AppRelease(app.name, app.release or settings.release or compute_release(app))


# Choices -------------------------------------------------------------------------------------------------------------


TRANSPORTS: Mapping[str, Callable[[Database], Transport]] = {
    "postgres": PostgresTransport,
    "local": lambda _database: LocalTransport(),
    "redis": RedisTransport,
    "kafka": KafkaTransport,
    "rabbitmq": RabbitmqTransport,
    "nats": NatsTransport,
}
"""By the names that `ONDOT_TRANSPORT` takes."""


def _open_etcd(database: Database) -> "Coordinator[Connection]":
    from ondot.coordination.etcd import EtcdCoordinator

    return EtcdCoordinator(database)


COORDINATORS: "Mapping[str, Callable[[Database], Coordinator[Connection]]]" = {
    "postgres": PostgresCoordinator,
    "etcd": _open_etcd,
}
"""By the names that `ONDOT_COORDINATION` takes."""


@asynccontextmanager
async def open_transports(database: Database) -> AsyncIterator[PoolTransports]:
    """Those of all pools. Raises Misconfigured if the installation's cannot be opened."""
    settings = database.settings
    given = settings.is_given("transport")
    default = "local" if settings.pgbouncer and not given else settings.transport
    transports = PoolTransports(database, lambda name: open_transport(name, database), default)
    try:
        transports.open(default)
        yield transports
    finally:
        await transports.close()


def open_transport(name: str, database: Database) -> Transport:
    """Raises Misconfigured for one that this release does not know: a newer one may have set it for a pool."""
    if name not in TRANSPORTS:
        raise Misconfigured(f"Unknown transport {name!r}. Use one of: {', '.join(TRANSPORTS)}.")
    return TRANSPORTS[name](database)


@asynccontextmanager
async def open_targets(
    settings: Settings,
    app: "Ondot",
    slots: int,
    app_reference: str | None,
    confinement: "Confinement | None" = None,
    database: Database | None = None,
    vault: "Vault | None" = None,
) -> AsyncIterator["Targets"]:
    """What a worker can call, by kind. Functions under suspicion run in child processes, which import the app too.

    Without a database all tenants are as the first one. Without a vault calls are not signed.
    """
    from ondot.flow.connections.opened import OpenedConnections
    from ondot.flow.outgoing import Outgoing
    from ondot.flow.shell_rules import ShellRules
    from ondot.flow.signing import Signing
    from ondot.targets.function.child import ChildCaller
    from ondot.targets.function.placement import Functions
    from ondot.targets.function.target import FunctionCaller
    from ondot.targets.grpc.target import GrpcCaller
    from ondot.targets.http.target import HttpCaller
    from ondot.targets.processes.confine import UNCONFINED
    from ondot.targets.publish.publishers import OpenPublishers
    from ondot.targets.publish.target import PublishCaller
    from ondot.targets.shell import ShellCaller

    in_child = None
    if app_reference:
        max_calls = max(slots // SUSPECTS_SHARE, 1)
        in_child = ChildCaller(
            app_reference, module="ondot.roles.function_child", max_calls=max_calls, max_children=MAX_CHILDREN
        )
    reach_of = None if database is None else Outgoing(database).reach_of
    connection_of = None if vault is None else OpenedConnections(vault).open
    targets: Targets = {
        HttpTarget: HttpCaller(
            reach=settings.reach,
            reach_of=reach_of,
            keys_for=None if vault is None else Signing(vault).keys_for,
            # Receivers reject a timestamp that is minutes off, and this machine's clock may be wrong by an hour (C3).
            now=None if database is None else database.clock.now,
        ),
        GrpcTarget: GrpcCaller(reach=settings.reach, reach_of=reach_of, connection_of=connection_of),
        FunctionTarget: Functions(FunctionCaller(app.handlers, slots=slots), in_child),
        PublishTarget: PublishCaller(
            OpenPublishers(),
            reach=settings.reach,
            reach_of=reach_of,
            connection_of=connection_of,
        ),
        ShellTarget: ShellCaller(
            allow=settings.allow_shell,
            why_not=None if database is None else ShellRules(database).why_not,
            confinement=confinement or UNCONFINED,
        ),
    }
    try:
        yield targets
    finally:
        for target in targets.values():
            await target.close()


def open_channel_caller(database: Database) -> "ChannelCaller":
    """What sends the messages of channels. Schedulers open it, so they need the master key and the mail server too."""
    from ondot.flow.channels.deliver import ChannelCaller
    from ondot.flow.outgoing import Outgoing, RememberedReach
    from ondot.flow.signing import Signing
    from ondot.flow.vault import Vault
    from ondot.kms import open_kms
    from ondot.model.email import parse_smtp_url
    from ondot.targets.email import EmailCaller
    from ondot.targets.http.target import HttpCaller

    settings = database.settings
    vault = Vault(database, open_kms(settings.secret_key))
    reach_of, keys_for = RememberedReach(Outgoing(database)).reach_of, Signing(vault).keys_for
    smtp = None if settings.smtp_url is None else parse_smtp_url(settings.smtp_url)
    return ChannelCaller(
        database,
        vault,
        signed=HttpCaller(reach_of=reach_of, keys_for=keys_for, now=database.clock.now),
        plain=HttpCaller(reach_of=reach_of, now=database.clock.now),
        email=EmailCaller(smtp, settings.smtp_from),
        reach_of=reach_of,
        keys_for=keys_for,
    )


@asynccontextmanager
async def open_deliveries(
    database: Database, transports: PoolTransports, objects: "Objects | None" = None
) -> AsyncIterator["Deliveries"]:
    from ondot.flow.channels.away import DatabaseAway
    from ondot.flow.vault import Vault
    from ondot.kms import open_kms
    from ondot.roles.deliveries import Deliveries

    caller = open_channel_caller(database)
    away = DatabaseAway(database, Vault(database, open_kms(database.settings.secret_key)), caller)
    try:
        yield Deliveries(database, transports, {FunctionTarget: caller}, objects, away)
    finally:
        await caller.close()


@asynccontextmanager
async def open_sinks(database: Database) -> AsyncIterator["Sinks"]:
    """What sends events to sinks. Schedulers open it."""
    from ondot.flow.sinks.deliver import SinkDelivery
    from ondot.roles.sinks import Sinks

    sender = open_sink_sender(database)
    try:
        yield Sinks(SinkDelivery(database.patient, sender))
    finally:
        await sender.close()


def open_sink_sender(database: Database) -> "Sender":
    from ondot.flow.connections.opened import OpenedConnections
    from ondot.flow.outgoing import Outgoing
    from ondot.flow.signing import Signing
    from ondot.flow.sinks.by_broker import BrokerSender
    from ondot.flow.sinks.by_webhook import WebhookSender
    from ondot.flow.sinks.send import Sender
    from ondot.flow.vault import Vault
    from ondot.kms import open_kms
    from ondot.targets.http.target import HttpCaller
    from ondot.targets.publish.publishers import OpenPublishers

    vault = Vault(database, open_kms(database.settings.secret_key))
    reach_of, keys_for = Outgoing(database).reach_of, Signing(vault).keys_for
    return Sender(
        WebhookSender(vault, HttpCaller(reach_of=reach_of, keys_for=keys_for, now=database.clock.now)),
        BrokerSender(OpenPublishers(), OpenedConnections(vault), reach_of),
    )


# The database --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(settings: Settings, stop: asyncio.Event, **how: bool) -> AsyncIterator[Database | None]:
    """The database, once it answers and its schema fits; None if `stop` was set before that."""
    database = await open_database(settings, **how)
    follow_connections(database)

    async def check() -> None:
        await check_server(database)
        async with database.connection() as connection:
            await check_schema(connection)
        await database.read_clock()

    try:
        yield database if await patiently(check, stop) else None
    finally:
        await database.close()


async def patiently(action: Callable[[], Awaitable[None]], stop: asyncio.Event) -> bool:
    """Retry until the database is there, however long that takes; False if `stop` was set before."""
    from ondot.roles.loop import pause_after

    for tries in count(1):
        if stop.is_set():
            break
        try:
            await action()
        except Unavailable as error:
            if tries % LOG_EVERY_TRIES == 1:
                log.warning("database.awaited", error=error.message, tries=tries)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_after(tries, WAIT_FOR_DATABASE_S)):
                    await stop.wait()
        else:
            return True
    return False
