"""Search of executions: each field, one order, pages, budgets, tenants, labels in history (O1, P12)."""

import json
import time
from datetime import timedelta
from itertools import chain
from typing import Any
from uuid import UUID

import pytest

from ondot.flow.cancel import cancel
from ondot.flow.days import make_days
from ondot.flow.history.names import NameIndexes
from ondot.flow.workflows.begin import begin
from ondot.model.ids import DEFAULT_TENANT, TenantNo, instant_of
from ondot.model.outcome import Succeeded
from ondot.model.query import parse
from ondot.store import once_names, search, search_jobs, search_walk
from ondot.store.audit import By
from ondot.store.database import Database, open_database
from ondot.store.day_bounds import LAST_ID
from ondot.store.migrate import migrate_up
from ondot.store.newest import NO_ID, read_kept
from ondot.store.search import Found, match_executions, search_executions
from tests.flow.workflows import run_steps, step, workflow
from tests.proves import proves
from tests.servers import settings_for
from tests.world import World, every, failed, job, once

OTHER = TenantNo(2)
BI = {"team": "bi", "app.io/name": "x"}


async def find(
    world: World,
    text: str,
    *,
    after: UUID | None = None,
    limit: int = 50,
    budget_s: float = 60,
    tenant_no: TenantNo = DEFAULT_TENANT,
) -> Found:
    async with world.database.connection() as connection:
        return await search_executions(connection, tenant_no, parse(text), after, limit, budget_s)


async def names(world: World, text: str, tenant_no: TenantNo = DEFAULT_TENANT) -> list[str]:
    """The names of the jobs of what is found, newest first."""
    found = await find(world, text, tenant_no=tenant_no)
    assert (found.next, found.searched_through) == (None, None)
    async with world.database.connection() as connection:
        specs = await world.database.specs.find(connection, {(row.job_id, row.job_version) for row in found.rows})
    return [specs[row.job_id, row.job_version].name for row in found.rows]


async def fill(world: World) -> None:
    """One-time jobs, old and new, a recurring one, a failure, a step, executions that run and wait; another tenant."""
    await world.add_tenant()
    await world.submit(job("nightly-sums", labels=BI, payload=b'{"customer": 42}'), OTHER)
    old = await world.submit(
        job("long planned", schedule=once(world.after(3 * 86_400)), payload=b'{"customer": {"id": 7}}')
    )
    await world.submit(
        job("nightly-sums", schedule=every(86_400, world.after(1)), labels=BI, payload=b'{"customer": 42}')
    )
    worker = await world.worker()
    await world.advance(2)
    await world.plan()
    for assignment in await worker.lease():
        await world.advance(3)
        await worker.complete(assignment)
    await world.submit(job("import 100%", labels=BI, payload=b'{"customer": "x_y", "amount": 12.5}'))
    await world.advance(1)
    await worker.run_one(failed("the call timed out after 5 s", retryable=False))
    await world.submit(job("flow", target=workflow({"a": step()}), labels={"team": "ops"}))
    [run] = await worker.lease()
    assert await begin(world.database, world.dispatcher, worker.id, run.leased)
    worker.completer.release(run.lease_id)
    await run_steps(world, worker, run.leased.id, {"a": Succeeded()})
    await world.advance(3 * 86_400)
    await world.plan()
    for assignment in await worker.lease():
        if assignment.leased.job_id == old.id:
            await worker.complete(assignment)
    await world.submit(job("dropped", labels=BI))
    [dropped] = (await find(world, "job:dropped")).rows
    await cancel(world.database, world.dispatcher, DEFAULT_TENANT, dropped.id, by=By("ops", "not needed"))
    await world.submit(job("waiting", labels=BI))
    await world.advance(20)


async def index_names(world: World) -> None:
    await make_days(world.database)
    while await NameIndexes(world.database).one_pass():
        pass


NIGHTLY = "nightly-sums"
OURS = ["waiting", "dropped", "long planned", NIGHTLY, NIGHTLY, "flow", "import 100%", NIGHTLY]
CASES = {
    "": OURS,
    "Nightly": [NIGHTLY] * 3,
    "job:NIGHTLY*": [NIGHTLY] * 3,
    "job:nightly": [],
    "job:*nope*,flow": ["flow"],
    'job:"import 100%"': ["import 100%"],
    'job:"import 100_"': [],
    "-nightly state:succeeded": ["long planned", "flow"],
    "state:failed,cancelled": ["dropped", "import 100%"],
    "-state:succeeded -state:running": ["waiting", "dropped", "import 100%"],
    "state!=succeeded,running": ["waiting", "dropped", "import 100%"],
    "state:running": [NIGHTLY, NIGHTLY],
    "state:pending": ["waiting"],
    "label.team=bi": ["waiting", "dropped", NIGHTLY, NIGHTLY, "import 100%", NIGHTLY],
    "label.team:b*,o* -state:running": ["waiting", "dropped", "flow", "import 100%", NIGHTLY],
    "label.app.io/name=x state:failed": ["import 100%"],
    "label.team=ops": ["flow"],
    "-label.team:*": ["long planned"],
    'error:"TIMED out"': ["import 100%"],
    "error:broken": ["import 100%"],
    'error:"not needed"': ["dropped"],
    "error:t%d": [],
    "-error:* state:failed": [],
    "payload.customer=42": [NIGHTLY] * 3,
    "payload.customer.id=7": ["long planned"],
    "payload.customer=x_y": ["import 100%"],
    'payload.customer:"x%"': [],
    "payload.customer:x*": ["import 100%"],
    "payload.amount>12 payload.amount<=12.5": ["import 100%"],
    "payload.amount>12.5": [],
    "payload.customer>1": [NIGHTLY] * 3,
    "took>=3s state:succeeded": [NIGHTLY],
    "took>10s": [NIGHTLY, NIGHTLY],
    "took<1h state:cancelled": [],
    "waited>=20s state:pending": ["waiting"],
    "attempt:1 state:failed,succeeded": ["long planned", "flow", "import 100%", NIGHTLY],
    "attempt<1": ["waiting", "dropped"],
    "since:1h": ["waiting", "dropped", "long planned", NIGHTLY, NIGHTLY],
    "since:4d until:1h": ["flow", "import 100%", NIGHTLY],
    "pool:DEF*": OURS,
    "-pool:default": [],
    "worker:here state:failed": ["import 100%"],
    "worker:elsewhere": [],
    "origin:step": ["flow"],
    "origin:backfill,run": [],
    "since:20000d until:1970-01-02": [],
}


@proves("O1")
async def test_case_days_nulls_and_keys_with_dots_mean_what_people_expect(world: World) -> None:
    """On a server whose locale is C, which knows the case of ASCII letters only."""
    worker = await world.worker()
    await world.submit(job("näht Jacken", payload=b'{"n": null, "a.b": 1, "b": {"c.d": null}}'))
    await world.advance(1)
    await worker.run_one(failed("der Faden riß: ÄRGER", retryable=False))
    await world.submit(job("ОТЧЁТ за сентябрь", payload=b'{"n": "null"}'))
    await world.advance(1)
    await worker.run_one()
    await world.advance(2 * 86_400)
    await world.submit(job("later", payload=b'{"n": 0}'))
    await world.advance(1)
    await worker.run_one()
    both = ["ОТЧЁТ за сентябрь", "näht Jacken"]
    day = f"{world.after(-2 * 86_400):%Y-%m-%d}"
    cases = {
        "NÄHT": both[1:],
        'job:"NÄHT jACKEN"': both[1:],
        "job:nÄh*": both[1:],
        "error:ärger": both[1:],
        "отчёт": both[:1],
        '"отчёт за сентябрь"': [],
        '"ОТЧЁТ за сентябрь"': both[:1],
        "nahT": [],
        f"fire:{day}": both,
        f"fire={day} -fire:yesterday": both,
        f"-fire:{day}": ["later"],
        "fire:today": ["later"],
        f"fire>{day}": ["later", *both],
        "payload.n=null": both,
        "-payload.n=null": ["later"],
        "payload.missing=null": [],
        'payload."a.b"=1': both[1:],
        'payload.b."c.d"=null': both[1:],
        "payload.a.b=1": [],
    }
    assert {text: await names(world, text) for text in cases} == cases
    # By the index of closed days too, and by the names of days that have none yet.
    await index_names(world)
    assert {text: await names(world, text) for text in cases} == cases
    await world.submit(job("NÄHT heute"))
    await world.advance(1)
    assert await names(world, "job:nähT*") == ["NÄHT heute", *both[1:]]
    async with world.database.connection() as connection:
        found = await search_jobs.search_jobs(connection, DEFAULT_TENANT, parse("NÄHT", "jobs"))
    assert [row.spec.name for row in found.rows] == ["NÄHT heute", *both[1:]]


@proves("O1", "P12")
async def test_executions_are_found_by_every_field(world: World) -> None:
    await fill(world)
    found = {text: await names(world, text) for text in CASES}
    assert found == CASES
    [flow] = (await find(world, "job:flow")).rows
    [step_row] = (await find(world, f"run:{flow.id}")).rows
    assert step_row.origin == "step"
    for text in (
        f"id:{flow.id}",
        f"id:{str(flow.id)[:30]}",
        f"job:{flow.job_id}",
        f"worker:{str(flow.worker_id)[:20]} flow",
    ):
        assert await names(world, text) == (["flow"] if flow.worker_id or "worker" not in text else []), text
    # The other tenant has one like ours, and sees nothing else.
    assert await names(world, "", OTHER) == [NIGHTLY]
    assert await names(world, "label.team=bi job:nightly* payload.customer=42", OTHER) == [NIGHTLY]
    assert await names(world, f"id:{flow.id}", OTHER) == await names(world, f"job:{flow.job_id}", OTHER) == []
    labels = await world.fetch("SELECT DISTINCT labels->>'team' AS team, origin FROM ondot.history ORDER BY 2, 1")
    assert {(row["origin"], row["team"]) for row in labels} == {
        ("fire", "bi"),
        ("fire", "ops"),
        ("fire", None),
        ("step", "ops"),
    }


@proves("O1")
@pytest.mark.parametrize("most_bytes", [-1, once_names.MOST_BYTES], ids=["today by walking", "today by reading names"])
async def test_names_of_closed_days_are_found_by_an_index_and_nothing_is_missed(
    world: World, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    await fill(world)
    await index_names(world)

    async def is_by_index(text: str) -> bool:
        async with world.database.connection() as connection:
            recurring = await search._read_recurring(connection, DEFAULT_TENANT, parse(text))
            kept = await read_kept(connection)
            return await search._find_named(connection, DEFAULT_TENANT, parse(text), recurring, kept) is not None

    monkeypatch.setattr(once_names, "MOST_BYTES", most_bytes)
    assert {text: await names(world, text) for text in CASES} == CASES
    by_index = ["job:NIGHTLY*", "job:no-such-name", "job:nightly*,flow state:failed", "job:näh*"]
    assert {text: await is_by_index(text) for text in by_index} == dict.fromkeys(by_index, True)
    others = ["Nightly", "job:*nope*", "-job:flow", "job:flow origin:step", "job:ähre*"]
    assert {text: await is_by_index(text) for text in others} == dict.fromkeys(others, False)
    # Page by page: the index begins in the middle of the list.
    rows, after = [], None
    while True:
        found = await find(world, "job:w*,d*,l*,n*,i*", after=after, limit=1)
        rows += found.rows
        after = found.next
        if after is None:
            break
    assert [row.id for row in rows] == [row.id for row in (await find(world, "-job:flow")).rows]
    # Jobs that are too many, and a day that was rewritten and has no index yet: the search walks.
    monkeypatch.setattr(once_names, "MOST_NAMED", 0)
    assert not await is_by_index("job:long*")
    monkeypatch.undo()
    await world.fetch("DROP INDEX ondot.job_once_past_name")
    assert not await is_by_index("job:flow")
    assert await names(world, "job:flow") == ["flow"]


@proves("O1")
async def test_a_day_that_is_being_written_to_gets_its_index_of_names_later(world: World) -> None:
    await fill(world)
    async with world.database.transaction() as writer:
        await writer.execute("LOCK TABLE ondot.job_once IN ROW EXCLUSIVE MODE")
        assert await NameIndexes(world.database).one_pass() == 0
    assert await NameIndexes(world.database).one_pass() > 0


@proves("O1")
async def test_pages_follow_each_other_and_an_answer_that_stopped_early_says_how_far_it_came(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit(job("rare"))
    for _ in range(12):
        await world.advance(2 * 86_400)
        await world.submit(job("often"))
    worker = await world.worker()
    assignments = await worker.lease()
    await worker.complete_all(assignments[:8])
    everything = (await find(world, "")).rows
    assert len(everything) == 13
    pages, after = [], None
    while True:
        found = await find(world, "", after=after, limit=5)
        pages.append([row.id for row in found.rows])
        after = found.next
        assert found.searched_through is None
        if after is None:
            break
    assert [len(page) for page in pages] == [5, 5, 3]
    assert list(chain.from_iterable(pages)) == [row.id for row in everything]
    async with world.database.connection() as connection:
        first = await match_executions(connection, DEFAULT_TENANT, parse("often"), None, 7)
        rest = await match_executions(connection, DEFAULT_TENANT, parse("often"), first[-1], 7)
        assert first + rest == [row.id for row in everything[:12]]
        assert await match_executions(connection, DEFAULT_TENANT, parse("often"), rest[-1], 7) == []

    # Each chunk uses the whole budget: an answer has what one chunk found, and where to go on.
    monkeypatch.setattr(search_walk, "LARGEST", timedelta(days=5))
    monkeypatch.setattr(search, "FIRST", timedelta(days=5))
    steps, after = [], None
    while True:
        found = await find(world, "rare", after=after, budget_s=1e-9)
        steps.append(len(found.rows))
        if found.next is None:
            break
        assert found.searched_through == instant_of(found.next)
        assert after is None or found.next < after
        after = found.next
    assert len(steps) > 3
    assert sum(steps) == 1


@proves("O1")
async def test_a_chunk_that_takes_too_long_is_read_again_in_smaller_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(20):
        await world.submit(job("slow"))
        await world.advance(1)
    monkeypatch.setattr(search, "FIRST", timedelta(days=1))
    slow = parse('"slow"')
    # Row security reads inside a transaction, which a cancelled statement would end.
    for start, end in (("SELECT", "SELECT"), ("BEGIN", "COMMIT")):
        async with world.database.connection() as connection:
            await connection.execute(start)
            walk = await search.start_walk(connection, DEFAULT_TENANT, slow, None, None)
            # Every row takes 30 ms, so that the whole chunk does not fit into its deadline.
            walk.text = walk.text.replace("coalesce((SELECT o.name", "coalesce((SELECT pg_sleep(0.03)::text || o.name")
            ids = await walk.find(100, time.monotonic() + 0.2)
            assert len(ids) < 20
            assert not walk.is_at_end
            assert await connection.fetchval("SELECT 1") == 1
            rest = await search_executions(connection, DEFAULT_TENANT, slow, walk.before, 100, 60)
            await connection.execute(end)
        assert len(ids) + len(rest.rows) == 20


@proves("P12", "T1")
async def test_a_search_with_row_level_security_finds_the_same(world: World) -> None:
    await fill(world)
    await migrate_up(world.database, row_security=True)
    await world.fetch("GRANT SELECT ON ondot.hand_clock TO ondot_reader")
    database: Database = await open_database(settings_for(world.url).model_copy(update={"row_security": True}))
    try:
        await index_names(world)
        for text in (
            "",
            "Nightly",
            "job:nightly*",
            "label.team=bi",
            "payload.customer.id=7",
            "worker:here",
            "origin:step flow",
        ):
            expected = [row.id for row in (await find(world, text)).rows]
            async with database.reading(DEFAULT_TENANT) as connection:
                found = await search_executions(connection, DEFAULT_TENANT, parse(text), None, 50, 60)
                assert [row.id for row in found.rows] == expected
                # A query that forgets its tenant sees its own rows all the same.
                assert (await search_executions(connection, OTHER, parse(text), None, 50, 60)).rows == []
        # A chunk that is too late does not abort the transaction, which has the role and the tenant.
        async with database.reading(OTHER) as connection:
            walk = await search.start_walk(connection, OTHER, parse("label.team=bi"), None, None)
            walk.text = walk.text.replace("ORDER BY e.id", "AND pg_sleep(0.5) IS NOT NULL ORDER BY e.id")
            walk._width = timedelta(days=30)
            await walk.find(10, time.monotonic() + 0.1)
            assert not walk.is_at_end
            found = await search_executions(connection, OTHER, parse("label.team=bi"), None, 50, 60)
            assert found == await find(world, "label.team=bi", tenant_no=OTHER)
            assert len(found.rows) == 1
    finally:
        await database.close()


@proves("P12", "O1")
@pytest.mark.parametrize("text", ["", "label.team=bi", "took>1h", "state:failed"])
async def test_a_search_reads_no_rows_of_another_tenant(shared_history: World, text: str) -> None:
    """Its time would show how many there are."""
    world = shared_history
    for tenant_no, own in ((OTHER, 3), (TenantNo(3), 0)):
        async with world.database.connection() as connection:
            for walk in (
                await search.start_walk(connection, tenant_no, parse(text), None, None),
                await search_jobs.start_walk(connection, tenant_no, parse("a", "jobs"), None, None),
            ):
                arguments = [*walk.bounds(NO_ID, LAST_ID, 51), *walk.parameters]
                plan = await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {walk.text}", *arguments)
                assert count_read(json.loads(plan)[0]["Plan"]) <= 4 * own, plan


def count_read(node: dict[str, Any]) -> float:
    """Rows that the scans of a plan have read."""
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    read = (node["Actual Rows"] + removed) * node["Actual Loops"] if "Relation Name" in node else 0
    return read + sum(map(count_read, node.get("Plans", ())))


@pytest.fixture(params=["without statistics", "with statistics"])
async def shared_history(world: World, request: pytest.FixtureRequest) -> World:
    """10,000 executions and one-time jobs of the first tenant, three of the second."""
    await world.fetch(
        "WITH n AS (SELECT n, gen_random_uuid() AS id FROM generate_series(1, 10003) n),"
        " made AS (SELECT n, (left(ondot.first_id_at(ondot.clock())::text, 14) || right(id::text, 22))::uuid AS id,"
        "                 1 + (n > 10000)::integer AS tenant_no FROM n),"
        " once AS (INSERT INTO ondot.job_once (id, tenant_no, name, pool_no, fire_at, labels, spec)"
        "          SELECT id, tenant_no, 'a', 1, ondot.clock(), '{}', '{}' FROM made)"
        "INSERT INTO ondot.history (id, job_id, fire_at, ready_at, started_at, ended_at, tenant_no, job_version,"
        "  pool_no, attempt_no, failures, losses, class, state, origin)"
        "SELECT id, id, now(), now(), now(), now(), tenant_no, 1, 1, 1, 0, 0, 2, 'FAILED', 'fire' FROM made"
    )
    if request.param == "with statistics":
        await world.fetch("ANALYZE ondot.history")
        await world.fetch("ANALYZE ondot.job_once")
    return world
