"""`ondot dead-letter`: FAILED executions that wait for a person (E10): list, group, get; list and stop operations.

Replay and discard are in `replay.py`.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from ondot.cli import replay
from ondot.cli.bulk import OperationId
from ondot.cli.calling import ask
from ondot.cli.flags import OF_LETTERS, takes_flags
from ondot.cli.options import LetterId, Limit, ListOutput, Output, View
from ondot.cli.output import Format, ListFormat, show, show_document, show_line
from ondot.cli.pages import gather, show_csv, show_page
from ondot.cli.replay import filter_of
from ondot.cli.view import query_of

Json = dict[str, Any]


class LetterState(StrEnum):
    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    HANDLED = "handled"
    ALL = "all"


app = typer.Typer(help="Dead letters: failed executions that wait for a decision.", no_args_is_help=True)


@app.command("list")
@takes_flags(OF_LETTERS)
def list_(
    *,
    state: Annotated[LetterState, typer.Option(help="Only dead letters in this state.")] = LetterState.OPEN,
    view: View = None,
    limit: Limit = 50,
    output: ListOutput = ListFormat.TABLE,
    **flags: Any,
) -> None:
    """List dead letters, latest failure first. Search with -q '"timed out" job:nightly* since:24h'."""
    filters = filter_of(flags) | {"state": state.value}
    if view is not None:
        filters["q"] = ask(lambda client: query_of(client, "dead_letters", view, filters.get("q")))
    if output is ListFormat.CSV:
        return show_csv("dead-letters", filters, limit)
    page = ask(lambda client: gather(lambda paging: client.list_dead_letters(**filters, **paging), limit))
    from ondot.cli.letter_views import letter_table

    return show_page(
        page,
        output,
        letter_table,
        none="No dead letters." if state is LetterState.ALL else f"No {state.value} dead letters.",
    )


@app.command()
@takes_flags(OF_LETTERS)
def groups(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="The maximum number to show.")] = 100,
    output: Output = Format.TABLE,
    **flags: Any,
) -> None:
    """Group open dead letters by similar errors, each group with its fingerprint."""
    filters = filter_of(flags)
    page = ask(lambda client: client.dead_letter_groups(**filters, limit=limit))
    from ondot.cli.letter_views import group_table

    show_page(page, output, group_table, none="No open dead letters.")
    if output.is_table and page["items"]:
        show_line("")
        show_line(f"Run a group again: ondot dead-letter replay --fingerprint {page['items'][0]['fingerprint']}")


@app.command()
def get(execution_id: LetterId, output: Output = Format.TABLE) -> None:
    """Show a dead letter: its payload, its attempts, and what was done about it."""
    letter = ask(lambda client: client.get_dead_letter(execution_id))
    if not output.is_table:
        return show_document(letter, output)
    from ondot.cli.letter_views import letter_card
    from ondot.cli.views import attempt_table

    now = datetime.now(UTC)
    show(letter_card(letter, now))
    if letter["attempts"]:
        show_line("")
        show(attempt_table(letter["attempts"], now), output)
    return None


@app.command()
def operations(limit: Limit = 20, output: Output = Format.TABLE) -> None:
    """List replays and discards by filter, and their progress."""
    page = ask(lambda client: gather(lambda paging: client.dead_letter_operations(**paging), limit))
    from ondot.cli.letter_views import operation_table

    show_page(page, output, operation_table, none="No operations on dead letters.")


@app.command()
def stop(
    operation_id: OperationId,
    output: Output = Format.TABLE,
) -> None:
    """Stop a replay or discard by filter. Dead letters that are already done stay done."""
    operation = ask(lambda client: client.cancel_dead_letter_operation(operation_id))
    if not output.is_table:
        return show_document(operation, output)
    from ondot.cli.letter_views import operation_in_words

    return show_line(operation_in_words(operation))


app.command("replay")(replay.replay)
app.command("discard")(replay.discard)
