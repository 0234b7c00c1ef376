"""Publishes the payload of a job as a message to a broker (E3, E4, E7, E8, E11, T3).

The facts of the attempt are headers, with the names that HTTP calls have. An attempt succeeds when the broker
acknowledges the message, and its result says where it is. An attempt without an acknowledgement says in its error
whether the message may be published all the same (`may_be_published`): its retry is then a possible duplicate, and this
is the recorded cause. A consumer recognises it by `webhook-id`, which is the execution's id.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import msgspec
from msgspec import structs

from ondot.model.addresses import PUBLIC, Reach
from ondot.model.broker import BrokerAddress, kind_of_place
from ondot.model.connection import ConnectionSpec, NoConnection, broker_of
from ondot.model.errors import Misconfigured, NoSecretKey, OndotError, Unavailable
from ondot.model.execution import Outcome
from ondot.model.headers import why_reserved
from ondot.model.ids import TenantNo
from ondot.model.outcome import AttemptError, Cancelled, Failed, Succeeded
from ondot.model.scrub import Scrubber
from ondot.model.secret import Hidden
from ondot.model.target import PASSWORD_HEADER, PublishTarget
from ondot.ports.publisher import Message, Publishers, Receipt, Refusal
from ondot.ports.target import Call, Target
from ondot.targets.addresses import NO_RIGHT, ReachOf
from ondot.targets.cancelling import not_called, until_cancel
from ondot.targets.checks import NO_RIGHT as NO_RIGHT_OF_CONNECTION
from ondot.targets.facts import facts_of
from ondot.targets.text import one_line

UNLIMITED_S = 86_400.0
"""A message that no broker acknowledges within a day is given up, whatever the job says."""


class Connection(Protocol):
    """A connection with its credentials in plain."""

    @property
    def spec(self) -> ConnectionSpec: ...
    @property
    def hidden(self) -> tuple[str, ...]: ...


OpenConnection = Callable[[TenantNo, str], Awaitable[Connection]]
"""Raises NoConnection if there is none of this name."""


class PublishCaller(Target[PublishTarget]):
    def __init__(
        self,
        publishers: Publishers,
        *,
        reach: Reach = PUBLIC,
        reach_of: ReachOf | None = None,
        connection_of: OpenConnection | None = None,
    ) -> None:
        """`reach`: that of all tenants, unless there is `reach_of`. Without `connection_of` jobs cannot name one."""
        self._publishers = publishers
        self._reach = reach
        self._reach_of = reach_of
        self._connection_of = connection_of

    async def call(self, spec: PublishTarget, call: Call) -> Succeeded | Failed | Cancelled:
        if call.cancel.requested:
            return not_called()
        publishing = asyncio.ensure_future(self._publish(spec, call))
        try:
            was_cancelled = await until_cancel(publishing, call.cancel, None)
        except asyncio.CancelledError:
            publishing.cancel()
            raise
        if was_cancelled and not publishing.done():
            publishing.cancel()
            await asyncio.wait([publishing])
            if publishing.cancelled():
                return Cancelled("The message was dropped; the broker may still have published it.", forced=True)
        return publishing.result()

    async def close(self) -> None:
        await self._publishers.close()

    async def _publish(self, spec: PublishTarget, call: Call) -> Succeeded | Failed:
        within_s = min(call.timeout_s or UNLIMITED_S, UNLIMITED_S)
        hidden: tuple[str, ...] = ()
        try:
            async with asyncio.timeout(within_s):
                broker, reach, hidden = await self._open(spec, call.tenant_no)
                message = _message(spec, call)
            async with self._publishers.use(broker, reach) as publisher:
                [answer] = await publisher.publish(spec.place, [message], within_s=within_s)
        except TimeoutError:
            answer = Refusal("timeout", f"Its connection could not be read within {within_s:g} s. Nothing was sent.")
        except Misconfigured as error:
            # Another worker may have the package.
            answer = Refusal("publish_refused", error.message)
        except NoConnection as missing:
            answer = Refusal("no_connection", missing.message, is_retryable=False)
        except ValueError as error:
            answer = Refusal("bad_request", one_line(f"It cannot be sent: {error}"), is_retryable=False)
        except OndotError as error:
            # Its keys or its tenant's row could not be read. Another worker may be able to.
            code = "secret_unreadable" if isinstance(error, NoSecretKey) else "connect"
            answer = Refusal(code, one_line(error.message))
        if isinstance(answer, Receipt):
            result = {"broker": kind_of_place(spec.place), **answer.facts}
            return Succeeded(msgspec.json.encode(result).decode())
        return _failed(structs.replace(answer, message=Scrubber(hidden).text(answer.message)), within_s)

    async def _open(self, spec: PublishTarget, tenant_no: TenantNo) -> tuple[BrokerAddress, Reach, tuple[str, ...]]:
        """The broker, where calls to it may go, and its credentials."""
        reach = self._reach if self._reach_of is None else await self._reach_of(tenant_no)
        if spec.connection is None:
            address = spec.broker()
            return address, reach.only_public(NO_RIGHT) if spec.only_public else reach, ()
        if self._connection_of is None:
            raise Unavailable("This worker has no database, where connections are.")
        opened = await self._connection_of(tenant_no, spec.connection)
        if opened.spec.kind != kind_of_place(spec.place):
            wanted = kind_of_place(spec.place)
            raise ValueError(f"the connection {spec.connection!r} leads to {opened.spec.kind}, not to {wanted}")
        if opened.spec.only_public:
            reach = reach.only_public(NO_RIGHT_OF_CONNECTION)
        return broker_of(opened.spec), reach, opened.hidden


def _message(spec: PublishTarget, call: Call) -> Message:
    """The job's own headers, then the facts, which override them: a consumer must be able to trust them."""
    headers: dict[str, str] = {}
    for name, value in spec.headers.items():
        # Checked again although creating a job rejects them: a job may be older than that rule.
        if name == PASSWORD_HEADER or why_reserved(name) is not None:
            continue
        if isinstance(value, Hidden):
            raise ValueError(f"the value of the header {name} is not known to this worker")  # noqa: TRY004
        headers[name] = value
    return Message(call.payload, spec.key, {**headers, **facts_of(call)})


def _failed(refusal: Refusal, within_s: float) -> Failed:
    facts: dict[str, Any] = {"may_be_published": refusal.may_be_published}
    if refusal.code == "timeout":
        facts["timeout_s"] = within_s
    outcome = Outcome.TIMED_OUT if refusal.code in {"timeout", "connect_timeout"} else Outcome.FAILED
    error = AttemptError(refusal.code, refusal.message, facts=facts)
    return Failed(error, retryable=refusal.is_retryable, outcome=outcome)
