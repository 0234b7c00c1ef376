"""What is wrong with the fleet, in words, and what to do about it: for the page `/fleet` and `ondot fleet` (C1, C7).

Pure: a reading of the fleet in, sentences out, worst first. A healthy fleet has no sentences.
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
"""A sentence names the first 3 workers and counts the others."""
EXPIRED_SHOWN: Final = 3
"""The latest schedulers that expired without leaving are shown below the live ones; the others are counted."""

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
    """A process that exists but whose event loop is blocked: `role` is "worker" or "scheduler"."""

    role: str
    name: str
    where: str


@dataclass(frozen=True, slots=True)
class NodeAway:
    """A scheduler that runs, and cannot renew its lease: etcd is away."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """A sentence; `command` is what to type."""

    level: Level
    text: str
    command: str | None = None


def find_troubles(
    *,
    partitions: int,
    unowned: Sequence[int],
    live_nodes: int,
    pools: Sequence[PoolLoad],
    workers: Sequence[WorkerBeat],
    heartbeat_s: float,
    stalled: Sequence[StalledLoop] = (),
    away: Sequence[NodeAway] = (),
    held_at: datetime | None = None,
    held_why: str | None = None,
    held_back: HeldBack | None = None,
) -> list[Trouble]:
    """Worst first. During a hold, only the hold: idle schedulers and workers look as if they were gone."""
    if why := why_held(held_at, held_why):
        return [Trouble("bad", f"{why[0].message} {why[0].what_to_do}".removesuffix("."))]
    found = [
        *_node_troubles(partitions, unowned, live_nodes, away),
        *_pool_troubles(pools),
        *_stalled_troubles(stalled),
        *_limit_troubles(held_back),
        *_worker_troubles(workers, heartbeat_s, any(pool.workers for pool in pools)),
    ]
    return sorted(found, key=lambda trouble: trouble.level)  # "bad" before "warning"; the sort is stable


def describe_healthy_fleet(partitions: int | None) -> str:
    """`partitions`: None if the reader does not see them."""
    if partitions is None:
        return "Every pool with work has workers"
    return f"All {partitions} partitions have an owner, and every pool with work has workers"


def format_ranges(numbers: Iterable[int]) -> str:
    """Numbers as people write them: "0–21, 40"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in runs)


def count_more_expired(silent_s: Sequence[float]) -> str | None:
    """The expired schedulers that are not shown, in words, from how long each is silent: rows stay while no scheduler
    is alive to remove them."""
    if not silent_s:
        return None
    return f"and {len(silent_s):,} more{' in the last hour' if max(silent_s) <= HOUR_S else ''}"


def worker_command(pool: str) -> str:
    return "ondot worker" if pool == "default" else f"ondot worker --pool {pool}"


def _node_troubles(
    partitions: int, unowned: Sequence[int], live_nodes: int, away: Sequence[NodeAway]
) -> Iterator[Trouble]:
    for node in away[:NAMED]:
        yield Trouble("bad", f"The scheduler {node.name} runs, but may plan nothing. {node.why}".removesuffix("."))
    if not live_nodes and away:
        return
    if not live_nodes:
        yield Trouble("bad", "No scheduler is running, so no fire is planned", "ondot scheduler")
    elif unowned:
        one = len(unowned) == 1
        which = f"Partition {unowned[0]}" if one else f"Partitions {format_ranges(unowned)}"
        yield Trouble(
            "bad",
            f"{which} of {partitions} {'has' if one else 'have'} no live owner, so fires of {'its' if one else 'their'}"
            f" jobs are not planned. A scheduler takes {'it' if one else 'them'} over within seconds; if none does,"
            " check the schedulers' logs",
            "ondot scheduler",
        )


def _pool_troubles(pools: Sequence[PoolLoad]) -> Iterator[Trouble]:
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


def _stalled_troubles(stalled: Sequence[StalledLoop]) -> Iterator[Trouble]:
    for one in stalled[:NAMED]:
        yield Trouble(
            "bad",
            f"The {one.role} {one.name} is stalled: its event loop is blocked at {one.where}. Others take over its"
            " work, and it restarts by itself; its log has the stack (loop.stalled)",
        )


def _limit_troubles(held: HeldBack | None) -> Iterator[Trouble]:
    if held is None or not held.is_behind:
        return
    waits = "execution waits" if held.count == 1 else "executions wait"
    text = f"{held.counted} due {waits} for a limit, the oldest for {elapsed(held.oldest_s)}"
    if held.lines:
        [worst, *_] = held.lines
        which = "it waits" if held.count == 1 else "most of them wait"
        text += f"; {which} for {worst.job_name}'s limit: {worst.limit}"
    yield Trouble("warning", text)


def _worker_troubles(workers: Sequence[WorkerBeat], heartbeat_s: float, any_serves: bool) -> Iterator[Trouble]:
    if not any_serves:
        yield Trouble("warning", "No worker is running, so due executions will wait", "ondot worker")
    lost = [worker.name for worker in workers if worker.state == "LOST"]
    if lost:
        which = "worker was" if len(lost) == 1 else "workers were"
        yield Trouble(
            "warning",
            f"{len(lost)} {which} lost in the last 10 minutes: {_list_names(lost)}. Their executions went back to the"
            " queue. Check those hosts for a killed process, full memory or a cut network",
        )
    silent = [worker for worker in workers if is_silent(worker.state, worker.silent_s, heartbeat_s)]
    if silent:
        longest_s = max(worker.silent_s for worker in silent)
        names = _list_names([worker.name for worker in silent])
        which = "worker is" if len(silent) == 1 else "workers are"
        yield Trouble(
            "warning",
            f"{len(silent)} {which} silent, for up to {elapsed(longest_s)}: {names}. {when_lost(heartbeat_s)}",
        )


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
