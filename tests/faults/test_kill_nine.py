"""`kill -9` of everything in the middle of a thousand jobs: every job runs, none twice without a recorded cause."""

import asyncio
from collections import Counter
from typing import Any

import pytest
from started import Started, place, start

from tests.faults.receiver import receiving
from tests.proves import proves

JOBS = 1_000
SETTINGS = {"ONDOT_HEARTBEAT_S": "2", "ONDOT_LEASE_S": "1"}


@pytest.mark.timeout(360)
@proves("P1", "P3", "P5", "P7", "P8", "E6", "O6")
async def test_every_job_survives_a_kill_of_the_whole_process_group() -> None:
    with place() as home:
        async with receiving() as receiver:
            up = await asyncio.to_thread(start, home, "--slots", "50", **SETTINGS)
            try:
                bodies = [{"name": f"job {n}", "url": receiver.url, "max_retries": 0} for n in range(JOBS)]
                created = await asyncio.to_thread(up.post, "/v1/jobs/batch", {"jobs": bodies})
                await receiver.until(JOBS // 4, within_s=30)
                # Some are in the middle of their call when every process dies.
                receiver.hold.clear()
                await receiver.until(JOBS // 4 + 25, within_s=30)
            finally:
                up.kill()
            receiver.hold.set()
            up = await asyncio.to_thread(start, home, "--slots", "50", **SETTINGS)
            try:
                ended = await _until_all_ended(up)
                executions = {item["id"]: item for item in ended}
                assert Counter(item["state"] for item in ended) == {"SUCCEEDED": JOBS}
                assert {item["job_id"] for item in ended} == {item["id"] for item in created["items"]}
                calls = Counter(call.execution_id for call in receiver.calls)
                assert set(calls) == set(executions)
                again = [id_ for id_, count in calls.items() if count > 1]
                for id_ in again:
                    execution = await asyncio.to_thread(up.get, f"/v1/executions/{id_}")
                    outcomes = [attempt["outcome"] for attempt in execution["attempts"]]
                    assert outcomes == ["WORKER_LOST"] * (len(outcomes) - 1) + ["SUCCEEDED"]
                    assert calls[id_] <= len(outcomes)
                log = (home / "postgresql.log").read_text()
                assert "was not properly shut down" not in log
            finally:
                assert await asyncio.to_thread(up.stop) == 0


async def _until_all_ended(up: Started) -> list[dict[str, Any]]:
    """Wait until all executions have ended, bounded by the test's own timeout; return them."""
    while True:
        items: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = await asyncio.to_thread(up.get, f"/v1/executions?limit=1000{cursor}")
            items += page["items"]
            if page["next_cursor"] is None:
                break
            cursor = f"&cursor={page['next_cursor']}"
        if len(items) == JOBS and all(item["ended_at"] for item in items):
            return items
        await asyncio.sleep(0.1)


@pytest.mark.timeout(240)
@proves("E6", "L3", "P7", "C11")
async def test_a_worker_killed_in_the_middle_of_a_call_is_started_again_and_its_work_too() -> None:
    with place() as home:
        async with receiving() as receiver:
            up = await asyncio.to_thread(start, home, **SETTINGS)
            try:
                receiver.hold.clear()
                job = await asyncio.to_thread(up.post, "/v1/jobs", {"name": "slow", "url": receiver.url})
                await receiver.until(1, within_s=20)
                [worker] = [child for child in up.process.children() if "worker" in child.cmdline()]
                worker.kill()
                receiver.hold.set()
                await receiver.until(2, within_s=30)
                assert [call.attempt for call in receiver.calls] == [1, 2]
                assert len({call.execution_id for call in receiver.calls}) == 1
                execution = await _until_ended(up, receiver.calls[0].execution_id)
                assert (execution["job_id"], execution["losses"], execution["failures"]) == (job["id"], 1, 0)
                assert [attempt["outcome"] for attempt in execution["attempts"]] == ["WORKER_LOST", "SUCCEEDED"]
            finally:
                assert await asyncio.to_thread(up.stop) == 0


async def _until_ended(up: Started, execution_id: str) -> dict[str, Any]:
    while True:
        execution: dict[str, Any] = await asyncio.to_thread(up.get, f"/v1/executions/{execution_id}")
        if execution["ended_at"]:
            return execution
        await asyncio.sleep(0.02)
