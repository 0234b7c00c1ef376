"""From one step to the next: the worker that releases a step hears of it at once; no step is slower for being late."""

import asyncio
from datetime import UTC, datetime

import pytest

from ondot.flow.dispatch import Dispatcher
from ondot.flow.workflows.results import MAX_ABOVE, _nearest_above
from ondot.model.ids import PoolNo
from ondot.model.target import FunctionTarget
from ondot.model.workflow.graph import compile_graph
from ondot.model.workflow.spec import StepSpec, WorkflowTarget
from ondot.model.workflow.step_results import Results, StepResults
from ondot.ports.transport import Wake
from ondot.transports.local import LocalTransport
from tests.proves import proves

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOTHING = FunctionTarget(name="nothing")


@proves("W5")
async def test_the_worker_that_releases_a_step_is_woken_before_a_message_is_sent() -> None:
    transport = LocalTransport()
    heard: list[Wake] = []
    others: list[Wake] = []
    dispatcher = Dispatcher(transport)
    dispatcher.on_wake = heard.append
    listening = asyncio.create_task(transport.listen(others.append))
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
