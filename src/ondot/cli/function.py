"""`ondot function`: what workers can run, with which options and arguments; and run one (D1)."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli.body import payload_of
from ondot.cli.calling import ask
from ondot.cli.complete import complete_names
from ondot.cli.execution import end_with
from ondot.cli.options import Cursor, Limit, Output, Payload, Wait
from ondot.cli.output import Format, show, show_document, show_line, show_notice
from ondot.cli.pages import gather, show_page
from ondot.cli.waiting import first_execution, until_ended

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = dict[str, Any]

FunctionName = Annotated[
    str,
    typer.Argument(
        metavar="FUNCTION",
        help="The function's name.",
        show_default=False,
        autocompletion=complete_names("function"),
    ),
]

app = typer.Typer(help="Functions: what workers can run, and with which arguments.", no_args_is_help=True)


@app.command("list")
def list_(
    search: Annotated[str | None, typer.Option("--search", "-q", help="A part of the name.")] = None,
    of_app: Annotated[str | None, typer.Option("--app", help="Only functions of this app.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    output: Output = Format.TABLE,
) -> None:
    """List the functions that workers have registered."""
    from ondot.cli.function_views import function_table

    page = ask(lambda client: gather(lambda place: client.list_functions(q=search, app=of_app, **place), limit, cursor))
    none = "No function is registered. `ondot worker MODULE:APP` registers those of its app."
    show_page(page, output, function_table, none=none)


@app.command("get")
def get(name: FunctionName, output: Output = Format.TABLE) -> None:
    """Show one function: its arguments, options, releases, workers and latest executions."""
    function = ask(lambda client: client.get_function(name))
    if not output.is_table:
        return show_document(function, output)
    from ondot.cli.function_views import argument_table, function_card

    now = datetime.now(UTC)
    show(function_card(function, now))
    if (arguments := argument_table(function["arguments"])) is not None:
        show(arguments)
    return None


@app.command("run")
def run(
    name: FunctionName,
    payload: Payload = None,
    wait: Wait = False,
    output: Output = Format.TABLE,
) -> None:
    """Run a function once, now, with its own options and these arguments."""
    body: Json = {"function": name} | payload_of(payload)

    async def question(client: "Client") -> tuple[Json, Json, Json | None]:
        job = await client.create_job(body)
        execution = await first_execution(client, job)
        return job, execution, await until_ended(client, execution["id"]) if wait else None

    job, execution, ended = ask(question)
    for warning in job.get("warnings", ()):
        show_notice(f"Warning: {warning['detail']}")
    if ended is not None:
        return end_with(ended, output)
    if not output.is_table:
        return show_document({"job_id": job["id"], "execution_id": execution["id"]}, output)
    return show_line(f"Started {name}: execution {execution['id']}")
