"""`ondot forecast`: what becomes due, by pool and hour, with the waits to expect (S13)."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ondot.cli.calling import ask
from ondot.cli.flags import instant
from ondot.cli.options import Output
from ondot.cli.output import Format, cell, show, show_document, show_line, table

if TYPE_CHECKING:
    from ondot.cli.listing import Listing

Json = dict[str, Any]


WHOLE: Final = ("POOL", "FROM (UTC)", "RAN", "DUE", "SLOTS", "WAIT")


def forecast(
    pool: Annotated[str | None, typer.Option(metavar="POOL", help="Only this pool.")] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="INSTANT", help="The start; an earlier one than now also shows what ran."),
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="INSTANT", help="The end. By default a day later.")] = None,
    bucket: Annotated[
        str | None, typer.Option(metavar="DURATION", help="The length of a row, such as 1m or 1h.")
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what becomes due by pool: fires, the slots they need, the wait to expect, and the largest jobs."""
    filters: Json = {"pool": pool, "bucket": bucket or ("1h" if output.is_table and not (from_ or to) else None)}
    if from_ is not None:
        filters["from"] = instant("--from")(from_)
    if to is not None:
        filters["to"] = instant("--to")(to)
    found = ask(lambda client: client.forecast(**{name: value for name, value in filters.items() if value is not None}))
    if not output.is_table:
        return show_document(found, output)
    if not any(each["buckets"] or each["actual"] for each in found["pools"]):
        return show_line("Nothing is due in this time.")
    return show(_table(found), output)


def _table(found: Json) -> "Listing":
    drawn = table(
        "POOL",
        "FROM (UTC)",
        "RAN",
        "DUE",
        "SLOTS",
        "WAIT",
        "LARGEST",
        whole=WHOLE,
        drop=("RAN", "LARGEST", "SLOTS", "WAIT"),
    )
    for each in found["pools"]:
        ran = {entry["at"]: entry for entry in each["actual"]}
        due = {entry["at"]: entry for entry in each["buckets"]}
        for at in sorted(ran.keys() | due.keys()):
            past, coming = ran.get(at), due.get(at)
            busy = (coming or {}).get("busy_s", 0.0) / found["bucket_s"]
            drawn.add_row(
                cell(each["pool"]),
                at[:16].replace("T", " "),
                f"{past['executions']:,}" if past else "",
                f"{coming['fires']:,.0f}" if coming else "",
                f"{busy:,.1f} of {each['slots']:,}" if coming else "",
                _wait(coming, past),
                cell(_largest(coming)),
            )
    return drawn


def _largest(coming: Json | None) -> str:
    """The name of the job that needs most, or that other tenants together need more."""
    top = (coming or {}).get("top", ())
    if coming is not None and coming["others_slot_s"] > (top[0]["slot_s"] if top else 0.0):
        return "(other tenants)"
    return str(top[0]["name"] or top[0]["job_id"]) if top else ""


def _wait(coming: Json | None, past: Json | None) -> str:
    if coming is not None and coming["wait_s"] is None:
        return "no worker"
    waits = [entry["wait_s"] for entry in (coming, past) if entry is not None and entry["wait_s"]]
    return f"{max(waits):,.1f} s" if waits else ""
