"""What is wrong with an installation, and how to mend it: the checks behind `ondot doctor`.

Each check reads a few facts and judges them; the judgements are plain functions. Nothing is changed, nothing is waited
for longer than a few seconds, and no check hides another: one that cannot look says so and the next goes on. Works with
the database down, and with nothing but an HTTP server to ask.
"""

import asyncio
import json
import os
import time
import tomllib
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from ondot.model.errors import Misconfigured, OndotError, Unavailable
from ondot.model.ids import DEFAULT_TENANT, PARTITIONS
from ondot.settings import SECRETS, TOML, Settings

if TYPE_CHECKING:
    from ondot.store.connection import Connection
    from ondot.store.days import DayTable
    from ondot.store.overview import PausedRow
    from ondot.store.queue import OldestDue

Level = Literal["ok", "warning", "problem"]

ASK_S: Final = 5.0
CLOCK_WARNING_S: Final = 2.0
OLD_SNAPSHOT_S: Final = 600
"""A snapshot keeps dead rows alive, and the queue's index is read through them: an old one slows every lease down."""
DAYS_WARNING: Final = timedelta(days=3)
DAY: Final = timedelta(days=1)
PAUSED_TOLD: Final = 3
HOSTS_TOLD: Final = 5


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    message: str
    advice: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        return asdict(self)


def examine(settings: Settings) -> list[Finding]:
    """Every check that can be made from here: of the database if its URL is known, and of a server that was named."""
    findings = [judge_settings(settings)]
    if settings.database_url is not None:
        findings.extend(asyncio.run(examine_database(settings)))
    if settings.database_url is None or "url" in settings.model_fields_set:
        findings.append(ask_server(settings.url))
    if settings.database_url is None:
        findings.append(
            Finding(
                "database",
                "warning",
                "No database is known here, so only the server was asked.",
                "Set ONDOT_DATABASE_URL for the other checks, or run this beside `ondot up`, as the same user and"
                " with the same ONDOT_HOME.",
            )
        )
    return findings


# Without the database ------------------------------------------------------------------------------------------------


def judge_settings(settings: Settings) -> Finding:
    """Where each setting comes from that is not at its default. Values are not told: some are secrets."""
    toml = tomllib.loads(Path(TOML).read_text()) if Path(TOML).is_file() else {}
    told = []
    for name in sorted(settings.model_fields_set):
        variable = f"ONDOT_{name.upper()}"
        if name in SECRETS and os.environ.get(f"{variable}_FILE"):
            told.append(f"{name} from the file of {variable}_FILE")
        elif os.environ.get(variable):
            told.append(f"{name} from {variable}")
        elif name in toml:
            told.append(f"{name} from {TOML}")
        else:
            told.append(f"{name} from the home of a running `ondot up`")
    return Finding("settings", "ok", "; ".join(told) if told else "All are at their defaults.")


def ask_server(url: str) -> Finding:
    """What `/readyz` says."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=ASK_S) as response:  # noqa: S310 - settings allow http(s) only
            return judge_server(url, response.status, response.read())
    except urllib.error.HTTPError as error:
        with error:
            return judge_server(url, error.code, error.read())
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        advice = "Start one with `ondot up` or `ondot api`, or set ONDOT_URL to where it is."
        return Finding("server", "problem", f"No server answers at {url}: {reason}.", advice)


def judge_server(url: str, status: int, body: bytes) -> Finding:
    try:
        answer: Any = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or "status" not in answer:
        message = f"{url} answered {status}, and not as ondot does."
        return Finding("server", "problem", message, "Set ONDOT_URL to the address of an ondot server.")
    if status == 200:
        return Finding("server", "ok", f"{url} is ready.")
    return Finding("server", "problem", f"{url} is {answer['status']}: {answer.get('why', '')}")


# The database --------------------------------------------------------------------------------------------------------


Check = Callable[["Connection", Settings], Awaitable[Finding]]


async def examine_database(settings: Settings) -> list[Finding]:
    from ondot.store.database import REFUSED, open_database

    findings: list[Finding] = []
    database = await open_database(settings, connections=1)
    try:
        async with database.connection() as connection:
            findings.append(await look_at_version(connection, settings))
            findings.append(await look_at_durability(connection, settings))
            schema = await look_at_schema(connection, settings)
            findings.append(schema)
            for name, check in (*SCHEMA_CHECKS.items(), *SERVER_CHECKS.items()):
                if schema.level != "problem" or name in SERVER_CHECKS:
                    findings.append(await _looked_at(name, check, connection, settings))
    except REFUSED as error:
        message = f"PostgreSQL refuses ONDOT_DATABASE_URL: {error}."
        findings.append(Finding("database", "problem", message, "Correct it, or create what it names."))
    except Unavailable as error:
        message = error.message
        advice = "Start it, or correct ONDOT_DATABASE_URL: the host, the port, a firewall in between?"
        findings.append(Finding("database", "problem", message, advice))
    finally:
        await database.close()
    return findings


async def _looked_at(name: str, check: Check, connection: "Connection", settings: Settings) -> Finding:
    try:
        return await check(connection, settings)
    except OndotError:
        raise
    except Exception as error:  # noqa: BLE001 - one check that may not look must not hide the others
        advice = "Does the user of ONDOT_DATABASE_URL have the rights to look?"
        return Finding(name, "warning", f"Could not look: {type(error).__name__}: {error}.", advice)


async def look_at_version(connection: "Connection", _settings: Settings) -> Finding:
    return judge_version(await connection.fetchval("SHOW server_version"))


async def look_at_durability(connection: "Connection", settings: Settings) -> Finding:
    names = ("fsync", "full_page_writes", "synchronous_commit")
    off = [name for name in names if await connection.fetchval("SELECT current_setting($1)", name) == "off"]
    return judge_durability(off, allowed=settings.allow_unsafe_database)


async def look_at_schema(connection: "Connection", _settings: Settings) -> Finding:
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


async def look_at_days(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.days import read_day_tables

    return judge_days(await read_day_tables(connection))


async def look_at_clock(connection: "Connection", _settings: Settings) -> Finding:
    sent_at, sent_s = datetime.now(UTC), time.monotonic()
    database_at = await connection.fetchval("SELECT clock_timestamp()")
    half_way_s = (time.monotonic() - sent_s) / 2
    return judge_clock((sent_at - database_at).total_seconds() + half_way_s)


async def look_at_schedulers(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.nodes import list_nodes

    return judge_schedulers([len(node["partitions"]) for node in await list_nodes(connection)])


async def look_at_workers(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.overview import queue_depth
    from ondot.store.workers import list_workers

    alive = [worker for worker in await list_workers(connection) if worker["state"] == "ALIVE"]
    served = [pool for worker in alive for pool in worker["pools"]]
    return judge_workers(served, len(alive), {depth.pool for depth in await queue_depth(connection)})


async def look_at_lost_workers(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.workers import list_workers

    return judge_lost_workers([row["host"] for row in await list_workers(connection) if row["state"] == "LOST"])


async def look_at_lag(connection: "Connection", settings: Settings) -> Finding:
    from ondot.store.queue import oldest_due

    return judge_lag(await oldest_due(connection), settings.ready_lag_s)


async def look_at_dead_letters(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.overview import count_dead_letters

    count = await count_dead_letters(connection, DEFAULT_TENANT)
    if not count:
        return Finding("dead letters", "ok", "None.")
    message = (
        f"{count:,} failed executions wait for a person." if count > 1 else "A failed execution waits for a person."
    )
    return Finding("dead letters", "warning", message, "See what they have in common: `ondot dead-letter groups`.")


async def look_at_paused_jobs(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.overview import paused_by_itself

    return judge_paused_jobs(await paused_by_itself(connection, DEFAULT_TENANT, PAUSED_TOLD))


async def look_at_snapshots(connection: "Connection", _settings: Settings) -> Finding:
    from ondot.store.server import old_snapshots

    return judge_snapshots(await old_snapshots(connection, OLD_SNAPSHOT_S))


async def look_at_connections(connection: "Connection", settings: Settings) -> Finding:
    from ondot.store.server import connections_in_use

    room, used = await connections_in_use(connection)
    return judge_connections(room, used, settings.database_connections)


SCHEMA_CHECKS: Final[dict[str, Check]] = {
    "days": look_at_days,
    "schedulers": look_at_schedulers,
    "workers": look_at_workers,
    "lost workers": look_at_lost_workers,
    "lag": look_at_lag,
    "dead letters": look_at_dead_letters,
    "paused jobs": look_at_paused_jobs,
}
SERVER_CHECKS: Final[dict[str, Check]] = {
    "clock": look_at_clock,
    "snapshots": look_at_snapshots,
    "connections": look_at_connections,
}


# Judgements ----------------------------------------------------------------------------------------------------------


def judge_version(version: str) -> Finding:
    from ondot.store.database import NEWEST, OLDEST

    major = int("".join(takewhile(str.isdigit, version)) or 0)
    if major < OLDEST:
        return Finding("database", "problem", f"PostgreSQL {version} is too old.", f"Take {OLDEST} to {NEWEST}.")
    if major > NEWEST:
        message = f"PostgreSQL {version} answers; it is newer than this release was tried on ({OLDEST} to {NEWEST})."
        return Finding("database", "warning", message)
    return Finding("database", "ok", f"PostgreSQL {version} answers.")


def judge_durability(off: Sequence[str], *, allowed: bool) -> Finding:
    if not off:
        return Finding("durability", "ok", "What PostgreSQL confirmed survives a crash.")
    message = f"{' and '.join(f'{name}=off' for name in off)}: a crash loses acknowledged jobs, or the database."
    advice = f"Set {', '.join(off)} to on in postgresql.conf, and reload."
    return Finding("durability", "warning" if allowed else "problem", message, advice)


def judge_days(tables: "Iterable[DayTable]") -> Finding:
    next_day, today, parent = min((table.next_day, table.today, table.parent) for table in tables)
    advice = "A scheduler makes them: is one running (`ondot scheduler`)? `ondot migrate up` makes them too."
    if next_day <= today:
        message = f"{parent} has no partition for today; what comes in is kept, and harder to drop."
        return Finding("days", "problem", message, advice)
    if next_day - today < DAYS_WARNING:
        return Finding("days", "warning", f"{parent} has partitions only until {next_day - DAY}.", advice)
    return Finding("days", "ok", f"Partitions are made until {next_day - DAY}.")


def judge_clock(ahead_s: float) -> Finding:
    if abs(ahead_s) < CLOCK_WARNING_S:
        return Finding("clock", "ok", f"This host and the database differ by {abs(ahead_s):.3f} s.")
    message = f"This host is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the database."
    advice = "Fires follow the database's clock; synchronise both (NTP) so that logs and `--at` mean what they say."
    return Finding("clock", "warning", message, advice)


def judge_schedulers(owned: Sequence[int]) -> Finding:
    """`owned`: how many partitions each live node owns."""
    if not owned:
        return Finding(
            "schedulers", "problem", "None is alive: no fire is planned.", "Start one with `ondot scheduler`."
        )
    alive = f"{len(owned)} alive"
    if sum(owned) < PARTITIONS:
        message = f"{alive}, but {PARTITIONS - sum(owned)} of {PARTITIONS} partitions have no owner."
        return Finding(
            "schedulers", "problem", message, "Look again in 10 s: partitions of a lost node are taken over."
        )
    return Finding("schedulers", "ok", f"{alive}, all {PARTITIONS} partitions are owned.")


def judge_workers(served: Iterable[str], alive: int, waiting: Iterable[str]) -> Finding:
    """`served`: the pools of live workers; `waiting`: the pools in which due work waits."""
    unserved = sorted(set(waiting) - set(served))
    if unserved:
        advice = "Start one: " + ", ".join(f"`ondot worker --pool {pool}`" for pool in unserved)
        return Finding("workers", "problem", f"Work waits in {', '.join(unserved)}, which no worker serves.", advice)
    if not alive:
        return Finding("workers", "warning", "None is alive; nothing is due either.", "Start one with `ondot worker`.")
    return Finding("workers", "ok", f"{alive} alive, for {', '.join(sorted(set(served)))}.")


def judge_lost_workers(hosts: Sequence[str]) -> Finding:
    """`hosts`: where each of those ran that were declared lost in the last ten minutes."""
    if not hosts:
        return Finding("lost workers", "ok", "None in the last 10 minutes.")
    told = ", ".join(f"{count:,} on {host}" for host, count in Counter(hosts).most_common(HOSTS_TOLD))
    message = f"{len(hosts):,} in the last 10 minutes, {told}: what they ran is recovered."
    advice = "Killed for memory (see the system's log), hung, or cut off from the database? See their last log lines."
    return Finding("lost workers", "warning", message, advice)


def judge_lag(due: "OldestDue", limit_s: float) -> Finding:
    if due.lag_s <= limit_s:
        return Finding(
            "lag", "ok", f"The oldest due fire has waited {due.lag_s:.1f} s." if due.lag_s else "Nothing is late."
        )
    message = f"A fire is due for {due.lag_s:.0f} s and not served."
    if (due.unplanned_s or 0.0) >= (due.waiting_s or 0.0):
        return Finding("lag", "problem", message, "It is not planned: is a scheduler running and well (see its log)?")
    advice = f"It waits in pool {due.pool}: add workers or slots (`ondot worker --pool {due.pool} --slots N`)."
    return Finding("lag", "problem", message, advice)


def judge_paused_jobs(paused: "Sequence[PausedRow]") -> Finding:
    """`paused`: the latest of the jobs that ondot paused by itself."""
    if not paused:
        return Finding("paused jobs", "ok", "No job was paused for failing.")
    total = paused[0].total
    told = "; ".join(f"{row.name} ({row.id}): {row.reason}" for row in paused)
    more = f"; and {total - len(paused):,} more" if total > len(paused) else ""
    message = f"{total:,} {'job was' if total == 1 else 'jobs were'} paused for failing: {told}{more}."
    advice = (
        "See why with `ondot job get ID`, mend it, then `ondot job resume ID`; all: `ondot job list --state PAUSED`."
    )
    return Finding("paused jobs", "warning", message, advice)


def judge_snapshots(holders: Sequence[tuple[str, float]]) -> Finding:
    if not holders:
        return Finding("snapshots", "ok", "No old transaction keeps dead rows alive.")
    told = "; ".join(f"{holder}, for {age_s / 60:.0f} min" for holder, age_s in holders)
    advice = "End it (pg_terminate_backend, ROLLBACK PREPARED): leasing slows down until VACUUM can clean up."
    return Finding("snapshots", "warning", f"Old transactions keep dead rows alive: {told}.", advice)


def judge_connections(room: int, used: int, of_one_role: int) -> Finding:
    left = max(room - used, 0)
    told = f"{used} of {room} connections are used."
    if left < of_one_role:
        advice = "Raise max_connections, lower ONDOT_DATABASE_CONNECTIONS, or put PgBouncer in between."
        message = f"{told} A further role (up to {of_one_role}) does not fit."
        return Finding("connections", "problem" if left < 3 else "warning", message, advice)
    return Finding("connections", "ok", told)
