"""Jobs, executions, backfills and previews as tables, made from the API's answers and a `now`, without a request.

Tables fit 80 columns and show ids in full: the name is above the id, and the distance of a time above the time.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ondot.cli.output import (
    Json,
    card,
    cell,
    compact,
    exact,
    instant_of,
    lasting,
    relative,
    rough,
    state_cell,
    table,
    time_cell,
    time_line,
    took,
)

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def job_table(jobs: Iterable[Json], now: datetime) -> "Table":
    drawn = table("JOB", "STATE", "NEXT FIRE", whole=("STATE", "NEXT FIRE"), ids="JOB")
    for job in jobs:
        why = job.get("state_reason")
        drawn.add_row(
            cell(
                job["name"],
                job["id"],
                job["schedule_in_words"],
                f"{job['state'].lower()}: {why}" if why else None,
                style="bold",
            ),
            state_cell(job["state"]),
            time_cell(job["next_fire_at"], now),
        )
    return drawn


def job_card(job: Json, now: datetime) -> "Table":
    retry = job["retry"]
    return card(
        [
            ("job", cell(job["name"], style="bold")),
            ("id", job["id"]),
            ("state", state_cell(job["state"], job.get("state_reason"))),
            ("schedule", job["schedule_in_words"]),
            ("next fire", time_line(job["next_fire_at"], now)),
            ("target", target_in_words(job["target"])),
            ("payload", compact(job["payload"])),
            ("pool", f"{job['pool']}, priority {job['priority']}"),
            ("retries", f"{retry['max_retries']}, {retry['backoff']} from {retry['initial']:g} s"),
            ("timeout", timeout_in_words(job)),
            *limit_facts(job),
            ("depends on", ", ".join(job["depends_on"]) or None),
            ("key", job["key"]),
            ("labels", ", ".join(f"{name}:{value}" for name, value in job["labels"].items()) or None),
            ("version", str(job["version"])),
            ("last changed", time_line(job["updated_at"], now)),
        ]
    )


def timeout_in_words(job: Json) -> str:
    from ondot.model.job import HTTP_TIMEOUT_S

    if job["timeout"] is not None:
        return f"{job['timeout']:g} s"
    return f"{HTTP_TIMEOUT_S:g} s (default)" if "http" in job["target"] else "none"


def limit_facts(job: Json) -> Iterator[tuple[str, str | None]]:
    """The limits of a job that are not the default."""
    from ondot.model.job import CANCEL_GRACE_S

    overlap, key = job.get("overlap"), job.get("concurrency_key")
    if overlap not in {None, "allow"}:
        yield "overlap", overlap
    yield "concurrency", _at_once(job.get("concurrency"))
    yield "rate", rate_in_words(job.get("rate"))
    if key:
        limits = [_at_once(job.get("key_concurrency")), rate_in_words(job.get("key_rate"))]
        yield "limit by key", ", ".join([key, *(limit for limit in limits if limit)])
    yield "order key", job.get("order_key")
    yield "start deadline", _seconds(job.get("start_deadline"), "after it was due")
    if job.get("cancel_grace") not in {None, CANCEL_GRACE_S}:
        yield "cancel grace", _seconds(job.get("cancel_grace"), "")
    for field in ("unique", "debounce", "throttle"):
        yield field, _in_words(job.get(field))
    expect = job.get("expect") or {}
    yield (
        "expects",
        ", ".join(
            f"{name.replace('_', ' ')} {value if name == 'end_by' else _duration(value)}"
            for name, value in expect.items()
            if value is not None
        )
        or None,
    )
    failures = job.get("pause_after_failures")
    yield "pauses", f"after {failures} failures in a row" if failures else None


def rate_in_words(rate: Json | None) -> str | None:
    if not rate:
        return None
    burst = f", up to {rate['burst']} at once" if rate["burst"] > 1 else ""
    return f"{rate['limit']:,} in {_duration(rate['per'])}{burst}"


def skipped_table(ranges: Iterable[Json], now: datetime) -> "Table":
    """Fires of a job that were skipped."""
    from ondot.words.job import WHY_SKIPPED

    drawn = table("SKIPPED", "FROM", "TO", "WHY", whole=("SKIPPED", "FROM", "TO"))
    for entry in ranges:
        count = entry["count"]
        fires = "many fires" if count is None else f"{count:,} fire{'' if count == 1 else 's'}"
        from_at, to_at = (instant_of(entry[end]) for end in ("from_at", "to_at"))
        drawn.add_row(
            fires,
            exact(from_at) if from_at else "",
            exact(to_at) if to_at else "",
            cell(WHY_SKIPPED.get(entry["reason"], entry["reason"])),
        )
    return drawn


def missed_table(ranges: Iterable[Json], now: datetime) -> "Table":
    """Fires of all jobs that did not run."""
    from ondot.words.job import WHY_SKIPPED

    drawn = table("JOB", "FIRES", "FROM", "TO", whole=("FIRES", "FROM", "TO"), ids="JOB")
    for entry in ranges:
        from_at, to_at = (instant_of(entry[end]) for end in ("from_at", "to_at"))
        advice = "backfilled since" if entry["is_backfilled"] else entry["what_to_do"]
        drawn.add_row(
            cell(
                entry["job_name"] or entry["job_id"],
                WHY_SKIPPED.get(entry["reason"], entry["reason"]),
                advice,
                style="bold",
            ),
            "many" if entry["count"] is None else f"{entry['count']:,}",
            exact(from_at) if from_at else "",
            exact(to_at) if to_at else "",
        )
    return drawn


def target_in_words(target: Json) -> str:
    match target:
        case {"http": {"url": url, "method": method}}:
            return f"{method} {url}"
        case {"function": name}:
            return f"function {name}"
        case {"shell": {"command": command}}:
            import shlex

            return shlex.join(command)
        case {"workflow": {"steps": steps}}:
            return f"workflow of {len(steps):,} step{'' if len(steps) == 1 else 's'}"
    return compact(target) or ""


def execution_table(executions: Iterable[Json], now: datetime) -> "Table":
    drawn = table("EXECUTION", "STATE", "FIRE", "TOOK", whole=("STATE", "FIRE", "TOOK"), ids="EXECUTION")
    for execution in executions:
        attempt = execution["attempt"]
        drawn.add_row(
            cell(execution.get("job_name") or "-", execution["id"], style="bold"),
            state_cell(execution["state"], f"try {attempt}" if attempt > 1 else None),
            time_cell(execution["fire_at"], now),
            took(execution["started_at"], execution["ended_at"]),
        )
    return drawn


def execution_card(execution: Json, now: datetime, explanation: Json | None = None) -> "Table":
    """With an explanation it shows what the execution waits for, and where it runs."""
    reasons = explanation["reasons"] if explanation else []
    host = next((reason["worker_host"] for reason in reasons if reason.get("worker_host")), None)
    worker = execution["worker_id"]
    ready_at = instant_of(execution["ready_at"]) if execution["ended_at"] is None else None
    waits = explanation["summary"] if explanation and execution["state"] != "RUNNING" else None
    return card(
        [
            ("execution", execution["id"]),
            ("job", cell(execution.get("job_name") or "-", execution["job_id"], style="bold")),
            ("state", state_cell(execution["state"], execution["reason"])),
            ("waits for", waits),
            ("progress", progress_in_words(execution["progress"])),
            ("cancel requested", time_line(execution.get("cancel_requested_at"), now)),
            ("origin", execution["origin"]),
            ("replay of", execution.get("replay_of")),
            ("fire", time_line(execution["fire_at"], now)),
            ("may start", time_line(ready_at, now) if ready_at and ready_at > now else None),
            ("start by", _if_not_started(execution, time_line(execution.get("start_by"), now))),
            ("started", time_line(execution["started_at"], now)),
            ("ended", time_line(execution["ended_at"], now)),
            ("took", took(execution["started_at"], execution["ended_at"]) or None),
            ("attempt", _attempts_in_words(execution)),
            ("pool", f"{execution['pool']}, class {execution['priority_class']}"),
            ("worker", f"{worker} on {host}" if worker and host else worker),
            ("payload", compact(execution["payload"])),
            ("result", result_in_words(execution)),
            ("error", error_in_words(execution["error"])),
        ]
    )


def attempt_table(attempts: Iterable[Json], now: datetime) -> "Table":
    drawn = table("TRY", "OUTCOME", "STARTED", "TOOK", "ERROR", whole=("TRY", "OUTCOME", "STARTED", "TOOK"))
    for attempt in attempts:
        drawn.add_row(
            str(attempt["attempt"]),
            state_cell(attempt["outcome"] or "RUNNING"),
            time_cell(attempt["started_at"], now),
            took(attempt["started_at"], attempt["ended_at"]),
            cell(error_in_words(attempt["error"])),
        )
    return drawn


def progress_in_words(progress: Json | None) -> str | None:
    if not progress:
        return None
    fraction, message = progress.get("fraction"), progress.get("message")
    shown = None if fraction is None else f"{fraction:.0%}"
    return ", ".join(part for part in (shown, message) if part) or None


def result_in_words(execution: Json) -> str | None:
    """The result; of a large one its size, and how to print it."""
    match execution["result"]:
        case {"$object": {"bytes": size}}:
            return f"{size:,} bytes; print it with: ondot execution result {execution['id']}"
        case {"$cut": {"bytes": size, "why": why}}:
            return f"{size:,} bytes, only the beginning was kept: {why}"
    return compact(execution["result"])


def error_in_words(error: Any) -> str | None:
    match error:
        case {"code": str(code), "message": str(message)}:
            return f"{code}: {message}"
        case {"message": str(message)}:
            return message
    return compact(error)


def preview_table(preview: Json, now: datetime) -> "Table":
    """The fires in order, then the skipped ones."""
    drawn = table("FIRE", "SCHEDULE'S ZONE", "UTC", "REMARK", whole=("FIRE", "SCHEDULE'S ZONE", "UTC"))
    for fire in preview["fires"]:
        fire_at = instant_of(fire["fire_at"])
        assert fire_at is not None
        ready_at = instant_of(fire.get("ready_at"))
        late = f"+{lasting(ready_at - fire_at)}" if ready_at else None
        remark = cell(fire["remark"], late, style="yellow")
        drawn.add_row(relative(fire_at, now), fire["local"], exact(fire_at), remark)
    for skipped in preview["skipped"]:
        drawn.add_row(cell("skipped", style="dim"), cell(skipped["local"], style="dim"), "", cell(skipped["reason"]))
    return drawn


def applied_table(results: Iterable[Json], *, dry_run: bool) -> "Table":
    """The result for each job of a file."""
    styles = {"created": "green", "changed": "yellow", "unchanged": "dim"}
    verbs = {"created": "would create", "changed": "would change"} if dry_run else {}
    drawn = table("JOB", "RESULT", "VERSION", whole=("RESULT", "VERSION"), ids="JOB")
    for item in results:
        result = item["result"]
        drawn.add_row(
            cell(item["key"], item["name"] if item["name"] != item["key"] else None, item["id"], style="bold"),
            cell(verbs.get(result, result), *item["changes"], style=styles[result]),
            str(item["version"]),
        )
    return drawn


def backfill_table(backfills: Iterable[Json], now: datetime) -> "Table":
    drawn = table("BACKFILL", "STATE", "RUNS", "CREATED", whole=("BACKFILL", "STATE", "RUNS"))
    for backfill in backfills:
        from_at, to_at = (instant_of(backfill[end]) for end in ("from_at", "to_at"))
        ended = sum(backfill[count] for count in ("succeeded", "failed", "stopped"))
        to_run = backfill["total"] - backfill["existing"]
        drawn.add_row(
            cell(
                backfill["id"],
                f"{exact(from_at) if from_at else ''} to",
                f"{exact(to_at) if to_at else ''}",
                f"{backfill['order']} first, {backfill['concurrency']} at a time",
            ),
            state_cell(backfill["state"]),
            cell(
                f"{ended:,} of {to_run:,}" if to_run else "none to run",
                f"{backfill['failed']:,} failed" if backfill["failed"] else None,
                f"{backfill['stopped']:,} stopped" if backfill["stopped"] else None,
                f"{backfill['existing']:,} existed already" if backfill["existing"] else None,
            ),
            cell(relative_of(backfill["created_at"], now)),
        )
    return drawn


def relative_of(written: object, now: datetime) -> str:
    at = instant_of(written)
    return "" if at is None else relative(at, now)


def key_table(keys: Iterable[Json], now: datetime) -> "Table":
    drawn = table("KEY", "STATE", "ROLE", "LAST USE", whole=("STATE", "LAST USE"), ids="KEY")
    for key in keys:
        limits = [", ".join(key["scopes"] or ()), ", ".join(f"pool {pool}" for pool in key["pools"] or ())]
        drawn.add_row(
            cell(key["name"], key["id"], style="bold"),
            _key_state(key, now),
            cell(key["role"], "; ".join(filter(None, limits)) or None),
            time_cell(key["last_used_at"], now),
        )
    return drawn


def _key_state(key: Json, now: datetime) -> "Text":
    if revoked_at := instant_of(key["revoked_at"]):
        return cell("revoked", relative(revoked_at, now))
    expires_at = instant_of(key["expires_at"])
    if key["state"] == "EXPIRED":
        return cell("expired", relative(expires_at, now) if expires_at else None)
    return cell("valid", f"expires {relative(expires_at, now)}" if expires_at else None, style="green")


def secret_table(secrets: Iterable[Json], now: datetime) -> "Table":
    drawn = table("SECRET", "VERSION", "MAY GO TO", "USED BY", "CHANGED", whole=("VERSION", "CHANGED"))
    for secret in secrets:
        places = [*(secret["hosts"] or ()), *(f"{name}()" for name in secret["functions"] or ())]
        pools = f"in {', '.join(secret['pools'])}" if secret["pools"] else None
        used_by = [job["name"] for job in secret["used_by"]]
        drawn.add_row(
            cell(secret["name"], style="bold"),
            cell(str(secret["version"])),
            cell(", ".join(places) or "any", pools),
            cell(", ".join(used_by[:3]) + (" …" if len(used_by) > 3 else "") or "-"),
            cell(relative_of(secret["updated_at"], now), secret["updated_by"]),
        )
    return drawn


def hook_table(hooks: Iterable[Json], now: datetime) -> "Table":
    drawn = table("HOOK", "EVENTS", "SIGNATURE", "LAST USED", "ID", whole=("ID",))
    for hook in hooks:
        used = relative_of(hook["last_used_at"], now) if hook["last_used_at"] else "-"
        drawn.add_row(
            cell(hook["name"], style="bold"),
            cell(hook["type"], hook["source"]),
            cell(hook["signature"], hook["header"]),
            cell(used),
            cell(hook["id"]),
        )
    return drawn


def channel_table(channels: Iterable[Json], now: datetime) -> "Table":
    drawn = table("CHANNEL", "KIND", "SENDS TO", "CHANGED")
    for channel in channels:
        content = channel[channel["kind"]]
        to = ", ".join(content["to"]) if "to" in content else content["url"]
        drawn.add_row(
            cell(channel["name"], style="bold"),
            cell(channel["kind"]),
            cell(to if isinstance(to, str) else f"secret {to['$secret']}"),
            cell(relative_of(channel["updated_at"] or channel["created_at"], now)),
        )
    return drawn


def delivery_table(deliveries: Iterable[Json], now: datetime) -> "Table":
    drawn = table("DELIVERY", "MESSAGE", "STATE", "ATTEMPTS", "WHEN", ids="DELIVERY")
    for each in deliveries:
        drawn.add_row(
            cell(each["id"]),
            cell(each["title"], f"{each['kind']}, {each['joined']} joined" if each["joined"] else each["kind"]),
            cell(each["state"], each["error"]),
            cell(str(each["attempts"])),
            cell(relative_of(each["created_at"], now)),
        )
    return drawn


def ping_table(pings: Iterable[Json], now: datetime) -> "Table":
    drawn = table("PING", "STATE", "LAST CALL", "LATE", "TOOK")
    for ping in pings:
        took_s = ping["took_s"]
        drawn.add_row(
            cell(ping["name"], style="bold"),
            cell(ping["state"]),
            cell(relative_of(ping["last_call_at"], now) or "never"),
            cell(relative_of(ping["due_at"], now) or "-"),
            cell("-" if took_s is None else f"{took_s:g} s"),
        )
    return drawn


def ping_call_table(calls: Iterable[Json], now: datetime) -> "Table":
    drawn = table("WHEN", "CALL", "EXIT CODE", "TOOK", "BODY")
    for call in calls:
        lines = (call["body"] or "").strip().splitlines()
        drawn.add_row(
            cell(relative_of(call["at"], now)),
            cell(call["kind"]),
            cell("-" if call["exit_code"] is None else str(call["exit_code"])),
            cell("-" if call["took_s"] is None else f"{call['took_s']:g} s"),
            cell(lines[-1][:80] if lines else "-"),
        )
    return drawn


def _attempts_in_words(execution: Json) -> str | None:
    if not execution["attempt"]:
        return None
    failures, losses = execution["failures"], execution["losses"]
    counts = [f"{count} {what}" for count, what in ((failures, "failed"), (losses, "lost with a worker")) if count]
    return ", ".join([str(execution["attempt"]), *counts])


def _at_once(limit: int | None) -> str | None:
    return None if limit is None else f"{limit:,} at once"


def _seconds(duration_s: float | None, then: str) -> str | None:
    return None if duration_s is None else f"{_duration(duration_s)} {then}".rstrip()


def _duration(duration_s: float) -> str:
    """A duration in words: 90 is "1 min 30 s", and 3600 "1 h"."""
    minutes, seconds = divmod(duration_s, 60)
    hours, minutes = divmod(int(minutes), 60)
    days, hours = divmod(hours, 24)
    parts = [f"{n:g} {unit}" for n, unit in ((days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")) if n]
    return " ".join(parts) or "0 s"


def _in_words(option: Json | None) -> str | None:
    """`unique`, `debounce` or `throttle`: the key, and the other fields that were set."""
    if not option:
        return None
    more = [f"{field} {value:g}" for field, value in option.items() if field != "key" and value is not None]
    return ", ".join([option["key"], *more])


def _if_not_started(execution: Json, line: str | None) -> str | None:
    return line if execution["ended_at"] is None and execution["started_at"] is None else None


def running_in_words(shared: Json) -> str:
    """Of a pool or a worker; what others run is not shown to every tenant."""
    running = shared["running"]
    return f"- of {shared['slots']:,}" if running is None else f"{running:,} of {shared['slots']:,}"


def pool_table(pools: Iterable[Json], _now: datetime) -> "Table":
    drawn = table("POOL", "WORKERS", "RUNNING", "WAITING", "AT ONCE", "RATE", whole=("WORKERS", "RUNNING", "WAITING"))
    for pool in pools:
        concurrency = pool["concurrency"]
        drawn.add_row(
            cell(pool["name"], style="bold"),
            f"{pool['workers']:,}",
            running_in_words(pool),
            cell(
                f"{pool['waiting']:,}",
                f"oldest {rough(pool['oldest_waiting_s'])}" if pool["oldest_waiting_s"] is not None else None,
                f"held back {pool['gated']:,}" if pool["gated"] else None,
            ),
            "no limit" if concurrency is None else f"{concurrency:,}",
            rate_in_words(pool["rate"]) or "no limit",
        )
    return drawn


def _changes_of(entry: Json) -> str | None:
    """The values that changed: `timeout_s: 1 → 60`."""
    before, after = entry.get("before") or {}, entry.get("after") or {}
    if not before:
        return None  # of a new job, all of them: `-o json` shows them
    shown = {name: [compact(values.get(name)) or "none" for values in (before, after)] for name in {**before, **after}}
    changes = [f"{name}: {' → '.join(values)}" for name, values in shown.items()]
    return ", ".join(changes)


def bulk_table(operations: Iterable[Json], now: datetime) -> "Table":
    drawn = table("OPERATION", "STATE", "DONE", "STARTED", whole=("STATE", "DONE", "STARTED"), ids="OPERATION")
    for operation in operations:
        which = operation["q"] or (f"{operation['ids']:,} ids" if operation["ids"] else "all, or by filter")
        drawn.add_row(
            cell(
                f"{operation['action']} {operation['of'].replace('_', ' ')}",
                operation["id"],
                "an undo" if operation["undo_of"] else which,
                f"by {operation['actor']}" + (f": {operation['reason']}" if operation["reason"] else ""),
                style="bold",
            ),
            state_cell(operation["state"]),
            cell(f"{operation['done']:,} of {operation['total']:,}", f"{operation['refused']:,} refused"),
            relative_of(operation["created_at"], now),
        )
    return drawn


def audit_table(entries: Iterable[Json], now: datetime) -> "Table":
    drawn = table("WHEN", "WHO", "WHAT", whole=("WHEN",))
    for entry in entries:
        detail = {name: value for name, value in (entry["detail"] or {}).items() if value is not None}
        words = ", ".join(
            f"{name}: {value if isinstance(value, str) else compact(value)}" for name, value in detail.items()
        )
        drawn.add_row(
            time_cell(entry["at"], now),
            cell(entry["actor"]),
            cell(entry["action"], entry["subject"], words, _changes_of(entry), style="bold"),
        )
    return drawn
