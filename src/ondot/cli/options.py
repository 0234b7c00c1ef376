"""Options and arguments that several commands share, spelled once."""

from enum import StrEnum
from getpass import getuser
from typing import Annotated
from uuid import UUID

import typer

from ondot.cli.output import Format

Output = Annotated[Format, typer.Option("--output", "-o", help="How to print what comes back.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Wait for the end; exit with 1 unless it succeeded.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; kept in the audit log.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count.")]
CurrentVersion = Annotated[
    bool, typer.Option("--current-version", help="By the job's current version, not the one that it ran by.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many at most.")]
Fires = Annotated[int, typer.Option("-n", min=1, max=1000, help="How many fires.")]
SupervisedBy = Annotated[int | None, typer.Option("--supervised-by", hidden=True)]
ShowLifeTo = Annotated[int | None, typer.Option("--show-life-to", hidden=True)]
JobId = Annotated[UUID, typer.Argument(metavar="JOB_ID", help="The job's id.", show_default=False)]
ExecutionId = Annotated[UUID, typer.Argument(metavar="EXECUTION_ID", help="The execution's id.", show_default=False)]
ExecutionIds = Annotated[
    list[UUID], typer.Argument(metavar="EXECUTION_ID", help="The executions' ids.", show_default=False)
]
BackfillId = Annotated[UUID, typer.Argument(metavar="BACKFILL_ID", help="The backfill's id.", show_default=False)]

# What a job is made of. --------------------------------------------------------------------------------------------


class Gap(StrEnum):
    SHIFT = "shift"
    SKIP = "skip"


class Fold(StrEnum):
    FIRST = "first"
    LAST = "last"
    BOTH = "both"


class BusinessDays(StrEnum):
    """Only on business days; or moved to the next or the previous one."""

    TRUE = "true"
    NEXT = "next"
    PREVIOUS = "previous"


JobName = Annotated[str | None, typer.Option(help="What people call it; named for its target if left out.")]
Url = Annotated[str | None, typer.Option(help="Call this address.")]
Method = Annotated[str | None, typer.Option(help="With --url: the HTTP method, POST if left out.")]
Header = Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="With --url: a header.")]
Function = Annotated[str | None, typer.Option(help="Call this function of a worker.")]
Command = Annotated[str | None, typer.Option(help="Run this program; split into words, no shell.")]
CronText = Annotated[str | None, typer.Option(metavar="EXPR", help='"0 9 * * 1-5": by the clock on the wall.')]
Every = Annotated[str | None, typer.Option(metavar="DURATION", help="15m: again and again.")]
RRule = Annotated[str | None, typer.Option(metavar="RULE", help='"FREQ=MONTHLY;BYDAY=-1FR": as in calendars.')]
At = Annotated[str | None, typer.Option(metavar="INSTANT", help="2030-01-31T09:00:00Z: once.")]
In = Annotated[str | None, typer.Option("--in", metavar="DURATION", help="90s: once, after so long.")]
Zone = Annotated[str | None, typer.Option("--timezone", "-z", help="An IANA zone, UTC if left out.")]
GapOption = Annotated[Gap | None, typer.Option(help="A fire in the hour that is left out: shift, if not said.")]
FoldOption = Annotated[Fold | None, typer.Option(help="A fire in the hour that comes twice: first, if not said.")]
Jitter = Annotated[str | None, typer.Option(metavar="DURATION", help="Start up to so much later.")]
Holidays = Annotated[
    str | None, typer.Option("--calendar", metavar="CC[-REGION]", help="Without the holidays of DE, DE-BY, …")
]
BusinessDaysOption = Annotated[
    BusinessDays | None,
    typer.Option("--business-days", help="Only on business days, or moved to the next or the previous one."),
]
Payload = Annotated[str | None, typer.Option(metavar="JSON|@FILE", help="What the target is given.")]
Pool = Annotated[str | None, typer.Option(help="The workers that run it.")]
Priority = Annotated[str | None, typer.Option(help="high, normal or low.")]
Retries = Annotated[int | None, typer.Option(help="Attempts after the first.")]
Timeout = Annotated[str | None, typer.Option(metavar="DURATION", help="How long one attempt may take.")]
Key = Annotated[str | None, typer.Option(help="Your own id: one job for each.")]
Label = Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="Your own word for it.")]


def actor_here() -> str:
    """The name in the audit log of whoever changes the database from here, without the API."""
    return f"{getuser()} (command line)"
