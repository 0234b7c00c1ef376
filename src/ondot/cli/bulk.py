"""`ondot bulk`: operations on many executions or jobs (O8): list, get, stop, undo, and change of labels or priority.

Other commands start them by several names, or with `-q`: `ondot job pause -q 'label.team=bi'`. What matches is counted
and the user confirms; then the server works in the background, at a bounded rate, while a bar shows the progress.
Ctrl-C ends only the waiting, and shows how to stop the operation itself.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, cast
from uuid import UUID

import typer

from ondot.cli.calling import ask
from ondot.cli.errors import FAILED
from ondot.cli.names import Id, argument, several
from ondot.cli.options import Cursor, DryRun, Limit, ListOutput, Output, Reason, View, Yes
from ondot.cli.output import Format, ListFormat, show_document, show_line
from ondot.cli.pages import gather, show_csv, show_page
from ondot.cli.view import query_of
from ondot.cli.waiting import pauses, progress_bar
from ondot.model.bulk import MOST_IDS, NOUNS, Kind

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = dict[str, Any]

SHOWN: Final = 10
FINAL: Final = frozenset({"delete", "discard"})
"""What cannot be undone, nor done again."""
EXAMPLES: Final = {
    "jobs": "label.team=bi",
    "executions": "state:running job:crawl",
    "dead_letters": "job:nightly* since:24h",
    "runs": "state:blocked",
}

app = typer.Typer(help="Operations on many at once: progress, results, stop, undo.", no_args_is_help=True)

OperationId = Annotated[Id, argument("bulk", "OPERATION", "The operation's id.")]
Matching = Annotated[
    str | None,
    typer.Option(
        "--query",
        "--search",
        "-q",
        metavar="QUERY",
        help="All that match, as the list shows them: 'label.team=bi'; asks with the count.",
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(min=0.01, max=1000, metavar="N", help="Of many: how many per second; 50 by default."),
]


@dataclass(frozen=True, slots=True)
class Which:
    """What a command changes: those that were named, or all that match a query."""

    of: Kind
    ids: list[UUID]
    query: str | None

    @property
    def is_one(self) -> bool:
        return len(self.ids) == 1


def which(of: Kind, named: Iterable[Any] | None, query: str | None, view: str | None = None) -> Which:
    """Exactly one way to choose: names, keys and ids, or a query, which may be saved as a view."""
    ids = several(named)
    by_query = query is not None or view is not None
    if named and not ids:
        raise typer.BadParameter(f"Standard input names no {NOUNS[of]}.")
    if not ids and not by_query:
        raise typer.BadParameter(f"Name a {NOUNS[of]}, or all that match a query: -q '{EXAMPLES[of]}'.")
    if ids and by_query:
        raise typer.BadParameter("Give names or a query: only one of them.", param_hint="--query")
    if len(ids) > MOST_IDS:
        raise typer.BadParameter(f"At most {MOST_IDS:,} can be named at once. Use a query: -q '{EXAMPLES[of]}'.")
    if view is not None:
        query = ask(lambda client: query_of(client, of, view, query))
    return Which(of, ids, query)


@app.command("list")
def list_(
    of: Annotated[str | None, typer.Option(help="executions, jobs, dead_letters or runs.")] = None,
    state: Annotated[str | None, typer.Option(help="RUNNING, DONE or CANCELLED.")] = None,
    cursor: Cursor = None,
    limit: Limit = 20,
    output: ListOutput = ListFormat.TABLE,
) -> None:
    """List operations and their progress, newest first."""
    filters: Json = {"of": of and of.lower().replace("-", "_"), "state": state and state.upper()}
    if output is ListFormat.CSV:
        return show_csv("bulk", filters, limit)
    page = ask(lambda client: gather(lambda paging: client.list_bulks(**filters, **paging), limit, cursor))
    from ondot.cli.views import bulk_table

    return show_page(page, output, bulk_table, none="No operations.")


@app.command()
def get(operation_id: OperationId, output: Output = Format.TABLE) -> None:
    """Show an operation, and the first items that were refused, with the reason."""

    async def question(client: "Client") -> tuple[Json, Json]:
        operation = await client.get_bulk(operation_id)
        return operation, await client.list_bulk_items(operation_id, result="refused", limit=SHOWN)

    operation, refused = ask(question)
    if not output.is_table:
        return show_document(operation | {"refusals": refused["items"]}, output)
    show_line(in_words(operation))
    for item in refused["items"]:
        show_line(f"{item['id']}: {item['detail']}")
    return None


@app.command()
def stop(operation_id: OperationId, output: Output = Format.TABLE) -> None:
    """Stop an operation. Items that are already changed stay changed."""
    _show(ask(lambda client: client.stop_bulk(operation_id)), output)


@app.command()
def undo(operation_id: OperationId, wait: bool = True, output: Output = Format.TABLE) -> None:
    """Undo an operation that has ended: pause and resume undo each other, labels and priority are restored."""
    _follow(ask(lambda client: client.undo_bulk(operation_id)), output, wait=wait)


@app.command()
def update(
    query: Matching = None,
    view: View = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="Set a label; NAME: alone removes it. Repeatable.")
    ] = None,
    priority: Annotated[str | None, typer.Option(help="high, normal or low.")] = None,
    rate: Rate = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Change labels or priority of all jobs that match."""
    chosen = which("jobs", None, query, view)
    labels = {}
    for text in label or ():
        name, sign, value = text.partition(":")
        if not sign or not name:
            raise typer.BadParameter(
                f"{text!r} is not a pair. Write, for example, team:bi; team: alone removes the label.",
                param_hint="--label",
            )
        labels[name] = value or None
    change = ({"labels": labels} if labels else {}) | ({"priority": priority} if priority else {})
    change_many(chosen, "update", rate=rate, reason=reason, dry_run=dry_run, yes=yes, output=output, change=change)


def change_many(
    which: Which,
    action: str,
    *,
    yes: bool,
    output: Format,
    rate: float | None = None,
    reason: str | None = None,
    dry_run: bool = False,
    change: Json | None = None,
) -> None:
    """Count what matches, ask, start the operation and follow it. For those that were named, it asks only if it cannot
    be undone."""
    of, ids = which.of, [str(id_) for id_ in which.ids] or None
    body: Json = {"of": of, "action": action, "ids": ids, "q": which.query}
    body |= {"per_s": rate, "reason": reason, "set": change}
    body = {name: value for name, value in body.items() if value is not None}
    if ids and not dry_run and action not in FINAL:
        return _follow(ask(lambda client: client.start_bulk(body)), output, wait=True)
    counted = ask(lambda client: client.start_bulk(body | {"dry_run": True}))
    if dry_run and not output.is_table:
        return show_document(counted, output)
    if not counted["count"]:
        return show_line(f"No {NOUNS[of]} matches.")
    what = what_would_change(of, counted)
    if counted["refused"]:
        looked = "" if counted["looked_at"] >= counted["count"] else f" of the newest {counted['looked_at']:,}"
        show_line(f"{counted['refused']:,}{looked} would be refused, for example: {counted['refusals'][0]['detail']}")
    if dry_run:
        return show_line(f"It would {action} {what}.")
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter(
            "This terminal cannot ask for confirmation. Add --yes, or --dry-run to count.", param_hint="--yes"
        )
    if not yes and not typer.confirm(f"{action.capitalize()} {what}?", err=True):
        raise typer.Exit(FAILED)
    return _follow(ask(lambda client: client.start_bulk(body)), output, wait=True)


def _follow(operation: Json, output: Format, *, wait: bool) -> None:
    if wait:
        try:
            operation = ask(lambda client: _until_over(client, operation))
        except KeyboardInterrupt:
            sys.stderr.write(f"\nThe operation continues. Stop it with: ondot bulk stop {operation['id']}\n")
            raise
    _show(operation, output)
    if operation["refused"] and output.is_table:
        show_line(f"See why: ondot bulk get {operation['id']}")
    if operation["state"] == "CANCELLED" or operation["refused"]:
        raise typer.Exit(FAILED)


async def _until_over(client: "Client", operation: Json) -> Json:
    with progress_bar() as show_bar:
        async for _ in pauses():
            reached = operation["done"] + operation["refused"] + operation["unchanged"]
            show_bar(in_words(operation), reached, max(operation["total"], reached))
            if operation["state"] != "RUNNING":
                return operation
            operation = await client.get_bulk(operation["id"])
    raise AssertionError("the pauses do not end")


def _show(operation: Json, output: Format) -> None:
    if not output.is_table:
        return show_document(operation, output)
    return show_line(in_words(operation))


def count_in_words(of: Kind, count: int, *, is_least: bool = False) -> str:
    noun = NOUNS[of] + ("" if count == 1 and not is_least else "s")
    return f"{'at least ' if is_least else ''}{count:,} {noun}"


def what_would_change(of: Kind, counted: Json) -> str:
    """What a dry run has counted, without what it knows would be refused. It looks at the newest 10,000 of a query."""
    count, refused = counted["count"], counted["refused"]
    all_ = count_in_words(of, count, is_least=counted["count_is_least"])
    if not refused:
        return all_
    if counted["looked_at"] < count:
        return f"some of {all_}"
    return f"{count - refused:,} of {all_}"


def in_words(operation: Json) -> str:
    """One sentence: the action, its progress, and why it ended."""
    what = count_in_words(cast("Kind", operation["of"]), operation["total"], is_least=operation["total_is_least"])
    parts = [f"{operation['done']:,} done"]
    parts += [f"{operation[name]:,} {name}" for name in ("refused", "unchanged") if operation[name]]
    progress = ", ".join(parts)
    match operation["state"]:
        case "RUNNING":
            return f"Running: {operation['action']} {what}, {operation['per_s']:g} per second: {progress}."
        case "CANCELLED":
            why = f" {operation['stopped_because']}" if operation["stopped_because"] else ""
            return f"Stopped: {operation['action']} {what}: {progress}.{why}"
    again = f" Undo it: ondot bulk undo {operation['id']}" if operation["can_be_undone"] else ""
    return f"Done: {operation['action']} {what}: {progress}.{again}"
