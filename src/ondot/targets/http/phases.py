"""The three timeouts of an HTTP call (E7): for the connection, for the first byte of the answer, for all of it.

Connecting may take 10 seconds unless the job sets another limit: a receiver that is up accepts at once. The first byte
has no limit unless the job sets one. aiohttp reports the steps of a request by callbacks in the task that makes it; a
context variable leads from there to the call.
"""

import asyncio
from contextvars import ContextVar
from types import SimpleNamespace, TracebackType
from typing import Any, Final

import aiohttp

from ondot.model.execution import Outcome
from ondot.model.outcome import AttemptError, Failed, timed_out
from ondot.model.target import HttpTarget

CONNECT_TIMEOUT_S: Final = 10.0

_CURRENT: ContextVar["Phases"] = ContextVar("ondot_http_phases")


class Phases:
    """Surrounds a request until its answer starts; raises TimeoutError like `asyncio.timeout`."""

    def __init__(self, spec: HttpTarget, total_s: float | None) -> None:
        self.connected = False
        self.was_sent = False
        """Whether a receiver may have seen the call."""
        self._is_waiting = False
        wanted_s = CONNECT_TIMEOUT_S if spec.connect_timeout_s is None else spec.connect_timeout_s
        self._connect_s = wanted_s if total_s is None else min(wanted_s, total_s)
        self._first_byte_s = spec.first_byte_timeout_s
        self._timeout = asyncio.timeout(self._connect_s)

    def restart(self) -> None:
        """The next request of the same call: a redirect is followed."""
        self.was_sent = True
        self.connected = self._is_waiting = False
        self._timeout = asyncio.timeout(self._connect_s)

    async def __aenter__(self) -> "Phases":
        _CURRENT.set(self)
        await self._timeout.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._timeout.__aexit__(kind, error, trace)

    @property
    def expired(self) -> bool:
        return self._timeout.expired()

    def wait_for_a_connection(self) -> None:
        """All connections that the worker may have to this host are busy: not the receiver's fault, so no timeout."""
        self._is_waiting = True
        self._within(None)

    def connect(self) -> None:
        self._is_waiting = False
        self._within(self._connect_s)

    def send(self) -> None:
        self.connected, self.was_sent, self._is_waiting = True, True, False
        self._within(self._first_byte_s)

    def report(self) -> Failed:
        """Which of the timeouts it was."""
        if not self.connected:
            code, timeout_s = "connect_timeout", self._connect_s
            message = f"No connection to the receiver within {timeout_s:g} s (the connect timeout)."
        else:
            code, timeout_s = "first_byte_timeout", self._first_byte_s or 0.0
            message = f"The receiver sent no answer within {timeout_s:g} s (the first-byte timeout)."
        return Failed(AttemptError(code, message, facts={"timeout_s": timeout_s}), outcome=Outcome.TIMED_OUT)

    def report_total(self, total_s: float) -> Failed:
        """The timeout of the whole call is over, which may be before there was a connection."""
        return timed_out(total_s) if self.connected or self._is_waiting else self.report()

    def _within(self, seconds: float | None) -> None:
        if not self.expired:
            self._timeout.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)


def tracing() -> aiohttp.TraceConfig:
    """Callbacks of the session, each for the call that it works for."""

    async def queued(*_: Any) -> None:
        _CURRENT.get().wait_for_a_connection()

    async def connecting(_: aiohttp.ClientSession, __: SimpleNamespace, ___: Any) -> None:
        _CURRENT.get().connect()

    async def connected(_: aiohttp.ClientSession, __: SimpleNamespace, ___: Any) -> None:
        _CURRENT.get().send()

    trace = aiohttp.TraceConfig()
    trace.on_connection_queued_start.append(queued)
    trace.on_connection_create_start.append(connecting)
    trace.on_connection_create_end.append(connected)
    trace.on_connection_reuseconn.append(connected)
    return trace
