"""A fleet of real processes whose broker freezes, is killed and comes back: work starts late by less than a second
more, and the broker is trusted again by itself (C5, L5). Kafka and RabbitMQ take long to start."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from brokers import Broker, Kafka, Missing, Nats, RabbitMQ, Redis
from tests.faults.fleet import Fleet, a_fleet
from tests.proves import proves

GROWS_S = 1.0
SLACK_S = 1.5
"""For a busy machine, as campaigns have it."""
WITHIN_S = 60.0
JOB = {"function": "naps", "payload": {"seconds": 0.01}}

BROKERS: dict[str, tuple[str, type[Broker]]] = {
    "redis": ("redis_url", Redis),
    "nats": ("nats_url", Nats),
    "kafka": ("kafka_servers", Kafka),
    "rabbitmq": ("rabbitmq_url", RabbitMQ),
}


@proves("C5", "L5")
@pytest.mark.long
@pytest.mark.parametrize("name", BROKERS)
async def test_a_broker_that_freezes_and_dies_delays_work_by_less_than_a_second(
    database_url: str, tmp_path: Path, name: str
) -> None:
    setting, kind = BROKERS[name]
    with _running(kind) as broker:
        async with a_fleet(database_url, tmp_path, transport=name, **{setting: broker.url}) as fleet:
            await fleet.wait_until_up(fleet.scheduler(), fleet.worker())
            await _until_trusted(fleet, name)
            broker.freeze()
            assert await _latest_s(fleet) < GROWS_S + SLACK_S
            broker.thaw()
            await _until_trusted(fleet, name)
            await asyncio.to_thread(broker.kill)
            assert await _latest_s(fleet) < GROWS_S + SLACK_S
            await asyncio.to_thread(broker.start)
            await _until_trusted(fleet, name)
            assert await _latest_s(fleet) < GROWS_S + SLACK_S


@pytest.mark.long
async def test_a_worker_that_trusts_a_silent_transport_is_caught(database_url: str, tmp_path: Path) -> None:
    with _running(Redis) as broker:
        async with a_fleet(database_url, tmp_path, transport="redis", redis_url=broker.url) as fleet:
            await fleet.wait_until_up(fleet.scheduler(), fleet.worker(bug="trusts_silence"))
            await _until_trusted(fleet, "redis")
            broker.freeze()
            assert await _latest_s(fleet, jobs=2) > GROWS_S + SLACK_S


async def _latest_s(fleet: Fleet, jobs: int = 4) -> float:
    """How late the latest of some jobs started, one after the other."""
    latest_s = 0.0
    for _ in range(jobs):
        [row] = await fleet.ended(await fleet.submit(JOB), within_s=WITHIN_S)
        latest_s = max(latest_s, (row["started_at"] - row["fire_at"]).total_seconds())
    return latest_s


async def _until_trusted(fleet: Fleet, name: str) -> None:
    """By the worker's heartbeats."""

    async def trusted() -> bool | None:
        rows = await fleet.connection.fetch("SELECT trusts FROM ondot.worker WHERE ended_at IS NULL")
        return True if rows and all(name in (row["trusts"] or []) for row in rows) else None

    await fleet.until(trusted, within_s=WITHIN_S, what=f"the worker trusts {name}")


@contextmanager
def _running(kind: type[Broker]) -> Iterator[Broker]:
    broker = kind()
    try:
        broker.start()
    except Missing as missing:
        pytest.skip(str(missing))
    try:
        yield broker
    finally:
        broker.kill()
        shutil.rmtree(broker.directory, ignore_errors=True)
