"""`ondot execution`: list, get, logs. Through the API, never to the database."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from ondot.cli.options import ExecutionId, Limit, Output
from ondot.cli.output import Format, exact, harmless, instant_of, show, show_json, show_json_lines, show_line
from ondot.cli.pages import gather, show_page
from ondot.cli.serving import ask
from ondot.cli.waiting import log_pages

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = dict[str, Any]

app = typer.Typer(help="Executions: what ran, runs or waits.", no_args_is_help=True)


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option(help="PENDING, RUNNING, RETRYING, SUCCEEDED, FAILED, …")] = None,
    job: Annotated[UUID | None, typer.Option(metavar="JOB_ID", help="Of this job.")] = None,
    pool: Annotated[str | None, typer.Option(help="Of this pool.")] = None,
    from_: Annotated[str | None, typer.Option("--from", metavar="INSTANT", help="Fires from then on.")] = None,
    to: Annotated[str | None, typer.Option(metavar="INSTANT", help="Fires up to then.")] = None,
    limit: Limit = 50,
    output: Output = Format.TABLE,
) -> None:
    """List executions, live and ended, newest first."""
    filters: Json = {"state": state and state.upper()}
    bounds: Json = {"pool": pool, "from_at": from_, "to_at": to}
    if job is not None and any(bounds.values()):
        raise typer.BadParameter("--job goes with --state only: leave out --pool, --from and --to.", param_hint="--job")

    async def question(client: "Client") -> Json:
        if job is not None:
            return await gather(lambda paging: client.job_executions(job, **filters, **paging), limit)
        return await gather(lambda paging: client.list_executions(**filters, **bounds, **paging), limit)

    page = ask(question)
    from ondot.cli.views import execution_table

    show_page(page, output, execution_table, none="No executions.")


@app.command()
def get(execution_id: ExecutionId, output: Output = Format.TABLE) -> None:
    """Show an execution with its attempts, result or error."""
    show_execution(ask(lambda client: client.get_execution(execution_id)), output)


@app.command()
def logs(
    execution_id: ExecutionId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more until it has ended.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Print what the attempts of an execution said: their log and captured output."""

    async def question(client: "Client") -> list[Json]:
        kept = []
        async for lines in log_pages(client, str(execution_id), follow=follow):
            match output:
                case Format.JSON:
                    kept.extend(lines)
                case Format.JSONL:
                    show_json_lines(lines)
                case Format.TABLE:
                    show_log_lines(lines)
        return kept

    lines = ask(question)
    if output is Format.JSON:
        show_json({"items": lines})


def show_execution(execution: Json, output: Format) -> None:
    if output is Format.JSON:
        return show_json(execution)
    if output is Format.JSONL:
        return show_json_lines([execution])
    from ondot.cli.views import attempt_table, execution_card

    now = datetime.now(UTC)
    show(execution_card(execution, now))
    if any(attempt["error"] is not None for attempt in execution["attempts"]):
        show_line("")
        show(attempt_table(execution["attempts"], now))
    return None


def show_log_lines(lines: list[Json]) -> None:
    """Plain lines: a log is read by eye, by grep and by less."""
    for line in lines:
        at = instant_of(line["at"])
        when = exact(at) if at else ""
        sys.stdout.write(f"{when} {line['attempt']} {line['stream']:<6} {harmless(line['line'])}\n")
    sys.stdout.flush()
