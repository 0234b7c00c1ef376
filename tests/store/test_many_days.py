"""After a quarter of a year, statements still lock and plan the partitions of a few days, not of all.

A statement that might read every day of history locks them all, rows or not: 1,500 locks and 17 ms for each plan after
a year, and PostgreSQL's table of locks is full when a few of them meet. So everything that reads tables cut by day is
run on a database with 90 days, and what each statement locks is counted.
"""

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from asyncpg.connection import LoggedQuery
from hypothesis import given
from hypothesis.strategies import integers, none, one_of
from past_days import make_past_days

from ondot.flow.audit_seal import Sealer
from ondot.flow.audit_verify import verify_audit
from ondot.flow.backfill import Backfill, count_backfill, start_backfill
from ondot.flow.cancel import cancel
from ondot.flow.change import change
from ondot.flow.events.receive import EventReceiver
from ondot.flow.explain import explain_job
from ondot.flow.find import Asked, find
from ondot.flow.plan import Planning, plan_timers
from ondot.flow.report.make import make_report
from ondot.model.access import LOCAL
from ondot.model.event import read_event
from ondot.model.execution import State
from ondot.model.find import Kind as FoundKind
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId, first_id_at
from ondot.model.misfire import Misfire, MissedPolicy
from ondot.model.planning import first_execution_id
from ondot.model.query import parse
from ondot.model.report.window import Window
from ondot.model.schedule import OnEvent, Schedule
from ondot.model.workflow.states import RunState
from ondot.store import (
    alert_sources,
    audit,
    awaited,
    bulk,
    dead_letters,
    definitions,
    events,
    executions,
    expect,
    explain,
    forecast,
    jobs,
    logs,
    objects,
    once_names,
    outcomes,
    overview,
    own_events,
    pools,
    report,
    run_reads,
    run_views,
    search,
    search_jobs,
    sinks,
    steps,
    traces,
    unique_keys,
)
from ondot.store.audit import By
from ondot.store.connection import Connection
from ondot.store.database import open_database
from ondot.store.day_bounds import LAST_ID
from ondot.store.event_matches import find_matches, find_matches_of_job
from ondot.store.newest import NO_ID, Kept, read_kept
from ondot.store.owed import list_backfills
from ondot.store.own_events import find_hops
from ondot.store.queries import load_queries, nouns
from ondot.store.retain import remove_jobs
from ondot.store.run_reads import RunRow
from ondot.store.specs import Specs
from ondot.store.timers import get_timer
from ondot.store.traces import find_event_traces
from tests.proves import proves
from tests.servers import Server, connected, new_database, settings_for
from tests.world import DEFAULT_POOL, World, every, failed, job, once, open_world

DAYS: Final = 90
PAGE: Final = 5
FEW: Final = 260
"""Locks of a statement: partitions of 30 days and of the two weeks ahead, with their indexes. All days have more."""
READS: Final = re.compile(r"(?:FROM|JOIN) ondot\.(?:job_once|history|attempt|log|audit|object|event|event_match)\b")
NOT_BOUNDED: Final = {
    "next_letters": "filtered by pool, which only history knows, it looks at every day",
    "count_once_jobs": "counts the days since the tenant exists, for two seconds, before a deletion",
    "count_history": "as count_once_jobs",
    **dict.fromkeys(
        ("keep_history", "keep_output", "keep_event_match", "keep_event", "keep_audit"),
        "part of a statement that reads one day's own table; test_history runs them",
    ),
    "keep_job_once": "once a day: executions of any later day keep their one-time job",
}
COUNT_LOCKS: Final = "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()"


@pytest.fixture(scope="module")
async def old_template(server: Server) -> AsyncIterator[str]:
    async with new_database(server) as url:
        async with connected(url) as connection:
            await make_past_days(connection, DAYS)
        yield urlsplit(url).path.strip("/")


@pytest.fixture
async def old_world(server: Server, old_template: str) -> AsyncIterator[World]:
    """An ondot that is 90 days old."""
    async with new_database(server, template=old_template) as url, open_world(url) as world:
        yield world


def name_of(text: str) -> str:
    found = re.match(r"-- name: (\w+)", text)
    return found[1] if found else ""


async def use_everything(world: World) -> None:
    """Plan, change, page through and explain: every statement that reads a table by day, by its callers."""
    recurring = await world.submit(job(schedule=every(10, world.now)))
    pages = await world.submit_all([job() for _ in range(2 * PAGE)])
    later = await world.submit(job(schedule=once(world.after(3600))))
    worker = await world.worker()
    await worker.complete_all(await worker.lease(), failed(retryable=False))
    await world.submit(job(depends_on=(str(pages[0].id),)))
    await world.advance(15)
    await world.plan()
    ahead = [row.id for row in await world.executions(recurring.id) if row.fire_at > world.now]
    await cancel(world.database, world.dispatcher, DEFAULT_TENANT, ahead[-1], by=By("somebody"))
    await change.pause(world.database, DEFAULT_TENANT, recurring.id)
    await change.resume(world.database, world.dispatcher, DEFAULT_TENANT, recurring.id)
    await world.update(recurring.id, job(schedule=every(5, world.now)))
    await change.delete(world.database, DEFAULT_TENANT, later.id)
    await world.plan()
    backfill = Backfill(world.now - timedelta(minutes=1), world.now)
    await count_backfill(world.database, DEFAULT_TENANT, recurring.id, backfill)
    await start_backfill(world.database, DEFAULT_TENANT, recurring.id, backfill, render=lambda _: "")
    await world.work_off()
    await explain_job(world.database, DEFAULT_TENANT, recurring.id, at=world.now)
    window = Window(world.now - timedelta(days=1), world.now, "UTC", is_open=True)
    await make_report(world.database, DEFAULT_TENANT, window, is_whole=True)
    await use_events(world)
    for text in ("", "report", str(recurring.id)[:4], str(recurring.id)):
        asked = Asked(LOCAL, text, tuple(FoundKind), 20, is_exact=False, shows=lambda _: True, sees_fleet=True)
        assert (await find(world.database, asked)).candidates
    async with world.database.connection() as connection:
        for number in range(PAGE):
            await audit.record(connection, DEFAULT_TENANT, "somebody", "execution.cancel", pages[number].id)
        await look_around(world, connection, recurring.id, pages[0].id)
        await use_expectations(connection, recurring.id, world.now)
        await report.measure_before(connection, DEFAULT_TENANT, [recurring.id], world.now)


async def use_expectations(connection: Connection, job_id: JobId, now: datetime) -> None:
    watched = [expect.WatchRow(job_id, "end_by", DEFAULT_TENANT, now - timedelta(days=400), now, now)]
    jobs = [(DEFAULT_TENANT, job_id)]
    await expect.read_fires(connection, watched)
    await expect.read_last_successes(connection, watched)
    await expect.read_durations(connection, jobs, now)
    await expect.read_open_misses(connection, jobs, now)


def a_run(id_: ExecutionId, job_id: JobId, started_at: datetime) -> RunRow:
    return RunRow(
        id=id_,
        job_id=job_id,
        job_version=1,
        parent_run_id=None,
        parent_step_no=None,
        parent_item_no=None,
        rerun_of=None,
        depth=0,
        state=RunState.RUNNING,
        verdict=None,
        reason=None,
        is_paused=False,
        started_at=started_at,
        blocked_at=None,
        ended_at=None,
        look_at=None,
        waiting=0,
        active=0,
        succeeded=0,
        failed=0,
        skipped=0,
        blocked=0,
        superseded=0,
    )


async def use_events(world: World) -> None:
    """A job that events start: an event, the same one again, and two for which it is paused."""
    accepted = await world.submit(job(schedule=Schedule(when=OnEvent(type="paid"), misfire=Misfire(policy="once"))))
    receiver = EventReceiver(world.database, world.dispatcher)

    async def send(id_: str) -> events.Answer:
        event = read_event({"specversion": "1.0", "id": id_, "source": "/shop", "type": "paid"})
        [answer] = await receiver.receive(DEFAULT_TENANT, [event])
        return answer

    first = await send("1")
    assert await send("1") == first
    for id_ in ("2", "3"):
        await change.pause(world.database, DEFAULT_TENANT, accepted.id)
        await send(id_)
        missed: MissedPolicy = "once" if id_ == "2" else "skip"
        await change.resume(world.database, world.dispatcher, DEFAULT_TENANT, accepted.id, missed=missed)
    async with world.database.connection() as connection:
        [row] = await events.list_events(connection, DEFAULT_TENANT, events.EventFilter(), limit=1)
        assert await events.get_event(connection, DEFAULT_TENANT, row.id) == row
        await events.list_matches(connection, DEFAULT_TENANT, row.id)
        await find_matches(connection, DEFAULT_TENANT, [row.id], PAGE)
        await find_matches_of_job(connection, DEFAULT_TENANT, accepted.id, [row.id])
        await find_hops(connection, DEFAULT_TENANT, [first.executions[0]])
        await find_event_traces(connection, DEFAULT_TENANT, [first.executions[0]])
        assert await events.find_event_of(connection, DEFAULT_TENANT, first.executions[0]) == first.id


async def look_around(world: World, connection: Connection, job_id: Any, once_id: Any) -> None:
    everything = dead_letters.LetterFilter()
    letters = await dead_letters.list_letters(connection, DEFAULT_TENANT, everything, limit=PAGE)
    assert letters[0].pool == "default"
    letter = letters[0].execution_id
    listed = await executions.list_executions(connection, DEFAULT_TENANT, limit=PAGE, horizon_s=20)
    await executions.list_executions(connection, DEFAULT_TENANT, limit=PAGE, horizon_s=20, before=listed[0].id)
    await executions.find_latest_ended(connection, DEFAULT_TENANT, job_id)
    await executions.list_job_executions(connection, DEFAULT_TENANT, job_id, limit=PAGE, horizon_s=20)
    await executions.find_latest_execution(connection, DEFAULT_TENANT, job_id)
    await executions.get_execution(connection, DEFAULT_TENANT, letter)
    await executions.list_attempts(connection, DEFAULT_TENANT, letter)
    await explain.find_executions(connection, DEFAULT_TENANT, [letter])
    await overview.list_latest_executions(connection, DEFAULT_TENANT, PAGE)
    an_hour_ago = first_id_at(world.now - timedelta(hours=1))
    await overview.count_recent_states(connection, DEFAULT_TENANT, an_hour_ago)
    await overview.list_latest_executions(connection, DEFAULT_TENANT, 10 * PAGE, is_one_of_several=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overview, "CEILING", 1)  # as if others had flooded
        await overview.count_recent_states(connection, DEFAULT_TENANT, an_hour_ago, is_one_of_several=True)
    await jobs.list_jobs(connection, DEFAULT_TENANT, limit=PAGE)
    await jobs.get_jobs(connection, DEFAULT_TENANT, [job_id, once_id])
    await jobs.find_creator(connection, DEFAULT_TENANT, once_id)
    await audit.list_audit(connection, DEFAULT_TENANT, limit=PAGE)
    await Sealer(world.database, None).one_pass()
    assert (await verify_audit(world.database, DEFAULT_TENANT, [])).is_intact
    await dead_letters.get_letter(connection, DEFAULT_TENANT, letter)
    await dead_letters.count_letters(connection, DEFAULT_TENANT, everything)
    await dead_letters.group_letters(connection, DEFAULT_TENANT, everything, limit=PAGE, jobs=1)
    await dead_letters.find_job_names(connection, DEFAULT_TENANT, [job_id, once_id])
    await alert_sources.describe_jobs(connection, [job_id, once_id])
    await alert_sources.last_ends(connection, [job_id], an_hour_ago, 3)
    await dead_letters.find_replay_payload(connection, DEFAULT_TENANT, letter)
    await dead_letters.lock_ended(connection, DEFAULT_TENANT, letter)
    await pools.count_letters_by_pool(connection, DEFAULT_TENANT, [letter])
    await logs.list_log_lines(connection, DEFAULT_TENANT, letter, after=(0, 0), limit=PAGE)
    await bulk.see_items(connection, DEFAULT_TENANT, "executions", [letter])
    await bulk.see_items(connection, DEFAULT_TENANT, "jobs", [once_id])
    await objects.find_object(connection, DEFAULT_TENANT, letter, 1, "log")
    await objects.find_result(connection, DEFAULT_TENANT, letter)
    await objects.find_writer(connection, DEFAULT_TENANT, letter, 1)
    await outcomes.find_outcomes(connection, (await world.worker()).id, [(letter, 1)])
    await unique_keys.unplan_jobs(connection, DEFAULT_TENANT, [unique_keys.Replaced(once_id, letter, "overtaken")])
    await list_backfills(connection, DEFAULT_TENANT, job_id, limit=PAGE)
    await run_reads.find_step_executions(connection, DEFAULT_TENANT, [letter])
    await executions.find_origins(connection, DEFAULT_TENANT, [letter])
    await steps.find_results(connection, letter, [0], letter)
    await steps.find_ends_missed(connection, [letter])
    await steps.find_results_of(connection, DEFAULT_TENANT, [letter])
    run = a_run(letter, job_id, world.now)
    await run_reads.find_step_executions(connection, DEFAULT_TENANT, [letter])
    await run_views.list_run_executions(connection, DEFAULT_TENANT, run, world.now)
    await run_views.list_step_executions(connection, DEFAULT_TENANT, run, 0, world.now, PAGE)
    await run_views.list_early_attempts(connection, DEFAULT_TENANT, run, [letter], world.now)
    for text in ("state:failed", "payload.customer=42"):
        await search.search_executions(connection, DEFAULT_TENANT, parse(text))
    [name] = parse("job:rare*").terms
    kept, today = await read_kept(connection), first_id_at(world.now)
    await once_names.find_by_index(connection, DEFAULT_TENANT, name, kept, today)
    await once_names.find_by_reading(connection, DEFAULT_TENANT, name, today)
    await search_jobs.search_jobs(connection, DEFAULT_TENANT, parse("state:active", of="jobs"))
    await traces.find_event_traces(connection, DEFAULT_TENANT, [letter])
    await forecast.measure_durations(connection, DEFAULT_TENANT)
    await forecast.count_actual(connection, DEFAULT_TENANT, [], world.now - timedelta(hours=1), world.now, 60)
    await forecast.find_once_pools(connection, DEFAULT_TENANT, [once_id])
    await own_events.find_ended(connection, DEFAULT_TENANT, [letter])
    await sinks.find_ended_facts(connection, DEFAULT_TENANT, [letter], 100)
    await sinks.find_attempt_facts(connection, DEFAULT_TENANT, [(letter, 1)])
    await sinks.find_facts_of_jobs(connection, DEFAULT_TENANT, [job_id, once_id])
    await awaited.find_awaited_jobs(connection, DEFAULT_TENANT, [job_id, once_id])
    await awaited.read_latest_ends(connection, DEFAULT_TENANT, [job_id, once_id], most_bytes=100)
    page = await jobs.get_jobs(connection, DEFAULT_TENANT, [job_id])
    await definitions.find_latest_runs(connection, DEFAULT_TENANT, list(page.values()), PAGE)
    await remove_jobs(connection, [once_id])


@proves("O1", "N6", "P3")
async def test_no_statement_locks_the_partitions_of_all_days(old_world: World) -> None:
    sent: dict[str, LoggedQuery] = {}

    def remember(query: LoggedQuery) -> None:
        sent.setdefault(name_of(query.query), query)

    async with AsyncExitStack() as stack:
        for _ in range(old_world.database.settings.database_connections):
            connection = await stack.enter_async_context(old_world.database.connection())
            connection.add_query_logger(remember)
    await use_everything(old_world)
    reading = {
        query.name
        for noun in nouns()
        for query in load_queries(noun).values()
        if READS.search(re.sub(r"^--.*$", "", query.text, flags=re.MULTILINE))
    }
    assert reading - sent.keys() == NOT_BOUNDED.keys(), "a statement that reads days is to be used above"
    async with old_world.second_connection() as connection:
        locks = {}
        for name in reading & sent.keys():
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(f"EXPLAIN {sent[name].query}", *sent[name].args)
            locks[name] = await connection.fetchval(COUNT_LOCKS)
            await transaction.rollback()
    assert {name: count for name, count in locks.items() if count > FEW} == {}


@proves("O1", "N6")
async def test_a_worker_whose_plans_are_made_once_locks_only_the_days_of_its_work(old_world: World) -> None:
    old = await old_world.submit_all([job() for _ in range(PAGE)])
    await old_world.advance(3 * 86_400)
    young = await old_world.submit_all([job() for _ in range(PAGE)])
    recurring = await old_world.submit(job(schedule=every(10, old_world.now)))
    wanted = [(accepted.id, 1) for accepted in (*old, *young, recurring)]
    by_key = await open_database(settings_for(old_world.url), by_key=True)
    worker = await old_world.worker()
    try:
        for _ in range(2):
            async with by_key.transaction() as connection:
                specs = await Specs().find(connection, wanted)
                ids = [ExecutionId(accepted.id) for accepted in young]
                await outcomes.find_outcomes(connection, worker.id, [(id_, 1) for id_ in ids])
                assert await connection.fetchval(COUNT_LOCKS) < FEW / 3
            assert specs.keys() == set(wanted)
    finally:
        await by_key.close()


@proves("O1")
async def test_a_page_continues_into_older_days_while_it_is_not_full(old_world: World) -> None:
    made = []
    for _ in range(4):
        made += await old_world.submit_all([job(), job()])
        worker = await old_world.worker()
        await worker.complete_all(await worker.lease())
        await old_world.advance(30 * 86_400)
    newest = sorted((accepted.id for accepted in made), reverse=True)
    async with old_world.database.connection() as connection:
        listed = await executions.list_executions(connection, DEFAULT_TENANT, limit=100, horizon_s=20)
        assert [row.job_id for row in listed] == newest
        one_by_one: list[executions.ExecutionRow] = []
        while page := await executions.list_executions(
            connection, DEFAULT_TENANT, limit=3, horizon_s=20, before=one_by_one[-1].id if one_by_one else None
        ):
            one_by_one += page
        assert one_by_one == listed
        assert [row.id for row in await jobs.list_jobs(connection, DEFAULT_TENANT, limit=100)] == newest
        oldest = newest[-1]
        assert (await executions.list_job_executions(connection, DEFAULT_TENANT, oldest, limit=9, horizon_s=20))[
            0
        ].job_id == oldest
        assert (latest := await executions.find_latest_execution(connection, DEFAULT_TENANT, oldest))
        assert latest.state is State.SUCCEEDED


@proves("O1")
async def test_the_latest_execution_is_that_of_the_latest_fire_and_no_backfill_of_an_older_one(
    old_world: World,
) -> None:
    accepted = await old_world.submit(job(schedule=every(86_400, old_world.now)))
    await old_world.advance(86_400)
    await old_world.plan()
    worker = await old_world.worker()
    await worker.run_one()
    await change.pause(old_world.database, DEFAULT_TENANT, accepted.id)
    await old_world.advance(40 * 86_400)
    fire_at = old_world.now - timedelta(days=41)
    backfill = Backfill(fire_at - timedelta(days=10), fire_at)
    await change.resume(old_world.database, old_world.dispatcher, DEFAULT_TENANT, accepted.id)
    await start_backfill(old_world.database, DEFAULT_TENANT, accepted.id, backfill, render=lambda _: "")
    await old_world.work_off()
    [assignment] = await worker.lease()
    await worker.complete(assignment, failed(retryable=False))
    async with old_world.database.connection() as connection:
        latest = await executions.find_latest_execution(connection, DEFAULT_TENANT, accepted.id)
    assert latest is not None
    assert latest.state is State.SUCCEEDED


@given(
    now=integers(0, 3650).map(lambda day: datetime(2020, 1, 1, 12, tzinfo=UTC) + timedelta(days=day)),
    age=integers(0, 1000),
    before=one_of(none(), integers(-1000, 30)),
    down_to=one_of(none(), integers(0, 1000)),
)
@proves("O1")
def test_the_ranges_of_a_page_are_adjacent_and_leave_nothing_out(
    now: datetime, age: int, before: int | None, down_to: int | None
) -> None:
    kept = Kept(now, (now - timedelta(days=age)).date())
    before_id = None if before is None else first_id_at(now + timedelta(days=before))
    down_to_id = NO_ID if down_to is None else first_id_at(now - timedelta(days=down_to))
    ranges = list(kept.windows(before=before_id, down_to=down_to_id))
    assert ranges[0][1] == (before_id or LAST_ID)
    assert ranges[-1][0] == down_to_id
    assert all(newer[0] == older[1] for newer, older in pairwise(ranges))
    assert len(ranges) <= 3 + 1000 // 64


@proves("O1")
async def test_ids_that_ondot_did_not_make_are_of_no_day_and_break_nothing(world: World) -> None:
    async with world.database.connection() as connection:
        for id_ in (NO_ID, LAST_ID, UUID("f5b29429-56a2-4732-a290-011488d7143a")):
            assert await Specs().find(connection, [(id_, 1)]) == {}
            assert (
                await executions.list_executions(connection, DEFAULT_TENANT, limit=PAGE, horizon_s=20, before=id_) == []
            )
            assert (
                await executions.list_job_executions(connection, DEFAULT_TENANT, JobId(id_), limit=PAGE, horizon_s=20)
                == []
            )
            assert await executions.find_latest_execution(connection, DEFAULT_TENANT, JobId(id_)) is None
            assert await jobs.list_jobs(connection, DEFAULT_TENANT, limit=PAGE, before=id_) == []
            assert await outcomes.find_outcomes(connection, (await world.worker()).id, [(ExecutionId(id_), 1)])


@proves("P3")
async def test_a_plan_takes_no_timer_that_was_guarded_after_it_was_read(world: World) -> None:
    accepted = await world.submit(job(schedule=every(60, world.now)))
    async with world.database.connection() as connection:
        timer = await get_timer(connection, DEFAULT_TENANT, accepted.id)
        assert timer is not None
        assert timer.next_fire_at is not None
        await connection.execute("UPDATE ondot.timer SET guard_until = next_fire_at WHERE job_id = $1", accepted.id)
        at = timer.next_fire_at
        for read, moved in ((timer, 0), (await get_timer(connection, DEFAULT_TENANT, accepted.id), 1)):
            assert read is not None
            planning = Planning(read, accepted.spec, DEFAULT_POOL)
            planned = await plan_timers(connection, world.database.clock, [planning], now=world.now, horizon_at=at)
            assert (planned.moved, planned.planned) == (moved, moved)


@proves("P3", "C3")
async def test_the_id_of_an_execution_is_never_long_before_its_fire_even_if_the_clock_was_set(
    world: World,
) -> None:
    """A search of history starts at an instant computed from the fire; the process may not know the new time yet."""
    accepted = await world.submit(job(schedule=every(60, world.now, misfire=Misfire(policy="all"))))
    before = world.now
    await world.advance(100 * 86_400)
    world.database.clock.freeze(before)
    await world.plan()
    assert await world.work_off() == 1
    made = await world.executions(accepted.id)
    assert len(made) >= 10
    assert all(first_execution_id(row.fire_at) <= row.id for row in made)
