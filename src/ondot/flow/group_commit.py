"""①b Simple creates that arrive together share a commit (S1, P1, P2).

The first request is stored at once, so that none waits for company. Requests that arrive meanwhile gather, and are
stored in one statement when the first is done. So the busier it is, the more jobs a commit carries, and fifty callers
cost the database little more than one. Each is acknowledged after the COMMIT that holds its own jobs. The response to a
simple job is known before the job is stored, and is stored with the idempotency key.

A request that cannot share goes alone, as every other request does: one whose key is taken, to find the earlier
response, and each of those whose shared statement was refused, so that an error reaches only the request that caused
it. If the database is away, each request gets that error, as it would have alone.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Final
from uuid import UUID

from ondot.flow.dispatch import Dispatcher
from ondot.flow.idempotency import Idempotency
from ondot.flow.new_jobs import NOBODY, Accepted, accept_once, is_simple, new_once_jobs, pools_to_wake, store_once_jobs
from ondot.flow.submit import OnCreated, Render, submit
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
"""A request with more jobs is a batch of its own."""
MOST_BYTES: Final = 64 * 1024
"""Of payloads: a request with more takes longer, and small ones do not wait for it."""


@dataclass(frozen=True, slots=True)
class _Request:
    specs: Sequence[JobSpec]
    render: Render
    idempotency: Idempotency | None
    on_created: OnCreated | None
    moment: Moment
    response: asyncio.Future[str | None]
    """None: it has to go alone."""
    created_by: UUID | None

    @property
    def is_small(self) -> bool:
        return len(self.specs) <= MOST_JOBS and sum(len(bytes(spec.payload)) for spec in self.specs) <= MOST_BYTES


@dataclass(frozen=True, slots=True)
class _Entry:
    """A request, the jobs to store for it, and its response."""

    request: _Request
    jobs: Sequence[NewOnceJob]
    accepted: list[Accepted]
    text: str


class GroupCommit:
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
        render: Render,
        idempotency: Idempotency | None = None,
        on_created: OnCreated | None = None,
        moment: Moment,
        by: By | None = None,
        created_by: UUID | None = None,
    ) -> str:
        """As `flow.submit`: store these jobs, all or none; returns the response."""
        text = None
        if all(is_simple(spec) for spec in specs):
            response = asyncio.get_running_loop().create_future()
            request = _Request(specs, render, idempotency, on_created, moment, response, created_by)
            text = await self._submit_shared(tenant_no, request)
        if text is None:
            text = await submit(
                self._database,
                self._dispatcher,
                tenant_no,
                specs,
                render=render,
                idempotency=idempotency,
                on_created=on_created,
                moment=moment,
                by=by,
                created_by=created_by,
            )
        return text

    async def _submit_shared(self, tenant_no: TenantNo, request: _Request) -> str | None:
        if not request.is_small:
            try:
                await self._store(tenant_no, [request])
            except DATABASE_ERROR:
                return None
            return await request.response
        self._waiting.setdefault(tenant_no, deque()).append(request)
        if tenant_no not in self._writing:
            # A task of its own: a caller that disconnects cancels no other caller's job.
            self._writing[tenant_no] = asyncio.create_task(self._write(tenant_no), name="group commit")
        return await request.response

    async def _write(self, tenant_no: TenantNo) -> None:
        """Store until no request waits."""
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
                except Exception:  # noqa: BLE001 - each goes alone, and the one at fault meets it again
                    for request in requests:
                        if not request.response.done():
                            request.response.set_result(None)
                except BaseException:
                    for request in (*requests, *waiting):
                        request.response.cancel()
                    raise
        finally:
            del self._writing[tenant_no]
            del self._waiting[tenant_no]

    async def _store(self, tenant_no: TenantNo, requests: Sequence[_Request]) -> None:
        """One statement for all; in a transaction with their idempotency keys, if some have one."""
        is_keyed = any(request.idempotency is not None for request in requests)
        specs = [spec for request in requests for spec in request.specs]
        async with self._database.connection() as connection:
            numbers = await self._database.pools.numbers(connection, tenant_no, {spec.pool for spec in specs})
        moment = self._database.clock.moment(max(request.moment.lag_s for request in requests))
        now = moment.at
        creators = NOBODY
        if any(request.created_by is not None for request in requests):
            creators = [request.created_by for request in requests for _ in request.specs]
        jobs = new_once_jobs(self._database, specs, numbers, now, creators)
        if len(specs) > MOST_REQUESTS or not requests[0].is_small:
            # Megabytes to render: other requests must not wait for it, and no transaction is open yet.
            entries = await asyncio.to_thread(_entries, requests, jobs, now)
        else:
            entries = _entries(requests, jobs, now)
        async with self._database.transaction() if is_keyed else self._database.connection() as connection:
            if is_keyed:
                entries = await _take_keys(connection, tenant_no, entries)
            if entries:
                await store_once_jobs(
                    connection,
                    self._database.clock,
                    tenant_no,
                    [job for entry in entries for job in entry.jobs],
                    [*(entry.request.moment for entry in entries), moment],
                )
        for entry in entries:
            self._dispatcher.wake(pools_to_wake(entry.jobs))
            if entry.request.on_created is not None:
                entry.request.on_created(entry.accepted)
            if not entry.request.response.done():
                entry.request.response.set_result(entry.text)
        for request in requests:
            if not request.response.done():
                request.response.set_result(None)


def _refuse(requests: Sequence[_Request], error: Callable[[], Exception]) -> None:
    """Each gets an exception of its own: a traceback grows with every place that it is raised in."""
    for request in requests:
        if not request.response.done():
            request.response.set_exception(error())


def _entries(requests: Sequence[_Request], jobs: Sequence[NewOnceJob], now: datetime) -> list[_Entry]:
    """Each request with its own jobs, which are in the order of the requests."""
    entries: list[_Entry] = []
    left = iter(jobs)
    for request in requests:
        own = list(islice(left, len(request.specs)))
        accepted = [accept_once(job, now) for job in own]
        entries.append(_Entry(request, own, accepted, request.render(accepted)))
    return entries


async def _take_keys(connection: Connection, tenant_no: TenantNo, entries: Sequence[_Entry]) -> list[_Entry]:
    """The entries without a key, and those whose key is now theirs; of two with the same key the first."""
    keyed: dict[str, _Entry] = {}
    others: list[_Entry] = []
    for entry in entries:
        if entry.request.idempotency is None:
            others.append(entry)
        else:
            keyed.setdefault(entry.request.idempotency.key, entry)
    rows = [
        (key, entry.request.idempotency.request_hash, entry.text)
        for key, entry in keyed.items()
        if entry.request.idempotency is not None
    ]
    taken = await take_keys(connection, tenant_no, rows)
    return [*others, *(keyed[key] for key in taken)]
