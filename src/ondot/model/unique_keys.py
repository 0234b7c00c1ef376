"""Keys of one-time jobs (E16): whether a job with a key runs, when, and whether it replaces an earlier one.

    unique     no second job while the first is live, or within a time after it was created
    throttle   at most `limit` jobs in a window that starts with the first; further ones are skipped
    debounce   only the last of several jobs in quick succession, some time after it was submitted

Pure: takes the key's row and the clock, returns a decision. A job that does not run is recorded with the reason.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from ondot.model.ids import JobId
from ondot.model.job import Debounce, JobSpec, Throttle, Unique

Wish = Unique | Throttle | Debounce

ClaimKey = tuple[str, str]
"""Kind and key: the primary key of a row within its tenant."""

SKEW = timedelta(seconds=1)
"""Two nodes' readings of the database's clock differ by less. An instant further ahead was written before the clock was
set back."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The job that holds a key. `is_live`: it has not ended; a paused job is live."""

    job_id: JobId
    since_at: datetime
    until_at: datetime
    count: int
    is_live: bool


@dataclass(frozen=True, slots=True)
class Runs:
    """The job runs, at `fire_at` if the key decides when. `claim`: the key's new row; `replaces`: the job replaced."""

    claim: Claim
    fire_at: datetime | None = None
    replaces: JobId | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """The job does not run, for this reason. `claim` is the key's row, corrected if the clock was set back."""

    claim: Claim
    reason: str


def claim_of(spec: JobSpec) -> Wish | None:
    return spec.unique or spec.throttle or spec.debounce


def key_of(wish: Wish) -> ClaimKey:
    return type(wish).__name__.lower(), wish.key


def is_put_off(held: Claim, now: datetime) -> bool:
    """Whether a debounced job still waits: the next job with its key replaces it."""
    return held.is_live and held.until_at > now


def decide_claim(wish: Wish, job_id: JobId, held: Claim | None, now: datetime) -> Runs | Skipped:
    set_back = held is not None and held.since_at - now > SKEW
    if held is not None and set_back:
        # Otherwise the key would stay taken longer by the time that the clock was set back.
        held = replace(held, since_at=now, until_at=now + (held.until_at - held.since_at))
    match wish:
        case Unique():
            if held is not None and (held.is_live or held.until_at > now):
                return Skipped(held, f"unique: the job {held.job_id} has the key {wish.key!r}")
            until_at = now + timedelta(seconds=wish.within_s or 0)
            return Runs(Claim(job_id, now, until_at, 1, is_live=True))
        case Throttle():
            window = timedelta(seconds=wish.per_s)
            if held is None or set_back or now >= held.since_at + window:
                return Runs(Claim(job_id, now, now + window, 1, is_live=True))
            if held.count < wish.limit:
                return Runs(Claim(job_id, held.since_at, held.since_at + window, held.count + 1, is_live=True))
            ends = (held.since_at + window).isoformat()
            return Skipped(
                held, f"throttle: the key {wish.key!r} takes no more jobs until {ends} ({held.count} so far)"
            )
        case Debounce():
            before = held if held is not None and is_put_off(held, now) else None
            since_at = before.since_at if before else now
            fire_at = now + timedelta(seconds=wish.wait_s)
            if wish.max_wait_s is not None:
                fire_at = max(min(fire_at, since_at + timedelta(seconds=wish.max_wait_s)), now)
            claim = Claim(job_id, since_at, fire_at, before.count + 1 if before else 1, is_live=True)
            return Runs(claim, fire_at, before.job_id if before else None)
