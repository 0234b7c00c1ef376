"""What is wrong with the fleet, in words, and what to do about it: for the page `/fleet` and `ondot fleet` (C1, C7).

Pure: it takes what was read and says what it means, worst first. Nothing is said of what is as it should be.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from ondot.model.explain_facts import why_held
from ondot.model.held_back import HeldBack
from ondot.model.liveness import is_silent, when_lost
from ondot.words.job import HOUR_S, elapsed

BEHIND_S: Final = 5.0
"""A pool whose workers are all busy is reported when its oldest work has waited for this long."""
NAMED: Final = 3
"""So many workers are named in a sentence; of more the rest is counted."""
EXPIRED_SHOWN: Final = 3
"""Of schedulers that went without leaving the latest are shown, below those that live; the rest is counted."""

Level = Literal["bad", "warning"]


@dataclass(frozen=True, slots=True)
class PoolLoad:
    """`waiting`: due executions without a worker, the oldest for `oldest_s`."""

    name: str
    workers: int
    slots: int
    running: int
    waiting: int
    oldest_s: float | None


@dataclass(frozen=True, slots=True)
class WorkerBeat:
    name: str
    state: str
    silent_s: float


@dataclass(frozen=True, slots=True)
class StalledLoop:
    """A process that is there, and whose loop stands still: `role` is "worker" or "scheduler"."""

    role: str
    name: str
    where: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """A sentence; `command` is what to type."""

    level: Level
    text: str
    command: str | None = None


def troubles(
    *,
    partitions: int,
    unowned: Sequence[int],
    live_nodes: int,
    pools: Sequence[PoolLoad],
    workers: Sequence[WorkerBeat],
    heartbeat_s: float,
    stalled: Sequence[StalledLoop] = (),
    held_at: datetime | None = None,
    held_why: str | None = None,
    held_back: HeldBack | None = None,
) -> list[Trouble]:
    """Worst first. While everything is held, only that: schedulers and workers stand still, and seem to be gone."""
    if why := why_held(held_at, held_why):
        return [Trouble("bad", f"{why[0].message} {why[0].what_to_do}".removesuffix("."))]
    found = [
        *_of_nodes(partitions, unowned, live_nodes),
        *_of_pools(pools),
        *_of_stalled(stalled),
        *_of_limits(held_back),
        *_of_workers(workers, heartbeat_s, any(pool.workers for pool in pools)),
    ]
    return sorted(found, key=lambda trouble: trouble.level)  # "bad" before "warning", else as they were found


def all_well(partitions: int) -> str:
    return f"All {partitions} partitions have an owner, and every pool with work has workers"


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them: "0–21, 40"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)


def more_expired(silent_s: Sequence[float]) -> str | None:
    """The expired schedulers that are not shown, by when each last beat: nobody forgets them while none is alive."""
    if not silent_s:
        return None
    return f"and {len(silent_s):,} more{' in the last hour' if max(silent_s) <= HOUR_S else ''}"


def worker_command(pool: str) -> str:
    return "ondot worker" if pool == "default" else f"ondot worker --pool {pool}"


def _of_nodes(partitions: int, unowned: Sequence[int], live_nodes: int) -> Iterator[Trouble]:
    if not live_nodes:
        yield Trouble("bad", "No scheduler runs: no fire is planned", "ondot scheduler")
    elif unowned:
        which = f"partition {unowned[0]} has" if len(unowned) == 1 else f"partitions {ranges(unowned)} have"
        yield Trouble(
            "bad",
            f"Of {partitions} {which} no live owner: fires of their jobs are not planned. A scheduler takes them within"
            " seconds; if none does, look at the schedulers' logs",
            "ondot scheduler",
        )


def _of_pools(pools: Sequence[PoolLoad]) -> Iterator[Trouble]:
    for pool in sorted(pools, key=lambda pool: -(pool.oldest_s or 0.0)):
        if not pool.waiting:
            continue
        since = f", the oldest for {elapsed(pool.oldest_s)}" if pool.oldest_s is not None else ""
        waits = "execution waits" if pool.waiting == 1 else "executions wait"
        depth = f"{pool.waiting:,} due {waits} in pool {pool.name}{since}"
        if not pool.workers:
            yield Trouble("bad", f"{depth}, and no worker serves it", worker_command(pool.name))
        elif pool.running >= pool.slots and (pool.oldest_s or 0.0) >= BEHIND_S:
            yield Trouble("warning", f"{depth}: all {pool.slots:,} slots are busy", worker_command(pool.name))


def _of_stalled(stalled: Sequence[StalledLoop]) -> Iterator[Trouble]:
    for one in stalled[:NAMED]:
        yield Trouble(
            "bad",
            f"The {one.role} {one.name} hangs: its loop stands still at {one.where}. Others take over what it has, and"
            " it starts again by itself; its log has the stack (loop.stalled)",
        )


def _of_limits(held: HeldBack | None) -> Iterator[Trouble]:
    if held is None or not held.is_behind:
        return
    waits = "execution waits" if held.count == 1 else "executions wait"
    worst = f": most of them for the limit of {held.lines[0].job_name} ({held.lines[0].limit})" if held.lines else ""
    yield Trouble("warning", f"{held.counted} due {waits} for a limit, the oldest for {elapsed(held.oldest_s)}{worst}")


def _of_workers(workers: Sequence[WorkerBeat], heartbeat_s: float, any_serves: bool) -> Iterator[Trouble]:
    if not any_serves:
        yield Trouble("warning", "No worker runs: what comes due will wait", "ondot worker")
    lost = [worker.name for worker in workers if worker.state == "LOST"]
    if lost:
        which = "worker was" if len(lost) == 1 else "workers were"
        yield Trouble(
            "warning",
            f"{len(lost)} {which} lost in the last 10 minutes: {_named(lost)}. What they ran went back to the queue;"
            " look there for a kill, a full memory, or a network that was cut",
        )
    silent = [worker for worker in workers if is_silent(worker.state, worker.silent_s, heartbeat_s)]
    if silent:
        longest_s = max(worker.silent_s for worker in silent)
        which = "worker is" if len(silent) == 1 else "workers are"
        yield Trouble(
            "warning",
            f"{len(silent)} {which} silent, for up to {elapsed(longest_s)}: {_named([one.name for one in silent])}."
            f" {when_lost(heartbeat_s)}",
        )


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
