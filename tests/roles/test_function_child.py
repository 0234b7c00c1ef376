"""Transactions of functions that run in a child process: the same promises as in the worker (E6, E11, P8)."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ondot.flow.handler_transaction import Transactor
from ondot.flow.lease import Assignment
from ondot.model.execution import Outcome, State
from ondot.model.target import FunctionTarget
from ondot.ports.target import CallReport
from ondot.roles.function_child import CONNECTIONS
from ondot.store.database import open_database
from ondot.targets.function.child import ChildCaller
from ondot.telemetry.metrics import REPEATED, STALE
from tests.conformance.calls import Recorder, a_call
from tests.flow.test_handler_transaction import Shop
from tests.flow.test_recover import lose
from tests.proves import proves
from tests.servers import settings_for
from tests.world import World

STOPS_WITHIN_S = 4.0
"""The moment a function gets, that of its child's exit, and what a busy machine adds."""


@pytest.fixture
async def shop(world: World, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shop]:
    """As in the worker, but that every function runs in a child."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    # The worker sends its children the address of the database: they need no setting.
    monkeypatch.delenv("ONDOT_DATABASE_URL", raising=False)
    await world.value("CREATE TABLE effect (n integer)")
    worker = await world.worker()
    caller = ChildCaller("tests.roles.child_shop:app", module="ondot.roles.function_child", ends_within_s=0.1)
    yield Shop(world, worker, Transactor(world.database, world.dispatcher, worker.id), caller)
    await caller.close()


async def others(shop: Shop) -> int:
    """Connections to the test's database that are not the test's own."""
    all_of_them = await shop.world.value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'"
    )
    return int(all_of_them) - shop.world.database.pool.get_size()


async def lines(shop: Shop) -> list[str]:
    return [row["line"] for row in await shop.world.fetch("SELECT line FROM ondot.log ORDER BY line_no")]


async def nothing_is_left(shop: Shop, *, repeated: float, stale: float) -> None:
    assert (REPEATED.value, STALE.value) == (repeated + 1, stale)
    assert shop.worker.completer.leases == ()
    assert await shop.world.count("lease") == 0
    assert await shop.world.count("dead_letter") == 0
    assert await shop.world.count("attempt") == 0
    assert await shop.world.value("SELECT sum(failures) FROM ondot.streak") == 0


def begin(
    shop: Shop, transactor: Transactor, assignment: Assignment, then: str, recorder: Recorder
) -> asyncio.Task[CallReport]:
    assert assignment.spec is not None
    call = a_call(recorder, paying(then), timeout_s=60.0, transaction=transactor.opener(assignment, assignment.spec))
    return asyncio.create_task(shop.caller.call(FunctionTarget(name="pays"), call))


async def stopped_within_s(shop: Shop, calling: asyncio.Task[CallReport]) -> float:
    assert isinstance(shop.caller, ChildCaller)
    began_s = time.monotonic()
    calling.cancel()
    await asyncio.wait({calling})
    await shop.caller.close()
    assert shop.caller.children == 0
    return time.monotonic() - began_s


def paying(then: str) -> bytes:
    return msgspec.json.encode({"then": then})


@proves("E6", "E11", "P8")
@pytest.mark.parametrize(
    ("then", "reported"),
    [("return", Outcome.SUCCEEDED), ("raise", Outcome.FAILED), ("die", Outcome.WORKER_LOST)],
)
async def test_an_attempt_that_a_child_committed_has_succeeded_even_if_its_worker_reports_otherwise(
    shop: Shop, then: str, reported: Outcome
) -> None:
    before = {"repeated": REPEATED.value, "stale": STALE.value}
    assignment, completion = await shop.run_one("pays", payload=paying(then), pause_after_failures=1)
    assert completion.outcome is reported
    execution = await shop.world.execution(assignment.leased.id)
    assert (execution.state, execution.result) == (State.SUCCEEDED, {"paid": 7})
    assert execution.worker_id == shop.worker.id
    assert await shop.effects() == 1
    await nothing_is_left(shop, **before)
    logged = [line for line in await lines(shop) if "after its transaction was committed" in line]
    assert logged == (
        ["It failed after its transaction was committed: ValueError: too late"] if then == "raise" else []
    )


@proves("E6", "E11")
async def test_a_child_that_dies_in_the_block_had_no_effect(shop: Shop) -> None:
    assignment, completion = await shop.run_one("pays", payload=paying("die inside"))
    assert completion.outcome is Outcome.WORKER_LOST
    assert (await shop.effects(), await shop.state(assignment)) == (0, State.RETRYING)


@proves("E11", "P6")
async def test_an_attempt_that_counts_no_more_has_no_effect_from_a_child_either(shop: Shop) -> None:
    assignment = await shop.lease("pays")
    await lose(shop.world, shop.worker)
    await shop.world.recover()
    completion = await shop.run(assignment)
    assert completion.error is not None
    assert "Stale: Attempt 1" in completion.error
    assert (await shop.effects(), await shop.state(assignment)) == (0, State.RETRYING)


@proves("E11")
async def test_an_attempt_in_a_child_commits_once_and_may_retry_a_rolled_back_transaction(shop: Shop) -> None:
    assignment, completion = await shop.run_one("pays_at_the_second_try")
    assert completion.result is not None
    first, last = msgspec.json.decode(completion.result)
    assert first == "division by zero"
    assert "commits once" in last
    assert (await shop.effects(), await shop.state(assignment)) == (1, State.SUCCEEDED)


@proves("E11")
async def test_a_child_writes_in_the_name_of_the_worker_that_called_it_even_as_a_new_incarnation(shop: Shop) -> None:
    await shop.run_one("pays")
    fresh = await shop.world.worker()
    again = replace(shop, worker=fresh, transactor=Transactor(shop.world.database, shop.world.dispatcher, fresh.id))
    assignment, completion = await again.run_one("pays")
    assert completion.state is State.SUCCEEDED, completion.error
    assert (await shop.world.execution(assignment.leased.id)).worker_id == fresh.id
    assert await shop.effects() == 2


@proves("E11", "L3")
async def test_a_child_connects_only_when_a_transaction_is_asked_for(shop: Shop) -> None:
    await shop.run_one("looks_on")
    assert await others(shop) == 0
    await shop.run_one("pays")
    assert 0 < await others(shop) <= CONNECTIONS


@proves("E11")
async def test_a_function_in_a_child_without_a_database_to_share_raises_what_to_do(shop: Shop) -> None:
    completion = await shop.run(await shop.lease("pays"), shares=False)
    assert completion.error is not None
    assert "idempotency key" in completion.error


@proves("E11")
async def test_a_plain_function_in_a_child_is_asked_to_become_async_and_breaks_nothing(shop: Shop) -> None:
    _, completion = await shop.run_one("pays_in_a_loop_of_its_own")
    assert completion.error is not None
    assert "Make the function `async def`" in completion.error
    await shop.world.fetch("TRUNCATE ondot.ready")
    assignment, _ = await shop.run_one("pays")
    assert (await shop.effects(), await shop.state(assignment)) == (1, State.SUCCEEDED)


@proves("E7", "E11")
async def test_a_block_that_waits_in_a_child_is_rolled_back_at_once_when_the_worker_stops(shop: Shop) -> None:
    assignment, recorder = await shop.lease("pays"), Recorder()
    calling = begin(shop, shop.transactor, assignment, "wait inside", recorder)
    await recorder.line("inside")
    assert await stopped_within_s(shop, calling) < STOPS_WITHIN_S
    assert (await shop.effects(), await shop.state(assignment)) == (0, State.RUNNING)
    async with asyncio.timeout(60):
        # PostgreSQL notices a client's end by itself.
        while await others(shop):
            await asyncio.sleep(0)
    assert await shop.world.value("SELECT count(*) FROM pg_locks WHERE relation = 'effect'::regclass") == 0


@proves("E7", "E11")
async def test_a_database_that_does_not_answer_a_child_does_not_hold_up_the_worker_s_stop(shop: Shop) -> None:
    connected = asyncio.Event()

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        while await reader.read(65_536):
            pass
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    database = await open_database(settings_for(f"postgresql://shop@127.0.0.1:{port}/shop"))
    transactor = Transactor(database, shop.world.dispatcher, shop.worker.id)
    try:
        calling = begin(shop, transactor, await shop.lease("pays"), "return", Recorder())
        async with asyncio.timeout(30):
            await connected.wait()
        assert await stopped_within_s(shop, calling) < STOPS_WITHIN_S
    finally:
        server.close()
        await database.close()
