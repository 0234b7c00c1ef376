"""A worker that does not have a function returns its executions without cost, and they run when one has it (D1)."""

import msgspec

from ondot.flow.explain import explain_execution
from ondot.flow.unknown_calls import known_calls_pass
from ondot.model.execution import State
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.outcome import NoFunction
from ondot.model.target import FunctionTarget
from ondot.store.known_functions import ALL_TENANTS, register_functions
from tests.proves import proves
from tests.world import FUNCTIONS, OF_WORLD, Worker, World, job

UNKNOWN = NoFunction("export", "This worker has no function 'export'; it has: report.")
EXPORT = FunctionTarget(name="export")


async def return_one(world: World, **fields: object) -> Worker:
    """A worker that does not have the function of a new job, and has returned it."""
    await world.submit(job("nightly", target=EXPORT, **fields))
    await world.plan()
    worker = await world.worker()
    await worker.run_one(UNKNOWN)
    return worker


async def register_export(world: World) -> None:
    async with world.database.connection() as connection:
        declared = [msgspec.structs.replace(FUNCTIONS[0], name="export"), *FUNCTIONS]
        await register_functions(connection, ALL_TENANTS, OF_WORLD, declared)


@proves("D1")
async def test_an_execution_of_an_unknown_function_returns_without_cost_and_is_not_leased_again(world: World) -> None:
    worker = await return_one(world)

    [execution] = await world.executions()
    assert (execution.state, execution.failures, execution.losses) == (State.PENDING, 0, 0)
    assert await worker.lease() == []
    await world.advance(60)
    assert await known_calls_pass(world.database, world.dispatcher) == 0
    assert await worker.lease() == [], "nobody has it yet"


@proves("D1")
async def test_it_runs_as_soon_as_a_worker_has_registered_the_function(world: World) -> None:
    worker = await return_one(world)
    await register_export(world)

    assert await known_calls_pass(world.database, world.dispatcher) == 1
    await worker.run_one()

    assert await world.states() == [State.SUCCEEDED]
    assert await world.count("unknown_call") == 0


@proves("D1")
async def test_one_with_limits_keeps_its_place_and_frees_its_slot_for_others(world: World) -> None:
    limits = Limits(key="exports", key_concurrency=1)
    worker = await return_one(world, limits=limits)
    other = await world.submit(job("other", limits=limits))
    await world.plan()
    await worker.run_one()
    assert await world.states(other.id) == [State.SUCCEEDED], "a function that nobody has must not hold up the key"

    await register_export(world)
    assert await known_calls_pass(world.database, world.dispatcher) == 1
    await worker.run_one()
    assert await world.states() == [State.SUCCEEDED, State.SUCCEEDED]


@proves("D1")
async def test_after_an_hour_it_is_tried_again_and_what_ended_is_forgotten(world: World) -> None:
    worker = await return_one(world)
    await world.advance(3601)
    await worker.run_one()

    assert await world.states() == [State.SUCCEEDED]
    assert await world.count("unknown_call") == 1
    await world.retain()
    assert await world.count("unknown_call") == 0


@proves("D1", "E17")
async def test_explain_names_the_function_that_no_live_worker_has(world: World) -> None:
    await return_one(world)
    [execution] = await world.executions()

    explained = await explain_execution(world.database, DEFAULT_TENANT, execution.id)

    assert explained.summary == "No worker has registered its function 'export'. Did you mean 'report'?"
    assert [reason.code for reason in explained.reasons] == ["no_function"]
    assert explained.may_start_at is None


@proves("D1", "E17")
async def test_explain_names_the_pools_whose_workers_have_the_function(world: World) -> None:
    async with world.database.connection() as connection:
        gpu = (await world.database.pools.register(connection, ["gpu"]))["gpu"]
    await world.worker(pool_nos=[gpu])
    await world.worker()
    await world.fetch("UPDATE ondot.worker SET app = NULL WHERE NOT pool_nos @> ARRAY[$1::integer]", gpu)
    await world.submit(job("nightly"))
    await world.plan()
    [execution] = await world.executions()

    explained = await explain_execution(world.database, DEFAULT_TENANT, execution.id)

    assert explained.summary == (
        "No live worker of the pool 'default' has its function 'report'; those of 'gpu' have it."
    )
