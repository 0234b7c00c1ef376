"""Explanations as tables: each reason with its end, the executions that hold it back, and what to do."""

from datetime import datetime
from typing import TYPE_CHECKING

from ondot.cli.output import Json, card, cell, exact, instant_of, state_cell, time_line

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def explanation_card(what: str, explanation: Json, now: datetime) -> "Table":
    facts: list[tuple[str, str | Text | None]] = [
        (what, cell(explanation["id"], style="bold")),
        ("state", state_cell(explanation["state"])),
    ]
    for number, reason in enumerate(explanation["reasons"]):
        facts += [
            ("why" if not number else "also", reason["message"]),
            ("until", _until(reason, explanation, now)),
            ("held by", _holders(reason)),
            ("what to do", reason["what_to_do"]),
        ]
    facts.append(("may start", time_line(explanation["may_start_at"], now)))
    return card(facts)


def fire_card(fire: Json, now: datetime) -> "Table":
    """The outcome of a fire."""
    return card(
        [
            ("fire", time_line(fire["fire_at"] or fire["at"], now)),
            ("outcome", fire["code"].replace("_", " ")),
            ("why", fire["message"]),
            ("execution", fire.get("execution_id")),
            ("state", state_cell(fire["state"]) if fire.get("state") else None),
            ("fire before", time_line(fire.get("before_at"), now)),
            ("fire after", time_line(fire.get("after_at"), now)),
        ]
    )


def _until(reason: Json, explanation: Json, now: datetime) -> str | None:
    """Left out if the card shows the same instant as the start."""
    return None if reason["until"] == explanation["may_start_at"] else time_line(reason["until"], now)


def _holders(reason: Json) -> "Text | None":
    lines = []
    for holder in reason.get("holders") or ():
        since = instant_of(holder.get("since"))
        lines.append(f"{holder['id']} {holder['state']}{f' since {exact(since)}' if since else ''}")
    return cell(*lines) if lines else None
