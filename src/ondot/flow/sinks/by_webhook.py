"""Sends events to a webhook (E3), by calls that ondot signs.

Events of one key go one after the other, in their order; different keys go side by side. After a failure the rest of
its key is not sent. A receiver that finds an event too large gets its short form. One that refuses it in both forms,
by an answer that says the event itself is wrong, does not get it: it is counted, and the sink goes on.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid5

import msgspec

from ondot.flow.channels.credentials import NoCredential, open_credentials
from ondot.flow.sinks.sent import Sent
from ondot.flow.vault import Vault
from ondot.model.channel import WebhookChannel
from ondot.model.errors import NoSecretKey
from ondot.model.event import BATCH, STRUCTURED
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.outcome import Failed, Succeeded
from ondot.model.scrub import Scrubber
from ondot.model.sink import WebhookPlace
from ondot.model.sink_event import SinkEvent
from ondot.model.target import HttpTarget
from ondot.ports.target import Call, CallReport, Target

ATTEMPT_S: Final = 30.0
"""One request has this long to connect, send and read the answer."""
SIDE_BY_SIDE: Final = 16
"""Requests to one sink at a time."""
TOO_LARGE: Final = frozenset({413})
REFUSED: Final = frozenset({400, 413, 415, 422})
"""Answers that are about the event itself. Any other may pass."""
_IDS: Final = UUID("6e2a5b0c-0f0e-4a55-9d43-3a1c7f6d2b10")


class WebhookSender:
    def __init__(self, vault: Vault | None, signed: Target[HttpTarget]) -> None:
        """`signed`: makes HTTP calls, and signs them."""
        self._vault = vault
        self._signed = signed

    async def close(self) -> None:
        await self._signed.close()

    async def send(self, tenant_no: TenantNo, place: WebhookPlace, events: Sequence[SinkEvent]) -> Sent:
        channel = WebhookChannel(url=place.url, headers=place.headers, only_public=place.only_public)
        try:
            opened = await open_credentials(self._vault, tenant_no, channel)
        except (NoCredential, NoSecretKey) as error:
            return Sent(failed=list(events), error=error.message)
        assert isinstance(opened.spec, WebhookChannel)
        kind = STRUCTURED if place.batch == 1 else BATCH
        target = HttpTarget(
            url=str(opened.spec.url),
            headers={**opened.spec.headers, "content-type": kind},
            only_public=place.only_public,
        )
        call = _Webhook(self._signed, target, tenant_no, is_batch=place.batch > 1)
        sent = Sent()
        room = asyncio.Semaphore(SIDE_BY_SIDE)

        async def send_portions(portions: Sequence[Sequence[SinkEvent]]) -> None:
            async with room:
                for n, portion in enumerate(portions):
                    if not await call.send(portion, sent):
                        sent.failed += [event for later in portions[n + 1 :] for event in later]
                        return

        async with asyncio.TaskGroup() as group:
            for portions in _split(events, place.batch):
                group.create_task(send_portions(portions))
        scrubber = Scrubber(opened.hidden)
        sent.error = None if sent.error is None else scrubber.text(sent.error)
        sent.refusal = None if sent.refusal is None else scrubber.text(sent.refusal)
        return sent


@dataclass(frozen=True, slots=True)
class _Webhook:
    caller: Target[HttpTarget]
    target: HttpTarget
    tenant_no: TenantNo
    is_batch: bool

    async def send(self, events: Sequence[SinkEvent], sent: Sent) -> bool:
        """Whether the next events of these keys may follow."""
        report = await self._call(events)
        if isinstance(report, Succeeded):
            sent.sent += len(events)
            return True
        status = report.error.facts.get("status") if isinstance(report, Failed) else None
        if status in REFUSED and len(events) > 1:
            # One of them is refused: each on its own.
            for n, event in enumerate(events):
                if not await self.send([event], sent):
                    sent.failed += events[n + 1 :]
                    return False
            return True
        if status in TOO_LARGE:
            short = await self._call([events[0].short])
            if isinstance(short, Succeeded):
                sent.sent += 1
                sent.shortened += 1
                return True
        message = report.error.message if isinstance(report, Failed) else "The call was interrupted."
        if status in REFUSED:
            sent.refused += 1
            sent.refusal = f"{events[0].type} of {events[0].key}: {message}"
            return True
        sent.failed += events
        sent.error = message
        if isinstance(report, Failed) and report.retry_after_s is not None:
            sent.retry_after_s = max(sent.retry_after_s or 0.0, report.retry_after_s)
        return False

    async def _call(self, events: Sequence[SinkEvent]) -> CallReport:
        values = [event.value for event in events]
        first = events[0]
        return await self.caller.call(
            self.target,
            Call(
                # The same for a repetition, as `webhook-id` must be.
                execution_id=ExecutionId(uuid5(_IDS, " ".join(event.id for event in events))),
                job_id=first.job_id,
                job_name="sink",
                attempt_no=1,
                fire_s=first.at.timestamp(),
                payload=msgspec.json.encode(values if self.is_batch else values[0]),
                timeout_s=ATTEMPT_S,
                say=lambda _stream, _line: None,
                progress=lambda _share, _message, _checkpoint: None,
                tenant_no=self.tenant_no,
            ),
        )


def _split(events: Sequence[SinkEvent], batch: int) -> Iterator[list[list[SinkEvent]]]:
    """Rows of requests that follow each other. One event for a request: a row for each key. Batches: one row of all, in
    their order, since a batch may have any key."""
    if batch > 1:
        yield [list(events[start : start + batch]) for start in range(0, len(events), batch)]
        return
    by_key: dict[str, list[list[SinkEvent]]] = {}
    for event in events:
        by_key.setdefault(event.key, []).append([event])
    yield from by_key.values()
