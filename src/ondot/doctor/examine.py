"""What is wrong with an installation and how to fix it: the checks behind `ondot doctor`.

Each check reads a few facts, which `doctor.checks` judges. A check changes nothing and waits for a few seconds at most.
A check that cannot read its facts reports that, and the next one runs. Works while the database is down, and with
nothing but an HTTP server to ask.
"""

import asyncio
import json
import os
import time
import tomllib
import urllib.error
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ondot.doctor.checks import (
    Finding,
    judge_access,
    judge_audit,
    judge_away,
    judge_clock,
    judge_connections,
    judge_days,
    judge_declarations,
    judge_durability,
    judge_functions,
    judge_held_back,
    judge_lag,
    judge_lineage,
    judge_lost_workers,
    judge_paused_jobs,
    judge_schedulers,
    judge_secrets,
    judge_self_check,
    judge_silent_workers,
    judge_sinks,
    judge_snapshots,
    judge_stalled,
    judge_version,
    judge_workers,
)
from ondot.doctor.coordination import check_coordination
from ondot.doctor.transports import OpenTransport, check_transports
from ondot.model.errors import Misconfigured, OndotError, Unavailable
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.liveness import is_silent
from ondot.model.urls import without_userinfo
from ondot.proxies import open_url
from ondot.settings import SECRETS, TOML, Settings

if TYPE_CHECKING:
    from ondot.store.connection import Connection
    from ondot.store.fleet import WorkerRow

__all__ = ["Finding", "examine", "examine_database"]

ASK_S: Final = 5.0
OLD_SNAPSHOT_S: Final = 600
"""A snapshot keeps dead rows from being cleaned up, and reads of the queue's index pass over them: an old one slows
down every lease."""
JOBS_SEARCHED: Final = 10_000
"""The newest ones, for credentials that are stored in plain."""
PAUSED_SHOWN: Final = 3
FUNCTIONS_SHOWN: Final = 3
SINKS_LOOKED_AT: Final = 1_000
LIMITS_SHOWN: Final = 3
KEYS_SHOWN: Final = 3
PASSING: Final = frozenset({"57P01", "57P02", "57P03"})
"""SQLSTATEs of a server that is shutting down, has crashed, or is starting up."""


def examine(settings: Settings, open_transport: OpenTransport | None = None) -> list[Finding]:
    """Every check that is possible from here: of the database if its URL is known, of a server if its URL is set.

    `open_transport`: opens one by name, to try it; None: transports are not tried.
    """
    findings = [judge_settings(settings)]
    if settings.database_url is not None:
        findings.extend(asyncio.run(examine_database(settings, open_transport)))
    if settings.database_url is None or "url" in settings.model_fields_set:
        findings.append(ask_server(settings.url))
    if settings.database_url is None:
        findings.append(
            Finding(
                "database",
                "warning",
                "No database URL is set here, so only the server was checked.",
                "Set ONDOT_DATABASE_URL for the other checks, or run this on the machine of `ondot up`, as the same"
                " user and with the same ONDOT_HOME.",
            )
        )
    return findings


# Without the database ------------------------------------------------------------------------------------------------


def judge_settings(settings: Settings) -> Finding:
    """The origin of each setting that is not at its default. Values are not shown: some are secrets."""
    toml = tomllib.loads(Path(TOML).read_text()) if Path(TOML).is_file() else {}
    origins = []
    for name in sorted(settings.model_fields_set):
        variable = f"ONDOT_{name.upper()}"
        if name in SECRETS and os.environ.get(f"{variable}_FILE"):
            origins.append(f"{name} from the file of {variable}_FILE")
        elif os.environ.get(variable):
            origins.append(f"{name} from {variable}")
        elif name in toml:
            origins.append(f"{name} from {TOML}")
        else:
            origins.append(f"{name} from the home of a running `ondot up`")
    return Finding("settings", "ok", "; ".join(origins) if origins else "All are at their defaults.")


def ask_server(url: str) -> Finding:
    """Judge the answer of `/readyz`."""
    shown = without_userinfo(url)
    try:
        with open_url(f"{url}/readyz", ASK_S) as response:
            return judge_server(shown, response.status, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return judge_server(shown, error.code, error.read())
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        advice = "Start one with `ondot up` or `ondot api`, or set ONDOT_URL to where it is."
        return Finding("server", "problem", f"No server answers at {shown}: {reason}.", advice)


def judge_server(url: str, status: int, body: bytes) -> Finding:
    try:
        answer: Any = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or "status" not in answer:
        message = f"{url} answered {status}, and is not an ondot server."
        return Finding("server", "problem", message, "Set ONDOT_URL to the address of an ondot server.")
    if status == 200:
        return Finding("server", "ok", f"{url} is ready.")
    return Finding("server", "problem", f"{url} is {answer['status']}: {answer.get('why', '')}")


# The database --------------------------------------------------------------------------------------------------------


Check = Callable[["Connection", Settings], Awaitable[Finding]]


async def examine_database(settings: Settings, open_transport: OpenTransport | None = None) -> list[Finding]:
    from ondot.store.database import LOGIN_REFUSED, open_database

    findings: list[Finding] = []
    database = await open_database(settings, connections=1)
    try:
        async with database.connection() as connection:
            findings.append(await check_version(connection, settings))
            findings.append(await check_durability(connection, settings))
            schema = await check_schema(connection, settings)
            findings.append(schema)
            for name, check in (*SCHEMA_CHECKS.items(), *SERVER_CHECKS.items()):
                if schema.level != "problem" or name in SERVER_CHECKS:
                    findings.append(await _run_check(name, check, connection, settings))
            if open_transport is not None and schema.level != "problem":
                findings.append(await check_transports(connection, database, open_transport))
        if schema.level != "problem":
            from ondot.doctor.brokers import examine_brokers

            findings += await examine_brokers(database)
    except Misconfigured as error:
        findings.append(Finding("database", "problem", error.message, "Correct it, then run `ondot doctor` again."))
    except LOGIN_REFUSED as error:
        message = f"PostgreSQL refuses ONDOT_DATABASE_URL: {error}."
        findings.append(Finding("database", "problem", message, "Correct it, or create the database or user it names."))
    except Unavailable as error:
        # A server that answered a moment ago is the right one.
        is_there = bool(findings) or getattr(error.__cause__, "sqlstate", None) in PASSING
        findings.append(judge_away(error.message, may_pass=is_there))
    finally:
        await database.close()
    return findings


async def _run_check(name: str, check: Check, connection: "Connection", settings: Settings) -> Finding:
    from ondot.store.connection import is_lost

    try:
        return await check(connection, settings)
    except OndotError:
        raise
    except Exception as error:
        if is_lost(connection):
            raise  # the other checks would fail too
        # A check without permission must not hide the others.
        advice = "Check that the user of ONDOT_DATABASE_URL has the permissions to read this."
        return Finding(name, "warning", f"Could not check: {type(error).__name__}: {error}.", advice)


async def check_version(connection: "Connection", _settings: Settings) -> Finding:
    return judge_version(await connection.fetchval("SHOW server_version"))


async def check_durability(connection: "Connection", settings: Settings) -> Finding:
    names = ("fsync", "full_page_writes", "synchronous_commit")
    off = [name for name in names if await connection.fetchval("SELECT current_setting($1)", name) == "off"]
    return judge_durability(off, allowed=settings.allow_unsafe_database)


async def check_schema(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.migrate import fits, read_status

    status = await read_status(connection)
    try:
        fits(status)
    except Misconfigured as refusal:
        return Finding("schema", "problem", refusal.message)
    newest = max(status.applied)
    if status.changed:
        numbers = ", ".join(map(str, status.changed))
        message = f"Migration {numbers} was applied with another text than this release has."
        return Finding("schema", "warning", message, "Was the installation changed by hand? Reinstall this release.")
    if status.waiting:
        message = f"Schema {newest} fits; {len(status.waiting)} newer migrations wait."
        return Finding("schema", "warning", message, "Run `ondot migrate up`; the roles may keep running.")
    return Finding("schema", "ok", f"Schema {newest} fits this release.")


async def check_lineage(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.lineage import read_lineage

    return judge_lineage(await read_lineage(connection))


async def check_secrets(connection: "Connection", settings: Settings) -> Finding:
    from ondot.kms import open_kms
    from ondot.store.secrets import count_masters, count_plain_credentials

    kms = open_kms(settings.secret_key)
    masters = await count_masters(connection)
    missing = {master: keys for master, keys in masters.items() if kms is not None and not kms.knows(master)}
    old = {master: keys for master, keys in masters.items() if kms is not None and master != kms.master}
    plain = await count_plain_credentials(connection, JOBS_SEARCHED)
    return judge_secrets(masters, missing, old, plain, has_key=kms is not None)


async def check_access(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.keys import read_access

    return judge_access(await read_access(connection, KEYS_SHOWN))


async def check_days(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.days import read_day_tables

    return judge_days(await read_day_tables(connection))


async def check_clock(connection: "Connection", _settings: Settings) -> Finding:
    sent_at, sent_s = datetime.now(UTC), time.monotonic()
    database_at = await connection.fetchval("SELECT clock_timestamp()")
    half_way_s = (time.monotonic() - sent_s) / 2
    return judge_clock((sent_at - database_at).total_seconds() + half_way_s)


async def check_schedulers(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.fleet import read_nodes

    nodes = await read_nodes(connection)
    owned = [len(node.partitions) for node in nodes.rows if node.is_alive]
    return judge_schedulers(owned, sum(node.is_away(nodes.now) for node in nodes.rows))


async def check_workers(connection: "Connection", settings: Settings) -> Finding:
    from ondot.store.fleet import list_workers
    from ondot.store.overview import read_queue_depth

    is_held = await _is_held(connection)
    alive: list[WorkerRow] = []
    silent: list[WorkerRow] = []
    for worker in await list_workers(connection):
        if worker.state == "ALIVE":
            (silent if not is_held and _silent(worker, settings) else alive).append(worker)
    waiting = {depth.pool for depth in await read_queue_depth(connection)}
    return judge_workers(_pools_of(alive), len(alive), waiting, _pools_of(silent))


async def check_silent_workers(connection: "Connection", settings: Settings) -> Finding:
    from ondot.store.fleet import list_workers

    if await _is_held(connection):
        return Finding("silent workers", "ok", "Not checked: while everything is held, workers send no heartbeats.")
    workers = [worker for worker in await list_workers(connection) if _silent(worker, settings)]
    return judge_silent_workers([(worker.host, worker.silent_s) for worker in workers], settings.heartbeat_s)


def _pools_of(workers: "Iterable[WorkerRow]") -> set[str]:
    return {pool for worker in workers for pool in worker.pools}


def _silent(worker: "WorkerRow", settings: Settings) -> bool:
    return is_silent(worker.state, worker.silent_s, settings.heartbeat_s)


async def _is_held(connection: "Connection") -> bool:
    from ondot.store.lineage import read_lineage

    found = await read_lineage(connection)
    return found is not None and found.why_not is not None


async def check_stalled(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.fleet import list_workers, read_nodes

    nodes = [
        ("scheduler", node.host, node.stalled_in or "?")
        for node in (await read_nodes(connection)).rows
        if node.stalled_at is not None
    ]
    workers = [
        ("worker", row.host, row.stalled_in or "?")
        for row in await list_workers(connection)
        if row.stalled_at is not None
    ]
    return judge_stalled(nodes + workers)


async def check_lost_workers(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.fleet import list_workers

    return judge_lost_workers([row.host for row in await list_workers(connection, state="LOST")])


async def check_lag(connection: "Connection", settings: Settings) -> Finding:
    from ondot.store.queue import oldest_due

    return judge_lag(await oldest_due(connection), settings.ready_lag_s)


async def check_limits(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.overview import read_held_back
    from ondot.store.specs import Specs

    return judge_held_back(await read_held_back(connection, Specs(), None, lines=LIMITS_SHOWN))


async def check_functions(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.known_functions import count_unknown_calls, list_shared_names

    unknown = await count_unknown_calls(connection, FUNCTIONS_SHOWN)
    return judge_functions(unknown, await list_shared_names(connection, FUNCTIONS_SHOWN))


async def check_sinks(connection: "Connection", settings: Settings) -> Finding:
    from ondot.store.sinks import list_all_sinks

    return judge_sinks(await list_all_sinks(connection, SINKS_LOOKED_AT), settings.sink_retention_hours)


async def check_dead_letters(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.overview import count_dead_letters

    count = await count_dead_letters(connection)
    if not count:
        return Finding("dead letters", "ok", "None.")
    message = (
        f"{count:,} failed executions wait for a person." if count > 1 else "A failed execution waits for a person."
    )
    return Finding("dead letters", "warning", message, "See what they have in common: `ondot dead-letter groups`.")


async def check_paused_jobs(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.overview import list_paused_by_itself

    return judge_paused_jobs(await list_paused_by_itself(connection, DEFAULT_TENANT, PAUSED_SHOWN))


async def check_declarations(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.declared import list_dropped, list_refused

    return judge_declarations(await list_refused(connection, None), await list_dropped(connection, None))


async def check_self_check(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.check import list_found

    now = await connection.fetchval("SELECT ondot.clock()")
    return judge_self_check(await list_found(connection), now)


async def check_snapshots(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.server import find_old_snapshots

    return judge_snapshots(await find_old_snapshots(connection, OLD_SNAPSHOT_S))


async def check_connections(connection: "Connection", settings: Settings) -> Finding:
    from ondot.store.server import count_sessions

    room, used = await count_sessions(connection)
    return judge_connections(room, used, _connections_of_a_role(settings))


def _connections_of_a_role(settings: Settings) -> int:
    """The most connections that a worker opens, the role that needs most: hurried, patient, heartbeat and listener."""
    from ondot.store.database import PATIENT_SHARE

    most = settings.database_connections
    return most + max(most // PATIENT_SHARE, 1) + 2


async def check_audit(connection: "Connection", settings: Settings) -> Finding:
    from ondot.flow.audit_seal import seal_keys
    from ondot.store.audit_seals import read_sealing

    return judge_audit(await read_sealing(connection), has_key=bool(seal_keys(settings)))


SCHEMA_CHECKS: Final[dict[str, Check]] = {
    "lineage": check_lineage,
    "access": check_access,
    "secrets": check_secrets,
    "days": check_days,
    "schedulers": check_schedulers,
    "coordination": check_coordination,
    "workers": check_workers,
    "silent workers": check_silent_workers,
    "stalled loops": check_stalled,
    "lost workers": check_lost_workers,
    "lag": check_lag,
    "limits": check_limits,
    "functions": check_functions,
    "sinks": check_sinks,
    "dead letters": check_dead_letters,
    "paused jobs": check_paused_jobs,
    "declarations": check_declarations,
    "self-check": check_self_check,
    "audit log": check_audit,
}
SERVER_CHECKS: Final[dict[str, Check]] = {
    "clock": check_clock,
    "snapshots": check_snapshots,
    "connections": check_connections,
}
