"""The health line of the first page: on the dot, or late and why, with what to do about it (L7).

Pure: a reading of the fleet in, one line out. Late means late for a person, a second; `/readyz` has its own, wider
limit, because it may take a process out of service.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from ondot.model.explain_facts import ACCEPT
from ondot.model.held_back import HeldBack
from ondot.store.overview import Fleet, Missed, PoolAtWork

LATE_S = 1.0
NOTHING_MISSED = Missed(0, 0, False)


@dataclass(frozen=True, slots=True)
class Health:
    """A line: "`word`: `text` `since`. `why`. `link`". `since` is shown as a duration; `link` is an address and a text.

    `command` is the command to run.
    """

    level: Literal["good", "warning", "bad"]
    word: str
    text: str
    since: datetime | None = None
    why: str = ""
    command: str | None = None
    link: tuple[str, str] | None = None


def judge(
    fleet: Fleet,
    pools: Sequence[PoolAtWork],
    unplanned_at: datetime | None,
    running: int,
    missed: Missed = NOTHING_MISSED,
    held: HeldBack | None = None,
) -> Health:
    """The most important line: a hold comes before the lateness that it causes, lateness before its likely causes (a
    missing role, a limit), and these before the fires that an outage cost.

    `unplanned_at`: the oldest due fire that no scheduler has planned; `missed`: fires missed in an outage; `held`:
    executions that wait for a limit.
    """
    if fleet.held_at is not None:
        why = f"Reason: {fleet.held_why}. {ACCEPT.removesuffix('.')}"
        return Health("bad", "On hold", "nothing has been planned or started for", fleet.held_at, why)
    waiting = min((pool for pool in pools if pool.oldest_at), key=_oldest, default=None)
    unplanned_s = (fleet.now - unplanned_at).total_seconds() if unplanned_at else 0.0
    waiting_s = (fleet.now - _oldest(waiting)).total_seconds() if waiting else 0.0
    if unplanned_at and unplanned_s >= max(waiting_s, LATE_S):
        return _late(unplanned_at, *_why_unplanned(fleet))
    if waiting and waiting_s >= LATE_S:
        return _late(_oldest(waiting), *_why_waiting(waiting, running))
    if warning := _missing_role(fleet) or _behind_a_limit(held) or _after_an_outage(missed):
        return warning
    lag_s = max(waiting_s, unplanned_s, 0.0)
    return Health("good", "On the dot", f"the oldest due fire has waited {lag_s:.1f} s")


def _missing_role(fleet: Fleet) -> Health | None:
    if not fleet.nodes and fleet.away:
        text = f"schedulers have no lease because {fleet.away} is away, so no fire is planned"
        return Health("warning", "Warning", text, command="ondot doctor")
    if not fleet.nodes:
        return Health("warning", "Warning", "no scheduler is running, so no fire is planned", command="ondot scheduler")
    if not fleet.workers:
        return Health("warning", "Warning", "no worker is running, so due executions will wait", command="ondot worker")
    return None


def _behind_a_limit(held: HeldBack | None) -> Health | None:
    if held is None or not held.is_behind:
        return None
    waits = "execution waits" if held.count == 1 else "executions wait"
    text = f"{held.counted} due {waits} for a limit, the oldest for"
    if not held.lines:
        return Health("warning", "Held back", text, held.oldest_at)
    [worst, *_] = held.lines
    which = "It waits" if held.count == 1 else "They wait"
    if len(held.lines) > 1:
        which = f"{worst.count:,} of them {'waits' if worst.count == 1 else 'wait'}"
    why = f"{which} for {worst.job_name}'s limit: {worst.limit}"
    return Health("warning", "Held back", text, held.oldest_at, why, link=(f"/jobs/{worst.job_id}", "See the job"))


def _after_an_outage(missed: Missed) -> Health | None:
    if not missed.count:
        return None
    least = "at least " if missed.is_least else ""
    fires = "1 fire" if missed.count == 1 else f"{missed.count:,} fires"
    were = "was" if missed.count == 1 else "were"
    jobs = "1 job" if missed.jobs == 1 else f"{missed.jobs:,} jobs"
    text = f"{least}{fires} of {jobs} {were} missed and will not run"
    return Health("warning", "After an outage", text, link=("/skipped", "See which fires, and how to run them"))


def _late(since: datetime, why: str, command: str | None) -> Health:
    return Health("bad", "Late", "the oldest due fire has waited", since, why, command)


def _why_unplanned(fleet: Fleet) -> tuple[str, str | None]:
    if not fleet.nodes and fleet.away:
        return f"Schedulers have no lease because {fleet.away} is away", "ondot doctor"
    if not fleet.nodes:
        return "No scheduler is running", "ondot scheduler"
    return "No scheduler has planned it yet", None


def _why_waiting(pool: PoolAtWork, running: int) -> tuple[str, str | None]:
    more = "ondot worker" if pool.name == "default" else f"ondot worker --pool {pool.name}"
    if not pool.workers:
        return f"No worker serves pool {pool.name}", more
    if running >= pool.slots:
        return f"All {pool.slots} slots of pool {pool.name} are busy", more
    return f"It waits in pool {pool.name}", None


def _oldest(pool: PoolAtWork) -> datetime:
    assert pool.oldest_at is not None
    return pool.oldest_at
