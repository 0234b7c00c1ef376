"""Wake-ups through Kafka (C4): a topic of one partition for each pool, made if it is missing, kept for a minute.

Every process reads all of its pools' topics, from their end: workers assign the partitions themselves. A consumer group
would hint one worker, perhaps a full one, and stop all of them while it rebalances.

The client (librdkafka) reconnects by itself and works in threads of its own; two more of ours wait for it, so the loop
never does.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from ondot.extras import needs_extra
from ondot.model.beats import Beat
from ondot.model.errors import Misconfigured
from ondot.model.ids import PoolNo
from ondot.ports.transport import OnBeat, OnWake, Wake
from ondot.settings import Settings
from ondot.store.database import Database
from ondot.transports import listening
from ondot.transports.listening import OnAnswer, keep_listening
from ondot.transports.wire import encode_beat, encode_wake, receive

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

ANSWERS_WITHIN_S: Final = 1.0
CONNECTS_WITHIN_S: Final = 5.0
POLL_S: Final = 0.2
"""How long a thread of ours waits before it looks whether it must end."""
UNHEARD: Final = 1_000
"""Messages that were read and that the loop has not yet handled: a flood must not fill the memory."""
TOPIC: Final = {"retention.ms": "60000", "segment.ms": "60000", "cleanup.policy": "delete"}


class KafkaTransport:
    name = "kafka"

    def __init__(self, database: Database) -> None:
        """Raises Misconfigured without an address, or without the client."""
        self._database = database
        self._client = client_settings(database.settings)
        self._prefix = f"{database.settings.transport_prefix}.wake"
        self._producing: _Producing | None = None
        self._topics = _Topics(self._client)
        self._made: set[PoolNo] = set()

    async def publish(self, wakes: Sequence[Wake]) -> None:
        await self._send([(wake.pool_no, encode_wake(wake)) for wake in wakes])

    async def beat(self, beat: Beat, pool_nos: Sequence[PoolNo]) -> None:
        await self._send([(pool_no, encode_beat(beat, pool_no)) for pool_no in pool_nos])

    async def _send(self, messages: Sequence[tuple[PoolNo, bytes]]) -> None:
        pool_nos = {pool_no for pool_no, _ in messages}
        try:
            if not pool_nos <= self._made:
                await self._make_topics(pool_nos - self._made, ANSWERS_WITHIN_S)
            if self._producing is None:
                self._producing = _Producing(self._client)
            send = self._producing.send
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                await asyncio.gather(*(send(self.topic(pool_no), body) for pool_no, body in messages))
        except BaseException:
            self._made -= pool_nos  # a topic may have been deleted: the next try makes it again
            raise

    async def listen(self, pool_nos: Sequence[PoolNo], on_wake: OnWake, on_beat: OnBeat) -> None:
        def on_message(body: bytes) -> None:
            receive(self.name, body, on_wake, on_beat)

        async def listen_once(on_answer: OnAnswer) -> None:
            await self._make_topics(pool_nos, CONNECTS_WITHIN_S)
            reading = _Reading(self._client, [self.topic(pool_no) for pool_no in pool_nos], on_message)
            try:
                while True:
                    on_answer()
                    await asyncio.sleep(listening.CHECK_EVERY_S)
                    await self._make_topics(pool_nos, CONNECTS_WITHIN_S)
            finally:
                await reading.end()

        await keep_listening(self.name, self._database, listen_once)

    async def _make_topics(self, pool_nos: Collection[PoolNo], within_s: float) -> None:
        """Make those that are missing. Raises if the brokers do not answer, or refuse."""
        names = [self.topic(pool_no) for pool_no in pool_nos]
        async with asyncio.timeout(within_s):
            await asyncio.to_thread(self._topics.make, names, within_s)
        self._made.update(pool_nos)

    def topic(self, pool_no: PoolNo) -> str:
        return f"{self._prefix}.{pool_no}"

    async def close(self) -> None:
        producing, self._producing = self._producing, None
        if producing is not None:
            await producing.end()


class _Topics:
    """Makes those that are missing. Its client is kept: a connection with TLS and SASL takes longer than a beat may."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient(dict(client))

    def make(self, names: Sequence[str], within_s: float) -> None:
        """Waits, so not on the loop."""
        from confluent_kafka import KafkaError, KafkaException, TopicCollection
        from confluent_kafka.cimpl import NewTopic

        missing = []
        answers = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=within_s)
        for name, described in answers.items():
            try:
                described.result(within_s)
            except KafkaException as failed:
                if failed.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise ConnectionError(f"{name}: {failed.args[0].str()}") from failed
                missing.append(NewTopic(name, num_partitions=1, replication_factor=-1, config=dict(TOPIC)))
        if not missing:
            return
        for name, made in self._admin.create_topics(missing, request_timeout=within_s).items():
            try:
                made.result(within_s)
            except KafkaException as failed:
                if failed.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise ConnectionError(f"{name} cannot be created: {failed.args[0].str()}") from failed


class _Producing:
    """A producer, and the thread that waits for its acknowledgements."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        from confluent_kafka import Producer

        self._loop = asyncio.get_running_loop()
        self._producer = Producer(
            {
                **client,
                "acks": "1",
                "linger.ms": 0,
                "max.in.flight": 1,  # a beat must not overtake a hint that is sent again
                "message.timeout.ms": round(1000 * ANSWERS_WITHIN_S),
                "queue.buffering.max.messages": UNHEARD * 10,
            }
        )
        self._thread = _Thread("kafka-producer", lambda: self._producer.poll(POLL_S))

    async def send(self, topic: str, body: bytes) -> None:
        """Until a broker has it."""
        acknowledged: asyncio.Future[None] = self._loop.create_future()

        def settle(error: "KafkaError | None") -> None:
            if acknowledged.done():
                return
            if error is None:
                acknowledged.set_result(None)
            else:
                acknowledged.set_exception(ConnectionError(f"{topic}: {error.str()}"))

        def on_delivery(error: "KafkaError | None", _message: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(settle, error)

        self._producer.produce(topic, body, on_delivery=on_delivery)
        await acknowledged

    async def end(self) -> None:
        await self._thread.end()


class _Reading:
    """A consumer of all topics of a listener, and the thread that waits for its messages."""

    def __init__(self, client: Mapping[str, Any], topics: Sequence[str], on_message: Callable[[bytes], None]) -> None:
        from confluent_kafka import OFFSET_END, Consumer, TopicPartition

        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._room = threading.Semaphore(UNHEARD)
        self._consumer = Consumer(
            {
                **client,
                "group.id": "ondot",  # the client wants a name; nothing joins a group or commits
                "enable.auto.commit": False,
                "auto.offset.reset": "latest",
                "fetch.error.backoff.ms": 100,
                "queued.max.messages.kbytes": 4096,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_END) for topic in topics])
        self._thread = _Thread("kafka-consumer", self._read_one, self._consumer.close)

    def _read_one(self) -> None:
        if not self._room.acquire(timeout=POLL_S):
            return
        message = self._consumer.poll(POLL_S)
        if message is None or message.error() is not None:
            self._room.release()
            return
        try:
            self._loop.call_soon_threadsafe(self._hand_on, message.value() or b"")
        except RuntimeError:  # the loop is closed
            self._room.release()

    def _hand_on(self, body: bytes) -> None:
        self._room.release()
        self._on_message(body)

    async def end(self) -> None:
        await self._thread.end()


class _Thread:
    """Repeats one bounded wait until it must end."""

    def __init__(self, name: str, repeat: Callable[[], object], finish: Callable[[], object] = lambda: None) -> None:
        self._repeat, self._finish = repeat, finish
        self._must_end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._must_end.is_set():
            self._repeat()
        self._finish()

    async def end(self) -> None:
        self._must_end.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                await asyncio.to_thread(self._thread.join, ANSWERS_WITHIN_S)


def client_settings(settings: Settings) -> dict[str, Any]:
    """What all clients of the installation's Kafka share."""
    with needs_extra("kafka", "The transport kafka"):
        import confluent_kafka  # noqa: F401
    if settings.kafka_servers is None:
        raise Misconfigured("The transport kafka needs its server: set ONDOT_KAFKA_SERVERS")
    client: dict[str, Any] = {
        "bootstrap.servers": settings.kafka_servers,
        "client.id": "ondot",
        "allow.auto.create.topics": False,
        "socket.timeout.ms": round(1000 * CONNECTS_WITHIN_S),
        "socket.keepalive.enable": True,
        "reconnect.backoff.ms": 250,
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.refresh.interval.ms": round(1000 * listening.CHECK_EVERY_S),
        "log_level": 0,  # it would write to stderr: `transport.away` says what is wrong
    }
    has_user = settings.kafka_user is not None
    client["security.protocol"] = ("SASL_" if has_user else "") + ("SSL" if settings.kafka_tls else "PLAINTEXT")
    if has_user:
        client["sasl.mechanism"] = settings.kafka_mechanism
        client["sasl.username"] = settings.kafka_user
        client["sasl.password"] = settings.kafka_password
    if settings.kafka_ca is not None:
        client["ssl.ca.location"] = str(settings.kafka_ca)
    return client
