"""Back-pressure (C7): while the queue of a pool is full, what would make it longer is refused, and nothing else is.

Full is a pool in which `ONDOT_QUEUE_CEILING` due executions of the tenant wait for a worker. What was accepted is never
dropped, recurring jobs fire as ever, and work for after the horizon is taken. Without a ceiling nothing here is called.

Each process looks at the depth of a pool at most once a second, and only while somebody submits to it; all who come
meanwhile wait for the same look. To what it saw it adds what it has itself let through and could not have seen: what is
not stored yet, what was stored since, what is due later. So alone it goes beyond the ceiling only by the last request
that came while there was room, since a batch is taken whole; and several by what the others accept in a second.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from ondot.flow.submit import Idempotency
from ondot.model.errors import QueueFull, Unavailable
from ondot.model.ids import TenantNo
from ondot.model.job import JobSpec
from ondot.model.schedule import Once
from ondot.store.database import Database
from ondot.store.pools import pool_depths
from ondot.store.repeats import has_key, keys_in_use
from ondot.telemetry.metrics import SUBMISSIONS_REFUSED

LOOK_EVERY: Final = timedelta(seconds=1)
RETRY_AFTER_S: Final = 5
QUEUES_KEPT: Final = 1_000
"""Pools remembered before those that nobody asked for lately are forgotten."""
TOLD: Final[dict[int | str, dict[str, Any]]] = {429: {"description": "the queue of the pool is full"}}
"""For the routes that may answer so."""

Due = Mapping[str, Sequence[datetime]]
"""When executions would be due, by the pool that they would wait in."""


@dataclass(slots=True)
class _Queue:
    """A pool as it was seen, and what this process has let through to it that could not be seen then."""

    seen_at: datetime | None = None
    depth: int = 0
    under_way: int = 0
    """On their way into the database: a look may come before their commit or after it."""
    accepted: int = 0
    """Stored, and due, since it was seen."""
    coming: Counter[int] = field(default_factory=Counter)
    """Stored, and due later: by the second before whose end they are."""

    @property
    def length(self) -> int:
        return self.depth + self.under_way + self.accepted + self.coming.total()

    def is_fresh(self, now: datetime) -> bool:
        # In both directions: after the database's clock was set back, nothing would be stale for as long.
        return self.seen_at is not None and abs(now - self.seen_at) < LOOK_EVERY

    def is_needed(self, now: datetime) -> bool:
        return self.is_fresh(now) or self.under_way > 0 or any(second > now.timestamp() for second in self.coming)

    def store(self, due: Sequence[datetime], now: datetime) -> None:
        for due_at in due:
            if due_at <= now:
                self.accepted += 1
            else:
                self.coming[int(due_at.timestamp()) + 1] += 1

    def see(self, depth: int, seen_at: datetime, accepted_before: int) -> None:
        self.depth, self.seen_at = depth, seen_at
        self.accepted -= accepted_before
        self.coming = Counter({second: n for second, n in self.coming.items() if second > seen_at.timestamp()})


class Backpressure:
    def __init__(self, database: Database, ceiling: int) -> None:
        self._database = database
        self._ceiling = ceiling
        self._queues: dict[tuple[TenantNo, str], _Queue] = {}
        self._looking: dict[tuple[TenantNo, str], asyncio.Task[str | None]] = {}

    @asynccontextmanager
    async def room_for_jobs(
        self, tenant_no: TenantNo, specs: Sequence[JobSpec], now: datetime, idempotency: Idempotency | None
    ) -> AsyncIterator[None]:
        """While these jobs are stored; raises `QueueFull` if they would add due work to a full queue."""
        horizon_at = now + timedelta(seconds=self._database.settings.horizon_s)
        due = _due_of(specs, now, horizon_at)
        refusal = await self._let_in(tenant_no, due)
        if refusal is not None and (keys := [spec.key for spec in specs if spec.key is not None]):
            async with self._database.connection() as connection:
                known = await keys_in_use(connection, tenant_no, keys)
            # A job whose key is taken is changed, and not one more.
            due = _due_of((spec for spec in specs if spec.key not in known), now, horizon_at)
            refusal = await self._let_in(tenant_no, due)
        if refusal is not None:
            await self._refuse(tenant_no, refusal, idempotency)
            due = {}
        with self._under_way(tenant_no, due):
            yield

    @asynccontextmanager
    async def room_now(
        self, tenant_no: TenantNo, counts: Mapping[str, int], idempotency: Idempotency | None
    ) -> AsyncIterator[None]:
        """The same for so many executions that start now, by pool."""
        now = self._database.clock.now()
        due: Due = {pool: [now] * count for pool, count in counts.items()}
        refusal = await self._let_in(tenant_no, due)
        if refusal is not None:
            await self._refuse(tenant_no, refusal, idempotency)
            due = {}
        with self._under_way(tenant_no, due):
            yield

    async def _let_in(self, tenant_no: TenantNo, due: Due) -> QueueFull | None:
        """Count these as under way; or the refusal, if one of the queues is full."""
        await self._look(tenant_no, due.keys())
        # From here to the end nobody else has a turn: who is let in is counted before the next one asks.
        queues = {pool: self._queues.setdefault((tenant_no, pool), _Queue()) for pool in due}
        for pool, queue in queues.items():
            if queue.length >= self._ceiling:
                return self._refusal(pool, queue.length)
        for pool, queue in queues.items():
            queue.under_way += len(due[pool])
        return None

    @contextmanager
    def _under_way(self, tenant_no: TenantNo, due: Due) -> Iterator[None]:
        """From being let in to being stored, or not."""
        queues = {pool: self._queues[tenant_no, pool] for pool in due}
        try:
            yield
            now = self._database.clock.now()
            for pool, queue in queues.items():
                queue.store(due[pool], now)
        finally:
            for pool, queue in queues.items():
                queue.under_way -= len(due[pool])

    async def _refuse(self, tenant_no: TenantNo, refusal: QueueFull, idempotency: Idempotency | None) -> None:
        """Unless the same was accepted before: it is given its answer again, and adds nothing."""
        if idempotency is not None:
            async with self._database.connection() as connection:
                if await has_key(connection, tenant_no, idempotency.key):
                    return
        SUBMISSIONS_REFUSED.labels(refusal.facts["pool"]).inc()
        raise refusal

    async def _look(self, tenant_no: TenantNo, pools: Iterable[str]) -> None:
        """See to it that what is known of these pools is not older than a second."""
        now = self._database.clock.now()
        keys = [(tenant_no, pool) for pool in pools]
        stale = [key for key in keys if (queue := self._queues.get(key)) is None or not queue.is_fresh(now)]
        if not stale:
            return
        missing = [key for key in stale if key not in self._looking]
        if missing:
            # A task of its own: a caller that goes away takes nobody else's answer with it.
            seeing = self._see(tenant_no, [pool for _, pool in missing])
            self._looking |= dict.fromkeys(missing, asyncio.create_task(seeing, name="queue depth"))
        for looking in {self._looking[key] for key in stale}:
            if (away := await asyncio.shield(looking)) is not None:
                raise Unavailable(away)

    async def _see(self, tenant_no: TenantNo, pools: Sequence[str]) -> str | None:
        """Look at the depths; gives why it could not be done, for all who wait."""
        now = self._database.clock.now()
        if len(self._queues) + len(pools) > QUEUES_KEPT:
            self._queues = {key: queue for key, queue in self._queues.items() if queue.is_needed(now)}
        queues = {pool: self._queues.setdefault((tenant_no, pool), _Queue()) for pool in pools}
        accepted = {pool: queue.accepted for pool, queue in queues.items()}
        try:
            async with self._database.connection() as connection:
                depths = await pool_depths(connection, tenant_no, pools, self._ceiling)
        except Unavailable as error:
            return error.message
        finally:
            for pool in pools:
                del self._looking[tenant_no, pool]
        for pool, queue in queues.items():
            queue.see(depths.get(pool, 0), now, accepted[pool])
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
    """When to come back, and the ceiling as the IETF's RateLimit fields tell one."""
    wait_s, ceiling = refusal.facts["retry_after_s"], refusal.facts["ceiling"]
    return {
        "Retry-After": str(wait_s),
        "RateLimit-Policy": f'"queue";q={ceiling}',
        "RateLimit": f'"queue";r=0;t={wait_s}',
    }


def _due_of(specs: Iterable[JobSpec], now: datetime, horizon_at: datetime) -> dict[str, list[datetime]]:
    """When the one-time jobs that are due before the horizon are, by pool."""
    due: dict[str, list[datetime]] = {}
    for spec in specs:
        if spec.recurs:
            continue
        due_at = now
        if spec.debounce is not None:
            due_at = now + timedelta(seconds=spec.debounce.wait_s)
        elif spec.schedule is not None and isinstance(spec.schedule.when, Once):
            due_at = spec.schedule.when.at
        if due_at <= horizon_at:
            due.setdefault(spec.pool, []).append(due_at)
    return due
