"""`ondot dead-letter replay` and `discard`: by ids, or by a filter (E10, O8).

By ids it happens at once. By filter the dead letters are counted and the user confirms; then the server works in the
background, at a bounded rate. `--wait` shows the progress, waits for the replays, and reports how many failed again.
Ctrl-C ends only the waiting, and shows how to stop the operation itself.
"""

import sys
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from ondot.cli.body import in_flags, payload_of
from ondot.cli.calling import ask
from ondot.cli.errors import CONFLICT, FAILED, NOT_FOUND
from ondot.cli.flags import OF_LETTERS, flags_by_pointer, put_flags, takes_flags
from ondot.cli.names import Id, argument, several
from ondot.cli.options import CurrentVersion, DryRun, Output, Reason, Yes
from ondot.cli.output import Format, show, show_document, show_line
from ondot.cli.pages import LARGEST_PAGE
from ondot.cli.waiting import has_ended, pauses, progress_bar, until_ended
from ondot.model.errors import InvalidBody

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = dict[str, Any]

FLAG_AT: Final = {
    "/ids": "EXECUTION",
    **flags_by_pointer(OF_LETTERS),
    **{f"/{field}": f"--{field}" for field in ("all", "rate", "reason", "payload")},
}
DONE: Final = {"replay": "replayed", "discard": "discarded"}

Letters = Annotated[
    list[Id] | None,
    argument("dead_letter", "EXECUTION", "Executions: their ids; - reads them from standard input."),
]
All = Annotated[bool, typer.Option("--all", help="Every open dead letter.")]
Rate = Annotated[
    int | None, typer.Option(min=1, max=1000, metavar="N", help="With a filter: how many per second. By default, 50.")
]


@takes_flags(OF_LETTERS)
def replay(
    execution_ids: Letters = None,
    *,
    all_: All = False,
    payload: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="Run with this payload instead of the original one.")
    ] = None,
    current_version: CurrentVersion = False,
    rate: Rate = None,
    reason: Reason = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            "-w",
            help="Wait until all replays have ended; exit with 1 unless all succeeded.",
        ),
    ] = False,
    output: Output = Format.TABLE,
    **filters: Any,
) -> None:
    """Run dead letters again, each as a new execution: by ids, by a filter, or all."""
    which = _which(several(execution_ids), filter_of(filters), all_, rate)
    how: Json = payload_of(payload) | {"version": "current" if current_version else None, "reason": reason}

    async def send(client: "Client", **more: Any) -> Json:
        return await client.replay_dead_letters(**which, **how, **more)

    _do("replay", send, which, dry_run=dry_run, yes=yes, wait=wait, output=output)


@takes_flags(OF_LETTERS)
def discard(
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The reason, stored with each dead letter and in the audit log.")
    ],
    execution_ids: Letters = None,
    *,
    all_: All = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="With a filter: wait until all are discarded.")] = False,
    output: Output = Format.TABLE,
    **filters: Any,
) -> None:
    """Discard dead letters that need no further run. Their executions stay in the history."""
    which = _which(several(execution_ids), filter_of(filters), all_, rate)

    async def send(client: "Client", **more: Any) -> Json:
        return await client.discard_dead_letters(**which, reason=reason, **more)

    _do("discard", send, which, dry_run=dry_run, yes=yes, wait=wait, output=output)


def filter_of(flags: Mapping[str, Any]) -> Json:
    """The filter that the flags make; empty if none was given."""
    filters: Json = put_flags(flags, OF_LETTERS).get("filter", {})
    return filters


def _which(ids: list[UUID] | None, filters: Json, all_: bool, rate: int | None) -> Json:
    """Exactly one way to choose dead letters."""
    ways = [bool(ids), bool(filters), all_]
    if not any(ways):
        raise typer.BadParameter(
            "Say which dead letters: their ids, a filter such as --fingerprint or --job, or --all. "
            "See them with: ondot dead-letter groups"
        )
    if sum(ways) > 1:
        raise typer.BadParameter("Give ids, a filter, or --all: only one of them.")
    if ids and rate is not None:
        raise typer.BadParameter(
            "Dead letters named by ids are all handled at once; leave --rate out.", param_hint="--rate"
        )
    if ids:
        return {"ids": ids}
    return {"all": True, "rate": rate} if all_ else {"filter": filters, "rate": rate}


def _do(action: str, send: Any, which: Json, *, dry_run: bool, yes: bool, wait: bool, output: Format) -> None:
    by_ids = "ids" in which
    if not by_ids and not dry_run and not yes and not sys.stdin.isatty():
        raise typer.BadParameter(
            "This terminal cannot ask for confirmation. Add --yes, or --dry-run to count.", param_hint="--yes"
        )
    try:
        if dry_run or not by_ids:
            counted = ask(lambda client: send(client, dry_run=True))
            if dry_run and not output.is_table:
                return show_document(counted, output)
            if dry_run or not counted["count"]:
                return _show_count(action, counted, output)
            if not yes and not typer.confirm(f"{action.capitalize()} {letters(counted['count'])}?", err=True):
                raise typer.Exit(FAILED)
        answer = ask(send)
    except InvalidBody as refusal:
        raise in_flags(refusal, FLAG_AT) from None
    if by_ids:
        return _show_done(answer, wait=wait and action == "replay", output=output)
    return _follow(answer, wait=wait, output=output)


def _show_count(action: str, counted: Json, output: Format) -> None:
    if not output.is_table:
        return show_document(counted, output)
    if not counted["count"]:
        return show_line("No open dead letters match.")
    return show_line(f"It would {action} {letters(counted['count'])}.")


def _show_done(answer: Json, *, wait: bool, output: Format) -> None:
    """The result of each dead letter that was named; the exit code reports rejected ones, too."""
    replays = [item["replay_id"] for item in answer["items"] if item["replay_id"]] if wait else []
    if not output.is_table and not wait:
        show_document(answer, output)
    elif output.is_table:
        from ondot.cli.letter_views import done_table

        show(done_table(answer["items"]), output)
    if wait:
        ended = ask(lambda client: _all_ended(client, replays))
        if not output.is_table:
            show_document(answer | {"executions": ended}, output)
        else:
            for execution in ended:
                show_line(f"{execution['id']} {execution['state']}")
        if any(execution["state"] != "SUCCEEDED" for execution in ended):
            raise typer.Exit(FAILED)
    refused = [item["result"] for item in answer["items"] if item["result"] not in DONE.values()]
    if refused:
        raise typer.Exit(NOT_FOUND if set(refused) == {"not_found"} else CONFLICT)


async def _all_ended(client: "Client", ids: list[str]) -> list[Json]:
    return [await until_ended(client, id_) for id_ in ids]


def _follow(operation: Json, *, wait: bool, output: Format) -> None:
    from ondot.cli.letter_views import operation_in_words

    stopping = f"ondot dead-letter stop {operation['id']}"
    ends: dict[str, int] = {}
    if wait:
        try:
            operation = ask(lambda client: _until_done(client, operation))
        except KeyboardInterrupt:
            sys.stderr.write(f"\nThe operation continues. Stop it with: {stopping}\n")
            raise
        if operation["action"] == "replay":
            ends = ask(lambda client: _ends_of_replays(client, operation))
    if not output.is_table:
        show_document(operation | ({"replays": ends} if wait and operation["action"] == "replay" else {}), output)
    else:
        show_line(operation_in_words(operation))
        if operation["state"] == "RUNNING":
            show_line(f"Show its progress: ondot dead-letter operations\nStop it: {stopping}")
        if ends:
            show_line(ends_in_words(ends))
    if operation["state"] == "CANCELLED" or ends.keys() - {"SUCCEEDED"}:
        raise typer.Exit(FAILED)


async def _until_done(client: "Client", operation: Json) -> Json:
    """The operation, once it has ended; a terminal shows a progress bar meanwhile."""
    from ondot.cli.letter_views import operation_in_words

    with progress_bar() as show_bar:
        async for _ in pauses():
            show_bar(operation_in_words(operation), operation["done"], operation["total"])
            if operation["state"] != "RUNNING":
                return operation
            operation = await client.get_dead_letter_operation(operation["id"])
    raise AssertionError("the pauses do not end")


async def _ends_of_replays(client: "Client", operation: Json) -> dict[str, int]:
    """How many of the operation's replays ended in each state, once all have. Its results have their ids."""
    ids: deque[str] = deque()
    cursor = None
    while len(ids) < operation["done"]:
        page = await client.list_bulk_items(operation["id"], result="done", limit=LARGEST_PAGE, cursor=cursor)
        ids += [item["execution_id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    ends: Counter[str] = Counter()
    with progress_bar() as show_bar:
        async for _ in pauses():
            # From the oldest: only replays that still run are read again.
            while ids and has_ended(execution := await client.get_execution(ids[0])):
                ends[execution["state"]] += 1
                ids.popleft()
            if not ids:
                return dict(ends)
            show_bar(f"{len(ids):,} of the replays have not ended", ends.total(), ends.total() + len(ids))
    raise AssertionError("the pauses do not end")


def ends_in_words(ends: Mapping[str, int]) -> str:
    """How the replays of an operation ended, and how to see why some failed."""
    count = sum(ends.values())
    replays = f"{count:,} replay{'' if count == 1 else 's'}"
    if not ends.keys() - {"SUCCEEDED"}:
        return f"{replays} succeeded."
    failed = ends.get("FAILED", 0)
    others = [f"{number:,} {state}" for state, number in sorted(ends.items()) if state not in {"SUCCEEDED", "FAILED"}]
    ended = ", ".join([f"{failed:,} failed again", *others])
    seen = " See why: ondot dead-letter groups" if failed else ""
    return f"{replays}: {ended}.{seen}"


def letters(count: int) -> str:
    return f"{count:,} dead letter{'' if count == 1 else 's'}"
