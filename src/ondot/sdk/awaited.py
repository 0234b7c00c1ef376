"""How a program waits for jobs to end (D2): one request at a time serves all handles of a process, in each event loop.

The request waits at the server for the first end among all awaited jobs. When a handle is awaited that the request does
not have, the next request has it. A server that restarts, or whose database is away, is asked again for up to AWAY_S.
"""

import asyncio
import contextvars
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from ondot.model.errors import NotFound, OndotError, Unavailable
from ondot.sdk.client import Client

WAIT_S: Final = 25.0
MOST_JOBS: Final = 5_000
"""A server takes no more in one request. Further ones take turns, TURN_S each."""
TURN_S: Final = 1.0
NEXT_REQUEST_S: Final = 0.02
"""Handles that are awaited one after another within this time share a request."""
AWAY_S: Final = 60.0
RETRY_S: Final = 0.5

Ended = Mapping[str, Any]
"""A job that has ended, as the API shows it: `execution_id` and `state` are None if it never ran."""


class AwaitedJobs:
    """The jobs that this process awaits in one event loop, through one client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._awaited: dict[str, set[asyncio.Future[Ended]]] = {}
        self._changed = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None

    async def end_of(self, job_id: str) -> Ended:
        """Wait until the job has ended, or its run is BLOCKED and waits for a person. Raises NotFound."""
        future: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(job_id, set()).add(future)
        self._changed.set()
        if self._asking is None:
            # In a context of its own: it asks for all handles, and belongs to no one's trace or transaction.
            self._asking = asyncio.create_task(self._ask(), name="ondot awaited jobs", context=contextvars.Context())
        try:
            return await future
        finally:
            futures = self._awaited.get(job_id, set())
            futures.discard(future)
            if not futures:
                self._awaited.pop(job_id, None)
            if not self._awaited:
                self._changed.set()

    async def end_now(self, job_id: str) -> Ended:
        """Ask once. Raises TimeoutError if the job has not ended, and NotFound."""
        answer = await self._client.wait_for_jobs([job_id], 0)
        if answer["unknown"]:
            await self._client.get_job(job_id)
        if not answer["items"]:
            raise TimeoutError
        ended: Ended = answer["items"][0]
        return ended

    async def _ask(self) -> None:
        away_since_s: float | None = None
        try:
            while self._awaited:
                try:
                    await self._ask_once()
                    away_since_s = None
                except Unavailable as error:
                    away_since_s = away_since_s or monotonic()
                    if monotonic() - away_since_s > AWAY_S:
                        self._fail(error)
                    await asyncio.sleep(RETRY_S)
                except OndotError as error:
                    self._fail(error)  # such as a key without the right to read jobs: for all of them
        finally:
            self._asking = None

    async def _ask_once(self) -> None:
        """One request; given up without an answer when further handles are awaited, or none is left."""
        self._changed.clear()
        ids = list(self._awaited)[:MOST_JOBS]
        for id_ in ids if len(ids) < len(self._awaited) else ():
            self._awaited[id_] = self._awaited.pop(id_)  # to the end of the line
        wait_s = WAIT_S if len(ids) == len(self._awaited) else TURN_S
        asking = asyncio.ensure_future(self._client.wait_for_jobs(ids, wait_s))
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({asking}, timeout=NEXT_REQUEST_S)
            await asyncio.wait({asking, changed}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                return
            answer = await asking
        finally:
            changed.cancel()
            if asking.cancel():
                with suppress(asyncio.CancelledError, OndotError):
                    await asking
        for ended in answer["items"]:
            for future in self._awaited.pop(ended["job_id"], ()):
                if not future.done():
                    future.set_result(ended)
        for id_ in answer["unknown"]:
            await self._report_unknown(id_)

    async def _report_unknown(self, id_: str) -> None:
        """Ask for the job itself: the error says whether it may be no longer kept."""
        try:
            await self._client.get_job(id_)
        except NotFound as error:
            for future in self._awaited.pop(id_, ()):
                if not future.done():
                    future.set_exception(error)

    def _fail(self, error: OndotError) -> None:
        for futures in self._awaited.values():
            for future in futures:
                if not future.done():
                    future.set_exception(error)
        self._awaited.clear()


def awaited_jobs(client: Client) -> AwaitedJobs:
    """Those of the running loop."""
    of_loop = client.of_loop()
    if of_loop.awaited is None:
        of_loop.awaited = AwaitedJobs(client)
    return of_loop.awaited
