"""Keys of jobs that run once (E16): whether a job that names one runs, when, and what becomes of the one before it.

    unique     no second one while the first lives, nor for a while after it was made
    throttle   at most so many in a window, which begins with the first; those above are skipped
    debounce   the last of those that come close together, a while after it came

Pure: the key's row and the clock in, a decision out. A job that does not run is on record with the reason.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from ondot.model.ids import JobId
from ondot.model.job import Debounce, JobSpec, Throttle, Unique


@dataclass(frozen=True, slots=True)
class Claim:
    """Which job has a key. `is_live`: it has not ended; `has_begun`: it is past being put off."""

    job_id: JobId
    since_at: datetime
    until_at: datetime
    count: int
    is_live: bool


@dataclass(frozen=True, slots=True)
class Runs:
    """The job runs; `fire_at` if the key says when. The key is its own from then on, as `claim` says.

    `replaces`: the job that it takes the place of, if that has not begun.
    """

    claim: Claim
    fire_at: datetime | None = None
    replaces: JobId | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The job does not run, for this reason; the key stays as it was."""

    reason: str


def claim_of(spec: JobSpec) -> Unique | Throttle | Debounce | None:
    return spec.unique or spec.throttle or spec.debounce


def kind_of(wish: Unique | Throttle | Debounce) -> str:
    return type(wish).__name__.lower()


def decide_claim(
    wish: Unique | Throttle | Debounce, job_id: JobId, held: Claim | None, now: datetime
) -> Runs | Refused:
    match wish:
        case Unique():
            if held is not None and (held.is_live or held.until_at > now):
                return Refused(f"unique: the job {held.job_id} has the key {wish.key!r}")
            until_at = now + timedelta(seconds=wish.within_s or 0)
            return Runs(Claim(job_id, now, until_at, 1, is_live=True))
        case Throttle():
            window = timedelta(seconds=wish.per_s)
            if held is None or now >= held.since_at + window:
                return Runs(Claim(job_id, now, now + window, 1, is_live=True))
            if held.count < wish.limit:
                return Runs(Claim(job_id, held.since_at, held.since_at + window, held.count + 1, is_live=True))
            ends = (held.since_at + window).isoformat()
            return Refused(f"throttle: {held.count} with the key {wish.key!r} have come already, until {ends}")
        case Debounce():
            goes_on = held is not None and held.is_live and held.until_at > now
            since_at = held.since_at if held is not None and goes_on else now
            fire_at = now + timedelta(seconds=wish.wait_s)
            if wish.max_wait_s is not None:
                fire_at = max(min(fire_at, since_at + timedelta(seconds=wish.max_wait_s)), now)
            count = held.count + 1 if held is not None and goes_on else 1
            replaces = held.job_id if held is not None and goes_on else None
            return Runs(Claim(job_id, since_at, fire_at, count, is_live=True), fire_at, replaces)
