"""The checker itself: a small run written by hand is clean, and the checker finds each error that is planted in it."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import asyncpg
import pytest

from tests.faults.evidence import Fault
from tests.faults.fleet import EFFECTS
from tests.faults.planting import Rest, at
from tests.faults.report import RunFacts, report, write_report
from tests.faults.sample import PLANTS, Plant, Scene, a_scene, fault, fire_late
from tests.proves import proves


@pytest.fixture
async def scene(database_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(EFFECTS)
        await connection.execute("SET session_replication_role = replica")
        yield await a_scene(Rest(connection), tmp_path)
    finally:
        await connection.close()


@proves("P1", "P2", "P3", "P4", "P9", "P10")
async def test_a_run_in_which_everything_adds_up_is_clean_and_counted(scene: Scene) -> None:
    verdict = await scene.judged()

    assert [str(violation) for violation in verdict.violations] == []
    assert verdict.counts == {
        "jobs": 5, "calls": 10, "acked": 11, "unclear": 1, "refused": 0, "acked_lost": 0, "fires": 10, "executed": 9,
        "skipped": 1, "cancelled": 0, "lost": 0, "doubled": 0, "early": 0, "late": 0,
    }  # fmt: skip
    assert verdict.skipped == {"paused": 1}
    assert verdict.lateness["healthy"].count == 8
    assert verdict.lateness["healthy"].worst_s == pytest.approx(0.05)
    assert verdict.lateness["healthy"].worst_call_s == pytest.approx(0.06)


@pytest.mark.parametrize(("plant", "check"), PLANTS.items(), ids=[plant.__name__ for plant in PLANTS])
async def test_the_checker_finds_each_planted_error(scene: Scene, plant: Plant, check: str) -> None:
    await plant(scene)

    assert check in await scene.checks()


# Lateness under faults -----------------------------------------------------------------------------------------------


@proves("L1", "L2", "L3", "L4")
@pytest.mark.parametrize(
    ("fault_", "late_s", "is_late"),
    [
        (fault("scheduler.kill", "scheduler-0", 1, 2.2), 1.4, False),
        (fault("scheduler.kill", "scheduler-0", 1, 2.2), 1.6, True),
        (fault("worker.kill", "worker-2", 1.9, 2.2), 4.4, False),
        (fault("worker.kill", "worker-2", 1.9, 2.2), 4.6, True),
        (fault("network.cut", "worker-2", 1.9, 2.2), 4.4, False),
        (fault("network.cut", "scheduler-0", 1.9, 2.2), 1.6, True),
        (fault("postgres.away", "postgres", 1.0, 4.0), 7.4, False),
        (fault("postgres.away", "postgres", 1.0, 4.0), 7.6, True),
        (fault("api.kill", "api-0", 1.9, 2.2), 1.6, True),
        (fault("worker.kill", "worker-2", 20, 21), 1.6, True),
    ],
)
async def test_a_fire_may_be_as_late_as_the_bound_of_its_fault(
    scene: Scene, fault_: Fault, late_s: float, is_late: bool
) -> None:
    scene.faults.append(fault_)
    await fire_late(scene, late_s)

    assert ("late" in await scene.checks()) == is_late


async def test_faults_in_a_row_add_up_but_do_not_excuse_everything(scene: Scene) -> None:
    scene.faults += [
        fault("worker.kill", "worker-2", 1.9, 2.2),
        fault("scheduler.kill", "scheduler-0", 4.0, 6.0),
        *(fault("worker.kill", "worker-2", 8.0 + 2 * number, 9.0 + 2 * number) for number in range(40)),
    ]
    await fire_late(scene, 9.0)
    assert "late" not in await scene.checks()

    await fire_late(scene, 25.0)
    assert "late" in await scene.checks()


async def test_lateness_is_attributed_to_the_faults_around_it(scene: Scene) -> None:
    scene.faults += [
        fault("worker.kill", "worker-2", 1.0, 2.2),
        fault("scheduler.kill", "scheduler-0", 8.5, 9.5),
    ]

    lateness = (await scene.judged()).lateness

    assert {kind: late.count for kind, late in lateness.items()} == {
        "healthy": 2,
        "scheduler.kill": 1,
        "worker.kill": 5,
    }


async def test_an_execution_that_waits_for_others_is_not_late(scene: Scene) -> None:
    await fire_late(scene, 5.0)
    for number, operation in enumerate(scene.journal):
        if operation.job == "updated" and operation.op == "create":
            limited = {**(operation.body or {}), "concurrency_key": "k"}
            scene.journal[number] = replace(operation, body=limited)

    assert "late" not in await scene.checks()


@proves("P9")
async def test_no_start_is_early_while_the_clock_of_the_database_is_off(scene: Scene) -> None:
    await scene.rest.run("UPDATE ondot.history SET started_at = $2 WHERE id = $1", scene.rest.ids["paused 4"], at(1.0))
    assert "early" in await scene.checks()

    scene.faults.append(fault("postgres.clock_forward", "postgres", 0.5, 3.5, seconds=5))
    assert "early" not in await scene.checks()


async def test_an_execution_may_end_before_its_fire_if_the_clock_was_set_back_meanwhile(scene: Scene) -> None:
    await scene.rest.run("UPDATE ondot.history SET ended_at = $2 WHERE id = $1", scene.rest.ids["paused 4"], at(-30))
    assert "attempts" in await scene.checks()

    scene.faults.append(fault("postgres.clock_back", "postgres", -20, -10, seconds=-5))
    assert "attempts" not in await scene.checks()


# Unclear operations --------------------------------------------------------------------------------------------------


@proves("P2")
async def test_a_job_with_an_unclear_create_may_exist_or_not(scene: Scene) -> None:
    id_ = scene.rest.ids["unclear"]
    scene.rest.calls[:] = [call for call in scene.rest.calls if call.execution_id != id_]
    await scene.rest.run("DELETE FROM ondot.history WHERE id = $1", id_)
    await scene.rest.run("DELETE FROM ondot.job_once WHERE name = 'unclear'")

    assert await scene.checks() == set()


async def test_an_unclear_change_may_have_been_made_or_not(scene: Scene) -> None:
    scene.change("delete", "paused", outcome="unclear", acked_s=None)
    await scene.rest.run("UPDATE ondot.job SET state = 'ACTIVE' WHERE name = 'paused'")
    assert await scene.checks() == set()

    await scene.rest.run("UPDATE ondot.job SET state = 'DELETED' WHERE name = 'paused'")
    assert await scene.checks() == set()


# Report --------------------------------------------------------------------------------------------------------------


async def test_the_report_starts_with_the_violations_and_ends_with_the_command_that_repeats_the_run(
    scene: Scene, tmp_path: Path
) -> None:
    scene.faults.append(fault("worker.kill", "worker-2", 1.0, 2.5))
    facts = RunFacts(
        7,
        60,
        {"jobs": 5, "workers": 2},
        71.0,
        takeovers_s={"scheduler.kill": [1.0, 3.0, 2.0]},
        workload={"create acked": 4},
    )
    clean = report(facts, await scene.judged(), tmp_path / "faults")
    await scene.rest.run("UPDATE ondot.job SET state = 'ACTIVE' WHERE name = 'paused'")
    found = report(facts, await scene.judged(), tmp_path / "faults")
    write_report(found, tmp_path)

    assert clean.text.startswith("# Fault run, seed 7: clean")
    assert "p50 2.00 s, longest 3.00 s" in clean.text
    assert '`make faults SEED=7 SECONDS=60 FAULTS="--jobs 5 --workers 2"`' in clean.text
    assert clean.data["faults"] == {"worker.kill": {"count": 1, "seconds": 1.5}}
    assert found.text.splitlines()[2] == "Violations: lost_ack 1."
    assert found.data["counts"]["acked_lost"] == 1
    assert (tmp_path / "faults.md").read_text() == found.text
