"""The HTTP API as methods, for the SDK and the command line.

Answers are plain dicts; problems are raised as errors. A request that creates something can be sent several times and
creates it once (P2); see `requests`.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, cast
from urllib.parse import quote
from uuid import UUID, uuid4

from ondot.model.own_events import HOPS
from ondot.sdk.context import Context
from ondot.sdk.requests import Json, Requests, body_of, plain
from ondot.sdk.sync import Blocking

if TYPE_CHECKING:
    from ondot.sdk.sync_types import SyncClient

_UNSET: Final = object()

Id = UUID | str
Version = Literal["same", "current"]


class Client(Requests):
    """Can be used in any event loop, also in several at the same time: each gets its own connections."""

    async def me(self) -> Json:
        """The caller as the server knows it: name, role, tenant and rights."""
        return await self._call("GET", "/v1/me")

    async def now(self, limit: int = 50) -> Json:
        """What runs, waits and comes next, in one bounded answer."""
        return await self._call("GET", "/v1/now", query={"limit": limit})

    @property
    def sync(self) -> "SyncClient":
        """The same without asyncio: its methods block."""
        return cast("SyncClient", Blocking(self))

    # Jobs.

    async def create_job(self, body: Mapping[str, Any], idempotency_key: str | None = None) -> Json:
        return await self._make("/v1/jobs", body, idempotency_key)

    async def create_jobs(self, bodies: Sequence[Mapping[str, Any]], idempotency_key: str | None = None) -> Json:
        """Creates all jobs or none; `items` of the answer are in the same order."""
        return await self._make("/v1/jobs/batch", {"jobs": list(bodies)}, idempotency_key)

    async def wait_for_jobs(self, ids: Sequence[Id], wait: float = 25) -> Json:
        """Wait until the first of these jobs has ended, at most 25 s: `items` has how those that have ended did, and
        `unknown` the ids of jobs that do not exist. Handles call it for all jobs that the process awaits."""
        body = {"ids": [str(id_) for id_ in ids], "wait": wait}
        return self._answer(await self._send("POST", "/v1/jobs/wait", body=body, longer_s=wait))

    async def list_jobs(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/jobs", query=filters)

    async def get_job(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}")

    async def patch_job(
        self, id_: Id, changes: Mapping[str, Any], if_version: int | None = None, reason: str | None = None
    ) -> Json:
        """Change the named fields (RFC 7396: null removes one); with `if_version`, only if it has that version."""
        headers = {} if if_version is None else {"if-match": f'"{if_version}"'}
        return await self._call(
            "PATCH", f"/v1/jobs/{_segment(id_)}", body=changes, headers=headers, query={"reason": reason}
        )

    async def delete_job(self, id_: Id, reason: str | None = None) -> Json:
        return await self._call("DELETE", f"/v1/jobs/{_segment(id_)}", query={"reason": reason})

    async def run_job(
        self, id_: Id, payload: Any = _UNSET, idempotency_key: str | None = None, reason: str | None = None
    ) -> Json:
        """Start one execution now, with the job's payload or another one."""
        body = {} if payload is _UNSET else {"payload": payload}
        return await self._make(f"/v1/jobs/{_segment(id_)}/run", body, idempotency_key, {"reason": reason})

    async def declared_job(self, id_: Id) -> Json:
        """What the code declares of a job, what was changed by hand, and what is in force, by field."""
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/declared")

    async def reset_job(self, id_: Id, reason: str | None = None, *, dry_run: bool = False) -> Json:
        """Go back to what the code declares."""
        query = {"reason": reason, "dry_run": dry_run or None}
        return await self._call("POST", f"/v1/jobs/{_segment(id_)}/reset", query=query)

    async def adopt_job(self, id_: Id, app: str, reason: str | None = None) -> Json:
        """Hand a job over to another app."""
        return await self._call("POST", f"/v1/jobs/{_segment(id_)}/adopt", query={"app": app, "reason": reason})

    async def pause_job(self, id_: Id, reason: str | None = None) -> Json:
        return await self._call("POST", f"/v1/jobs/{_segment(id_)}/pause", query={"reason": reason})

    async def resume_job(
        self, id_: Id, missed: Literal["skip", "once", "all"] | None = None, reason: str | None = None
    ) -> Json:
        """Fire again. `missed` decides about the fires of the pause; by default they are skipped."""
        body = None if missed is None else {"missed": missed}
        return await self._call("POST", f"/v1/jobs/{_segment(id_)}/resume", body=body, query={"reason": reason})

    async def job_status(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/status")

    async def next_fires(self, id_: Id, n: int = 10) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/next", query={"n": n})

    async def explain_job(self, id_: Id, at: datetime | str | None = None) -> Json:
        """Why it is not running, and when it may start; with `at`, what happened to the fire at that instant."""
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/explain", query={"at": at})

    async def job_executions(self, id_: Id, **filters: Any) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/executions", query=filters)

    async def backfill_job(
        self,
        id_: Id,
        from_at: datetime | str,
        to_at: datetime | str,
        *,
        order: Literal["oldest", "newest"] = "oldest",
        concurrency: int = 1,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Json:
        """Run the fires of a past range; `dry_run` only counts them."""
        body = {
            "from_at": plain(from_at),
            "to_at": plain(to_at),
            "order": order,
            "concurrency": concurrency,
            "dry_run": dry_run,
        }
        return await self._make(f"/v1/jobs/{_segment(id_)}/backfill", body, idempotency_key)

    async def list_backfills(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/backfills")

    async def get_backfill(self, id_: Id, backfill_id: Id) -> Json:
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/backfills/{_segment(backfill_id)}")

    async def cancel_backfill(self, id_: Id, backfill_id: Id) -> Json:
        """Runs that have not started are dropped; running ones may finish."""
        return await self._call("POST", f"/v1/jobs/{_segment(id_)}/backfills/{_segment(backfill_id)}/cancel")

    async def preview(self, body: Mapping[str, Any]) -> Json:
        return await self._call("POST", "/v1/schedules/preview", body=body)

    async def list_misses(self, id_: Id, limit: int = 50) -> Json:
        """When a job did not meet what is expected of it, latest first."""
        return await self._call("GET", f"/v1/jobs/{_segment(id_)}/misses", query={"limit": limit})

    async def get_report(self, since: str = "24h", until: str | None = None, zone: str | None = None) -> Json:
        """What went wrong since a duration ago, `yesterday` or an instant, each with the call that repairs it."""
        return await self._call("GET", "/v1/report", query={"since": since, "until": until, "zone": zone})

    # Workflows.

    async def create_workflow(self, body: Mapping[str, Any], idempotency_key: str | None = None) -> Json:
        """A job with `steps`."""
        return await self._make("/v1/workflows", body, idempotency_key)

    async def list_workflows(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/workflows", query=filters)

    async def get_workflow(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/workflows/{_segment(id_)}")

    # Runs of workflows.

    async def explain_step(self, id_: Id, step: str) -> Json:
        """Why a step of a run does not run. The run itself: `explain_execution`."""
        return await self._call("GET", f"/v1/runs/{_segment(id_)}/steps/{_segment(step)}/explain")

    async def list_runs(self, job_id: Id | None = None, **filters: Any) -> Json:
        path = "/v1/runs" if job_id is None else f"/v1/workflows/{_segment(job_id)}/runs"
        return await self._call("GET", path, query=filters)

    async def get_run(self, id_: Id) -> Json:
        """A run with the states, results and times of its steps."""
        return await self._call("GET", f"/v1/runs/{_segment(id_)}")

    async def list_steps(self, id_: Id, **filters: Any) -> Json:
        return await self._call("GET", f"/v1/runs/{_segment(id_)}/steps", query=filters)

    async def get_step(self, id_: Id, step: str) -> Json:
        return await self._call("GET", f"/v1/runs/{_segment(id_)}/steps/{_segment(step)}")

    async def list_items(self, id_: Id, step: str, **filters: Any) -> Json:
        """The items of a mapped step; `state="FAILED"`: with the error of each."""
        return await self._call("GET", f"/v1/runs/{_segment(id_)}/steps/{_segment(step)}/items", query=filters)

    async def decide_step(self, id_: Id, step: str, *, approve: bool, reason: str | None = None) -> Json:
        """Approve or reject a step that waits for a person."""
        path = f"/v1/runs/{_segment(id_)}/steps/{_segment(step)}/{'approve' if approve else 'reject'}"
        return await self._call("POST", path, body=_leave_out_none(reason=reason))

    async def make_approval_link(self, id_: Id, step: str, expires_in: str | None = None) -> Json:
        """A link by which a person decides the step without signing in, once."""
        path = f"/v1/runs/{_segment(id_)}/steps/{_segment(step)}/link"
        return await self._call("POST", path, body=_leave_out_none(expires_in=expires_in))

    async def change_run(
        self,
        id_: Id,
        action: Literal["retry", "rerun", "skip", "result", "give-up", "pause", "resume", "cancel"],
        fields: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        reason: str | None = None,
    ) -> Json:
        """Repair or control a run; `fields` as the route takes them, such as `{"from": ["load"]}`."""
        path = f"/v1/runs/{_segment(id_)}/{action}"
        return await self._make(path, dict(fields or {}) | _leave_out_none(reason=reason), idempotency_key)

    # Events.

    async def send_event(self, event: Mapping[str, Any], ctx: Context | None = None) -> Json:
        """Send a CloudEvent. `id` and `specversion` are added if they are missing; the same event may be sent again.

        `ctx`: of the function that sends it. Functions that start each other in a circle then end (`ondothops`).
        """
        whole = _whole_event(event, ctx)
        kind = {"content-type": "application/cloudevents+json"}
        return await self._call("POST", "/v1/events", body=whole, headers=kind)

    async def send_events(self, events: Sequence[Mapping[str, Any]], ctx: Context | None = None) -> Json:
        """Send up to 1,000 events, all or none."""
        whole = [_whole_event(event, ctx) for event in events]
        kind = {"content-type": "application/cloudevents-batch+json"}
        return await self._call("POST", "/v1/events", body=whole, headers=kind)

    async def list_events(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/events", query=filters)

    async def get_event(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/events/{_segment(id_)}")

    async def try_filter(self, body: Mapping[str, Any]) -> Json:
        """Which past events a rule (`event`) matches, and of the others the condition that fails."""
        return await self._call("POST", "/v1/events/try", body=body)

    async def replay_event(
        self, id_: Id, job_id: Id, idempotency_key: str | None = None, reason: str | None = None
    ) -> Json:
        """Start a job again with a past event."""
        body = {"job_id": str(job_id), **({} if reason is None else {"reason": reason})}
        return await self._make(f"/v1/events/{_segment(id_)}/replay", body, idempotency_key)

    # Executions.

    async def list_executions(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/executions", query=filters)

    async def get_execution(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/executions/{_segment(id_)}")

    async def execution_logs(self, id_: Id, cursor: str | None = None, *, wait: float = 0, **filters: Any) -> Json:
        """Lines after the cursor. If there are none yet, the server waits up to `wait` seconds (30 at most)."""
        query = {"cursor": cursor, "wait": wait or None, **filters}
        return await self._call("GET", f"/v1/executions/{_segment(id_)}/logs", query=query, longer_s=wait)

    def whole_log(self, id_: Id, *, attempt: int | None = None, q: str | None = None) -> AsyncIterator[bytes]:
        """The whole text of an attempt, by default the latest, piece by piece."""
        query = {"whole": True, "attempt": attempt, "q": q}
        return self._pieces(f"/v1/executions/{_segment(id_)}/logs", query)

    async def execution_result(self, id_: Id) -> Any:
        """The whole result of an ended execution, of any size; None if it has none."""
        return json.loads(b"".join([piece async for piece in self.result_text(id_)]))

    def result_text(self, id_: Id) -> AsyncIterator[bytes]:
        """The same as JSON text, piece by piece."""
        return self._pieces(f"/v1/executions/{_segment(id_)}/result")

    async def cancel_execution(self, id_: Id, reason: str | None = None) -> Json:
        """End it: at once if it waits. A running one is asked to stop, and stopped by force after its grace period."""
        return await self._call("POST", f"/v1/executions/{_segment(id_)}/cancel", body=_leave_out_none(reason=reason))

    async def retry_execution(
        self,
        id_: Id,
        payload: Any = _UNSET,
        *,
        version: Version | None = None,
        reason: str | None = None,
        idempotency_key: str | None = None,
    ) -> Json:
        """Run it again: start the next attempt now if it waits for one; create a new execution if it has ended."""
        body = _leave_out_none(version=version, reason=reason, payload=payload)
        return await self._make(f"/v1/executions/{_segment(id_)}/retry", body, idempotency_key)

    async def explain_execution(self, id_: Id) -> Json:
        """Why it is not running, and when it may start."""
        return await self._call("GET", f"/v1/executions/{_segment(id_)}/explain")

    # Dead letters.

    async def list_dead_letters(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/dead-letters", query=filters)

    async def dead_letter_groups(self, **filters: Any) -> Json:
        """Open dead letters, grouped by similar errors."""
        return await self._call("GET", "/v1/dead-letters/groups", query=filters)

    async def get_dead_letter(self, id_: Id) -> Json:
        """`id_` is the id of its execution."""
        return await self._call("GET", f"/v1/dead-letters/{_segment(id_)}")

    async def replay_dead_letters(
        self,
        ids: Sequence[Id] | None = None,
        *,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the field's name
        all: bool = False,  # noqa: A002 - the field's name
        payload: Any = _UNSET,
        version: Version | None = None,
        rate: int | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Json:
        """Run dead letters again: by `ids` at once, by `filter` or `all` in the background; `dry_run` only counts."""
        which = _letters(ids, filter, all, rate, dry_run)
        body = which | _leave_out_none(payload=payload, version=version, reason=reason)
        return await self._make("/v1/dead-letters/replay", body, idempotency_key)

    async def discard_dead_letters(
        self,
        ids: Sequence[Id] | None = None,
        *,
        reason: str,
        filter: Mapping[str, Any] | None = None,  # noqa: A002 - the field's name
        all: bool = False,  # noqa: A002 - the field's name
        rate: int | None = None,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Json:
        """Close dead letters without a run, with the reason; their executions stay in the history."""
        body = _letters(ids, filter, all, rate, dry_run) | {"reason": reason}
        return await self._make("/v1/dead-letters/discard", body, idempotency_key)

    async def dead_letter_operations(self, **paging: Any) -> Json:
        """Replays and discards by filter, and their progress."""
        return await self._call("GET", "/v1/dead-letters/operations", query=paging)

    async def get_dead_letter_operation(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/dead-letters/operations/{_segment(id_)}")

    async def cancel_dead_letter_operation(self, id_: Id) -> Json:
        """Dead letters that are already done stay done."""
        return await self._call("POST", f"/v1/dead-letters/operations/{_segment(id_)}/cancel")

    # Operations on many at once.

    async def start_bulk(self, body: Mapping[str, Any], idempotency_key: str | None = None) -> Json:
        """Change many executions, jobs, dead letters or runs: by `ids`, or all that match a query `q`."""
        return await self._make("/v1/bulk", body, idempotency_key)

    async def list_bulks(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/bulk", query=filters)

    async def get_bulk(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/bulk/{_segment(id_)}")

    async def list_bulk_items(self, id_: Id, **filters: Any) -> Json:
        """Results by item: those that were refused, with the reason, and those that were changed."""
        return await self._call("GET", f"/v1/bulk/{_segment(id_)}/items", query=filters)

    async def stop_bulk(self, id_: Id) -> Json:
        """Items that are already changed stay changed."""
        return await self._call("POST", f"/v1/bulk/{_segment(id_)}/stop")

    async def undo_bulk(self, id_: Id, idempotency_key: str | None = None) -> Json:
        return await self._make(f"/v1/bulk/{_segment(id_)}/undo", {}, idempotency_key)

    def export(self, path: str, format: str = "csv", **filters: Any) -> AsyncIterator[bytes]:  # noqa: A002
        """A whole list as a file, csv or jsonl: `export("executions", state="FAILED")`."""
        return self._pieces(f"/v1/{path}", filters | {"format": format})

    # The fleet, pools, and the audit log.

    async def list_nodes(self) -> Json:
        """Scheduler nodes with the partitions they own."""
        return await self._call("GET", "/v1/nodes")

    async def list_workers(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/workers", query=filters)

    async def list_functions(self, **filters: Any) -> Json:
        """Functions that workers have registered. Filters: `q`, `app`, `limit`, `cursor`."""
        return await self._call("GET", "/v1/functions", query=filters)

    async def get_function(self, name: str) -> Json:
        return await self._call("GET", f"/v1/functions/{_segment(name)}")

    async def list_pools(self) -> Json:
        return await self._call("GET", "/v1/pools")

    async def get_pool(self, name: str) -> Json:
        return await self._call("GET", f"/v1/pools/{_segment(name)}")

    async def scale_of_pool(self, name: str) -> Json:
        """How many workers a pool should have now, and why."""
        return await self._call("GET", f"/v1/pools/{_segment(name)}/scale")

    async def forecast(self, **filters: Any) -> Json:
        """What becomes due, by pool and bucket. Filters: `from`, `to`, `bucket`, `pool`."""
        return await self._call("GET", "/v1/forecast", query=filters)

    async def patch_pool(self, name: str, changes: Mapping[str, Any]) -> Json:
        """Set its `concurrency` and `rate`: a limit that is left out stays, None removes it."""
        return await self._call("PATCH", f"/v1/pools/{_segment(name)}", body=changes)

    async def skipped_fires(self, **filters: Any) -> Json:
        """Fires of all jobs that did not run, latest first."""
        return await self._call("GET", "/v1/skipped-fires", query=filters)

    async def list_audit(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/audit", query=filters)

    def export_audit(self, **how: Any) -> AsyncIterator[bytes]:
        """All matching entries as a file, newest first; `format` is jsonl or csv."""
        return self._pieces("/v1/audit/export", how)

    async def verify_audit(self, **how: Any) -> Json:
        """Whether no entry is missing, changed, inserted or reordered: `intact`, and `faults` if not."""
        return await self._call("GET", "/v1/audit/verify", query=how)

    # API keys.

    async def create_key(
        self, body: Mapping[str, Any], idempotency_key: str | None = None, reason: str | None = None
    ) -> Json:
        """`key` of the answer is shown only now."""
        return await self._make("/v1/keys", body, idempotency_key, {"reason": reason})

    async def list_keys(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/keys", query=filters)

    async def get_key(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/keys/{_segment(id_)}")

    async def rotate_key(
        self, id_: Id, overlap: float | str = "24h", idempotency_key: str | None = None, reason: str | None = None
    ) -> Json:
        """A new key with the same rights; the old one works until the overlap is over."""
        path = f"/v1/keys/{_segment(id_)}/rotate"
        return await self._make(path, {"overlap": overlap}, idempotency_key, {"reason": reason})

    async def revoke_key(self, id_: Id, force: bool = False, reason: str | None = None) -> Json:
        query = {"force": force or None, "reason": reason}
        return await self._call("DELETE", f"/v1/keys/{_segment(id_)}", query=query)

    async def get_history(self) -> Json:
        """How much history there is, what stays and why, and what goes next; for owners."""
        return await self._call("GET", "/v1/history")

    # Tenants, for owners.

    async def create_tenant(
        self, body: Mapping[str, Any], idempotency_key: str | None = None, reason: str | None = None
    ) -> Json:
        return await self._make("/v1/tenants", body, idempotency_key, {"reason": reason})

    async def list_tenants(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/tenants", query=filters)

    async def get_tenant(self, name: str) -> Json:
        return await self._call("GET", f"/v1/tenants/{_segment(name)}")

    async def get_usage(self, name: str) -> Json:
        return await self._call("GET", f"/v1/tenants/{_segment(name)}/usage")

    async def patch_tenant(
        self, name: str, changes: Mapping[str, Any], if_version: int | None = None, reason: str | None = None
    ) -> Json:
        """Change its `weight`, `pools` or `quotas`: what is left out stays, a quota that is None is removed."""
        headers = {} if if_version is None else {"if-match": f'"{if_version}"'}
        path = f"/v1/tenants/{_segment(name)}"
        return await self._call("PATCH", path, body=changes, headers=headers, query={"reason": reason})

    async def suspend_tenant(self, name: str, reason: str | None = None) -> Json:
        return await self._call("POST", f"/v1/tenants/{_segment(name)}/suspend", query={"reason": reason})

    async def resume_tenant(self, name: str, reason: str | None = None) -> Json:
        return await self._call("POST", f"/v1/tenants/{_segment(name)}/resume", query={"reason": reason})

    async def count_tenant(self, name: str) -> Json:
        """`counts`: what a deletion would remove."""
        return await self._call("DELETE", f"/v1/tenants/{_segment(name)}", query={"dry_run": True})

    async def delete_tenant(self, name: str, reason: str | None = None) -> Json:
        return await self._call("DELETE", f"/v1/tenants/{_segment(name)}", query={"reason": reason})

    # Secrets. No call returns a value.

    async def get_signing_secret(self, host: str) -> Json:
        """The secrets that sign calls to a host."""
        return await self._call("GET", "/v1/webhooks/signing-secret", query={"host": host})

    async def rotate_signing_secret(self, fields: Mapping[str, Any] | None = None) -> Json:
        """Give every host a new secret; the old one signs beside it for the `overlap`."""
        return await self._call("POST", "/v1/webhooks/signing-secret/rotate", body=fields or {})

    async def create_hook(
        self, body: Mapping[str, Any], idempotency_key: str | None = None, reason: str | None = None
    ) -> Json:
        """`token`, `url` and `secret` of the answer are shown only now."""
        return await self._make("/v1/hooks", body, idempotency_key, {"reason": reason})

    async def list_hooks(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/hooks", query=filters)

    async def get_hook(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/hooks/{_segment(id_)}")

    async def rotate_hook(
        self,
        id_: Id,
        fields: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        reason: str | None = None,
    ) -> Json:
        """A new token; or, with `secret`, a new signing secret. The one before works for the `overlap`."""
        return await self._make(f"/v1/hooks/{_segment(id_)}/rotate", fields or {}, idempotency_key, {"reason": reason})

    async def delete_hook(self, id_: Id, reason: str | None = None) -> Json:
        return await self._call("DELETE", f"/v1/hooks/{_segment(id_)}", query={"reason": reason})

    async def put_connection(self, name: str, fields: Mapping[str, Any], reason: str | None = None) -> Json:
        """Create a connection, or replace its content: `kind`, the address, and credentials."""
        path = f"/v1/connections/{_segment(name)}"
        return await self._call("PUT", path, body=fields, query={"reason": reason})

    async def list_connections(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/connections", query=filters)

    async def get_connection(self, name: str) -> Json:
        """One connection, with jobs that name it. Credentials are never shown."""
        return await self._call("GET", f"/v1/connections/{_segment(name)}")

    async def delete_connection(self, name: str, *, force: bool = False, reason: str | None = None) -> Json:
        """Refused while jobs name it, unless `force`."""
        query = {"reason": reason, "force": "true" if force else None}
        return await self._call("DELETE", f"/v1/connections/{_segment(name)}", query=query)

    async def test_connection(self, name: str) -> Json:
        """Connect and log in, and send nothing; `test_error` says what is wrong."""
        return await self._call("POST", f"/v1/connections/{_segment(name)}/test", body={})

    async def create_channel(
        self, body: Mapping[str, Any], idempotency_key: str | None = None, reason: str | None = None
    ) -> Json:
        return await self._make("/v1/channels", body, idempotency_key, {"reason": reason})

    async def list_channels(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/channels", query=filters)

    async def get_channel(self, name: str) -> Json:
        """With its latest deliveries."""
        return await self._call("GET", f"/v1/channels/{_segment(name)}")

    async def update_channel(self, name: str, fields: Mapping[str, Any], reason: str | None = None) -> Json:
        return await self._call("PATCH", f"/v1/channels/{_segment(name)}", body=fields, query={"reason": reason})

    async def delete_channel(self, name: str, reason: str | None = None) -> Json:
        return await self._call("DELETE", f"/v1/channels/{_segment(name)}", query={"reason": reason})

    async def send_test_message(self, name: str) -> Json:
        """Send a test message; returns its delivery."""
        return await self._call("POST", f"/v1/channels/{_segment(name)}/test", body={})

    async def put_sink(self, name: str, body: Mapping[str, Any], reason: str | None = None) -> Json:
        """Create or replace a sink: `types`, and where they are sent."""
        return await self._call("PUT", f"/v1/sinks/{_segment(name)}", body=body, query={"reason": reason})

    async def list_sinks(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/sinks", query=filters)

    async def get_sink(self, name: str) -> Json:
        return await self._call("GET", f"/v1/sinks/{_segment(name)}")

    async def delete_sink(self, name: str, reason: str | None = None) -> Json:
        return await self._call("DELETE", f"/v1/sinks/{_segment(name)}", query={"reason": reason})

    async def pause_sink(self, name: str, reason: str | None = None) -> Json:
        return await self._call("POST", f"/v1/sinks/{_segment(name)}/pause", body={}, query={"reason": reason})

    async def resume_sink(self, name: str, reason: str | None = None) -> Json:
        return await self._call("POST", f"/v1/sinks/{_segment(name)}/resume", body={}, query={"reason": reason})

    async def send_test_event(self, name: str) -> Json:
        """Send an event through a sink, after those that wait; returns how it went."""
        return await self._call("POST", f"/v1/sinks/{_segment(name)}/test", body={})

    async def create_view(
        self, body: Mapping[str, Any], idempotency_key: str | None = None, reason: str | None = None
    ) -> Json:
        """Save a query under a name: `name`, `of`, `q`, `shared`."""
        return await self._make("/v1/views", body, idempotency_key, {"reason": reason})

    async def find(self, q: str, kinds: Sequence[str] = (), *, exact: bool = False, limit: int | None = None) -> Json:
        """What a text may mean: a name, a key, an id, or its first four characters and more."""
        query = {"q": q, "kinds": ",".join(kinds) or None, "exact": "true" if exact else None, "limit": limit}
        return await self._call("GET", "/v1/find", query=query)

    async def list_views(self, **filters: Any) -> Json:
        """The caller's own and the shared ones."""
        return await self._call("GET", "/v1/views", query=filters)

    async def get_view(self, id_: Id) -> Json:
        return await self._call("GET", f"/v1/views/{_segment(id_)}")

    async def update_view(self, id_: Id, fields: Mapping[str, Any], reason: str | None = None) -> Json:
        return await self._call("PATCH", f"/v1/views/{_segment(id_)}", body=fields, query={"reason": reason})

    async def delete_view(self, id_: Id, reason: str | None = None) -> Json:
        return await self._call("DELETE", f"/v1/views/{_segment(id_)}", query={"reason": reason})

    async def create_ping(
        self, body: Mapping[str, Any], idempotency_key: str | None = None, reason: str | None = None
    ) -> Json:
        """`token` and `url` of the answer are shown only now."""
        return await self._make("/v1/pings", body, idempotency_key, {"reason": reason})

    async def list_pings(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/pings", query=filters)

    async def get_ping(self, name: str) -> Json:
        """With its latest calls."""
        return await self._call("GET", f"/v1/pings/{_segment(name)}")

    async def rotate_ping(self, name: str, reason: str | None = None) -> Json:
        return await self._call("POST", f"/v1/pings/{_segment(name)}/rotate", body={}, query={"reason": reason})

    async def delete_ping(self, name: str, reason: str | None = None) -> Json:
        return await self._call("DELETE", f"/v1/pings/{_segment(name)}", query={"reason": reason})

    async def create_alert(
        self, body: Mapping[str, Any], idempotency_key: str | None = None, reason: str | None = None
    ) -> Json:
        return await self._make("/v1/alerts", body, idempotency_key, {"reason": reason})

    async def preview_alert(self, body: Mapping[str, Any]) -> Json:
        """What this alert would find now. Nothing is stored."""
        return await self._call("POST", "/v1/alerts/preview", body=body)

    async def list_alerts(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/alerts", query=filters)

    async def get_alert(self, alert: Id) -> Json:
        """By its id or its name."""
        return await self._call("GET", f"/v1/alerts/{_segment(alert)}")

    async def update_alert(self, alert: Id, patch: Mapping[str, Any], reason: str | None = None) -> Json:
        """Each field of the patch replaces the whole field."""
        return await self._call("PATCH", f"/v1/alerts/{_segment(alert)}", body=patch, query={"reason": reason})

    async def mute_alert(self, alert: Id, fields: Mapping[str, Any], reason: str | None = None) -> Json:
        """`for` or `until`."""
        return await self._call("POST", f"/v1/alerts/{_segment(alert)}/mute", body=fields, query={"reason": reason})

    async def delete_alert(self, alert: Id, reason: str | None = None) -> Json:
        return await self._call("DELETE", f"/v1/alerts/{_segment(alert)}", query={"reason": reason})

    async def list_incidents(self, **filters: Any) -> Json:
        """Open ones first."""
        return await self._call("GET", "/v1/incidents", query=filters)

    async def get_incident(self, id_: Id) -> Json:
        """With its causes, and its messages and whether they arrived."""
        return await self._call("GET", f"/v1/incidents/{_segment(id_)}")

    async def acknowledge_incident(
        self, id_: Id, fields: Mapping[str, Any] | None = None, reason: str | None = None
    ) -> Json:
        """No further reminders."""
        path = f"/v1/incidents/{_segment(id_)}/acknowledge"
        return await self._call("POST", path, body=fields or {}, query={"reason": reason})

    async def resolve_incident(
        self, id_: Id, fields: Mapping[str, Any] | None = None, reason: str | None = None
    ) -> Json:
        """End it by hand."""
        path = f"/v1/incidents/{_segment(id_)}/resolve"
        return await self._call("POST", path, body=fields or {}, query={"reason": reason})

    async def put_secret(self, name: str, fields: Mapping[str, Any]) -> Json:
        """Create a secret, or change its `value`, `hosts`, `functions` or `pools`; what is left out stays."""
        return await self._call("PUT", f"/v1/secrets/{_segment(name)}", body=fields)

    async def list_secrets(self, **filters: Any) -> Json:
        return await self._call("GET", "/v1/secrets", query=filters)

    async def get_secret(self, name: str) -> Json:
        return await self._call("GET", f"/v1/secrets/{_segment(name)}")

    async def delete_secret(self, name: str) -> Json:
        return await self._call("DELETE", f"/v1/secrets/{_segment(name)}")

    # The server.

    async def ready(self) -> Json:
        """The answer of `/readyz`, with `ready` true or false. Raises Unavailable only if no server answers."""
        response = await self._send("GET", "/readyz")
        answer = body_of(response)
        return {"ready": response.status_code == 200, **(answer if isinstance(answer, dict) else {})}


def _segment(id_: Id) -> str:
    return quote(str(id_), safe="")


def _whole_event(event: Mapping[str, Any], ctx: Context | None) -> Json:
    whole = {"specversion": "1.0", "id": str(uuid4()), **event}
    return whole if ctx is None or ctx.hops is None else {HOPS: ctx.hops, **whole}


def _leave_out_none(**fields: Any) -> Json:
    """The fields that were given; a payload of None counts as given."""
    return {
        name: value
        for name, value in fields.items()
        if value is not _UNSET and (value is not None or name == "payload")
    }


def _letters(
    ids: Sequence[Id] | None, filter_: Mapping[str, Any] | None, all_: bool, rate: int | None, dry_run: bool
) -> Json:
    bounds = None if filter_ is None else {name: plain(value) for name, value in filter_.items() if value is not None}
    which = _leave_out_none(ids=None if ids is None else [str(id_) for id_ in ids], filter=bounds, rate=rate)
    return which | ({"all": True} if all_ else {}) | ({"dry_run": True} if dry_run else {})
