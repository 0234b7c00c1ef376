"""`/report`: last night on one page (O10), each trouble with the button that repairs it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ondot.flow.report.make import make_report
from ondot.model.errors import InvalidParameters
from ondot.model.ids import TenantNo
from ondot.model.report.findings import TITLES, Finding, Kind, Report
from ondot.model.report.window import Window, parse_window
from ondot.store.database import Database

UNITS: Final[Mapping[Kind, tuple[str, str]]] = {
    "expectation": ("time", "times"),
    "failed": ("execution", "executions"),
    "missed": ("fire", "fires"),
    "no_worker": ("waits", "wait"),
    "late": ("execution", "executions"),
    "held_back": ("waits", "wait"),
    "lost_worker": ("attempt", "attempts"),
    "skipped": ("time", "times"),
    "retried": ("attempt", "attempts"),
    "slower": ("run", "runs"),
    "self_check": ("time", "times"),
}
"""What the count of a finding counts."""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class ReportView:
    """`fault`: the window that was asked for cannot be read, so that of the last day is shown."""

    now: datetime
    since: str
    zone: str
    window: Window
    report: Report
    needed: tuple[Section, ...]
    others: tuple[Section, ...]
    fault: str | None


async def read_report(
    database: Database, tenant_no: TenantNo, query: Mapping[str, str], *, is_whole: bool
) -> ReportView:
    now = database.clock.now()
    since, until, zone = query.get("since") or "24h", query.get("until") or None, query.get("zone") or "UTC"
    fault = None
    try:
        window = parse_window(since[:64], until, zone[:64], now)
    except InvalidParameters as error:
        fault, since, zone = error.message, "24h", "UTC"
        window = parse_window(since, None, zone, now)
    report = await make_report(database, tenant_no, window, is_whole=is_whole)
    return ReportView(
        report.now,
        since,
        zone,
        window,
        report,
        _sections([one for one in report.findings if one.is_open]),
        _sections([one for one in report.findings if not one.is_open]),
        fault,
    )


def count_in_words(finding: Finding) -> str:
    """How many, with the unit of its kind; empty where one finding is one thing."""
    if finding.kind not in UNITS:
        return ""
    one, several = UNITS[finding.kind]
    least = "at least " if finding.is_least else ""
    return f"{least}{finding.count:,} {one if finding.count == 1 else several}"


def _sections(findings: list[Finding]) -> tuple[Section, ...]:
    """One section for each kind, in the order of the worst finding of each."""
    kinds = dict.fromkeys(one.kind for one in findings)
    return tuple(Section(TITLES[kind], tuple(one for one in findings if one.kind == kind)) for kind in kinds)
