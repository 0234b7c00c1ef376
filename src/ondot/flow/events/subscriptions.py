"""The jobs that events start, as one process knows them, and what a change of such a job writes (S11).

A process keeps a tenant's subscriptions with the generation that they were read at. A sender compares it in the
transaction that stores its events, while the subscriptions are locked. If it has moved, only the subscriptions that
changed are read again.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from msgspec import Raw, Struct

from ondot.flow.work import Work
from ondot.model.errors import Fault, InvalidBody
from ondot.model.event import Event
from ondot.model.event_rules import CancelOn
from ondot.model.gates import encode_stages
from ondot.model.ids import JobId, PoolNo, TenantNo
from ondot.model.job import JobSpec, JobState
from ondot.model.misfire import MissedPolicy
from ondot.model.pattern_index import MAX_REST, PatternIndex, TooCostly, is_indexed
from ondot.model.schedule import OnEvent
from ondot.model.schedule.event import cancel_pattern
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.jobs import LockedJob, NewJob
from ondot.store.subscriptions import (
    NewSubscription,
    SubscriptionRow,
    count_unindexed,
    find_subscriptions,
    list_generations,
    lock_subscriptions,
    put_subscriptions,
    raise_generation,
    read_generation,
    remove_subscription,
)

TENANTS_KEPT: Final = 1_000
READ_AT_ONCE: Final = 1_000


class Subscription(Struct, frozen=True, gc=False):
    """A job that events start, with what its executions need."""

    job_id: JobId
    version: int
    pool: str
    pool_no: PoolNo
    priority_class: int
    stages: str | None
    start_within_s: float | None
    payload: Raw
    is_paused: bool
    missed: MissedPolicy
    rule: OnEvent


@dataclass(slots=True)
class Known:
    """The subscriptions of a tenant, of one generation."""

    generation: int = -1
    index: PatternIndex[UUID] = field(default_factory=PatternIndex)
    cancels: PatternIndex[tuple[UUID, int]] = field(default_factory=PatternIndex)
    """Rules of `cancel_on`, by job and place."""
    entries: dict[UUID, Subscription] = field(default_factory=dict)
    generations: dict[UUID, int] = field(default_factory=dict)
    in_use: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a thread matches, and while the index changes."""

    def match(self, events: Sequence[Event]) -> list[list[Subscription]]:
        """The jobs that each event starts. Raises InvalidBody if one would take long to match."""
        found: list[list[Subscription]] = []
        for event in events:
            try:
                ids = self.index.find(event.type, event.value, event.size)
            except TooCostly:
                raise _too_costly(event) from None
            found.append([self.entries[id_] for id_ in ids])
        return found

    def match_cancels(self, event: Event) -> list[tuple[JobId, CancelOn]]:
        """The rules by which an event cancels executions."""
        if not self.cancels.has_type(event.type):
            return []
        found = self.cancels.find(event.type, event.value)
        return [(JobId(id_), self.entries[id_].rule.cancel_on[place]) for id_, place in found]


class Subscriptions:
    """Of all tenants, as this process has read them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[TenantNo, Known] = OrderedDict()

    async def get(self, tenant_no: TenantNo) -> Known:
        """As they were read last; they may have changed since."""
        known = self._known.get(tenant_no)
        if known is not None:
            self._known.move_to_end(tenant_no)
            return known
        async with self._database.connection() as connection:
            return await self.read(connection, tenant_no)

    async def read(self, connection: Connection, tenant_no: TenantNo) -> Known:
        """As they are now: those that changed are read again."""
        known = self._known.setdefault(tenant_no, Known())
        self._known.move_to_end(tenant_no)
        while len(self._known) > TENANTS_KEPT:
            self._known.popitem(last=False)
        async with known.in_use:
            # The generation first: if a change commits in between, it is older than what was read, and read again.
            generation = await read_generation(connection, tenant_no)
            if generation <= known.generation:
                return known
            now = await list_generations(connection, tenant_no)
            changed = [id_ for id_, at in now.items() if known.generations.get(id_) != at]
            for id_ in known.generations.keys() - now.keys():
                _forget(known, id_)
            for start in range(0, len(changed), READ_AT_ONCE):
                rows = await find_subscriptions(connection, tenant_no, changed[start : start + READ_AT_ONCE])
                await self._learn(connection, tenant_no, known, rows)
            known.generations = now
            known.generation = generation
        return known

    async def _learn(
        self, connection: Connection, tenant_no: TenantNo, known: Known, rows: Sequence[SubscriptionRow]
    ) -> None:
        specs = await self._database.specs.find(connection, [(row.job_id, row.version) for row in rows])
        pools = await self._database.pools.register(connection, {spec.pool for spec in specs.values()})
        for row in rows:
            spec = specs[row.job_id, row.version]
            rule = rule_of(spec)
            assert rule is not None, "only jobs that events start have a subscription"
            _forget(known, row.job_id)
            known.index.add(row.job_id, rule.type, rule.pattern)
            for place, cancelling in enumerate(rule.cancel_on):
                known.cancels.add((row.job_id, place), cancelling.type, cancel_pattern(cancelling))
            known.entries[row.job_id] = _subscription(tenant_no, row, spec, pools[spec.pool])


def rule_of(spec: JobSpec) -> OnEvent | None:
    when = None if spec.schedule is None else spec.schedule.when
    return when if isinstance(when, OnEvent) else None


def _subscription(tenant_no: TenantNo, row: SubscriptionRow, spec: JobSpec, pool_no: PoolNo) -> Subscription:
    rule = rule_of(spec)
    assert spec.schedule is not None
    assert rule is not None, "only jobs that events start have a subscription"
    return Subscription(
        row.job_id,
        row.version,
        spec.pool,
        pool_no,
        int(spec.priority_class),
        encode_stages(spec.limits, tenant_no, row.job_id),
        spec.start_deadline_s,
        spec.payload,
        row.paused_at is not None,
        spec.schedule.misfire.policy,
        rule,
    )


def _forget(known: Known, id_: UUID) -> None:
    known.index.remove(id_)
    entry = known.entries.pop(id_, None)
    for place in range(0 if entry is None else len(entry.rule.cancel_on)):
        known.cancels.remove((id_, place))


async def lock_if_events(work: Work, *specs: JobSpec) -> None:
    """Before a job that has or gets one of these specs is changed, and before any gate is locked: a sender that holds
    the lock may wait for a gate."""
    if any(spec.starts_by_event for spec in specs):
        await lock_subscriptions(work.connection, work.tenant_no)


async def add_subscriptions(work: Work, jobs: Sequence[NewJob]) -> None:
    """Of new jobs, those that events start. Raises InvalidBody if too many of a type have no equality."""
    new = [_row(job.id, 1, job.spec) for job in jobs if job.spec.starts_by_event]
    if new:
        await _put(work, new, are_paused=False)


async def change_subscription(work: Work, job: LockedJob, changed: LockedJob) -> None:
    """A job that events start, or started, has changed; the subscriptions are locked."""
    if changed.spec.starts_by_event and changed.state is not JobState.DELETED:
        row = _row(job.id, changed.version, changed.spec)
        await _put(work, [row], are_paused=changed.state is JobState.PAUSED)
    elif job.spec.starts_by_event:
        await raise_generation(work.connection, work.tenant_no)
        await remove_subscription(work.connection, work.tenant_no, job.id)


async def _put(work: Work, new: Sequence[NewSubscription], *, are_paused: bool) -> None:
    await lock_subscriptions(work.connection, work.tenant_no)
    if added := Counter(one.type for one in new if not one.is_indexed):
        without = [one.job_id for one in new]
        there = await count_unindexed(work.connection, work.tenant_no, list(added), without=without)
        for type_, count in added.items():
            if there.get(type_, 0) + count > MAX_REST:
                raise _too_many(type_)
    generation = await raise_generation(work.connection, work.tenant_no)
    await put_subscriptions(work.connection, work.tenant_no, new, generation, are_paused=are_paused)


def _too_many(type_: str) -> InvalidBody:
    message = (
        f"At most {MAX_REST:,} jobs may start by events of the type {type_} without an exact value in their filter:"
        ' each of them is tried for every event. Add one, such as {"data": {"region": ["eu"]}}, or an exact `source`.'
    )
    return InvalidBody(message, faults=(Fault("/schedule/event/filter", message),))


def _too_costly(event: Event) -> InvalidBody:
    message = (
        f"The event {event.id!r} has too many values for the number of filters that are tried for its type: send its"
        " data in several events, or give the filters exact values."
    )
    return InvalidBody(message, faults=(Fault("/data", message),))


def _row(job_id: JobId, version: int, spec: JobSpec) -> NewSubscription:
    rule = rule_of(spec)
    assert rule is not None
    return NewSubscription(job_id, version, rule.type, is_indexed(rule.pattern))
