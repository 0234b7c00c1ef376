"""The one place that wires: settings → database, transport, targets → roles and API.

Only this module chooses implementations. Its `run_…` functions are what the command line calls; each blocks until its
role has ended and raises an `OndotError` that says what to do if it cannot start. What only one role needs is imported
where that role is wired: `ondot up` starts several processes at once, and each import of all would cost it a second.
"""

import asyncio
import gc
import importlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypedDict, TypeVar

import uvloop

from ondot.environment import execute_again
from ondot.flow.dispatch import Dispatcher
from ondot.model.errors import Misconfigured, Unavailable
from ondot.model.ids import DEFAULT_TENANT, PoolNo
from ondot.model.urls import place_of
from ondot.ports.transport import Transport
from ondot.settings import Settings, default_home
from ondot.store.audit import By
from ondot.store.clock import Moment
from ondot.store.database import Database, check_server, open_database
from ondot.store.days import make_days
from ondot.store.migrate import Applied, Status, check_schema, migrate_up, read_status
from ondot.telemetry.log import configure_logs, get_logger
from ondot.telemetry.outlet import drain_output, unblock_output
from ondot.transports.local import LocalTransport
from ondot.transports.polling import PollingTransport
from ondot.transports.postgres import PostgresTransport

if TYPE_CHECKING:
    from ondot.flow.run import Targets
    from ondot.sdk.app import Ondot
    from ondot.targets.processes.confine import Confinement

WAIT_FOR_DATABASE_S = 0.5
TOLD_AGAIN = 30
"""Tries for the database until it is told again that it is awaited: half a minute."""
CLOCK_EVERY_S = 2.0
TASKS_END_WITHIN_S = 1.0
API_STALLS_S = 5.0
API_HUNG_S = 30.0
NOT_IN_ORDER = 1
"""The exit code of a process that hung, and could not end or start again in order."""
SUSPECTS_TOGETHER = 16
"""A sixteenth of a worker's slots: so many suspects share a child process before each is tried alone."""
MOST_CHILDREN = 8
"""Child processes of one worker. Each imports the app; there are none while nothing has blocked or lost a worker."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
GARBAGE = 20_000, 20, 20
"""Objects made and not freed before the collector looks, by its three generations; Python has 700, 10, 10."""

log = get_logger()

OnHung = Callable[[float], None]
Role = Callable[[asyncio.Event, OnHung], Awaitable[None]]
"""Runs until its event is set; and calls the other from another thread when its loop hangs."""
Result = TypeVar("Result")


# Roles ---------------------------------------------------------------------------------------------------------------


def run_api(settings: Settings) -> None:
    """Serve the API and the page until SIGTERM or Ctrl-C."""
    from ondot.roles.listen import listen

    listener = listen(settings.host, settings.port)
    run_role("api", settings, lambda stop, on_hung: _api(settings, listener, stop, on_hung))


async def _api(settings: Settings, listener: socket.socket, stop: asyncio.Event, on_hung: OnHung) -> None:
    from ondot.api.auth import Auth
    from ondot.api.dependencies import Services
    from ondot.api.serve import serve
    from ondot.api.server import build_api
    from ondot.document.requests import preview_request
    from ondot.objects import open_objects
    from ondot.roles.loop import every
    from ondot.roles.pulse import Pulse
    from ondot.ui.pages import build_pages

    async with opened(settings, stop, brief=True) as database:
        if database is None:
            return
        dispatcher = Dispatcher(choose_transport(database))
        auth = Auth(database, settings, **_token_of(settings))
        app = build_api(Services(database, dispatcher, auth, open_objects(settings), stop))
        feed = build_pages(app, database, auth, preview_request)
        async with asyncio.TaskGroup() as group:
            duties = [
                group.create_task(dispatcher.run(), name="dispatcher"),
                group.create_task(every(CLOCK_EVERY_S, database.read_clock, name="clock"), name="clock"),
                group.create_task(feed.run(), name="feed"),
                group.create_task(_close_when(stop, feed.close), name="close-feed"),
            ]
            log.info("api.started", address="{}:{}".format(*listener.getsockname()[:2]), auth=settings.auth)
            pulse = Pulse(API_STALLS_S, on_hung=on_hung, hung_after_s=API_HUNG_S)
            pulse.start()
            try:
                await serve(app, listener, stop)
            finally:
                pulse.stop()
            for duty in duties:
                duty.cancel()


class _Token(TypedDict, total=False):
    token: str
    token_path: Path


def _token_of(settings: Settings) -> _Token:
    """What other accounts need where no key is asked for. A home that cannot keep it is no reason not to start: then
    only this account is answered."""
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
    """Open event streams end at once on a stop: the server would wait for them."""
    await stop.wait()
    close()


def run_scheduler(settings: Settings) -> None:
    """Plan fires and keep house until SIGTERM or Ctrl-C."""
    from ondot.roles.scheduler import Scheduler

    async def role(stop: asyncio.Event, on_hung: OnHung) -> None:
        async with opened(settings, stop, hurried=True) as database:
            if database is not None:
                await Scheduler(database, choose_transport(database), on_hung).run(stop)

    run_role("scheduler", settings, role)


def run_worker(settings: Settings, *, app_reference: str | None, pools: Sequence[str], slots: int | None) -> None:
    """Run attempts of these pools; with an app (`module:app`) also its functions, whose schedules are registered."""
    from ondot.objects import open_objects
    from ondot.roles.worker import Worker
    from ondot.sdk.app import Ondot
    from ondot.targets.function.prints import capture_prints

    app = load_app(app_reference) if app_reference else Ondot()
    room = slots or settings.slots
    confinement = _confinement(settings)

    async def role(stop: asyncio.Event, on_hung: OnHung) -> None:
        recycle = False
        # After the logs were configured: they are not to become lines of attempts.
        capture_prints()
        async with (
            opened(settings, stop, by_key=True, hurried=True) as database,
            targets_of(
                settings, app, room, app_reference, database.clock.now if database else None, confinement
            ) as targets,
        ):
            pool_nos: list[PoolNo] = []

            async def registering() -> None:
                pool_nos[:] = await register(database, app, pools) if database else []

            if database is not None and await patiently(registering, stop):
                objects = open_objects(settings)
                worker = Worker(database, choose_transport(database), targets, pool_nos, room, objects, on_hung)
                recycle = await worker.run(stop)
        if recycle and not stop.is_set():
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_DFL)
            log.info("worker.recycled")
            _start_again()

    run_role("worker", settings, role)


def _start_again() -> NoReturn:
    """The same command in the same process: threads that would not end are gone, and no supervisor notices.

    From any thread. Connections and pipes close with it, so that children and guards end what they run.
    """
    drain_output()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        execute_again()
    except OSError:
        # The interpreter is not there any more. Better no process, which a supervisor sees, than one that hangs.
        log.exception("process.not_started_again")
        drain_output()
        os._exit(NOT_IN_ORDER)


def _collect_seldom() -> None:
    """What was imported stays; what comes and goes by thousands a second is mostly freed without the collector.

    With Python's own thresholds a third of a worker's time went into looking again and again through what runs.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE)


def run_role(name: str, settings: Settings, role: Role) -> None:
    """Run a role in a fresh event loop until it ends; SIGTERM and Ctrl-C set its `stop`."""
    unblock_output()
    configure_logs(settings.log_format, settings.log_level, role=name)
    _collect_seldom()

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        asked = threading.Event()
        """The same as `stop`, for a loop that hangs."""

        def note(_number: int, _frame: object) -> None:
            asked.set()
            loop.call_soon_threadsafe(stop.set)

        def on_hung(stalled_s: float) -> None:
            """In a thread. Others have the work of a process that hangs for so long: what it still does is refused."""
            then = "the process ends by force" if asked.is_set() else "the process starts again"
            log.error("process.hung", stalled_s=round(stalled_s, 1), then=then)
            if asked.is_set():
                drain_output()
                os._exit(NOT_IN_ORDER)
            _start_again()

        for number in STOP_SIGNALS:
            signal.signal(number, note)
        await role(stop, on_hung)
        await _end_what_is_left()
        # A Ctrl-C reaches the whole group, and the supervisor's own signal comes after it: the second must not kill a
        # role that has done its work and is on its way out.
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    uvloop.run(main())


async def _end_what_is_left() -> None:
    """A handler that swallows its cancellation would keep the loop, and with it the process, as long as it likes."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if not left:
        return
    _, deaf = await asyncio.wait(left, timeout=TASKS_END_WITHIN_S)
    if deaf:
        log.warning("process.ends_by_force", tasks=sorted(task.get_name() for task in deaf))
        drain_output()
        os._exit(0)


# Choices -------------------------------------------------------------------------------------------------------------


def choose_transport(database: Database) -> Transport:
    return LocalTransport() if database.settings.pgbouncer else PostgresTransport(database)


@asynccontextmanager
async def targets_of(
    settings: Settings,
    app: "Ondot",
    slots: int,
    app_reference: str | None,
    now: Callable[[], datetime] | None = None,
    confinement: "Confinement | None" = None,
) -> AsyncIterator["Targets"]:
    """What a worker can call; suspects among the functions in children that import the app anew."""
    from ondot.flow.run import Targets
    from ondot.targets.function.child import ChildCaller
    from ondot.targets.function.placement import Functions
    from ondot.targets.function.target import FunctionCaller
    from ondot.targets.http.target import HttpCaller
    from ondot.targets.processes.confine import UNCONFINED
    from ondot.targets.shell import ShellCaller

    # Receivers refuse a timestamp that is minutes off: this machine's clock may be an hour (C3).
    http = HttpCaller(allow_private=settings.allow_private_targets, now=now)
    together = max(slots // SUSPECTS_TOGETHER, 1)
    apart = None
    if app_reference:
        apart = ChildCaller(app_reference, module="ondot.roles.child", at_once=together, most_children=MOST_CHILDREN)
    function = Functions(FunctionCaller(app.handlers, slots=slots), apart)
    shell = ShellCaller(allow=settings.allow_shell, confinement=confinement or UNCONFINED)
    try:
        yield Targets(
            http=http,
            function=function,
            shell=shell,
            stuck=lambda: function.stuck,
            begin=function.begin,
            is_apart=function.is_apart,
            running=function.running,
            heard_of=function.hear_of,
        )
    finally:
        await function.close()
        await http.close()


def _confinement(settings: Settings) -> "Confinement":
    """What commands may have of this worker. Raises Misconfigured if that cannot be had on this machine."""
    from ondot.targets.processes.confine import Account, Confinement, Limits

    if not settings.allow_shell:
        return Confinement()
    confinement = Confinement(
        Account.named(settings.shell_user) if settings.shell_user else None,
        Limits(settings.shell_memory_bytes, settings.shell_cpu_s, settings.shell_file_bytes),
        frozenset(settings.shell_variables),
    )
    if confinement.is_launched:
        confinement.check()
    return confinement


def load_app(reference: str) -> "Ondot":
    """Import `module:app`, with the current directory on the path as Python itself would have it."""
    from ondot.sdk.app import Ondot

    module_name, colon, attribute = reference.partition(":")
    if not module_name or not colon or not attribute:
        raise Misconfigured(f"{reference!r} does not name an app: write MODULE:APP, for example tasks:app.")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise Misconfigured(
            f"There is no module {error.name!r}: start the worker in the directory that holds it, or install it."
        ) from error
    except Exception as error:
        raise Misconfigured(f"The module {module_name} cannot be imported:\n{_told(error)}") from error
    try:
        found = getattr(module, attribute)
    except AttributeError as error:
        raise Misconfigured(f"The module {module_name} has no {attribute!r}: write MODULE:APP.") from error
    if not isinstance(found, Ondot):
        raise Misconfigured(f"{reference} is a {type(found).__name__}, not an Ondot app: write `app = Ondot()`.")
    return found


def _told(error: Exception) -> str:
    """The user's own part of a traceback: where the import machinery led is nobody's fault."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    lines = traceback.format_list(frames[1:]) + traceback.format_exception_only(error)
    return "".join(lines).rstrip()


# The database --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(settings: Settings, stop: asyncio.Event, **how: bool) -> AsyncIterator[Database | None]:
    """The database, opened like this, once it answers and fits; None if `stop` came before that."""
    database = await open_database(settings, **how)

    async def fits() -> None:
        await check_server(database)
        async with database.connection() as connection:
            await check_schema(connection)
        await database.read_clock()

    try:
        yield database if await patiently(fits, stop) else None
    finally:
        await database.close()


async def patiently(action: Callable[[], Awaitable[None]], stop: asyncio.Event) -> bool:
    """Do what needs the database, however long it is away; False if `stop` came before it was done."""
    from ondot.roles.loop import pause_after

    for tries in count(1):
        if stop.is_set():
            break
        try:
            await action()
        except Unavailable as error:
            if tries % TOLD_AGAIN == 1:
                log.warning("database.awaited", error=error.message, tries=tries)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_after(tries, WAIT_FOR_DATABASE_S)):
                    await stop.wait()
        else:
            return True
    return False


DECLARED = By("worker", "declared by the app that it runs")
"""A worker's start creates or changes a job: whoever changed the code did it."""


async def register(database: Database, app: "Ondot", pools: Sequence[str]) -> list[PoolNo]:
    """Make the pools of a worker known, and register the schedules of its functions."""
    from ondot.document.parse import job_spec
    from ondot.flow.submit import submit

    async with database.connection() as connection:
        numbers = await database.pools.register(connection, pools)
    if schedules := app.schedules():
        dispatcher = Dispatcher(PollingTransport())

        async def submit_all(moment: Moment) -> None:
            # A rule that has come to its end is no reason not to start.
            specs = [job_spec(body, moment.at, may_be_over=True) for body in schedules]
            await submit(
                database, dispatcher, DEFAULT_TENANT, specs, answer=lambda _: "null", moment=moment, by=DECLARED
            )
            log.info("schedules.registered", jobs=[spec.name for spec in specs])

        await database.by_clock(submit_all)
    return list(numbers.values())


def migrate(settings: Settings) -> Applied:
    """Bring the schema up to this release, with the days ahead; return what was applied."""

    async def up(database: Database) -> Applied:
        applied = await migrate_up(database)
        await make_days(database)
        return applied

    return _with_database(settings, up)


def schema_status(settings: Settings) -> Status:
    async def status(database: Database) -> Status:
        async with database.connection() as connection:
            return await read_status(connection)

    return _with_database(settings, status)


def _with_database(settings: Settings, action: Callable[[Database], Awaitable[Result]]) -> Result:
    async def main() -> Result:
        database = await open_database(settings)
        try:
            await check_server(database)
            return await action(database)
        except Unavailable as error:
            raise Unavailable(f"{error.message} Is it running at {place_of(settings.needs_database_url)}?") from error
        finally:
            await database.close()

    return uvloop.run(main())
