"""`ondot dead-letter`: FAILED executions that wait for a person (E10): list, group, get; operations on many, and stop.

Replay and discard have a module of their own, `replay.py`, and join this noun here.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer

from ondot.cli import replay
from ondot.cli.calling import ask
from ondot.cli.options import ExecutionId, Limit, Output
from ondot.cli.output import Format, show, show_document, show_line
from ondot.cli.pages import gather, show_page
from ondot.cli.replay import Alike, FailedFrom, FailedTo, LettersJob, LettersPool, Search, filter_of

Json = dict[str, Any]


class LetterState(StrEnum):
    OPEN = "open"
    REPLAYED = "replayed"
    DISCARDED = "discarded"
    ALL = "all"


app = typer.Typer(help="Dead letters: executions that failed for good, until a person decides.", no_args_is_help=True)


@app.command("list")
def list_(
    job: LettersJob = None,
    pool: LettersPool = None,
    fingerprint: Alike = None,
    from_: FailedFrom = None,
    to: FailedTo = None,
    search: Search = None,
    state: Annotated[LetterState, typer.Option(help="Open ones, or what became of them.")] = LetterState.OPEN,
    limit: Limit = 50,
    output: Output = Format.TABLE,
) -> None:
    """List dead letters, newest failure first."""
    filters = filter_of(job, pool, fingerprint, from_, to, search) | {"state": state.value}
    page = ask(lambda client: gather(lambda paging: client.list_dead_letters(**filters, **paging), limit))
    from ondot.cli.letter_views import letter_table

    show_page(
        page,
        output,
        letter_table,
        none="No dead letters." if state is LetterState.ALL else f"No {state.value} dead letters.",
    )


@app.command()
def groups(
    job: LettersJob = None,
    pool: LettersPool = None,
    fingerprint: Alike = None,
    from_: FailedFrom = None,
    to: FailedTo = None,
    search: Search = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")] = 100,
    output: Output = Format.TABLE,
) -> None:
    """Show open dead letters whose errors are alike together, each group with its fingerprint."""
    filters = filter_of(job, pool, fingerprint, from_, to, search)
    page = ask(lambda client: client.dead_letter_groups(**filters, limit=limit))
    from ondot.cli.letter_views import group_table

    show_page(page, output, group_table, none="No open dead letters.")
    if output is Format.TABLE and page["items"]:
        show_line("")
        show_line(f"Run a group again: ondot dead-letter replay --fingerprint {page['items'][0]['fingerprint']}")


@app.command()
def get(execution_id: ExecutionId, output: Output = Format.TABLE) -> None:
    """Show a dead letter: what it ran with, each attempt, and what was done about it."""
    letter = ask(lambda client: client.get_dead_letter(execution_id))
    if output is not Format.TABLE:
        return show_document(letter, output)
    from ondot.cli.letter_views import letter_card
    from ondot.cli.views import attempt_table

    now = datetime.now(UTC)
    show(letter_card(letter, now))
    if letter["attempts"]:
        show_line("")
        show(attempt_table(letter["attempts"], now))
    return None


@app.command()
def operations(limit: Limit = 20, output: Output = Format.TABLE) -> None:
    """List replays and discards of many, and how far they are."""
    page = ask(lambda client: gather(lambda paging: client.dead_letter_operations(**paging), limit))
    from ondot.cli.letter_views import operation_table

    show_page(page, output, operation_table, none="No operations on dead letters.")


@app.command()
def stop(
    operation_id: Annotated[
        UUID, typer.Argument(metavar="OPERATION_ID", help="The operation's id.", show_default=False)
    ],
    output: Output = Format.TABLE,
) -> None:
    """Stop a replay or discard of many: no further letters; what was done stays done."""
    operation = ask(lambda client: client.cancel_dead_letter_operation(operation_id))
    if output is not Format.TABLE:
        return show_document(operation, output)
    from ondot.cli.letter_views import operation_in_words

    return show_line(operation_in_words(operation))


app.command("replay")(replay.replay)
app.command("discard")(replay.discard)
