"""Jobs, executions, backfills and previews as tables, made from the API's answers and a `now`, without a request.

Tables fit 80 columns and show ids in full: the name is above the id, and the distance of a time above the time.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ondot.cli.listing import Listing
from ondot.cli.output import (
    Json,
    card,
    cell,
    compact,
    exact,
    exactly,
    instant_of,
    lasting,
    relative,
    rough,
    state_cell,
    table,
    time_line,
    took,
    when,
)

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text


def job_table(jobs: Iterable[Json], now: datetime) -> Listing:
    """With a column CODE if one of them is not as its app's code declares it."""
    jobs = list(jobs)
    code = ("CODE",) if any(map(_off_the_code, jobs)) else ()
    drawn = table(
        *("NAME", "STATE", *code, "NEXT FIRE", "SCHEDULE", "ID"),
        *("AT", "KEY", "POOL", "PRIORITY", "TARGET", "VERSION", "WHY"),
        drop=("ID", "SCHEDULE", "NEXT FIRE"),
        whole=("STATE", *code, "NEXT FIRE", "ID"),
        wide=("AT", "KEY", "POOL", "PRIORITY", "TARGET", "VERSION", "WHY"),
    )
    for job in jobs:
        drawn.add_row(
            cell(job["name"], style="bold"),
            state_cell(job["state"]),
            *(cell(_off_the_code(job), style="yellow") for _ in code),
            when(job["next_fire_at"], now),
            job["schedule_in_words"],
            job["id"],
            exactly(job["next_fire_at"]),
            job["key"],
            job["pool"],
            str(job["priority"]),
            target_in_words(job["target"]),
            str(job["version"]),
            job.get("state_reason"),
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
            ("declared", declared_in_words(job)),
            ("labels", ", ".join(f"{name}:{value}" for name, value in job["labels"].items()) or None),
            ("version", str(job["version"])),
            ("last changed", time_line(job["updated_at"], now)),
        ]
    )


def _off_the_code(job: Json) -> str:
    """How a job is not as its app's code declares it, in a word."""
    declared = job.get("declared") or {}
    return "dropped" if declared.get("dropped_release") else "differs" if declared.get("differs") else ""


def declared_in_words(job: Json) -> str | None:
    """Whose code declares the job, and whether it is as declared."""
    declared = job.get("declared")
    if declared is None:
        return None
    if declared["dropped_release"]:
        return f"no longer declared by {declared['app']} since release {declared['dropped_release']}"
    if declared["differs"]:
        return f"differs from the code of {declared['app']}: {', '.join(declared['differs'])}"
    return f"by {declared['app']}, release {declared['release']}"


def timeout_in_words(job: Json) -> str:
    from ondot.model.job import REMOTE_TIMEOUT_S

    if job["timeout"] is not None:
        return f"{job['timeout']:g} s"
    return f"{REMOTE_TIMEOUT_S:g} s (default)" if {"http", "grpc", "publish"} & job["target"].keys() else "none"


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


def skipped_table(ranges: Iterable[Json], now: datetime) -> Listing:
    """Fires of a job that were skipped."""
    from ondot.words.job import WHY_SKIPPED

    drawn = table("SKIPPED", "FROM", "TO", "WHY", drop=("TO",), whole=("SKIPPED", "FROM", "TO"))
    for entry in ranges:
        count = entry["count"]
        fires = "many fires" if count is None else f"{count:,} fire{'' if count == 1 else 's'}"
        why = WHY_SKIPPED.get(entry["reason"], entry["reason"])
        drawn.add_row(fires, exactly(entry["from_at"]), exactly(entry["to_at"]), why)
    return drawn


def missed_table(ranges: Iterable[Json], now: datetime) -> Listing:
    """Fires of all jobs that did not run."""
    from ondot.words.job import WHY_SKIPPED

    drawn = table(
        *("JOB", "FIRES", "FROM", "TO", "WHY", "TO RUN THEM"),
        drop=("WHY", "TO", "TO RUN THEM", "FROM"),
        whole=("FIRES", "FROM", "TO"),
    )
    for entry in ranges:
        drawn.add_row(
            cell(entry["job_name"] or entry["job_id"], style="bold"),
            "many" if entry["count"] is None else f"{entry['count']:,}",
            exactly(entry["from_at"]),
            exactly(entry["to_at"]),
            WHY_SKIPPED.get(entry["reason"], entry["reason"]),
            "backfilled since" if entry["is_backfilled"] else entry["what_to_do"],
        )
    return drawn


def target_in_words(target: Json) -> str:  # noqa: PLR0911 - one for each kind
    match target:
        case {"http": {"url": url, "method": method}}:
            return f"{method} {url}"
        case {"grpc": {"address": address, "method": method} as grpc}:
            return f"gRPC {address or 'connection ' + grpc['connection']} {method}"
        case {"publish": publish}:
            return _publish_in_words(publish)
        case {"function": name}:
            return f"function {name}"
        case {"shell": {"command": command}}:
            import shlex

            return shlex.join(command)
        case {"workflow": {"steps": steps}}:
            return f"workflow of {len(steps):,} step{'' if len(steps) == 1 else 's'}"
    return compact(target) or ""


def _publish_in_words(publish: Json) -> str:
    [(kind, broker)] = publish.items()
    place = broker.get("connection") or broker.get("url") or broker.get("servers")
    names = ("stream", "list", "channel", "topic", "subject", "routing_key")
    return f"{kind} {place} {next((broker[name] for name in names if name in broker), '')}"


def execution_table(executions: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("ID", "JOB", "STATE", "FIRE", "TOOK", "TRY"),
        *("AT", "ORIGIN", "POOL", "CLASS", "WORKER", "ERROR"),
        drop=("TRY", "TOOK", "FIRE", "STATE"),
        whole=("ID", "STATE", "FIRE", "TOOK", "TRY"),
        wide=("AT", "ORIGIN", "POOL", "CLASS", "WORKER", "ERROR"),
    )
    for execution in executions:
        drawn.add_row(
            execution["id"],
            cell(execution.get("job_name") or "-", style="bold"),
            state_cell(execution["state"]),
            when(execution["fire_at"], now),
            took(execution["started_at"], execution["ended_at"]),
            str(execution["attempt"]),
            exactly(execution["fire_at"]),
            execution.get("origin"),
            execution.get("pool"),
            execution.get("priority_class"),
            execution.get("worker_id"),
            error_in_words(execution.get("error")),
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


def attempt_table(attempts: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("TRY", "OUTCOME", "STARTED", "TOOK", "ERROR", "AT", "WORKER"),
        drop=("TOOK", "STARTED"),
        whole=("TRY", "OUTCOME", "STARTED", "TOOK"),
        wide=("AT", "WORKER"),
    )
    for attempt in attempts:
        drawn.add_row(
            str(attempt["attempt"]),
            state_cell(attempt["outcome"] or "RUNNING"),
            when(attempt["started_at"], now),
            took(attempt["started_at"], attempt["ended_at"]),
            error_in_words(attempt["error"]),
            exactly(attempt["started_at"]),
            attempt.get("worker_id"),
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


def preview_table(preview: Json, now: datetime) -> Listing:
    """The fires in order, then the skipped ones."""
    drawn = table(
        *("FIRE", "SCHEDULE'S ZONE", "UTC", "REMARK"),
        drop=("FIRE", "REMARK", "UTC"),
        whole=("FIRE", "SCHEDULE'S ZONE", "UTC"),
    )
    for fire in preview["fires"]:
        fire_at = instant_of(fire["fire_at"])
        assert fire_at is not None
        ready_at = instant_of(fire.get("ready_at"))
        late = f"+{lasting(ready_at - fire_at)}" if ready_at else None
        remark = cell(", ".join(filter(None, (fire["remark"], late))), style="yellow")
        drawn.add_row(relative(fire_at, now), fire["local"], exact(fire_at), remark)
    for skipped in preview["skipped"]:
        drawn.add_row(cell("skipped", style="dim"), cell(skipped["local"], style="dim"), "", skipped["reason"])
    return drawn


def applied_table(results: Iterable[Json], *, dry_run: bool) -> Listing:
    """The result for each job of a file."""
    styles = {"created": "green", "changed": "yellow", "unchanged": "dim"}
    verbs = {"created": "would create", "changed": "would change"} if dry_run else {}
    drawn = table(
        *("KEY", "RESULT", "VERSION", "CHANGES", "NAME", "ID"),
        drop=("VERSION", "CHANGES"),
        whole=("RESULT", "VERSION"),
        wide=("NAME", "ID"),
    )
    for item in results:
        result = item["result"]
        drawn.add_row(
            cell(item["key"], style="bold"),
            cell(verbs.get(result, result), style=styles[result]),
            str(item["version"]),
            ", ".join(item["changes"]),
            item["name"],
            item["id"],
        )
    return drawn


def backfill_table(backfills: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("ID", "STATE", "RUNS", "FROM", "TO", "CREATED", "ORDER", "AT ONCE"),
        drop=("CREATED", "TO", "FROM", "RUNS"),
        whole=("ID", "STATE", "RUNS", "FROM", "TO", "CREATED"),
        wide=("ORDER", "AT ONCE"),
    )
    for backfill in backfills:
        ended = sum(backfill[count] for count in ("succeeded", "failed", "stopped"))
        to_run = backfill["total"] - backfill["existing"]
        counts = [f"{ended:,} of {to_run:,}" if to_run else "none to run"]
        counts += [f"{backfill[what]:,} {what}" for what in ("failed", "stopped") if backfill[what]]
        counts += [f"{backfill['existing']:,} existed already"] if backfill["existing"] else []
        drawn.add_row(
            backfill["id"],
            state_cell(backfill["state"]),
            ", ".join(counts),
            exactly(backfill["from_at"]),
            exactly(backfill["to_at"]),
            when(backfill["created_at"], now),
            f"{backfill['order']} first",
            str(backfill["concurrency"]),
        )
    return drawn


def relative_of(written: object, now: datetime) -> str:
    at = instant_of(written)
    return "" if at is None else relative(at, now)


def key_table(keys: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("NAME", "STATE", "ROLE", "LAST USE", "ID", "SCOPES", "POOLS"),
        drop=("LAST USE", "ROLE"),
        whole=("ROLE", "LAST USE", "ID"),
        wide=("SCOPES", "POOLS"),
    )
    for key in keys:
        drawn.add_row(
            cell(key["name"], style="bold"),
            _key_state(key, now),
            key["role"],
            when(key["last_used_at"], now),
            str(key["id"]),
            ", ".join(key["scopes"] or ()),
            ", ".join(key["pools"] or ()),
        )
    return drawn


def _key_state(key: Json, now: datetime) -> "Text":
    if revoked_at := instant_of(key["revoked_at"]):
        return cell("revoked", relative(revoked_at, now))
    expires_at = instant_of(key["expires_at"])
    if key["state"] == "EXPIRED":
        return cell("expired", relative(expires_at, now) if expires_at else None)
    return cell("valid", f"expires {relative(expires_at, now)}" if expires_at else None, style="green")


def secret_table(secrets: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("NAME", "VERSION", "MAY GO TO", "USED BY", "CHANGED", "BY", "POOLS"),
        drop=("USED BY", "CHANGED", "VERSION"),
        whole=("VERSION", "CHANGED"),
        wide=("BY", "POOLS"),
    )
    for secret in secrets:
        places = [*(secret["hosts"] or ()), *(f"{name}()" for name in secret["functions"] or ())]
        drawn.add_row(
            cell(secret["name"], style="bold"),
            str(secret["version"]),
            ", ".join(places) or "any",
            ", ".join(job["name"] for job in secret["used_by"]),
            when(secret["updated_at"], now),
            secret["updated_by"],
            ", ".join(secret["pools"] or ()),
        )
    return drawn


def hook_table(hooks: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("NAME", "TYPE", "LAST USED", "ID", "SOURCE", "SIGNATURE", "HEADER"),
        drop=("LAST USED", "TYPE"),
        whole=("LAST USED", "ID"),
        wide=("SOURCE", "SIGNATURE", "HEADER"),
    )
    for hook in hooks:
        drawn.add_row(
            cell(hook["name"], style="bold"),
            hook["type"],
            when(hook["last_used_at"], now),
            hook["id"],
            hook["source"],
            hook["signature"],
            hook["header"],
        )
    return drawn


def connection_table(connections: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("NAME", "KIND", "ADDRESS", "TESTED", "ERROR", "CHANGED"),
        drop=("CHANGED", "ERROR"),
        whole=("KIND", "TESTED", "CHANGED"),
        wide=("ERROR",),
    )
    for each in connections:
        tested = "never" if each["tested_at"] is None else "works" if each["test_error"] is None else "fails"
        drawn.add_row(
            cell(each["name"], style="bold"),
            each["kind"],
            each["url"] or each["servers"] or each["address"],
            tested,
            each["test_error"] or "",
            when(each["updated_at"], now),
        )
    return drawn


def channel_table(channels: Iterable[Json], now: datetime) -> Listing:
    drawn = table("NAME", "KIND", "SENDS TO", "CHANGED", drop=("CHANGED", "KIND"), whole=("KIND", "CHANGED"))
    for channel in channels:
        content = channel[channel["kind"]]
        to = ", ".join(content["to"]) if "to" in content else content["url"]
        drawn.add_row(
            cell(channel["name"], style="bold"),
            channel["kind"],
            to if isinstance(to, str) else f"secret {to['$secret']}",
            when(channel["updated_at"] or channel["created_at"], now),
        )
    return drawn


def sink_table(sinks: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("NAME", "STATE", "SENDS TO", "WAITING", "SENT", "LAST SENT", "ERROR", "TYPES"),
        drop=("LAST SENT", "SENT", "ERROR"),
        whole=("STATE", "WAITING", "SENT", "LAST SENT"),
        wide=("ERROR", "TYPES"),
    )
    for sink in sinks:
        drawn.add_row(
            cell(sink["name"], style="bold"),
            sink_state(sink),
            sink_place(sink),
            f"{sink['waiting']:,}",
            f"{sink['sent']:,}",
            when(sink["sent_at"], now),
            sink["error"] if sink["failing_since"] else None,
            ", ".join(sink["types"]),
        )
    return drawn


def sink_facts(sink: Json, now: datetime) -> Listing:
    drawn = table("FIELD", "VALUE", whole=("FIELD",))
    lost = {"sent in short": sink["shortened"], "refused": sink["refused"], "dropped as too old": sink["dropped"]}
    for name, value in (
        ("name", sink["name"]),
        ("state", sink_state(sink)),
        ("sends to", sink_place(sink)),
        ("types", ", ".join(sink["types"])),
        ("pools", ", ".join(sink["pools"]) or None),
        ("labels", ", ".join(f"{name}={value}" for name, value in sink["labels"].items()) or None),
        ("waiting", f"{sink['waiting']:,}"),
        ("waiting since", when(sink["waiting_since"], now) if sink["waiting_since"] else None),
        ("sent", f"{sink['sent']:,}"),
        ("last sent", when(sink["sent_at"], now) if sink["sent_at"] else None),
        *((name, f"{count:,}") for name, count in lost.items() if count),
        ("last error", sink["error"]),
        ("next try", when(sink["retry_at"], now) if sink["retry_at"] else None),
    ):
        if value is not None:
            drawn.add_row(name, value)
    return drawn


def sink_state(sink: Json) -> str:
    return "PAUSED" if sink["is_paused"] else "FAILING" if sink["failing_since"] else "SENDING"


def sink_place(sink: Json) -> str:
    if sink["kind"] != "webhook":
        fields = dict(sink[sink["kind"]])
        connection = fields.pop("connection")
        return f"{connection}: {', '.join(f'{name} {value}' for name, value in fields.items())}"
    to = sink["webhook"]["url"]
    return to if isinstance(to, str) else f"secret {to['$secret']}"


def delivery_table(deliveries: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("MESSAGE", "STATE", "ATTEMPTS", "WHEN", "ERROR", "KIND", "JOINED", "ID"),
        drop=("ATTEMPTS", "ERROR", "WHEN"),
        whole=("STATE", "ATTEMPTS", "WHEN"),
        wide=("KIND", "JOINED", "ID"),
    )
    for each in deliveries:
        drawn.add_row(
            each["title"],
            state_cell(each["state"]),
            str(each["attempts"]),
            when(each["created_at"], now),
            each["error"],
            each["kind"],
            str(each["joined"]),
            each["id"],
        )
    return drawn


def ping_table(pings: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("NAME", "STATE", "LAST CALL", "LATE", "TOOK"),
        drop=("TOOK", "LATE", "LAST CALL"),
        whole=("STATE", "LAST CALL", "LATE", "TOOK"),
    )
    for ping in pings:
        took_s = ping["took_s"]
        drawn.add_row(
            cell(ping["name"], style="bold"),
            ping["state"],
            relative_of(ping["last_call_at"], now) or "never",
            relative_of(ping["due_at"], now),
            "" if took_s is None else f"{took_s:g} s",
        )
    return drawn


def ping_call_table(calls: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("WHEN", "CALL", "EXIT CODE", "TOOK", "BODY"),
        drop=("TOOK", "EXIT CODE", "BODY"),
        whole=("WHEN", "CALL", "EXIT CODE", "TOOK"),
    )
    for call in calls:
        lines = (call["body"] or "").strip().splitlines()
        drawn.add_row(
            when(call["at"], now),
            call["kind"],
            "" if call["exit_code"] is None else str(call["exit_code"]),
            "" if call["took_s"] is None else f"{call['took_s']:g} s",
            lines[-1] if lines else "",
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


def pool_table(pools: Iterable[Json], _now: datetime) -> Listing:
    drawn = table(
        *("POOL", "WORKERS", "RUNNING", "WAITING", "OLDEST", "HELD BACK", "AT ONCE", "RATE", "TRANSPORT"),
        drop=("RATE", "AT ONCE", "OLDEST", "WORKERS", "HELD BACK"),
        whole=("WORKERS", "RUNNING", "WAITING", "OLDEST", "HELD BACK", "AT ONCE"),
        wide=("TRANSPORT",),
    )
    for pool in pools:
        concurrency = pool["concurrency"]
        drawn.add_row(
            cell(pool["name"], style="bold"),
            f"{pool['workers']:,}",
            running_in_words(pool),
            f"{pool['waiting']:,}",
            rough(pool["oldest_waiting_s"]) if pool["oldest_waiting_s"] is not None else "",
            f"{pool['gated']:,}",
            "no limit" if concurrency is None else f"{concurrency:,}",
            rate_in_words(pool["rate"]) or "no limit",
            pool.get("transport"),
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


def bulk_table(operations: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("ID", "OPERATION", "STATE", "DONE", "STARTED", "REFUSED", "WHICH", "BY", "REASON"),
        drop=("STARTED", "OPERATION", "DONE"),
        whole=("ID", "STATE", "DONE", "STARTED"),
        wide=("REFUSED", "WHICH", "BY", "REASON"),
    )
    for operation in operations:
        which = operation["q"] or (f"{operation['ids']:,} ids" if operation["ids"] else "all, or by filter")
        drawn.add_row(
            operation["id"],
            cell(f"{operation['action']} {operation['of'].replace('_', ' ')}", style="bold"),
            state_cell(operation["state"]),
            f"{operation['done']:,} of {operation['total']:,}",
            when(operation["created_at"], now),
            f"{operation['refused']:,}",
            "an undo" if operation["undo_of"] else which,
            operation["actor"],
            operation["reason"],
        )
    return drawn


def audit_table(entries: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("WHEN", "WHO", "WHAT", "SUBJECT", "DETAIL", "AT", "CHANGES"),
        drop=("DETAIL", "SUBJECT"),
        whole=("WHEN",),
        wide=("AT", "CHANGES"),
    )
    for entry in entries:
        detail = {name: value for name, value in (entry["detail"] or {}).items() if value is not None}
        words = ", ".join(
            f"{name}: {value if isinstance(value, str) else compact(value)}" for name, value in detail.items()
        )
        changes = _changes_of(entry)
        drawn.add_row(
            when(entry["at"], now),
            entry["actor"],
            cell(entry["action"], style="bold"),
            entry["subject"],
            "; ".join(filter(None, (words, changes))),
            exactly(entry["at"]),
            changes,
        )
    return drawn
