"""History ends: days past their retention are rewritten, with what must stay, whatever happens meanwhile (O1)."""

import asyncio
import dataclasses
import signal
import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Final

import pytest

from ondot.document.tenants import new_tenant, patched_tenant
from ondot.flow.audit_seal import Sealer
from ondot.flow.audit_verify import verify_audit
from ondot.flow.backfill import Backfill, count_backfill, start_backfill
from ondot.flow.change.change import pause
from ondot.flow.days import make_days
from ondot.flow.events.receive import EventReceiver
from ondot.flow.explain import explain_execution, explain_job, explain_step
from ondot.flow.history.kept import EVENT_DAYS
from ondot.flow.history.objects import ObjectRemoval
from ondot.flow.history.rewrite import Rewriting
from ondot.flow.history.seals import SealRemoval
from ondot.flow.history.show import read_history
from ondot.flow.tenants import create_tenant, update_tenant
from ondot.model.audit_chain import SealKey
from ondot.model.errors import InvalidBody, NotFound, Unavailable
from ondot.model.event import read_event
from ondot.model.execution import State
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId, TenantNo
from ondot.model.misfire import Misfire
from ondot.model.retry import Retry
from ondot.model.schedule import OnEvent, Schedule
from ondot.ports.objects import Stored, key_of
from ondot.store.audit import record
from ondot.store.day_rewrite import list_copies, list_partitions, start_of
from ondot.store.executions import get_execution
from ondot.store.jobs import get_job
from ondot.store.objects import ObjectRow, add_objects
from tests.flow import workflows
from tests.flow.test_dead_letters import replay_all
from tests.proves import proves
from tests.world import World, every, failed, job, once

DAY_S: Final = 86_400.0
KEPT_DAYS: Final = 2
NO_RETRY: Final = Retry(max_retries=0)
IN_TRANSACTION: Final = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
  AND backend_type = 'client backend'
"""
TABLES: Final = ("history", "attempt", "log", "object", "job_once", "event", "event_match", "audit")


def keep_for(world: World, days: int = KEPT_DAYS) -> None:
    """Set the retention: with fewer days, fewer tables must be made and rewritten."""
    world.database.settings = world.database.settings.model_copy(update={"retention_days": days})


async def age(world: World, days: int) -> None:
    """Let days pass: new ones are made in time, as by the housekeeper."""
    while days > 0:
        await world.advance(min(days, 10) * DAY_S)
        await make_days(world.database)
        days -= 10


async def rewrite(world: World) -> Rewriting:
    """Passes until there is nothing to do."""
    rewriting = Rewriting(world.database)
    while await rewriting.one_pass():
        pass
    return rewriting


async def rewrite_until_copied(world: World, parent: str = "history") -> Rewriting:
    """Passes until the copy of a day with rows is complete, and not yet in its place."""
    rewriting = Rewriting(world.database)
    while True:
        assert await rewriting.one_pass()
        async with world.database.connection() as connection:
            if any(copy.is_copied and copy.parent == parent for copy in await list_copies(connection)):
                return rewriting


async def is_there(world: World, id_: ExecutionId, tenant_no: TenantNo = DEFAULT_TENANT) -> bool:
    async with world.database.connection() as connection:
        return await get_execution(connection, tenant_no, id_) is not None


async def run_one(world: World, name: str = "report", tenant_no: TenantNo = DEFAULT_TENANT) -> ExecutionId:
    """A job that fails once and then succeeds: it has an attempt, a log line and an object."""
    accepted = await world.submit(job(name), tenant_no)
    worker = await world.worker()
    [assignment] = [each for each in await worker.lease() if each.leased.job_id == accepted.id]
    await worker.complete(assignment, failed(retry_after_s=1))
    await write_output(world, assignment.leased.id, tenant_no)
    await world.advance(3)
    [assignment] = [each for each in await worker.lease() if each.leased.job_id == accepted.id]
    await worker.complete(assignment)
    return assignment.leased.id


async def write_output(world: World, id_: ExecutionId, tenant_no: TenantNo = DEFAULT_TENANT) -> None:
    await world.fetch("INSERT INTO ondot.log VALUES ($1, 1, 1, $2, ondot.clock(), 'out', 'hello')", id_, tenant_no)
    async with world.database.connection() as connection:
        row = ObjectRow(id_, 1, "result", tenant_no, key_of(tenant_no, id_, 1, "result"), 5)
        await add_objects(connection, [row])


async def output_of(world: World, id_: ExecutionId) -> list[int]:
    return [
        await world.value(f"SELECT count(*) FROM ondot.{table} WHERE execution_id = $1", id_)
        for table in ("attempt", "log", "object")
    ]


class Shelf:
    """Storage that records what was deleted, and may be away."""

    place = "memory:"

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.is_away = False

    async def put(self, key: str, content: object) -> None:
        raise NotImplementedError

    async def get(self, key: str) -> Stored | None:
        raise NotImplementedError

    async def delete(self, keys: Sequence[str]) -> None:
        if self.is_away:
            raise Unavailable("it does not answer")
        self.deleted += keys


async def remove_objects(world: World, shelf: Shelf) -> None:
    removal = ObjectRemoval(world.database, shelf)
    while await removal.one_pass():
        pass


@proves("O1", "P1", "P3")
async def test_a_day_past_its_retention_keeps_what_is_still_needed_and_loses_the_rest(world: World) -> None:
    keep_for(world)
    gone = await run_one(world, name="gone")
    gone_job = (await world.execution(gone)).job_id
    letter_job = await world.submit(job("letter", retry=NO_RETRY, payload=b'{"a":1}'))
    worker = await world.worker()
    letter = (await worker.run_one(failed())).leased.id
    running_job = await world.submit(job("running"))
    [running] = await worker.lease()
    await write_output(world, running.leased.id)
    later = await world.submit(job("later", schedule=once(world.after(13 * DAY_S))))
    parent = await world.submit(job("parent", retry=NO_RETRY))
    ended_parent = (await worker.run_one(failed())).leased.id
    await world.submit(job("child", depends_on=(str(parent.id),)))
    await world.fetch(
        "UPDATE ondot.dead_letter SET resolved_at = ondot.clock(), resolution = 'discarded' WHERE execution_id = $1",
        ended_parent,
    )
    run = await workflows.start(world, worker, {"a": workflows.step(), "b": workflows.step("a")})
    [first] = await worker.lease(1)
    await worker.complete(first)
    await workflows.advance(world, run)
    held_job = await world.submit(job(schedule=Schedule(when=OnEvent(type="paid"), misfire=Misfire(policy="once"))))
    await pause(world.database, DEFAULT_TENANT, held_job.id)
    await EventReceiver(world.database, world.dispatcher).receive(
        DEFAULT_TENANT,
        [read_event({"specversion": "1.0", "id": id_, "source": "/s", "type": id_}) for id_ in ("paid", "other")],
    )
    async with world.database.connection() as connection:
        await record(connection, DEFAULT_TENANT, "ann", "job.pause", gone_job)
    await Sealer(world.database, None).one_pass()
    before = {table: await world.count(table) for table in TABLES}
    assert all(before.values()), before

    await age(world, KEPT_DAYS)
    await rewrite(world)
    assert {table: await world.count(table) for table in TABLES} == before, "not before its time"
    await age(world, EVENT_DAYS)
    await rewrite(world)

    assert not await is_there(world, gone)
    assert await output_of(world, gone) == [0, 0, 0]
    assert await output_of(world, running.leased.id) == [0, 1, 1]
    for id_ in (letter, ended_parent, first.leased.id):
        assert await is_there(world, id_)
    async with world.database.connection() as connection:
        jobs = {
            accepted.spec.name
            for accepted in (letter_job, running_job, later, parent)
            if await get_job(connection, DEFAULT_TENANT, accepted.id)
        }
        assert await get_job(connection, DEFAULT_TENANT, gone_job) is None
    assert jobs == {"letter", "running", "later", "parent"}
    assert [row["type"] for row in await world.fetch("SELECT type FROM ondot.event")] == ["paid"]
    assert await world.count("event_match") == 1
    assert await world.count("audit") == 0
    async with world.database.connection() as connection:
        [partition] = [each for each in await list_partitions(connection, "history") if each.last and each.last.kept]
    assert partition.last is not None
    assert partition.last.reasons == {"dead_letter": 1, "depended_on": 1, "run": 1}

    # A kept letter can be replayed, and what was running ends where its day is.
    [(result, _)] = await replay_all(world, [letter])
    assert result == "replayed"
    [replayed] = [each for each in await worker.lease() if each.leased.job_id == letter_job.id]
    await worker.complete_all([replayed, running])
    assert await is_there(world, running.leased.id)
    await rewrite(world)
    assert await is_there(world, running.leased.id), "it ended within retention"
    # A job that is due long after the retention runs once.
    await age(world, 4)
    await rewrite(world)
    await world.plan()
    [due] = [each for each in await worker.lease() if each.leased.job_id == later.id]
    await worker.complete(due)
    await world.plan()
    assert await worker.lease() == []
    # Later nothing is left but what waits for a person.
    for _ in range(2):
        await age(world, 9)
        await rewrite(world)
    assert not await is_there(world, due.leased.id)
    assert not await is_there(world, running.leased.id)
    assert await is_there(world, first.leased.id)
    left = {row["name"] for row in await world.fetch("SELECT name FROM ondot.job_once")}
    assert left == {"parent", "flow"}, "a child waits for one, and a run of the other has not ended"
    for parent_name in TABLES:
        async with world.database.connection() as connection:
            assert len(await list_partitions(connection, parent_name)) <= EVENT_DAYS + 15 + 9


@proves("O1", "P1", "P5")
async def test_rows_that_are_written_while_a_day_is_copied_are_in_it_afterwards(world: World) -> None:
    keep_for(world)
    gone = await run_one(world)
    await world.submit_all([job("late"), job("cancelled")])
    worker = await world.worker()
    late, other = await worker.lease()
    await age(world, KEPT_DAYS + 2)
    rewriting = await rewrite_until_copied(world)
    await worker.complete(late)
    await rewriting.one_pass()
    assert await world.count("day_copy") == 0
    assert not await is_there(world, gone)
    assert (await world.execution(late.leased.id)).state is State.SUCCEEDED
    assert await world.value("SELECT count(*) FROM pg_trigger WHERE tgname = 'day_touched' AND NOT tgisinternal") == 0
    await worker.complete(other)
    assert (await world.execution(other.leased.id)).state is State.SUCCEEDED
    assert await world.count("day_touched") == 0


@proves("O1", "P1", "P5")
async def test_executions_that_end_in_old_days_while_these_are_rewritten_are_not_lost(world: World) -> None:
    keep_for(world)
    gone = await run_one(world)
    await world.submit_all([job(f"late {number}") for number in range(40)])
    worker = await world.worker()
    late = await worker.lease(40)
    assert len(late) == 40
    await age(world, KEPT_DAYS + 2)

    async def end_one_by_one() -> None:
        for assignment in late:
            await worker.complete(assignment)

    async def rewrite_again_and_again() -> None:
        while not ending.done():
            await rewrite(world)
            await world.fetch("UPDATE ondot.day_rewritten SET days = 0")

    ending = asyncio.create_task(end_one_by_one())
    await asyncio.gather(ending, rewrite_again_and_again())
    await rewrite(world)
    assert not await is_there(world, gone)
    assert await world.count("history") == len(late)
    assert await world.count("job_once") == len(late)
    assert await world.count("execution") == 0


@proves("O1", "P1")
async def test_a_job_that_is_run_again_while_its_day_is_rewritten_stays(world: World) -> None:
    keep_for(world)
    again, gone = [(await world.execution(await run_one(world, name=name))).job_id for name in ("again", "gone")]
    await age(world, KEPT_DAYS + 2)
    rewriting = await rewrite_until_copied(world, "job_once")
    execution_id = await world.run_now(again)
    while await rewriting.one_pass():
        pass
    async with world.database.connection() as connection:
        assert await get_job(connection, DEFAULT_TENANT, gone) is None
        assert await get_job(connection, DEFAULT_TENANT, again) is not None
    worker = await world.worker()
    assert (await worker.run_one()).leased.id == execution_id


@proves("O1", "L1")
async def test_a_copy_of_a_day_in_which_much_was_changed_starts_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_for(world)
    gone = await run_one(world)
    await world.submit(job("late"))
    worker = await world.worker()
    [late] = await worker.lease()
    await age(world, KEPT_DAYS + 2)
    rewriting = await rewrite_until_copied(world)
    await worker.complete(late)
    monkeypatch.setattr("ondot.flow.history.rewrite.MOST_TOUCHED", 0)
    await rewriting.one_pass()
    assert [await world.count(table) for table in ("day_copy", "day_touched", "history")] == [0, 0, 2]
    while await rewriting.one_pass():
        pass
    assert not await is_there(world, gone)
    assert await is_there(world, late.leased.id)


@proves("O1", "L1")
async def test_a_dump_puts_the_swap_off_and_nobody_waits_behind_it(world: World) -> None:
    keep_for(world)
    gone = await run_one(world)
    await age(world, KEPT_DAYS + 2)
    await rewrite_until_copied(world)
    async with world.second_connection() as connection:
        await connection.execute("BEGIN")
        await connection.execute("LOCK TABLE ondot.history IN ACCESS SHARE MODE")
        await rewrite(world)
        assert await is_there(world, gone)
        await connection.execute("ROLLBACK")
    await rewrite(world)
    assert not await is_there(world, gone)
    assert await output_of(world, gone) == [0, 0, 0]


@proves("O1", "P1")
async def test_a_crash_at_any_step_and_a_second_scheduler_lose_nothing_and_leave_nothing_behind(world: World) -> None:
    keep_for(world)
    gone = await run_one(world)
    worker = await world.worker()
    await world.submit(job(retry=NO_RETRY))
    letter = (await worker.run_one(failed())).leased.id
    await age(world, KEPT_DAYS + 2)
    # Each pass by a process of its own, as if the one before had died; and two at once.
    for _ in range(1000):
        passes = [Rewriting(world.database).one_pass() for _ in range(2)]
        if not any(await asyncio.gather(*passes)):
            break
    assert not await is_there(world, gone)
    assert await is_there(world, letter)
    left = "SELECT count(*) FROM pg_class WHERE relname LIKE '%\\_copy' AND relnamespace = 'ondot'::regnamespace"
    assert await world.value(left) == 1, "the table day_copy"
    assert await world.count("day_copy") == 0


@proves("O1", "P1")
async def test_a_scheduler_that_is_killed_inside_a_step_loses_nothing_and_the_next_one_finishes(world: World) -> None:
    keep_for(world)
    gone = await run_one(world)
    await world.submit(job(retry=NO_RETRY))
    letter = (await (await world.worker()).run_one(failed())).leased.id
    await age(world, KEPT_DAYS + 2)
    for step in ("start_copy", "copy_some", "swap_copy"):
        command = (sys.executable, "-m", "tests.flow.killed_rewriting", world.url, str(KEPT_DAYS), step)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.DEVNULL)
        assert await process.wait() == -signal.SIGKILL, step
        async with asyncio.timeout(60):
            while await world.value(IN_TRANSACTION):
                await asyncio.sleep(0.02)  # until the server has noticed the death
        assert await is_there(world, gone), step
    await rewrite(world)
    assert not await is_there(world, gone)
    assert await world.count("day_copy") == 0
    assert await is_there(world, letter)
    assert await world.count("day_touched") == 0


@proves("O1")
async def test_a_copy_whose_table_has_changed_meanwhile_is_given_up_and_made_again(world: World) -> None:
    keep_for(world)
    gone = await run_one(world)
    await age(world, KEPT_DAYS + 2)
    rewriting = await rewrite_until_copied(world)
    await world.fetch("ALTER TABLE ondot.history ADD COLUMN more integer")
    await rewriting.one_pass()
    assert await world.count("day_copy") == 0
    assert await is_there(world, gone)
    await rewrite(world)
    await rewrite(world)
    assert not await is_there(world, gone)


@proves("O1", "T1")
async def test_a_tenant_may_keep_its_history_for_longer_or_shorter(world: World) -> None:
    keep_for(world)
    long, short = await world.add_tenant("long"), await world.add_tenant("short")
    await world.fetch(
        "UPDATE ondot.tenant SET retention_days = CASE name WHEN 'long' THEN 6 ELSE 1 END WHERE tenant_no = ANY ($1)",
        [long, short],
    )
    ids = {no: await run_one(world, name=f"of {no}", tenant_no=no) for no in (DEFAULT_TENANT, long, short)}

    async def kept() -> list[TenantNo]:
        await rewrite(world)
        return [no for no, id_ in ids.items() if await is_there(world, id_, no)]

    await age(world, 2)
    assert await kept() == [DEFAULT_TENANT, long]
    await age(world, 2)
    assert await kept() == [long]
    assert await output_of(world, ids[long]) == [1, 1, 1]
    await age(world, 2)
    assert await kept() == [long]
    await age(world, 2)
    assert await kept() == []
    assert await world.value("SELECT count(*) FROM ondot.job_once") == 0


@proves("O1", "E14")
async def test_objects_go_after_their_rows_and_what_fails_is_found_again(world: World) -> None:
    keep_for(world)
    gone = await run_one(world)
    await world.submit(job())
    worker = await world.worker()
    [running] = await worker.lease()
    await write_output(world, running.leased.id)
    shelf = Shelf()
    await age(world, KEPT_DAYS + 10)
    await remove_objects(world, shelf)
    assert shelf.deleted == []
    await rewrite(world)
    # That day was rewritten, and then merged with those before and after it, which had no objects and leave no list.
    assert await world.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'object%gone%' AND relkind = 'r'") == 2
    shelf.is_away = True
    await remove_objects(world, shelf)
    assert shelf.deleted == []
    shelf.is_away = False
    await remove_objects(world, shelf)
    assert shelf.deleted == [key_of(DEFAULT_TENANT, gone, 1, "result")]
    assert await world.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'object%gone%'") == 0
    assert await output_of(world, running.leased.id) == [0, 1, 1]


@proves("O1", "P3")
async def test_fires_of_a_backfill_under_way_are_known_though_their_day_is_old(world: World) -> None:
    keep_for(world)
    recurring = await world.submit(job(schedule=every(3600, world.now)))
    await world.advance(3 * 3600)
    await world.plan()
    worker = await world.worker()
    await worker.complete_all(await worker.lease())
    from_at = world.now - timedelta(hours=4)
    fires = await world.count("history")
    await start_backfill(
        world.database, DEFAULT_TENANT, recurring.id, Backfill(from_at, world.now), render=lambda _: ""
    )
    await pause(world.database, DEFAULT_TENANT, recurring.id)
    await age(world, KEPT_DAYS + 2)
    await rewrite(world)
    assert await world.count("history") == fires


@proves("O1", "C3")
async def test_a_clock_that_is_suddenly_a_year_ahead_removes_nothing(world: World) -> None:
    kept = await run_one(world)
    await world.advance(365 * DAY_S)
    await rewrite(world)
    assert await is_there(world, kept)
    await world.advance(-365 * DAY_S)
    await rewrite(world)
    assert await is_there(world, kept)


@proves("O1", "P3")
async def test_what_is_older_than_kept_history_is_refused_in_words(world: World) -> None:
    keep_for(world)
    recurring = await world.submit(job(schedule=every(86_400, world.now)))
    gone = await run_one(world)
    gone_job = (await world.execution(gone)).job_id
    first_at = world.now
    await age(world, 5)
    await rewrite(world)
    with pytest.raises(NotFound, match="History is kept for 2 days"):
        await explain_execution(world.database, DEFAULT_TENANT, gone)
    with pytest.raises(NotFound, match=r"There is no job .*\. One-time jobs are kept for 2 days"):
        await explain_job(world.database, DEFAULT_TENANT, gone_job)
    with pytest.raises(NotFound, match=r"There is no run .*\. Runs are kept for 2 days"):
        await explain_step(world.database, DEFAULT_TENANT, gone, "a")
    never = JobId(world.database.clock.new_id())
    with pytest.raises(NotFound, match=rf"^There is no job {never}\.$"):
        await explain_job(world.database, DEFAULT_TENANT, never)
    young = await world.submit(job("young", schedule=every(86_400, first_at)))
    backfill = Backfill(first_at, world.now)
    for ask in (count_backfill, partial(start_backfill, render=lambda _: "")):
        with pytest.raises(InvalidBody, match="is not kept any more"):
            await ask(world.database, DEFAULT_TENANT, recurring.id, backfill)
    late = Backfill(world.now - timedelta(days=2), world.now)
    assert (await count_backfill(world.database, DEFAULT_TENANT, recurring.id, late)).total == 2
    assert (await count_backfill(world.database, DEFAULT_TENANT, young.id, backfill)).total == 6


@proves("O1", "T1")
async def test_an_installation_has_at_most_four_retentions(world: World) -> None:
    for days in (7, 30, 60, 90):
        new = new_tenant({"name": f"t{days}", "retention_days": days})
        await create_tenant(world.database, DEFAULT_TENANT, new, render=lambda _: "")
    with pytest.raises(InvalidBody, match=r"at most 4 retentions.*Use one of: 7, 30, 60, 90"):
        await update_tenant(world.database, "t30", lambda tenant: patched_tenant({"retention_days": 14}, tenant))
    row = await update_tenant(world.database, "t7", lambda tenant: patched_tenant({"retention_days": 14}, tenant))
    assert row.tenant.retention_days == 14
    row = await update_tenant(world.database, "t7", lambda tenant: patched_tenant({"retention_days": None}, tenant))
    assert row.tenant.retention_days is None


@proves("O1", "O4")
async def test_a_disk_that_is_nearly_full_shortens_the_retention_only_if_that_is_allowed(world: World) -> None:
    old = await run_one(world)
    await age(world, 9)

    async def rewrite_with(**settings: int) -> bool:
        changed = world.database.settings.model_copy(update=settings)
        rewriting = Rewriting(dataclasses.replace(world.database, settings=changed))
        while await rewriting.one_pass():
            pass
        return await is_there(world, old)

    assert await rewrite_with(disk_limit=1_000_000)
    [condition] = await world.fetch("SELECT kind, message FROM ondot.condition")
    assert condition["kind"] == "disk"
    assert "ONDOT_RETENTION_MIN_DAYS" in condition["message"]
    assert await rewrite_with(disk_limit=1_000_000_000_000, retention_min_days=7)
    assert await world.count("condition") == 0
    assert not await rewrite_with(disk_limit=1_000_000, retention_min_days=7)


@proves("O1")
async def test_a_day_goes_at_its_quiet_time_also_if_that_was_missed_or_the_clock_steps(world: World) -> None:
    keep_for(world, 1)
    world.database.settings = world.database.settings.model_copy(update={"retention_at": "23:41"})
    midnight = start_of(world.now.date() + timedelta(days=1))
    old = await run_one(world)
    goes_at = midnight + timedelta(days=1, hours=23, minutes=41)
    view = await read_history(world.database)
    assert (view.next_day, view.next_at) == (world.now.date(), goes_at)
    await age(world, 1)
    for at in (midnight + timedelta(days=1), goes_at - timedelta(seconds=1)):
        await world.set_clock(at)
        await rewrite(world)
        assert await is_there(world, old)
    assert (await read_history(world.database)).next_at == goes_at
    late = await run_one(world)
    for at, is_kept in ((goes_at, False), (goes_at - timedelta(minutes=5), False), (goes_at, False)):
        await world.set_clock(at)
        await rewrite(world)  # by a scheduler that has just started
        assert await is_there(world, old) == is_kept
    # It was down for two days, and starts at midnight: what should have gone meanwhile goes at once.
    await age(world, 2)
    await world.set_clock(midnight + timedelta(days=4))
    await rewrite(world)
    assert not await is_there(world, late)


@proves("O1", "O4")
@pytest.mark.parametrize("least", [None, 1])
async def test_a_disk_that_is_nearly_full_does_not_wait_for_the_quiet_time(world: World, least: int | None) -> None:
    keep_for(world, 1)
    full = {"retention_at": "23:41", "disk_limit": 1_000_000, "retention_min_days": least}
    old = await run_one(world)
    await age(world, 1)
    await world.set_clock(start_of(world.now.date() + timedelta(days=1)))
    world.database.settings = world.database.settings.model_copy(update=full)
    await rewrite(world)
    assert not await is_there(world, old)


@proves("O1", "T6")
async def test_the_audit_log_can_be_verified_though_its_first_seals_have_gone(world: World) -> None:
    keep_for(world)
    key = SealKey(b"k" * 32)
    sealer = Sealer(world.database, key)

    async def enter(count: int) -> None:
        for _ in range(count):
            async with world.database.connection() as connection:
                await record(connection, DEFAULT_TENANT, "ann", "job.pause", None)
            await sealer.one_pass()
            await world.advance(1)

    await enter(3)
    await age(world, KEPT_DAYS + 2)
    await enter(2)
    await rewrite(world)
    verdict = await verify_audit(world.database, DEFAULT_TENANT, [key])
    assert verdict.is_intact, verdict.faults
    assert (verdict.entries, verdict.gone, verdict.first_seq) == (2, 3, 1)
    removal = SealRemoval(world.database, key)
    while await removal.one_pass():
        pass
    verdict = await verify_audit(world.database, DEFAULT_TENANT, [key])
    assert verdict.is_intact, verdict.faults
    assert (verdict.entries, verdict.gone, verdict.first_seq, verdict.seals) == (2, 0, 4, 2)
    await enter(1)
    assert (await verify_audit(world.database, DEFAULT_TENANT, [key])).is_intact
    # To remove more needs the key, and younger entries are missed.
    await world.fetch("DELETE FROM ondot.audit_seal WHERE seq = 4")
    await world.fetch("UPDATE ondot.audit_cut SET seq = 4, hash = (SELECT prev FROM ondot.audit_seal WHERE seq = 5)")
    faults = [fault.what for fault in (await verify_audit(world.database, DEFAULT_TENANT, [key])).faults]
    assert any("without the key" in what for what in faults)
    assert any("in no seal" in what for what in faults)
