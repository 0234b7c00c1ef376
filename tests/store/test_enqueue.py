"""`ondot.enqueue` and `ondot.submit_spec`: a job in the caller's own transaction, from SQL."""

import re
from collections import Counter
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.flow.retain import sweep_pass
from ondot.model.execution import PriorityClass, State
from ondot.model.gates import Limits
from ondot.model.ids import JobId, instant_of, partition_of, ticks_at
from ondot.model.job import JobSpec, decode_spec, encode_spec
from ondot.model.retry import Retry
from ondot.model.schedule import Once, Schedule
from ondot.model.target import FunctionTarget
from tests.proves import proves
from tests.servers import Server, connected, new_database
from tests.world import World, job

INVALID = asyncpg.InvalidParameterValueError


async def enqueue(world: World, arguments: str = "'report'", *values: object) -> JobId:
    return JobId(await world.value(f"SELECT ondot.enqueue({arguments})", *values))


async def lines_of(world: World) -> list[tuple[Any, ...]]:
    """Everything that a submit writes, except for the ids."""
    rows = await world.fetch(
        "SELECT o.name, o.fire_at, o.labels, o.pool_no,"
        " to_jsonb(e) - 'id' - 'job_id' AS execution, to_jsonb(r) - 'execution_id' AS ready,"
        " to_jsonb(t) - 'job_id' - 'partition_no' AS timer"
        " FROM ondot.job_once o LEFT JOIN ondot.execution e ON e.job_id = o.id"
        " LEFT JOIN ondot.ready r ON r.execution_id = e.id LEFT JOIN ondot.timer t ON t.job_id = o.id ORDER BY o.id"
    )
    return [tuple(row.values()) for row in rows]


@proves("E11", "S1")
async def test_a_job_enqueued_by_sql_runs_as_one_from_the_api(world: World) -> None:
    job_id = await enqueue(world, """'report', '{"region": "eu", "limit": null}'""")
    assert instant_of(job_id) == world.now.replace(microsecond=world.now.microsecond // 1000 * 1000)
    worker = await world.worker()
    assignment = await worker.run_one()
    assert assignment.leased.job_id == job_id
    assert assignment.spec is not None
    assert assignment.spec.target == FunctionTarget(name="report")
    assert msgspec.json.decode(assignment.payload) == {"region": "eu", "limit": None}
    assert await world.states(job_id) == [State.SUCCEEDED]


@proves("E11")
@pytest.mark.parametrize("seconds", [0, 19, 20, 21, 3600])
async def test_enqueue_writes_the_same_rows_as_a_submit_whenever_the_job_is_due(world: World, seconds: int) -> None:
    at = world.after(seconds)
    spec = job(
        "pay",
        schedule=Schedule(when=Once(at=at)),
        payload=b'{"a": 1}',
        priority="high",
        labels={"team": "bi"},
        retry=Retry(max_retries=7),
        timeout_s=12.5,
        start_deadline_s=60.0,
    )
    accepted = await world.submit(spec)
    job_id = await enqueue(
        world,
        """'report', '{"a": 1}', at => $1, priority => 'high', name => 'pay', labels => '{"team": "bi"}',"""
        " max_retries => 7, timeout_s => 12.5, start_deadline_s => 60",
        at,
    )
    ours, theirs = await lines_of(world)
    assert ours == theirs
    stored = [await world.job(id_) for id_ in (job_id, accepted.id)]
    assert msgspec.json.encode(stored[0].spec) == msgspec.json.encode(stored[1].spec)
    if seconds > 20:
        timer = await world.timer(job_id)
        assert timer is not None
        assert timer["partition_no"] == partition_of(job_id)


@proves("E11", "S6")
async def test_a_job_for_later_is_planned_and_runs_at_its_instant(world: World) -> None:
    job_id = await enqueue(world, "'report', at => $1", world.after(100))
    worker = await world.worker()
    await world.advance(90)
    assert await world.plan() == 1
    assert await worker.lease() == []
    await world.advance(10)
    await worker.run_one()
    assert await world.states(job_id) == [State.SUCCEEDED]


@proves("E11", "P1")
async def test_the_job_exists_if_and_only_if_the_caller_commits(world: World) -> None:
    async with world.second_connection() as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.fetchval("SELECT ondot.enqueue('report')")
        await connection.fetchval("SELECT ondot.enqueue('report', at => ondot.clock() + interval '1 hour')")
        assert await world.count("job_once") == 0
        await transaction.rollback()
        tables = ("job_once", "execution", "ready", "timer")
        assert [await world.count(table) for table in tables] == [0, 0, 0, 0]
        async with connection.transaction():
            await connection.fetchval("SELECT ondot.enqueue('report')")
            await connection.fetchval("SELECT ondot.enqueue('report', at => ondot.clock() + interval '1 hour')")
        assert [await world.count(table) for table in tables] == [2, 1, 1, 1]


@proves("E11", "P3")
async def test_a_transaction_that_commits_ten_seconds_later_is_found_by_the_sweep(world: World) -> None:
    worker = await world.worker()
    async with world.second_connection() as connection, connection.transaction():
        late = JobId(await connection.fetchval("SELECT ondot.enqueue('report')"))
        # Other jobs that run meanwhile move the worker's bound beyond the instant of the late one.
        await world.advance(10)
        await world.submit(job())
        await worker.run_one()
    await worker.beat()
    assert await worker.lease() == []
    assert await sweep_pass(world.database, world.dispatcher) == 1
    assignment = await worker.run_one()
    assert assignment.leased.job_id == late
    assert await world.states(late) == [State.SUCCEEDED]


@proves("E11", "P3")
async def test_a_timer_that_is_committed_after_its_instant_is_still_planned(world: World) -> None:
    async with world.second_connection() as connection, connection.transaction():
        late = JobId(await connection.fetchval("SELECT ondot.enqueue('report', at => $1)", world.after(30)))
        await world.advance(40)
    for _ in range(5):
        await world.plan()
    worker = await world.worker()
    await worker.run_one()
    assert await world.states(late) == [State.SUCCEEDED]


@proves("E13", "E11")
async def test_a_scheduler_plans_a_limited_job_which_then_waits_in_line(world: World) -> None:
    """The caller does not plan it: a line is a row that others wait for, and this transaction may be long."""
    limits = Limits(key="customer:7", key_concurrency=1)
    spec = JobSpec(name="pay", target=FunctionTarget(name="pay"), limits=limits)
    async with world.second_connection() as caller, caller.transaction():
        for _ in range(2):
            await caller.fetch("SELECT id FROM ondot.submit_spec($1::text::json)", encode_spec(spec))
    assert (await world.count("timer"), await world.count("execution")) == (2, 0)
    await world.plan()
    worker = await world.worker()
    [first] = await worker.lease()
    assert await worker.lease() == []
    await worker.complete(first)
    assert len(await worker.lease()) == 1


@proves("E11")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("NULL", "function's name"),
        ("''", "function's name"),
        ("'no blanks'", "function's name"),
        ("repeat('x', 201)", "function's name"),
        ("'report', '[1]'", "payload must be a JSON object, but is of type array"),
        ("'report', '7'", "payload must be a JSON object"),
        ("'report', jsonb_build_object('a', repeat('x', 1048577))", "payload has 10485"),
        ("'report', priority => 'urgent'", "'urgent' is not a priority"),
        ("'report', pool => 'No Pool'", "'No Pool' is not a pool's name"),
        ("'report', name => ' '", "not blank"),
        ("'report', name => E'two\\nlines'", "control characters"),
        ("'report', labels => '[]'", "labels must be a JSON object"),
        ("'report', labels => '{\"a\": 1}'", "at most 64 labels"),
        ("'report', labels => '{\"a\": null}'", "at most 64 labels"),
        ("'report', max_retries => -1", "max_retries must be a whole number from 0 to 100"),
        ("'report', max_retries => 101", "max_retries must be a whole number from 0 to 100"),
        ("'report', timeout_s => 0", "timeout_s must be a number of seconds"),
        ("'report', timeout_s => 'NaN'", "timeout_s must be a number of seconds"),
        ("'report', timeout_s => 604801", "at most 604800"),
        ("'report', start_deadline_s => -1", "start_deadline_s must be"),
        ("'report', at => ondot.clock() - interval '61 seconds'", "cannot be due at"),
        ("'report', at => 'infinity'", "cannot be due at infinity"),
        ("'report', tenant => 'nobody'", 'no tenant "nobody"'),
        ("'report', tenant => 'installation'", 'no tenant "installation"'),
    ],
)
async def test_bad_input_raises_an_error_that_says_what_to_do(world: World, arguments: str, words: str) -> None:
    with pytest.raises(INVALID, match=re.escape(words)) as caught:
        await enqueue(world, arguments)
    assert caught.value.hint
    assert await world.count("job_once") == 0


@proves("E11", "T1")
async def test_another_tenant_enqueues_into_a_pool_that_exists_and_creates_none(world: World) -> None:
    await world.fetch("INSERT INTO ondot.tenant (tenant_no, name) VALUES (2, 'other')")
    with pytest.raises(INVALID, match='Unknown pool "gpu"'):
        await enqueue(world, "'report', pool => 'gpu', tenant => 'other'")
    await enqueue(world, "'report', tenant => 'other'")
    assert [one.leased.tenant_no for one in await (await world.worker()).lease()] == [2]


@proves("E11", "E16")
@pytest.mark.parametrize(
    "field", ["unique", "debounce", "throttle", "key", "schedule", "pause_after_failures", "secrets"]
)
async def test_a_field_that_needs_the_api_is_rejected_by_name(world: World, field: str) -> None:
    spec = {"name": "a", "target": {"kind": "function", "name": "a"}, field: "x"}
    with pytest.raises(asyncpg.FeatureNotSupportedError, match=f'"{field}" cannot be enqueued') as caught:
        await world.fetch("SELECT ondot.submit_spec($1::text::json)", msgspec.json.encode(spec).decode())
    assert "POST /v1/jobs" in str(caught.value.hint)


@proves("E11")
@pytest.mark.parametrize(
    "spec",
    [
        "[]",
        "null",
        "7",
        "{}",
        '{"name": "a", "target": "x"}',
        '{"name": "a", "target": {"kind": "http", "url": "http://example.com"}}',
        '{"target": {"kind": "function", "name": "a"}}',
        '{"name": "a", "target": {"kind": "function", "name": "a"}, "retry": {"max_retries": "3"}}',
        '{"name": "a", "target": {"kind": "function", "name": "a"}, "retry": {"max_retries": 1.5}}',
    ],
)
async def test_an_invalid_spec_is_rejected(world: World, spec: str) -> None:
    with pytest.raises(INVALID):
        await world.fetch("SELECT ondot.submit_spec($1::text::json)", spec)


@proves("E11")
async def test_a_pool_is_created_when_it_is_first_named(world: World) -> None:
    for _ in range(2):
        await enqueue(world, "'report', pool => 'mail'")
    assert await world.value("SELECT count(*) FROM ondot.pool WHERE name = 'mail'") == 1
    assert len({row["pool_no"] for row in await world.fetch("SELECT pool_no FROM ondot.ready")}) == 1


@proves("E11", "E2")
async def test_priorities_are_the_classes_of_the_model(world: World) -> None:
    for priority in ("high", "normal", "low"):
        await enqueue(world, "'report', priority => $1", priority)
    classes = [row["class"] for row in await world.fetch("SELECT class FROM ondot.ready ORDER BY class")]
    assert classes == [PriorityClass.HIGH, PriorityClass.NORMAL, PriorityClass.LOW]


@proves("E11")
async def test_a_payload_keeps_the_order_of_its_keys_and_its_odd_characters(world: World) -> None:
    payload = '{"z": 1, "a": {"y": null, "b": "é\\"}{ %s"}}'
    spec = f'\n {{"name": "a", "payload": {payload}, "target": {{"kind": "function", "name": "a"}}}}'
    rows = await world.fetch("SELECT id FROM ondot.submit_spec($1::text::json)", spec)
    stored = decode_spec(await world.value("SELECT spec FROM ondot.job_once WHERE id = $1", rows[0]["id"]))
    assert bytes(stored.payload).decode() == payload


@proves("E11")
async def test_many_can_be_enqueued_by_one_statement(world: World) -> None:
    rows = await world.fetch(
        "SELECT ondot.enqueue('report', jsonb_build_object('n', n)) AS id FROM generate_series(1, 500) AS n"
    )
    assert len({row["id"] for row in rows}) == 500
    assert await world.count("ready") == 500


@proves("E11")
async def test_new_ids_are_uuids_of_version_seven_by_ondots_clock(world: World) -> None:
    for microseconds in (0, 1, 999, 1000, 123_456, 999_999):
        await world.set_clock(world.now.replace(microsecond=microseconds) + timedelta(days=1))
        id_: UUID = await world.value("SELECT ondot.new_id()")
        assert (id_.version, id_.variant) == (7, "specified in RFC 4122")
        milliseconds, below = divmod(ticks_at(world.now), 4096)
        assert (id_.int >> 80, (id_.int >> 64) & 0xFFF) == (milliseconds, below)
    ids = await world.fetch("SELECT ondot.new_id() AS id FROM generate_series(1, 1000)")
    assert len({row["id"] for row in ids}) == 1000


@proves("E11", "C1")
async def test_sql_and_python_agree_on_the_partition_of_any_id(world: World) -> None:
    async with world.database.connection() as connection:
        ids: list[UUID] = []

        @settings(max_examples=300, database=None)
        @given(st.uuids())
        def gather(id_: UUID) -> None:
            ids.append(id_)

        gather()
        ids += [UUID(int=n) for n in (*range(256), 2**128 - 1)]
        rows = await connection.fetch(
            "SELECT id, ondot.partition_of(id) AS partition_no FROM unnest($1::uuid[]) AS u(id)", ids
        )
    assert len(rows) == len(ids) > 300
    for row in rows:
        assert row["partition_no"] == partition_of(row["id"])


GRANTS = """
GRANT USAGE ON SCHEMA ondot TO {role};
GRANT SELECT ON ondot.tenant, ondot.pool TO {role};
GRANT INSERT ON ondot.job_once, ondot.timer, ondot.execution, ondot.ready TO {role};
"""


@proves("E11")
async def test_a_role_with_the_documented_grants_can_enqueue_and_do_nothing_else(server: Server) -> None:
    async with new_database(server) as url, connected(url) as owner:
        role = f"caller_{await owner.fetchval('SELECT oid FROM pg_database WHERE datname = current_database()')}"
        await owner.execute(f"CREATE ROLE {role}")
        try:
            await owner.execute(GRANTS.format(role=role))
            # The guard of test databases reads the allowed transitions with the writer's rights.
            await owner.execute(f"GRANT SELECT ON ondot.guard_allowed TO {role}")
            await owner.execute(f"SET ROLE {role}")
            await owner.execute("SET search_path = pg_temp")
            assert await owner.fetchval("SELECT ondot.enqueue('report')")
            assert await owner.fetchval("SELECT ondot.enqueue('report', at => now() + interval '1 day')")
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="table pool"):
                await owner.fetchval("SELECT ondot.enqueue('report', pool => 'new')")
            for table in ("job_once", "execution", "history"):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    await owner.fetch(f"SELECT * FROM ondot.{table}")
            await owner.execute("RESET ROLE")
            await owner.execute(f"GRANT INSERT ON ondot.pool TO {role}; SET ROLE {role}")
            assert await owner.fetchval("SELECT ondot.enqueue('report', pool => 'new')")
            limits = Limits(key="customer:7", key_concurrency=1)
            spec = encode_spec(JobSpec(name="pay", target=FunctionTarget(name="pay"), limits=limits))
            assert await owner.fetchval("SELECT id FROM ondot.submit_spec($1::text::json)", spec)
        finally:
            await owner.execute("RESET ROLE")
            await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@proves("O3", "E11")
async def test_a_job_enqueued_by_sql_belongs_to_the_trace_of_its_transaction(world: World) -> None:
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with world.second_connection() as mine:
        async with mine.transaction():
            await mine.execute(f"SET LOCAL ondot.traceparent = '{traceparent}'; SET LOCAL ondot.tracestate = 'rojo=1'")
            await mine.execute("SELECT ondot.enqueue('report', '{\"n\": 1}')")
        # Not of the transaction after it; and what is not valid is ignored.
        await mine.execute("SELECT ondot.enqueue('report')")
        hostile = [traceparent.upper(), "00-" + "0" * 32 + "-00f067aa0ba902b7-01", "ff" + traceparent[2:], "x" * 1_000]
        for text in (*hostile, traceparent + "-01"):
            await mine.execute("SELECT set_config('ondot.traceparent', $1, false)", text)
            await mine.execute("SELECT ondot.enqueue('report')")
        for state in ("é", "a=1\nb: 2", "x" * 513, ""):
            await mine.execute("SELECT set_config('ondot.traceparent', $1, false)", traceparent)
            await mine.execute("SELECT set_config('ondot.tracestate', $1, false)", state)
            await mine.execute("SELECT ondot.enqueue('report')")
    specs = [decode_spec(row["spec"]) for row in await world.fetch("SELECT spec FROM ondot.job_once")]
    assert Counter((spec.trace, spec.tracestate) for spec in specs) == {
        (traceparent, "rojo=1"): 1,
        (None, None): 6,
        (traceparent, None): 4,
    }
    [first] = [spec for spec in specs if spec.tracestate]
    assert bytes(first.payload) == b'{"n": 1}'


@proves("O3", "E11")
@pytest.mark.parametrize(
    "field", [{"trace": 5}, {"tracestate": ["a=1"]}, {"tracestate": "a=1\r\nb: 2"}, {"trace": "é"}]
)
async def test_a_trace_that_is_no_text_of_a_header_is_refused(world: World, field: dict[str, Any]) -> None:
    spec = {"name": "n", "target": {"kind": "function", "name": "f"}, **field}
    with pytest.raises(INVALID, match="tracestate"):
        await world.value("SELECT id FROM ondot.submit_spec($1::text::json)", msgspec.json.encode(spec).decode())
