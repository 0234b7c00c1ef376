"""Sends events to a broker (E3), through the client that targets use.

The key of a message is the execution or the job: Kafka keeps those of one key in one partition. A batch has each key
once, and the next event of a key follows when the one before is acknowledged. An event that the broker finds too large
is sent in its short form.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ondot.flow.connections.opened import OpenedConnections
from ondot.flow.sinks.sent import Sent
from ondot.model.addresses import Reach
from ondot.model.broker import kind_of_place
from ondot.model.connection import NoConnection, broker_of
from ondot.model.errors import Misconfigured, NoSecretKey
from ondot.model.event import STRUCTURED
from ondot.model.ids import TenantNo
from ondot.model.scrub import Scrubber
from ondot.model.sink import BrokerPlace
from ondot.model.sink_event import SinkEvent
from ondot.ports.publisher import Message, Publisher, Publishers, Receipt

WITHIN_S: Final = 15.0
"""A batch has this long to be acknowledged."""
AT_ONCE: Final = 500
TOO_LARGE: Final = "too_large"
NO_RIGHT: Final = (
    "The connection was written by a caller without the scope private-targets: write it with a key that has the scope."
)


class BrokerSender:
    def __init__(
        self,
        publishers: Publishers,
        connections: OpenedConnections,
        reach_of: Callable[[TenantNo], Awaitable[Reach]],
    ) -> None:
        self._publishers = publishers
        self._connections = connections
        self._reach_of = reach_of

    async def close(self) -> None:
        await self._publishers.close()

    async def send(self, tenant_no: TenantNo, place: BrokerPlace, events: Sequence[SinkEvent]) -> Sent:
        try:
            opened = await self._connections.open(tenant_no, place.connection)
            wanted = kind_of_place(place.place)
            if opened.spec.kind != wanted:
                error = f"The connection {place.connection!r} is of the kind {opened.spec.kind}, not {wanted}."
                return Sent(failed=list(events), error=error)
            reach = await self._reach_of(tenant_no)
            if opened.spec.only_public:
                reach = reach.only_public(NO_RIGHT)
            async with self._publishers.use(broker_of(opened.spec), reach) as publisher:
                sent = await _publish(publisher, place, events)
        except (NoConnection, NoSecretKey, Misconfigured) as error:
            return Sent(failed=list(events), error=error.message)
        sent.error = None if sent.error is None else Scrubber(opened.hidden).text(sent.error)
        return sent


async def _publish(publisher: Publisher, place: BrokerPlace, events: Sequence[SinkEvent]) -> Sent:
    """Batch by batch, until one is not acknowledged."""
    sent = Sent()
    batches = _split(events)
    for n, batch in enumerate(batches):
        await _publish_batch(publisher, place, batch, sent)
        if sent.failed:
            sent.failed += [event for later in batches[n + 1 :] for event in later]
            break
    return sent


async def _publish_batch(publisher: Publisher, place: BrokerPlace, events: Sequence[SinkEvent], sent: Sent) -> None:
    answers = await publisher.publish(place.place, [_message(event) for event in events], within_s=WITHIN_S)
    for event, full in zip(events, answers, strict=True):
        answer = full
        if not isinstance(answer, Receipt) and answer.code == TOO_LARGE:
            [answer] = await publisher.publish(place.place, [_message(event.short)], within_s=WITHIN_S)
            sent.shortened += isinstance(answer, Receipt)
        if isinstance(answer, Receipt):
            sent.sent += 1
        elif answer.code == TOO_LARGE:
            sent.refused += 1
            sent.refusal = f"{event.type} of {event.key}: {answer.message}"
        else:
            sent.failed.append(event)
            sent.error = answer.message


def _message(event: SinkEvent) -> Message:
    return Message(event.body, event.key, {"content-type": STRUCTURED})


def _split(events: Sequence[SinkEvent]) -> list[list[SinkEvent]]:
    """Batches that have each key once: first the first event of every key, then the second."""
    seen: Counter[str] = Counter()
    rounds: list[list[SinkEvent]] = []
    for event in events:
        if seen[event.key] == len(rounds):
            rounds.append([])
        rounds[seen[event.key]].append(event)
        seen[event.key] += 1
    return [each[start : start + AT_ONCE] for each in rounds for start in range(0, len(each), AT_ONCE)]
