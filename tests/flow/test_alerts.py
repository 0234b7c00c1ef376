"""From a cause to an incident, for each kind of alert; storms, take-overs, two tenants (O4)."""

from collections.abc import Collection
from typing import Any
from uuid import UUID

import msgspec
import pytest

from ondot.document.alerts import read_alert
from ondot.flow.alerts.conditions import clear_condition, report_condition
from ondot.flow.alerts.define import create_alert, mute_alert, remove_alert, update_alert
from ondot.flow.alerts.evaluate import Evaluator
from ondot.flow.alerts.incidents import acknowledge, resolve
from ondot.flow.explain import explain_job
from ondot.flow.tenants import resume_tenant, suspend_tenant
from ondot.model.alerts.kinds import KINDS
from ondot.model.channel import Message
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.retry import Retry
from ondot.store.alerts import AlertRow, find_alert
from ondot.store.audit import By
from ondot.store.connection import Connection
from ondot.store.incidents import IncidentFilter, IncidentRow, list_causes, list_incidents, open_incidents_of_jobs
from tests.proves import proves
from tests.world import World, failed, job

BY = By("ann")
CALM_S = 61
"""How long nothing must hold until an incident recovers for the first time, with the time a cause may be away."""


class Alerts:
    """The alerts of a world, with the messages that they would send."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: list[tuple[TenantNo, tuple[str, ...], Message]] = []
        self.evaluator = self.new_evaluator()

    def new_evaluator(self) -> Evaluator:
        return Evaluator(self.world.database, self.queue, rests=0)

    async def queue(
        self, _connection: Connection, tenant_no: TenantNo, channels: Collection[str], draft: Message
    ) -> None:
        self.sent.append((tenant_no, tuple(channels), draft))

    async def define(
        self, name: str, when: dict[str, Any], tenant_no: TenantNo = DEFAULT_TENANT, **fields: Any
    ) -> AlertRow:
        await self.add_channels(tenant_no, fields.get("notify", ["ops"]))
        body = read_alert({"name": name, "when": when, "notify": ["ops"], **fields})
        await create_alert(self.world.database, tenant_no, body, render=lambda _: "{}", idempotency=None, by=BY)
        async with self.world.database.connection() as connection:
            row = await find_alert(connection, tenant_no, name=name)
        assert row is not None
        return row

    async def add_channels(self, tenant_no: TenantNo, names: Collection[str]) -> None:
        await self.world.fetch(
            "INSERT INTO ondot.channel (id, tenant_no, name, job_id, spec, created_by)"
            " SELECT ondot.new_id(), $1, name, ondot.new_id(), $3, 'ann' FROM unnest($2::text[]) AS name"
            " ON CONFLICT DO NOTHING",
            tenant_no,
            list(names),
            '{"kind": "email", "to": ["ann@example.com"]}',
        )

    async def look(self, after: float = 0, times: int = 1) -> int:
        sent = 0
        for _ in range(times):
            await self.world.advance(after)
            sent += await self.evaluator.one_pass()
        return sent

    async def calm_down(self) -> int:
        """Long enough for a first recovery."""
        return await self.look() + await self.look(after=16) + await self.look(after=CALM_S)

    async def incidents(self, tenant_no: TenantNo = DEFAULT_TENANT, **where: Any) -> list[IncidentRow]:
        async with self.world.database.connection() as connection:
            return await list_incidents(connection, tenant_no, IncidentFilter(**where), limit=100)

    def last_channels(self) -> tuple[str, ...]:
        return self.sent[-1][1]

    @property
    def kinds(self) -> list[str]:
        return [draft.kind for _, _, draft in self.sent]


@pytest.fixture
def alerts(world: World) -> Alerts:
    return Alerts(world)


async def fail(world: World, *jobs: UUID, message: str = "it broke") -> None:
    worker = await world.worker()
    for job_id in jobs:
        await world.run_now(job_id)  # type: ignore[arg-type]
    while batch := await worker.lease():
        await worker.complete_all(batch, failed(message))


NEVER = {"retry": Retry(max_retries=0)}


@proves("O4")
async def test_failing_in_a_row_is_one_incident_that_recovers_by_a_success(world: World, alerts: Alerts) -> None:
    nightly = await world.submit(job("nightly", key="nightly", labels={"team": "bi"}, **NEVER))
    other = await world.submit(job("other", key="other", **NEVER))
    worker = await world.worker()
    await worker.complete_all(await worker.lease())
    await alerts.define("bi", {"failing": {"in_a_row": 2}}, scope={"labels": {"team": ["bi"]}}, repeat="1h")
    await fail(world, nightly.id, other.id, other.id)
    assert await alerts.look() == 0
    await fail(world, nightly.id, message="no route to warehouse")
    assert await alerts.look() == 1
    [(_, channels, draft)] = alerts.sent
    assert channels == ("ops",)
    assert draft.title == "nightly failed 2 times in a row or more; the last error: no route to warehouse"
    assert f"ondot dead-letter list --job {nightly.id}" in draft.text
    [incident] = await alerts.incidents(is_open=True)
    assert (incident.job_id, incident.causes, incident.messages) == (nightly.id, 1, 1)
    async with world.database.connection() as connection:
        [of_job] = await open_incidents_of_jobs(connection, DEFAULT_TENANT, [nightly.id, other.id])
        assert of_job.id == incident.id
    explained = (await explain_job(world.database, DEFAULT_TENANT, nightly.id)).job
    assert [reason.facts["incident_id"] for reason in explained.reasons if reason.code == "incident"] == [
        str(incident.id)
    ]
    assert await alerts.look(after=3601) == 1
    assert alerts.kinds[-1] == "reminder"

    await world.run_now(nightly.id)
    await worker.complete_all(await worker.lease())
    assert await alerts.calm_down() == 1
    assert alerts.kinds == ["opened", "reminder", "recovered"]
    [after] = await alerts.incidents()
    assert after.state == "resolved"
    assert after.messages == 3
    async with world.database.connection() as connection:
        [cause] = await list_causes(connection, DEFAULT_TENANT, [after.id], 10)
        assert cause.ended_at is not None
        assert await open_incidents_of_jobs(connection, DEFAULT_TENANT, [nightly.id]) == []


@proves("O4")
async def test_every_kind_reports_its_cause_and_when_it_is_over(world: World, alerts: Alerts) -> None:
    whens: dict[str, dict[str, Any]] = {
        "dead_letters": {"over": 1},
        "failures": {"over": 1, "within": "1h"},
        "failing": {"in_a_row": 2},
        "lateness": {"over": "1m"},
        "oldest_wait": {"over": "2m", "held_back": True},
        "workers": {"below": 1, "pool": "default"},
    }
    for name in KINDS:
        await alerts.define(name, {name: whens.get(name, {})}, notify=[name])
    # Nothing has happened: only the pool without a worker is wrong.
    await alerts.look()
    assert [draft.title for _, _, draft in alerts.sent] == ["The pool default has no worker, 1 must be alive"]
    worker = await world.worker()
    a = await world.submit(job("a", key="a", **NEVER))
    await worker.complete_all(await worker.lease(), failed())
    await fail(world, a.id)
    slow = await world.submit(job("slow", key="slow"))
    limited = await world.submit(job("limited", key="limited"))
    async with world.database.connection() as connection:
        for kind in KINDS.values():
            if kind.condition:
                tenant_no = TenantNo(0) if kind.about == "installation" else DEFAULT_TENANT
                of_job = limited.id if kind.about == "job" else None
                await report_condition(connection, kind.name, tenant_no, "s", f"{kind.name} is wrong", job_id=of_job)
        await connection.execute(
            "INSERT INTO ondot.skipped (job_id, from_at, to_at, tenant_no, reason, count, at)"
            " VALUES ($1, $2, $2, 1, 'misfire', 1, $2)",
            slow.id,
            world.now,
        )
        await connection.execute(
            "INSERT INTO ondot.found (kind, count, first_at, last_at, example)"
            " VALUES ('unqueued', 1, ondot.clock(), ondot.clock(), '{}')"
        )
        await connection.execute(
            "INSERT INTO ondot.dependent (child_id, execution_id, stuck_at, tenant_no)"
            " SELECT job_id, id, ondot.clock(), 1 FROM ondot.execution WHERE job_id = $1",
            slow.id,
        )
    await alerts.look(after=121)
    open_now = await alerts.incidents(is_open=True)
    async with world.database.connection() as connection:
        causes = await list_causes(connection, DEFAULT_TENANT, [each.id for each in open_now], 100)
    assert {cause.kind for cause in causes} | {"workers"} == set(KINDS)
    notified = {name for _, channels, _ in alerts.sent for name in channels}
    assert notified == set(KINDS)
    # Several causes on one job are one incident.
    kinds_of = {each.id: sorted(cause.kind for cause in causes if cause.incident_id == each.id) for each in open_now}
    [of_a] = [each for each in open_now if each.job_id == a.id]
    assert kinds_of[of_a.id] == ["dead_letters", "failing", "failures"]
    assert ["blocked_run", "expectation", "lateness", "lateness", "missed_schedule"] in kinds_of.values()

    async with world.database.connection() as connection:
        await connection.execute("UPDATE ondot.dead_letter SET resolved_at = ondot.clock(), resolution = 'discarded'")
        for kind in KINDS.values():
            if kind.condition:
                await clear_condition(connection, kind.name, TenantNo(0 if kind.about == "installation" else 1), "s")
        await connection.execute("TRUNCATE ondot.skipped, ondot.dependent")
    await worker.complete_all(await worker.lease())
    await worker.beat()
    await alerts.look(after=3600)
    await worker.beat()
    assert await alerts.calm_down() > 0
    assert await alerts.incidents(is_open=True) == []


STORM = """
WITH job AS (SELECT ('019a0000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid AS id, i
             FROM generate_series(1, $1::integer) i),
jobs AS (INSERT INTO ondot.job (id, tenant_no, name, state, version, pool_no, labels, created_at, updated_at)
         SELECT id, 1, 'job ' || i, 'ACTIVE', 1, 1, '{}', ondot.clock(), ondot.clock() FROM job),
failure AS (SELECT ondot.new_id() AS id, job.id AS job_id, ondot.clock() - make_interval(secs => 3 - n) AS at
            FROM generate_series(1, 3) n CROSS JOIN job),
ended AS (INSERT INTO ondot.history (id, job_id, fire_at, ready_at, ended_at, tenant_no, job_version, pool_no,
                                     attempt_no, failures, losses, class, state, origin)
          SELECT id, job_id, at, at, at, 1, 1, 1, 1, 1, 0, 2, 'FAILED', 'run' FROM failure)
INSERT INTO ondot.dead_letter (execution_id, tenant_no, job_id, job_version, failed_at, error)
SELECT id, 1, job_id, 1, at, $2::jsonb FROM failure
"""
"""Jobs that have failed three times each: more letters than one look reads."""


@proves("O4")
async def test_a_storm_is_one_incident_with_one_message_and_its_first_jobs(world: World, alerts: Alerts) -> None:
    count = 10_000
    await alerts.define("all", {"failing": {"in_a_row": 3}})
    async with world.second_connection() as connection:
        # Seeded rows were never submitted: the guard of tests would refuse them, and takes seconds.
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(
            STORM, count, msgspec.json.encode({"message": "disk full", "fingerprint": "f"}).decode()
        )
    assert await alerts.look() == 1
    [incident] = await alerts.incidents()
    assert (incident.causes, incident.job_id) == (count, None)
    assert incident.title == "10,000 jobs failed 3 times in a row or more; the last error: disk full"
    [(_, _, draft)] = alerts.sent
    assert len(draft.causes) == 20
    assert "10,000 causes in all, the first 20 are listed." in draft.text
    assert len(draft.text) < 5_000
    assert await alerts.look() == 0

    # Another scheduler takes over in the middle: it does not send it again, and the first writes nothing any more.
    before, alerts.evaluator = alerts.evaluator, alerts.new_evaluator()
    assert await alerts.look() == 0
    await world.fetch("UPDATE ondot.dead_letter SET resolved_at = ondot.clock(), resolution = 'discarded'")
    assert await alerts.calm_down() == 1
    assert await before.one_pass() == 0
    assert alerts.kinds == ["opened", "recovered"]


@proves("O4")
async def test_jobs_that_fail_rarely_are_found_beside_one_that_fails_all_the_time(
    world: World, alerts: Alerts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await alerts.define("nightly", {"failing": {"in_a_row": 2}}, scope={"jobs": ["nightly"]})
    nightly = await world.submit(job("nightly", key="nightly", **NEVER))
    noisy = await world.submit(job("noisy", key="noisy", **NEVER))
    await fail(world)
    await fail(world, nightly.id)
    assert await alerts.look() == 1
    monkeypatch.setattr("ondot.flow.alerts.sources.LETTERS", 3)
    for _ in range(3):
        await world.advance(1)
        await fail(world, noisy.id)
    assert await alerts.calm_down() == 0
    assert len(await alerts.incidents(is_open=True)) == 1


@proves("O4", "T2")
async def test_work_that_waits_for_a_quota_is_a_cause(world: World, alerts: Alerts) -> None:
    acme = await world.add_tenant("acme")
    await alerts.define("ours", {"quota": {}})
    await alerts.define("theirs", {"quota": {}}, acme)
    quotas = {"concurrent": 1, "starts": {"limit": 2, "per_s": 3600.0, "burst": 2}}
    await world.fetch(
        "UPDATE ondot.tenant SET quotas = $2::text::jsonb WHERE tenant_no = $1",
        acme,
        msgspec.json.encode(quotas).decode(),
    )
    worker = await world.worker()
    await world.submit(job("first"), acme)
    leased = [*await worker.lease(), *await worker.lease()]
    assert len(leased) == 1
    assert await alerts.look() == 0, "the quota is used up, and nothing waits"
    await world.submit_all([job("second"), job("third")], acme)
    assert await worker.lease() == []
    assert await alerts.look() == 1
    [(tenant_no, _, draft)] = alerts.sent
    assert (tenant_no, draft.title.split(",")[0]) == (acme, "The quota of concurrent is reached: 1 of 1 run")
    await worker.complete_all(leased)
    leased = [*await worker.lease(), *await worker.lease()]
    assert len(leased) == 1
    await worker.complete_all(leased)
    assert await worker.lease() == []
    assert await alerts.look() == 1
    assert alerts.sent[-1][2].title.startswith("The quota of starts is reached: 2 starts within 1 hour")


@proves("O4")
async def test_a_process_that_lost_its_duty_between_look_and_write_sends_nothing(world: World, alerts: Alerts) -> None:
    await alerts.define("workers", {"workers": {"below": 1}})
    stale, fresh = alerts.evaluator, alerts.new_evaluator()
    await stale._load()
    known = stale._known = await stale._load()
    assert await fresh.one_pass() == 1
    async with world.database.connection() as connection:
        held = await stale._look(connection, known, world.now)
    assert held[next(iter(known.alerts))]
    assert await stale.one_pass() == 0
    assert alerts.kinds == ["opened"]


@proves("O4")
async def test_people_acknowledge_mute_resolve_change_and_delete(world: World, alerts: Alerts) -> None:
    alert = await alerts.define("workers", {"workers": {"below": 1}}, repeat="1m")
    await mute_alert(world.database, DEFAULT_TENANT, alert.id, _mute(600), by=BY)
    assert await alerts.look() == 0
    [incident] = await alerts.incidents(is_open=True)
    assert await alerts.look(after=601) == 1
    await acknowledge(world.database, alerts.queue, DEFAULT_TENANT, incident.id, "on it", by=BY)
    assert await alerts.look(after=300) == 0
    row = await resolve(world.database, alerts.queue, DEFAULT_TENANT, incident.id, None, by=BY)
    assert (row.state, row.note, row.acknowledged_by, row.resolved_by) == ("resolved", "on it", "ann", "ann")
    assert alerts.kinds == ["opened", "recovered"]
    assert "resolved by ann" in alerts.sent[-1][2].text
    # The pool still has no worker: a person knows, so nothing opens until it had one.
    assert await alerts.look(after=60, times=3) == 0
    worker = await world.worker()
    await alerts.look(times=2, after=16)
    await world.fetch("UPDATE ondot.worker SET state = 'GONE' WHERE id = $1", worker.id)
    assert await alerts.look() == 1
    await alerts.add_channels(DEFAULT_TENANT, ["night"])
    patch = {"when": {"workers": {"below": 1, "pool": "default"}}, "notify": ["ops", "night"]}
    await update_alert(world.database, DEFAULT_TENANT, alert.id, patch, check=lambda _: None, if_version=None, by=BY)
    assert await alerts.look() == 1
    assert alerts.last_channels() == ("night",)
    await remove_alert(world.database, DEFAULT_TENANT, alert.id, by=BY)
    assert await alerts.look() == 1
    assert alerts.last_channels() == ("ops", "night")
    assert "its alert was deleted" in alerts.sent[-1][2].text
    assert await alerts.incidents(is_open=True) == []


@proves("O4", "T1")
async def test_alerts_of_a_tenant_see_its_jobs_only_and_those_of_an_owner_may_see_all(
    world: World, alerts: Alerts
) -> None:
    acme = await world.add_tenant("acme")
    theirs = await world.submit(job("theirs", key="t", **NEVER), acme)
    worker = await world.worker()
    await worker.complete_all(await worker.lease(), failed("secret of acme"))
    await alerts.define("mine", {"failing": {"in_a_row": 1}})
    assert await alerts.look() == 0
    await alerts.define("own", {"failing": {"in_a_row": 1}}, acme)
    everything = await alerts.define("all", {"dead_letters": {"over": 0}}, scope={"tenant": "all"})
    assert await alerts.look() == 2
    assert sorted(tenant_no for tenant_no, _, _ in alerts.sent) == [1, acme]
    [incident] = await alerts.incidents(acme)
    assert incident.job_id == theirs.id

    # A suspended tenant: nothing is looked at and nothing is sent; a deleted job ends what was about it.
    await suspend_tenant(world.database, "acme", by=BY)
    await remove_alert(world.database, DEFAULT_TENANT, everything.id, by=BY)
    assert await alerts.look(after=86_400) == 1
    assert [each.tenant_no for each in await alerts.incidents(acme, is_open=True)] == [acme]
    await resume_tenant(world.database, "acme", by=BY)
    assert await alerts.look() == 0
    assert await alerts.look(after=4 * 3600) == 1
    assert alerts.kinds[-1] == "reminder"
    await world.fetch("UPDATE ondot.job SET state = 'DELETED' WHERE id = $1", theirs.id)
    alerts.evaluator._jobs.forget()
    assert await alerts.calm_down() == 1
    assert alerts.kinds[-1] == "recovered"


def _mute(seconds: float) -> Any:
    from ondot.document.alerts import MuteBody

    return MuteBody.model_validate({"for": seconds})
