"""Enqueue in the caller's own transaction, from Python: no request is sent, and the commit decides."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from ondot import Ondot, Workflow
from ondot.document.parse import job_spec
from ondot.model.errors import InvalidBody, Misconfigured
from ondot.model.execution import State
from ondot.model.ids import JobId
from ondot.sdk.transaction import open_transaction
from ondot.sdk.transaction.specs import spec_of
from ondot.store.connection import Connection
from ondot.telemetry.trace_context import enter_trace
from tests.proves import proves
from tests.servers import Server, connected, new_database
from tests.world import World

NOWHERE = "http://127.0.0.1:1"


@pytest.fixture
async def app() -> AsyncIterator[Ondot]:
    """Its server cannot be reached, so every request fails."""
    async with Ondot(NOWHERE, "key") as app:
        yield app


@pytest.fixture
async def mine(world: World) -> AsyncIterator[Connection]:
    async with world.second_connection() as connection:
        yield connection


@proves("E11", "S1")
async def test_a_job_enqueued_in_a_transaction_runs_after_the_commit(
    world: World, app: Ondot, mine: Connection
) -> None:
    @app.job(retries=5, timeout="2m", priority="high", labels={"team": "bi"})
    async def report(region: str, deep: bool = False) -> None: ...

    async with mine.transaction(), app.transaction(mine):
        handle = await report.enqueue(region="eu")
        assert await world.count("job_once") == 0
    worker = await world.worker()
    assignment = await worker.run_one()
    answer = handle.job
    assert str(assignment.leased.job_id) == handle.id
    assert assignment.payload == b'{"region":"eu"}'
    assert assignment.spec is not None
    assert (assignment.spec.retry.max_retries, assignment.spec.timeout_s) == (5, 120)
    assert (assignment.spec.priority, assignment.spec.labels) == ("high", {"team": "bi"})
    assert await world.states(JobId(assignment.leased.job_id)) == [State.SUCCEEDED]
    assert (answer["name"], answer["state"], answer["version"], answer["next_fire_at"]) == ("report", "ACTIVE", 1, None)
    assert answer["payload"] == {"region": "eu"}


@proves("E11")
async def test_a_job_enqueued_in_a_transaction_that_fails_does_not_exist(
    world: World, app: Ondot, mine: Connection
) -> None:
    @app.job
    async def report() -> None: ...

    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tried
        async with mine.transaction(), app.transaction(mine):
            await report.enqueue()
            await report.options(in_=3600).enqueue()
            raise ZeroDivisionError
    assert [await world.count(table) for table in ("job_once", "execution", "ready", "timer")] == [0, 0, 0, 0]


@proves("E11", "S1")
async def test_schedule_takes_an_instant_or_a_while_by_the_databases_clock(
    world: World, app: Ondot, mine: Connection
) -> None:
    @app.job
    async def report() -> None: ...

    async with mine.transaction(), app.transaction(mine):
        at = await report.options(at=world.after(60)).enqueue()
        later = await report.options(in_=timedelta(minutes=2)).enqueue()
    assert datetime.fromisoformat(at.job["next_fire_at"]) == world.after(60)
    assert [(await world.job(JobId(UUID(one.id)))).next_fire_at for one in (at, later)] == [
        world.after(60),
        world.after(120),
    ]
    assert datetime.fromisoformat(later.job["next_fire_at"]) == world.after(120)


@proves("E11")
async def test_only_the_context_of_the_block_enqueues_through_it(world: World, app: Ondot, mine: Connection) -> None:
    @app.job
    async def report() -> None: ...

    other = Ondot(NOWHERE, "key")

    @other.job(name="report")
    async def of_another_app() -> None: ...

    opened = asyncio.Event()
    looked = asyncio.Event()

    async def beside() -> bool:
        await opened.wait()
        looked.set()
        return open_transaction(app) is None

    async with asyncio.TaskGroup() as group:
        task = group.create_task(beside())
        async with mine.transaction(), app.transaction(mine):
            opened.set()
            await looked.wait()
            assert open_transaction(app) is not None
            assert open_transaction(other) is None
            async with other.transaction(mine):
                await of_another_app.enqueue()
                assert open_transaction(app) is not open_transaction(other)
            # Tasks of the block take turns on its one connection.
            await asyncio.gather(*(report.enqueue() for _ in range(5)))
    assert task.result()
    assert open_transaction(app) is None
    assert await world.count("job_once") == 6


@proves("E11")
async def test_a_task_that_outlives_the_block_is_refused_and_writes_nothing(
    world: World, app: Ondot, mine: Connection
) -> None:
    @app.job
    async def report() -> None: ...

    go = asyncio.Event()

    async def late() -> None:
        await go.wait()
        await report.enqueue()

    async with mine.transaction(), app.transaction(mine):
        task = asyncio.create_task(late())
        await asyncio.sleep(0)
    # The connection's next transaction is none of the task's.
    async with mine.transaction():
        go.set()
        with pytest.raises(RuntimeError, match="is over"):
            await task
    assert await world.count("job_once") == 0


@proves("E11")
async def test_a_connection_without_a_transaction_or_of_another_driver_is_refused(app: Ondot, mine: Connection) -> None:
    with pytest.raises(ValueError, match="in a transaction"):
        async with app.transaction(mine):
            pytest.fail("the block ran")
    with pytest.raises(TypeError, match=r"SELECT ondot\.enqueue"):
        async with app.transaction(object()):
            pytest.fail("the block ran")


@proves("E11")
async def test_arguments_are_checked_as_ever(app: Ondot, mine: Connection, world: World) -> None:
    @app.job
    async def report(region: str) -> None: ...

    async with mine.transaction(), app.transaction(mine):
        with pytest.raises(TypeError, match="it takes"):
            await report.enqueue(regoin="eu")  # type: ignore[call-arg]
        # What was refused here did not reach the database: the transaction goes on.
        await report.enqueue(region="eu")
    assert await world.count("job_once") == 1


@proves("E11", "E16")
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("unique", "report"),
        ("debounce", {"key": "report", "wait": 5}),
        ("throttle", {"key": "report", "per": 60}),
    ],
)
async def test_options_that_need_the_api_are_rejected_and_the_transaction_continues(
    world: World, app: Ondot, mine: Connection, option: str, value: Any
) -> None:
    options: Any = {option: value}

    @app.job(**options)
    async def report() -> None: ...

    @app.job
    async def plain() -> None: ...

    async with mine.transaction(), app.transaction(mine):
        with pytest.raises(InvalidBody, match=f"`{option}` cannot be enqueued in a transaction"):
            await report.enqueue()
        await plain.enqueue()
    assert await world.count("job_once") == 1


@proves("E11", "W1")
async def test_a_workflow_is_rejected_and_the_transaction_continues(world: World, app: Ondot, mine: Connection) -> None:
    @app.job
    async def report() -> None: ...

    @app.workflow
    def nightly(w: Workflow) -> None:
        w.step(report)

    async with mine.transaction(), app.transaction(mine):
        with pytest.raises(InvalidBody, match="A workflow cannot be enqueued in a transaction"):
            await nightly.enqueue()
        await report.enqueue()
    assert await world.count("job_once") == 1


@proves("E11")
async def test_an_error_of_the_database_is_raised_as_that_of_the_api(app: Ondot, mine: Connection) -> None:
    @app.job
    async def report() -> None: ...

    transaction = mine.transaction()
    await transaction.start()
    async with app.transaction(mine):
        with pytest.raises(InvalidBody, match=r"The job cannot be due at 2001-.*\. Give a future instant"):
            await report.options(at="2001-01-01T00:00:00Z").enqueue()
    await transaction.rollback()


@proves("E11")
async def test_a_database_without_ondot_is_reported_as_such(app: Ondot, server: Server) -> None:
    @app.job
    async def report() -> None: ...

    async with new_database(server, template="template1") as url, connected(url) as bare:
        transaction = bare.transaction()
        await transaction.start()
        async with app.transaction(bare):
            with pytest.raises(Misconfigured, match="has no ondot"):
                await report.enqueue()
        await transaction.rollback()


@proves("E11", "E13")
async def test_limits_by_key_apply_to_jobs_enqueued_in_a_transaction(
    world: World, app: Ondot, mine: Connection
) -> None:
    @app.job(concurrency_key="customer:{customer}")
    async def pay(customer: int) -> None: ...

    async with mine.transaction(), app.transaction(mine):
        for customer in (1, 1, 2):
            await pay.enqueue(customer=customer)
    await world.plan()
    worker = await world.worker()
    payloads = [assignment.payload for assignment in await worker.lease()]
    assert sorted(payloads) == [b'{"customer":1}', b'{"customer":2}']


BODIES: list[dict[str, Any]] = [
    {},
    {"payload": {"a": [1, None, "é"]}},
    {"pool": "mail", "priority": "low", "labels": {"team": "bi"}, "timeout": 12.5},
    {"retry": {"max_retries": 0}},
    {"retry": {"backoff": "listed", "delays": ["1s", 60], "max_worker_losses": 1}},
    {"retry": {"initial": "5s", "factor": 3, "max": 90, "jitter": False, "never_on": ["ValueError", 404, 404]}},
    {"start_deadline": 60, "cancel_grace": 0},
    {"concurrency_key": "customer:7"},
    {"concurrency_key": "customer:7", "key_concurrency": 3},
    {"concurrency_key": "customer:7", "key_rate": "10/1m"},
    {"concurrency_key": "customer:7", "key_rate": "5/s", "key_concurrency": 2},
    {"concurrency_key": "c", "key_rate": {"limit": 10, "per": "1h", "burst": 4}, "order_key": "account:1"},
    {"order_key": "account:1"},
    {"concurrency_key": "grüße 7", "order_key": "~" * 200},
]


@proves("E11")
@pytest.mark.parametrize("body", BODIES)
def test_a_body_means_the_same_here_as_over_the_api(body: dict[str, Any]) -> None:
    whole = {"name": "report", "target": {"function": "report"}, **body}
    assert spec_of(whole) == job_spec(whole, datetime(2030, 1, 1, tzinfo=UTC))


@proves("E11")
@pytest.mark.parametrize("key", ["", " ", "x" * 201, "a\nb", "a\u200bb", "\u3164", 7])
@pytest.mark.parametrize("name", ["concurrency_key", "order_key"])
def test_an_invalid_key_is_rejected_before_the_database_is_called(name: str, key: object) -> None:
    with pytest.raises(InvalidBody) as caught:
        spec_of({"name": "report", "target": {"function": "report"}, name: key})
    assert [fault.pointer for fault in caught.value.faults] == [f"/{name}"]


@proves("O3", "E11")
async def test_jobs_enqueued_in_a_transaction_belong_to_the_current_trace(
    world: World, app: Ondot, mine: Connection
) -> None:
    @app.job
    async def report() -> None: ...

    traceparent, tracestate = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "rojo=1"

    async def enqueue() -> None:
        enter_trace(traceparent, tracestate)
        async with mine.transaction(), app.transaction(mine):
            await report.enqueue()
            await report.enqueue_many([report.args(), report.args()])

    await asyncio.create_task(enqueue())  # in a context of its own
    worker = await world.worker()
    specs = [assignment.spec for assignment in await worker.lease()]
    assert [(spec.trace, spec.tracestate) for spec in specs if spec] == [(traceparent, tracestate)] * 3
