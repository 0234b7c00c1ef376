"""One attempt of a delivery (O4): reads its message, opens the channel's credentials, sends, and records how it went.

It is the target of the jobs of channels, which schedulers run. Before anything is sent it asks whether the message is
still true: an incident that has recovered since is not announced any more, and messages of one incident go out in their
order. A channel that hangs holds a few slots at most: others do not wait for it. A repeated delivery has the same id in
every form, so that receivers can join both. After `GIVE_UP_AFTER_S` it fails at last: the delivery shows it, and the
condition `delivery` reports it, unless the message was about a failing channel itself: two channels must not report
each other in a circle.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, assert_never, cast
from uuid import UUID

import msgspec
from msgspec import structs

from ondot.flow.alerts.conditions import clear_condition, report_condition
from ondot.flow.channels import forms
from ondot.flow.channels.credentials import NoCredential, Opened, open_credentials
from ondot.flow.vault import Vault
from ondot.model.channel import (
    FAILED_DELIVERY,
    GIVE_UP_AFTER_S,
    ChannelSpec,
    Credential,
    DeliveryState,
    Email,
    EmailChannel,
    Message,
    PagerDutyChannel,
    SlackChannel,
    WebhookChannel,
)
from ondot.model.errors import NoSecretKey, Unavailable
from ondot.model.ids import INSTALLATION, ExecutionId, TenantNo
from ondot.model.outcome import AttemptError, Cancelled, Failed, Interrupted, NoFunction, Succeeded
from ondot.model.scrub import Scrubber
from ondot.model.secret import Hidden
from ondot.model.target import FunctionTarget, HttpTarget
from ondot.model.urls import host_of
from ondot.ports.target import Call, CallReport, Target
from ondot.store.channels import (
    ChannelRow,
    StartedDelivery,
    end_abandoned_deliveries,
    end_attempt,
    start_delivery,
)
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.telemetry.metrics import DELIVERIES

ATTEMPT_S: Final = 30.0
"""One attempt has this long to connect, send and read the answer."""
BESIDE_S: Final = 3.0
ROOM_WITHIN_S: Final = 1.0
CROWDED_S: Final = 10.0
MOST_OF_CHANNEL: Final = 10
MOST_OF_TENANT: Final = 40
"""Messages that are being sent at once, of 100 slots: a tenant whose receivers all hang leaves most of them free."""
LONGEST_ANSWER: Final = 1_000
ABANDONED: Final = "The schedulers that sent it were lost too often, so it was given up."
ABANDONED_A_PASS: Final = 1_000


class ChannelCaller(Target[FunctionTarget]):
    """Sends the messages of all channels."""

    def __init__(
        self,
        database: Database,
        vault: Vault | None,
        *,
        signed: Target[HttpTarget],
        plain: Target[HttpTarget],
        email: Target[Email],
        reach_of: Callable[[TenantNo], Awaitable[object]],
        keys_for: Callable[[TenantNo, HttpTarget, str], Awaitable[Sequence[bytes]]] | None = None,
    ) -> None:
        """`signed`: calls of webhooks, which ondot signs; `plain`: those of services that would not check it.
        `reach_of`, `keys_for`: what both of them ask for (`prepare`)."""
        self._reach_of = reach_of
        self._keys_for = keys_for
        self._database = database
        self._vault = vault
        self._signed = signed
        self._plain = plain
        self._email = email
        self._room = _Room()

    async def call(self, spec: FunctionTarget, call: Call) -> CallReport:
        try:
            async with self._database.connection() as connection:
                delivery = await start_delivery(connection, call.execution_id, call.attempt_no, ATTEMPT_S)
            if delivery is None:
                return Cancelled("Its channel was deleted.")
            if delivery.has_ended:
                return _report_again(delivery)
            report = await self._deliver(delivery, call)
            return await self._record(delivery, call, report)
        except Unavailable as error:
            return Failed(AttemptError("connect", error.message))

    async def close(self) -> None:
        for target in (self._signed, self._plain, self._email):
            await target.close()

    async def _deliver(self, delivery: StartedDelivery, call: Call) -> CallReport:
        channel = delivery.channel
        if channel.tenant_no != INSTALLATION:
            tenant = await self._database.tenants.get(channel.tenant_no)
            if tenant is None or not tenant.is_active:
                return Cancelled("Its tenant is suspended or deleted, so its messages are not sent.")
        if delivery.is_over:
            return Cancelled("The incident has recovered since, so this message is not sent any more.")
        if delivery.is_beside:
            message = "An earlier message of this incident is being sent, and goes first."
            return Failed(AttemptError("order", message), retry_after_s=BESIDE_S)
        async with self._room.take(channel) as has_room:
            if not has_room:
                message = "Other messages of this channel or tenant are being sent, and this one waits for them."
                return Failed(AttemptError("order", message), retry_after_s=CROWDED_S)
            try:
                opened = await open_credentials(self._vault, channel.tenant_no, channel.spec)
            except (NoCredential, NoSecretKey) as error:
                return Failed(AttemptError("secret_unreadable", error.message))
            return await self._send_scrubbed(opened, delivery, call)

    async def prepare(self, tenant_no: TenantNo, spec: ChannelSpec) -> None:
        """Remember what a later message needs of the database: where the tenant may send, and what signs it."""
        await self._reach_of(tenant_no)
        if isinstance(spec, WebhookChannel) and self._keys_for is not None:
            await self._keys_for(tenant_no, HttpTarget(url=_plain(spec.url)), host_of(_plain(spec.url)))

    async def send_directly(self, channel: ChannelRow, opened: Opened, message: Message, id_: UUID) -> CallReport:
        """Send without the database: neither queued nor recorded."""
        call = Call(
            execution_id=ExecutionId(id_),
            job_id=channel.job_id,
            job_name="delivery",
            attempt_no=1,
            fire_s=message.at.timestamp(),
            payload=b"null",
            timeout_s=ATTEMPT_S,
            say=lambda _stream, _line: None,
            progress=lambda _share, _message, _checkpoint: None,
        )
        delivery = StartedDelivery(channel, message, None, 0, DeliveryState.SENDING, False, 0.0, False, False)
        return await self._send_scrubbed(opened, delivery, call)

    async def _send_scrubbed(self, opened: Opened, delivery: StartedDelivery, call: Call) -> CallReport:
        scrubber, say = Scrubber(opened.hidden), call.say
        call = structs.replace(
            call,
            tenant_no=delivery.channel.tenant_no,
            timeout_s=ATTEMPT_S,
            say=lambda stream, line: say(stream, scrubber.text(line)),
        )
        return cast("CallReport", scrubber.report(await self._send(opened.spec, delivery, call)))

    async def _send(self, spec: ChannelSpec, delivery: StartedDelivery, call: Call) -> CallReport:
        message, joined, more, id_ = delivery.message, delivery.joined, delivery.joined_more, call.execution_id
        if joined is not None:
            message = forms.join(message, joined, more)
        match spec:
            case WebhookChannel():
                body = forms.webhook_body(id_, delivery.channel.name, message, joined, more)
                target = HttpTarget(url=_plain(spec.url), headers=spec.headers, only_public=spec.only_public)
                return await self._signed.call(target, _with_body(call, body))
            case SlackChannel():
                target = HttpTarget(url=_plain(spec.url), only_public=spec.only_public)
                return await self._plain.call(target, _with_body(call, forms.slack_body(message)))
            case PagerDutyChannel():
                target = HttpTarget(url=spec.url, only_public=spec.only_public)
                key = _plain(spec.routing_key)
                report: CallReport = Succeeded()
                for event in forms.pagerduty_events(
                    key, id_, message, joined, source=self._database.settings.public_url or "ondot"
                ):
                    report = await self._plain.call(target, _with_body(call, event))
                    if not isinstance(report, Succeeded):
                        break
                return report
            case EmailChannel():
                domain = self._database.settings.smtp_domain
                return await self._email.call(
                    forms.email(id_, delivery.channel.id, spec.to, message, domain=domain), call
                )
            case _:
                assert_never(spec)

    async def _record(self, delivery: StartedDelivery, call: Call, report: CallReport) -> CallReport:
        """Write how it went, before the outcome of the execution is: a repetition after a crash finds it."""
        answer, error = None, None
        match report:
            case Succeeded(result=result):
                state, answer = DeliveryState.DELIVERED, _cut(result)
                report = Succeeded()
            case Cancelled(message=message):
                state, error = DeliveryState.DROPPED, message
            case Interrupted() | NoFunction():
                return report
            case Failed():
                error, answer = report.error.message, _cut(report.result)
                # What a receiver calls final may still pass, as a 404 in the middle of its deployment.
                is_final = (
                    delivery.message.kind == "test"
                    or delivery.age_s >= GIVE_UP_AFTER_S
                    or report.error.code == "private_address"
                )
                state = DeliveryState.FAILED if is_final else DeliveryState.RETRYING
                # The answer is the tenant's: it stays in the delivery, which is removed with the tenant.
                bare = replace(report.error, detail=None)
                report = replace(report, error=bare, result=None, retryable=not is_final)
            case _:
                assert_never(report)
        has_ended = state is not DeliveryState.RETRYING
        async with self._database.connection() as connection:
            await end_attempt(
                connection,
                call.execution_id,
                call.attempt_no,
                state,
                answer=answer,
                error=error,
                has_ended=has_ended,
            )
            await _report_channel(connection, delivery.channel, delivery.message, state, error)
        DELIVERIES.labels(state.value.lower()).inc()
        return report


class _Room:
    """What this process is sending now."""

    def __init__(self) -> None:
        self._channels: Counter[UUID] = Counter()
        self._tenants: Counter[TenantNo] = Counter()
        self._freed = asyncio.Condition()

    @asynccontextmanager
    async def take(self, channel: ChannelRow) -> AsyncIterator[bool]:
        """Whether there is room for another message of this channel, now or in a moment."""

        def has_room() -> bool:
            return self._channels[channel.id] < MOST_OF_CHANNEL and self._tenants[channel.tenant_no] < MOST_OF_TENANT

        async with self._freed:
            with suppress(TimeoutError):
                async with asyncio.timeout(ROOM_WITHIN_S):
                    await self._freed.wait_for(has_room)
            if not has_room():
                yield False
                return
            self._add(channel, 1)
        try:
            yield True
        finally:
            async with self._freed:
                self._add(channel, -1)
                self._freed.notify_all()

    def _add(self, channel: ChannelRow, count: int) -> None:
        self._channels[channel.id] += count
        self._tenants[channel.tenant_no] += count
        if not self._tenants.total():
            self._channels.clear()
            self._tenants.clear()


def _report_again(delivery: StartedDelivery) -> CallReport:
    """It had ended, and the process ended before the outcome of its execution was written."""
    match delivery.state:
        case DeliveryState.DELIVERED:
            return Succeeded()
        case DeliveryState.FAILED:
            return Failed(AttemptError("given_up", "It was given up before."), retryable=False)
        case _:
            return Cancelled("It is not sent any more.")


async def end_abandoned(connection: Connection) -> int:
    """End deliveries whose execution has ended without a word about them; returns how many. Nobody else would: they
    would be shown as being sent for ever."""
    ended = await end_abandoned_deliveries(connection, ABANDONED, ABANDONED_A_PASS)
    for channel, message in ended:
        await _report_channel(connection, channel, message, DeliveryState.FAILED, ABANDONED)
    return len(ended)


async def _report_channel(
    connection: Connection, channel: ChannelRow, message: Message, state: DeliveryState, error: str | None
) -> None:
    if state is DeliveryState.DELIVERED:
        await clear_condition(connection, FAILED_DELIVERY, channel.tenant_no, channel.name)
    elif state is DeliveryState.FAILED and message.kind != "test" and not message.failing_channels:
        incident_id = None if message.incident_id is None else str(message.incident_id)
        await report_condition(
            connection,
            FAILED_DELIVERY,
            channel.tenant_no,
            channel.name,
            f"The channel {channel.name} did not deliver {message.title!r}: {error}",
            {"channel": channel.name, "incident_id": incident_id},
        )


def _with_body(call: Call, body: Mapping[str, Any]) -> Call:
    return structs.replace(call, payload=msgspec.json.encode(body))


def _plain(value: Credential) -> str:
    assert not isinstance(value, Hidden)
    return value


def _cut(text: str | None) -> str | None:
    return None if text is None else text[:LONGEST_ANSWER]
