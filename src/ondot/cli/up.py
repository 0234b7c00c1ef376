"""`ondot up`: a whole server in one command, and a first screen: addresses, what is open, what to try (O6)."""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ondot.cli.output import harmless, show_error, show_line
from ondot.cli.roles import AllowShell, Slots, show_stopping
from ondot.model.errors import OndotError
from ondot.model.urls import place_of

if TYPE_CHECKING:
    from ondot.roles.up import Running
    from ondot.settings import Settings

A_MOMENT_S: Final = 0.7
"""A faster start prints nothing until it is done."""

A_HELLO: Final = '{"function": "hello", "payload": {"name": "Ada"}}'


def up(
    home: Annotated[Path | None, typer.Option(metavar="DIR", help="The directory of the data.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The port to listen on; 0 chooses a free one.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=1000, help="How many worker processes to run.")] = 1,
    slots: Slots = None,
    app_reference: Annotated[
        str | None, typer.Option("--app", metavar="MODULE:APP", help="The app whose functions the workers run.")
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Create a few sample jobs that run.")] = False,
    allow_shell: AllowShell = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show the log of every role.")] = False,
) -> None:
    """Start everything: PostgreSQL, API, web pages, scheduler and workers. Ctrl-C stops it; nothing is lost.

    Uses the database of ONDOT_DATABASE_URL if that is set. Otherwise it runs its own PostgreSQL under --home.
    """
    if demo and app_reference:
        raise typer.BadParameter("--demo has its own app; leave out --demo or --app.", param_hint="--app")
    from ondot.roles.up import UpOptions, run_up
    from ondot.sdk.load import load_app
    from ondot.settings import load_settings
    from ondot.telemetry.log import configure_logs
    from ondot.telemetry.outlet import unblock_output

    settings = load_settings(home=home, host=host, port=port, slots=slots, allow_shell=allow_shell or None)
    settings = settings.model_copy(update={"log_level": log_level(settings, verbose=verbose)})
    if app_reference:
        load_app(app_reference)
    unblock_output()
    configure_logs(settings.log_format, settings.log_level, role="up")
    where = "PostgreSQL" if settings.database_url is None else "ondot"
    with announce(f"Starting {where} …") as stop_announcing:

        def show_screen(running: "Running") -> None:
            stop_announcing()
            if demo:
                _seed(running.url)
            for line in first_screen(running, settings, demo=demo):
                show_line(line)

        options = UpOptions(workers=workers, demo=demo, app_reference=app_reference)
        code = run_up(
            settings,
            options,
            show=show_screen,
            report_waiting=lambda kind: show_stopping(kind, settings.grace_s),
        )
    show_line("stopped" if code == 0 else "stopped, not cleanly: interrupted work is recovered at the next start")
    raise typer.Exit(code)


def log_level(settings: "Settings", *, verbose: bool) -> str:
    """Quiet by default, so that logs do not hide the first screen."""
    if verbose:
        return "info"
    return settings.log_level if "log_level" in settings.model_fields_set else "warning"


@contextmanager
def announce(what: str) -> Iterator[Callable[[], None]]:
    """Print what happens, if it takes longer than a moment."""
    timer = threading.Timer(A_MOMENT_S, show_line, [what])
    timer.daemon = True
    timer.start()
    try:
        yield timer.cancel
    finally:
        timer.cancel()


def first_screen(running: "Running", settings: "Settings", *, demo: bool) -> list[str]:
    from ondot import __version__

    data = f"{running.home} ({running.database})" if running.home else place_of(settings.database_url or "")
    elsewhere = "" if running.url == settings.url else f"    (with ONDOT_URL={running.url})"
    return [
        f"ondot {__version__}",
        "",
        f"  page  {running.url}",
        f"  API   {running.url}/v1, described at {running.url}/docs",
        f"  data  {harmless(data)}",
        "",
        *(f"  {line}" for line in what_is_open(settings)),
        "",
        "  Try:",
        f"    curl -X POST {running.url}/v1/jobs{key_header(settings)} -d '{A_HELLO if demo else a_call(running.url)}'",
        f"    {this_command()} execution list{elsewhere}",
        "",
        "Ctrl-C stops it; nothing is lost.",
    ]


def this_command() -> str:
    """How to call ondot from another terminal: by its name if it is on the PATH, else by its path."""
    if shutil.which("ondot"):
        return "ondot"
    called = Path(sys.argv[0])
    return str(called) if called.name == "ondot" else f"{sys.executable} -m ondot"


def what_is_open(settings: "Settings") -> list[str]:
    """What others can do on this server, and why."""
    from ondot.settings import default_home

    own = settings.on_loopback
    given = settings.model_fields_set
    lines = []
    if asks_no_key(settings):
        token = (settings.home or default_home()).expanduser().absolute() / "token"
        lines.append(f"No API key is needed: {settings.host} answers only this account of this machine.")
        lines.append(f"Other accounts and relays need the token in {harmless(str(token))}.")
    else:
        lines.append("Every request needs an API key. Create one with `ondot key create NAME`.")
    if settings.allow_private_targets:
        lines.append("Jobs may call private addresses (ONDOT_ALLOW_PRIVATE_TARGETS).")
    elif own and "allow_private_targets" not in given:
        lines.append("Jobs may call private addresses, such as servers on this machine, because it is your own.")
    else:
        lines.append("Jobs may not call private addresses (ONDOT_ALLOW_PRIVATE_TARGETS=1 allows it).")
    if settings.allow_shell:
        account = f"as {settings.shell_user}" if settings.shell_user else "as this user"
        lines.append(f"Jobs may run shell commands on this machine, {account}.")
    else:
        lines.append("Jobs may not run shell commands (--allow-shell allows it).")
    return lines


def asks_no_key(settings: "Settings") -> bool:
    return settings.auth == "off" or (settings.on_loopback and "auth" not in settings.model_fields_set)


def key_header(settings: "Settings") -> str:
    return "" if asks_no_key(settings) else " -H 'Authorization: Bearer ondot_…'"


def a_call(url: str) -> str:
    """A first job that succeeds without a network: ondot calls itself."""
    return f'{{"in": "5s", "target": {{"http": {{"url": "{url}/livez", "method": "GET"}}}}}}'


def _seed(url: str) -> None:
    """The other jobs of the demo. It is useful without them, so an error is only reported."""
    from importlib import import_module

    seed = getattr(import_module("ondot.demo"), "seed", None)
    if seed is None:
        return
    try:
        seed(url)
    except (OndotError, OSError) as error:
        show_error(f"Some jobs of the demo could not be created: {error}")
