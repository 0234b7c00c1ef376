"""The causes that hold now, one function for each kind of alert (O4).

A function serves all alerts of its kind with one or two statements, and never walks over all jobs: it starts from what
went wrong (letters, late executions, misses), looks up the jobs that it meets, and keeps those in each alert's scope.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from ondot.flow.alerts.known_jobs import KnownJobs
from ondot.model.alerts.cause import Cause
from ondot.model.alerts.kinds import EVENT_S, About
from ondot.model.explain_facts import pluralize
from ondot.model.ids import INSTALLATION, JobId, TenantNo, first_id_at
from ondot.store import alert_sources as read
from ondot.store.alert_sources import KnownJob
from ondot.store.alerts import AlertRow
from ondot.store.connection import Connection

LETTERS: Final = 20_000
"""Newest letters of each tenant that are looked at, or more if a threshold is higher."""
LATE_A_LANE: Final = 1_000
LINES: Final = 2_000
MANY: Final = 500
MOST_CAUSES: Final = 10_000
"""Of one alert at a time."""
RECENT: Final = (timedelta(days=1), timedelta(days=8))
"""Jobs whose failures in a row go back further are looked up in as many days as it takes."""

Found = dict[str, Cause]
"""The causes of one alert, by key."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a source looks with."""

    connection: Connection
    now: datetime
    jobs: KnownJobs
    tracked: frozenset[JobId] = frozenset()
    """Jobs with a cause that holds."""


Source = Callable[[Look, Sequence[AlertRow]], Awaitable[dict[UUID, Found]]]


async def find_dead_letters(look: Look, alerts: Sequence[AlertRow]) -> dict[UUID, Found]:
    most = max(LETTERS, *(alert.thresholds["over"] + 1 for alert in alerts))
    letters = await read.open_letters_by_job(look.connection, _tenants(alerts), most, 1)
    jobs = await _jobs_for(look, alerts, [each.job_id for each in letters])
    found: dict[UUID, Found] = {}
    for alert in alerts:
        counts: defaultdict[TenantNo, dict[JobId, int]] = defaultdict(dict)
        for each in letters:
            if _covers(alert, each.tenant_no, each.job_id, jobs):
                counts[each.tenant_no][each.job_id] = each.count
        over = alert.thresholds["over"]
        found[alert.id] = {
            f"{tenant_no}": _count_cause(alert, tenant_no, by_job, look.now, "open dead letter")
            for tenant_no, by_job in counts.items()
            if sum(by_job.values()) > over
        }
    return found


async def find_failures(look: Look, alerts: Sequence[AlertRow]) -> dict[UUID, Found]:
    lengths = sorted({float(alert.thresholds["within"]) for alert in alerts})
    most = max(LETTERS, *(alert.thresholds["over"] + 1 for alert in alerts))
    failures = await read.failures_by_job(look.connection, _tenants(alerts), lengths, most)
    jobs = await _jobs_for(look, alerts, [each.job_id for each in failures])
    found: dict[UUID, Found] = {}
    for alert in alerts:
        within_s = float(alert.thresholds["within"])
        counts: defaultdict[TenantNo, dict[JobId, int]] = defaultdict(dict)
        for each in failures:
            if each.within_s == within_s and _covers(alert, each.tenant_no, each.job_id, jobs):
                counts[each.tenant_no][each.job_id] = each.count
        found[alert.id] = {
            f"{tenant_no}": _count_cause(alert, tenant_no, by_job, look.now, "failure", f" within {_span(within_s)}")
            for tenant_no, by_job in counts.items()
            if sum(by_job.values()) > alert.thresholds["over"]
        }
    return found


async def find_failing(look: Look, alerts: Sequence[AlertRow]) -> dict[UUID, Found]:
    longest = max(alert.thresholds["in_a_row"] for alert in alerts)
    least = min(alert.thresholds["in_a_row"] for alert in alerts)
    letters = [each for each in await _letters(look, _tenants(alerts), longest) if each.count >= least]
    jobs = await look.jobs.get(look.connection, [each.job_id for each in letters])
    letters = [each for each in letters if each.job_id in jobs]
    ends = await _last_ends(look, letters, longest)
    in_a_row = {job_id: _leading_failures(states) for job_id, states in ends.items()}
    letters = [each for each in letters if in_a_row.get(each.job_id, 0) >= least]
    why = await look.jobs.why(look.connection, {each.job_id: each.failed_ats[0] for each in letters})
    if len(letters) > MANY:
        # Ten thousand causes are built beside the loop, which also plans and beats.
        return await asyncio.to_thread(_build_failing, alerts, letters, jobs, in_a_row, why)
    return _build_failing(alerts, letters, jobs, in_a_row, why)


def _build_failing(
    alerts: Sequence[AlertRow],
    letters: Sequence[read.Letters],
    jobs: Mapping[JobId, KnownJob],
    in_a_row: Mapping[JobId, int],
    why: Mapping[JobId, read.LatestLetter],
) -> dict[UUID, Found]:
    longest = max(alert.thresholds["in_a_row"] for alert in alerts)
    found: dict[UUID, Found] = {}
    for alert in alerts:
        wanted = alert.thresholds["in_a_row"]
        of_alert = found.setdefault(alert.id, {})
        for each in letters:
            if in_a_row[each.job_id] < wanted or not _covers(alert, each.tenant_no, each.job_id, jobs):
                continue
            job, letter = jobs[each.job_id], why.get(each.job_id)
            error = letter.message if letter else ""
            last = f"; the last error: {error}" if error else ""
            times = _in_a_row(in_a_row[each.job_id], is_more=in_a_row[each.job_id] >= longest)
            _add(
                of_alert,
                _of_job(
                    alert,
                    job,
                    message=f"{job.facts.name} failed{times}{last}",
                    since=each.failed_ats[min(wanted, len(each.failed_ats)) - 1],
                    reason=letter.fingerprint if letter else "",
                    many=f"failed{_in_a_row(wanted, is_more=True)}{last}",
                    details={"failures": each.count, "execution_id": str(letter.execution_id) if letter else None},
                    command=f"ondot dead-letter list --job {each.job_id}",
                    path=f"/dead-letters?job={each.job_id}",
                ),
            )
    return found


async def find_late(look: Look, alerts: Sequence[AlertRow]) -> dict[UUID, Found]:
    over_s = min(float(alert.thresholds["over"]) for alert in alerts)
    late = await read.late_executions(look.connection, over_s, LATE_A_LANE, LINES)
    jobs = await look.jobs.get(look.connection, [each.job_id for each in late])
    found: dict[UUID, Found] = {}
    for alert in alerts:
        over = timedelta(seconds=float(alert.thresholds["over"]))
        of_alert = found.setdefault(alert.id, {})
        for each in late:
            if look.now - each.due_at < over or not _covers(alert, each.tenant_no, each.job_id, jobs):
                continue
            job = jobs.get(each.job_id)
            if job is None:
                continue
            waits_for = "a limit" if each.is_held_back else f"a worker of the pool {job.facts.pool}"
            _add(
                of_alert,
                _of_job(
                    alert,
                    job,
                    message=f"{job.facts.name} is late: due since {_at(each.due_at)}, it waits for {waits_for}",
                    since=each.due_at + over,
                    reason=f"late: waits for {waits_for}",
                    many=f"are late and wait for {waits_for}",
                    details={"late": each.count, "due_at": _at(each.due_at)},
                    command=f"ondot execution explain {each.execution_id}",
                    path=f"/executions/{each.execution_id}",
                ),
            )
    return found


async def find_oldest_waits(look: Look, alerts: Sequence[AlertRow]) -> dict[UUID, Found]:
    over_s = min(float(alert.thresholds["over"]) for alert in alerts)
    held_back = any(alert.thresholds["held_back"] for alert in alerts)
    waits = await read.oldest_waits(look.connection, over_s, LINES, held_back=held_back)
    found: dict[UUID, Found] = {}
    for alert in alerts:
        over = timedelta(seconds=float(alert.thresholds["over"]))
        of_alert = found.setdefault(alert.id, {})
        for wait in sorted(waits, key=lambda each: each.since):
            is_behind = wait.is_held_back and not alert.thresholds["held_back"]
            is_of_others = wait.tenant_no == INSTALLATION or not _covers_tenant(alert, wait.tenant_no)
            if is_behind or is_of_others or look.now - wait.since < over or not alert.scope.covers_pool(wait.pool):
                continue
            where = "behind a limit" if wait.is_held_back else "for a worker"
            cause = Cause(
                kind="oldest_wait",
                key=wait.pool,
                reason=wait.pool,
                subject=f"pool {wait.pool}",
                message=f"In the pool {wait.pool} an execution waits {where} since {_at(wait.since)}",
                since=wait.since + over,
                pool=wait.pool,
                details=_links(
                    {"waits_since": _at(wait.since), "execution_id": str(wait.execution_id)},
                    f"ondot execution explain {wait.execution_id}",
                    f"/executions/{wait.execution_id}",
                ),
            )
            of_alert.setdefault(cause.key, cause)  # the oldest of the pool
    return found


async def find_missing_workers(look: Look, alerts: Sequence[AlertRow]) -> dict[UUID, Found]:
    wanted = [(str(alert.thresholds["pool"]), alert.tenant_no) for alert in alerts]
    counts = await read.live_workers(look.connection, sorted(set(wanted)))
    found: dict[UUID, Found] = {}
    for alert, (pool, tenant_no) in zip(alerts, wanted, strict=True):
        below, count = alert.thresholds["below"], counts.get((pool, tenant_no), 0)
        found[alert.id] = {}
        if count < below:
            has = "no worker" if count == 0 else f"only {pluralize(count, 'worker')}"
            found[alert.id][pool] = Cause(
                kind="workers",
                key=pool,
                reason=pool,
                subject=f"pool {pool}",
                message=f"The pool {pool} has {has}, {below} must be alive",
                since=look.now,
                pool=pool,
                details=_links({"workers": count, "below": below}, f"ondot worker --pool {pool}", "/fleet"),
            )
    return found


async def find_misses(look: Look, alerts: Sequence[AlertRow]) -> dict[UUID, Found]:
    misses = await read.recent_misses(look.connection, _tenants(alerts), EVENT_S, LETTERS)
    jobs = await look.jobs.get(look.connection, [each.job_id for each in misses])
    found: dict[UUID, Found] = {}
    for alert in alerts:
        of_alert = found.setdefault(alert.id, {})
        for each in misses:
            job = jobs.get(each.job_id)
            if job is None or not _covers(alert, each.tenant_no, each.job_id, jobs):
                continue
            span = _at(each.from_at) if each.from_at == each.to_at else f"{_at(each.from_at)} to {_at(each.to_at)}"
            _add(
                of_alert,
                _of_job(
                    alert,
                    job,
                    message=f"{job.facts.name} missed {pluralize(each.count, 'fire')} ({span})",
                    since=look.now - timedelta(seconds=max(each.ago_s, 0.0)),
                    reason="missed_schedule",
                    many="missed fires",
                    details={"missed": each.count, "from_at": _at(each.from_at), "to_at": _at(each.to_at)},
                    command=f"ondot job backfill {each.job_id}",
                    path=f"/jobs/{each.job_id}",
                ),
            )
    return found


async def find_blocked(look: Look, alerts: Sequence[AlertRow]) -> dict[UUID, Found]:
    blocked = await read.blocked_now(look.connection, _tenants(alerts), MOST_CAUSES)
    jobs = await look.jobs.get(look.connection, [each.job_id for each in blocked])
    found: dict[UUID, Found] = {}
    for alert in alerts:
        of_alert = found.setdefault(alert.id, {})
        for each in blocked:
            job = jobs.get(each.job_id)
            if job is None or not _covers(alert, each.tenant_no, each.job_id, jobs):
                continue
            why = f": {each.reason}" if each.reason else ""
            what = (
                f"A run of {job.facts.name} waits for a person{why}"
                if each.is_run
                else f"{job.facts.name} waits for a job that did not succeed"
            )
            cause = _of_job(
                alert,
                job,
                message=what,
                since=each.since,
                reason="blocked" if each.is_run else "parents",
                many="wait for a person",
                details={"run_id": str(each.id)} if each.is_run else {"execution_id": str(each.id)},
                command=f"ondot run get {each.id}" if each.is_run else f"ondot execution explain {each.id}",
                path=f"/runs/{each.id}" if each.is_run else f"/executions/{each.id}",
                key=str(each.id),
            )
            _add(of_alert, cause)
    return found


async def find_conditions(look: Look, alerts: Sequence[AlertRow]) -> dict[UUID, Found]:
    kinds = sorted({alert.kind.name for alert in alerts})
    tenants = _tenants(alerts)
    if tenants is not None and any(alert.kind.about is About.INSTALLATION for alert in alerts):
        tenants = {*tenants, INSTALLATION}
    conditions = await read.conditions_now(look.connection, kinds, tenants, MOST_CAUSES)
    jobs = await look.jobs.get(look.connection, [each.job_id for each in conditions if each.job_id is not None])
    found: dict[UUID, Found] = {}
    for alert in alerts:
        of_alert = found.setdefault(alert.id, {})
        is_of_all = alert.kind.about is About.INSTALLATION
        for each in conditions:
            job = None if each.job_id is None else jobs.get(each.job_id)
            if each.kind != alert.kind.name or (each.job_id is not None and job is None):
                continue
            if not (is_of_all or _covers_tenant(alert, each.tenant_no)):
                continue
            if job is not None and alert.scope.names_jobs and not alert.scope.covers_job(job.id, job.facts):
                continue
            cause = Cause(
                kind=each.kind,
                key=f"{each.tenant_no}:{each.subject}",
                reason=str(each.details.get("reason") or (each.kind if job is not None else each.subject)),
                subject=job.facts.name if job is not None else each.subject or each.kind,
                message=each.message or alert.kind.says.rstrip("."),
                since=each.since,
                job_id=each.job_id,
                pool=None if job is None else job.facts.pool,
                details=each.details if job is None else _links(dict(each.details), *_job_links(job)),
                many=str(each.details.get("many") or _MANY.get(each.kind, "are concerned")),
                sent_to=tuple(each.details.get("sent_to", ())),
            )
            _add(of_alert, cause)
    return found


async def find_reached_quotas(look: Look, alerts: Sequence[AlertRow]) -> dict[UUID, Found]:
    """Requests that were refused report a condition; work that a quota holds back is found here."""
    found = await find_conditions(look, alerts)
    for each in await read.held_by_quotas(look.connection, _tenants(alerts)):
        what = (
            f"{each.most:,} of {each.most:,} run"
            if each.per_s is None
            else f"{each.most:,} starts within {_span(each.per_s)}"
        )
        for alert in alerts:
            if _covers_tenant(alert, each.tenant_no):
                cause = Cause(
                    kind="quota",
                    key=f"{each.tenant_no}:{each.quota}",
                    reason=each.quota,
                    subject=each.quota,
                    message=f"The quota of {each.quota} is reached: {what}, and work waits since {_at(each.since)}",
                    since=look.now,
                    details=_links({"limit": each.most, "waits_since": _at(each.since)}, "ondot tenant get", "/usage"),
                )
                _add(found[alert.id], cause)
    return found


async def find_by_self_check(look: Look, alerts: Sequence[AlertRow]) -> dict[UUID, Found]:
    rows = await read.found_recently(look.connection, EVENT_S)
    causes = {
        each.kind: Cause(
            kind="self_check",
            key=each.kind,
            reason=each.kind,
            subject=each.kind,
            message=f"The self-check found and repaired {each.kind.replace('_', ' ')} ({each.count} in all)",
            since=each.last_at,
            details=_links({"count": each.count}, "ondot doctor", "/fleet"),
        )
        for each in rows
    }
    return {alert.id: dict(causes) for alert in alerts}


_MANY: Final[Mapping[str, str]] = {"expectation": "missed what they are expected to do"}

SOURCES: Final[Mapping[str, Source]] = {
    "dead_letters": find_dead_letters,
    "failing": find_failing,
    "failures": find_failures,
    "lateness": find_late,
    "oldest_wait": find_oldest_waits,
    "workers": find_missing_workers,
    "missed_schedule": find_misses,
    "blocked_run": find_blocked,
    "quota": find_reached_quotas,
    "self_check": find_by_self_check,
}
"""Of the kinds that have a source of their own; all others are conditions, which one source reads."""
CONDITIONS: Final = "conditions"


def source_of(kind: str) -> str:
    return kind if kind in SOURCES else CONDITIONS


def find_source(name: str) -> Source:
    return find_conditions if name == CONDITIONS else SOURCES[name]


async def _letters(look: Look, tenants: set[TenantNo] | None, instants: int) -> list[read.Letters]:
    """Open letters by job. If a tenant has more than are read, a job may have more letters than were found, and one
    that fails each second may hide others that hold still: then the letters of each job are read."""
    letters = await read.open_letters_by_job(look.connection, tenants, LETTERS, instants)
    counts: defaultdict[TenantNo, int] = defaultdict(int)
    for each in letters:
        counts[each.tenant_no] += each.count
    if all(count < LETTERS for count in counts.values()):
        return letters
    job_ids = {each.job_id for each in letters} | look.tracked
    of_jobs = await read.open_letters_of_jobs(look.connection, job_ids, instants)
    return [each for each in of_jobs if tenants is None or each.tenant_no in tenants]


async def _last_ends(look: Look, letters: Iterable[read.Letters], most: int) -> dict[JobId, list[str]]:
    """In groups by how far back they go: a job that fails each month must not make all others read months."""
    groups: defaultdict[datetime, list[JobId]] = defaultdict(list)
    oldest = look.now
    for each in letters:
        first_at = each.failed_ats[-1]
        recent = next((length for length in RECENT if look.now - first_at < length), None)
        if recent is None:
            oldest = min(oldest, first_at)
        groups[look.now - 2 * recent if recent else datetime.min.replace(tzinfo=look.now.tzinfo)].append(each.job_id)
    ends: dict[JobId, list[str]] = {}
    for since, job_ids in groups.items():
        from_at = since if since.year > 1 else oldest - timedelta(days=1)
        ends |= await read.last_ends(look.connection, job_ids, first_id_at(from_at), most)
    return ends


def _leading_failures(states: Sequence[str]) -> int:
    return next((number for number, state in enumerate(states) if state != "FAILED"), len(states))


def _in_a_row(count: int, *, is_more: bool) -> str:
    """`is_more`: it may have been more often."""
    if count == 1:
        return "" if is_more else " once"
    return f" {count} times in a row{' or more' if is_more else ''}"


def _count_cause(
    alert: AlertRow, tenant_no: TenantNo, by_job: Mapping[JobId, int], now: datetime, what: str, within: str = ""
) -> Cause:
    """Of a number of letters or failures, all jobs in scope together."""
    count, [first, *others] = sum(by_job.values()), sorted(by_job, key=lambda id_: -by_job[id_])
    over = alert.thresholds["over"]
    of_jobs = "" if others else " of one job"
    return Cause(
        kind=alert.kind.name,
        key=f"{tenant_no}",
        reason=alert.kind.name,
        subject=f"{what}s",
        message=f"{pluralize(count, what)}{of_jobs}{within}, more than {over:,}",
        since=now,
        job_id=None if others else first,
        details=_links(
            {"count": count, "over": over, "jobs": len(by_job)},
            "ondot dead-letter list",
            "/dead-letters" if others else f"/dead-letters?job={first}",
        ),
    )


def _of_job(
    alert: AlertRow,
    job: KnownJob,
    *,
    message: str,
    since: datetime,
    reason: str,
    many: str,
    details: dict[str, Any],
    command: str,
    path: str,
    key: str | None = None,
) -> Cause:
    shown = dict(details)
    if job.tenant_no != alert.tenant_no:
        shown["tenant"] = job.tenant
    return Cause(
        kind=alert.kind.name,
        key=key or str(job.id),
        reason=reason,
        subject=job.facts.name,
        message=message,
        since=since,
        job_id=job.id,
        pool=job.facts.pool,
        details=_links(shown, command, path),
        many=many,
    )


def _job_links(job: KnownJob) -> tuple[str, str]:
    return f"ondot job explain {job.id}", f"/jobs/{job.id}"


def _links(details: dict[str, Any], command: str, path: str) -> dict[str, Any]:
    """Details with the command and the page that help to repair it."""
    return {"command": command, "path": path, **details}


def _add(found: Found, cause: Cause) -> None:
    if len(found) < MOST_CAUSES:
        found[cause.key] = cause


async def _jobs_for(look: Look, alerts: Sequence[AlertRow], job_ids: Iterable[JobId]) -> dict[JobId, KnownJob]:
    """Only if a scope asks for them: without one, letters are counted and not looked into."""
    if not any(alert.scope.names_jobs for alert in alerts):
        return {}
    return await look.jobs.get(look.connection, list(job_ids))


def _tenants(alerts: Iterable[AlertRow]) -> set[TenantNo] | None:
    tenants: set[TenantNo] = set()
    for alert in alerts:
        if alert.scope.is_of_all_tenants:
            return None
        tenants.add(alert.tenant_no)
    return tenants


def _covers_tenant(alert: AlertRow, tenant_no: TenantNo) -> bool:
    return alert.scope.is_of_all_tenants or alert.tenant_no == tenant_no


def _covers(alert: AlertRow, tenant_no: TenantNo, job_id: JobId, jobs: Mapping[JobId, KnownJob]) -> bool:
    if not _covers_tenant(alert, tenant_no):
        return False
    if not alert.scope.names_jobs:
        return True
    job = jobs.get(job_id)
    return job is not None and alert.scope.covers_job(job_id, job.facts)


def _at(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


def _span(seconds: float) -> str:
    for unit_s, unit in ((86_400, "day"), (3_600, "hour"), (60, "minute")):
        if seconds >= unit_s and seconds % unit_s == 0:
            return pluralize(int(seconds // unit_s), unit)
    return f"{seconds:g} seconds"
