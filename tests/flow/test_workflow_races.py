"""Last parents that end at the same moment, in processes of their own, and processes that die between the end of a step
and the advance of its run (W1)."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.flow.workflows import keep_house, run_state, run_steps, start, step, step_of, step_states
from tests.proves import proves
from tests.world import World

JOIN = {"a": step(), "b": step(), "join": step("a", "b")}
PATIENCE_S = 60


class StepWorker:
    """`tests.flow.step_worker` in its own process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n".encode())
        async with asyncio.timeout(PATIENCE_S):
            return (await self._process.stdout.readline()).decode().strip()

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def step_worker(world: World) -> AsyncIterator[StepWorker]:
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.flow.step_worker", world.url)
    worker = StepWorker(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))
    try:
        yield worker
    finally:
        await worker.kill()


@proves("W1")
async def test_the_last_parents_of_a_join_that_end_in_two_processes_at_once_never_strand_it(world: World) -> None:
    own = await world.worker()
    async with step_worker(world) as one, step_worker(world) as other:
        for _ in range(200):
            run = await start(world, own, JOIN)
            assert [await one.ask("lease 1"), await other.ask("lease 1")] == ["1", "1"]
            answers = await asyncio.gather(*(worker.ask("finish") for worker in (one, other)))
            assert answers == ["finish", "finish"]
            [join] = await own.lease()
            assert step_of(join) == "join"
            await own.complete(join)
            assert await run_steps(world, own, run) == []
            await world.advance(2)
            await keep_house(world)
            assert await run_state(world, run) == "SUCCEEDED"
    assert await world.count("arrival") == 0


@proves("W1", "E11")
@pytest.mark.parametrize("last", [1, 2])
async def test_a_worker_killed_between_the_ends_of_the_last_parents_and_the_advance_strands_nothing(
    world: World, last: int
) -> None:
    own = await world.worker()
    async with step_worker(world) as doomed:
        run = await start(world, own, JOIN)
        assert await doomed.ask(f"lease {last}") == str(last)
        others = await own.lease()
        await own.complete_all(others)
        assert await doomed.ask("complete") == "complete"
        await doomed.kill()
    assert await own.lease() == []
    await world.advance(2)
    await keep_house(world)
    assert await run_steps(world, own, run) == [["join"]]
    assert await step_states(world, run) == dict.fromkeys(JOIN, "SUCCEEDED")


@proves("W1")
async def test_bursts_of_ends_in_several_processes_leave_no_run_stranded(world: World) -> None:
    """Advances that find the row locked do nothing: the holder has to look again after its commit."""
    own = await world.worker()
    steps = {f"s{n}": step() for n in range(16)}
    async with step_worker(world) as one, step_worker(world) as two, step_worker(world) as three:
        workers = (one, two, three)
        for _ in range(25):
            run = await start(world, own, {**steps, "join": step(*steps)})
            assert [await worker.ask("lease 4") for worker in workers] == ["4", "4", "4"]
            rest = await own.lease()
            assert len(rest) == 4

            async def finish_own() -> str:
                for assignment in rest:  # noqa: B023 - it is awaited in this round
                    await own.complete(assignment)
                    await keep_house(world)
                return "finish"

            answers = await asyncio.gather(finish_own(), *(worker.ask("finish") for worker in workers))
            assert answers == ["finish"] * 4
            await world.advance(2)
            await keep_house(world)
            assert await run_steps(world, own, run) == [["join"]]
            assert await run_state(world, run) == "SUCCEEDED"
