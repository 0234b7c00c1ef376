"""Explanations as people see them: each reason with until when it holds, who holds it up, and what to do."""

from datetime import datetime
from typing import TYPE_CHECKING

from ondot.cli.output import Json, card, cell, exact, instant_of, state_cell, time_line

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def explanation_card(what: str, told: Json, now: datetime) -> "Table":
    facts: list[tuple[str, str | Text | None]] = [
        (what, cell(told["id"], style="bold")),
        ("state", state_cell(told["state"])),
    ]
    for number, reason in enumerate(told["reasons"]):
        facts += [
            ("why" if not number else "also", reason["message"]),
            ("until", _until(reason, told, now)),
            ("held by", _holders(reason)),
            ("what to do", reason["what_to_do"]),
        ]
    facts.append(("may start", time_line(told["may_start_at"], now)))
    return card(facts)


def fire_card(fire: Json, now: datetime) -> "Table":
    """What became of a fire."""
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


def _until(reason: Json, told: Json, now: datetime) -> str | None:
    """Left out where it is said below as the instant of the start."""
    return None if reason["until"] == told["may_start_at"] else time_line(reason["until"], now)


def _holders(reason: Json) -> "Text | None":
    lines = []
    for holder in reason.get("holders") or ():
        since = instant_of(holder.get("since"))
        lines.append(f"{holder['id']} {holder['state']}{f' since {exact(since)}' if since else ''}")
    return cell(*lines) if lines else None
