"""`ondot execution`: list, get, logs, result, retry. Through the API, not the database.

`cancel` and `explain` have modules of their own.
"""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli import cancel, explain
from ondot.cli.body import payload_of
from ondot.cli.bulk import Matching, Rate, change_many, which
from ondot.cli.calling import ask
from ondot.cli.complete import complete_choices, complete_names
from ondot.cli.errors import FAILED
from ondot.cli.options import (
    CurrentVersion,
    Cursor,
    DryRun,
    ExecutionId,
    Executions,
    Limit,
    ListOutput,
    OfJob,
    Output,
    Reason,
    Search,
    View,
    Wait,
    Yes,
)
from ondot.cli.output import (
    Format,
    ListFormat,
    exact,
    harmless,
    instant_of,
    show,
    show_document,
    show_items,
    show_json_lines,
    show_line,
    show_pieces,
)
from ondot.cli.pages import gather, show_csv, show_page
from ondot.cli.view import query_of
from ondot.cli.waiting import has_ended, log_pages, needs_a_person, until_ended
from ondot.model.execution import State

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = dict[str, Any]

app = typer.Typer(help="Executions: the runs of jobs, waiting, running or ended.", no_args_is_help=True)


@app.command("list")
def list_(
    state: Annotated[
        str | None,
        typer.Option(
            help="PENDING, RUNNING, RETRYING, SUCCEEDED, FAILED, …",
            autocompletion=complete_choices(*(state.value for state in State)),
        ),
    ] = None,
    job: OfJob = None,
    pool: Annotated[
        str | None, typer.Option(help="Only executions of this pool.", autocompletion=complete_names("pool"))
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="INSTANT", help="Only fires from this instant on.")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="INSTANT", help="Only fires up to this instant.")] = None,
    search: Search = None,
    view: View = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    output: ListOutput = ListFormat.TABLE,
) -> None:
    """List executions, live and ended, newest first. Search with -q 'state:failed job:nightly* took>5m since:24h'."""
    filters: Json = {"state": state and state.upper()}
    query = ask(lambda client: query_of(client, "executions", view, search)) if view else search
    bounds: Json = {"pool": pool, "from_at": from_, "to_at": to, "q": query}
    if job is not None and any(bounds.values()):
        raise typer.BadParameter(
            "--job can be combined only with --state; leave out --pool, --from and --to, and write job:ID into -q.",
            param_hint="--job",
        )

    if output is ListFormat.CSV:
        what = "executions" if job is None else f"jobs/{job}/executions"
        return show_csv(what, filters | (bounds if job is None else {}), limit)

    async def question(client: "Client") -> Json:
        if job is not None:
            return await gather(lambda paging: client.job_executions(job, **filters, **paging), limit, cursor)
        return await gather(lambda paging: client.list_executions(**filters, **bounds, **paging), limit, cursor)

    page = ask(question)
    from ondot.cli.views import execution_table

    return show_page(
        page, output, execution_table, none="No executions match. A job makes them: `ondot job run NAME` starts one."
    )


@app.command()
def get(
    execution_id: ExecutionId,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Show its progress until it ends; exit with 1 unless it succeeded."),
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show an execution: its attempts, progress, result or error, and what it waits for."""

    async def question(client: "Client") -> tuple[Json, Json | None]:
        if watch:
            return await until_ended(client, str(execution_id)), None
        execution = await client.get_execution(execution_id)
        needs_none = has_ended(execution) or not output.is_table
        return execution, None if needs_none else await client.explain_execution(execution_id)

    execution, explanation = ask(question)
    if watch:
        return end_with(execution, output)
    return show_execution(execution, output, explanation)


@app.command()
def logs(
    execution_id: ExecutionId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more lines until the execution has ended.")
    ] = False,
    attempt: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only lines of this attempt.")] = None,
    grep: Annotated[
        str | None,
        typer.Option("--grep", "-q", metavar="TEXT", help="Only lines that contain this text; case is ignored."),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="The whole text of one attempt, by default the latest.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Print the log and the captured output of an execution's attempts."""
    if whole and (follow or not output.is_table):
        raise typer.BadParameter(
            "--whole prints the text of an attempt as it is; leave out -f and -o.", param_hint="--whole"
        )

    async def question(client: "Client") -> list[Json]:
        if whole:
            await show_pieces(client.whole_log(execution_id, attempt=attempt, q=grep))
            return []
        kept = []
        async for lines in log_pages(client, str(execution_id), follow=follow, attempt=attempt, q=grep):
            if output.is_table:
                show_log_lines(lines)
            elif output is Format.JSONL:
                show_json_lines(lines)
            else:
                kept.extend(lines)
        return kept

    lines = ask(question)
    if not output.is_table and output is not Format.JSONL:
        show_items({"items": lines}, lines, output)


@app.command()
def result(execution_id: ExecutionId) -> None:
    """Print the whole result of an ended execution as JSON; null if it has none."""
    ask(lambda client: show_pieces(client.result_text(execution_id)))


@app.command()
def retry(
    execution_ids: Executions = None,
    query: Matching = None,
    view: View = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    payload: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="For an ended execution: run with this payload instead.")
    ] = None,
    current_version: CurrentVersion = False,
    reason: Reason = None,
    wait: Wait = False,
    output: Output = Format.TABLE,
) -> None:
    """Run executions again, by id or all that match. If one waits for its next attempt, start that now; if it has
    ended, create a new one."""
    chosen = which("executions", execution_ids, query, view)
    if not chosen.is_one or dry_run:
        if payload is not None or current_version or wait:
            raise typer.BadParameter("Several run as they were: leave out --payload, --current-version and --wait.")
        return change_many(chosen, "retry", rate=rate, reason=reason, dry_run=dry_run, yes=yes, output=output)
    [execution_id] = chosen.ids
    given = payload_of(payload)
    version: Any = "current" if current_version else None

    async def question(client: "Client") -> tuple[Json, Json | None]:
        started = await client.retry_execution(execution_id, **given, version=version, reason=reason)
        return started, await until_ended(client, started["id"]) if wait else None

    started, ended = ask(question)
    if ended is not None:
        return end_with(ended, output)
    if not output.is_table:
        return show_document(started, output)
    if started["id"] == str(execution_id):
        return show_line(f"The next attempt of {execution_id} is due now.")
    return show_line(f"Started {started['id']}, which runs {execution_id} again.")


app.command("cancel")(cancel.cancel)
app.command("explain")(explain.explain_execution)


def end_with(execution: Json, output: Format) -> None:
    """Show how it ended, and exit with the matching code."""
    show_execution(execution, output)
    if needs_a_person(execution) and output.is_table:
        show_line("")
        show_line(f"It waits for a person. To see why: ondot workflow explain {execution['id']}")
    if execution["state"] != "SUCCEEDED":
        raise typer.Exit(FAILED)


def show_execution(execution: Json, output: Format, explanation: Json | None = None) -> None:
    """The execution; a table also shows what it waits for, if an explanation is given."""
    if not output.is_table:
        return show_document(execution, output)
    from ondot.cli.views import attempt_table, execution_card

    now = datetime.now(UTC)
    show(execution_card(execution, now, explanation))
    if any(attempt["error"] is not None for attempt in execution["attempts"]):
        show_line("")
        show(attempt_table(execution["attempts"], now), output)
    return None


def show_log_lines(lines: list[Json]) -> None:
    """Plain lines, for people, grep and less."""
    for line in lines:
        at = instant_of(line["at"])
        when = exact(at) if at else ""
        sys.stdout.write(f"{when} {line['attempt']} {line['stream']:<6} {harmless(line['line'])}\n")
    sys.stdout.flush()
