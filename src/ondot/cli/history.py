"""`ondot history`: how much history there is, what stays and why, and what goes next (O1). For owners."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ondot.cli.calling import ask
from ondot.cli.listing import Listing
from ondot.cli.options import Output
from ondot.cli.output import Format, card, show, show_document, table, time_line
from ondot.words.size import size_in_words

if TYPE_CHECKING:
    from rich.table import Table

Json = dict[str, Any]


def history(output: Output = Format.TABLE) -> None:
    """Show how much history there is, what stays though its day is over and why, and what goes next. For owners."""
    found = ask(lambda client: client.get_history())
    if not output.is_table:
        return show_document(found, output)
    show(history_card(found, datetime.now(UTC)))
    if found["stays"]:
        show(stays_table(found["stays"]), output)
    return show(days_table(found["days"]), output)


def history_card(found: Json, now: datetime) -> "Table":
    last, following = found["last"], found["next"]
    return card(
        [
            ("database", f"{size_in_words(found['bytes'])}, of it {size_in_words(found['history_bytes'])} by day"),
            ("disk", _disk_in_words(found["disk_used"])),
            ("kept", _kept_in_words(found)),
            ("complete since", time_line(found["complete_since"], now)),
            ("oldest day", found["oldest_day"] or "none yet"),
            ("goes next", following and f"{following['day']}, {time_line(following['at'], now)}"),
            ("trouble", "\n".join(found["troubles"]) or None),
            ("rewritten last", last and _last_in_words(last)),
            ("under way", ", ".join(found["under_way"]) or None),
            ("objects to delete", f"of {_days(found['object_lists'])}" if found["object_lists"] else None),
        ]
    )


def stays_table(stays: list[Json]) -> Listing:
    drawn = table("STAYS IN", "ROWS", "BECAUSE IT", whole=("STAYS IN", "ROWS"))
    for entry in sorted(stays, key=lambda entry: -entry["rows"]):
        drawn.add_row(entry["table"], f"{entry['rows']:,}", entry["in_words"])
    return drawn


def days_table(days: list[Json]) -> Listing:
    drawn = table("DAY", "EXECUTIONS", "SIZE", "REWRITTEN", drop=("REWRITTEN",), whole=("DAY", "EXECUTIONS", "SIZE"))
    for entry in days:
        count = "?" if entry["executions"] is None else f"about {entry['executions']:,}"
        drawn.add_row(
            entry["day"] or "before",
            count if entry["executions"] != 0 else "0",
            size_in_words(entry["bytes"]),
            "yes" if entry["rewritten"] else "",
        )
    return drawn


def _disk_in_words(used: float | None) -> str:
    if used is None:
        return "not known: set ONDOT_DISK_LIMIT to the bytes that the database may have"
    return f"{used:.0%} used"


def _kept_in_words(found: Json) -> str:
    tenants = "".join(f"; {name} {_days(days)}" for name, days in found["tenants"].items())
    return f"{_days(found['retention_days'])} after the end{tenants}"


def _last_in_words(last: Json) -> str:
    return (
        f"{last['day']}: {last['removed']:,} rows removed, {last['kept']:,} kept,"
        f" {size_in_words(last['freed_bytes'])} freed in {last['took']:.1f} s"
    )


def _days(count: int) -> str:
    return f"{count:,} {'day' if count == 1 else 'days'}"
