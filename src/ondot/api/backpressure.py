"""Back-pressure (C7): while the queue of a pool is full, requests that would make it longer are refused, and no others.

A pool is full when `ONDOT_QUEUE_CEILING` due executions of the tenant wait in it for a worker. Accepted work is never
dropped, recurring jobs fire as always, and work due after the horizon is accepted. Without a ceiling nothing here runs.

Each process reads the depth of a pool at most once a second, and only while clients submit to it; requests that arrive
meanwhile wait for the same reading. It then adds the work that it has let through and that the reading did not include:
due and not stored yet, stored since, and stored for later as soon as it is due. Only due work counts, and only what was
created. A repeated request, a job that exists by its `key` and one that a unique or throttled key refuses add nothing.
A debounced job is counted by the first reading after it is due.

So the ceiling can be exceeded. One process exceeds it by the last request that arrived while there was room, because a
batch is accepted whole, and by work that it accepted before for an instant within the horizon. Several processes exceed
it by what the others accept in a second.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from ondot.flow.idempotency import Idempotency
from ondot.flow.new_jobs import Accepted
from ondot.flow.submit import OnCreated
from ondot.model.errors import QueueFull, Unavailable
from ondot.model.ids import TenantNo
from ondot.model.job import JobSpec
from ondot.model.schedule import Once, jitter_offset
from ondot.store.database import Database
from ondot.store.idempotency import find_keys_in_use, has_key
from ondot.store.pools import read_pool_depths
from ondot.telemetry.metrics import OTHER_POOLS, POOLS_SHOWN, SUBMISSIONS_REFUSED

LOOK_EVERY: Final = timedelta(seconds=1)
TICKS_A_SECOND: Final = 10
RETRY_AFTER_S: Final = 5
QUEUES_KEPT: Final = 1_000
"""Pools remembered before those without recent requests are dropped."""
QUEUE_FULL: Final[dict[int | str, dict[str, Any]]] = {429: {"description": "the queue of the pool is full"}}
"""The response that routes document which may refuse so."""

Adding = Mapping[str, int]
"""How many executions that are due at once would wait, by pool. A pool with work for later only has 0."""


@dataclass(slots=True)
class _Queue:
    """The last reading of a pool, and the work that this process let through and the reading does not include."""

    seen_at: datetime | None = None
    depth: int = 0
    under_way: int = 0
    """Due, and on the way into the database: a reading may happen before their commit or after it."""
    accepted: int = 0
    """Stored and due since the reading."""
    coming: Counter[int] = field(default_factory=Counter)
    """Stored and due later, by the tick at whose start all of them are due."""
    tick: int = 0

    @property
    def length(self) -> int:
        return self.depth + self.under_way + self.accepted

    def is_fresh(self, now: datetime) -> bool:
        # In both directions: after the database's clock was set back, no reading would be stale until it caught up.
        return self.seen_at is not None and abs(now - self.seen_at) < LOOK_EVERY

    def is_needed(self, now: datetime) -> bool:
        return self.is_fresh(now) or self.under_way > 0 or any(tick > _tick(now) for tick in self.coming)

    def advance(self, now: datetime, horizon_at: datetime) -> None:
        """Count work that has become due: it is in the queue now, and no reading has included it yet."""
        if self.tick == (tick := _tick(now)):
            return
        self.tick = tick
        self.accepted += sum(self.coming.pop(due) for due in [due for due in self.coming if due <= tick])
        # From a time when the clock was ahead: a reading will include it when it is due.
        for due in [due for due in self.coming if due > _tick(horizon_at) + 1]:
            del self.coming[due]

    def add(self, due_at: datetime, now: datetime) -> None:
        if due_at <= now:
            self.accepted += 1
        else:
            self.coming[_tick(due_at) + 1] += 1

    def update(self, depth: int, seen_at: datetime, accepted_before: int) -> None:
        self.depth, self.seen_at = depth, seen_at
        self.accepted -= accepted_before


class Backpressure:
    def __init__(self, database: Database, ceiling: int) -> None:
        self._database = database
        self._ceiling = ceiling
        self._queues: dict[tuple[TenantNo, str], _Queue] = {}
        self._readings: dict[tuple[TenantNo, str], asyncio.Task[str | None]] = {}
        self._counted: set[str] = set()
        """The pools whose refusals have a metric series of their own."""

    @asynccontextmanager
    async def room_for_jobs(
        self, tenant_no: TenantNo, specs: Sequence[JobSpec], now: datetime, idempotency: Idempotency | None
    ) -> AsyncIterator[OnCreated]:
        """Enter while these jobs are stored. Raises `QueueFull` if they would add to a full queue.

        Yields the function to call with the jobs that were created.
        """
        adding = _count_additions(specs, now, self._horizon_at(now))
        refusal = await self._let_in(tenant_no, adding)
        if refusal is not None and (keys := [spec.key for spec in specs if spec.key is not None]):
            async with self._database.connection() as connection:
                known = await find_keys_in_use(connection, tenant_no, keys)
            # A job whose key is taken is an update, and adds no execution.
            adding = _count_additions((spec for spec in specs if spec.key not in known), now, self._horizon_at(now))
            refusal = await self._let_in(tenant_no, adding)
        if refusal is not None:
            await self._refuse(tenant_no, refusal, idempotency)
            adding = {}
        made: list[Accepted] = []
        with self._under_way(tenant_no, adding):
            try:
                yield made.extend
            finally:
                self._count(tenant_no, made)

    @asynccontextmanager
    async def room_now(
        self, tenant_no: TenantNo, counts: Adding, idempotency: Idempotency | None
    ) -> AsyncIterator[None]:
        """The same for executions that start now, by pool."""
        refusal = await self._let_in(tenant_no, counts)
        if refusal is not None:
            await self._refuse(tenant_no, refusal, idempotency)
            counts = {}
        with self._under_way(tenant_no, counts) as queues:
            yield
            for pool, queue in queues.items():
                queue.accepted += counts[pool]

    def _horizon_at(self, now: datetime) -> datetime:
        return now + timedelta(seconds=self._database.settings.horizon_s)

    async def _let_in(self, tenant_no: TenantNo, adding: Adding) -> QueueFull | None:
        """Count these as under way. If one of the queues is full, return the refusal instead."""
        await self._refresh(tenant_no, adding.keys())
        # No await from here on: a request that is let in is counted before the next one asks.
        now = self._database.clock.now()
        queues = {pool: self._queues.setdefault((tenant_no, pool), _Queue()) for pool in adding}
        for pool, queue in queues.items():
            queue.advance(now, self._horizon_at(now))
            if queue.length >= self._ceiling:
                return self._refusal(pool, queue.length)
        for pool, queue in queues.items():
            queue.under_way += adding[pool]
        return None

    @contextmanager
    def _under_way(self, tenant_no: TenantNo, adding: Adding) -> Iterator[dict[str, _Queue]]:
        """Enter while they are stored, or fail to be."""
        queues = {pool: self._queues[tenant_no, pool] for pool in adding}
        try:
            yield queues
        finally:
            for pool, queue in queues.items():
                queue.under_way -= adding[pool]

    def _count(self, tenant_no: TenantNo, made: Iterable[Accepted]) -> None:
        """Count the executions that these jobs add to queues before the horizon."""
        now = self._database.clock.now()
        horizon_at = self._horizon_at(now)
        for job in made:
            due_at = _due_at(job)
            if due_at is not None and due_at <= horizon_at:
                self._queues.setdefault((tenant_no, job.spec.pool), _Queue()).add(due_at, now)

    async def _refuse(self, tenant_no: TenantNo, refusal: QueueFull, idempotency: Idempotency | None) -> None:
        """Raise the refusal, unless the same request was accepted before: it gets its answer again and adds nothing."""
        if idempotency is not None:
            async with self._database.connection() as connection:
                if await has_key(connection, tenant_no, idempotency.key):
                    return
        pool = str(refusal.facts["pool"])
        if len(self._counted) < POOLS_SHOWN:
            self._counted.add(pool)
        SUBMISSIONS_REFUSED.labels(pool if pool in self._counted else OTHER_POOLS).inc()
        raise refusal

    async def _refresh(self, tenant_no: TenantNo, pools: Iterable[str]) -> None:
        """Read these pools again where the last reading is older than a second."""
        now = self._database.clock.now()
        keys = [(tenant_no, pool) for pool in pools]
        stale = [key for key in keys if (queue := self._queues.get(key)) is None or not queue.is_fresh(now)]
        if not stale:
            return
        missing = [key for key in stale if key not in self._readings]
        if missing:
            # A separate task: a caller that disconnects must not cancel the reading that others wait for.
            depths = self._read_depths(tenant_no, [pool for _, pool in missing])
            self._readings |= dict.fromkeys(missing, asyncio.create_task(depths, name="queue depth"))
        for reading in {self._readings[key] for key in stale}:
            if (problem := await asyncio.shield(reading)) is not None:
                raise Unavailable(problem)

    async def _read_depths(self, tenant_no: TenantNo, pools: Sequence[str]) -> str | None:
        """Read the depths. Returns why that failed, for all requests that wait; None: it did not."""
        now = self._database.clock.now()
        if len(self._queues) + len(pools) > QUEUES_KEPT:
            self._queues = {key: queue for key, queue in self._queues.items() if queue.is_needed(now)}
        queues = {pool: self._queues.setdefault((tenant_no, pool), _Queue()) for pool in pools}
        for queue in queues.values():
            queue.advance(now, self._horizon_at(now))
        accepted = {pool: queue.accepted for pool, queue in queues.items()}
        try:
            async with self._database.connection() as connection:
                depths = await read_pool_depths(connection, tenant_no, pools, self._ceiling)
        except Unavailable as error:
            return error.message
        finally:
            for pool in pools:
                del self._readings[tenant_no, pool]
        for pool, queue in queues.items():
            queue.update(depths.get(pool, 0), now, accepted[pool])
        return None

    def _refusal(self, pool: str, waiting: int) -> QueueFull:
        worker = "ondot worker" if pool == "default" else f"ondot worker --pool {pool}"
        return QueueFull(
            f"The queue of pool {pool!r} is full: {waiting:,} executions wait for its workers, and its ceiling is"
            f" {self._ceiling:,} (ONDOT_QUEUE_CEILING). Nothing of this request was stored. Send it again later, start"
            f" more workers (`{worker}`), or raise the ceiling.",
            pool=pool,
            waiting=waiting,
            ceiling=self._ceiling,
            retry_after_s=RETRY_AFTER_S,
        )


def headers_of(refusal: QueueFull) -> dict[str, str]:
    """When to retry, and the ceiling in the form of the IETF's RateLimit fields."""
    wait_s, ceiling = refusal.facts["retry_after_s"], refusal.facts["ceiling"]
    return {
        "Retry-After": str(wait_s),
        "RateLimit-Policy": f'"queue";q={ceiling}',
        "RateLimit": f'"queue";r=0;t={wait_s}',
    }


def _count_additions(specs: Iterable[JobSpec], now: datetime, horizon_at: datetime) -> dict[str, int]:
    """How many executions the one-time jobs that are due before the horizon would add."""
    adding: Counter[str] = Counter()
    for spec in specs:
        if spec.recurs:
            continue
        due_at = now
        if spec.debounce is not None:
            due_at = now + timedelta(seconds=spec.debounce.wait_s)
        elif spec.schedule is not None and isinstance(spec.schedule.when, Once):
            due_at = spec.schedule.when.at
        if due_at <= horizon_at:
            adding[spec.pool] += due_at <= now
    return adding


def _due_at(job: Accepted) -> datetime | None:
    """When a new job waits for a worker. None: it is not known yet, it never will, or the job recurs."""
    if job.state_reason is not None or job.spec.debounce is not None or job.spec.schedule is None:
        return None
    when, jitter_s = job.spec.schedule.when, job.spec.schedule.jitter_s
    if not isinstance(when, Once):
        return None
    return when.at + jitter_offset(job.id, jitter_s) if jitter_s else when.at


def _tick(at: datetime) -> int:
    return int(at.timestamp() * TICKS_A_SECOND)
