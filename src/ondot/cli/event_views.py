"""Events in a terminal."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ondot.cli.output import cell, compact, table, time_cell

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Json = dict[str, Any]


def event_table(events: Iterable[Json], now: datetime) -> "Table":
    drawn = table("EVENT", "RECEIVED", "TYPE", "SOURCE", "MATCHED", whole=("EVENT", "MATCHED"))
    for entry in events:
        event = entry["event"]
        drawn.add_row(
            cell(entry["id"]),
            time_cell(entry["received_at"], now),
            cell(event["type"], style="bold"),
            cell(event["source"], event.get("subject")),
            f"{entry['matched']:,}",
        )
    return drawn


def event_view(entry: Json) -> "RenderableType":
    from rich.console import Group

    drawn = table("JOB", "OUTCOME", "EXECUTION", whole=("OUTCOME",))
    for match in entry["matches"]:
        drawn.add_row(
            cell(match["job_name"], match["job_id"]),
            cell(match["outcome"]),
            cell(match["execution_id"] or ""),
        )
    about = cell(f"{entry['id']}  {entry['received_at']}\n{compact(entry['event'])}")
    return Group(about, drawn if entry["matches"] else cell("It matched no job."))


def tried_table(items: Iterable[Json], now: datetime) -> "Table":
    drawn = table("EVENT", "RECEIVED", "SOURCE", "MATCHES", whole=("EVENT",))
    for item in items:
        drawn.add_row(
            cell(item["id"]),
            time_cell(item["received_at"], now),
            cell(item["source"], item["subject"]),
            cell("yes") if item["matches"] else cell("no", item["why"]),
        )
    return drawn
