"""The sentences of the doctor, and its findings in a real database."""

from datetime import UTC, date, datetime, timedelta
from uuid import UUID

import pytest

from ondot.cli.doctor import in_sum
from ondot.coordination.etcd_probe import Probe
from ondot.doctor import checks, examine
from ondot.doctor.coordination import Leases, judge_coordination
from ondot.doctor.examine import Finding, examine_database
from ondot.flow.change.change import pause
from ondot.model.access import Role
from ondot.model.check import Kind
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.keys import new_key
from ondot.model.liveness import Beat, when_lost
from ondot.model.retry import Retry
from ondot.settings import Settings, load_settings
from ondot.store.check import Found, record_found
from ondot.store.database import open_database
from ondot.store.days import DayTable
from ondot.store.keys import add_key
from ondot.store.overview import PausedRow
from ondot.store.queue import OldestDue
from ondot.store.workers import lose_worker
from tests.flow.checking import own_partitions
from tests.holding import hold
from tests.proves import proves
from tests.servers import connected
from tests.world import World, every, failed, job

TODAY = date(2026, 11, 15)


def settings_of(database_url: str) -> Settings:
    return load_settings(database_url=database_url)


async def levels_of(database_url: str) -> dict[str, str]:
    return {finding.check: finding.level for finding in await examine_database(settings_of(database_url))}


async def test_an_installation_without_roles_shows_what_to_start(database_url: str) -> None:
    findings = {finding.check: finding for finding in await examine_database(settings_of(database_url))}
    assert {check for check, finding in findings.items() if finding.level == "ok"} >= {
        "database",
        "schema",
        "days",
        "lag",
        "dead letters",
        "snapshots",
    }
    assert findings["schedulers"].level == "problem"
    assert "ondot scheduler" in (findings["schedulers"].advice or "")
    assert findings["workers"].level == "warning"


async def test_a_database_that_may_lose_jobs_is_a_problem(database_url: str) -> None:
    assert (await levels_of(database_url))["durability"] == "problem"


async def test_work_without_workers_is_a_problem(database_url: str) -> None:
    database = await open_database(settings_of(database_url))
    async with database.connection() as connection:
        await connection.execute(
            "INSERT INTO ondot.ready SELECT pool_no, 2, 1, clock_timestamp() - interval '1 hour', gen_random_uuid()"
            " FROM ondot.pool"
        )
    await database.close()
    findings = {finding.check: finding for finding in await examine_database(settings_of(database_url))}
    assert findings["workers"].level == "problem"
    assert "ondot worker --pool default" in (findings["workers"].advice or "")
    assert findings["lag"].level == "problem"


async def test_without_a_schema_the_rest_is_not_looked_at(database_url: str) -> None:
    database = await open_database(settings_of(database_url))
    async with database.connection() as connection:
        await connection.execute("DROP SCHEMA ondot CASCADE")
    await database.close()
    findings = {finding.check: finding for finding in await examine_database(settings_of(database_url))}
    assert findings["schema"].level == "problem"
    assert "ondot migrate up" in findings["schema"].message
    assert "days" not in findings
    assert "connections" in findings


async def test_another_server_than_before_is_a_problem_before_anybody_has_started_on_it(world: World) -> None:
    async def lineage() -> Finding:
        findings = await examine_database(settings_of(world.url))
        return next(finding for finding in findings if finding.check == "lineage")

    assert (await lineage()).level == "ok"
    await world.value(
        "INSERT INTO ondot.lineage (system_id, timeline, table_id, is_synchronous, since)"
        " VALUES ('7', 1, 1, false, ondot.clock())"
    )
    finding = await lineage()
    assert finding.level == "problem"
    assert "another PostgreSQL cluster" in finding.message
    assert "--accept-database" in (finding.advice or "")


async def test_a_database_that_is_not_there_is_one_finding(database_url: str) -> None:
    missing = database_url.replace("/ondot", "/no_such_database_", 1)
    (finding,) = await examine_database(settings_of(missing))
    assert (finding.check, finding.level) == ("database", "problem")


@proves("L4")
async def test_while_postgresql_starts_the_advice_is_to_wait_and_not_to_start_it(database_url: str) -> None:
    async with connected(database_url) as connection:
        if connection.get_server_version().major < 17:
            pytest.skip("PostgreSQL before 17 has no login trigger that could give this answer")
        await connection.execute(
            "CREATE FUNCTION not_now() RETURNS event_trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE 'the database system is starting up' USING ERRCODE = '57P03'; END $$;"
            "CREATE EVENT TRIGGER not_now ON login EXECUTE FUNCTION not_now()"
        )
    (finding,) = await examine_database(settings_of(database_url))
    assert finding == checks.judge_away(
        "PostgreSQL does not answer: the database system is starting up.", may_pass=True
    )
    assert (finding.level, "Wait" in (finding.advice or "")) == ("problem", True)


@proves("L4")
async def test_a_database_that_shuts_down_while_one_looks_is_one_finding_more(database_url: str) -> None:
    async with connected(database_url) as connection:
        await connection.execute(
            "CREATE OR REPLACE FUNCTION ondot.clock() RETURNS timestamptz LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN clock_timestamp(); END $$"
        )
    findings = await examine_database(settings_of(database_url))
    assert [finding for finding in findings if "Could not check" in finding.message] == []
    assert findings[-1] == checks.judge_away(findings[-1].message, may_pass=True)


def test_an_unknown_server_may_have_to_be_started() -> None:
    assert "ONDOT_DATABASE_URL" in (checks.judge_away("It does not answer.", may_pass=False).advice or "")


@pytest.mark.parametrize(
    ("version", "level"), [("14.9", "problem"), ("15.1 (Debian)", "ok"), ("18beta1", "ok"), ("19.0", "warning")]
)
def test_versions_15_to_18_are_well(version: str, level: str) -> None:
    assert checks.judge_version(version).level == level


def test_a_database_that_loses_jobs_on_purpose_is_a_warning() -> None:
    assert checks.judge_durability(["fsync"], allowed=True).level == "warning"


@pytest.mark.parametrize(("ahead", "level"), [(7, "ok"), (2, "warning"), (0, "problem")])
def test_days_are_made_ahead(ahead: int, level: str) -> None:
    tables = [DayTable("history", TODAY, TODAY + timedelta(days=days), TODAY) for days in (ahead, 8)]
    assert checks.judge_days(tables).level == level


@pytest.mark.parametrize(("ahead_s", "level"), [(0.01, "ok"), (-30, "warning"), (3600, "warning")])
def test_clocks_that_differ_are_reported(ahead_s: float, level: str) -> None:
    assert checks.judge_clock(ahead_s).level == level


@pytest.mark.parametrize(("owned", "level"), [([32, 32], "ok"), ([32], "problem"), ([], "problem")])
def test_every_partition_has_an_owner(owned: list[int], level: str) -> None:
    assert checks.judge_schedulers(owned).level == level


@proves("C6")
@pytest.mark.parametrize(
    ("kinds", "away", "etcd", "strangers", "level", "words"),
    [
        ([], [], None, 0, "ok", "in PostgreSQL"),
        (["postgres"] * 2, [], None, 0, "ok", "in PostgreSQL"),
        (["postgres", "etcd", "etcd"], [], None, 0, "warning", "2 in etcd, 1 in PostgreSQL"),
        (["etcd"], [], None, 0, "ok", "ONDOT_ETCD_URL is not set here"),
        (["etcd"], [], Probe(None, "3.4.23", 0.01, 5), 0, "ok", "etcd 3.4.23 answers within 10 ms"),
        (["etcd"], [], Probe(None, "3.4.23", 0.3, 5), 0, "warning", "slow for a lease of 5 s"),
        (["etcd"], [], Probe(None, "3.4.23", 0.01, 6), 0, "warning", "last at least 6 s"),
        (["etcd"], [], Probe(None, "3.4.23", 0.01, 5), 1, "problem", "1 scheduler of another database"),
        ([], ["No lease from etcd: gone"] * 2, None, 0, "problem", "2 schedulers without a lease. No lease from etcd"),
        ([], [], Probe("no answer"), 0, "problem", "etcd does not answer: no answer."),
    ],
)
def test_the_place_of_leases_is_checked(
    kinds: list[str], away: list[str], etcd: Probe | None, strangers: int, level: str, words: str
) -> None:
    finding = judge_coordination(Leases(kinds, away, etcd, strangers), load_settings())
    assert (finding.level, words in finding.message) == (level, True), finding.message


@proves("C6")
async def test_doctor_asks_etcd(world: World, etcd_url: str) -> None:
    settings = load_settings(database_url=world.url, coordination="etcd", etcd_url=etcd_url)
    [found] = [finding for finding in await examine_database(settings) if finding.check == "coordination"]
    assert found.level == "ok", found
    away = load_settings(database_url=world.url, coordination="etcd", etcd_url="http://me:secret@127.0.0.1:1")
    [found] = [finding for finding in await examine_database(away) if finding.check == "coordination"]
    assert found.level == "problem"
    assert "127.0.0.1:1" in found.message
    assert "secret" not in found.message


def test_schedulers_without_a_lease_are_not_reported_as_gone() -> None:
    assert checks.judge_schedulers([], 2).message == "2 schedulers without a lease: no fire is planned."


def test_a_pool_with_work_needs_a_worker() -> None:
    assert checks.judge_workers(["default"], 1, ["default"]).level == "ok"
    assert checks.judge_workers(["default"], 1, ["default", "heavy"]).level == "problem"


def test_a_pool_whose_workers_are_all_silent_is_not_reported_as_having_none() -> None:
    finding = checks.judge_workers(["default"], 1, ["default", "Heavy"], ["Heavy", "default"])
    assert (finding.level, finding.message) == ("warning", "Work waits in Heavy, and all workers of it are silent.")
    assert finding.advice == "If this lasts, start one: `ondot worker --pool Heavy`"
    finding = checks.judge_workers([], 0, [], ["default"])
    assert (finding.level, finding.message) == ("warning", "All are silent. No work is due.")
    assert checks.judge_workers(["default"], 1, ["default"], ["default"]).level == "ok"


@proves("E6", "O5")
async def test_the_doctor_warns_of_silent_workers_and_does_not_count_them_as_alive(world: World) -> None:
    async def examine_workers() -> tuple[Finding, Finding]:
        findings = {finding.check: finding for finding in await examine_database(settings_of(world.url))}
        return findings["workers"], findings["silent workers"]

    heard, _ = await world.worker(), await world.worker()
    await world.advance(5)
    assert [(finding.level, finding.message) for finding in await examine_workers()] == [
        ("ok", "2 alive, for default."),
        ("ok", "None."),
    ]
    await world.advance(41)
    await heard.beat()
    workers, silent = await examine_workers()
    assert (workers.level, workers.message) == ("ok", "1 alive, for default.")
    assert (silent.level, silent.message) == ("warning", "1, for up to 46 s: 1 on here.")
    assert when_lost(10) in (silent.advice or "")
    await hold(world)
    workers, silent = await examine_workers()
    assert (workers.message, silent.level) == ("2 alive, for default.", "ok")


def test_workers_that_were_lost_are_counted_by_host() -> None:
    assert checks.judge_lost_workers([]).level == "ok"
    finding = checks.judge_lost_workers(["fell", "tarn", "tarn"])
    assert (finding.level, finding.message.partition(". ")[0]) == (
        "warning",
        "3 in the last 10 minutes, 2 on tarn, 1 on fell",
    )


async def test_the_doctor_warns_of_workers_lost_in_the_last_ten_minutes_and_not_of_those_that_left(
    world: World,
) -> None:
    async def lost() -> Finding:
        findings = await examine_database(settings_of(world.url))
        return next(finding for finding in findings if finding.check == "lost workers")

    for state, minutes in (("GONE", 1), ("LOST", 11)):
        worker = await world.worker()
        await world.value(
            "UPDATE ondot.worker SET state = $2, ended_at = ondot.clock() - make_interval(mins => $3) WHERE id = $1",
            worker.id,
            state,
            minutes,
        )
    assert (await lost()).level == "ok"
    worker = await world.worker()
    async with world.database.connection() as connection:
        assert await lose_worker(connection, Beat(worker.id, 0, world.now))
    finding = await lost()
    assert finding.level == "warning"
    assert "1 on here" in finding.message


async def test_dead_letters_are_reported_with_the_command_that_groups_them(world: World) -> None:
    await world.submit(job(retry=Retry(max_retries=0)))
    await (await world.worker()).run_one(failed())
    findings = {finding.check: finding for finding in await examine_database(settings_of(world.url))}
    assert findings["dead letters"].level == "warning"
    assert "`ondot dead-letter groups`" in (findings["dead letters"].advice or "")


@pytest.mark.parametrize(
    ("due", "level", "advice"),
    [
        (OldestDue(None, None, None), "ok", ""),
        (OldestDue("default", 1.0, None), "ok", ""),
        (OldestDue("default", 3.0, None), "warning", "ondot worker --pool default"),
        (OldestDue("default", 90.0, -5.0), "problem", "ondot worker --pool default"),
        (OldestDue(None, None, 90.0), "problem", "scheduler"),
    ],
)
def test_a_late_fire_is_reported_with_what_it_waits_for(due: OldestDue, level: str, advice: str) -> None:
    finding = checks.judge_lag(due, 30)
    assert finding.level == level
    assert advice in (finding.advice or "")


@pytest.mark.parametrize(("used", "level"), [(50, "ok"), (92, "warning"), (96, "problem"), (120, "problem")])
def test_a_further_role_should_find_connections(used: int, level: str) -> None:
    assert checks.judge_connections(97, used, 8).level == level


async def test_a_further_role_is_counted_with_all_the_connections_that_it_may_open(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    judge = checks.judge_connections

    def judging(room: int, used: int, of_one_role: int) -> Finding:
        sizes.append(of_one_role)
        return judge(room, used, of_one_role)

    monkeypatch.setattr(examine, "judge_connections", judging)
    settings = settings_of(world.url)
    await examine_database(settings)
    database = await open_database(settings, hurried=True)
    pools = database.pool.get_max_size() + database.patient.pool.get_max_size()
    await database.close()
    assert sizes == [pools + 2]


@proves("C1", "C3")
async def test_a_node_that_died_before_the_clock_was_set_back_is_no_scheduler_that_lives(world: World) -> None:
    await own_partitions(world, lease_s=5)
    findings = {finding.check: finding for finding in await examine_database(settings_of(world.url))}
    assert findings["schedulers"].level == "ok"
    await world.set_clock(world.now - timedelta(hours=1))
    findings = {finding.check: finding for finding in await examine_database(settings_of(world.url))}
    assert findings["schedulers"].level == "problem"
    assert "None is alive" in findings["schedulers"].message


def test_jobs_that_were_paused_for_failing_are_named_with_what_to_do() -> None:
    assert checks.judge_paused_jobs([]).level == "ok"
    job_id, at = JobId(UUID("019a1de9-4d8d-7d9d-8dd7-1801991e16d7")), datetime(2026, 11, 15, tzinfo=UTC)
    finding = checks.judge_paused_jobs([PausedRow(job_id, "report", "5 failures in a row", at, total=7)])
    assert finding.level == "warning"
    assert "7 jobs are paused because of failures" in finding.message
    assert f"report ({job_id}): 5 failures in a row; and 6 more." in finding.message
    assert "ondot job resume" in (finding.advice or "")


async def test_the_doctor_finds_a_job_that_ondot_paused(world: World) -> None:
    by_hand, failing = [await world.submit(job(name, schedule=every(600, world.now))) for name in ("calm", "doomed")]
    await pause(world.database, DEFAULT_TENANT, by_hand.id)
    await pause(world.database, DEFAULT_TENANT, failing.id, because="5 failures in a row")
    findings = {finding.check: finding for finding in await examine_database(settings_of(world.url))}
    assert "1 job is paused because of failures: doomed" in findings["paused jobs"].message
    assert "calm" not in findings["paused jobs"].message


def test_a_finding_of_the_self_check_is_explained_with_an_example() -> None:
    now = datetime(2026, 11, 15, 12, tzinfo=UTC)
    assert checks.judge_self_check([], now).level == "ok"
    example = {"ids": ["019a1de9", "019a1dea"], "done": "put back into their queue or line"}
    old = Found("of_a_newer_release", 7, now - timedelta(days=9), now - timedelta(days=2), example)
    finding = checks.judge_self_check([old], now)
    assert (finding.level, finding.advice) == ("ok", None)
    assert "7 × of_a_newer_release" in finding.message
    finding = checks.judge_self_check([old, Found("unqueued", 1234, now, now, example)], now)
    assert finding.level == "warning"
    assert "1,234 × executions that waited in no queue and in no line (last 2026-11-15 12:00:00 UTC" in finding.message
    assert "e.g. 019a1de9: put back into their queue or line" in finding.message
    assert "newer_release" not in finding.message
    assert "report" in (finding.advice or "")


async def test_the_doctor_shows_the_findings_of_the_self_check(world: World) -> None:
    assert (await levels_of(world.url))["self-check"] == "ok"
    async with world.database.connection() as connection:
        for count in (2, 3):
            await record_found(connection, Kind.EMPTY_LEASE, count, {"ids": ["019a1de9"], "done": "deleted"})
    findings = {finding.check: finding for finding in await examine_database(settings_of(world.url))}
    assert findings["self-check"].level == "warning"
    assert "5 × leases without a running execution" in findings["self-check"].message


def test_an_old_transaction_is_named() -> None:
    finding = checks.judge_snapshots([("session 12 of app (psql)", 1800.0)])
    assert finding.level == "warning"
    assert "session 12 of app (psql), for 30 min" in finding.message


@pytest.mark.parametrize(
    ("status", "body", "level"),
    [
        (200, b'{"status": "ready"}', "ok"),
        (503, b'{"status": "late", "why": "no scheduler"}', "problem"),
        (200, b"<html>", "problem"),
        (404, b"{}", "problem"),
    ],
)
def test_a_server_is_checked_for_readiness(status: int, body: bytes, level: str) -> None:
    assert examine.judge_server("http://x", status, body).level == level


def test_the_summary_counts_problems_and_warnings() -> None:
    well, warning, problem = (Finding("c", level, "m") for level in ("ok", "warning", "problem"))
    assert in_sum([well]) == "Nothing is wrong."
    assert in_sum([problem, warning, warning]) == "1 problem and 2 warnings."


@proves("P13")
def test_a_stalled_loop_is_reported_with_its_line_and_what_to_do() -> None:
    assert checks.judge_stalled([]).level == "ok"
    finding = checks.judge_stalled([("worker", "host", "tasks.py:12 in crawl")] * 7)
    assert finding.level == "warning"
    assert "a worker on host, at tasks.py:12 in crawl" in finding.message
    assert "and 2 more" in finding.message
    assert "loop.stalled" in (finding.advice or "")


@proves("T1", "T7")
async def test_the_doctor_warns_where_nobody_is_an_owner_and_of_keys_that_end_soon(world: World) -> None:
    async def access() -> Finding:
        async with world.database.connection() as connection:
            return await examine.check_access(connection, world.database.settings)

    async def add(name: str, role: Role, expires_in_s: float | None = None) -> None:
        async with world.database.connection() as connection:
            id_ = world.database.clock.new_id()
            await add_key(connection, id_, DEFAULT_TENANT, name, new_key(id_), role=role, expires_in_s=expires_in_s)

    assert (await access()).level == "ok"
    await world.add_tenant()
    assert "ondot user create --owner" in str((await access()).advice)
    await add("ops", Role.OWNER)
    await add("ci", Role.EDITOR, expires_in_s=86400 * 30)
    assert (await access()).level == "ok"
    await add("deploy", Role.EDITOR, expires_in_s=86400 * 3)
    found = await access()
    assert (found.level, "'deploy' of default" in found.message, "'ci'" in found.message) == ("warning", True, False)
