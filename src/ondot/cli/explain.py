"""`ondot execution explain` and `ondot job explain` (E17): why it is not running, when it may, and what to do."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ondot.cli.calling import ask
from ondot.cli.instants import instant
from ondot.cli.options import ExecutionId, JobId, Output
from ondot.cli.output import Format, harmless, instant_of, show, show_document, show_line

Json = dict[str, Any]


def explain_execution(execution_id: ExecutionId, output: Output = Format.TABLE) -> None:
    """Say why an execution is not running: what it waits for, until when, and what to do about it."""
    told = ask(lambda client: client.explain_execution(execution_id))
    if output is not Format.TABLE:
        return show_document(told, output)
    from ondot.cli.explain_views import explanation_card

    return show(explanation_card("execution", told, _now(told)))


def explain_job(
    job_id: JobId,
    at: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="What became of the fire at that instant; UTC if not said.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Say why a job is not running, and when it will; with --at, what became of a fire."""
    at_ = None if at is None else instant(at, "--at")
    told = ask(lambda client: client.explain_job(job_id, at_))
    if output is not Format.TABLE:
        return show_document(told, output)
    from ondot.cli.explain_views import explanation_card, fire_card
    from ondot.cli.views import skipped_table

    now = _now(told)
    if told["fire"] is not None:
        show(fire_card(told["fire"], now))
        show_line("")
        show_line(f"Now: {harmless(told['summary'])}")
        return show_line(f"More of that: ondot job explain {job_id}")
    show_line(harmless(told["summary"]))
    for execution in told["executions"]:
        show_line("")
        show(explanation_card("execution", execution, now))
    if told["live"] > len(told["executions"]):
        show_line("")
        show_line(f"These are the {len(told['executions'])} oldest of {told['live']:,} executions that have not ended.")
    show_line("")
    show(explanation_card("job", told, now))
    if told["skipped_fires"]:
        show_line("")
        show(skipped_table(told["skipped_fires"], now))
    return None


def _now(told: Json) -> datetime:
    """By the clock of the database, as all else in it."""
    return instant_of(told["now"]) or datetime.now(UTC)
