"""What has happened in a window, as findings (O10): failures, missed and late fires, retries, losses, growth."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from ondot.model.check import MEANINGS, Kind
from ondot.model.explain_facts import WHY_ENDED
from ondot.model.report import repairs
from ondot.model.report.findings import Finding, Ran, Repair
from ondot.model.report.window import Window
from ondot.store.check import Found
from ondot.store.executions import MissedRow
from ondot.store.expect import MissRow
from ondot.store.report import LOOKED_AT, Attempts, JobSum, LostWorker, NotSucceeded, Sums
from ondot.words.job import WHY_SKIPPED, elapsed, one_line, took

GROWN: Final = 1.5
"""A job is slower if one run takes this many times what it took before."""
LEAST_RUNS: Final = 5
"""Below this many runs before the window no growth is reported."""
LEAST_TAKEN_S: Final = 1.0
SLOWER_SHOWN: Final = 10
LATE_SHOWN: Final = 50
OUTAGE: Final = frozenset({"misfire", "coalesced"})
"""Reasons for which fires are missed, and not left out on purpose."""


def count_ran(sums: Sums) -> Ran:
    counts = sums.by_state
    return Ran(
        ended=sum(counts.values()) - counts.get("SKIPPED", 0),
        succeeded=counts.get("SUCCEEDED", 0),
        failed=counts.get("FAILED", 0),
        cancelled=counts.get("CANCELLED", 0),
        skipped=counts.get("SKIPPED", 0),
        from_at=sums.from_at,
    )


def list_failed(rows: Sequence[NotSucceeded], window: Window) -> Iterator[Finding]:
    """Failures and skipped executions. Cancelled ones are a person's decision: they are only counted."""
    for row in rows:
        if row.state == "CANCELLED":
            continue
        is_failed = row.state == "FAILED"
        reason = one_line(row.message or row.reason or ("no reason was recorded" if is_failed else "skipped"))
        if not is_failed:
            reason = WHY_ENDED.get(reason, reason)
        elif row.job_id is None and row.jobs > 1:
            reason = f"{reason} ({row.jobs:,} jobs that run once)"
        yield Finding(
            "failed" if is_failed else "skipped",
            reason,
            row.count,
            is_open=row.open > 0,
            first_at=row.first_at,
            last_at=row.last_at,
            job_id=row.job_id or row.example_job_id,
            repaired=row.repaired,
            execution_id=row.execution_id,
            run_id=row.run_id,
            repair=tuple(_repair_failed(row, window)) if is_failed else _run_if_known(row),
            facts={"fingerprint": row.fingerprint} if is_failed else {},
        )


def _repair_failed(row: NotSucceeded, window: Window) -> Iterator[Repair]:
    if not row.open:
        return
    if row.run_id is not None:
        yield repairs.rerun_run(row.run_id)
    elif row.open == 1:
        yield repairs.replay_letter(row.execution_id)
    else:
        yield repairs.replay_letters(row.job_id, row.fingerprint, window.since, window.until)


def _run_if_known(row: NotSucceeded) -> tuple[Repair, ...]:
    return () if row.job_id is None else (repairs.run_now(row.job_id),)


def list_missed(rows: Sequence[MissedRow]) -> Iterator[Finding]:
    """Fires without executions, by job and reason: one finding for all ranges, repaired by one backfill."""
    groups: dict[tuple[UUID, str], list[MissedRow]] = defaultdict(list)
    for row in rows:
        groups[row.job_id, row.reason].append(row)
    for (job_id, reason), ranges in groups.items():
        left = [row for row in ranges if not row.is_backfilled]
        is_missed = reason in OUTAGE
        can_run = bool(left) and reason != "deleted"
        yield Finding(
            "missed" if is_missed else "skipped",
            WHY_SKIPPED.get(reason, reason),
            sum(row.count or 1 for row in ranges),
            is_open=is_missed and bool(left),
            is_least=any(row.count is None for row in ranges),
            first_at=min(row.from_at for row in ranges),
            last_at=max(row.to_at for row in ranges),
            job_id=job_id,
            repaired=sum(row.count or 1 for row in ranges if row.is_backfilled),
            repair=(repairs.backfill(job_id, min(row.from_at for row in left), max(row.to_at for row in left)),)
            if can_run
            else (),
        )


def list_late(sums: Sums, window: Window) -> Iterator[Finding]:
    """Jobs whose executions started late. Why, its pool and its limits show; what helps now is in other findings."""
    late = [(job_id, job) for job_id, job in sums.jobs.items() if job.late]
    for job_id, job in sorted(late, key=lambda one: -one[1].late)[:LATE_SHOWN]:
        of = "" if job_id else " (jobs that run once)"
        yield Finding(
            "late",
            f"started up to {elapsed(job.most_late_s)} after {'they were' if job.late > 1 else 'it was'} due{of}",
            job.late,
            is_open=False,
            last_at=job.last_late_at or window.until,
            job_id=job_id,
            repair=() if job_id is None else (repairs.explain_job(job_id),),
        )


def list_retried(rows: Sequence[Attempts]) -> Iterator[Finding]:
    for row in rows:
        if row.is_lost:
            continue
        went = (
            f"{row.succeeded:,} of {row.executions:,} succeeded then"
            if row.executions > 1
            else ("it succeeded then" if row.succeeded else "it is tried again")
        )
        yield Finding(
            "retried",
            f"{one_line(row.message or 'no reason was recorded')}; {went}",
            row.count,
            is_open=False,
            first_at=row.first_at,
            last_at=row.last_at,
            job_id=row.job_id or row.example_job_id,
            repaired=row.count if row.succeeded == row.executions else 0,
            execution_id=row.execution_id,
        )


def list_lost(rows: Sequence[Attempts], workers: Sequence[LostWorker]) -> Iterator[Finding]:
    """Lost workers, with the attempts that they lost. Others than owners see the losses of their own jobs only."""
    lost: dict[UUID | None, list[Attempts]] = defaultdict(list)
    for row in rows:
        if row.is_lost:
            lost[row.worker_id].append(row)
    known = {worker.id: worker for worker in workers}
    for worker_id in [*known, *(id_ for id_ in lost if id_ not in known)]:
        worker = known.get(worker_id) if worker_id else None
        attempts = lost.get(worker_id, [])
        count = sum(row.count for row in attempts)
        name = f"{worker.host}:{worker.pid}" if worker else f"worker {worker_id}" if worker_id else "a worker"
        took_along = f" with {count:,} {'attempt' if count == 1 else 'attempts'}, which ran again" if count else ""
        yield Finding(
            "lost_worker",
            f"{name} sent no heartbeat and was marked lost{took_along}",
            max(count, 1),
            is_open=False,
            last_at=worker.lost_at if worker else max(row.last_at for row in attempts),
            execution_id=attempts[0].execution_id if attempts else None,
            facts={"worker_id": str(worker_id)} if worker_id else {},
        )


def list_slower(sums: Sums, before: dict[UUID, tuple[int, float]], window: Window) -> list[Finding]:
    """The jobs whose runs took longest compared with the two weeks before, the most grown first."""
    grown = []
    for job_id, (runs, before_s) in before.items():
        job: JobSum = sums.jobs[job_id]
        one_s = job.took_s / job.succeeded
        if runs >= LEAST_RUNS and one_s >= LEAST_TAKEN_S and one_s > before_s * GROWN:
            grown.append((one_s / max(before_s, 0.001), job_id, one_s, before_s, runs, job.succeeded))
    return [
        Finding(
            "slower",
            f"a run took {took(one_s)}, before that {took(before_s)}: {times:.1f} times as long",
            count,
            is_open=False,
            last_at=window.until,
            job_id=job_id,
            repair=(repairs.explain_job(job_id),),
            facts={"took_s": round(one_s, 3), "before_s": round(before_s, 3), "runs_before": runs},
        )
        for times, job_id, one_s, before_s, runs, count in sorted(grown, reverse=True)[:SLOWER_SHOWN]
    ]


def list_expectations(misses: Sequence[MissRow], window: Window) -> Iterator[Finding]:
    """Open misses and forecasts, and those that came good since: these are one finding for each job and expectation,
    with the reason of the latest."""
    settled: dict[tuple[UUID, str, bool], list[MissRow]] = defaultdict(list)
    for miss in misses:
        if miss.cleared_at is not None:
            settled[miss.job_id, miss.which, miss.predicted].append(miss)
    joined = [
        replace(max(alike, key=lambda miss: miss.due_at), count=sum(miss.count for miss in alike))
        for alike in settled.values()
    ]
    for miss in [*(miss for miss in misses if miss.cleared_at is None), *joined]:
        words = f"will miss {miss.which}" if miss.predicted else f"missed {miss.which}"
        yield Finding(
            "expectation",
            f"{words}: {miss.reason}",
            miss.count,
            is_open=miss.cleared_at is None,
            first_at=miss.fire_at,
            last_at=miss.due_at if miss.predicted else min(miss.due_at, window.until),
            job_id=miss.job_id,
            repaired=0 if miss.cleared_at is None else miss.count,
            execution_id=miss.execution_id,
            repair=() if miss.cleared_at is not None or miss.predicted else (repairs.run_now(miss.job_id),),
            facts={"which": miss.which, "predicted": miss.predicted},
        )


def list_self_check(found: Sequence[Found], window: Window) -> Iterator[Finding]:
    """What the self-check has repaired by itself: the count is of all time."""
    for one in found:
        if window.since <= one.last_at < window.until:
            meaning = MEANINGS[Kind(one.kind)]
            yield Finding(
                "self_check",
                f"{meaning.what}: {meaning.done}",
                one.count,
                is_open=False,
                first_at=one.first_at,
                last_at=one.last_at,
                repaired=one.count,
                repair=(Repair("Check", "ondot doctor"),),
            )


def list_limits(
    sums: Sums, failed: Sequence[NotSucceeded], attempts: Sequence[Attempts], *, is_cut: bool
) -> Iterator[str]:
    if sums.from_at is not None:
        yield (
            "Counts, late starts and durations are of executions created since"
            f" {sums.from_at:%Y-%m-%d %H:%M} UTC: there were too many to read all."
        )
    if sums.is_sampled:
        yield "Late starts and durations are a sample: the latest 5,000 of each part of the window."
    if failed and failed[0].looked_at >= LOOKED_AT:
        yield f"Failures and skips are of the latest {LOOKED_AT:,} executions that did not succeed."
    if attempts and attempts[0].looked_at >= LOOKED_AT:
        yield f"Retries and losses are of the latest {LOOKED_AT:,} failed attempts."
    if is_cut:
        yield "Missed fires are of the latest 1,000 recorded ranges: `GET /v1/skipped-fires` lists all."
