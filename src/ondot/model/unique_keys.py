"""Keys of jobs that run once (E16): whether a job that names one runs, when, and what becomes of the one before it.

    unique     no second one while the first lives, nor for a while after it was made
    throttle   at most so many in a window, which begins with the first; those above are skipped
    debounce   the last of those that come close together, a while after it came

Pure: the key's row and the clock in, a decision out. A job that does not run is on record with the reason.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ondot.model.ids import JobId
from ondot.model.job import Debounce, JobSpec, Throttle, Unique

Wish = Unique | Throttle | Debounce

ClaimKey = tuple[str, str]
"""Kind and key: what a row is found by."""

SKEW = timedelta(seconds=1)
"""Two nodes' readings of the database's clock differ by less: what lies further ahead was written before the clock was
set back."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Which job has a key. `is_live`: it has not ended; one that is paused has not."""

    job_id: JobId
    since_at: datetime
    until_at: datetime
    count: int
    is_live: bool


@dataclass(frozen=True, slots=True)
class Runs:
    """The job runs; `fire_at` if the key says when. The key is its own from then on, as `claim` says.

    `replaces`: the job that it takes the place of.
    """

    claim: Claim
    fire_at: datetime | None = None
    replaces: JobId | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The job does not run, for this reason. `claim` is the key's as it was, but for a clock that was set back."""

    claim: Claim
    reason: str


def claim_of(spec: JobSpec) -> Wish | None:
    return spec.unique or spec.throttle or spec.debounce


def key_of(wish: Wish) -> ClaimKey:
    return type(wish).__name__.lower(), wish.key


def is_put_off(held: Claim, now: datetime) -> bool:
    """Whether a debounced job still waits for others: the next with its key takes its place."""
    return held.is_live and held.until_at > now


def decide_claim(wish: Wish, job_id: JobId, held: Claim | None, now: datetime) -> Runs | Refused:
    set_back = held is not None and held.since_at - now > SKEW
    if held is not None and set_back:
        # Or it would hold for its own length, and for as long again as the clock was set back.
        held = replace(held, since_at=now, until_at=now + (held.until_at - held.since_at))
    match wish:
        case Unique():
            if held is not None and (held.is_live or held.until_at > now):
                return Refused(held, f"unique: the job {held.job_id} has the key {wish.key!r}")
            until_at = now + timedelta(seconds=wish.within_s or 0)
            return Runs(Claim(job_id, now, until_at, 1, is_live=True))
        case Throttle():
            window = timedelta(seconds=wish.per_s)
            if held is None or set_back or now >= held.since_at + window:
                return Runs(Claim(job_id, now, now + window, 1, is_live=True))
            if held.count < wish.limit:
                return Runs(Claim(job_id, held.since_at, held.since_at + window, held.count + 1, is_live=True))
            ends = (held.since_at + window).isoformat()
            return Refused(held, f"throttle: {held.count} with the key {wish.key!r} have come already, until {ends}")
        case Debounce():
            before = held if held is not None and is_put_off(held, now) else None
            since_at = before.since_at if before else now
            fire_at = now + timedelta(seconds=wish.wait_s)
            if wish.max_wait_s is not None:
                fire_at = max(min(fire_at, since_at + timedelta(seconds=wish.max_wait_s)), now)
            claim = Claim(job_id, since_at, fire_at, before.count + 1 if before else 1, is_live=True)
            return Runs(claim, fire_at, before.job_id if before else None)
