"""Processes that run and do no work (P13): real ones, with an unread log, or with a loop that hangs."""

import json
from pathlib import Path
from uuid import UUID

import pytest

from tests.faults.fleet import Fleet, Member, a_fleet
from tests.proves import proves


def fill_logs(*members: Member) -> None:
    """From here on the pipe of its log is full, and stays unread."""
    for member in members:
        assert member.launch.pipe is not None
        member.launch.pipe.stop_reading()


@pytest.mark.timeout(180)
@proves("P13", "P5", "L3", "E6")
async def test_roles_with_an_unread_log_plan_recover_and_run(database_url: str, tmp_path: Path) -> None:
    """A scheduler's loop hung in `write()`, kept its partitions with a fresh beat, and recovered nothing."""
    async with a_fleet(database_url, tmp_path, lease_s="0.6", horizon_s="5") as fleet:
        scheduler = fleet.scheduler(piped=True)
        victim, other = fleet.worker(piped=True), fleet.worker("--pool", "other", piped=True)
        await fleet.wait_until_up(scheduler, victim, other)
        fill_logs(scheduler, victim, other)
        # It logs each of these events: nodes that come and go, a worker that is lost, what is recovered.
        [job_id] = await fleet.submit({"function": "works_together", "payload": {"seconds": 3600}, "max_retries": 0})
        await fleet.noted("started", within_s=20)
        await victim.kill()
        second = fleet.worker()
        await fleet.noted("started", count=2, within_s=20)
        # Beyond the horizon: a scheduler has to plan it.
        [later] = await fleet.submit({"function": "naps", "in": "7s", "pool": "other"})
        [row] = await fleet.ended([later], within_s=20)
        assert row["state"] == "SUCCEEDED"
        losses = await fleet.connection.fetchval("SELECT losses FROM ondot.execution WHERE job_id = $1", job_id)
        assert losses == 1
        assert second.is_up
        assert scheduler.launch.pipe is not None
        assert scheduler.events("worker.lost") == []
        scheduler.launch.pipe.read_again()
        await fleet.logged(scheduler, "worker.lost", within_s=20)
        await fleet.logged(scheduler, "executions.recovered", within_s=20)
        assert await scheduler.stop() == 0


@pytest.mark.timeout(240)
@proves("P13", "P5", "P7", "L3", "E6", "E7", "E8")
async def test_a_function_that_blocks_its_workers_loop_costs_a_takeover_and_then_runs_in_a_child(
    database_url: str, tmp_path: Path
) -> None:
    """The only worker was ALIVE for ever, with the function, its neighbours and their cancels hung in it."""
    async with a_fleet(database_url, tmp_path) as fleet:
        scheduler, worker = fleet.scheduler(), fleet.worker()
        await fleet.wait_until_up(scheduler, worker)
        pid = worker.process.pid
        [neighbour] = await fleet.submit({"function": "works_together", "payload": {"seconds": 3}, "max_retries": 0})
        await fleet.noted("started", within_s=20)
        body = {"function": "blocks_its_loop", "timeout": "1s", "max_retries": 0}
        [blocker] = await fleet.submit(body)
        [stalled] = await fleet.logged(worker, "loop.stalled", within_s=20)
        assert stalled["function"] == "blocks_its_loop"
        assert "time.sleep(seconds)" in stalled["stack"]
        assert "hostile.py" in stalled["where"]
        rows = await fleet.ended([neighbour, blocker], within_s=60)
        assert [row["state"] for row in rows] == ["SUCCEEDED", "FAILED"]
        assert [row["losses"] for row in rows] == [1, 1]
        attempts = await fleet.attempts(rows[1]["id"])
        assert [attempt["outcome"] for attempt in attempts] == ["WORKER_LOST", "TIMED_OUT"]
        error = json.loads(attempts[0]["error"])
        assert error["code"] == "loop_blocked"
        assert "blocks_its_loop" in error["message"]
        assert "hostile.py" in error["message"]
        [of_neighbour] = await fleet.attempts(rows[0]["id"])
        assert str(rows[1]["id"]) in json.loads(of_neighbour["error"])["message"]
        started = [
            note for note in await fleet.noted("started", within_s=1) if note["execution_id"] == str(rows[1]["id"])
        ]
        assert started[0]["pid"] == pid
        assert pid not in {note["pid"] for note in started[1:]}
        # The process is the same, as another incarnation. Another execution of the function goes to a child at once,
        # where a cancel ends it.
        assert worker.process.pid == pid
        assert worker.runs
        [again] = await fleet.submit({"function": "blocks_its_loop", "cancel_grace": "0s"})
        notes = await fleet.noted("started", count=5, within_s=20)
        assert notes[-1]["pid"] != pid
        await fleet.cancel(UUID(notes[-1]["execution_id"]))
        [row] = await fleet.ended([again], within_s=30)
        assert (row["state"], row["losses"]) == ("CANCELLED", 0)
        assert len(worker.events("loop.stalled")) == 1
        assert await worker.stop() == 0


async def owned(fleet: Fleet, member: Member) -> int:
    """How many partitions the node of this process owns; by its latest row."""
    count: int = await fleet.connection.fetchval(
        "SELECT count(*) FROM ondot.partition p JOIN ondot.node n ON n.id = p.owner"
        " WHERE n.pid = $1 AND n.expires_at > ondot.clock()",
        member.process.pid,
    )
    return count


async def owns(fleet: Fleet, member: Member, count: int) -> None:
    async def does() -> bool | None:
        return await owned(fleet, member) == count or None

    await fleet.until(does, within_s=20, what=f"{member.name} owns {count}")


@pytest.mark.timeout(240)
@proves("P13", "L2", "C1")
async def test_the_partitions_of_a_hung_scheduler_are_taken_over_and_it_continues_when_it_moves_or_as_another(
    database_url: str, tmp_path: Path
) -> None:
    """It kept them for ever: its thread went on beating."""
    async with a_fleet(database_url, tmp_path, lease_s="3") as fleet:
        first, second = fleet.scheduler(), fleet.scheduler()
        await fleet.wait_until_up(first, second)
        await owns(fleet, first, 32)
        await owns(fleet, second, 32)
        # For a moment: it is reported, and goes on.
        first.hang()
        [stalled] = await fleet.logged(first, "loop.stalled", within_s=20)
        assert "hangs.py" in stalled["where"]
        first.move()
        await fleet.logged(first, "loop.moves", within_s=20)
        await owns(fleet, first, 32)
        # For ever: others take over, it is to be seen, and the process begins again.
        first.hang()
        await owns(fleet, second, 64)
        where = await fleet.connection.fetchval("SELECT stalled_in FROM ondot.node WHERE stalled_at IS NOT NULL")
        assert "hangs.py" in where
        await fleet.logged(first, "process.hung", within_s=20)
        await fleet.logged(first, "scheduler.started", count=2, within_s=20)
        await owns(fleet, first, 32)
        assert await first.stop() == 0
        assert await second.stop() == 0


@pytest.mark.timeout(240)
@proves("P13", "O6")
async def test_a_hung_process_that_is_asked_to_stop_ends(database_url: str, tmp_path: Path) -> None:
    async with a_fleet(database_url, tmp_path, lease_s="1") as fleet:
        scheduler = fleet.scheduler()
        await fleet.wait_until_up(scheduler)
        scheduler.hang()
        assert await scheduler.stop() == 1
        assert scheduler.events("process.hung")[0]["then"] == "the process ends by force"


@pytest.mark.timeout(240)
@proves("P13", "E8", "L3")
async def test_a_cancel_of_an_execution_on_a_hung_worker_is_obeyed(database_url: str, tmp_path: Path) -> None:
    """The stop was acknowledged and never obeyed: no thread was left to obey it, and no process took over."""
    async with a_fleet(database_url, tmp_path) as fleet:
        await fleet.wait_until_up(fleet.scheduler(), fleet.worker())
        jobs = await fleet.submit(
            {"function": "works_together", "payload": {"seconds": 3600}, "cancel_grace": "1s"},
            {"function": "blocks_its_loop", "cancel_grace": "1s"},
        )
        started = await fleet.noted("started", count=2, within_s=20)
        for note in started:
            await fleet.cancel(UUID(note["execution_id"]))
        rows = await fleet.ended(jobs, within_s=30)
        assert [row["state"] for row in rows] == ["CANCELLED", "CANCELLED"]
        assert len(await fleet.noted("started", count=2, within_s=1)) == 2, "it was not called again"
