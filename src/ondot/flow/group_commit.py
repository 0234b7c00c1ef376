"""①b Simple creates of one moment share a commit (S1, P1, P2): all that came while another was under way go as one.

The first goes at once, so that nobody waits for company; those that come meanwhile gather, and go when it is back. So
the busier it is, the more jobs a commit carries, and fifty callers cost the database little more than one. Each is
acknowledged after the COMMIT that holds its own jobs. Of simple jobs the answer is known before they are stored, and is
stored with the idempotency key.

Whoever cannot go with the others goes alone, the way of every other request: one whose key is taken already, to find
the earlier answer, and each of those whose common statement was refused, so that a refusal reaches only whom it
concerns. If the database is away each is told so, as it would have been alone.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final

from ondot.flow.dispatch import Dispatcher
from ondot.flow.submit import (
    Accepted,
    Answer,
    Idempotency,
    Made,
    accepted_of,
    is_simple,
    new_once_jobs,
    store_once_jobs,
    submit,
    wakes_of,
)
from ondot.model.errors import Unavailable
from ondot.model.ids import TenantNo
from ondot.model.job import JobSpec
from ondot.store.audit import By
from ondot.store.clock import ClockStepped, Moment
from ondot.store.connection import DATABASE_ERROR, Connection
from ondot.store.database import Database
from ondot.store.idempotency import take_keys
from ondot.store.jobs import NewOnceJob

MOST_REQUESTS: Final = 500
MOST_JOBS: Final = 20
"""A request with more is a batch of its own already."""
MOST_BYTES: Final = 64 * 1024
"""Of payloads: larger ones take their time, and small ones do not wait for them."""


@dataclass(frozen=True, slots=True)
class _Request:
    specs: Sequence[JobSpec]
    answer: Answer
    idempotency: Idempotency | None
    made: Made | None
    moment: Moment
    answered: asyncio.Future[str | None]
    """None: it has to go alone."""

    @property
    def is_small(self) -> bool:
        return len(self.specs) <= MOST_JOBS and sum(len(bytes(spec.payload)) for spec in self.specs) <= MOST_BYTES


@dataclass(frozen=True, slots=True)
class _Going:
    """A request on its way: what is stored for it, and what it will be told."""

    request: _Request
    jobs: Sequence[NewOnceJob]
    accepted: list[Accepted]
    text: str


class Together:
    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._waiting: dict[TenantNo, deque[_Request]] = {}
        self._writing: dict[TenantNo, asyncio.Task[None]] = {}

    async def submit(
        self,
        tenant_no: TenantNo,
        specs: Sequence[JobSpec],
        *,
        answer: Answer,
        idempotency: Idempotency | None = None,
        made: Made | None = None,
        moment: Moment,
        by: By | None = None,
    ) -> str:
        """As `flow.submit`: store these jobs, all or none; gives the answer."""
        text = None
        if all(is_simple(spec) for spec in specs):
            answered = asyncio.get_running_loop().create_future()
            text = await self._together(tenant_no, _Request(specs, answer, idempotency, made, moment, answered))
        if text is None:
            text = await submit(
                self._database,
                self._dispatcher,
                tenant_no,
                specs,
                answer=answer,
                idempotency=idempotency,
                made=made,
                moment=moment,
                by=by,
            )
        return text

    async def _together(self, tenant_no: TenantNo, request: _Request) -> str | None:
        if not request.is_small:
            try:
                await self._store(tenant_no, [request])
            except DATABASE_ERROR:
                return None
            return await request.answered
        self._waiting.setdefault(tenant_no, deque()).append(request)
        if tenant_no not in self._writing:
            # A task of its own: a caller that goes away takes nobody else's job with it.
            self._writing[tenant_no] = asyncio.create_task(self._write(tenant_no), name="submit together")
        return await request.answered

    async def _write(self, tenant_no: TenantNo) -> None:
        """Until nobody waits."""
        waiting = self._waiting[tenant_no]
        try:
            while waiting:
                requests = [waiting.popleft() for _ in range(min(len(waiting), MOST_REQUESTS))]
                try:
                    await self._store(tenant_no, requests)
                except Unavailable as error:
                    _refuse(requests, partial(Unavailable, error.message))
                except ClockStepped:
                    _refuse(requests, ClockStepped)
                except Exception:  # noqa: BLE001 - each meets what is wrong with its own again, and it alone
                    for request in requests:
                        if not request.answered.done():
                            request.answered.set_result(None)
                except BaseException:
                    for request in (*requests, *waiting):
                        request.answered.cancel()
                    raise
        finally:
            del self._writing[tenant_no]
            del self._waiting[tenant_no]

    async def _store(self, tenant_no: TenantNo, requests: Sequence[_Request]) -> None:
        """One statement for all; in a transaction with their keys, if some have one."""
        is_keyed = any(request.idempotency is not None for request in requests)
        specs = [spec for request in requests for spec in request.specs]
        async with self._database.connection() as connection:
            numbers = await self._database.pools.numbers(connection, tenant_no, {spec.pool for spec in specs})
        moment = self._database.clock.moment(max(request.moment.lag_s for request in requests))
        now = moment.at
        jobs = new_once_jobs(self._database, specs, numbers, now)
        if len(specs) > MOST_REQUESTS or not requests[0].is_small:
            # Megabytes to render: other requests must not wait for it, and no transaction is open yet.
            going = await asyncio.to_thread(_going, requests, jobs, now)
        else:
            going = _going(requests, jobs, now)
        async with self._database.transaction() if is_keyed else self._database.connection() as connection:
            if is_keyed:
                going = await _with_keys(connection, tenant_no, going)
            if going:
                await store_once_jobs(
                    connection,
                    self._database.clock,
                    tenant_no,
                    [job for each in going for job in each.jobs],
                    [*(each.request.moment for each in going), moment],
                )
        for each in going:
            self._dispatcher.wake(wakes_of(each.jobs))
            if each.request.made is not None:
                each.request.made(each.accepted)
            if not each.request.answered.done():
                each.request.answered.set_result(each.text)
        for request in requests:
            if not request.answered.done():
                request.answered.set_result(None)


def _refuse(requests: Sequence[_Request], error: Callable[[], Exception]) -> None:
    """Each gets an exception of its own: a traceback grows with every place that it is raised in."""
    for request in requests:
        if not request.answered.done():
            request.answered.set_exception(error())


def _going(requests: Sequence[_Request], jobs: Sequence[NewOnceJob], now: datetime) -> list[_Going]:
    """Each request with its own of the jobs, which come in the order of the requests."""
    going: list[_Going] = []
    left = iter(jobs)
    for request in requests:
        own = list(islice(left, len(request.specs)))
        accepted = [accepted_of(job, now) for job in own]
        going.append(_Going(request, own, accepted, request.answer(accepted)))
    return going


async def _with_keys(connection: Connection, tenant_no: TenantNo, going: Sequence[_Going]) -> list[_Going]:
    """Those without a key, and those whose key is now theirs; of two with the same key the first."""
    keyed: dict[str, _Going] = {}
    others: list[_Going] = []
    for each in going:
        if each.request.idempotency is None:
            others.append(each)
        else:
            keyed.setdefault(each.request.idempotency.key, each)
    rows = [
        (key, each.request.idempotency.request_hash, each.text)
        for key, each in keyed.items()
        if each.request.idempotency is not None
    ]
    taken = await take_keys(connection, tenant_no, rows)
    return [*others, *(keyed[key] for key in taken)]
