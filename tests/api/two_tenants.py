"""Two tenants on one installation, each with one of everything: the base of the tests that swap them (T1, P12).

Every text that the first tenant chooses contains its canary, so that a byte of it in an answer to the other is found.
`fill` goes through the API where it can; a test checks that no table of tenants stays empty, so that a new one is added
here.
"""

from dataclasses import dataclass
from typing import Any

import httpx2
from fastapi import FastAPI

from ondot.api.auth import Auth
from ondot.api.dependencies import Services
from ondot.api.server import build_api
from ondot.document.requests import preview_request
from ondot.flow.audit_seal import Sealer
from ondot.flow.bulk.turns import bulk_pass
from ondot.flow.declare import Declarer
from ondot.flow.known_functions import register
from ondot.flow.lease import Leaser
from ondot.flow.workflows.begin import begin
from ondot.kms import generate_key, open_kms
from ondot.model.access import Role
from ondot.model.app_release import AppRelease
from ondot.model.function import DeclaredFunction
from ondot.model.ids import ExecutionId, TenantNo
from ondot.model.keys import new_key
from ondot.store.keys import add_key
from ondot.store.logs import LogLine, Progress, add_log_lines, save_progress
from ondot.store.maps import insert_maps, insert_portions, make_items
from ondot.store.objects import ObjectRow, add_objects
from ondot.store.step_waits import insert_step_wait
from ondot.ui.pages import build_pages
from tests.flow.workflows import run_steps
from tests.world import DEFAULT_POOL, Worker, World, failed

BASE_URL = "http://127.0.0.1:1200"


@dataclass(slots=True)
class Inhabitant:
    """One tenant: its number, its canary, and a client with its key."""

    world: World
    tenant_no: TenantNo
    canary: str
    http: httpx2.AsyncClient

    async def send(self, method: str, path: str, status: int, body: object = None, **headers: str) -> Any:
        answer = await self.http.request(method, path, json=body, headers=headers)
        assert answer.status_code == status, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    async def create(self, **fields: Any) -> str:
        """A job all of whose texts contain the canary."""
        body = {
            "name": f"{self.canary}-job",
            "function": f"{self.canary}-function",
            "payload": {self.canary: self.canary},
            "labels": {self.canary: self.canary},
            **fields,
        }
        return str((await self.send("POST", "/v1/jobs", 201, body))["id"])


async def add_tenant(world: World, tenant_no: TenantNo, name: str) -> None:
    await world.fetch(
        "INSERT INTO ondot.tenant (tenant_no, name) VALUES ($1, $2) ON CONFLICT (tenant_no) DO UPDATE SET name = $2",
        tenant_no,
        name,
    )


async def make_key(world: World, tenant_no: TenantNo, name: str, role: Role = Role.ADMIN, **fields: Any) -> str:
    id_ = world.database.clock.new_id()
    key = new_key(id_)
    async with world.database.connection() as connection:
        await add_key(connection, id_, tenant_no, name, key, role=role, **fields)
    return key


async def inhabit(world: World, app: FastAPI, tenant_no: TenantNo, canary: str) -> Inhabitant:
    key = await make_key(world, tenant_no, f"{canary}-key")
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    client = httpx2.AsyncClient(transport=transport, base_url=BASE_URL, headers={"authorization": f"Bearer {key}"})
    return Inhabitant(world, tenant_no, canary, client)


def build_app(world: World) -> FastAPI:
    """The API and the pages, with keys required."""
    world.database.settings = world.database.settings.model_copy(update={"auth": "on"})
    auth = Auth(world.database, world.database.settings, in_process=True)
    services = Services(world.database, world.dispatcher, auth, kms=open_kms(generate_key()))
    app = build_api(services)
    build_pages(app, world.database, auth, preview_request)
    return app


async def fill(tenant: Inhabitant) -> None:
    """Give the tenant one of everything."""
    world, canary = tenant.world, tenant.canary
    worker = await world.worker()
    worker.leaser = Leaser(world.database, worker.id, [DEFAULT_POOL], lambda: frozenset({tenant.tenant_no}))
    # Ended: well, with a log and a result in the object store; and badly, as a dead letter.
    await tenant.create()
    [good] = await worker.lease()
    leased = good.leased
    async with world.database.connection() as connection:
        line = LogLine(leased.id, leased.attempt_no, 1, tenant.tenant_no, world.now, "stdout", f"{canary} line")
        await add_log_lines(connection, [line])
        stored = ObjectRow(leased.id, leased.attempt_no, "log", tenant.tenant_no, f"{canary}/log", 10, cut=False)
        await add_objects(connection, [stored])
    await worker.complete(good)
    for _ in range(2):
        await tenant.create(max_retries=0)
        [bad] = await worker.lease()
        await worker.complete(bad, failed(f"{canary} broke"))
    # An operation on many dead letters, and one letter that is settled.
    letters = (await tenant.send("GET", "/v1/dead-letters", 200))["items"]
    settled = {"ids": [letters[0]["execution_id"]], "reason": f"{canary} is gone"}
    await tenant.send("POST", "/v1/dead-letters/discard", 200, settled)
    await tenant.send("POST", "/v1/dead-letters/discard", 202, {"filter": {"q": canary}, "reason": f"{canary} gone"})
    # An operation on many with a result: there is no job of this id.
    many = {"of": "jobs", "action": "pause", "ids": [letters[0]["execution_id"]], "reason": f"{canary} many"}
    await tenant.send("POST", "/v1/bulk", 202, many)
    while await bulk_pass(world.database, world.dispatcher):
        pass
    # A recurring job with a key: paused and resumed, so that fires were skipped; then backfilled; then failed once.
    recurring = await tenant.create(every="1h", key=f"{canary}-own-key", pause_after_failures=5, max_retries=0)
    await tenant.send("POST", f"/v1/jobs/{recurring}/pause?reason={canary}", 200)
    await world.advance(3 * 3600)
    await world.plan()
    await tenant.send("POST", f"/v1/jobs/{recurring}/resume", 200)
    days = {"from_at": world.after(-3 * 3600).isoformat(), "to_at": world.now.isoformat()}
    await tenant.send("POST", f"/v1/jobs/{recurring}/backfill", 202, days)
    trace = {"traceparent": f"00-{'1' * 32}-{'2' * 16}-01", "tracestate": f"vendor={canary}"}
    await tenant.send("POST", f"/v1/jobs/{recurring}/run", 201, **{"idempotency-key": f"{canary}-request", **trace})
    [run] = await worker.lease()
    await worker.complete(run, failed(f"{canary} broke"))
    await _fill_runs(tenant, worker)
    # Waiting for its next attempt, running with progress, waiting in the queue, and waiting before a limit.
    await tenant.create(max_retries=3)
    [again] = await worker.lease()
    await worker.complete(again, failed(f"{canary} broke"))
    await tenant.create(key=f"{canary}-runs")
    [running] = await worker.lease()
    async with world.database.connection() as connection:
        progress = Progress(running.leased.id, running.leased.attempt_no, f'{{"at": "{canary}"}}', 0.5, canary)
        await save_progress(connection, worker.id, [progress])
    for _ in range(2):
        await tenant.create(concurrency_key=f"{canary}-limit", order_key=None)
    await worker.lease()
    await tenant.create(unique=f"{canary}-once", **{"in": "1h"})
    later = await tenant.create()
    await tenant.create(depends_on=[later])
    # A job that an event has started.
    await tenant.create(schedule={"event": {"type": f"{canary}.type"}}, payload=None)
    sent = {"specversion": "1.0", "id": f"{canary}-1", "source": f"/{canary}", "type": f"{canary}.type", "data": canary}
    await tenant.send("POST", "/v1/events", 202, sent)
    # A window of events, a step that waits for one, and one of ondot's own that is not matched yet.
    rule = {"type": f"{canary}.late", "debounce": {"period": "1h"}, "cancel_on": [{"type": "x", "same": "data"}]}
    await tenant.create(schedule={"event": rule}, payload=None)
    await tenant.send("POST", "/v1/events", 202, sent | {"id": f"{canary}-2", "type": f"{canary}.late"})
    await world.fetch(
        "INSERT INTO ondot.event_wait VALUES ($1, $1, $2, $3, '{}')",
        world.database.clock.new_id(),
        tenant.tenant_no,
        f"{canary}.wait",
    )
    await world.fetch(
        "INSERT INTO ondot.own_event (at, job_id, tenant_no, type, reason) VALUES ($1, $2, $3, 'ondot.job.paused', $4)",
        world.now,
        world.database.clock.new_id(),
        tenant.tenant_no,
        canary,
    )
    # A secret, and a job that uses it; the key of its signatures; the seals of its audit log.
    await tenant.send("PUT", f"/v1/secrets/{canary}-secret", 200, {"value": f"{canary}-value"})
    await tenant.create(key=f"{canary}-secretive", payload={"token": {"$secret": f"{canary}-secret"}}, **{"in": "1h"})
    await world.fetch(
        "INSERT INTO ondot.signing_key (tenant_no, version, key_no, sealed) VALUES ($1, 1, 1, $2)",
        tenant.tenant_no,
        canary.encode(),
    )
    hook = {"name": f"{canary}-hook", "type": f"{canary}.type", "source": f"/{canary}", "signature": "github"}
    await tenant.send("POST", "/v1/hooks", 201, hook)
    for shared in (True, False):
        view = {"name": f"{canary}-view", "of": "jobs", "q": canary, "shared": shared}
        await tenant.send("POST", "/v1/views", 201, view)
    # A connection, and a job that names it.
    broker = {"kind": "redis", "url": f"redis://{canary}:{canary}@{canary}.example.com"}
    await tenant.send("PUT", f"/v1/connections/{canary}-connection", 201, broker)
    await world.fetch(
        "INSERT INTO ondot.connection_use (tenant_no, name, job_id)"
        " SELECT tenant_no, $2, id FROM ondot.job WHERE tenant_no = $1 LIMIT 1",
        tenant.tenant_no,
        f"{canary}-connection",
    )
    # A sink, and an event that waits for it.
    await world.fetch(
        "INSERT INTO ondot.outbox (tenant_no, type, job_ids, detail)"
        " VALUES ($1, 'ondot.job.paused', ARRAY[$2::uuid], $3)",
        tenant.tenant_no,
        world.database.clock.new_id(),
        f'{{"job": "{canary}"}}',
    )
    sink = {"types": ["ondot.job.*"], "webhook": {"url": f"https://{canary}.example.com"}, "labels": {"a": canary}}
    await tenant.send("PUT", f"/v1/sinks/{canary}-sink", 200, sink)
    # A channel with a message that waits, a ping and its calls.
    channel = {"name": f"{canary}-channel", "email": {"to": [f"{canary}@example.com"]}}
    await tenant.send("POST", "/v1/channels", 201, channel)
    await world.fetch(
        "INSERT INTO ondot.delivery (id, tenant_no, channel_id, kind, message)"
        " SELECT $1, tenant_no, id, 'test', $3::text::jsonb FROM ondot.channel WHERE tenant_no = $2",
        world.database.clock.new_id(),
        tenant.tenant_no,
        f'{{"kind": "test", "title": "{canary}", "text": "{canary}", "at": "2026-01-01T00:00:00Z"}}',
    )
    # An alert, an incident with its cause, and a condition.
    alert = {"name": f"{canary}-alert", "when": {"failing": {"in_a_row": 3}}, "scope": {"jobs": [canary]}}
    await tenant.send("POST", "/v1/alerts", 201, alert)
    await world.fetch(
        "WITH i AS (INSERT INTO ondot.incident (id, alert_id, since, opened_at, tenant_no, kind, reason, alert, title)"
        "           SELECT $1, id, ondot.clock(), ondot.clock(), tenant_no, 'failing', $3, name, $3"
        "           FROM ondot.alert WHERE tenant_no = $2 RETURNING *),"
        " c AS (INSERT INTO ondot.condition (kind, tenant_no, subject, since, seen_at, message)"
        "       VALUES ('quota', $2, $3, ondot.clock(), ondot.clock(), $3))"
        " INSERT INTO ondot.cause (id, alert_id, incident_id, since, tenant_no, kind, key, reason, subject, message)"
        " SELECT $1, alert_id, id, since, tenant_no, kind, $3, $3, $3, $3 FROM i",
        world.database.clock.new_id(),
        tenant.tenant_no,
        canary,
    )
    await world.fetch(
        "INSERT INTO ondot.ping (id, tenant_no, name, hash, grace_s, created_by) VALUES ($1, $2, $3, $4, 60, 'me')",
        world.database.clock.new_id(),
        tenant.tenant_no,
        canary,
        canary.encode(),
    )
    await world.fetch(
        "INSERT INTO ondot.ping_call (id, tenant_no, ping_id, kind, body)"
        " SELECT $1, tenant_no, id, 'success', $3 FROM ondot.ping WHERE tenant_no = $2",
        world.database.clock.new_id(),
        tenant.tenant_no,
        canary,
    )
    await world.fetch("INSERT INTO ondot.quota_token VALUES ($1, 'creates', $2)", tenant.tenant_no, world.now)
    await world.fetch("INSERT INTO ondot.job_count VALUES ($1, 7, $2)", tenant.tenant_no, world.now)
    # A person who has signed in.
    email = f"{canary}@example.com"
    await tenant.send("POST", "/v1/users", 201, {"email": email, "name": f"{canary}-name", "role": "editor"})
    await world.fetch(
        "INSERT INTO ondot.session (id, tenant_no, user_id, hash, method, address, agent, expires_at)"
        " SELECT $1, tenant_no, id, $2, 'password', '192.0.2.1', $3, $4 FROM ondot.person WHERE email = $5",
        world.database.clock.new_id(),
        canary.encode(),
        f"{canary}-agent",
        world.after(3600),
        email,
    )
    # An expectation that was missed.
    await tenant.create(key=f"{canary}-expected", every="1h", expect={"success_every": "1h"})
    await world.fetch(
        "INSERT INTO ondot.miss (id, job_id, due_at, seen_at, tenant_no, count, predicted, which, reason)"
        " SELECT $1, job_id, $2, $2, tenant_no, 1, false, which, $3 FROM ondot.watch WHERE tenant_no = $4",
        world.database.clock.new_id(),
        world.now,
        canary,
        tenant.tenant_no,
    )
    function = DeclaredFunction(
        name=f"{canary}-function",
        description=canary,
        options={"labels": {"of": canary}},
        argument_defaults={},
        schema={"type": "object", "description": canary},
        enqueued={},
    )
    await register(world.database, AppRelease(canary, canary), [function], frozenset({tenant.tenant_no}))
    await world.fetch(
        "INSERT INTO ondot.unknown_call VALUES ($1, $2, 1, $3)", tenant.tenant_no, canary, world.database.clock.new_id()
    )
    # A day that has gone: an archived file, and from when history and the audit log are kept.
    await world.fetch(
        "WITH k AS (INSERT INTO ondot.kept_from VALUES ($1, $2)),"
        " c AS (INSERT INTO ondot.audit_cut (tenant_no, seq, hash, at) VALUES ($1, 0, $4, $2))"
        " INSERT INTO ondot.archive_file (tenant_no, key, parent, name, day, days, rows, bytes, digest)"
        " VALUES ($1, $3, 'history', $3, '2020-01-01', 30, 1, 1, $3)",
        tenant.tenant_no,
        world.after(-90 * 86_400),
        canary,
        bytes(32),
    )
    await _fill_maps(tenant)
    await _fill_declared(tenant)
    await Sealer(world.database, None).one_pass()


async def _fill_runs(tenant: Inhabitant, worker: Worker) -> None:
    """A run whose second step has failed, was retried, and has ended: its run has not seen that yet."""
    world, canary = tenant.world, tenant.canary
    step = {"function": f"{canary}-function"}
    steps = {f"{canary}-a": step, f"{canary}-b": step | {"depends_on": [f"{canary}-a"], "max_retries": 0}}
    await tenant.send("POST", "/v1/workflows", 201, {"name": f"{canary}-flow", "steps": steps})

    async def begin_run() -> ExecutionId:
        [assignment] = await worker.lease()
        assert await begin(world.database, world.dispatcher, worker.id, assignment.leased)
        worker.completer.release(assignment.lease_id)
        return assignment.leased.id

    run = await begin_run()
    await run_steps(world, worker, run, {f"{canary}-b": failed(f"{canary} broke")})
    await tenant.send("POST", f"/v1/runs/{run}/retry", 200, {"reason": canary})
    assert await begin_run() == run
    await worker.run_one()


async def _fill_declared(tenant: Inhabitant) -> None:
    """A job that an app declares, and that another app declares in vain."""
    body = {"name": f"{tenant.canary}-declared", "key": f"{tenant.canary}-declared", "schedule": {"cron": "0 0 1 1 *"}}
    body |= {"target": {"function": f"{tenant.canary}-function"}}
    for app in ("app", "other-app"):
        release = AppRelease(f"{tenant.canary}-{app}", f"{tenant.canary}-release")
        await Declarer(tenant.world.database, [body], release).declare_for(tenant.tenant_no)


async def _fill_maps(tenant: Inhabitant) -> None:
    """A map with a list, an item, and a step that waits for a person."""
    run, execution = tenant.world.database.clock.new_ids(2)
    async with tenant.world.database.connection() as connection:
        await insert_maps(connection, tenant.tenant_no, run, {0: 1}, with_cursor=0)
        await insert_portions(connection, tenant.tenant_no, run, 0, {0: f'["{tenant.canary}"]'})
        await make_items(connection, tenant.tenant_no, run, 0, {0: ExecutionId(execution)})
        await insert_step_wait(
            connection, tenant.tenant_no, run, 1, ExecutionId(execution), "approval", role="operator", within_s=None
        )
