"""Events in a terminal."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ondot.cli.listing import Listing
from ondot.cli.output import cell, compact, exactly, table, when

if TYPE_CHECKING:
    from rich.console import RenderableType

Json = dict[str, Any]


def event_table(events: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("ID", "TYPE", "RECEIVED", "MATCHED", "SOURCE", "SUBJECT", "AT"),
        drop=("SOURCE", "MATCHED", "RECEIVED"),
        whole=("ID", "RECEIVED", "MATCHED"),
        wide=("SUBJECT", "AT"),
    )
    for entry in events:
        event = entry["event"]
        drawn.add_row(
            str(entry["id"]),
            cell(event["type"], style="bold"),
            when(entry["received_at"], now),
            f"{entry['matched']:,}",
            event["source"],
            event.get("subject"),
            exactly(entry["received_at"]),
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


def tried_table(items: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("ID", "MATCHES", "RECEIVED", "SOURCE", "WHY NOT", "SUBJECT"),
        drop=("SOURCE", "RECEIVED", "WHY NOT"),
        whole=("ID", "MATCHES", "RECEIVED"),
        wide=("SUBJECT",),
    )
    for item in items:
        drawn.add_row(
            str(item["id"]),
            "yes" if item["matches"] else "no",
            when(item["received_at"], now),
            item["source"],
            None if item["matches"] else item["why"],
            item["subject"],
        )
    return drawn
