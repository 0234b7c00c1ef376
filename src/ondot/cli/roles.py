"""`ondot api`, `ondot scheduler`, `ondot worker`: one role of a server in this process, until SIGTERM or Ctrl-C.

A child of a supervisor (`ondot up`, `ondot worker --processes`) gets `--supervised-by`, and first of all binds its life
to that process, and `--show-life-to`, a descriptor that says from then on that it runs.
"""

import os
import sys
from typing import Annotated

import typer

from ondot.cli.calling import database_settings
from ondot.cli.options import ShowLifeTo, SupervisedBy
from ondot.cli.output import show_progress

Pool = Annotated[list[str] | None, typer.Option("--pool", metavar="POOL", help="Work for this pool; repeat for more.")]
Slots = Annotated[int | None, typer.Option(min=1, help="Attempts that one process runs at a time.")]
AllowShell = Annotated[bool, typer.Option("--allow-shell", help="Run shell commands of jobs on this machine.")]


def api(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port to listen on.")] = None,
    supervised_by: SupervisedBy = None,
    show_life_to: ShowLifeTo = None,
) -> None:
    """Serve the API and the page."""
    _bind_life(supervised_by, show_life_to)
    from ondot import app as application

    settings = database_settings(host=host, port=port)
    _tell_start(f"the API at {settings.host}, port {settings.port}", supervised_by)
    application.run_api(settings)


def scheduler(supervised_by: SupervisedBy = None, show_life_to: ShowLifeTo = None) -> None:
    """Plan the fires of jobs, and recover what is lost."""
    _bind_life(supervised_by, show_life_to)
    from ondot import app as application

    settings = database_settings()
    _tell_start("a scheduler", supervised_by)
    application.run_scheduler(settings)


def worker(
    app_reference: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="The app whose functions it runs.", show_default=False),
    ] = None,
    pool: Pool = None,
    slots: Slots = None,
    processes: Annotated[int, typer.Option(min=1, max=1000, help="Worker processes, under one supervisor.")] = 1,
    allow_shell: AllowShell = False,
    supervised_by: SupervisedBy = None,
    show_life_to: ShowLifeTo = None,
) -> None:
    """Run attempts: HTTP calls, functions of an app, and shell commands where allowed."""
    _bind_life(supervised_by, show_life_to)
    from ondot import app as application

    settings = database_settings(slots=slots, allow_shell=allow_shell or None)
    pools = list(dict.fromkeys(pool or ["default"]))
    _tell_start(f"a worker of {', '.join(pools)}" + (f" with {app_reference}" if app_reference else ""), supervised_by)
    if processes == 1:
        application.run_worker(settings, app_reference=app_reference, pools=pools, slots=slots)
        return
    # What every child would stumble over is told once, before any is started.
    _ = settings.needs_database_url
    if app_reference:
        from ondot.sdk.load import load_app

        load_app(app_reference)
    from ondot.roles.supervise import STOP_MARGIN_S, Child, StopSignals, Supervisor, hung_after, role_argv
    from ondot.telemetry.log import configure_logs
    from ondot.telemetry.outlet import unblock_output

    unblock_output()
    configure_logs(settings.log_format, settings.log_level, role="supervisor")
    argv = role_argv("worker", *worker_words(app_reference, pools, slots, allow_shell=allow_shell))
    supervisor = Supervisor(
        children=[Child(f"worker-{number}", "worker", argv) for number in range(1, processes + 1)],
        environment={**os.environ, "ONDOT_DATABASE_URL": settings.needs_database_url},
        stop_timeout_s=settings.grace_s + STOP_MARGIN_S,
        signals=StopSignals(),
        tell_waiting=lambda kind: tell_stopping(kind, settings.grace_s),
        hung_after_s=hung_after(settings.heartbeat_s),
    )
    supervisor.start()
    raise typer.Exit(supervisor.run())


def worker_words(app_reference: str | None, pools: list[str], slots: int | None, *, allow_shell: bool) -> list[str]:
    """The same worker, as the command line of a child."""
    return [
        *(["--slots", str(slots)] if slots is not None else []),
        *(["--allow-shell"] if allow_shell else []),
        *(word for pool in pools for word in ("--pool", pool)),
        *([app_reference] if app_reference else []),
    ]


def tell_stopping(kind: str, grace_s: float) -> None:
    """Workers that have not ended after a moment have work that runs; whoever pressed Ctrl-C should know."""
    if kind == "worker":
        show_progress(f"Stopping: running attempts have up to {grace_s:g} s; Ctrl-C again ends the waiting.")


def _bind_life(supervised_by: int | None, show_life_to: int | None) -> None:
    if supervised_by is not None:
        from ondot.roles.supervise import die_with

        die_with(supervised_by)
    if show_life_to is not None:
        from ondot.roles.signs import show_life

        show_life(show_life_to)


def _tell_start(what: str, supervised_by: int | None) -> None:
    if supervised_by is None and sys.stderr.isatty():
        from ondot import __version__

        show_progress(f"ondot {__version__}: {what}. Ctrl-C stops it; what runs may end.")
