"""Dead letters and operations on them as tables, made from the API's answers and a `now`, without a request."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from ondot.cli.listing import Listing
from ondot.cli.output import Json, card, cell, compact, exactly, state_cell, table, time_line, when
from ondot.cli.views import error_in_words

if TYPE_CHECKING:
    from rich.table import Table


def letter_table(letters: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("ID", "JOB", "FAILED", "ERROR", "GROUP", "AT", "RUN", "STEP", "RESOLVED"),
        drop=("GROUP", "ERROR", "FAILED"),
        whole=("ID", "FAILED", "GROUP"),
        wide=("AT", "RUN", "STEP", "RESOLVED"),
    )
    for letter in letters:
        drawn.add_row(
            letter["execution_id"],
            cell(letter["job_name"] or "-", style="bold"),
            when(letter["failed_at"], now),
            error_in_words(letter["error"]) or letter["reason"],
            letter["fingerprint"],
            exactly(letter["failed_at"]),
            letter["run_id"],
            letter["step"],
            resolved_in_words(letter),
        )
    return drawn


def letter_card(letter: Json, now: datetime) -> "Table":
    error = letter["error"] or {}
    return card(
        [
            ("dead letter", letter["execution_id"]),
            ("job", cell(letter["job_name"] or "-", letter["job_id"], style="bold")),
            ("run", letter["run_id"]),
            ("step", letter["step"]),
            ("state", state_cell(letter["state"], resolved_in_words(letter))),
            ("failed", time_line(letter["failed_at"], now)),
            ("why", letter["reason"]),
            ("error", error_in_words(letter["error"])),
            ("detail", error.get("detail")),
            ("fingerprint", letter["fingerprint"]),
            ("origin", letter["origin"]),
            ("fire", time_line(letter["fire_at"], now)),
            ("pool", letter["pool"]),
            ("payload", compact(letter["payload"])),
            ("replay", _replay(letter)),
        ]
    )


def group_table(groups: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("GROUP", "COUNT", "LAST FAILED", "ERROR", "JOBS", "AT", "LATEST"),
        drop=("JOBS", "ERROR"),
        whole=("GROUP", "COUNT", "LAST FAILED"),
        wide=("AT", "LATEST"),
    )
    for group in groups:
        names = list(dict.fromkeys(job["name"] or job["id"] for job in group["jobs"]))[:3]
        jobs = f" ({group['job_count']:,} jobs)" if group["job_count"] > 1 else ""
        drawn.add_row(
            cell(group["fingerprint"], style="bold"),
            f"{group['count']:,}",
            when(group["last_failed_at"], now),
            error_in_words(group["sample_error"]),
            f"{', '.join(names)}{jobs}",
            exactly(group["last_failed_at"]),
            group["sample_execution_id"],
        )
    return drawn


def done_table(items: Iterable[Json]) -> Listing:
    """The result of each dead letter that was named."""
    drawn = table("ID", "RESULT", "REPLAY", "DETAIL", drop=("DETAIL", "REPLAY"), whole=("ID", "RESULT", "REPLAY"))
    for item in items:
        drawn.add_row(item["id"], state_cell(item["result"].replace("_", " ")), item["replay_id"], item["detail"])
    return drawn


def operation_table(operations: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("ID", "ACTION", "STATE", "DONE", "STARTED", "WHICH", "PER SECOND", "BY", "REASON"),
        drop=("STARTED", "DONE", "ACTION"),
        whole=("ID", "ACTION", "STATE", "DONE", "STARTED"),
        wide=("WHICH", "PER SECOND", "BY", "REASON"),
    )
    for operation in operations:
        fields = {name: value for name, value in operation["filter"].items() if value is not None}
        drawn.add_row(
            operation["id"],
            cell(operation["action"], style="bold"),
            state_cell(operation["state"]),
            f"{operation['done']:,} of {operation['total']:,}",
            when(operation["created_at"], now),
            ", ".join(f"{name} {value}" for name, value in fields.items()) or "all dead letters",
            f"{operation['rate']:g}",
            operation["actor"],
            operation["reason"],
        )
    return drawn


def operation_in_words(operation: Json) -> str:
    """One sentence: the action, its progress, and why not all were done."""
    done, total = operation["done"], operation["total"]
    doing, did = {"replay": ("Replaying", "Replayed"), "discard": ("Discarding", "Discarded")}[operation["action"]]
    letters = f"{total:,} dead letter{'' if total == 1 else 's'}"
    match operation["state"]:
        case "RUNNING":
            return f"{doing} {letters}, {operation['rate']:g} per second."
        case "CANCELLED":
            return f"Stopped: {did.lower()} {done:,} of {letters}."
    if done == total:
        return f"{did} {letters}."
    return f"{did} {done:,} of {letters}. The others were resolved meanwhile, or their jobs no longer exist."


def resolved_in_words(letter: Json) -> str | None:
    if letter["state"] == "open":
        return None
    why = f": {letter['resolved_reason']}" if letter["resolved_reason"] else ""
    return f"{letter['state']} by {letter['resolved_by']}{why}"


def _replay(letter: Json) -> str | None:
    if not letter["replay_id"]:
        return None
    return f"{letter['replay_id']} {letter['replay_state'] or ''}".rstrip()
