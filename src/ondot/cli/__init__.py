"""The command `ondot`: noun then verb, one module for each noun.

    up · api · scheduler · worker        run a server, or one role of it          up.py, roles.py
    migrate · doctor · key · user        maintain an installation                 migrate.py, doctor.py, key.py, user.py
    archive                              the same                                 archive.py
    tenant                               the same, with the key of an owner       tenant.py
    job · execution · dead-letter        use a server, through the SDK's client   job.py, execution.py, dead_letter.py
    workflow · event                     the same                                 workflow.py, event.py
    fleet · pool · secret · audit        the same                                 fleet.py, pool.py, secret.py, audit.py
    bulk · view · export                 many at once, queries, lists as files    bulk.py, view.py, export.py
    channel · ping                       messages, jobs elsewhere                 channel.py, ping.py
    webhook · hook                       signatures of calls, webhooks as events  webhook.py, hook.py
    alert · incident                     what to be notified of, what went wrong  alert.py, incident.py
    cron · version                       need no server                           cron.py

Promises to start fast: heavy packages (the server, pydantic, rich) are imported by the command that needs them.
"""

import os
import sys
from typing import Annotated

import typer

from ondot import __version__
from ondot.cli import (
    alert,
    archive,
    audit,
    bulk,
    channel,
    cron,
    dead_letter,
    event,
    execution,
    hook,
    incident,
    job,
    key,
    migrate,
    ping,
    pool,
    run,
    secret,
    tenant,
    user,
    view,
    webhook,
    workflow,
)
from ondot.cli.doctor import doctor
from ondot.cli.errors import ROLES, Root
from ondot.cli.export import export
from ondot.cli.fleet import fleet
from ondot.cli.forecast import forecast
from ondot.cli.history import history
from ondot.cli.output import show_line
from ondot.cli.report import report
from ondot.cli.roles import api, scheduler, worker
from ondot.cli.up import up

RUN, WORK, OPERATE, SET, KEEP = "Run a server", "Work", "Operate", "Settings", "Maintain a server"
"""The groups of the help. Work, Operate and Settings are those of the pages, too."""

app = typer.Typer(
    cls=Root,
    name="ondot",
    help="A distributed job scheduler on PostgreSQL: work runs on the dot. Times are in UTC (Z).",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def root(
    print_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    acting_for: Annotated[
        str | None,
        typer.Option("--tenant", metavar="NAME", help="Act for this tenant, as an owner; also ONDOT_TENANT."),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", hidden=True, help="Show the traceback of an unexpected error.")
    ] = False,
) -> None:
    """A distributed job scheduler on PostgreSQL: work runs on the dot. Times are in UTC (Z)."""
    if acting_for is not None:
        os.environ["ONDOT_TENANT"] = acting_for  # the command reads it with its other settings


def version() -> None:
    """Print the version."""
    show_line(f"ondot {__version__}")


app.command("up", rich_help_panel=RUN)(up)
app.command("api", rich_help_panel=RUN)(api)
app.command("scheduler", rich_help_panel=RUN)(scheduler)
app.command("worker", rich_help_panel=RUN)(worker)
app.add_typer(job.app, name="job", rich_help_panel=WORK)
app.add_typer(workflow.app, name="workflow", rich_help_panel=WORK)
app.add_typer(run.app, name="run", rich_help_panel=WORK)
app.add_typer(execution.app, name="execution", rich_help_panel=WORK)
app.add_typer(event.app, name="event", rich_help_panel=WORK)
app.add_typer(view.app, name="view", rich_help_panel=WORK)
app.command("export", rich_help_panel=WORK)(export)
app.add_typer(cron.app, name="cron", rich_help_panel=WORK)
app.command("report", rich_help_panel=OPERATE)(report)
app.add_typer(incident.app, name="incident", rich_help_panel=OPERATE)
app.add_typer(dead_letter.app, name="dead-letter", rich_help_panel=OPERATE)
app.add_typer(bulk.app, name="bulk", rich_help_panel=OPERATE)
app.command("forecast", rich_help_panel=OPERATE)(forecast)
app.command("fleet", rich_help_panel=OPERATE)(fleet)
app.add_typer(pool.app, name="pool", rich_help_panel=OPERATE)
app.command("history", rich_help_panel=OPERATE)(history)
app.add_typer(alert.app, name="alert", rich_help_panel=SET)
app.add_typer(channel.app, name="channel", rich_help_panel=SET)
app.add_typer(ping.app, name="ping", rich_help_panel=SET)
app.add_typer(hook.app, name="hook", rich_help_panel=SET)
app.add_typer(webhook.app, name="webhook", rich_help_panel=SET)
app.add_typer(secret.app, name="secret", rich_help_panel=SET)
app.add_typer(audit.app, name="audit", rich_help_panel=SET)
app.add_typer(migrate.app, name="migrate", rich_help_panel=KEEP)
app.command("doctor", rich_help_panel=KEEP)(doctor)
app.add_typer(archive.app, name="archive", rich_help_panel=KEEP)
app.add_typer(tenant.app, name="tenant", rich_help_panel=KEEP)
app.add_typer(key.app, name="key", rich_help_panel=KEEP)
app.add_typer(user.app, name="user", rich_help_panel=KEEP)
app.command("version", rich_help_panel=KEEP)(version)


def main() -> None:
    if next((word for word in sys.argv[1:] if not word.startswith("-")), None) in ROLES:
        from ondot.environment import take_environment

        take_environment()
    app(prog_name="ondot")
