"""What planning does to one timer (S6, E11): which fires become executions, which are skipped, where it stands then.

Pure: flow.plan calls it for each timer that is due before the horizon, flow.submit for a job's first fire, flow.change
to settle what the old schedule still owes. A fire is missed when it was not planned by `fire_at + grace`; a short
failover therefore misses nothing. The misfire policy says what happens to missed fires: `skip` records them, `once`
runs the latest and records the others as coalesced, `all` runs those within `window`, the newest `limit` of them.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ondot.model.ids import JobId, TenantNo
from ondot.model.schedule import Schedule, next_fire

MISSED_A_STEP = 10_000
"""Missed fires looked at in one step: a bound on the arithmetic of one pass, whatever the outage was."""


@dataclass(frozen=True, slots=True)
class Timer:
    """Where a job stands. `next_fire_at` None: no further fire, or paused (`infinity` in the database)."""

    job_id: JobId
    tenant_no: TenantNo
    partition_no: int
    version: int
    job_version: int
    next_fire_at: datetime | None
    fired_through: datetime | None = None
    fires_left: int | None = None


@dataclass(frozen=True, slots=True)
class SkippedRange:
    """Fires from `from_at` to `to_at`, both included, that will not run, and why."""

    from_at: datetime
    to_at: datetime
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Step:
    """One advance of a timer. `catch_up` are missed fires that run after all, behind live work."""

    fires: tuple[datetime, ...]
    catch_up: tuple[datetime, ...]
    skipped: SkippedRange | None
    next_fire_at: datetime | None
    fired_through: datetime | None
    fires_left: int | None

    @property
    def missed(self) -> int:
        """How many missed fires it settled: what it cost to compute."""
        return len(self.catch_up) + (self.skipped.count if self.skipped else 0)


def advance(schedule: Schedule, timer: Timer, *, now: datetime, horizon_at: datetime, limit: int) -> Step:
    """Plan at most `limit` fires of one timer up to the horizon, and settle those that were missed."""
    fire_at = timer.next_fire_at
    missed: list[datetime] = []
    grace = timedelta(seconds=schedule.misfire.grace_s)
    while fire_at is not None and fire_at + grace < now and len(missed) < MISSED_A_STEP:
        missed.append(fire_at)
        fire_at = next_fire(schedule, fire_at)
    all_seen = fire_at is None or fire_at + grace >= now
    if not all_seen and schedule.misfire.policy == "all":
        # The newest `limit` run, and these may be among them: they are left for the step that sees the newest.
        kept = missed[-max(min(schedule.misfire.limit, MISSED_A_STEP // 2), 1) :]
        missed, fire_at = missed[: -len(kept)], kept[0]
    catch_up, skipped = _settle(schedule, missed, now=now, all_seen=all_seen)
    if timer.fires_left is not None:
        catch_up = catch_up[: timer.fires_left]
    room = limit if timer.fires_left is None else min(limit, timer.fires_left - len(catch_up))

    fires: list[datetime] = []
    while all_seen and fire_at is not None and fire_at <= horizon_at and len(fires) < room:
        fires.append(fire_at)
        fire_at = next_fire(schedule, fire_at)

    fires_left = None
    if timer.fires_left is not None:
        fires_left = timer.fires_left - len(catch_up) - len(fires)
        if fires_left == 0:
            fire_at = None
    settled = [*missed[-1:], *fires[-1:]]
    return Step(
        fires=tuple(fires),
        catch_up=tuple(catch_up),
        skipped=skipped,
        next_fire_at=fire_at,
        fired_through=max([*settled, *([timer.fired_through] if timer.fired_through else [])], default=None),
        fires_left=fires_left,
    )


def _settle(
    schedule: Schedule, missed: list[datetime], *, now: datetime, all_seen: bool
) -> tuple[list[datetime], SkippedRange | None]:
    """Split missed fires into those that run after all and the range that does not."""
    if not missed:
        return [], None
    policy = schedule.misfire
    match policy.policy:
        case "skip":
            return [], skipped_range(missed, "misfire")
        case "once":
            if not all_seen:
                return [], skipped_range(missed, "coalesced")
            return missed[-1:], skipped_range(missed[:-1], "coalesced")
        case "all":
            if not all_seen:
                return [], skipped_range(missed, "misfire")
            oldest_at = now - timedelta(seconds=policy.window_s)
            run = [fire_at for fire_at in missed if fire_at >= oldest_at][-policy.limit :] if policy.limit else []
            return run, skipped_range(missed[: len(missed) - len(run)], "misfire")


def skipped_range(fires: list[datetime], reason: str) -> SkippedRange | None:
    return SkippedRange(fires[0], fires[-1], reason, len(fires)) if fires else None


def fires_between(
    schedule: Schedule, after: datetime, until: datetime, *, at_most: int = MISSED_A_STEP
) -> list[datetime]:
    """The fires after `after` up to and with `until`, the first `at_most` of them."""
    fires: list[datetime] = []
    fire_at = next_fire(schedule, after)
    while fire_at is not None and fire_at <= until and len(fires) < at_most:
        fires.append(fire_at)
        fire_at = next_fire(schedule, fire_at)
    return fires


def fired_through_after_take_back(
    schedule: Schedule, fired_through: datetime | None, first_taken_at: datetime | None, now: datetime
) -> datetime | None:
    """Where `fired_through` stands once a change has taken back the fires from `first_taken_at` on.

    Nothing after `now` is left planned then, so `now` it is; unless the old schedule has fires between `now` and the
    first one taken back: those ran already, before the database's clock was set back, and must not run again.
    """
    if first_taken_at is None:
        return fired_through
    first_open_at = next_fire(schedule, now)
    if first_open_at is None or first_open_at >= first_taken_at:
        return now
    return first_taken_at - timedelta(microseconds=1)
