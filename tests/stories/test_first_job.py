"""A newcomer's first minutes: one command, a job by curl, and it runs; then a clean stop."""

import asyncio

import psutil
import pytest
from started import place, start

from tests.faults.receiver import receiving
from tests.proves import proves


@pytest.mark.timeout(240)
@proves("O6", "S1", "E3")
async def test_one_command_starts_it_all_and_a_posted_job_runs() -> None:
    with place() as home:
        async with receiving() as receiver:
            up = await asyncio.to_thread(start, home)
            try:
                job = await asyncio.to_thread(up.post, "/v1/jobs", {"name": "hello", "url": receiver.url, "payload": 1})
                await receiver.until(1, within_s=10)
                assert receiver.calls[0].job_id == job["id"]
                soon = await asyncio.to_thread(up.post, "/v1/jobs", {"name": "soon", "in": "1s", "url": receiver.url})
                await receiver.until(2, within_s=10)
                assert receiver.calls[1].job_id == soon["id"]
                assert await _state(up, job["id"]) == "SUCCEEDED"
            finally:
                family = [up.process, *up.process.children(recursive=True)]
                assert await asyncio.to_thread(up.stop) == 0
            assert not any(_lives(process) for process in family)


@pytest.mark.timeout(240)
@proves("C11", "P7")
async def test_a_stop_lets_running_attempts_end_and_writes_their_outcome() -> None:
    with place() as home:
        async with receiving() as receiver:
            up = await asyncio.to_thread(start, home)
            receiver.hold.clear()
            job = await asyncio.to_thread(up.post, "/v1/jobs", {"name": "slow", "url": receiver.url})
            await receiver.until(1, within_s=10)
            stopping = asyncio.create_task(asyncio.to_thread(up.stop))
            # The worker is stopped first; its call is answered while it drains.
            await asyncio.to_thread(_until_draining, up.database_url)
            receiver.hold.set()
            assert await stopping == 0
            up = await asyncio.to_thread(start, home)
            try:
                assert await _state(up, job["id"]) == "SUCCEEDED"
                assert len(receiver.calls) == 1
            finally:
                await asyncio.to_thread(up.stop)


async def _state(up: object, job_id: str) -> str:
    """The state of the job's execution once it has ended; bounded by the test's timeout."""
    while True:
        status = await asyncio.to_thread(up.get, f"/v1/jobs/{job_id}/status")  # type: ignore[attr-defined]
        if status["state"] == "ENDED":
            return str(status["status"])
        await asyncio.sleep(0.02)


def _until_draining(url: str) -> None:
    import asyncpg

    async def look() -> None:
        connection = await asyncpg.connect(url)
        try:
            while not await connection.fetchval("SELECT true FROM ondot.worker WHERE state = 'DRAINING'"):
                await asyncio.sleep(0.02)
        finally:
            await connection.close()

    asyncio.run(asyncio.wait_for(look(), 30))


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
