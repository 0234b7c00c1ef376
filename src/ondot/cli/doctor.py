"""`ondot doctor`: what is wrong with this installation, and how to fix it. The checks are in `doctor.examine`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ondot.cli.calling import ask_database, database_settings, find_server
from ondot.cli.errors import FAILED
from ondot.cli.options import Output, Reason, Yes, actor_here
from ondot.cli.output import Format, cell, paragraphs, show, show_items, show_line, state_cell
from ondot.model.errors import Misconfigured, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from ondot.doctor.examine import Finding
    from ondot.store.database import Database


Accept = Annotated[
    bool,
    typer.Option(
        "--accept-database", help="Confirm that a restored or promoted database is the right one, and continue with it."
    ),
]


def doctor(
    output: Output = Format.TABLE, accept_database: Accept = False, yes: Yes = False, reason: Reason = None
) -> None:
    """Check this installation, and show how to fix what is wrong. Exits with 1 if there is a problem."""
    if accept_database:
        accept(yes=yes, reason=reason)
        return
    findings = _examine()
    worst = "problem" if any(finding.level == "problem" for finding in findings) else "ok"
    if output.is_table:
        show(finding_table(findings))
        show_line("")
        show_line(in_sum(findings))
    else:
        found = [finding.as_dict() for finding in findings]
        show_items({"healthy": worst == "ok", "findings": found}, found, output)
    if worst == "problem":
        raise typer.Exit(FAILED)


def accept(*, yes: bool, reason: str | None) -> None:
    """Record that this is the right database, so that schedulers and workers continue with it."""

    async def read_hold(database: "Database") -> str | None:
        from ondot.store.lineage import read_lineage

        async with database.connection() as connection:
            found = await read_lineage(connection)
            return found.why_not if found is not None else None

    async def record(database: "Database") -> str | None:
        from ondot.store.lineage import accept

        async with database.transaction() as connection:
            return await accept(connection, actor=actor_here(), reason=reason)

    why = ask_database(read_hold)
    if why is None:
        show_line("Nothing is held: this is the database that ondot knows.")
        return
    if not yes and sys.stdin.isatty():
        show_line(f"Held because {why}.")
        question = "Fires since then may already have run and would run again. Continue with this database?"
        if not typer.confirm(question, err=True):
            raise typer.Exit(FAILED)
    if ask_database(record) is not None:
        show_line("Accepted. Schedulers and workers continue within seconds.")


def finding_table(findings: "Sequence[Finding]") -> "Table":
    drawn = paragraphs("", "CHECK", "FINDING")
    for finding in findings:
        advice = f"→ {finding.advice}" if finding.advice else None
        drawn.add_row(state_cell(finding.level), finding.check, cell(finding.message, advice))
    return drawn


def in_sum(findings: "Sequence[Finding]") -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in ("problem", "warning")}
    found = [f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items() if count]
    return " and ".join(found) + "." if found else "Nothing is wrong."


def _examine() -> "Sequence[Finding]":
    from ondot.doctor.examine import Finding, examine

    try:
        settings = database_settings()
    except Misconfigured as refusal:
        return [Finding("settings", "problem", refusal.message, "Correct them, then run `ondot doctor` again.")]
    from ondot.app import open_transport

    return [_describe_client(), *examine(settings, open_transport)]


def _describe_client() -> "Finding":
    """Where client commands go, which is not always the installation that is examined."""
    from ondot.doctor.examine import Finding
    from ondot.model.urls import without_userinfo

    try:
        server = find_server()
    except (Misconfigured, NotFound) as refusal:
        return Finding("client", "problem", refusal.message, "See `ondot context list`.")
    named = f"the context {server.context}" if server.context else "no context"
    return Finding("client", "ok", f"Commands go to {without_userinfo(server.url)}, by {named}.")
