"""HTTP calls (E3, E4, E7, E8, T3): the payload is the JSON body, the facts of the attempt are headers, and a signature
over both shows the receiver that the call is ondot's (`model.signature`).

Only 2xx succeeds. Redirects are followed only if the job says so (`redirects`). One call is otherwise one request: a
call without an answer is reported and not repeated here, so that every further call has a recorded cause. Only the
first 64 KiB of an answer are read. A cancelled call is dropped at once: its receiver cannot be asked to end, and may
still have done its work. Proxies, cookies and `.netrc` of the worker's environment are ignored: a job runs the same
everywhere. Connections are shared only between calls that may reach the same addresses.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from ondot import __version__
from ondot.model.addresses import PUBLIC, Reach
from ondot.model.errors import NoSecretKey, OndotError
from ondot.model.headers import why_reserved
from ondot.model.ids import TenantNo
from ondot.model.outcome import AttemptError, Cancelled, Failed, Succeeded
from ondot.model.secret import Hidden
from ondot.model.signature import sign
from ondot.model.target import HttpTarget
from ondot.ports.target import Call, Target
from ondot.targets.addresses import NO_RIGHT, Allowed, PrivateAddress, ReachOf
from ondot.targets.cancelling import not_called
from ondot.targets.facts import facts_of
from ondot.targets.http.addresses import AllowedResolver
from ondot.targets.http.answer import MAX_DETAIL, Answer, read_answer
from ondot.targets.http.bounded import BoundedConnection, TooMuch
from ondot.targets.http.phases import Phases, tracing
from ondot.targets.http.redirects import MAX_REDIRECTS, Hop, NotFollowed, follow, is_redirect
from ondot.targets.text import one_line

LONGEST_RETRY_AFTER_S: Final = 86_400.0
KEEP_ALIVE_S: Final = 4.0
"""Shorter than the 5 s after which common servers close an idle connection: a request must not meet the close."""
MAX_REACHES: Final = 64
"""Reaches whose idle connections are kept at a time."""

_WITHOUT_BODY: Final = frozenset({"GET", "HEAD"})
_RETRYABLE_4XX: Final = frozenset({408, 425, 429})


KeysFor = Callable[[TenantNo, HttpTarget, str], Awaitable[Sequence[bytes]]]
"""The keys that sign a tenant's call of a target on a host. None: the call has no signature."""


@dataclass(slots=True)
class _Connections:
    """The session of one reach, and how many calls use it."""

    session: aiohttp.ClientSession
    calls: int = 0


class HttpCaller(Target[HttpTarget]):
    """Makes the calls of one process, over one pool of connections for each reach."""

    def __init__(
        self,
        *,
        reach: Reach = PUBLIC,
        reach_of: ReachOf | None = None,
        keys_for: KeysFor | None = None,
        limit_per_host: int = 0,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """`now`: the clock that receivers are sent; by default this machine's own. `reach`: that of all tenants, unless
        there is `reach_of`. Without `keys_for` calls are not signed."""
        self._now = now or partial(datetime.now, UTC)
        self._reach = reach
        self._reach_of = reach_of
        self._keys_for = keys_for
        self._limit_per_host = limit_per_host
        self._connections: dict[Reach, _Connections] = {}

    async def call(self, spec: HttpTarget, call: Call) -> Succeeded | Failed | Cancelled:
        if call.cancel.requested:
            return not_called()
        phases = Phases(spec, call.timeout_s)
        deadline = asyncio.timeout(call.timeout_s)
        drop = partial(_drop, deadline)
        try:
            async with deadline:
                call.cancel.listen(drop)
                return await self._call(spec, call, phases)
        except TimeoutError as error:
            if deadline.expired():
                was_asked = bool(call.cancel.requested) or call.timeout_s is None
                return _report_cancel(phases) if was_asked else phases.report_total(call.timeout_s or 0.0)
            return phases.report() if phases.expired else _not_answered(error)
        except (aiohttp.ClientError, OSError, ValueError, PrivateAddress) as error:
            return _not_sent(error)
        except OndotError as error:
            # Its keys or its tenant's row could not be read. Another worker may be able to.
            code = "secret_unreadable" if isinstance(error, NoSecretKey) else "connect"
            return Failed(AttemptError(code, one_line(error.message)))
        finally:
            call.cancel.unlisten(drop)

    async def close(self) -> None:
        for connections in self._connections.values():
            await connections.session.close()
        self._connections.clear()

    async def _call(self, spec: HttpTarget, call: Call, phases: Phases) -> Succeeded | Failed:
        reach = self._reach if self._reach_of is None else await self._reach_of(call.tenant_no)
        if spec.only_public:
            reach = reach.only_public(NO_RIGHT)
        connections = await self._connect(reach)
        connections.calls += 1
        try:
            return await self._follow(spec, call, phases, Allowed(reach), connections.session)
        finally:
            connections.calls -= 1

    async def _follow(
        self, spec: HttpTarget, call: Call, phases: Phases, allowed: Allowed, session: aiohttp.ClientSession
    ) -> Succeeded | Failed:
        hop = Hop(spec.method, URL(spec.url))
        for redirects_left in reversed(range(MAX_REDIRECTS + 1)):
            answer = await self._request(spec, call, phases, allowed, session, hop)
            if 200 <= answer.status < 300:
                return Succeeded(answer.as_json())
            if not (spec.follow_redirects and is_redirect(answer)):
                break
            try:
                hop = follow(hop, answer)
            except NotFollowed as refusal:
                return _report_failure(answer, self._now(), f"The redirect {refusal}, so it is not followed.")
            if carries_secrets(call) and not hop.is_own_host and hop.method not in _WITHOUT_BODY:
                why = "The redirect leads to another host, and the payload has secrets, so it is not followed."
                return _report_failure(answer, self._now(), why)
            if not redirects_left:
                return _report_failure(answer, self._now(), f"More than {MAX_REDIRECTS} redirects are not followed.")
            call.say("log", one_line(f"{answer.status}: redirected to {hop.url.origin()}{hop.url.raw_path}"))
            phases.restart()
        return _report_failure(answer, self._now())

    async def _request(
        self,
        spec: HttpTarget,
        call: Call,
        phases: Phases,
        allowed: Allowed,
        session: aiohttp.ClientSession,
        hop: Hop,
    ) -> Answer:
        # The resolver is not called for a host that is an address.
        allowed.check(hop.url.host or "", port=hop.url.port)
        body = None if hop.method in _WITHOUT_BODY else call.payload
        sent = headers(spec, call, self._now(), hop)
        if self._keys_for is not None and hop.is_own_host:
            keys = await self._keys_for(call.tenant_no, spec, hop.url.raw_host or "")
            if keys:
                sent["webhook-signature"] = sign(keys, sent["webhook-id"], sent["webhook-timestamp"], body or b"")
        request = session.request(hop.method, hop.url, data=body, headers=sent, allow_redirects=False)
        async with phases:
            response = await request.__aenter__()
        try:
            return await read_answer(response, call.result_bytes)
        finally:
            await request.__aexit__(*sys.exc_info())

    async def _connect(self, reach: Reach) -> _Connections:
        found = self._connections.get(reach)
        if found is None:
            # Reaches change, and a tenant may have one of its own: those that no call uses are closed.
            if len(self._connections) >= MAX_REACHES:
                for other in [each for each, unused in self._connections.items() if not unused.calls]:
                    await self._connections.pop(other).session.close()
            found = self._connections.setdefault(reach, _Connections(self._open(Allowed(reach))))
        return found

    def _open(self, allowed: Allowed) -> aiohttp.ClientSession:
        """At the first call: a session belongs to the running loop."""
        connector = aiohttp.TCPConnector(
            limit=0,
            limit_per_host=self._limit_per_host,
            keepalive_timeout=KEEP_ALIVE_S,
            family=socket.AF_UNSPEC,
            resolver=AllowedResolver(allowed),
            socket_factory=allowed.open_socket,
        )
        connector._factory = partial(BoundedConnection, loop=asyncio.get_running_loop())  # type: ignore[assignment]
        session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            trust_env=False,
            trace_configs=[tracing()],
        )
        # aiohttp would repeat GET, PUT and DELETE when a connection breaks: a call without a record (P7).
        session._retry_connection = False
        return session


def carries_secrets(call: Call) -> bool:
    """Whether its job refers to secrets, which were checked for its own host and no other."""
    return call.secrets is not None and bool(call.secrets.names)


def headers(spec: HttpTarget, call: Call, now: datetime, hop: Hop) -> CIMultiDict[str]:
    """The job's own, then the facts, which override them: a receiver must be able to trust them."""
    merged = CIMultiDict({"user-agent": f"ondot/{__version__}", "accept": "*/*", "accept-encoding": "identity"})
    if hop.method not in _WITHOUT_BODY:
        merged["content-type"] = "application/json"
    if hop.is_own_host:
        # Checked again although creating a job rejects them: a job may be older than that rule.
        for name, value in spec.headers.items():
            if why_reserved(name) is None:
                if isinstance(value, Hidden):
                    # Never a call without its credentials: its receiver may do something else for a stranger.
                    raise ValueError(f"the value of the header {name} is not known to this worker")
                merged[name] = value
    merged.update(facts_of(call))
    merged["webhook-timestamp"] = str(int(now.timestamp()))
    return merged


def retry_after_s(answer: Answer, now: datetime) -> float | None:
    """Seconds, or a date that is counted from the receiver's own `Date` or else from `now`; at most a day."""
    text = answer.headers.get("retry-after", "").strip()
    if not text:
        return None
    if text.isascii() and text.isdigit():
        # Not int(): it raises on more than 4,300 digits.
        return min(float(text), LONGEST_RETRY_AFTER_S)
    when, now = _date(text), _date(answer.headers.get("date", "")) or now
    if when is None:
        return None
    return min(max((when - now).total_seconds(), 0.0), LONGEST_RETRY_AFTER_S)


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found


def _drop(deadline: asyncio.Timeout) -> None:
    # Too late if the timeout is over in this very moment.
    with suppress(RuntimeError):
        deadline.reschedule(asyncio.get_running_loop().time())


def _report_cancel(phases: Phases) -> Cancelled:
    if not phases.was_sent:
        return Cancelled("It was cancelled before there was a connection: nothing was sent.")
    return Cancelled("The call was dropped; its receiver may still have done its work.", forced=True)


def _report_failure(answer: Answer, now: datetime, remark: str | None = None) -> Failed:
    status = answer.status
    try:
        phrase = f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = str(status)
    message = f"The receiver answered {phrase}."
    facts: dict[str, Any] = {"status": status}
    if 300 <= status < 400:
        message = f"The receiver answered {phrase}, and redirects are not followed: use the final address in the job."
        if remark is not None:
            message = f"The receiver answered {phrase}. {remark} Use the final address in the job."
        facts["location"] = one_line(answer.headers.get("location", ""))
    return Failed(
        AttemptError("http_status", message, detail=answer.text[:MAX_DETAIL] or None, facts=facts),
        retryable=status >= 500 or status in _RETRYABLE_4XX,
        retry_after_s=retry_after_s(answer, now),
        result=answer.as_json(),
    )


def _not_sent(error: Exception) -> Failed:
    """A fault of the request itself will not pass; any other may."""
    match error:
        case aiohttp.ClientSSLError():
            # Before ValueError: an untrusted certificate is one too.
            return _not_answered(error)
        case PrivateAddress():
            return Failed(AttemptError("private_address", str(error)), retryable=False)
        case aiohttp.InvalidURL() | aiohttp.NonHttpUrlClientError() | ValueError():
            # ValueError: a header or an address that cannot be encoded.
            return Failed(AttemptError("bad_request", one_line(f"It cannot be sent: {error}")), retryable=False)
        case _:
            return _not_answered(error)


def _not_answered(error: BaseException) -> Failed:
    """No answer, or an unreadable one: this may pass."""
    match error:
        case aiohttp.ClientConnectorDNSError():
            code, message = "dns", f"The name {error.host} could not be resolved: {error.os_error.strerror or error}"
        case aiohttp.ClientSSLError():
            code, message = "tls", f"No secure connection to {error.host}:{error.port}: {error.os_error}"
        case aiohttp.ClientConnectorError():
            number = error.os_error.errno
            reason = os.strerror(number) if number else str(error.os_error)
            code, message = "connect", f"No connection to {error.host}:{error.port}: {reason}"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError() | ConnectionError():
            code, message = "disconnected", "The connection broke before the answer was complete."
        case TooMuch():
            code, message = "bad_response", f"The answer has no end: {error}."
        case aiohttp.ClientResponseError():
            code, message = "bad_response", f"The answer is not HTTP: {error.message}"
        case _:
            code, message = "connect", f"The call failed: {type(error).__name__}: {error}"
    return Failed(AttemptError(code, one_line(message), facts={"type": type(error).__name__}))
