"""`ondot doctor`: what is wrong with this installation, and how to mend it. The checks are in `roles.doctor`."""

from typing import TYPE_CHECKING

import typer

from ondot.cli.errors import FAILED
from ondot.cli.options import Output
from ondot.cli.output import Format, cell, show, show_json, show_json_lines, show_line, state_cell, table
from ondot.cli.serving import database_settings
from ondot.model.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from ondot.roles.doctor import Finding


def doctor(output: Output = Format.TABLE) -> None:
    """Look for what is wrong here, and say how to mend it. Exits with 1 if there is a problem."""
    findings = _examine()
    worst = "problem" if any(finding.level == "problem" for finding in findings) else "ok"
    match output:
        case Format.JSON:
            show_json({"healthy": worst == "ok", "findings": [finding.as_dict() for finding in findings]})
        case Format.JSONL:
            show_json_lines(finding.as_dict() for finding in findings)
        case Format.TABLE:
            show(finding_table(findings))
            show_line("")
            show_line(in_sum(findings))
    if worst == "problem":
        raise typer.Exit(FAILED)


def finding_table(findings: "Sequence[Finding]") -> "Table":
    drawn = table("", "CHECK", "FINDING", whole=("", "CHECK"))
    for finding in findings:
        advice = f"→ {finding.advice}" if finding.advice else None
        drawn.add_row(state_cell(finding.level), finding.check, cell(finding.message, advice))
    return drawn


def in_sum(findings: "Sequence[Finding]") -> str:
    counts = {level: sum(finding.level == level for finding in findings) for level in ("problem", "warning")}
    told = [f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items() if count]
    return " and ".join(told) + "." if told else "Nothing is wrong."


def _examine() -> "Sequence[Finding]":
    from ondot.roles.doctor import Finding, examine

    try:
        settings = database_settings()
    except Misconfigured as refusal:
        return [Finding("settings", "problem", refusal.message, "Correct them, then run `ondot doctor` again.")]
    return examine(settings)
