"""The lines of a report (O10): one for each job and cause, the worst first, with its reason and its repairs.

A finding is open as long as a person should act on it; repaired ones stay in the report, after the open ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from ondot.model.report.window import Window

Kind = Literal[
    "incident",
    "expectation",
    "failed",
    "blocked",
    "missed",
    "paused",
    "no_worker",
    "late",
    "held_back",
    "lost_worker",
    "skipped",
    "retried",
    "slower",
    "self_check",
]
TITLES: Final[Mapping[Kind, str]] = {
    "incident": "Open incidents",
    "expectation": "Expectations that were missed",
    "failed": "Failed for good",
    "blocked": "Blocked runs",
    "missed": "Missed fires",
    "paused": "Paused after failures",
    "no_worker": "Waiting without a worker",
    "late": "Started late",
    "held_back": "Held back by limits",
    "lost_worker": "Lost workers",
    "skipped": "Skipped",
    "retried": "Retried",
    "slower": "Slower than in the two weeks before",
    "self_check": "Found and repaired by the self-check",
}
"""What each kind is called, the worst first: findings are shown in this order."""
_RANK: Final = {kind: rank for rank, kind in enumerate(TITLES)}


@dataclass(frozen=True, slots=True)
class Repair:
    """What repairs a finding: a command, and the call behind a button (`path` None: only the command does it).

    `right`: what the call needs.
    """

    label: str
    command: str
    method: str | None = None
    path: str | None = None
    body: Mapping[str, Any] | None = None
    right: str = "jobs:run"


@dataclass(frozen=True, slots=True)
class Finding:
    """`count`: executions, fires or attempts; `is_least`: there may be more. `repaired`: how many of them a person or a
    later run has settled. `is_open`: a person should act."""

    kind: Kind
    reason: str
    count: int
    is_open: bool
    last_at: datetime
    first_at: datetime | None = None
    job_id: UUID | None = None
    job_name: str | None = None
    is_least: bool = False
    repaired: int = 0
    execution_id: UUID | None = None
    run_id: UUID | None = None
    pool: str | None = None
    repair: tuple[Repair, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_repaired(self) -> bool:
        return self.repaired >= self.count > 0


@dataclass(frozen=True, slots=True)
class Ran:
    """Executions of the window by state, without steps of runs. `from_at`: those created before it were not counted."""

    ended: int
    succeeded: int
    failed: int
    cancelled: int
    skipped: int
    from_at: datetime | None


@dataclass(frozen=True, slots=True)
class Report:
    """`limits`: what was not looked at, in words."""

    now: datetime
    window: Window
    ran: Ran
    findings: tuple[Finding, ...]
    limits: tuple[str, ...]

    @property
    def open(self) -> int:
        return sum(finding.is_open for finding in self.findings)

    @property
    def summary(self) -> str:
        return summarize(self.ran, self.open, len(self.findings))


def sort_findings(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Open ones first, the worst kind first, then the most."""
    return tuple(
        sorted(findings, key=lambda one: (not one.is_open, one.is_repaired, _RANK[one.kind], -one.count, one.reason))
    )


def summarize(ran: Ran, open_: int, found: int) -> str:
    """The first line: "2,341 ran, 2,339 succeeded. 2 things need a person."."""
    if not ran.ended and not found:
        return "Nothing ran, and nothing went wrong."
    least = "at least " if ran.from_at else ""
    first = f"{least}{ran.ended:,} ran, {ran.succeeded:,} succeeded." if ran.ended else "Nothing ran."
    if open_:
        return f"{first[0].upper()}{first[1:]} {open_:,} {'thing needs' if open_ == 1 else 'things need'} a person."
    rest = "Nothing went wrong." if not found else "Nothing needs a person."
    return f"{first[0].upper()}{first[1:]} {rest}"
