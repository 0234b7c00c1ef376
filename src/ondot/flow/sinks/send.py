"""Sends a batch of events to the place of one sink (E3)."""

from collections.abc import Sequence
from typing import assert_never

from ondot.flow.sinks.by_broker import BrokerSender
from ondot.flow.sinks.by_webhook import WebhookSender
from ondot.flow.sinks.sent import Sent
from ondot.model.sink import BrokerPlace, WebhookPlace
from ondot.model.sink_event import SinkEvent
from ondot.store.sinks import SinkRow


class Sender:
    def __init__(self, webhooks: WebhookSender, brokers: BrokerSender) -> None:
        self._webhooks = webhooks
        self._brokers = brokers

    async def send(self, sink: SinkRow, events: Sequence[SinkEvent]) -> Sent:
        """Send these events, those of each key in their order."""
        match sink.spec.place:
            case WebhookPlace() as place:
                return await self._webhooks.send(sink.tenant_no, place, events)
            case BrokerPlace() as place:
                return await self._brokers.send(sink.tenant_no, place, events)
            case _:
                assert_never(sink.spec.place)

    async def close(self) -> None:
        await self._webhooks.close()
        await self._brokers.close()
