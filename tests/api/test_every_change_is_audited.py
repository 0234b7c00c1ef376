"""Every route that changes something leaves an entry in the audit log, with its caller, address and request (T6).

The routes come from the OpenAPI document: a new one fails here until it has a case, or a reason why it has none.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest
from msgspec import Raw

from ondot.flow.bulk.turns import bulk_pass
from ondot.kms import generate_key
from ondot.model.ids import DEFAULT_TENANT, INSTALLATION
from ondot.model.workflow.spec import Approve, MapSpec
from tests.api.conftest import Caller
from tests.api.test_declared import declared_job
from tests.api.test_secrets import caller_with
from tests.api.workflow_runs import blocked_run
from tests.flow.workflows import start, step
from tests.proves import proves
from tests.world import World, failed

Request = tuple[str, Any]
"""The path and the body to send."""
Prepare = Callable[[Caller], Awaitable[Request]]

RECURS: Final = {"name": "report", "function": "f", "cron": "0 9 * * *"}


@pytest.fixture
async def api(world: World) -> AsyncIterator[Caller]:
    """Without keys, and with a master key for secrets."""
    caller = caller_with(world, secret_key=generate_key())
    async with caller.http:
        yield caller


async def job(api: Caller) -> str:
    return f"/v1/jobs/{(await api.create(RECURS))['id']}"


async def letter(api: Caller) -> str:
    """The id of a failed execution."""
    await api.create({"name": "broken", "function": "f", "max_retries": 0})
    worker = await api.world.worker()
    return str((await worker.run_one(failed())).leased.id)


async def create(api: Caller) -> Request:
    return "/v1/jobs", RECURS


async def create_workflow(api: Caller) -> Request:
    return "/v1/workflows", {"name": "nightly", "cron": "0 2 * * *", "steps": {"a": {"function": "f"}}}


async def create_batch(api: Caller) -> Request:
    return "/v1/jobs/batch", {"jobs": [RECURS, RECURS]}


async def replace_job(api: Caller) -> Request:
    return await job(api), RECURS | {"pool": "other"}


async def patch_job(api: Caller) -> Request:
    return await job(api), {"timeout": "1m"}


async def delete_job(api: Caller) -> Request:
    return await job(api), None


async def pause(api: Caller) -> Request:
    return f"{await job(api)}/pause", None


async def reset(api: Caller) -> Request:
    path = f"/v1/jobs/{await declared_job(api.world)}"
    await api.http.patch(path, json={"timeout": "1m"})
    return f"{path}/reset", None


async def adopt(api: Caller) -> Request:
    return f"/v1/jobs/{await declared_job(api.world)}/adopt?app=crm", None


async def resume(api: Caller) -> Request:
    path = await job(api)
    await api.http.post(f"{path}/pause")
    return f"{path}/resume", None


async def run(api: Caller) -> Request:
    return f"{await job(api)}/run", None


PAST: Final = {"from_at": "2020-01-01T00:00:00Z", "to_at": "2020-01-03T00:00:00Z"}


async def backfill(api: Caller) -> Request:
    return f"{await job(api)}/backfill", PAST


async def cancel_backfill(api: Caller) -> Request:
    path = await job(api)
    made = (await api.http.post(f"{path}/backfill", json=PAST)).json()
    return f"{path}/backfills/{made['id']}/cancel", None


async def cancel(api: Caller) -> Request:
    path = await job(api)
    id_ = (await api.http.post(f"{path}/run")).json()["execution_id"]
    return f"/v1/executions/{id_}/cancel", {"reason": "wrong region"}


async def retry(api: Caller) -> Request:
    return f"/v1/executions/{await letter(api)}/retry", None


async def blocked(api: Caller) -> str:
    return f"/v1/runs/{await blocked_run(api, await api.world.worker())}"


async def rerun_run(api: Caller) -> Request:
    path = await blocked(api)
    assert (await api.http.post(f"{path}/give-up", json={})).status_code == 200
    return f"{path}/rerun", {"reason": "fixed"}


async def retry_run(api: Caller) -> Request:
    return f"{await blocked(api)}/retry", {"reason": "fixed"}


async def skip_step(api: Caller) -> Request:
    return f"{await blocked(api)}/skip", {"step": "b"}


async def set_result(api: Caller) -> Request:
    return f"{await blocked(api)}/result", {"step": "b", "result": "s3cret-canary"}


async def give_up_run(api: Caller) -> Request:
    return f"{await blocked(api)}/give-up", {"reason": "too late"}


async def pause_run(api: Caller) -> Request:
    return f"{await blocked(api)}/pause", None


async def resume_run(api: Caller) -> Request:
    path = await blocked(api)
    await api.http.post(f"{path}/pause")
    return f"{path}/resume", None


async def cancel_run(api: Caller) -> Request:
    return f"{await blocked(api)}/cancel", None


async def approval(api: Caller) -> str:
    run = await start(api.world, await api.world.worker(), {"ok": step(target=Approve())})
    return f"/v1/runs/{run}/steps/ok"


async def approve(api: Caller) -> Request:
    return f"{await approval(api)}/approve", {"reason": "checked"}


async def reject(api: Caller) -> Request:
    return f"{await approval(api)}/reject", None


async def link(api: Caller) -> Request:
    settings = api.world.database.settings
    api.world.database.settings = settings.model_copy(update={"secret_key": generate_key()})
    return f"{await approval(api)}/link", {"expires_in": "1h"}


async def change_limits(api: Caller) -> Request:
    run = await start(api.world, await api.world.worker(), {"each": step(map=MapSpec(over=Raw(b"[1]")))})
    return f"/v1/runs/{run}/steps/each", {"concurrency": 5}


async def replay(api: Caller) -> Request:
    return "/v1/dead-letters/replay", {"ids": [await letter(api)], "reason": "fixed"}


async def discard(api: Caller) -> Request:
    return "/v1/dead-letters/discard", {"ids": [await letter(api)], "reason": "never mind"}


async def cancel_operation(api: Caller) -> Request:
    await letter(api)
    started = await api.http.post("/v1/dead-letters/replay", json={"all": True, "reason": "fixed"})
    return f"/v1/dead-letters/operations/{started.json()['id']}/cancel", None


async def start_many(api: Caller) -> Request:
    return "/v1/bulk", {
        "of": "jobs",
        "action": "pause",
        "ids": [(await job(api)).rpartition("/")[2]],
        "reason": "a release",
    }


async def stop_many(api: Caller) -> Request:
    path, body = await start_many(api)
    started = await api.http.post(path, json=body)
    return f"/v1/bulk/{started.json()['id']}/stop", None


async def undo_many(api: Caller) -> Request:
    path, _ = await stop_many(api)
    await bulk_pass(api.world.database, api.world.dispatcher)
    return path.replace("/stop", "/undo"), None


async def limit_pool(api: Caller) -> Request:
    return "/v1/pools/default", {"concurrency": 2}


async def create_key(api: Caller) -> Request:
    return "/v1/keys", {"name": "ci", "role": "viewer"}


async def key(api: Caller) -> str:
    return f"/v1/keys/{(await api.http.post('/v1/keys', json={'name': 'ci', 'role': 'viewer'})).json()['id']}"


async def rotate_key(api: Caller) -> Request:
    return f"{await key(api)}/rotate", {}


async def revoke_key(api: Caller) -> Request:
    return await key(api), None


async def set_secret(api: Caller) -> Request:
    return "/v1/secrets/stripe", {"value": "s3cret-canary"}


async def delete_secret(api: Caller) -> Request:
    await api.http.put("/v1/secrets/stripe", json={"value": "s3cret-canary"})
    return "/v1/secrets/stripe", None


CONNECTION: Final = {"kind": "redis", "url": "redis://ondot:s3cret-canary@127.0.0.1:1"}


async def set_connection(api: Caller) -> Request:
    return "/v1/connections/cache", CONNECTION


async def connection(api: Caller) -> str:
    assert (await api.http.put("/v1/connections/cache", json=CONNECTION)).status_code == 201
    return "/v1/connections/cache"


async def delete_connection(api: Caller) -> Request:
    return await connection(api), None


async def try_connection(api: Caller) -> Request:
    return f"{await connection(api)}/test", None


async def create_tenant(api: Caller) -> Request:
    return "/v1/tenants", {"name": "acme"}


async def tenant(api: Caller) -> str:
    assert (await api.http.post("/v1/tenants", json={"name": "acme"})).status_code == 201
    return "/v1/tenants/acme"


async def change_tenant(api: Caller) -> Request:
    return await tenant(api), {"weight": 2}


async def suspend_tenant(api: Caller) -> Request:
    return f"{await tenant(api)}/suspend", None


async def resume_tenant(api: Caller) -> Request:
    path = await tenant(api)
    await api.http.post(f"{path}/suspend")
    return f"{path}/resume", None


async def delete_tenant(api: Caller) -> Request:
    return await tenant(api), None


async def rotate_signing_secret(api: Caller) -> Request:
    return "/v1/webhooks/signing-secret/rotate", None


ADA: Final = {"email": "ada@example.com", "role": "viewer"}


async def create_user(api: Caller) -> Request:
    return "/v1/users", ADA


async def user(api: Caller) -> str:
    return f"/v1/users/{(await api.http.post('/v1/users', json=ADA)).json()['id']}"


async def change_user(api: Caller) -> Request:
    return await user(api), {"role": "operator"}


async def reset_user(api: Caller) -> Request:
    return f"{await user(api)}/reset", None


async def delete_user(api: Caller) -> Request:
    return await user(api), None


async def replay_event(api: Caller) -> Request:
    made = await api.create({"name": "paid", "function": "f", "schedule": {"event": {"type": "a.b"}}})
    event = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "a.b"}
    sent = await api.http.post("/v1/events", json=event, headers={"content-type": "application/cloudevents+json"})
    return f"/v1/events/{sent.json()['id']}/replay", {"job_id": made["id"]}


HOOK: Final = {"name": "github", "type": "com.github.push", "signature": "github"}


async def create_hook(api: Caller) -> Request:
    return "/v1/hooks", HOOK


async def hook(api: Caller) -> str:
    return f"/v1/hooks/{(await api.http.post('/v1/hooks', json=HOOK)).json()['id']}"


async def rotate_hook(api: Caller) -> Request:
    return f"{await hook(api)}/rotate", None


async def delete_hook(api: Caller) -> Request:
    return await hook(api), None


CHANNEL: Final = {"name": "ops", "email": {"to": ["ops@example.com"]}}


async def create_channel(api: Caller) -> Request:
    return "/v1/channels", CHANNEL


async def channel(api: Caller) -> str:
    assert (await api.http.post("/v1/channels", json=CHANNEL)).status_code == 201
    return "/v1/channels/ops"


async def change_channel(api: Caller) -> Request:
    return await channel(api), {"email": {"to": ["night@example.com"]}}


async def delete_channel(api: Caller) -> Request:
    return await channel(api), None


async def try_channel(api: Caller) -> Request:
    return f"{await channel(api)}/test?wait=0", None


SINK: Final = {"types": ["ondot.*"], "webhook": {"url": "https://example.com"}}


async def put_sink(api: Caller) -> Request:
    return "/v1/sinks/events", SINK


async def sink(api: Caller) -> str:
    assert (await api.http.put("/v1/sinks/events", json=SINK)).status_code == 200
    return "/v1/sinks/events"


async def delete_sink(api: Caller) -> Request:
    return await sink(api), None


async def pause_sink(api: Caller) -> Request:
    return f"{await sink(api)}/pause", None


async def resume_sink(api: Caller) -> Request:
    path = await sink(api)
    assert (await api.http.post(f"{path}/pause")).status_code == 200
    return f"{path}/resume", None


async def try_sink(api: Caller) -> Request:
    return f"{await sink(api)}/test?wait=0", None


PING: Final = {"name": "backup", "period": "1d"}


async def create_ping(api: Caller) -> Request:
    return "/v1/pings", PING


async def ping(api: Caller) -> str:
    assert (await api.http.post("/v1/pings", json=PING)).status_code == 201
    return "/v1/pings/backup"


async def rotate_ping(api: Caller) -> Request:
    return f"{await ping(api)}/rotate", None


async def delete_ping(api: Caller) -> Request:
    return await ping(api), None


VIEW: Final = {"name": "failed", "of": "executions", "q": "state:failed"}


async def create_view(api: Caller) -> Request:
    return "/v1/views", VIEW


async def view(api: Caller) -> str:
    made = await api.http.post("/v1/views", json=VIEW)
    assert made.status_code == 201
    return f"/v1/views/{made.json()['id']}"


async def change_view(api: Caller) -> Request:
    return await view(api), {"shared": True}


async def delete_view(api: Caller) -> Request:
    return await view(api), None


ALERT: Final = {"name": "bi", "when": {"failing": {"in_a_row": 3}}}


async def create_alert(api: Caller) -> Request:
    return "/v1/alerts", ALERT


async def alert(api: Caller) -> str:
    return f"/v1/alerts/{(await api.http.post('/v1/alerts', json=ALERT)).json()['id']}"


async def change_alert(api: Caller) -> Request:
    return await alert(api), {"for": "5m"}


async def mute_alert(api: Caller) -> Request:
    return f"{await alert(api)}/mute", {"for": "1h"}


async def delete_alert(api: Caller) -> Request:
    return await alert(api), None


async def incident(api: Caller) -> str:
    id_ = api.world.database.clock.new_id()
    await api.world.fetch(
        "INSERT INTO ondot.incident (id, alert_id, since, opened_at, tenant_no, kind, reason, alert, title)"
        " VALUES ($1, $1, ondot.clock(), ondot.clock(), 1, 'workers', 'default', 'workers', 'no worker')",
        id_,
    )
    return f"/v1/incidents/{id_}"


async def acknowledge_incident(api: Caller) -> Request:
    return f"{await incident(api)}/acknowledge", None


async def resolve_incident(api: Caller) -> Request:
    return f"{await incident(api)}/resolve", {"note": "restarted"}


CASES: Final[dict[str, tuple[Prepare, str]]] = {
    "POST /v1/jobs": (create, "job.create"),
    "POST /v1/jobs/batch": (create_batch, "job.create"),
    "POST /v1/workflows": (create_workflow, "job.create"),
    "PUT /v1/jobs/{id}": (replace_job, "job.update"),
    "PATCH /v1/jobs/{id}": (patch_job, "job.update"),
    "DELETE /v1/jobs/{id}": (delete_job, "job.delete"),
    "POST /v1/jobs/{id}/pause": (pause, "job.pause"),
    "POST /v1/jobs/{id}/resume": (resume, "job.resume"),
    "POST /v1/jobs/{id}/reset": (reset, "job.update"),
    "POST /v1/jobs/{id}/adopt": (adopt, "job.adopt"),
    "POST /v1/jobs/{id}/run": (run, "job.run"),
    "POST /v1/jobs/{id}/backfill": (backfill, "job.backfill"),
    "POST /v1/jobs/{id}/backfills/{backfill_id}/cancel": (cancel_backfill, "job.backfill_cancel"),
    "POST /v1/executions/{id}/cancel": (cancel, "execution.cancel"),
    "POST /v1/executions/{id}/retry": (retry, "execution.retry"),
    "POST /v1/runs/{id}/retry": (retry_run, "run.retry"),
    "POST /v1/runs/{id}/rerun": (rerun_run, "run.rerun"),
    "POST /v1/runs/{id}/skip": (skip_step, "run.skip"),
    "POST /v1/runs/{id}/steps/{name}/approve": (approve, "step.approve"),
    "POST /v1/runs/{id}/steps/{name}/reject": (reject, "step.reject"),
    "POST /v1/runs/{id}/steps/{name}/link": (link, "step.link"),
    "PATCH /v1/runs/{id}/steps/{name}": (change_limits, "step.limits"),
    "POST /v1/runs/{id}/result": (set_result, "run.result"),
    "POST /v1/runs/{id}/give-up": (give_up_run, "run.give_up"),
    "POST /v1/runs/{id}/pause": (pause_run, "run.pause"),
    "POST /v1/runs/{id}/resume": (resume_run, "run.resume"),
    "POST /v1/runs/{id}/cancel": (cancel_run, "run.cancel"),
    "POST /v1/dead-letters/replay": (replay, "dead_letter.replay"),
    "POST /v1/dead-letters/discard": (discard, "dead_letter.discard"),
    "POST /v1/dead-letters/operations/{id}/cancel": (cancel_operation, "dead_letter.stop"),
    "POST /v1/bulk": (start_many, "bulk.start"),
    "POST /v1/bulk/{id}/stop": (stop_many, "bulk.stop"),
    "POST /v1/bulk/{id}/undo": (undo_many, "bulk.undo"),
    "PATCH /v1/pools/{name}": (limit_pool, "pool.limits"),
    "POST /v1/keys": (create_key, "key.create"),
    "POST /v1/keys/{id}/rotate": (rotate_key, "key.rotate"),
    "DELETE /v1/keys/{id}": (revoke_key, "key.revoke"),
    "PUT /v1/secrets/{name}": (set_secret, "secret.set"),
    "DELETE /v1/secrets/{name}": (delete_secret, "secret.delete"),
    "POST /v1/webhooks/signing-secret/rotate": (rotate_signing_secret, "webhook.rotate"),
    "POST /v1/events/{id}/replay": (replay_event, "event.replay"),
    "POST /v1/hooks": (create_hook, "hook.create"),
    "POST /v1/hooks/{id}/rotate": (rotate_hook, "hook.rotate"),
    "DELETE /v1/hooks/{id}": (delete_hook, "hook.delete"),
    "POST /v1/views": (create_view, "view.create"),
    "PATCH /v1/views/{id}": (change_view, "view.update"),
    "DELETE /v1/views/{id}": (delete_view, "view.delete"),
    "POST /v1/pings": (create_ping, "ping.create"),
    "POST /v1/pings/{name}/rotate": (rotate_ping, "ping.rotate"),
    "DELETE /v1/pings/{name}": (delete_ping, "ping.delete"),
    "POST /v1/alerts": (create_alert, "alert.create"),
    "PATCH /v1/alerts/{id}": (change_alert, "alert.update"),
    "POST /v1/alerts/{id}/mute": (mute_alert, "alert.mute"),
    "DELETE /v1/alerts/{id}": (delete_alert, "alert.delete"),
    "POST /v1/incidents/{id}/acknowledge": (acknowledge_incident, "incident.acknowledge"),
    "POST /v1/incidents/{id}/resolve": (resolve_incident, "incident.resolve"),
    "PUT /v1/connections/{name}": (set_connection, "connection.set"),
    "DELETE /v1/connections/{name}": (delete_connection, "connection.delete"),
    "POST /v1/connections/{name}/test": (try_connection, "connection.test"),
    "PUT /v1/sinks/{name}": (put_sink, "sink.create"),
    "DELETE /v1/sinks/{name}": (delete_sink, "sink.delete"),
    "POST /v1/sinks/{name}/pause": (pause_sink, "sink.pause"),
    "POST /v1/sinks/{name}/resume": (resume_sink, "sink.resume"),
    "POST /v1/sinks/{name}/test": (try_sink, "sink.test"),
    "POST /v1/channels": (create_channel, "channel.create"),
    "PATCH /v1/channels/{name}": (change_channel, "channel.update"),
    "DELETE /v1/channels/{name}": (delete_channel, "channel.delete"),
    "POST /v1/channels/{name}/test": (try_channel, "channel.test"),
    "POST /v1/users": (create_user, "user.create"),
    "PATCH /v1/users/{id}": (change_user, "user.change"),
    "POST /v1/users/{id}/reset": (reset_user, "user.reset"),
    "DELETE /v1/users/{id}": (delete_user, "user.delete"),
    "POST /v1/tenants": (create_tenant, "tenant.create"),
    "PATCH /v1/tenants/{name}": (change_tenant, "tenant.update"),
    "POST /v1/tenants/{name}/suspend": (suspend_tenant, "tenant.suspend"),
    "POST /v1/tenants/{name}/resume": (resume_tenant, "tenant.resume"),
    "DELETE /v1/tenants/{name}": (delete_tenant, "tenant.delete"),
}

CHANGE_NOTHING: Final = {
    "POST /v1/events/try": "tries a filter",
    "POST /v1/jobs/wait": "waits for results",
    "POST /v1/alerts/preview": "looks at what holds now",
    "POST /v1/schedules/preview": "computes fires",
    "POST /v1/events": "thousands a second, each of which is its own record",
    "DELETE /v1/sessions": "the caller signs out; sign-ins are on record",
    "DELETE /v1/sessions/{id}": "the caller signs out; sign-ins are on record",
}

SHOWS_VALUES: Final = frozenset(
    {
        *("job.create", "job.update", "job.delete", "job.pause", "job.resume", "execution.cancel", "pool.limits"),
        *("run.retry", "run.rerun", "run.skip", "run.result"),
        *("tenant.create", "tenant.update", "tenant.suspend", "tenant.resume", "tenant.delete"),
    }
)
"""Actions whose entries have the values before or after the change; of a batch, the entry has the ids."""


@proves("T6")
async def test_every_route_that_changes_something_has_a_case(api: Caller) -> None:
    document = (await api.http.get("/openapi.json")).json()
    changing = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
        if method in {"post", "put", "patch", "delete"}
    }
    assert changing - CHANGE_NOTHING.keys() == CASES.keys()


@pytest.mark.parametrize("route", CASES)
@proves("T6")
async def test_a_change_is_on_record_with_its_caller_address_and_request(api: Caller, route: str) -> None:
    prepare, action = CASES[route]
    path, body = await prepare(api)
    before = {row["id"] for row in await api.world.fetch("SELECT id FROM ondot.audit")}
    method = route.split(maxsplit=1)[0]
    answer = await api.http.request(method, path, json=body, headers={"x-request-id": "the-request"})
    assert answer.is_success, answer.text
    rows = [row for row in await api.world.fetch("SELECT * FROM ondot.audit") if row["id"] not in before]
    assert {row["action"] for row in rows} == {action}
    for row in rows:
        assert (row["actor"], row["address"], row["request_id"]) == ("local", "127.0.0.1", "the-request")
        if action in SHOWS_VALUES and route != "POST /v1/jobs/batch":
            assert row["after"] is not None
        assert "s3cret-canary" not in str(dict(row))
    if "/tenants" in route:
        assert INSTALLATION in {row["tenant_no"] for row in rows}
        assert DEFAULT_TENANT not in {row["tenant_no"] for row in rows}


@proves("T6")
async def test_values_before_and_after_are_shown_without_payloads_and_headers(api: Caller) -> None:
    secret = "s3cret-canary"

    def body(secret: str) -> dict[str, Any]:
        target = {"http": {"url": "https://example.com/hook", "headers": {"X-Token": secret}}}
        return {"name": "call", "cron": "0 9 * * *", "target": target, "payload": {"card": secret}}

    created = await api.create(body(secret))
    path = f"/v1/jobs/{created['id']}"
    assert (await api.http.put(path, json=body(f"{secret}2") | {"timeout": "1m"})).is_success
    await api.http.post(f"{path}/pause")
    entries = {entry["action"]: entry for entry in (await api.get("/v1/audit"))["items"]}
    assert secret not in str(entries)
    assert entries["job.create"]["after"]["target"]["headers"] == {"X-Token": "•••"}
    update = entries["job.update"]
    assert (update["before"]["timeout_s"], update["after"]["timeout_s"]) == (None, 60.0)
    assert update["after"]["payload"] == "••• (25 bytes)"
    assert entries["job.pause"]["before"] == {"state": "ACTIVE"}
    assert entries["job.pause"]["after"] == {"state": "PAUSED"}
