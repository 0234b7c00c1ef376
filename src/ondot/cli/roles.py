"""`ondot api`, `ondot scheduler`, `ondot worker`: one role of a server in this process, until SIGTERM or Ctrl-C.

A supervisor (`ondot up`, `ondot worker --processes`) passes options to its children: `--supervised-by`, the process
that a child must not outlive; `--show-life-to`, a file descriptor on which a child shows that it runs; and
`--metrics-pages`, descriptors of memory: the first to count in, the others to add up (`telemetry.page`).
"""

import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from ondot.cli.calling import database_settings
from ondot.cli.options import MetricsPages, ShowLifeTo, SupervisedBy
from ondot.cli.output import show_progress

Pool = Annotated[list[str] | None, typer.Option("--pool", metavar="POOL", help="Serve this pool. May be repeated.")]
Slots = Annotated[int | None, typer.Option(min=1, help="How many attempts one process runs at once.")]
Tenants = Annotated[
    list[str] | None,
    typer.Option(
        "--tenant",
        metavar="TENANT",
        help="Run only work of this tenant; * for all. May be repeated. By default a worker with an app serves the"
        " first tenant and those that were given its pools by name; one without an app serves all.",
    ),
]


class Declare(StrEnum):
    MERGE = "merge"
    FORCE = "force"
    OFF = "off"


Declares = Annotated[
    Declare,
    typer.Option(
        "--declare",
        help="What the app declares of its recurring jobs: merge changes what the code changed and keeps what was"
        " changed by hand; force sets every job back to the code; off declares nothing.",
    ),
]
AllowShell = Annotated[bool, typer.Option("--allow-shell", help="Allow jobs to run shell commands on this machine.")]


def api(
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="The port to listen on.")] = None,
    supervised_by: SupervisedBy = None,
    show_life_to: ShowLifeTo = None,
    metrics_pages: MetricsPages = None,
) -> None:
    """Serve the API and the web pages."""
    _bind_life(supervised_by, show_life_to)
    from ondot import app as application

    settings = database_settings(host=host, port=port)
    _show_start(f"the API at {settings.host}, port {settings.port}", supervised_by)
    application.run_api(settings, _descriptors(metrics_pages))


def scheduler(
    supervised_by: SupervisedBy = None, show_life_to: ShowLifeTo = None, metrics_pages: MetricsPages = None
) -> None:
    """Plan the fires of jobs, and recover lost work."""
    _bind_life(supervised_by, show_life_to)
    from ondot import app as application

    settings = database_settings()
    _show_start("a scheduler", supervised_by)
    application.run_scheduler(settings, _descriptors(metrics_pages))


def worker(
    app_reference: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="The app whose functions it runs.", show_default=False),
    ] = None,
    pool: Pool = None,
    slots: Slots = None,
    processes: Annotated[
        int, typer.Option(min=1, max=1000, help="How many worker processes to run, under one supervisor.")
    ] = 1,
    tenant: Tenants = None,
    declare: Declares = Declare.MERGE,
    allow_shell: AllowShell = False,
    supervised_by: SupervisedBy = None,
    show_life_to: ShowLifeTo = None,
    metrics_pages: MetricsPages = None,
) -> None:
    """Run attempts: HTTP calls, functions of an app, and shell commands if allowed."""
    _bind_life(supervised_by, show_life_to)
    from ondot import app as application

    settings = database_settings(slots=slots, allow_shell=allow_shell or None)
    pools = list(dict.fromkeys(pool or ["default"]))
    _show_start(f"a worker of {', '.join(pools)}" + (f" with {app_reference}" if app_reference else ""), supervised_by)
    if processes == 1:
        application.run_worker(
            settings,
            app_reference=app_reference,
            pools=pools,
            slots=slots,
            tenants=tenant or (),
            declare=declare.value,
            metrics_pages=_descriptors(metrics_pages),
        )
        return
    # An error that every child would meet is reported once, before any is started.
    _ = settings.needs_database_url
    if app_reference:
        from ondot.sdk.load import load_app

        load_app(app_reference)
    from ondot.roles.metrics import make_pages, serve_sum
    from ondot.roles.supervise import STOP_MARGIN_S, Child, StopSignals, Supervisor, hung_after, role_argv
    from ondot.telemetry.log import configure_logs
    from ondot.telemetry.outlet import unblock_output

    unblock_output()
    configure_logs(settings.log_format, settings.log_level, role="supervisor")
    words = worker_words(
        app_reference, pools, slots, allow_shell=allow_shell, tenants=tenant or (), declare=declare.value
    )
    argv = role_argv("worker", *words)
    names = [f"worker-{number}" for number in range(1, processes + 1)]
    pages = {} if settings.metrics_port is None else make_pages(names)
    server = serve_sum(settings, list(pages.values())) if pages else None
    supervisor = Supervisor(
        children=[Child(name, "worker", argv, pages=[pages[name]] if pages else []) for name in names],
        environment={**os.environ, "ONDOT_DATABASE_URL": settings.needs_database_url},
        stop_timeout_s=settings.grace_s + STOP_MARGIN_S,
        signals=StopSignals(),
        report_waiting=lambda kind: show_stopping(kind, settings.grace_s),
        hung_after_s=hung_after(settings.heartbeat_s),
    )
    supervisor.start()
    exit_code = supervisor.run()
    if server is not None:
        server.stop()
    raise typer.Exit(exit_code)


def worker_words(
    app_reference: str | None,
    pools: list[str],
    slots: int | None,
    *,
    allow_shell: bool,
    tenants: Sequence[str] = (),
    declare: str = Declare.MERGE.value,
) -> list[str]:
    """The arguments of a child that runs the same worker."""
    return [
        *(["--slots", str(slots)] if slots is not None else []),
        *(["--allow-shell"] if allow_shell else []),
        *([f"--declare={declare}"] if declare != Declare.MERGE else []),
        *(word for pool in pools for word in ("--pool", pool)),
        *(word for name in tenants for word in ("--tenant", name)),
        *([app_reference] if app_reference else []),
    ]


def show_stopping(kind: str, grace_s: float) -> None:
    """Workers that do not end at once have running attempts, which a user who pressed Ctrl-C should know."""
    if kind == "worker":
        show_progress(f"Stopping. Running attempts have up to {grace_s:g} s; press Ctrl-C again to stop now.")


def _bind_life(supervised_by: int | None, show_life_to: int | None) -> None:
    if supervised_by is not None:
        from ondot.roles.supervise import die_with

        die_with(supervised_by)
    if show_life_to is not None:
        from ondot.roles.signs import show_life

        show_life(show_life_to)


def _descriptors(pages: str | None) -> list[int]:
    return [int(number) for number in (pages or "").split(",") if number]


def _show_start(what: str, supervised_by: int | None) -> None:
    if supervised_by is None and sys.stderr.isatty():
        from ondot import __version__

        show_progress(f"ondot {__version__}: {what}. Ctrl-C stops it; running attempts may finish.")
