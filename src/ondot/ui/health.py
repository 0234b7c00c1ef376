"""The one line of health in words: on the dot, or late and why, with what to do about it (L7).

Pure: it takes what was read and says what it means. Late is what a person would call late, a second; `/readyz` has its
own, wider limit, since it may take a process out of service.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ondot.model.held_back import HeldBack
from ondot.store.overview import Fleet, Missed, PoolAtWork

LATE_S = 1.0
NOTHING_MISSED = Missed(0, 0, False)


@dataclass(frozen=True, slots=True)
class Health:
    """A line: "`word`: `text`", then how long since `since`, and `why`; `command` is what to type."""

    level: Literal["good", "warning", "bad"]
    word: str
    text: str
    since: datetime | None = None
    why: str = ""
    command: str | None = None
    link: tuple[str, str] | None = None
    """An address, and what is found there."""


def judge(
    fleet: Fleet,
    pools: Sequence[PoolAtWork],
    unplanned_at: datetime | None,
    running: int,
    missed: Missed = NOTHING_MISSED,
    held: HeldBack | None = None,
) -> Health:
    """Held outweighs late, which follows from it; late what may soon make it late, and that what an outage has cost.

    `unplanned_at`: the oldest due fire that no scheduler has planned; `missed`: what an outage has cost; `held`:
    what waits for a limit.
    """
    if fleet.held_at is not None:
        return _held(fleet.held_at, fleet.held_why)
    waiting = min((pool for pool in pools if pool.oldest_at), key=_oldest, default=None)
    unplanned_s = (fleet.now - unplanned_at).total_seconds() if unplanned_at else 0.0
    waiting_s = (fleet.now - _oldest(waiting)).total_seconds() if waiting else 0.0
    if unplanned_at and unplanned_s >= max(waiting_s, LATE_S):
        return _late(unplanned_at, *_why_unplanned(fleet))
    if waiting and waiting_s >= LATE_S:
        return _late(_oldest(waiting), *_why_waiting(waiting, running))
    if care := _missing_role(fleet) or _behind_a_limit(held) or _after_an_outage(missed):
        return care
    lag_s = max(waiting_s, unplanned_s, 0.0)
    return Health("good", "On the dot", f"the oldest due fire has waited {lag_s:.1f} s")


def _held(since: datetime, why: str | None) -> Health:
    then = "what ran last may be missing, and would run again: look, then say `ondot doctor --accept-database`"
    return Health("bad", "Held", "nothing has been planned or started for", since, f"since {why}; {then}")


def _missing_role(fleet: Fleet) -> Health | None:
    if not fleet.nodes:
        return Health("warning", "Take care", "no scheduler runs, so no fire is planned", command="ondot scheduler")
    if not fleet.workers:
        return Health("warning", "Take care", "no worker runs, so what comes due will wait", command="ondot worker")
    return None


def _behind_a_limit(held: HeldBack | None) -> Health | None:
    if held is None or not held.is_behind:
        return None
    waits = "execution waits" if held.count == 1 else "executions wait"
    text = f"{held.counted} due {waits} for a limit, the oldest for"
    if not held.lines:
        return Health("warning", "Held back", text, held.oldest_at)
    [worst, *_] = held.lines
    most = "" if len(held.lines) == 1 else f"; {worst.count:,} of them"
    return Health(
        "warning",
        "Held back",
        text,
        held.oldest_at,
        f"since {worst.job_name} has a limit ({worst.limit}){most}",
        link=(f"/jobs/{worst.job_id}", "the job and its limit"),
    )


def _after_an_outage(missed: Missed) -> Health | None:
    if not missed.count:
        return None
    least = "at least " if missed.is_least else ""
    fires = "1 fire" if missed.count == 1 else f"{missed.count:,} fires"
    were = "was" if missed.count == 1 else "were"
    jobs = "1 job" if missed.jobs == 1 else f"{missed.jobs:,} jobs"
    text = f"{least}{fires} of {jobs} {were} missed in an outage and will not run"
    return Health("warning", "On the dot again", text, link=("/skipped", "which, and how to run them"))


def _late(since: datetime, why: str, command: str | None) -> Health:
    return Health("bad", "Late", "the oldest due fire has waited", since, why, command)


def _why_unplanned(fleet: Fleet) -> tuple[str, str | None]:
    if not fleet.nodes:
        return "since no scheduler runs", "ondot scheduler"
    return "since no scheduler has planned it yet", None


def _why_waiting(pool: PoolAtWork, running: int) -> tuple[str, str | None]:
    more = "ondot worker" if pool.name == "default" else f"ondot worker --pool {pool.name}"
    if not pool.workers:
        return f"since no worker serves pool {pool.name}", more
    if running >= pool.slots:
        return f"since all {pool.slots} slots of pool {pool.name} are busy", more
    return f"in pool {pool.name}", None


def _oldest(pool: PoolAtWork) -> datetime:
    assert pool.oldest_at is not None
    return pool.oldest_at
