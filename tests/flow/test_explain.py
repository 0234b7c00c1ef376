"""Explain on a real database: the facts are read from the tables, by the database's clock."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

from ondot.flow.backfill import Backfill, start_backfill
from ondot.flow.change.change import delete, pause, resume
from ondot.flow.explain import JobExplanation, explain_execution, explain_job
from ondot.flow.gate import admit_pass
from ondot.model.errors import NotFound
from ondot.model.execution import State
from ondot.model.explain_facts import Explanation
from ondot.model.gates import Limits, Rate, encode_stages
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId, NodeId, partition_of
from ondot.model.job import JobSpec
from ondot.model.misfire import Misfire
from ondot.model.retry import Retry
from ondot.model.schedule import Calendar, Cron, Interval, Rrule, Schedule
from ondot.model.target import FunctionTarget
from ondot.store.explain import find_executions
from ondot.store.nodes import beat_node, take_partitions
from ondot.store.workers import beat_worker
from ondot.telemetry.metrics import COSTLY_PLANS
from tests.holding import COMMAND, WHY, accept, hold
from tests.proves import proves
from tests.world import DEFAULT_POOL, Worker, World, cron, every, failed, job, once


async def explained(world: World, id_: ExecutionId) -> Explanation:
    return await explain_execution(world.database, DEFAULT_TENANT, id_)


async def explained_job(world: World, job_id: JobId, at: datetime | None = None) -> JobExplanation:
    return await explain_job(world.database, DEFAULT_TENANT, job_id, at)


async def codes(world: World, id_: ExecutionId) -> list[str]:
    return [reason.code for reason in (await explained(world, id_)).reasons]


async def job_codes(world: World, job_id: JobId) -> list[str]:
    return [reason.code for reason in (await explained_job(world, job_id)).job.reasons]


async def execution_of(world: World, spec: JobSpec) -> ExecutionId:
    """Submit a job that is planned at once; returns its execution."""
    accepted = await world.submit(spec)
    [execution] = await world.executions(accepted.id)
    return execution.id


async def gate_by_hand(world: World, id_: ExecutionId, limits: Limits) -> None:
    """Put an execution before the gates of these limits, whether or not the engine has done it."""
    row = await world.execution(id_)
    await world.value("DELETE FROM ondot.gated WHERE execution_id = $1", id_)
    await world.value("DELETE FROM ondot.ready WHERE execution_id = $1", id_)
    await world.value("UPDATE ondot.execution SET gated = true WHERE id = $1", id_)
    await world.value(
        "INSERT INTO ondot.gated (execution_id, ready_at, tenant_no, pool_no, class, is_fire, stages)"
        " SELECT id, ready_at, tenant_no, pool_no, class, true, $2::text::jsonb FROM ondot.execution WHERE id = $1",
        id_,
        encode_stages(limits, DEFAULT_TENANT, row.job_id),
    )


async def admit(world: World) -> None:
    await world.fetch("SELECT * FROM ondot.admit(ARRAY[1], false, 0)")


async def node(world: World) -> None:
    """A scheduler that owns every partition."""
    node_id = NodeId(uuid4())
    async with world.database.connection() as connection:
        await beat_node(connection, node_id, host="tarn", pid=1, release="0", lease_s=5)
        await take_partitions(connection, node_id, 64)


async def busy(world: World, worker: Worker, running: int) -> None:
    async with world.database.connection() as connection:
        await beat_worker(connection, worker.id, state="ALIVE", running=running, lease_ids=[], bounds=[])


@proves("E17")
async def test_an_execution_goes_from_not_due_over_no_worker_to_running_and_its_end(world: World) -> None:
    id_ = await execution_of(world, job(schedule=once(world.after(10))))
    explanation = await explained(world, id_)
    assert [reason.code for reason in explanation.reasons] == ["not_due", "no_worker"]
    assert explanation.reasons[0].until == world.after(10)
    await world.advance(10)
    assert await codes(world, id_) == ["no_worker"]
    worker = await world.worker()
    explanation = await explained(world, id_)
    assert ([reason.code for reason in explanation.reasons], explanation.may_start_at) == (["next"], world.now)
    [attempt] = await worker.lease()
    [reason] = (await explained(world, id_)).reasons
    assert (reason.code, reason.facts["worker_id"], reason.facts["worker_host"]) == ("running", worker.id, "here")
    await worker.complete(attempt)
    explanation = await explained(world, id_)
    assert (explanation.state, explanation.reasons[0].code, explanation.may_start_at) == ("SUCCEEDED", "ended", None)


@proves("E17")
async def test_a_retry_shows_its_number_its_instant_and_the_last_error(world: World) -> None:
    retry = Retry(max_retries=2, backoff="fixed", initial_s=30, jitter=False)
    id_ = await execution_of(world, job(retry=retry))
    worker = await world.worker()
    await worker.run_one(failed("no such table"))
    explanation = await explained(world, id_)
    [reason] = explanation.reasons
    assert (reason.code, explanation.may_start_at) == ("backoff", world.after(30))
    assert (reason.facts["retry"], reason.facts["max_retries"], reason.facts["error"]) == (1, 2, "no such table")
    for _ in range(2):
        await world.advance(30)
        await worker.beat()
        await worker.run_one(failed("no such table"))
    [reason] = (await explained(world, id_)).reasons
    assert (reason.code, reason.facts["failures"], reason.facts["error"]) == ("ended", 3, "no such table")
    assert "FAILED" in reason.message


@proves("E17")
async def test_a_worker_without_heartbeats_does_not_count(world: World) -> None:
    id_ = await execution_of(world, job())
    worker = await world.worker()
    seen_at = world.now
    await world.advance(world.database.settings.heartbeat_s + 1)
    [reason] = (await explained(world, id_)).reasons
    assert (reason.code, reason.facts["silent_workers"], reason.facts["seen_at"]) == ("no_worker", 1, seen_at)
    await worker.beat()
    explanation = await explained(world, id_)
    assert explanation.reasons[0].code == "next"
    assert "ondot doctor" in str(explanation.reasons[0].what_to_do)


@proves("E17", "P3")
async def test_work_of_a_held_database_is_explained_by_that_and_not_by_missing_workers(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.after(600))))
    id_ = await world.run_now(accepted.id)
    held_at = world.now
    await hold(world)
    await world.advance(700)
    explanation = await explained_job(world, accepted.id, world.after(-100))
    [execution] = explanation.executions
    [reason] = execution.reasons
    assert [one.code for one in explanation.job.reasons] == ["held", "late_plan"]
    assert (execution.id, reason) == (id_, explanation.job.reasons[0])
    assert (reason.facts, reason.until) == ({"since": held_at, "reason": WHY}, None)
    assert WHY in explanation.job.summary
    assert COMMAND in str(reason.what_to_do)
    assert explanation.fire is not None
    assert "nothing starts" in explanation.fire.message
    await accept(world)
    assert await codes(world, id_) == ["no_worker"]
    assert await job_codes(world, accepted.id) == ["no_scheduler", "late_plan"]


@proves("E6", "E17")
async def test_a_waiting_suspect_shows_how_many_run_and_may_run(world: World) -> None:
    """A worker of 100 slots runs twelve suspects: here they run, and the thirteenth and fourteenth wait."""
    for number in range(14):
        await world.submit(job(f"doomed {number}", target=FunctionTarget(name="doomed")))
    for _ in range(2):
        doomed = await world.worker()
        assert len(await doomed.lease()) == 14
        await world.value("UPDATE ondot.worker SET state = 'LOST', ended_at = ondot.clock() WHERE id = $1", doomed.id)
        await world.recover()
        await world.advance(3600)
    worker = await world.worker()
    assert len((await worker.leaser.one_pass(100, 12)).assignments) == 12
    await busy(world, worker, running=12)
    waiting = [row.id for row in await world.executions() if row.state is not State.RUNNING]
    explanations = [(await explained(world, id_)).reasons for id_ in waiting]
    assert [reason.code for [reason] in explanations] == ["suspect", "suspect"]
    assert sorted(reason.facts["ahead"].get("suspect", 0) for [reason] in explanations) == [0, 1]
    for [reason] in explanations:
        assert (reason.facts["losses"], reason.facts["at_once"], reason.facts["suspects"]) == (2, 12, 12)


@proves("E17")
async def test_a_full_pool_counts_the_executions_ahead_in_the_queue(world: World) -> None:
    worker = await world.worker()
    await busy(world, worker, 100)
    await world.submit_all([job() for _ in range(3)])
    await world.submit(job(priority="high"))
    await world.advance(1)
    await world.submit(job(priority="high"))
    await world.submit(job(priority="low"))
    id_ = await execution_of(world, job())
    await busy(world, worker, 100)
    [reason] = (await explained(world, id_)).reasons
    assert (reason.code, reason.facts["running"], reason.facts["slots"]) == ("pool_full", 100, 100)
    assert reason.facts["ahead"] == {"high": 2, "normal": 3}


@proves("E17", "E13")
async def test_a_limit_shows_the_executions_in_its_slots_and_the_place_in_line(world: World) -> None:
    limits = Limits(key="db", key_concurrency=1)
    first, second, third = [await execution_of(world, job()) for _ in range(3)]
    for id_ in (first, second, third):
        await gate_by_hand(world, id_, limits)
    worker = await world.worker()
    await admit(world)
    [attempt] = await worker.lease()
    assert attempt.leased.id == first
    [reason] = (await explained(world, third)).reasons
    assert (reason.code, reason.facts["gate"], reason.facts["limit"]) == ("concurrency", "key:db", 1)
    assert (reason.facts["place"], reason.facts["first_in_line"]) == (2, second)
    assert [(one["id"], one["state"]) for one in reason.facts["holders"]] == [(first, "RUNNING")]
    assert (await explained(world, third)).may_start_at is None


@proves("E17", "E12")
async def test_an_overlapping_fire_names_the_running_one_and_once_skipped_the_reason(world: World) -> None:
    accepted = await world.submit(job(schedule=every(5, world.after(5)), limits=Limits(overlap="skip")))
    worker = await world.worker()
    await world.plan()
    await world.advance(5)
    await admit_pass(world.database, [DEFAULT_POOL])
    [attempt] = await worker.lease()
    second = (await world.executions(accepted.id))[1].id
    explanation = await explained(world, second)
    assert [reason.code for reason in explanation.reasons] == ["not_due", "overlap"]
    assert (explanation.reasons[1].facts["holders"][0]["id"], explanation.may_start_at) == (
        attempt.leased.id,
        world.after(5),
    )
    assert "it is skipped" in explanation.reasons[1].message
    await world.advance(5)
    await admit_pass(world.database, [DEFAULT_POOL])
    explanation = await explained(world, second)
    assert (explanation.state, explanation.reasons[0].facts["reason"]) == ("SKIPPED", "overlap")
    assert (
        "the previous execution of its job was still running, and the job skips overlapping fires"
        in explanation.summary
    )


@proves("E17", "E16")
async def test_order_by_key_shows_that_the_one_before_it_waits_for_its_retry(world: World) -> None:
    limits = Limits(order_key="account 7")
    retry = Retry(backoff="fixed", initial_s=60, jitter=False)
    first, second = [await execution_of(world, job(retry=retry)) for _ in range(2)]
    for id_ in (first, second):
        await gate_by_hand(world, id_, limits)
    await admit(world)
    worker = await world.worker()
    await worker.run_one(failed())
    [reason] = (await explained(world, second)).reasons
    assert (reason.code, reason.facts["holders"][0]["state"]) == ("order", "RETRYING")
    assert "waits for a retry" in reason.message
    assert await codes(world, first) == ["backoff"]


@proves("E17", "E13")
async def test_a_rate_shows_when_its_token_is_free(world: World) -> None:
    limits = Limits(rate=Rate(limit=1, per_s=60), key="k", key_rate=Rate(limit=1, per_s=1))
    accepted = await world.submit(job(schedule=every(3600, world.after(3600))))
    ids = [await world.run_now(accepted.id) for _ in range(3)]
    for id_ in ids:
        await gate_by_hand(world, id_, limits)
    await world.worker()
    await admit(world)
    explanation = await explained(world, ids[2])
    assert (explanation.reasons[0].code, explanation.may_start_at) == ("rate", world.after(120))
    assert explanation.reasons[0].facts["gates_beyond"] == ["rate"]
    assert (await explained(world, ids[1])).may_start_at == world.after(60)


@proves("E17", "E13")
async def test_limits_of_a_pool_are_shown(world: World) -> None:
    running, waiting = [await execution_of(world, job()) for _ in range(2)]
    worker = await world.worker()
    await world.value("UPDATE ondot.pool SET concurrency = 1 WHERE pool_no = 1")
    await world.value(
        "INSERT INTO ondot.slot (gate_id, execution_id, tenant_no, until_end, held_at)"
        " VALUES (ondot.pool_gate(1), $1, 1, false, ondot.clock())",
        running,
    )
    [reason] = (await explained(world, waiting)).reasons
    assert (reason.code, reason.facts["holders"][0]["id"]) == ("pool_concurrency", running)
    await world.value("DELETE FROM ondot.slot")
    await world.value(
        "UPDATE ondot.pool SET rate_limit = 1, rate_per_s = 10, rate_burst = 1, token_at = $1 WHERE pool_no = 1",
        world.after(4),
    )
    explanation = await explained(world, waiting)
    assert (explanation.reasons[0].code, explanation.may_start_at) == ("pool_rate", world.after(14))
    assert await worker.beat() is not None


@proves("E17", "E8", "E16")
async def test_a_cancel_and_a_start_deadline_are_shown(world: World) -> None:
    id_ = await execution_of(world, job(schedule=once(world.after(10))))
    worker = await world.worker()
    await world.value("UPDATE ondot.execution SET start_by = $2 WHERE id = $1", id_, world.after(40))
    explanation = await explained(world, id_)
    assert [(reason.code, reason.until) for reason in explanation.reasons] == [
        ("not_due", world.after(10)),
        ("start_deadline", world.after(40)),
    ]
    await world.advance(10)
    await worker.lease()
    await world.value(
        "UPDATE ondot.execution SET cancel_at = $2, cancel_reason = 'cancelled by ada' WHERE id = $1", id_, world.now
    )
    assert await codes(world, id_) == ["cancelling", "running"]


@proves("E17", "T1")
async def test_missing_jobs_and_those_of_another_tenant_are_not_found(world: World) -> None:
    id_ = await execution_of(world, job())
    with pytest.raises(NotFound):
        await explained(world, ExecutionId(uuid4()))
    with pytest.raises(NotFound):
        await explained_job(world, JobId(uuid4()))
    async with world.database.connection() as connection:
        assert await find_executions(connection, DEFAULT_TENANT, [id_])
        assert not await find_executions(connection, type(DEFAULT_TENANT)(2), [id_])


# Jobs ----------------------------------------------------------------------------------------------------------------


@proves("E17")
async def test_a_job_waits_for_its_fire_and_for_a_scheduler(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.after(600))))
    assert await job_codes(world, accepted.id) == ["not_due", "no_scheduler"]
    await node(world)
    explanation = await explained_job(world, accepted.id)
    assert [reason.code for reason in explanation.job.reasons] == ["not_due"]
    assert (explanation.job.may_start_at, explanation.live, explanation.fire) == (world.after(600), 0, None)
    await world.advance(700)
    explanation = await explained_job(world, accepted.id)
    assert [reason.code for reason in explanation.job.reasons] == ["no_scheduler", "late_plan"]
    await node(world)
    assert await job_codes(world, accepted.id) == ["late_plan"]


@proves("E17")
async def test_a_job_shows_what_its_oldest_execution_waits_for(world: World) -> None:
    accepted = await world.submit(job(schedule=every(5, world.after(5))))
    await node(world)
    await world.plan()
    await world.advance(5)
    explanation = await explained_job(world, accepted.id)
    assert explanation.live == 4
    assert [one.reasons[0].code for one in explanation.executions] == ["no_worker", "not_due", "not_due", "not_due"]
    assert "No live worker" in explanation.job.summary


@proves("E17")
async def test_a_paused_a_deleted_and_an_ended_job_are_explained_by_that(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.after(600))))
    await pause(world.database, DEFAULT_TENANT, accepted.id, because="5 failures in a row")
    explanation = (await explained_job(world, accepted.id)).job
    assert (explanation.reasons[0].code, explanation.reasons[0].facts["since"], explanation.may_start_at) == (
        "paused",
        world.now,
        None,
    )
    assert "5 failures in a row" in explanation.summary
    await delete(world.database, DEFAULT_TENANT, accepted.id)
    assert await job_codes(world, accepted.id) == ["deleted"]
    once_at = world.now
    done = await world.submit(job(schedule=once(once_at)))
    await (await world.worker()).run_one()
    explanation = (await explained_job(world, done.id)).job
    assert (explanation.state, explanation.reasons[0].code) == ("ENDED", "ended")
    assert "once" in explanation.summary
    fires = await world.submit(job(schedule=every(1, world.after(1), max_fires=2)))
    await world.plan()
    await world.advance(2)
    worker = await world.worker()
    await worker.complete_all(await worker.lease())
    assert "max_fires" in (await explained_job(world, fires.id)).job.summary


@proves("E17", "S6")
async def test_a_job_that_catches_up_shows_its_owed_fires(world: World) -> None:
    misfire = Misfire(policy="all", window_s=7200, limit=200)
    accepted = await world.submit(job(schedule=every(60, world.after(60), misfire=misfire)))
    await world.advance(3600)
    await node(world)
    await world.plan()
    explanation = (await explained_job(world, accepted.id)).job
    owed = next(reason for reason in explanation.reasons if reason.code == "catching_up")
    assert owed.facts["origin"] == "fire"
    assert owed.facts["count"] > 50
    at = world.after(-1800)
    fire = (await explained_job(world, accepted.id, at)).fire
    assert fire is not None
    assert (fire.code, fire.fire_at) == ("catching_up", at)


@proves("E17", "S12")
async def test_a_job_whose_schedule_is_planned_alone_shows_its_cost(world: World) -> None:
    minutes = ",".join(str(minute) for minute in range(60) if minute != world.now.minute)
    rule = Rrule(text=f"FREQ=SECONDLY;BYMINUTE={minutes}", begins=world.now.replace(tzinfo=None))
    schedule = Schedule(when=Cron(expression="* * * * * *"), exclude=(rule,))
    costly = await world.submit(job(schedule=schedule))
    cheap = await world.submit(job(schedule=Schedule(when=Cron(expression="0 * * * *"), calendar=Calendar())))
    before = COSTLY_PLANS.value
    await world.advance(50)
    await world.plan()
    assert COSTLY_PLANS.value == before + 1, "the planner finds it costly, and only it"
    await node(world)
    explanation = (await explained_job(world, cheap.id)).job
    assert [reason.code for reason in explanation.reasons] == ["not_due"]
    for _ in range(2):
        explanation = (await explained_job(world, costly.id)).job
        assert [reason.code for reason in explanation.reasons] == ["not_due", "costly_schedule"]
        assert explanation.reasons[1].facts["looks"] > 1_000
        assert "planned after all other jobs" in explanation.reasons[1].message
        await world.advance(1)


@proves("E17", "S7", "S12")
async def test_owed_fires_that_cannot_be_found_are_named(world: World) -> None:
    long_run = Rrule(text="FREQ=SECONDLY;UNTIL=29991231T000000", begins=world.now.replace(tzinfo=None))
    schedule = Schedule(when=Interval(every_s=1, anchor_at=world.now), exclude=(long_run,))
    accepted = await world.submit(job(schedule=every(60, world.after(-3600))))
    backfill = Backfill(world.after(-600), world.after(-60))
    await start_backfill(world.database, DEFAULT_TENANT, accepted.id, backfill, render=lambda _: "")
    explanation = (await explained_job(world, accepted.id)).job
    assert "cannot be found" not in str(explanation.reasons)
    spec = msgspec.structs.replace(accepted.spec, schedule=schedule)
    await world.value("UPDATE ondot.job_version SET spec = $1::text::json", msgspec.json.encode(spec).decode())
    await world.value("UPDATE ondot.owed SET from_at = $1, to_at = $2", world.after(60), world.after(86_400 * 30))
    world.database.specs._specs.clear()
    explanation = (await explained_job(world, accepted.id)).job
    owed = next(reason for reason in explanation.reasons if reason.code == "catching_up")
    assert "its fires cannot be computed" in owed.message
    assert owed.what_to_do is not None
    assert "ondot job backfills" in owed.what_to_do


# Fires ---------------------------------------------------------------------------------------------------------------


async def fire_of(world: World, job_id: JobId, at: datetime) -> tuple[str, datetime | None]:
    fire = (await explained_job(world, job_id, at)).fire
    assert fire is not None
    return fire.code, fire.fire_at


@proves("E17", "S6")
async def test_it_did_not_run_at_nine_has_an_answer_for_every_nine(world: World) -> None:
    # Noon of a Monday in the far future, so that the days around it are known.
    calendar = Calendar(exclude_dates=("2040-01-05",))
    schedule = Schedule(when=Cron(expression="0 9 * * *"), calendar=calendar, misfire=Misfire(policy="skip"))
    start = datetime(2040, 1, 2, 12, tzinfo=UTC)
    nine = datetime(2040, 1, 2, 9, tzinfo=UTC)
    day = timedelta(days=1)
    await world.set_clock(start)
    accepted = await world.submit(job(schedule=schedule))
    worker = await world.worker()

    await world.set_clock(nine + day - timedelta(seconds=10))
    await world.plan()
    assert await fire_of(world, accepted.id, nine + day) == ("not_yet", nine + day)
    await world.set_clock(nine + day)
    assert await fire_of(world, accepted.id, nine + day) == ("waiting", nine + day)
    await worker.run_one()
    await world.set_clock(start + 2 * day)
    assert await fire_of(world, accepted.id, nine + 2 * day) == ("late_plan", nine + 2 * day)
    await world.plan()

    assert await fire_of(world, accepted.id, nine) == ("before_job", None)
    assert await fire_of(world, accepted.id, nine + day) == ("executed", nine + day)
    explanation = await explained_job(world, accepted.id, nine + 2 * day)
    assert explanation.fire is not None
    assert (explanation.fire.code, explanation.fire.facts["reason"]) == ("skipped", "misfire")
    assert [entry.reason for entry in explanation.skipped] == ["misfire"]
    assert await fire_of(world, accepted.id, nine + 3 * day) == ("left_out", nine + 3 * day)
    assert await fire_of(world, accepted.id, nine + 4 * day) == ("not_yet", nine + 4 * day)
    around = (await explained_job(world, accepted.id, nine + day + timedelta(hours=1))).fire
    assert around is not None
    assert (around.code, around.facts["nearest"]["code"]) == ("not_a_fire", "executed")

    await pause(world.database, DEFAULT_TENANT, accepted.id)
    await world.set_clock(start + 5 * day)
    assert await fire_of(world, accepted.id, nine + 4 * day) == ("paused", nine + 4 * day)
    await resume(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id)
    explanation = await explained_job(world, accepted.id, nine + 4 * day)
    assert explanation.fire is not None
    assert (explanation.fire.code, explanation.fire.facts["reason"]) == ("skipped", "paused")


@proves("E17")
async def test_a_missed_range_explains_more_than_the_calendar_in_it(world: World) -> None:
    accepted = await world.submit(job(schedule=every(60, world.after(60))))
    await world.advance(3600)
    for from_s, to_s, reason in ((-3590, -1200, "calendar"), (-3540, -60, "misfire"), (-1500, -1300, "calendar")):
        await world.value(
            "INSERT INTO ondot.skipped (job_id, from_at, to_at, tenant_no, reason) VALUES ($1, $2, $3, 1, $4)",
            accepted.id,
            world.after(from_s),
            world.after(to_s),
            reason,
        )
    fire = (await explained_job(world, accepted.id, world.after(-1380))).fire
    assert fire is not None
    assert (fire.code, fire.facts["reason"], fire.facts["from_at"]) == ("skipped", "misfire", world.after(-3540))


@proves("E17")
async def test_an_old_fire_is_looked_up_in_the_schedule_of_its_time(world: World) -> None:
    start = datetime(2040, 1, 2, 12, tzinfo=UTC)
    await world.set_clock(start)
    spec = job(schedule=cron("0 9 * * *"))
    accepted = await world.submit(spec)
    await world.set_clock(start + timedelta(days=2))
    await world.update(
        accepted.id,
        msgspec.structs.replace(spec, schedule=cron("0 7 * * *")),
    )
    nine = datetime(2040, 1, 3, 9, tzinfo=UTC)
    assert (await fire_of(world, accepted.id, nine))[0] in {"skipped", "executed", "waiting"}
    assert (await fire_of(world, accepted.id, nine + timedelta(days=3)))[0] == "not_a_fire"
    assert (await fire_of(world, accepted.id, nine + timedelta(days=3, hours=-2)))[0] == "not_yet"


@proves("E17")
async def test_the_partition_is_that_of_the_job(world: World) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.after(600))))
    await node(world)
    await world.value("UPDATE ondot.partition SET owner = NULL WHERE partition_no = $1", partition_of(accepted.id))
    explanation = (await explained_job(world, accepted.id)).job
    assert [reason.code for reason in explanation.reasons] == ["not_due", "no_scheduler"]
    assert explanation.reasons[1].facts["nodes"] == 1
