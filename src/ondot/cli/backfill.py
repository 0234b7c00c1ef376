"""`ondot job backfill`: run the fires of a past range now, after live work (S7); list backfills, cancel one.

Only this command waits, not the server: Ctrl-C ends the waiting, and shows how to cancel the backfill itself.
"""

import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from ondot.cli.calling import ask
from ondot.cli.errors import FAILED
from ondot.cli.flags import instant
from ondot.cli.options import BackfillId, JobId, Output
from ondot.cli.output import Format, show, show_document, show_line
from ondot.cli.pages import show_page
from ondot.cli.waiting import pauses, progress_bar

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = dict[str, Any]

ENDED: Final = frozenset({"DONE", "CANCELLED"})


class Order(StrEnum):
    OLDEST = "oldest"
    NEWEST = "newest"


def backfill(
    job_id: JobId,
    from_: Annotated[
        str, typer.Option("--from", metavar="INSTANT", help="The start of the range; without an offset it is UTC.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="INSTANT", help="The end of the range, included.")],
    order: Annotated[Order, typer.Option(help="Which fires run first.")] = Order.OLDEST,
    concurrency: Annotated[int, typer.Option(min=1, help="How many may run at once.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count, change nothing.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until it ends; exit with 1 if a run failed or it was cancelled.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Run the fires of a past range that have not run. Live work goes first."""
    from_at, to_at = instant("--from")(from_), instant("--to")(to)
    made = ask(
        lambda client: client.backfill_job(
            job_id, from_at, to_at, order=order.value, concurrency=concurrency, dry_run=dry_run
        )
    )
    if made.get("dry_run"):
        return show_line(dry_run_in_words(made)) if output.is_table else show_document(made, output)
    cancelling = f"ondot job backfill-cancel {job_id} {made['id']}"
    if not made["total"] and output.is_table:
        return show_line(nothing_in_words(made))
    if not wait:
        if made["state"] in ENDED:
            return _show(made, output)
        return _show(made, output, f"Show its progress: ondot job backfills {job_id}\nCancel it: {cancelling}")
    try:
        ended = ask(lambda client: until_done(client, job_id, made))
    except KeyboardInterrupt:
        sys.stderr.write(f"\nThe backfill continues. Cancel it with: {cancelling}\n")
        raise
    _show(ended, output, "" if ended["made"] or ended["state"] != "DONE" else nothing_in_words(ended))
    if ended["state"] != "DONE" or ended["failed"]:
        raise typer.Exit(FAILED)
    return None


def backfills(job_id: JobId, output: Output = Format.TABLE) -> None:
    """List the backfills of a job and their progress."""
    page = ask(lambda client: client.list_backfills(job_id))
    from ondot.cli.views import backfill_table

    show_page(page, output, backfill_table, none="No backfills.")


def backfill_cancel(job_id: JobId, backfill_id: BackfillId, output: Output = Format.TABLE) -> None:
    """Cancel a backfill. Runs that have not started are dropped; running ones may finish."""
    _show(ask(lambda client: client.cancel_backfill(job_id, backfill_id)), output)


async def until_done(client: "Client", job_id: UUID, backfill: Json) -> Json:
    """The backfill, once it has ended; a terminal shows a progress bar meanwhile."""
    with progress_bar() as show_bar:
        async for _ in pauses():
            show_bar(in_words(backfill), settled(backfill), backfill["total"])
            if backfill["state"] in ENDED:
                return backfill
            backfill = await client.get_backfill(job_id, backfill["id"])
    raise AssertionError("the pauses do not end")


def settled(backfill: Json) -> int:
    """How many fires of the range need nothing more: they ended, or existed already."""
    return sum(backfill[count] for count in ("existing", "succeeded", "failed", "stopped"))


def in_words(backfill: Json) -> str:
    """Its state in one line."""
    words = {"RUNNING": "running", "HELD": "held until the job is resumed", "DONE": "done", "CANCELLED": "cancelled"}
    failed = f", {backfill['failed']:,} failed" if backfill["failed"] else ""
    return f"Backfill {words.get(backfill['state'], backfill['state'])}{failed}"


def nothing_in_words(counted: Json) -> str:
    """Why a range has no fire to run."""
    if not counted["total"]:
        return "Nothing to do: this job has no fire in this range."
    fires = "the fire" if counted["total"] == 1 else f"all {counted['total']:,} fires"
    return f"Nothing to do: {fires} of this range had already run or were waiting."


def dry_run_in_words(counted: Json) -> str:
    if not counted["to_run"]:
        return nothing_in_words(counted)
    there = (
        f"; {counted['existing']:,} of {counted['total']:,} have already run or are waiting"
        if counted["existing"]
        else ""
    )
    fires = "fire" if counted["to_run"] == 1 else "fires"
    return f"It would run {counted['to_run']:,} {fires}{there}."


def _show(backfill: Json, output: Format, then: str = "") -> None:
    if not output.is_table:
        return show_document(backfill, output)
    from ondot.cli.views import backfill_table

    show(backfill_table([backfill], datetime.now(UTC)), output)
    for line in then.splitlines():
        show_line(line)
    return None
