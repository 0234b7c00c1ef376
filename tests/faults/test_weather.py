"""The weather itself: the same seed draws the same faults, a log can be replayed, and afterwards every role is up."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from ondot.store.queries import load_queries, nouns
from tests.faults.kinds import COMPLETE, KINDS, LEASE, PLAN, SUBMIT
from tests.faults.postgres import a_postgres
from tests.faults.scene import Sizes
from tests.faults.stage import Stage, a_stage
from tests.faults.weather import Weather, forecast, read_script
from tests.proves import proves

HOURS_S = 7200.0
MINUTE_S = 60.0
BLOW_S = 8.0
SEED = 23
"""Its first five faults are of five kinds, and short."""
ALL = Sizes(
    schedulers=("scheduler-0", "scheduler-1"),
    workers=("worker-2", "worker-3"),
    apis=("api-4",),
    proxied=("scheduler-0", "scheduler-1", "worker-2", "worker-3", "api-4"),
    in_namespaces=("scheduler-0",),
    tenants=("guest-1", "guest-2"),
    has=frozenset({"postgres", "standby", "disk", "clocks", "pipes", "etcd", "broker"}),
)


def test_the_same_seed_and_sizes_draw_the_same_faults() -> None:
    first = list(islice(forecast(7, ALL, HOURS_S), 500))

    assert first == list(islice(forecast(7, ALL, HOURS_S), 500))
    assert first != list(islice(forecast(8, ALL, HOURS_S), 500))


def test_a_long_run_draws_every_kind() -> None:
    drawn = Counter(fault.kind for fault in islice(forecast(1, ALL, HOURS_S), 2000))

    assert drawn.keys() == KINDS.keys()
    assert drawn["postgres.fail_over"] == 1, "there is one standby"
    others = {fault.kind for fault in islice(forecast(1, ALL, HOURS_S, once_too=False), 2000)}
    assert drawn.keys() - others == {"postgres.fail_over"}, "only one of several sequences fails over"


def test_faults_that_need_a_larger_fleet_or_a_longer_run_are_left_out() -> None:
    bare = Sizes(schedulers=("scheduler-0",), workers=("worker-1",))
    drawn = {fault.kind: fault.target for fault in islice(forecast(1, bare, MINUTE_S), 500)}

    assert {kind.split(".")[0] for kind in drawn} == {"scheduler", "worker"}
    assert drawn.keys().isdisjoint({"scheduler.clock", "scheduler.freeze_inside", "worker.freeze_inside"})
    assert drawn["scheduler.kill_twice"] == "scheduler-0 scheduler-0"
    of_a_minute = {fault.kind for fault in islice(forecast(1, ALL, MINUTE_S), 2000)}
    assert of_a_minute == {name for name, kind in KINDS.items() if not kind.least_run_s}
    with pytest.raises(ValueError, match="This fleet can have none of"):
        next(forecast(1, bare, MINUTE_S, kinds=["api"]))


def test_kinds_are_chosen_by_name_or_by_prefix() -> None:
    drawn = {fault.kind for fault in islice(forecast(1, ALL, MINUTE_S, kinds=["postgres.reply_lost", "api.kill"]), 200)}

    assert drawn == {"api.kill", *(name for name in KINDS if name.startswith("postgres.reply_lost."))}


def test_statements_are_sent_with_the_words_that_identify_them() -> None:
    texts = [query.text for noun in nouns() for query in load_queries(noun).values()]

    for word in (*SUBMIT, *PLAN, *LEASE, *COMPLETE):
        assert sum(word in text for text in texts) == 1, word


async def _runs_a_job(stage: Stage) -> None:
    """Uses a new connection, because those of the fleet have been through the faults."""
    [job_id] = await stage.fleet.submit({"function": "naps", "payload": {"seconds": 0.01}})
    connection = await stage.postgres.connect()

    async def has_ended() -> bool | None:
        return bool(await connection.fetchval("SELECT true FROM ondot.history WHERE job_id = $1", job_id)) or None

    await stage.fleet.until(has_ended, within_s=20, what="a job has run")
    await connection.close()


@pytest.mark.long
@pytest.mark.timeout(300)
@proves("C1", "L4")
async def test_after_a_short_run_every_fault_is_in_the_log_and_every_role_is_up(tmp_path: Path) -> None:
    log, again = tmp_path / "faults.jsonl", tmp_path / "again.jsonl"
    quick = ["scheduler.kill", "scheduler.freeze_brief", "worker.kill", "postgres.restart", "network.cut"]
    async with (
        a_postgres() as postgres,
        a_stage(postgres, tmp_path, schedulers=2, workers=1, apis=0) as stage,
    ):
        weather = Weather(stage.fleet, postgres, stage.proxies, SEED, quick, (0.2, 0.6), log=log)
        expected = list(islice(weather.forecast(BLOW_S), 50))
        lines = await weather.blow(BLOW_S)

        assert lines == [json.loads(line) for line in log.read_text().splitlines()]
        assert weather.exited == []
        drawn = [fault for _, fault in read_script(log)]
        assert drawn, "more on an idle machine"
        assert [(fault.kind, fault.target, fault.pause_s, fault.dice) for fault in drawn] == [
            (fault.kind, fault.target, fault.pause_s, fault.dice) for fault in expected[: len(drawn)]
        ]
        assert all(line["began_s"] <= line["ended_s"] for line in lines)
        assert all(member.is_up for member in stage.fleet.members)
        await _runs_a_job(stage)

        log.write_text("".join(f"{line}\n" for line in log.read_text().splitlines()[:2]))
        repeated = Weather.from_log(log, stage.fleet, postgres, stage.proxies, log=again)
        await repeated.blow(0)
        assert [fault for _, fault in read_script(again)] == drawn[:2]
        for (was_s, _), (is_s, _) in zip(read_script(log), read_script(again), strict=True):
            assert is_s >= was_s
        assert all(member.is_up for member in stage.fleet.members)
