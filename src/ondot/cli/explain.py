"""`ondot execution explain` and `ondot job explain` (E17): why it is not running, when it may start, what to do."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ondot.cli.calling import ask
from ondot.cli.flags import instant
from ondot.cli.options import ExecutionId, JobId, Output
from ondot.cli.output import Format, harmless, instant_of, show, show_document, show_line

Json = dict[str, Any]


def explain_execution(execution_id: ExecutionId, output: Output = Format.TABLE) -> None:
    """Explain why an execution is not running: what it waits for, until when, and what to do."""
    explanation = ask(lambda client: client.explain_execution(execution_id))
    if not output.is_table:
        return show_document(explanation, output)
    from ondot.cli.explain_views import explanation_card

    return show(explanation_card("execution", explanation, _now(explanation)))


def explain_job(
    job_id: JobId,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANT", help="Explain what happened to the fire at this instant; without an offset it is UTC."
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Explain why a job is not running, and when it will; with --at, what happened to a fire."""
    at_ = None if at is None else instant("--at")(at)
    explanation = ask(lambda client: client.explain_job(job_id, at_))
    if not output.is_table:
        return show_document(explanation, output)
    from ondot.cli.explain_views import explanation_card, fire_card
    from ondot.cli.views import skipped_table

    now = _now(explanation)
    if explanation["fire"] is not None:
        show(fire_card(explanation["fire"], now))
        show_line("")
        show_line(f"Now: {harmless(explanation['summary'])}")
        return show_line(f"For details: ondot job explain {job_id}")
    show_line(harmless(explanation["summary"]))
    for execution in explanation["executions"]:
        show_line("")
        show(explanation_card("execution", execution, now))
    if explanation["live"] > len(explanation["executions"]):
        show_line("")
        show_line(f"Shown: {len(explanation['executions'])} oldest of {explanation['live']:,} live executions.")
    show_line("")
    show(explanation_card("job", explanation, now))
    if explanation["skipped_fires"]:
        show_line("")
        show(skipped_table(explanation["skipped_fires"], now), output)
    return None


def _now(explanation: Json) -> datetime:
    """By the clock of the database, as every instant of the explanation."""
    return instant_of(explanation["now"]) or datetime.now(UTC)
