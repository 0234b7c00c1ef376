"""Receive events: store them, and start the executions of the jobs that they match, before the answer (S11, P1, P2).

The event and its executions commit together, so a 202 means that they exist. The first statement of the transaction
shares the lock of the tenant's subscriptions, the second stores everything, if the subscriptions are still those that
were matched; otherwise they are read and matched again. The same source and id within 7 days gets the first answer.

Requests that arrive together share a commit, as in `flow.group_commit`: the first is stored at once, those that arrive
meanwhile gather. A request that cannot share goes alone, so that an error reaches only the request that caused it.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from ondot.flow.dispatch import Dispatcher
from ondot.flow.events.subscriptions import Known, Subscription, Subscriptions
from ondot.model.errors import Unavailable
from ondot.model.event import Event
from ondot.model.event_payload import make_payload
from ondot.model.ids import ExecutionId, TenantNo
from ondot.store.database import Database
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
    matches: list[Match]


class EventReceiver:
    """The events that one process receives."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._dispatcher = dispatcher
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
            stored = await receive_events(connection, tenant_no, draft.generation, draft.new, draft.matches)
            if stored is None:
                draft = await self._draft(await self.subscriptions.read(connection, tenant_no), events)
                stored = await receive_events(connection, tenant_no, draft.generation, draft.new, draft.matches)
                assert stored is not None, "no subscription changes while they are locked"
            fresh, now = stored
            repeated = [new for new in draft.new if new.id not in fresh]
            known = await find_answers(connection, tenant_no, {new.event.key for new in repeated}) if repeated else {}
        started = [match for match in draft.matches if match.execution_id is not None and match.event_id in fresh]
        self._dispatcher.wake((match.pool_no, now) for match in started)
        EVENTS_RECEIVED.inc(len(fresh))
        EVENTS_REPEATED.inc(len(repeated))
        EVENTS_MATCHED.inc(sum(new.matched for new in draft.new if new.id in fresh))
        return _answers(draft, fresh, known)

    async def _draft(self, known: Known, events: Sequence[Event]) -> _Draft:
        generation = known.generation
        found = await _find(known, events)
        ids = self._database.clock.new_ids(len(events))
        new = [NewEvent(id_, event, len(jobs)) for id_, event, jobs in zip(ids, events, found, strict=True)]
        pairs = [(one, job) for one, jobs in zip(new, found, strict=True) for job in jobs]
        executions = self._database.clock.new_ids(len(pairs))
        matches = [_match(one, job, ExecutionId(id_)) for (one, job), id_ in zip(pairs, executions, strict=True)]
        return _Draft(generation, new, matches)


async def _find(known: Known, events: Sequence[Event]) -> list[list[Subscription]]:
    """The jobs that each event matches. If they change meanwhile, so does the generation."""
    if sum(known.index.count_tries(event.type) for event in events) <= TRIED_AT_ONCE:
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


def _answers(draft: _Draft, fresh: frozenset[UUID], known: dict[UUID, Answer]) -> list[Answer]:
    """To each event; one that was sent before, or twice in this request, gets the first answer."""
    started: dict[UUID, list[ExecutionId]] = {}
    for match in draft.matches:
        if match.execution_id is not None:
            started.setdefault(match.event_id, []).append(match.execution_id)
    return [
        Answer(new.id, new.matched, started.get(new.id, [])) if new.id in fresh else known[new.event.key]
        for new in draft.new
    ]
