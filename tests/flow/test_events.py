"""Senders of events and changes of the jobs that they start, at the same time (S11, P1, P10)."""

import asyncio
from typing import Any

import pytest

from ondot.flow.change import change
from ondot.flow.dispatch import Dispatcher
from ondot.flow.events.receive import EventReceiver
from ondot.model.errors import InvalidBody
from ondot.model.event import Event, read_event
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.schedule import OnEvent, Schedule
from ondot.model.target import FunctionTarget
from ondot.model.workflow.spec import StepSpec, WorkflowTarget
from ondot.store.database import open_database
from ondot.store.events import Answer, EventFilter, find_event_of, list_events
from ondot.transports.polling import PollingTransport
from tests.flow.checking import Checker, own_partitions
from tests.proves import proves
from tests.servers import settings_for
from tests.world import World, job

PAID = "order.paid"


def paid(id_: object, **data: Any) -> Event:
    return read_event({"specversion": "1.0", "id": str(id_), "source": "/shop", "type": PAID, "data": data})


def on_paid(**rule: Any) -> Schedule:
    return Schedule(when=OnEvent(type=PAID, **rule))


async def count(world: World, job_id: JobId) -> int:
    rows = await world.fetch("SELECT count(*) FROM ondot.execution WHERE job_id = $1", job_id)
    return int(rows[0][0])


@pytest.fixture
async def receivers(world: World) -> Any:
    """Two processes that receive events: each with its own connections and its own knowledge of the jobs."""
    databases = [await open_database(settings_for(world.url)) for _ in range(2)]
    for database in databases:
        await database.read_clock()
    yield [EventReceiver(database, Dispatcher(PollingTransport())) for database in databases]
    for database in databases:
        await database.close()


@proves("S11", "P2")
async def test_two_processes_that_get_the_same_event_at_once_start_it_once(
    world: World, receivers: list[EventReceiver]
) -> None:
    accepted = await world.submit(job(schedule=on_paid()))
    for number in range(20):
        answers = await asyncio.gather(
            *(one.receive(DEFAULT_TENANT, [paid(number)]) for one in receivers for _ in range(4))
        )
        assert len({(answer[0].id, tuple(answer[0].executions)) for answer in answers}) == 1
    assert await count(world, accepted.id) == 20


@proves("S11", "P10")
async def test_no_execution_follows_an_acknowledged_delete_and_none_is_missed_after_a_create(
    world: World, receivers: list[EventReceiver]
) -> None:
    steady = await world.submit(job(schedule=on_paid(), key="steady"))
    gone: list[JobId] = []
    sent = 0
    is_over = asyncio.Event()

    async def send(receiver: EventReceiver, name: str) -> list[Answer]:
        nonlocal sent
        answers: list[Answer] = []
        while not is_over.is_set():
            sent += 1
            answers += await receiver.receive(DEFAULT_TENANT, [paid(f"{name}-{sent}")])
        return answers

    async def come_and_go() -> None:
        for _ in range(15):
            accepted = await world.submit(job(schedule=on_paid()))
            # Created and acknowledged: this event must start it, in a process that has not heard of it.
            [answer] = await receivers[1].receive(DEFAULT_TENANT, [paid(f"after-{accepted.id}")])
            rows = await world.fetch(
                "SELECT execution_id FROM ondot.event_match WHERE event_id = $1 AND job_id = $2", answer.id, accepted.id
            )
            assert [row["execution_id"] in answer.executions for row in rows] == [True]
            await change.delete(world.database, DEFAULT_TENANT, accepted.id)
            # Deleted and acknowledged: nothing waits, and no event starts it from now on.
            assert await count(world, accepted.id) == 0
            [answer] = await receivers[0].receive(DEFAULT_TENANT, [paid(f"gone-{accepted.id}")])
            rows = await world.fetch(
                "SELECT FROM ondot.event_match WHERE event_id = $1 AND job_id = $2", answer.id, accepted.id
            )
            assert rows == []
            gone.append(accepted.id)

    senders = [asyncio.create_task(send(one, str(n))) for n, one in enumerate([*receivers, *receivers])]
    try:
        await come_and_go()
    finally:
        is_over.set()
        answers = [answer for each in await asyncio.gather(*senders) for answer in each]
    for job_id in gone:
        assert await count(world, job_id) == 0
    assert all(answer.matched >= 1 for answer in answers)
    assert await count(world, steady.id) == len(answers) + 2 * len(gone)


@proves("S11")
async def test_a_repeated_event_is_known_after_a_restart_and_without_the_job(
    world: World, receivers: list[EventReceiver]
) -> None:
    accepted = await world.submit(job(schedule=on_paid()))
    [first] = await receivers[0].receive(DEFAULT_TENANT, [paid(1)])
    await change.delete(world.database, DEFAULT_TENANT, accepted.id)
    assert await EventReceiver(world.database, world.dispatcher).receive(DEFAULT_TENANT, [paid(1)]) == [first]


@proves("S11")
async def test_concurrent_requests_share_a_commit_and_each_gets_its_own_answers(world: World) -> None:
    accepted = await world.submit(job(schedule=on_paid(filter='{"data":{"n":[{"numeric":[">",4]}]}}')))
    receiver = EventReceiver(world.database, world.dispatcher)
    requests = [[paid(f"{n}-{m}", n=m) for m in range(n)] for n in range(1, 9)]
    answers = await asyncio.gather(*(receiver.receive(DEFAULT_TENANT, events) for events in requests))
    assert [[answer.matched for answer in each] for each in answers] == [
        [int(m > 4) for m in range(n)] for n in range(1, 9)
    ]
    assert await count(world, accepted.id) == sum(answer.matched for each in answers for answer in each)
    started = answers[-1][-1]
    async with world.database.connection() as connection:
        assert await find_event_of(connection, DEFAULT_TENANT, started.executions[0]) == started.id


@proves("S11")
async def test_an_event_that_the_database_refuses_fails_alone(world: World) -> None:
    await world.submit(job(schedule=on_paid()))
    receiver = EventReceiver(world.database, world.dispatcher)
    good = paid("good")
    bad = Event("bad", "/shop", PAID, None, None, {}, "not json")
    results = await asyncio.gather(
        receiver.receive(DEFAULT_TENANT, [good]),
        receiver.receive(DEFAULT_TENANT, [bad]),
        receiver.receive(DEFAULT_TENANT, [paid("also")]),
        return_exceptions=True,
    )
    assert [isinstance(result, list) for result in results] == [True, False, True]


@proves("S11", "O1")
async def test_a_job_that_waits_for_events_is_not_removed_with_ended_jobs(world: World) -> None:
    accepted = await world.submit(job(schedule=on_paid()))
    await world.advance(400 * 86_400)
    await world.retain()
    [answer] = await EventReceiver(world.database, world.dispatcher).receive(DEFAULT_TENANT, [paid(1)])
    assert answer.matched == 1
    await change.delete(world.database, DEFAULT_TENANT, accepted.id)
    await world.advance(400 * 86_400)
    await world.retain()
    assert await world.fetch("SELECT FROM ondot.job WHERE id = $1", accepted.id) == []


@proves("S11", "C4")
async def test_the_self_check_finds_nothing_wrong_with_a_job_that_waits_for_events(world: World) -> None:
    await world.submit(job(schedule=on_paid()))
    await EventReceiver(world.database, world.dispatcher).receive(DEFAULT_TENANT, [paid(1)])
    await own_partitions(world)
    checker = Checker(world)
    await checker.look_twice()
    assert await checker.counts() == {}


@proves("S11")
async def test_an_event_that_would_take_long_to_match_is_refused_and_others_are_not(world: World) -> None:
    tests = ",".join(f'{{"wildcard":"*{n}*a*"}}' for n in range(50))
    rule = on_paid(filter=f'{{"data":{{"list":[{tests}]}}}}')
    await world.submit_all([job(schedule=rule) for _ in range(200)])
    receiver = EventReceiver(world.database, world.dispatcher)
    large = paid("large", list=["x"] * 50_000)
    results = await asyncio.gather(
        receiver.receive(DEFAULT_TENANT, [large]),
        receiver.receive(DEFAULT_TENANT, [paid("small", list=["x"] * 5)]),
        return_exceptions=True,
    )
    assert isinstance(results[0], InvalidBody)
    assert "several events" in results[0].message
    assert isinstance(results[1], list)
    async with world.database.connection() as connection:
        assert len(await list_events(connection, DEFAULT_TENANT, EventFilter(), limit=10)) == 1


@proves("S11", "W1")
async def test_an_event_starts_a_run_of_a_workflow_with_its_data(world: World) -> None:
    steps = {"first": StepSpec(target=FunctionTarget(name="first"))}
    payload = b'{"order":{"$from":"event.data.order"}}'
    accepted = await world.submit(job("flow", target=WorkflowTarget(steps=steps), schedule=on_paid(), payload=payload))
    [answer] = await EventReceiver(world.database, world.dispatcher).receive(DEFAULT_TENANT, [paid(1, order="A-1")])
    worker = await world.worker()
    [assignment] = await worker.lease()
    assert (assignment.leased.id, assignment.leased.job_id) == (answer.executions[0], accepted.id)
    assert assignment.payload == b'{"order":"A-1"}'
