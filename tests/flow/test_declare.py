"""What the code declares beside what an operator changed: merges, the order of releases, keys of other apps, races."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ondot import Ondot
from ondot.document.parse import job_spec, patched_spec
from ondot.flow.change.change import delete, pause, update
from ondot.flow.declare import Declared, Declarer, Mode
from ondot.model.app_release import AppRelease
from ondot.model.ids import DEFAULT_TENANT, JobId, TenantNo
from ondot.model.job import JobSpec, JobState
from ondot.model.workflow.spec import WorkflowTarget
from ondot.store.audit import By, list_audit
from ondot.store.declared import find_declared, list_dropped, list_refused
from ondot.store.jobs import JobRow, get_job
from tests.proves import proves
from tests.world import World

Body = dict[str, Any]
KEY = "function:nightly"


def nightly(**fields: Any) -> Body:
    body = {"name": "nightly", "target": {"function": "nightly"}, "schedule": {"cron": "0 2 * * *"}, "key": KEY}
    return body | fields


def worker(world: World, *bodies: Body, release: str = "v1", app: str = "billing", mode: Mode = Mode.MERGE) -> Declarer:
    return Declarer(world.database, bodies, AppRelease(app, release), mode)


async def declare(world: World, *bodies: Body, **of_worker: Any) -> Declared:
    return await worker(world, *bodies, **of_worker).declare_for(DEFAULT_TENANT)


async def job(world: World, key: str = KEY, tenant_no: TenantNo = DEFAULT_TENANT) -> JobRow:
    sql = "SELECT id FROM ondot.job WHERE tenant_no = $1 AND key = $2 AND state <> 'DELETED'"
    id_ = await world.value(sql, tenant_no, key)
    assert id_ is not None, f"no job {key}"
    async with world.database.connection() as connection:
        row = await get_job(connection, tenant_no, JobId(id_))
    assert row is not None
    return row


async def patch(world: World, changes: Body, key: str = KEY) -> JobRow:
    """As an operator does it at night."""

    async def compute(row: JobRow, now: Any) -> JobSpec:
        return patched_spec(row.spec, changes, now)

    by = By("night shift", "too slow")
    return await update(world.database, world.dispatcher, DEFAULT_TENANT, (await job(world, key)).id, compute, by=by)


async def entries(world: World, job_id: JobId) -> list[tuple[str, str, str | None]]:
    async with world.database.connection() as connection:
        found = await list_audit(connection, DEFAULT_TENANT, subject=job_id, limit=50)
    return [(entry.action, entry.actor, entry.reason) for entry in found]


def retries(row: JobRow) -> int:
    return row.spec.retry.max_retries


def steps_of(row: JobRow) -> dict[str, Any]:
    assert isinstance(row.spec.target, WorkflowTarget)
    return dict(row.spec.target.steps)


# A deploy ------------------------------------------------------------------------------------------------------------


@proves("D4")
async def test_the_first_start_creates_the_jobs_of_the_code_and_the_next_ones_change_nothing(world: World) -> None:
    done = await declare(world, nightly())
    assert (done.created, done.updated) == ([KEY], [])
    row = await job(world)
    for release in ("v1", "v1", "v2"):
        assert (await declare(world, nightly(), release=release)).count == 0
    assert (await job(world)).version == row.version == 1
    assert await entries(world, row.id) == [("job.create", "billing v1", "The code declares it.")]


@proves("D4")
async def test_what_an_operator_changed_survives_deploys_that_do_not_change_it(world: World) -> None:
    await declare(world, nightly(retry={"max_retries": 2}))
    await patch(world, {"retry": {"max_retries": 9}, "concurrency": 4, "labels": {"by": "hand"}})
    for release in ("v2", "v3", "v4", "v5", "v6"):
        await declare(world, nightly(retry={"max_retries": 2}, timeout=f"{release[1:]}m"), release=release)
    row = await job(world)
    assert (retries(row), row.spec.timeout_s) == (9, 360)
    assert row.spec.limits is not None
    assert (row.spec.limits.concurrency, row.spec.labels) == (4, {"by": "hand"})
    assert row.version == 7
    reason = "The code declares timeout. Kept as changed by hand: retry.max_retries, concurrency, labels.by."
    assert ("job.update", "billing v6", reason) in await entries(world, row.id)


@proves("D4")
async def test_a_field_that_the_code_changes_wins_over_the_operator_and_both_are_on_record(world: World) -> None:
    await declare(world, nightly(retry={"max_retries": 2}))
    await patch(world, {"retry": {"max_retries": 9}})
    await declare(world, nightly(retry={"max_retries": 3}), release="v2")
    row = await job(world)
    assert retries(row) == 3
    assert {(action, actor) for action, actor, _ in await entries(world, row.id)} == {
        ("job.update", "billing v2"),
        ("job.update", "night shift"),
        ("job.create", "billing v1"),
    }


@proves("D4")
@pytest.mark.parametrize(
    ("first", "by_hand", "then", "check"),
    [
        pytest.param(
            {"schedule": {"cron": "0 2 * * *", "timezone": "UTC"}},
            {"schedule": {"cron": "0 4 * * *"}},
            {"schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berlin"}},
            lambda spec: (spec.schedule.when.expression, spec.schedule.when.timezone) == ("0 2 * * *", "Europe/Berlin"),
            id="a rule is one field",
        ),
        pytest.param(
            {"schedule": {"cron": "0 2 * * *"}},
            {"schedule": {"misfire": {"policy": "all"}}},
            {"schedule": {"cron": "0 3 * * *"}},
            lambda spec: (spec.schedule.when.expression, spec.schedule.misfire.policy) == ("0 3 * * *", "all"),
            id="other members of the schedule count one by one",
        ),
        pytest.param(
            {"labels": {"team": "a", "tier": "1"}},
            {"labels": {"tier": "0", "on-call": "yes"}},
            {"labels": {"team": "b", "tier": "1"}},
            lambda spec: spec.labels == {"team": "b", "tier": "0", "on-call": "yes"},
            id="labels by name",
        ),
        pytest.param(
            {"labels": {"team": "a"}},
            {"timeout": "9m"},
            {},
            lambda spec: (spec.labels, spec.timeout_s) == ({}, 540),
            id="a label that the code removes goes",
        ),
        pytest.param(
            {"schedule": {"every": "1h"}},
            {"payload": {"region": "us"}},
            {"schedule": {"every": "2h"}},
            lambda spec: (spec.schedule.when.every_s, bytes(spec.payload)) == (7200, b'{"region":"us"}'),
            id="an interval beside a payload",
        ),
        pytest.param(
            {"expect": {"end_within": "1h"}},
            {"expect": {"start_within": "5m"}},
            {"expect": {"end_within": "2h"}},
            lambda spec: (spec.expect.start_within_s, spec.expect.end_within_s) == (300, 7200),
            id="expectations one by one",
        ),
        pytest.param(
            {"expect": {"end_within": "1h"}},
            {"timeout": "9m"},
            {},
            lambda spec: spec.expect is None,
            id="the last expectation goes",
        ),
        pytest.param(
            {"retry": {"backoff": "listed", "delays": ["1s", "2s"]}},
            {"retry": {"max_worker_losses": 7}},
            {"retry": {"backoff": "linear"}},
            lambda spec: (spec.retry.backoff, spec.retry.delays_s, spec.retry.max_worker_losses) == ("linear", (), 7),
            id="a backoff with its delays",
        ),
        pytest.param(
            {"schedule": {"cron": "H 2 * * *", "spread": "10m"}},
            {"timeout": "9m"},
            {"schedule": {"cron": "H 2 * * *", "spread": "10m"}, "pool": "big"},
            lambda spec: (spec.timeout_s, spec.pool, spec.schedule.spread_s) == (540, "big", 600),
            id="what ondot fills in is not a change",
        ),
        pytest.param(
            {"schedule": {"event": {"type": "order.paid"}}},
            {"overlap": "queue"},
            {"schedule": {"event": {"type": "order.sent"}}},
            lambda spec: (spec.schedule.when.type, spec.limits.overlap) == ("order.sent", "queue"),
            id="a rule of events",
        ),
    ],
)
async def test_changes_are_merged_by_field(
    world: World, first: Body, by_hand: Body, then: Body, check: Callable[[Any], bool]
) -> None:
    await declare(world, nightly(**first))
    await patch(world, by_hand)
    done = await declare(world, nightly(**then), release="v2")
    row = await job(world)
    assert (done.updated, done.refused) == ([KEY], {})
    assert check(row.spec), row.spec
    assert (await declare(world, nightly(**then), release="v3")).count == 0


@proves("D4")
async def test_two_changes_that_do_not_fit_together_end_as_the_code_has_it(world: World) -> None:
    await declare(world, nightly(concurrency_key="region", key_concurrency=2))
    await patch(world, {"key_concurrency": 5})
    await declare(world, nightly(timeout="5m"), release="v2")
    row = await job(world)
    assert (row.spec.limits, row.spec.timeout_s) == (None, 300)


@proves("D4")
async def test_a_pause_survives_deploys_and_even_a_forced_one(world: World) -> None:
    await declare(world, nightly())
    await pause(world.database, DEFAULT_TENANT, (await job(world)).id)
    await declare(world, nightly(timeout="5m"), release="v2")
    await declare(world, nightly(timeout="5m"), release="v2", mode=Mode.FORCE)
    row = await job(world)
    assert (row.state, row.spec.timeout_s) == (JobState.PAUSED, 300)


@proves("D4")
async def test_force_goes_back_to_the_code_once_and_off_declares_nothing(world: World) -> None:
    await declare(world, nightly(retry={"max_retries": 2}))
    await patch(world, {"retry": {"max_retries": 9}, "labels": {"by": "hand"}})
    off = worker(world, nightly(timeout="1m"), mode=Mode.OFF, release="v9")
    assert await off.one_pass([DEFAULT_TENANT]) == 0
    assert retries(await job(world)) == 9
    forced = worker(world, nightly(retry={"max_retries": 2}), mode=Mode.FORCE)
    await forced.declare_for(DEFAULT_TENANT)
    row = await job(world)
    assert (retries(row), row.spec.labels) == (2, {})
    reason = "Set to what the code declares, by --declare=force."
    assert ("job.update", "billing v1", reason) in await entries(world, row.id)
    await patch(world, {"timeout": "9m"})
    await forced.declare_for(DEFAULT_TENANT)
    assert (await job(world)).spec.timeout_s == 540


@proves("D4")
async def test_a_job_from_before_keeps_what_the_code_does_not_mention(world: World) -> None:
    """An installation of an earlier ondot, or a job that somebody created with the key of a function."""
    spec = patched_spec(await _spec(world, nightly(retry={"max_retries": 9}, timeout="9m")), {"pool": "big"}, world.now)
    await world.submit(spec)
    await declare(world, nightly(retry={"max_retries": 2}))
    row = await job(world)
    assert (retries(row), row.spec.timeout_s, row.spec.pool, row.version) == (2, 540, "big", 2)


async def _spec(world: World, body: Body) -> JobSpec:
    return job_spec(body, world.now)


@proves("D4")
async def test_steps_of_a_workflow_are_merged_one_by_one(world: World) -> None:
    def body(**steps: Body) -> Body:
        return {
            "name": "etl",
            "key": KEY,
            "schedule": {"every": "1h"},
            "target": {"workflow": {"steps": {"a": {"function": "a"}, "b": {"function": "b"}, **steps}}},
        }

    await declare(world, body())
    await patch(world, {"target": {"workflow": {"steps": {"a": {"timeout": "9m"}}}}})
    await declare(world, body(c={"function": "c", "depends_on": ["a"]}), release="v2")
    steps = steps_of(await job(world))
    assert (steps["a"].timeout_s, list(steps)) == (540, ["a", "b", "c"])
    await declare(world, body(), release="v3")
    steps = steps_of(await job(world))
    assert (steps["a"].timeout_s, list(steps)) == (540, ["a", "b"])


@proves("D4", "T5")
async def test_a_credential_in_a_step_that_the_code_changes_reaches_the_job_and_no_document(world: World) -> None:
    def body(token: str) -> Body:
        http = {"url": "https://example.com", "headers": {"Authorization": f"Bearer {token}"}}
        steps = {"call": {"target": {"http": http}}, "then": {"function": "f", "depends_on": ["call"]}}
        return {"name": "etl", "key": KEY, "schedule": {"every": "1h"}, "target": {"workflow": {"steps": steps}}}

    await declare(world, body("first-token"))
    await patch(world, {"timeout": "9m", "target": {"workflow": {"steps": {"then": {"timeout": "8m"}}}}})
    await declare(world, body("second-token"), release="v2")
    row = await job(world)
    assert steps_of(row)["then"].timeout_s == 480
    call = steps_of(row)["call"].target
    assert (call.headers, row.spec.timeout_s) == ({"Authorization": "Bearer second-token"}, 540)
    assert "token" not in await world.value("SELECT document::text FROM ondot.declared")
    assert (await declare(world, body("second-token"), release="v3")).count == 0
    await patch(world, {"target": {"workflow": {"steps": {"call": {"timeout": "7m"}}}}})
    await declare(world, body("second-token") | {"labels": {"a": "b"}}, release="v4")
    call_step = steps_of(await job(world))["call"]
    assert (call_step.timeout_s, call_step.target.headers) == (420, {"Authorization": "Bearer second-token"})


# The order of releases -----------------------------------------------------------------------------------------------


@proves("D4")
async def test_a_restarted_old_worker_reverts_nothing_while_newer_ones_live(world: World) -> None:
    new = worker(world, nightly(timeout="2m"), release="v2")
    await declare(world, nightly(timeout="1m"), release="v1")
    await new.declare_for(DEFAULT_TENANT)
    for _ in range(5):
        await world.advance(50)
        await new.declare_for(DEFAULT_TENANT)
        done = await declare(world, nightly(timeout="1m"), release="v1")
        assert (done.waits_for, (await job(world)).spec.timeout_s) == ("v2", 120)


@proves("D4")
async def test_a_rollback_declares_a_minute_after_the_last_newer_worker(world: World) -> None:
    old, new = worker(world, nightly(timeout="1m")), worker(world, nightly(timeout="2m"), release="v2")
    await old.declare_for(DEFAULT_TENANT)
    await new.declare_for(DEFAULT_TENANT)
    again = worker(world, nightly(timeout="1m"))
    assert (await again.declare_for(DEFAULT_TENANT)).waits_for == "v2"
    await world.advance(10)
    await new.one_pass([DEFAULT_TENANT])  # draining: its last sign of life
    await world.advance(59)
    await again.one_pass([DEFAULT_TENANT])
    assert (await job(world)).spec.timeout_s == 120
    await world.advance(2)
    await again.one_pass([DEFAULT_TENANT])
    assert (await job(world)).spec.timeout_s == 60
    await worker(world, nightly(timeout="2m"), release="v2").one_pass([DEFAULT_TENANT])
    assert (await job(world)).spec.timeout_s == 120, "rolled forward: the newer one need not wait"


@proves("D4")
async def test_a_canary_that_was_withdrawn_is_undone_by_the_workers_that_stayed(world: World) -> None:
    stays = worker(world, nightly(timeout="1m"))
    await stays.one_pass([DEFAULT_TENANT])
    await declare(world, nightly(timeout="2m"), release="canary")
    for seconds in (30, 29):
        await world.advance(seconds)
        await stays.one_pass([DEFAULT_TENANT])
        assert (await job(world)).spec.timeout_s == 120
    await world.advance(2)
    await stays.one_pass([DEFAULT_TENANT])
    assert (await job(world)).spec.timeout_s == 60


@proves("D4")
async def test_a_worker_declares_once_so_workers_of_one_release_that_differ_do_not_take_turns(world: World) -> None:
    one, other = worker(world, nightly(timeout="1m")), worker(world, nightly(timeout="2m"))
    for _ in range(3):
        await one.one_pass([DEFAULT_TENANT])
        await other.one_pass([DEFAULT_TENANT])
    assert (await job(world)).version == 2


@proves("D4", "C3")
async def test_a_clock_that_is_set_back_does_not_keep_a_rollback_waiting(world: World) -> None:
    await declare(world, nightly(timeout="1m"))
    await declare(world, nightly(timeout="2m"), release="v2")
    await world.advance(-86_400)
    await declare(world, nightly(timeout="1m"))
    assert (await job(world)).spec.timeout_s == 60


# Keys of others, and what is no longer declared ----------------------------------------------------------------------


@proves("D4")
async def test_a_key_of_another_app_is_refused_and_the_rest_is_declared(world: World) -> None:
    await declare(world, nightly(timeout="1m"))
    thief = worker(world, nightly(timeout="9m"), nightly(key="function:mine", name="mine"), app="crm")
    done = await thief.declare_for(DEFAULT_TENANT)
    assert (done.created, list(done.refused), (await job(world)).spec.timeout_s) == (["function:mine"], [KEY], 60)
    async with world.database.connection() as connection:
        [refused] = await list_refused(connection, DEFAULT_TENANT)
    assert (refused.app, refused.key) == ("crm", KEY)
    assert "belongs to the app billing" in refused.why
    await declare(world, release="v2")
    await thief.one_pass([DEFAULT_TENANT])
    assert (await job(world)).spec.timeout_s == 540, "billing gave it up, and it is crm's from now on"
    async with world.database.connection() as connection:
        assert await list_refused(connection, DEFAULT_TENANT) == []
    done = await declare(world, nightly(timeout="1m"), release="v3")
    assert list(done.refused) == [KEY]


@proves("D4")
async def test_what_the_code_no_longer_declares_is_kept_and_flagged(world: World) -> None:
    renamed = nightly(key="function:nightly_export", name="nightly_export")
    await declare(world, nightly())
    row = await job(world)
    done = await declare(world, renamed, release="v2")
    assert (done.created, done.dropped) == (["function:nightly_export"], [KEY])
    async with world.database.connection() as connection:
        [dropped] = await list_dropped(connection, DEFAULT_TENANT)
        declared = await find_declared(connection, DEFAULT_TENANT, [row.id])
    assert (dropped.job_id, dropped.dropped_release, (await job(world)).state) == (row.id, "v2", JobState.ACTIVE)
    assert declared[row.id].dropped_release == "v2"
    assert ("job.declare", "billing v2", "The code no longer declares it.") in await entries(world, row.id)
    await declare(world, renamed, nightly(), release="v3")
    async with world.database.connection() as connection:
        assert await list_dropped(connection, DEFAULT_TENANT) == []


@proves("D4")
async def test_a_deleted_job_stays_deleted_until_it_is_forced_or_declared_as_new(world: World) -> None:
    await declare(world, nightly())
    await delete(world.database, DEFAULT_TENANT, (await job(world)).id)
    for body in (nightly(), nightly(timeout="1m")):
        done = await declare(world, body, release="v2")
        assert (done.created, list(done.refused)) == ([], [KEY])
    await declare(world, nightly(), release="v2", mode=Mode.FORCE)
    assert (await job(world)).version == 1
    await delete(world.database, DEFAULT_TENANT, (await job(world)).id)
    await declare(world, release="v3")
    assert (await declare(world, nightly(), release="v4")).created == [KEY]


@proves("D4")
async def test_a_deleted_job_that_somebody_created_again_is_followed_again(world: World) -> None:
    await declare(world, nightly())
    await delete(world.database, DEFAULT_TENANT, (await job(world)).id)
    await world.submit(await _spec(world, nightly(timeout="9m")))
    await declare(world, nightly(retry={"max_retries": 1}), release="v2")
    row = await job(world)
    assert (row.spec.timeout_s, retries(row)) == (540, 1)


# What must not keep a worker from its work ---------------------------------------------------------------------------


@proves("D4")
async def test_a_body_that_the_server_rejects_is_refused_alone(world: World) -> None:
    broken, twice = nightly(key="broken", flavour="new"), nightly(key="twice")
    elsewhere = nightly(key="elsewhere", pool="not mine!")
    done = await declare(world, nightly(), broken, twice, twice, elsewhere)
    assert (done.created, sorted(done.refused)) == ([KEY], ["broken", "elsewhere", "twice"])


@proves("D4", "T4")
async def test_a_pool_that_the_tenant_may_not_use_is_refused_alone(world: World) -> None:
    async with world.database.connection() as connection:
        await world.database.pools.register(connection, ["own"])
    tenant_no = await world.add_tenant(pools=["own"])
    bodies = [nightly(), nightly(key="own", pool="own")]
    done = await Declarer(world.database, bodies, AppRelease("billing", "v1")).declare_for(tenant_no)
    assert (done.created, list(done.refused)) == (["own"], [KEY])


@proves("D4")
async def test_a_schedule_that_has_ended_is_declared_and_does_not_fire(world: World) -> None:
    await declare(world, nightly(schedule={"cron": "0 2 * * *", "end_at": "2001-01-01T00:00:00Z"}))
    assert (await job(world)).state is JobState.ENDED


@proves("D4", "T1")
async def test_each_tenant_has_its_own_declarations(world: World) -> None:
    other = await world.add_tenant()
    await worker(world, nightly(timeout="1m")).one_pass([DEFAULT_TENANT, other])
    await patch(world, {"timeout": "9m"})
    await worker(world, nightly(timeout="1m", labels={"a": "b"}), release="v2").one_pass([DEFAULT_TENANT, other])
    assert (await job(world)).spec.timeout_s == 540
    assert (await job(world, tenant_no=other)).spec.timeout_s == 60
    assert (await Declarer(world.database, [nightly()], AppRelease("crm", "v1")).declare_for(other)).refused.keys() == {
        KEY
    }


@proves("D4")
async def test_functions_and_workflows_of_an_app_are_declared(world: World) -> None:
    app = Ondot(name="billing")

    @app.job(every="1h", retries=3, expect={"success_every": "2h"})
    def tick() -> None: ...

    @app.job(event={"type": "order.paid"})
    def paid(order: str) -> None: ...

    @app.workflow(cron="0 3 * * *")
    def etl(w: Any) -> None:
        w.step(tick)

    done = await declare(world, *app.schedules())
    assert (sorted(done.created), done.refused) == (["function:paid", "function:tick", "workflow:etl"], {})
    assert (await declare(world, *app.schedules())).count == 0
    assert (await job(world, "function:paid")).spec.starts_by_event


# Races ---------------------------------------------------------------------------------------------------------------


@proves("D4")
async def test_twenty_workers_of_two_releases_that_start_at_once_end_with_the_newer(world: World) -> None:
    bodies = [nightly(key=f"function:{n}", name=str(n)) for n in range(60)]
    newer = [body | {"timeout": "2m"} for body in bodies]
    await declare(world, *bodies, release="v0")
    await worker(world, *bodies, release="v1").declare_for(DEFAULT_TENANT)
    async with asyncio.TaskGroup() as group:
        for n in range(20):
            new = n % 2 == 0
            declarer = worker(world, *(newer if new else bodies), release="v2" if new else "v1")
            group.create_task(declarer.declare_for(DEFAULT_TENANT))
    rows = await world.fetch(
        "SELECT j.version, v.spec->>'timeout_s' AS timeout_s FROM ondot.job j JOIN ondot.job_version v"
        " ON v.job_id = j.id AND v.version = j.version WHERE key LIKE 'function:%'"
    )
    assert {(row["version"], float(row["timeout_s"])) for row in rows} == {(2, 120.0)}
    assert len(rows) == 60


@proves("D4")
async def test_twenty_workers_on_an_empty_database_create_each_job_once(world: World) -> None:
    bodies = [nightly(key=f"function:{n}", name=str(n)) for n in range(60)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(declare(world, *bodies)) for _ in range(20)]
    assert sum(len(task.result().created) for task in tasks) == 60
    assert await world.value("SELECT count(*) FROM ondot.job WHERE key LIKE 'function:%'") == 60


@proves("D4")
async def test_a_release_that_appears_during_a_declaration_is_not_undone(world: World) -> None:
    await declare(world, nightly(timeout="1m"))
    await worker(world, nightly(timeout="1m"), release="v2").declare_for(DEFAULT_TENANT)
    async with world.second_connection() as connection, connection.transaction():
        await connection.execute("SELECT FROM ondot.app FOR UPDATE")
        old = asyncio.create_task(declare(world, nightly(timeout="3m"), release="v2"))
        await world.until_a_lock_is_awaited()
        await connection.execute("INSERT INTO ondot.app_release (tenant_no, app, release) VALUES (1, 'billing', 'v3')")
    assert (await old).waits_for == "v3"
    assert (await job(world)).spec.timeout_s == 60


@proves("D4")
@pytest.mark.parametrize("first", ["operator", "code"])
async def test_a_change_at_the_instant_of_a_declaration_is_neither_lost_nor_undone(world: World, first: str) -> None:
    await declare(world, nightly(timeout="1m"))
    row = await job(world)

    async def by_hand() -> None:
        await patch(world, {"labels": {"by": "hand"}})

    async def by_code() -> None:
        await declare(world, nightly(timeout="2m"), release="v2")

    async with world.second_connection() as connection, connection.transaction():
        await connection.execute("SELECT FROM ondot.job WHERE id = $1 FOR UPDATE", row.id)
        tasks: list[asyncio.Task[None]] = []
        for number, change in enumerate((by_hand, by_code) if first == "operator" else (by_code, by_hand), start=1):
            tasks.append(asyncio.create_task(change()))
            await world.until_a_lock_is_awaited(number)
    await asyncio.gather(*tasks)
    spec = (await job(world)).spec
    assert (spec.labels, spec.timeout_s) == ({"by": "hand"}, 120)


@proves("D4")
async def test_a_job_that_somebody_creates_with_the_key_at_this_instant_is_taken_over(world: World) -> None:
    spec = await _spec(world, nightly(timeout="9m"))
    async with asyncio.TaskGroup() as group:
        group.create_task(declare(world, nightly(retry={"max_retries": 1})))
        group.create_task(world.submit(spec))
    row = await job(world)
    assert row.spec.key == KEY
    assert await world.value("SELECT count(*) FROM ondot.job WHERE key = $1", KEY) == 1
