"""From one step to the next: the worker that releases a step hears of it at once; no step is slower for being late."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.results import MAX_ABOVE, _nearest_above
from ondot.model.ids import ExecutionId, PoolNo
from ondot.model.target import FunctionTarget
from ondot.model.workflow.graph import compile_graph
from ondot.model.workflow.spec import StepSpec, WorkflowTarget
from ondot.model.workflow.step_results import Results, StepResults
from ondot.ports.transport import Wake
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.transports.local import LocalTransport
from tests.flow.workflows import advance, start, step
from tests.proves import proves
from tests.world import World

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING = FunctionTarget(name="nothing")
A_PASS = ["BEGIN;", "take_runs", "find_steps", "write_pass", "COMMIT;", "find_with_arrivals"]
"""The statements of an advance: the next step waits for the answer to each but the last."""


async def _record_advance(world: World, run: ExecutionId, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that an advance sends, by name."""
    sent: list[str] = []
    connection_of = Database.connection

    @asynccontextmanager
    async def watched(database: Database) -> AsyncIterator[Connection]:
        async with connection_of(database) as connection:
            with connection.query_logger(lambda query: sent.append(_name_of(query.query))):
                yield connection

    with monkeypatch.context() as patch:
        patch.setattr(Database, "connection", watched)
        await advance(world, run)
    return sent


def _name_of(text: str) -> str:
    return text.split()[2] if text.startswith("-- name: ") else text


@proves("W5")
async def test_an_advance_takes_five_round_trips_until_the_next_step_is_there_and_one_to_look_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"a": step(), "b": step("a"), "c": step("b")})
    for _ in range(2):
        [assignment] = await worker.lease()
        await worker.complete(assignment)
        assert await _record_advance(world, run, monkeypatch) == A_PASS


@proves("W5")
async def test_an_advance_over_many_ends_takes_no_more_round_trips_than_over_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await world.worker()
    sides = {f"s{no}": step() for no in range(50)}
    run = await start(world, worker, {**sides, "join": step(*sides), "last": step("join")})
    for assignment in await worker.lease():
        await worker.complete(assignment)
    assert await _record_advance(world, run, monkeypatch) == A_PASS
    assert [assignment.step.step for assignment in await worker.lease() if assignment.step] == ["join"]


@proves("W5")
async def test_the_worker_that_releases_a_step_is_woken_before_a_message_is_sent() -> None:
    transport = LocalTransport()
    heard: list[Wake] = []
    others: list[Wake] = []
    dispatcher = Dispatcher(transport)
    dispatcher.on_wake = heard.append
    listening = asyncio.create_task(transport.listen([PoolNo(1)], others.append, lambda _beat, _pool_no: None))
    await asyncio.sleep(0)
    dispatcher.wake_here_first([(PoolNo(1), NOW)])
    assert heard == [Wake(PoolNo(1), NOW)]
    assert others == []
    sending = asyncio.create_task(dispatcher.run())
    while not others:
        await asyncio.sleep(0)
    assert others == [Wake(PoolNo(1), NOW)]
    assert len(heard) == 1
    for task in (sending, listening):
        task.cancel()


@proves("W5")
def test_a_step_below_ten_thousand_others_looks_at_the_nearest_of_them_only() -> None:
    steps = {
        f"s{no}": StepSpec(target=NOTHING, depends_on=(f"s{no - 1}",) if no else ()) for no in range(MAX_ABOVE + 2)
    }
    graph = compile_graph(WorkflowTarget(steps=steps))
    last = len(steps) - 1
    names, are_all = _nearest_above(graph, last)
    assert names == [f"s{last - 1 - no}" for no in range(MAX_ABOVE)]
    assert not are_all
    names, are_all = _nearest_above(graph, last - 1)
    assert len(names) == MAX_ABOVE
    assert are_all


def test_a_result_that_is_further_up_than_is_read_is_refused_with_the_way_out() -> None:
    results = Results(StepResults({"near": "1"}, nearest=100))
    assert results["near"] == 1
    with pytest.raises(LookupError, match=r"among the nearest 100 steps .* Refer to it in the payload"):
        results["far"]
    with pytest.raises(LookupError, match="the steps above this one are: near"):
        Results(StepResults({"near": "1"}))["far"]
