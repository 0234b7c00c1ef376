"""The command `ondot`: noun then verb, one module for each noun.

    up · api · scheduler · worker        run a server, or one role of it          up.py, roles.py
    migrate · doctor · key · user        maintain an installation                 migrate.py, doctor.py, key.py, user.py
    context                              the servers that a person uses           context.py
    archive                              the same                                 archive.py
    tenant                               the same, with the key of an owner       tenant.py
    job · execution · dead-letter        use a server, through the SDK's client   job.py, execution.py, dead_letter.py
    workflow · event · function          the same                                 workflow.py, event.py, function.py
    fleet · top · pool                   the same                                 fleet.py, top.py, pool.py
    secret · connection · audit          the same                                 secret.py, connection.py, audit.py
    bulk · view · export                 many at once, queries, lists as files    bulk.py, view.py, export.py
    channel · ping · sink                messages, jobs elsewhere, events out     channel.py, ping.py, sink.py
    webhook · hook                       signatures of calls, webhooks as events  webhook.py, hook.py
    alert · incident                     what to be notified of, what went wrong  alert.py, incident.py
    cron · import                        need no server                           cron.py, import_.py
    version · completion                 the same                                 version.py, completion.py

`names` resolves names, keys and the first characters of ids for all of them.

Promises to start fast: `commands` loads the module of a command when it is called, and heavy packages (the server,
pydantic, rich) are imported by the command that needs them.
"""

import os
import sys
from typing import Annotated

import typer

from ondot.cli.commands import Root
from ondot.cli.errors import ROLES

app = typer.Typer(
    cls=Root,
    name="ondot",
    help="A distributed job scheduler on PostgreSQL: work runs on the dot. Times are in UTC (Z).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from ondot.cli.version import version

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
    context: Annotated[
        str | None,
        typer.Option("--context", metavar="NAME", help="Use this server, of `ondot context list`; also ONDOT_CONTEXT."),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", hidden=True, help="Show the traceback of an unexpected error.")
    ] = False,
) -> None:
    """A distributed job scheduler on PostgreSQL: work runs on the dot. Times are in UTC (Z)."""
    choose_server(acting_for, context)


def choose_server(acting_for: str | None, context: str | None) -> None:
    """By the flags before a command, which win over variables."""
    if acting_for is not None:
        os.environ["ONDOT_TENANT"] = acting_for  # the command reads it with its other settings
    if context is not None:
        os.environ["ONDOT_CONTEXT"] = context
        # A key goes only to the URL beside it: both come from the context.
        for name in ("ONDOT_URL", "ONDOT_API_KEY", "ONDOT_API_KEY_FILE"):
            os.environ.pop(name, None)


def main() -> None:
    if shell := os.environ.get("_ONDOT_COMPLETE"):
        from ondot.cli.complete import print_completions

        return print_completions(shell, sys.argv[1:])
    if next((word for word in sys.argv[1:] if not word.startswith("-")), None) in ROLES:
        from ondot.environment import take_environment

        take_environment()
    app(prog_name="ondot")
    return None
