"""`ondot run`: runs of workflows (W3, W8): list, get, and repairs of them. Through the API, not the database."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal
from uuid import UUID

import typer

from ondot.cli.body import payload_of
from ondot.cli.bulk import Matching, Rate, Which, change_many, which
from ondot.cli.calling import ask
from ondot.cli.errors import FAILED
from ondot.cli.names import Id, argument, option
from ondot.cli.options import Cursor, Limit, ListOutput, Output, Reason, Search, View, Wait, Yes
from ondot.cli.output import Format, ListFormat, show, show_document, show_line
from ondot.cli.pages import gather, show_csv, show_page
from ondot.cli.view import query_of
from ondot.cli.waiting import pauses

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = dict[str, Any]
Action = Literal["retry", "rerun", "skip", "result", "give-up", "pause", "resume", "cancel"]

RunId = Annotated[Id, argument("run", "RUN", "The run's id.")]
ShownRun = Annotated[
    Id, argument("run", "RUN", "The run: its id; or a workflow, for the latest that it has.", latest=True)
]
Runs = Annotated[list[Id] | None, argument("run", "RUN", "Ids of runs; - reads them from standard input.")]
StepName = Annotated[str, typer.Argument(metavar="STEP", help="The name of the step.", show_default=False)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would happen.")]
From = Annotated[
    list[str] | None, typer.Option("--from", metavar="STEP", help="This step and everything below it. May be repeated.")
]
Payload = Annotated[str | None, typer.Option(metavar="JSON|@FILE", help="The payload of the named steps from now on.")]
Version = Annotated[
    str | None,
    typer.Option(
        metavar="same|latest", help="The version of the workflow: the run's, which is the default, or the latest."
    ),
]
app = typer.Typer(help="Runs of workflows: look at them, and repair them.", no_args_is_help=True)


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None, typer.Option(help="RUNNING, BLOCKED, SUCCEEDED, FAILED, … May be repeated.")
    ] = None,
    workflow: Annotated[
        Id | None,
        option("workflow", "--workflow", metavar="WORKFLOW", help_="Only runs of this workflow: its name, key or id."),
    ] = None,
    search: Search = None,
    view: View = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    output: ListOutput = ListFormat.TABLE,
) -> None:
    """List runs that have started, newest first. Search with -q 'state:blocked job:etl* since:24h'."""
    query = ask(lambda client: query_of(client, "runs", view, search)) if view else search
    if query is not None and workflow is not None:
        query, workflow = f"{query} job:{workflow}", None
    filters: Json = {"state": [one.upper() for one in state or ()] or None, "q": query}
    if output is ListFormat.CSV:
        return show_csv("runs", filters | {"job_id": workflow}, limit)
    page = ask(lambda client: gather(lambda paging: client.list_runs(workflow, **filters, **paging), limit, cursor))
    from ondot.cli.run_views import run_table

    return show_page(page, output, run_table, none="No runs.")


@app.command()
def get(
    run_id: ShownRun,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Draw it until it ends or is BLOCKED; exit with 1 unless it succeeded."),
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show a run: its steps as a tree, with their states and times."""

    async def question(client: "Client") -> Json:
        return await until_settled(client, str(run_id)) if watch else await client.get_run(run_id)

    run = ask(question)
    show_run(run, output)
    if watch and run["state"] != "SUCCEEDED":
        raise typer.Exit(FAILED)


@app.command()
def step(run_id: ShownRun, name: StepName, output: Output = Format.TABLE) -> None:
    """Show a step of a run, with its result and all its generations."""
    found = ask(lambda client: client.get_step(run_id, name))
    if not output.is_table:
        return show_document(found, output)
    from ondot.cli.run_views import MOST_ITEMS, generation_table, item_table, step_card

    now = datetime.now(UTC)
    show(step_card(found, now))
    if found["map"] and found["map"]["failed"]:
        failed = ask(lambda client: client.list_items(run_id, name, state="FAILED", limit=MOST_ITEMS))
        show_line("")
        show(item_table(failed["items"]), output)
    if len(found["generations"]) > 1:
        show_line("")
        show(generation_table(found["generations"], now), output)
    return None


@app.command()
def retry(
    run_id: RunId,
    steps: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STEP]...", help="Steps that failed or run. Default: all that failed."),
    ] = None,
    from_: From = None,
    payload: Payload = None,
    version: Version = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    wait: Wait = False,
    output: Output = Format.TABLE,
) -> None:
    """Run steps of a run again, and everything that follows from them. The run keeps its id."""
    _change(run_id, "retry", _again(steps, from_, payload, version), reason, output, dry_run=dry_run, wait=wait)


@app.command()
def rerun(
    run_id: RunId,
    steps: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STEP]...", help="Steps that failed. Default: all that failed; if none did, all."),
    ] = None,
    from_: From = None,
    payload: Payload = None,
    version: Version = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    wait: Wait = False,
    output: Output = Format.TABLE,
) -> None:
    """Run an ended run again, as a new run that takes over the results of all other steps."""
    _change(run_id, "rerun", _again(steps, from_, payload, version), reason, output, dry_run=dry_run, wait=wait)


def _again(steps: list[str] | None, from_: list[str] | None, payload: str | None, version: str | None) -> Json:
    if steps and from_:
        raise typer.BadParameter("Name steps, or give --from; not both.", param_hint="--from")
    return {"steps": steps or None, "from": from_ or None, "version": version, **payload_of(payload)}


@app.command()
def skip(
    run_id: RunId,
    name: StepName,
    reason: Reason = None,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
) -> None:
    """Count a failed step as skipped, and decide what is below it again."""
    _change(run_id, "skip", {"step": name}, reason, output, dry_run=dry_run)


@app.command()
def result(
    run_id: RunId,
    name: StepName,
    value: Annotated[str, typer.Argument(metavar="JSON|@FILE", help="The result of the step.", show_default=False)],
    reason: Reason = None,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
) -> None:
    """Count a failed step as succeeded with this result, and decide what is below it again."""
    fields = {"step": name, "result": payload_of(value)["payload"]}
    _change(run_id, "result", fields, reason, output, dry_run=dry_run)


@app.command()
def approve(run_id: RunId, name: StepName, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Approve a step that waits for a person: the run goes on."""
    _decide(run_id, name, reason, output, approve=True)


@app.command()
def reject(run_id: RunId, name: StepName, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Reject a step that waits for a person: it fails."""
    _decide(run_id, name, reason, output, approve=False)


@app.command()
def link(
    run_id: RunId,
    name: StepName,
    expires_in: Annotated[str | None, typer.Option(metavar="DURATION", help="How long it works, such as 2h.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Make a link by which a person decides a step without signing in, once, in your name."""
    made = ask(lambda client: client.make_approval_link(run_id, name, expires_in))
    if output.is_table:
        show_line(made["url"])
    else:
        show_document(made, output)


def _decide(run_id: UUID, name: str, reason: str | None, output: Format, *, approve: bool) -> None:
    done = ask(lambda client: client.decide_step(run_id, name, approve=approve, reason=reason))
    if output.is_table:
        show_line(f"Step {name} is {'approved' if approve else 'rejected'}.")
    else:
        show_document(done, output)


@app.command("give-up")
def give_up(run_id: RunId, reason: Reason = None, dry_run: DryRun = False, output: Output = Format.TABLE) -> None:
    """End a BLOCKED run FAILED, after its `finally` steps."""
    _change(run_id, "give-up", {}, reason, output, dry_run=dry_run)


@app.command()
def pause(
    runs: Runs = None,
    query: Matching = None,
    view: View = None,
    rate: Rate = None,
    yes: Yes = False,
    reason: Reason = None,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
) -> None:
    """Start no further steps of runs, by id or all that match. Steps that run go on."""
    _change_some(which("runs", runs, query, view), "pause", rate, reason, output, dry_run=dry_run, yes=yes)


@app.command()
def resume(
    runs: Runs = None,
    query: Matching = None,
    view: View = None,
    rate: Rate = None,
    yes: Yes = False,
    reason: Reason = None,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
) -> None:
    """Start steps of paused runs again, by id or all that match."""
    _change_some(which("runs", runs, query, view), "resume", rate, reason, output, dry_run=dry_run, yes=yes)


@app.command()
def cancel(
    runs: Runs = None,
    query: Matching = None,
    view: View = None,
    rate: Rate = None,
    yes: Yes = False,
    reason: Reason = None,
    dry_run: DryRun = False,
    output: Output = Format.TABLE,
) -> None:
    """Cancel runs, by id or all that match: what runs is asked to stop, then `finally` steps run. A second cancel stops
    these too."""
    _change_some(which("runs", runs, query, view), "cancel", rate, reason, output, dry_run=dry_run, yes=yes)


def _change_some(
    chosen: Which,
    action: Action,
    rate: float | None,
    reason: str | None,
    output: Format,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """One run by a request, which also shows what a cancel would do; several as one operation of the server."""
    if chosen.is_one and (not dry_run or action == "cancel"):
        return _change(chosen.ids[0], action, {}, reason, output, dry_run=dry_run)
    return change_many(chosen, action, rate=rate, reason=reason, dry_run=dry_run, yes=yes, output=output)


def _change(
    run_id: UUID,
    action: Action,
    fields: Json,
    reason: str | None,
    output: Format,
    *,
    dry_run: bool = False,
    wait: bool = False,
) -> None:
    """Send a change of a run, and show what it did; with `wait`, how the run goes on."""
    given = {name: value for name, value in fields.items() if value is not None or name in {"payload", "result"}}
    body = given | ({"dry_run": True} if dry_run else {}) | ({"reason": reason} if reason else {})

    async def question(client: "Client") -> tuple[Json, Json | None]:
        done = await client.change_run(run_id, action, body)
        return done, await until_settled(client, done["run_id"]) if wait and not dry_run else None

    done, run = ask(question)
    if run is not None:
        show_run(run, output)
        if run["state"] != "SUCCEEDED":
            raise typer.Exit(FAILED)
    elif not output.is_table:
        show_document(done, output)
    else:
        from ondot.cli.run_views import change_in_words

        for line in change_in_words(done):
            show_line(line)


async def until_settled(client: "Client", run_id: str) -> Json:
    """The run, once it has ended or waits for a person; a terminal shows its tree meanwhile."""
    from ondot.cli.run_views import live_tree

    with live_tree() as draw:
        async for _ in pauses():
            run = await client.get_run(run_id)
            if run["state"] in {"SUCCEEDED", "FAILED", "CANCELLED", "BLOCKED"}:
                return run
            draw(run)
    raise AssertionError("the pauses do not end")


def show_run(run: Json, output: Format) -> None:
    if not output.is_table:
        return show_document(run, output)
    from ondot.cli.run_views import advice_for, run_card, run_tree

    show(run_card(run, datetime.now(UTC)))
    if run["steps"]:
        show_line("")
        show(run_tree(run))
    for line in advice_for(run):
        show_line(line)
    return None
