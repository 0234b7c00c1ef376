"""The life of a job from one end to the other, stage by stage."""

from ondot.model.execution import State
from tests.proves import proves
from tests.world import World, job, once


@proves("S1", "E5", "P7", "P8")
async def test_a_job_goes_from_submit_over_plan_and_lease_to_its_completion(world: World) -> None:
    accepted = await world.submit(job(schedule=once(world.after(60))))
    assert await world.states() == []
    await world.advance(50)
    assert await world.plan() == 1
    assert await world.states() == [State.PENDING]

    worker = await world.worker()
    assert await worker.lease() == []
    await world.advance(10)
    [assignment] = await worker.lease()
    assert assignment.leased.job_id == accepted.id
    assert await world.states() == [State.RUNNING]

    await worker.complete(assignment)
    [execution] = await world.executions(accepted.id)
    assert execution.state is State.SUCCEEDED
    assert execution.result == "done"
    assert await world.count("lease") == 0
