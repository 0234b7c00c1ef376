"""Hostile handlers in real workers on a real PostgreSQL, and the damage that they do (E6, E7, E8, E11).

Every test starts `ondot scheduler` and `ondot worker tests.faults.hostile:app` as separate processes, runs the handlers
of `tests.faults.hostile`, and compares the database, the receiver's calls and the handlers' own notes.
"""

import asyncio
import json
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest

from tests.faults.fleet import Fleet, Member, a_fleet
from tests.faults.receiver import receiving
from tests.proves import proves

pytestmark = pytest.mark.timeout(270)

REACHED_WITHIN_S = 15.0
"""Two seconds are promised and reached on a quiet machine; this one may be busy."""


def function(name: str, timeout: str = "60s", **more: Any) -> dict[str, Any]:
    payload = more.pop("payload", {})
    return {"target": {"function": name}, "payload": payload, "timeout": timeout, **more}


def shell(script: str, **more: Any) -> dict[str, Any]:
    return {"target": {"shell": {"command": ["sh", "-c", script]}}, **more}


@pytest.fixture
async def fleet(database_url: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    async with a_fleet(database_url, tmp_path) as fleet:
        fleet.scheduler()
        yield fleet


async def incarnations(fleet: Fleet, pid: int) -> list[dict[str, Any]]:
    rows = await fleet.connection.fetch("SELECT * FROM ondot.worker WHERE pid = $1 ORDER BY started_at", pid)
    return [dict(row) for row in rows]


# Those that will not end ---------------------------------------------------------------------------------------------


@proves("E7", "E6")
async def test_a_plain_function_that_never_returns_restarts_its_process_and_harms_no_other_execution(
    fleet: Fleet,
) -> None:
    worker = fleet.worker()
    neighbours = await fleet.submit(*[function("naps", payload={"seconds": 2.0}) for _ in range(10)])
    [hanging] = await fleet.submit(function("hangs", timeout="1s", retry={"max_retries": 0}))

    [ended] = await fleet.ended([hanging], within_s=30)

    [attempt] = await fleet.attempts(ended["id"])
    assert (ended["state"], attempt["outcome"]) == ("FAILED", "TIMED_OUT")
    assert json.loads(attempt["error"])["code"] == "timeout"
    assert 1.0 <= (attempt["ended_at"] - attempt["started_at"]).total_seconds() < 20.0
    assert [row["state"] for row in await fleet.ended(neighbours, within_s=30)] == ["SUCCEEDED"] * 10
    assert {row["attempt_no"] for row in await fleet.ended(neighbours, within_s=1)} == {1}

    await fleet.logged(worker, "worker.recycled", within_s=20)
    [again] = await fleet.submit(function("naps"))
    [row] = await fleet.ended([again], within_s=30)
    lives = await incarnations(fleet, worker.process.pid)
    assert worker.runs
    assert len(lives) == 2
    assert (row["state"], row["worker_id"]) == ("SUCCEEDED", lives[1]["id"])
    assert lives[0]["state"] == "GONE"


@proves("E7", "E8")
async def test_an_async_function_that_swallows_its_cancellation_restarts_its_process_too(
    fleet: Fleet,
) -> None:
    worker = fleet.worker()
    [job] = await fleet.submit(
        function("swallows_its_cancellation", timeout="0.5s", cancel_grace="0.5s", retry={"max_retries": 0})
    )
    [ended] = await fleet.ended([job], within_s=30)
    assert (ended["state"], json.loads(ended["error"])["code"]) == ("FAILED", "timeout")
    await fleet.logged(worker, "worker.unfit", within_s=10)
    await fleet.logged(worker, "worker.recycled", within_s=30)


@proves("E7")
async def test_a_program_and_a_grandchild_that_ignores_term_are_both_gone_after_the_timeout(
    fleet: Fleet, tmp_path: Path
) -> None:
    fleet.worker()
    pids = tmp_path / "pids"
    stubborn = tmp_path / "stubborn"
    stubborn.write_text(f"trap '' TERM; echo $$ >>{pids}; while :; do sleep 0.1; done")
    script = f"sh -c 'sh {stubborn} & wait' & setsid sh {stubborn} & echo $$ >>{pids}; wait; sleep 60"
    [job] = await fleet.submit(
        shell(script, timeout="2s", cancel_grace="1s", retry={"max_retries": 0}),
    )

    [ended] = await fleet.ended([job], within_s=30)

    [attempt] = await fleet.attempts(ended["id"])
    assert attempt["outcome"] == "TIMED_OUT"
    begun = [int(line) for line in pids.read_text().split()]
    assert len(begun) == 3
    assert [pid for pid in begun if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []


async def is_flood_cut(fleet: Fleet, execution_id: UUID) -> bool:
    lines = await fleet.connection.fetch("SELECT line FROM ondot.log WHERE execution_id = $1", execution_id)
    return 0 < len(lines) <= 2_200 and any("cut" in row["line"] or "not shown" in row["line"] for row in lines)


@proves("E14", "E7")
async def test_a_flood_of_output_is_cut_and_marked_so_and_leaks_and_forks_do_no_harm(fleet: Fleet) -> None:
    fleet.worker()
    flood, program, *others = await fleet.submit(
        function("floods"),
        shell("yes 'a flood of the shell' | head -n 2000000", timeout="30s"),
        *[function("leaks")] * 5,
        *[function("forks")] * 3,
        function("starts_children"),
        *[function("naps")] * 5,
    )

    rows = await fleet.ended([flood, program, *others], within_s=60)

    assert Counter(row["state"] for row in rows) == {"SUCCEEDED": 16}
    assert [await is_flood_cut(fleet, row["id"]) for row in rows[:2]] == [True, True]
    assert [row["result"] for row in rows[7:10]] == ["1"] * 3
    assert len(await fleet.noted("copy", count=3, within_s=1)) == 3
    [child] = await fleet.noted("child", within_s=1)
    for pid in child["pids"]:
        psutil.Process(pid).kill()


# Cancels -------------------------------------------------------------------------------------------------------------


async def running(fleet: Fleet, job_ids: list[UUID], attempt: int = 1) -> dict[UUID, UUID]:
    """Wait until this attempt of every job runs; return the executions by job."""

    async def look() -> dict[UUID, UUID] | None:
        rows = await fleet.connection.fetch(
            "SELECT job_id, id FROM ondot.execution WHERE job_id = ANY ($1) AND state = 'RUNNING' AND attempt_no = $2",
            *(job_ids, attempt),
        )
        return {row["job_id"]: row["id"] for row in rows} if len(rows) == len(job_ids) else None

    return await fleet.until(look, within_s=30, what="all run")


@proves("E8")
async def test_a_cancel_reaches_running_work_of_every_kind_and_the_record_shows_whether_force_was_needed(
    fleet: Fleet, tmp_path: Path
) -> None:
    worker = fleet.worker()
    signalled = tmp_path / "signalled"
    async with receiving() as receiver:
        receiver.hold.clear()
        bodies = {
            "async": function("heeds"),
            "plain": function("heeds_in_a_thread"),
            "shell": shell(
                f"trap 'date +%s.%N >{signalled}; exit 1' TERM; echo up >{signalled}; while :; do sleep 0.05; done"
            ),
            "http": {"target": {"http": {"url": receiver.url}}},
            "plain by force": function("hangs", cancel_grace="0.5s"),
            "shell by force": shell("trap '' TERM; while :; do sleep 0.05; done", cancel_grace="0.5s"),
        }
        jobs = dict(zip(bodies, await fleet.submit(*bodies.values()), strict=True))
        executions = await running(fleet, list(jobs.values()))
        await fleet.noted("started", count=3, within_s=30)
        await receiver.until(1, within_s=30)
        await fleet.until(lambda: _is_written(signalled), within_s=30, what="the program is up")
        for execution_id in executions.values():
            await fleet.cancel(execution_id)
        asked = {
            row["id"]: row["cancel_at"].timestamp()
            for row in await fleet.connection.fetch("SELECT id, cancel_at FROM ondot.execution")
        }

        rows = dict(zip(bodies, await fleet.ended(list(jobs.values()), within_s=30), strict=True))

        assert {row["state"] for row in rows.values()} == {"CANCELLED"}
        assert all(row["reason"].startswith("cancelled by test") for row in rows.values())
        forced = {kind: json.loads(row["error"])["forced"] for kind, row in rows.items()}
        # A request cannot be notified: its connection is dropped.
        assert {kind for kind, force in forced.items() if force} == {
            "http",
            *(kind for kind in bodies if "force" in kind),
        }
        for row in rows.values():
            [attempt] = await fleet.attempts(row["id"])
            assert (attempt["outcome"], attempt["attempt_no"]) == ("CANCELLED", 1)
        reached_at = {UUID(line["execution_id"]): line["at_s"] for line in await fleet.noted("cancelled", within_s=1)}
        for kind in ("async", "plain"):
            assert reached_at[rows[kind]["id"]] - asked[rows[kind]["id"]] < REACHED_WITHIN_S, kind
        assert float(signalled.read_text().split()[-1]) - asked[rows["shell"]["id"]] < REACHED_WITHIN_S
        took_s = rows["http"]["ended_at"].timestamp() - asked[rows["http"]["id"]]
        assert took_s < REACHED_WITHIN_S
        receiver.hold.set()
    # One function does not end even by force: only a restart of its process ends it.
    await fleet.logged(worker, "worker.recycled", within_s=20)


async def _is_written(path: Path) -> bool | None:
    return await asyncio.to_thread(lambda: path.exists() and bool(path.read_text())) or None


# Workers that are lost -----------------------------------------------------------------------------------------------


async def keep_up(fleet: Fleet, job_ids: list[UUID], *, within_s: float, start: int = 1) -> list[Member]:
    """Restart workers that have died, as a supervisor would, until all these jobs have ended."""
    workers = [fleet.worker() for _ in range(start)]

    async def look() -> bool | None:
        for number, worker in enumerate(workers):
            if not worker.runs:
                workers[number] = fleet.worker()
        ended = await fleet.connection.fetchval("SELECT count(*) FROM ondot.history WHERE job_id = ANY ($1)", job_ids)
        return True if ended == len(job_ids) else None

    await fleet.until(look, within_s=within_s, what=f"all {len(job_ids)} jobs have ended")
    return workers


@proves("E6", "P7")
async def test_a_job_that_kills_its_worker_each_time_ends_as_poison_and_its_innocent_neighbours_succeed(
    fleet: Fleet,
) -> None:
    poison, *innocent = await fleet.submit(
        function("kills_its_worker", payload={"after_s": 0.2}),
        *[function("works_together")] * 10,
        *[function("naps_in_a_thread", payload={"seconds": 0.5})] * 10,
    )

    await keep_up(fleet, [poison, *innocent], within_s=80)

    [ended] = await fleet.ended([poison], within_s=1)
    attempts = await fleet.attempts(ended["id"])
    assert (ended["state"], ended["losses"], ended["failures"]) == ("FAILED", 4, 0)
    assert ended["reason"].startswith("poison: 4 workers were lost")
    assert [attempt["outcome"] for attempt in attempts] == ["WORKER_LOST"] * 4
    codes = [json.loads(attempt["error"])["code"] for attempt in attempts]
    assert codes == ["worker_lost", "worker_lost", "child_lost", "child_lost"]
    rows = await fleet.ended(innocent, within_s=1)
    assert Counter(row["state"] for row in rows) == {"SUCCEEDED": 20}
    # Two workers were lost in all: from then on only children of workers die.
    assert max(row["losses"] for row in rows) <= 2


@proves("E6")
async def test_exits_and_signals_of_any_kind_count_as_a_lost_worker(fleet: Fleet) -> None:
    bodies = [
        function("exits_its_worker", retry={"max_worker_losses": 0}),
        function("kills_its_worker", payload={"number": int(signal.SIGSEGV)}, retry={"max_worker_losses": 0}),
        function("kills_its_worker", payload={"number": int(signal.SIGABRT)}, retry={"max_worker_losses": 0}),
    ]
    for body in bodies:
        [job] = await fleet.submit(body)
        await keep_up(fleet, [job], within_s=25)
        [ended] = await fleet.ended([job], within_s=1)
        assert (ended["state"], ended["attempt_no"], ended["losses"]) == ("FAILED", 1, 1)
        assert ended["reason"].startswith("poison")


@proves("E6", "E11", "P6")
async def test_a_worker_woken_after_it_was_frozen_past_its_heartbeat_changes_nothing(fleet: Fleet) -> None:
    first = fleet.worker()
    async with receiving() as receiver:
        receiver.hold.clear()
        jobs = await fleet.submit(*[{"target": {"http": {"url": receiver.url}}}] * 10)
        await receiver.until(10, within_s=30)
        first.signal(signal.SIGSTOP)
        # The answers lie in the frozen worker's sockets: when it wakes, it has outcomes to report.
        receiver.hold.set()
        second = fleet.worker()
        rows = await fleet.ended(jobs, within_s=40)
        first.signal(signal.SIGCONT)

        await fleet.logged(first, "worker.was_lost", within_s=20)

        assert {row["state"] for row in rows} == {"SUCCEEDED"}
        assert {(row["attempt_no"], row["losses"]) for row in rows} == {(2, 1)}
        lives = await incarnations(fleet, second.process.pid)
        assert {row["worker_id"] for row in rows} == {life["id"] for life in lives}
        for row in rows:
            assert [attempt["outcome"] for attempt in await fleet.attempts(row["id"])] == ["WORKER_LOST"]
            assert [call.attempt for call in receiver.calls if call.execution_id == str(row["id"])] == [1, 2]
        # The process goes on under a new id.
        [again] = await fleet.submit({"target": {"http": {"url": receiver.url}}})
        await fleet.ended([again], within_s=20)
        await fleet.until(
            lambda: _lives(fleet, first.process.pid, 2), within_s=20, what="the first worker registers again"
        )


async def _lives(fleet: Fleet, pid: int, count: int) -> bool | None:
    return True if len(await incarnations(fleet, pid)) == count else None


@proves("E11", "P8")
async def test_an_effect_and_its_success_are_both_stored_or_neither_whenever_the_worker_dies(
    database_url: str, tmp_path: Path
) -> None:
    dice = random.Random(4)
    rows: list[Any] = []
    async with a_fleet(database_url, tmp_path, heartbeat_s="1") as fleet:
        fleet.scheduler()
        worker = fleet.worker()
        for _ in range(4):
            bodies = [
                function("transacts", payload={"inside_s": dice.random() * 0.3, "after_s": dice.random() * 0.3})
                for _ in range(12)
            ]
            jobs = await fleet.submit(*bodies)
            await begun(fleet, jobs, of_them_ended=dice.randrange(0, 10))
            await worker.kill()
            worker = fleet.worker()
            rows += await fleet.ended(jobs, within_s=30)

        effects = Counter(row["execution_id"] for row in await fleet.connection.fetch("SELECT * FROM public.effect"))
    assert effects == Counter(row["id"] for row in rows if row["state"] == "SUCCEEDED")
    assert {row["state"] for row in rows} == {"SUCCEEDED"}
    assert any(row["losses"] for row in rows), "no kill hit a transaction: nothing was tested"


async def begun(fleet: Fleet, job_ids: list[UUID], *, of_them_ended: int) -> None:
    """Wait until all were leased and this many have ended."""

    async def look() -> bool | None:
        waiting = await fleet.connection.fetchval(
            "SELECT count(*) FROM ondot.execution WHERE job_id = ANY ($1) AND attempt_no = 0", job_ids
        )
        ended = await fleet.connection.fetchval("SELECT count(*) FROM ondot.history WHERE job_id = ANY ($1)", job_ids)
        return True if not waiting and ended >= of_them_ended else None

    await fleet.until(look, within_s=30, what=f"all have started, and {of_them_ended} have ended")


@proves("E6", "E11")
async def test_a_transaction_interrupted_by_two_lost_workers_still_succeeds(fleet: Fleet) -> None:
    [job] = await fleet.submit(function("transacts", payload={"before_s": 1.0}, retry={"max_retries": 0}))
    for attempt in (1, 2):
        worker = fleet.worker()
        await running(fleet, [job], attempt)
        await worker.kill()
    fleet.worker()
    [ended] = await fleet.ended([job], within_s=30)
    assert (ended["losses"], ended["state"]) == (2, "SUCCEEDED"), ended["error"]


# Limits under load ---------------------------------------------------------------------------------------------------


@proves("E13")
async def test_starts_keep_a_rate_though_the_pool_has_a_backlog(fleet: Fleet) -> None:
    backlog = await fleet.submit(*[function("naps", payload={"seconds": 0.3})] * 80)
    limited = await fleet.submit(
        *[function("naps", payload={"seconds": 0.0}, concurrency_key="k", key_rate="3/s")] * 12
    )
    fleet.worker(slots=5)

    rows = await fleet.ended([*backlog, *limited], within_s=60)

    starts = sorted(row["started_at"] for row in rows[len(backlog) :])
    tokens = sorted(row["ready_at"] for row in rows[len(backlog) :])
    assert min((after - before).total_seconds() for before, after in pairwise(tokens)) > 0.33
    assert (starts[6] - starts[0]).total_seconds() > 1.0, [f"{at:%S.%f}" for at in starts]
