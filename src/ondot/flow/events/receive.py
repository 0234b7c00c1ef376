"""Receive events: store them, and start the executions of the jobs that they match, before the answer (S11, P1, P2).

The event and its executions commit together, so a 202 means that they exist. The first statement of the transaction
shares the lock of the tenant's subscriptions, the second stores everything, if the subscriptions are still those that
were matched; otherwise they are read and matched again. The same source and id within 7 days gets the first answer.

Requests that arrive together share a commit, as in `flow.group_commit`: the first is stored at once, those that arrive
meanwhile gather. A request that cannot share goes alone, so that an error reaches only the request that caused it.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from msgspec import structs

from ondot.flow.dispatch import Dispatcher
from ondot.flow.events.cancel_on import Cancelling, cancel_on
from ondot.flow.events.subscriptions import Known, Subscription, Subscriptions
from ondot.flow.events.waits import end_waits
from ondot.flow.events.windows import Arrived, Gathered, gather
from ondot.model.errors import Unavailable
from ondot.model.event import Event
from ondot.model.event_payload import make_payload
from ondot.model.event_rules import cancel_key, cancel_keys
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.event_windows import add_cancel_keys
from ondot.store.events import Answer, Match, NewEvent, find_answers, receive_events
from ondot.store.subscriptions import share_subscriptions
from ondot.telemetry.metrics import EVENTS_MATCHED, EVENTS_RECEIVED, EVENTS_REPEATED

MOST_REQUESTS: Final = 500
MOST_BYTES: Final = 64 * 1024
"""A request with more goes alone: small ones do not wait for it."""
TRIED_AT_ONCE: Final = 5_000
"""Patterns that are tried on the event loop: some milliseconds. More are tried in a thread."""


@dataclass(frozen=True, slots=True)
class _Request:
    events: Sequence[Event]
    answers: asyncio.Future[list[Answer] | None]
    """None: it has to go alone."""


@dataclass(frozen=True, slots=True)
class _Draft:
    """What is stored for events, by the subscriptions of one generation."""

    generation: int
    new: list[NewEvent]
    matches: list[Match] = field(default_factory=list)
    collected: list[Arrived] = field(default_factory=list)
    """Of jobs with `debounce` or `batch`: their executions are made, or found, afterwards."""
    keys: dict[tuple[UUID, JobId], list[UUID]] = field(default_factory=dict)
    """By which values `cancel_on` finds the executions of an event and a job."""
    cancelling: list[Cancelling] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stored:
    """What a transaction has stored, to be reported after its commit."""

    answers: list[Answer]
    wakes: list[tuple[PoolNo, datetime]]
    runs: set[ExecutionId]
    """Of workflows: a step of each waited for one of the events."""
    received: int
    repeated: int
    matched: int


class EventReceiver:
    """The events that one process receives."""

    def __init__(
        self,
        database: Database,
        dispatcher: Dispatcher,
        on_arrivals: Callable[[Collection[UUID]], None] = lambda _: None,
    ) -> None:
        """`on_arrivals`: called after the commit with the runs of which a step waited for an event."""
        self._database = database
        self._dispatcher = dispatcher
        self._on_arrivals = on_arrivals
        self.subscriptions = Subscriptions(database)
        self._waiting: dict[TenantNo, deque[_Request]] = {}
        self._writing: dict[TenantNo, asyncio.Task[None]] = {}

    async def receive(self, tenant_no: TenantNo, events: Sequence[Event]) -> list[Answer]:
        """Store events, all or none; returns an answer to each, in their order."""
        if sum(len(event.text) for event in events) > MOST_BYTES:
            return await self._store(tenant_no, events)
        request = _Request(events, asyncio.get_running_loop().create_future())
        self._waiting.setdefault(tenant_no, deque()).append(request)
        if tenant_no not in self._writing:
            # A task of its own: a sender that disconnects cancels no other sender's event.
            self._writing[tenant_no] = asyncio.create_task(self._write(tenant_no), name="receive events")
        answers = await request.answers
        return await self._store(tenant_no, events) if answers is None else answers

    async def count_pools(self, tenant_no: TenantNo, events: Sequence[Event]) -> dict[str, int]:
        """How many executions these events would start now, by pool; a guess, if a subscription changes meanwhile."""
        known = await self.subscriptions.get(tenant_no)
        return dict(Counter(job.pool for jobs in await _find(known, events) for job in jobs if not job.is_paused))

    async def _write(self, tenant_no: TenantNo) -> None:
        """Store until no request waits."""
        waiting = self._waiting[tenant_no]
        try:
            while waiting:
                requests = [waiting.popleft() for _ in range(min(len(waiting), MOST_REQUESTS))]
                try:
                    answers = iter(await self._store(tenant_no, [event for one in requests for event in one.events]))
                    for request in requests:
                        own = [next(answers) for _ in request.events]
                        if not request.answers.done():
                            request.answers.set_result(own)
                except Unavailable as error:
                    for request in requests:
                        if not request.answers.done():
                            request.answers.set_exception(Unavailable(error.message))
                except Exception:  # noqa: BLE001 - each goes alone, and the one at fault meets it again
                    for request in requests:
                        if not request.answers.done():
                            request.answers.set_result(None)
                except BaseException:
                    for request in (*requests, *waiting):
                        request.answers.cancel()
                    raise
        finally:
            del self._writing[tenant_no]
            del self._waiting[tenant_no]

    async def _store(self, tenant_no: TenantNo, events: Sequence[Event]) -> list[Answer]:
        draft = await self._draft(await self.subscriptions.get(tenant_no), events)
        async with self._database.transaction() as connection:
            await share_subscriptions(connection, tenant_no)
            stored = await self._write_draft(connection, tenant_no, draft, events)
        self.report(stored)
        return stored.answers

    async def store(
        self, connection: Connection, tenant_no: TenantNo, events: Sequence[Event], *, may_match: bool = True
    ) -> Stored:
        """As `receive`, in a transaction whose first statement has shared the subscriptions. Call `report` after its
        commit. `may_match`: whether the events start anything."""
        known = await self.subscriptions.read(connection, tenant_no)
        draft = await self._draft(known, events) if may_match else self._draft_without_matches(known, events)
        return await self._write_draft(connection, tenant_no, draft, events)

    def report(self, stored: Stored) -> None:
        """After the commit: wake workers, advance runs, count."""
        self._dispatcher.wake(stored.wakes)
        if stored.runs:
            self._on_arrivals(stored.runs)
        EVENTS_RECEIVED.inc(stored.received)
        EVENTS_REPEATED.inc(stored.repeated)
        EVENTS_MATCHED.inc(stored.matched)

    async def _write_draft(
        self, connection: Connection, tenant_no: TenantNo, draft: _Draft, events: Sequence[Event]
    ) -> Stored:
        received = await receive_events(connection, tenant_no, draft.generation, draft.new, draft.matches)
        if received is None:
            draft = await self._draft(await self.subscriptions.read(connection, tenant_no), events)
            received = await receive_events(connection, tenant_no, draft.generation, draft.new, draft.matches)
            assert received is not None, "no subscription changes while they are locked"
        fresh, now = received.fresh, received.now
        repeated = [new for new in draft.new if new.id not in fresh]
        known = await find_answers(connection, tenant_no, {new.event.key for new in repeated}) if repeated else {}
        started = [match for match in draft.matches if match.execution_id is not None and match.event_id in fresh]
        gathered = await self._act(connection, tenant_no, draft, fresh, started)
        runs: set[ExecutionId] = set()
        if received.has_waits and (new := [one.event for one in draft.new if one.id in fresh]):
            runs = await end_waits(connection, tenant_no, new)
        return Stored(
            _answers(draft, fresh, known, gathered),
            [*((match.pool_no, now) for match in started), *gathered.wakes],
            runs,
            len(fresh),
            len(repeated),
            sum(new.matched for new in draft.new if new.id in fresh),
        )

    async def _act(
        self,
        connection: Connection,
        tenant_no: TenantNo,
        draft: _Draft,
        fresh: frozenset[UUID],
        started: Sequence[Match],
    ) -> Gathered:
        """What the events do beside starting an execution each: they cancel, and enter windows."""
        # First: it acts on executions that were committed before.
        if cancelling := [hit for hit in draft.cancelling if hit.event_id in fresh]:
            await cancel_on(connection, tenant_no, cancelling)
        keys = [
            (match.job_id, key, match.execution_id)
            for match in started
            if match.execution_id is not None
            for key in draft.keys.get((match.event_id, match.job_id), ())
        ]
        if keys:
            await add_cancel_keys(connection, tenant_no, keys)
        collected = [one for one in draft.collected if one.event_id in fresh]
        return await gather(connection, self._database, tenant_no, collected) if collected else Gathered()

    async def _draft(self, known: Known, events: Sequence[Event]) -> _Draft:
        generation = known.generation
        found = await _find(known, events)
        ids = self._database.clock.new_ids(len(events))
        new = [NewEvent(id_, event, len(jobs)) for id_, event, jobs in zip(ids, events, found, strict=True)]
        pairs = [(one, job) for one, jobs in zip(new, found, strict=True) for job in jobs]
        executions = self._database.clock.new_ids(len(pairs))
        draft = _Draft(generation, new)
        for (one, job), id_ in zip(pairs, executions, strict=True):
            match = _match(one, job, ExecutionId(id_))
            if match.outcome == "started":
                if job.rule.collects:
                    draft.collected.append(_arrived(one, job, match))
                    match = structs.replace(match, execution_id=None, payload=None)
                elif job.rule.cancel_on:
                    draft.keys[one.id, job.job_id] = cancel_keys(job.rule.cancel_on, one.event.value)
            draft.matches.append(match)
        for one in new:
            for job_id, rule in known.match_cancels(one.event):
                if (key := cancel_key(rule.same, one.event.value)) is not None:
                    draft.cancelling.append(Cancelling(one.id, one.event.type, job_id, key))
        return draft

    def _draft_without_matches(self, known: Known, events: Sequence[Event]) -> _Draft:
        ids = self._database.clock.new_ids(len(events))
        return _Draft(known.generation, [NewEvent(id_, event, 0) for id_, event in zip(ids, events, strict=True)])


async def _find(known: Known, events: Sequence[Event]) -> list[list[Subscription]]:
    """The jobs that each event matches. If they change meanwhile, so does the generation."""
    if sum(known.index.count_tries(event.type) * event.size for event in events) <= TRIED_AT_ONCE:
        return known.match(events)
    async with known.in_use:
        return await asyncio.to_thread(known.match, events)


def _match(new: NewEvent, job: Subscription, execution_id: ExecutionId) -> Match:
    outcome = "started" if not job.is_paused else "skipped" if job.missed == "skip" else "held"
    return Match(
        new.id,
        job.job_id,
        execution_id if outcome == "started" else None,
        outcome,
        job.version,
        job.pool_no,
        job.priority_class,
        job.stages,
        job.start_within_s,
        make_payload(job.payload, new.event) if outcome == "started" else None,
    )


def _arrived(new: NewEvent, job: Subscription, match: Match) -> Arrived:
    return Arrived(
        new.id,
        new.event.value,
        job.job_id,
        job.version,
        job.pool_no,
        job.priority_class,
        job.stages,
        job.start_within_s,
        match.payload,
        job.rule.debounce,
        job.rule.batch,
        job.rule.cancel_on,
    )


def _answers(draft: _Draft, fresh: frozenset[UUID], known: dict[UUID, Answer], gathered: Gathered) -> list[Answer]:
    """To each event; one that was sent before, or twice in this request, gets the first answer."""
    started: dict[UUID, list[ExecutionId]] = {}
    for match in draft.matches:
        id_ = match.execution_id or gathered.taken.get((match.event_id, match.job_id))
        if id_ is not None:
            started.setdefault(match.event_id, []).append(id_)
    return [
        Answer(new.id, new.matched, started.get(new.id, [])) if new.id in fresh else known[new.event.key]
        for new in draft.new
    ]
