"""The judgements of `ondot doctor`: plain functions from facts to findings with advice."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Literal

from ondot.model.check import MEANINGS, Kind
from ondot.model.ids import PARTITIONS
from ondot.model.liveness import when_lost

if TYPE_CHECKING:
    from datetime import datetime

    from ondot.model.held_back import HeldBack
    from ondot.store.audit_seals import Sealing
    from ondot.store.check import Found
    from ondot.store.days import DayTable
    from ondot.store.declared import DroppedRow, RefusedRow
    from ondot.store.keys import Access
    from ondot.store.lineage import Lineage
    from ondot.store.overview import PausedRow
    from ondot.store.queue import OldestDue
    from ondot.store.sinks import SinkRow

Level = Literal["ok", "warning", "problem"]

CLOCK_WARNING_S: Final = 2.0
DAYS_WARNING: Final = timedelta(days=3)
DAY: Final = timedelta(days=1)
HOSTS_SHOWN: Final = 5
DECLARATIONS: Final = 3
LATE_S: Final = 2.0
UNSEALED_WARNING_S: Final = 30.0
RECENT: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    message: str
    advice: str | None = None

    def as_dict(self) -> dict[str, str | None]:
        return asdict(self)


def judge_version(version: str) -> Finding:
    from ondot.store.database import NEWEST, OLDEST

    major = int("".join(takewhile(str.isdigit, version)) or 0)
    if major < OLDEST:
        return Finding("database", "problem", f"PostgreSQL {version} is too old.", f"Use {OLDEST} to {NEWEST}.")
    if major > NEWEST:
        message = f"PostgreSQL {version} answers; this release was tested with {OLDEST} to {NEWEST}."
        return Finding("database", "warning", message)
    return Finding("database", "ok", f"PostgreSQL {version} answers.")


def judge_away(message: str, *, may_pass: bool) -> Finding:
    """`may_pass`: there is a PostgreSQL, which cannot answer now."""
    if may_pass:
        advice = (
            "Wait, then check again: when it answers, all roles continue. If this lasts, read PostgreSQL's log"
            " (of `ondot up`: postgresql.log in its home)."
        )
    else:
        advice = "Start it, or correct ONDOT_DATABASE_URL. Check the host, the port, and any firewall in between."
    return Finding("database", "problem", message, advice)


def judge_sinks(sinks: "Sequence[SinkRow]", kept_hours: int) -> Finding:
    """Sinks that fail, those that have lost events, and those that are paused."""
    if failing := [sink for sink in sinks if sink.failing_since is not None and not sink.is_paused]:
        first = failing[0]
        more = f", and {len(failing) - 1} more" if len(failing) > 1 else ""
        message = (
            f"The sink {first.name} has failed since {first.failing_since:%Y-%m-%d %H:%M} UTC{more}: {first.error}"
        )
        advice = f"Fix its receiver, then `ondot sink test {first.name}`. Events wait for {kept_hours} hours."
        return Finding("sinks", "warning", message, advice)
    if lost := [sink for sink in sinks if sink.dropped or sink.refused]:
        first = lost[0]
        message = f"The sink {first.name} left out {first.dropped + first.refused:,} events: too old, or refused."
        return Finding("sinks", "warning", message, f"See its last error: `ondot sink get {first.name}`.")
    if not sinks:
        return Finding("sinks", "ok", "None.")
    return Finding("sinks", "ok", "One sink works." if len(sinks) == 1 else f"{len(sinks):,} sinks work.")


def judge_durability(off: Sequence[str], *, allowed: bool) -> Finding:
    if not off:
        return Finding("durability", "ok", "Confirmed commits survive a crash.")
    message = f"{' and '.join(f'{name}=off' for name in off)}: a crash can lose acknowledged jobs or the database."
    advice = f"Set {', '.join(off)} to on in postgresql.conf, and reload."
    return Finding("durability", "warning" if allowed else "problem", message, advice)


def judge_lineage(found: "Lineage | None") -> Finding:
    if found is None:
        return Finding(
            "lineage", "warning", "This PostgreSQL does not show its identity, so a restored backup goes unnoticed."
        )
    if (why := found.why_not) is not None:
        since = f" since {found.held_at:%Y-%m-%d %H:%M:%S} UTC" if found.held_at else ""
        message = f"Everything is held{since}: {why}. No fire is planned and nothing starts; the API answers."
        advice = (
            "Recently acknowledged jobs may be missing, and recent runs may run again. Cancel or pause whatever must"
            " not run twice, then run `ondot doctor --accept-database`. Missed fires follow each job's misfire policy."
        )
        return Finding("lineage", "problem", message, advice)
    if found.server.is_synchronous:
        return Finding("lineage", "ok", "It is the server that ondot last ran on; a standby has every commit.")
    return Finding("lineage", "ok", "It is the server that ondot last ran on.")


def judge_secrets(
    masters: Mapping[str, int], missing: Mapping[str, int], old: Mapping[str, int], plain: int, *, has_key: bool
) -> Finding:
    """`masters`: data keys by the master key that encrypts them; `missing`: those that nothing here can decrypt; `old`:
    those of another master key than the first; `plain`: jobs with credentials that are not encrypted."""
    if missing:
        names = ", ".join(missing)
        message = f"{_count(sum(missing.values()), 'data key')} of no use: the master key {names} is missing."
        advice = (
            "Add that key to ONDOT_SECRET_KEY of every API and worker. If it is lost:"
            " docs/reference/operations.md, runbook."
        )
        return Finding("secrets", "problem", message, advice)
    if plain:
        message = f"{_count(plain, 'job')} stored with credentials in plain, among the newest 10,000."
        advice = "Set ONDOT_SECRET_KEY (`ondot secret generate-key`), and send these jobs again."
        return Finding("secrets", "warning", message, advice)
    if masters and not has_key:
        message = "There are secrets, and this process has no ONDOT_SECRET_KEY, so their master key is not checked."
        return Finding("secrets", "warning", message, "Run `ondot doctor` with the key of the API and the workers.")
    if old:
        message = f"{_count(sum(old.values()), 'data key')} encrypted with an old master key ({', '.join(old)})."
        return Finding("secrets", "warning", message, "Run `ondot secret rotate-master`, then remove the old key.")
    if not has_key:
        return Finding("secrets", "ok", "There are none, and no master key.")
    return Finding("secrets", "ok", "The master key decrypts the secrets of every tenant.")


def _count(count: int, noun: str) -> str:
    return f"1 {noun} is" if count == 1 else f"{count:,} {noun}s are"


def judge_access(found: "Access") -> Finding:
    if found.is_shared and not found.owners:
        message = "Nobody is an owner, so nobody can create tenants or change the limits of pools over the API."
        advice = "Run `ondot user create --owner you@example.com`, or `ondot key create NAME --role owner`."
        return Finding("access", "warning", message, advice)
    if found.expiring:
        keys = ", ".join(f"{name!r} of {tenant} on {at:%Y-%m-%d}" for name, tenant, at in found.expiring)
        message = f"Keys expire within two weeks: {keys}."
        return Finding(
            "access", "warning", message, "Replace each with `ondot key rotate ID`; `ondot key list` has ids."
        )
    if not found.is_shared:
        return Finding("access", "ok", "There is one tenant and nobody signs in: no key ends within two weeks.")
    return Finding("access", "ok", "There is an owner, and no key ends within two weeks.")


def judge_days(tables: "Iterable[DayTable]") -> Finding:
    next_day, today, parent = min((table.next_day, table.today, table.parent) for table in tables)
    advice = "A scheduler creates them: check that one is running. `ondot migrate up` creates them too."
    if next_day <= today:
        message = f"{parent} has no partition for today; new rows are kept, but are harder to delete later."
        return Finding("days", "problem", message, advice)
    if next_day - today < DAYS_WARNING:
        return Finding("days", "warning", f"{parent} has partitions only until {next_day - DAY}.", advice)
    return Finding("days", "ok", f"Partitions exist until {next_day - DAY}.")


def judge_audit(found: "Sealing", *, has_key: bool) -> Finding:
    if found.waiting_s > UNSEALED_WARNING_S:
        message = f"Entries of the audit log have waited for their seal for {found.waiting_s:.0f} s."
        return Finding(
            "audit log", "warning", message, "A scheduler seals them each second: check that one is running."
        )
    if not has_key:
        message = "The audit log is sealed without a key: people who can write to the database could seal it again."
        return Finding("audit log", "ok", message, "Set ONDOT_AUDIT_KEY_FILE for schedulers: docs/guides/audit.md.")
    return Finding("audit log", "ok", "It is sealed with a key. Verify it with `ondot audit verify`.")


def judge_clock(ahead_s: float) -> Finding:
    if abs(ahead_s) < CLOCK_WARNING_S:
        return Finding("clock", "ok", f"This host and the database differ by {abs(ahead_s):.3f} s.")
    message = f"This host is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the database."
    advice = "Fires follow the database's clock. Synchronise both (NTP), so that log times and `--at` are right."
    return Finding("clock", "warning", message, advice)


def judge_schedulers(owned: Sequence[int], away: int = 0) -> Finding:
    """`owned`: how many partitions each live node owns; `away`: nodes that run without a lease."""
    if not owned and away:
        message = f"{count_of(away, 'scheduler')} without a lease: no fire is planned."
        return Finding("schedulers", "problem", message, "See coordination.")
    if not owned:
        return Finding(
            "schedulers", "problem", "None is alive: no fire is planned.", "Start one with `ondot scheduler`."
        )
    alive = f"{len(owned)} alive"
    if sum(owned) < PARTITIONS:
        message = f"{alive}, but {PARTITIONS - sum(owned)} of {PARTITIONS} partitions have no owner."
        return Finding(
            "schedulers", "problem", message, "Check again in 10 s: live nodes take over the partitions of a lost one."
        )
    return Finding("schedulers", "ok", f"{alive}, all {PARTITIONS} partitions are owned.")


def count_of(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def judge_workers(served: Iterable[str], alive: int, waiting: Iterable[str], silent: Collection[str] = ()) -> Finding:
    """`served`: pools of live workers; `silent`: pools of silent workers; `waiting`: pools in which due work waits."""
    without_live = set(waiting) - set(served)
    unserved = sorted(without_live - set(silent))
    if unserved:
        advice = f"Start one: {_commands(unserved)}"
        return Finding("workers", "problem", f"Work waits in {', '.join(unserved)}, which no worker serves.", advice)
    if without_live:
        message = f"Work waits in {', '.join(sorted(without_live))}, and all workers of it are silent."
        return Finding("workers", "warning", message, f"If this lasts, start one: {_commands(sorted(without_live))}")
    if not alive and silent:
        return Finding("workers", "warning", "All are silent. No work is due.")
    if not alive:
        return Finding("workers", "warning", "None is alive. No work is due.", "Start one with `ondot worker`.")
    return Finding("workers", "ok", f"{alive} alive, for {', '.join(sorted(set(served)))}.")


def _commands(pools: Iterable[str]) -> str:
    return ", ".join(f"`ondot worker --pool {pool}`" for pool in pools)


def judge_silent_workers(silent: Sequence[tuple[str, float]], heartbeat_s: float) -> Finding:
    """`silent`: the host of each silent worker, and the seconds since its last heartbeat."""
    if not silent:
        return Finding("silent workers", "ok", "None.")
    longest_s = max(silent_s for _, silent_s in silent)
    message = f"{len(silent):,}, for up to {longest_s:.0f} s: {_by_host(host for host, _ in silent)}."
    advice = f"They may be hung, stopped, or cut off from the database: read their logs. {when_lost(heartbeat_s)}."
    return Finding("silent workers", "warning", message, advice)


def judge_stalled(stalled: Sequence[tuple[str, str, str]]) -> Finding:
    """`stalled`: role, host and line of code of each process whose loop is blocked, or was when it was lost."""
    if not stalled:
        return Finding("stalled loops", "ok", "None.")
    listed = "; ".join(f"a {role} on {host}, at {where}" for role, host, where in stalled[:HOSTS_SHOWN])
    more = f"; and {len(stalled) - HOSTS_SHOWN:,} more" if len(stalled) > HOSTS_SHOWN else ""
    advice = (
        "Other processes take over the work, and the blocked one restarts by itself. Its log has the stack"
        " (`loop.stalled`). If your function blocks: make it a plain `def`, which runs in a thread, or await instead of"
        " blocking; until then it runs in a child process. Otherwise please report it."
    )
    return Finding("stalled loops", "warning", f"{len(stalled):,} recently: {listed}{more}.", advice)


def judge_lost_workers(hosts: Sequence[str]) -> Finding:
    """`hosts`: the host of each worker that was marked lost in the last ten minutes."""
    if not hosts:
        return Finding("lost workers", "ok", "None in the last 10 minutes.")
    message = f"{len(hosts):,} in the last 10 minutes, {_by_host(hosts)}. Their work is recovered."
    advice = "They may have been killed for memory (see the system's log), hung, or cut off: read their last log lines."
    return Finding("lost workers", "warning", message, advice)


def _by_host(hosts: Iterable[str]) -> str:
    return ", ".join(f"{count:,} on {host}" for host, count in Counter(hosts).most_common(HOSTS_SHOWN))


def judge_lag(due: "OldestDue", limit_s: float) -> Finding:
    """A warning from the lag that people notice, a problem from the lag at which `/readyz` fails."""
    if due.lag_s <= min(LATE_S, limit_s):
        message = f"The oldest due fire has waited {due.lag_s:.1f} s." if due.lag_s else "Nothing is late."
        return Finding("lag", "ok", message)
    level: Level = "problem" if due.lag_s > due.limit_s(limit_s) else "warning"
    message = f"A fire has been due for {due.lag_s:.0f} s and has not started."
    if (due.unplanned_s or 0.0) >= (due.waiting_s or 0.0):
        return Finding("lag", level, message, "It is not planned: check that a scheduler is running, and read its log.")
    advice = f"It waits in pool {due.pool}: add workers or slots (`ondot worker --pool {due.pool} --slots N`)."
    return Finding("lag", level, message, advice)


def judge_held_back(held: "HeldBack") -> Finding:
    if not held.is_behind:
        message = f"{held.counted} wait for one, none for long." if held.count else "Nothing waits for one."
        return Finding("limits", "ok", message)
    worst = "; ".join(f"{line.count:,} of {line.job_name} ({line.job_id}): {line.limit}" for line in held.lines)
    worst = f" {worst}." if worst else ""
    waits = "execution waits" if held.count == 1 else "executions wait"
    message = f"{held.counted} due {waits} for a limit, the oldest for {held.oldest_s:.0f} s.{worst}"
    advice = (
        "Raise the limit (`ondot job update ID --concurrency N`), run the job less often, make it faster, or cancel"
        " executions (`ondot execution cancel ID`). To see why one waits: `ondot execution explain ID`."
    )
    return Finding("limits", "warning", message, advice)


def judge_paused_jobs(paused: "Sequence[PausedRow]") -> Finding:
    """`paused`: the latest jobs that ondot paused by itself."""
    if not paused:
        return Finding("paused jobs", "ok", "No job is paused because of failures.")
    total = paused[0].total
    listed = "; ".join(f"{row.name} ({row.id}): {row.reason}" for row in paused)
    more = f"; and {total - len(paused):,} more" if total > len(paused) else ""
    message = f"{total:,} {'job is' if total == 1 else 'jobs are'} paused because of failures: {listed}{more}."
    advice = (
        "See why with `ondot job get ID`, fix the cause, then run `ondot job resume ID`. All of them:"
        " `ondot job list --state PAUSED`."
    )
    return Finding("paused jobs", "warning", message, advice)


def judge_declarations(refused: "Sequence[RefusedRow]", dropped: "Sequence[DroppedRow]") -> Finding:
    """What the code of apps declares in vain, and jobs that their app no longer declares."""
    if not refused and not dropped:
        return Finding("declarations", "ok", "Every job of an app's code is declared by it.")
    listed = [f"{row.app} {row.release} declares {row.key}, refused: {row.why}" for row in refused[:DECLARATIONS]]
    listed += [
        f"{row.key} is no longer declared by {row.app} since {row.dropped_release}" for row in dropped[:DECLARATIONS]
    ]
    more = max(len(refused) - DECLARATIONS, 0) + max(len(dropped) - DECLARATIONS, 0)
    message = "; ".join(listed) + (f"; and {more} more." if more else ".")
    advice = (
        "Hand a key over with `ondot job adopt JOB APP`, or give the job another `key` in the code. Delete what nobody"
        " needs: `ondot job delete JOB`."
    )
    return Finding("declarations", "warning", message, advice)


def judge_snapshots(holders: Sequence[tuple[str, float]]) -> Finding:
    if not holders:
        return Finding("snapshots", "ok", "No old transaction keeps dead rows from being cleaned up.")
    listed = "; ".join(f"{holder}, for {age_s / 60:.0f} min" for holder, age_s in holders)
    advice = "End them (pg_terminate_backend, ROLLBACK PREPARED): leasing slows down until VACUUM can clean up."
    return Finding("snapshots", "warning", f"Old transactions keep dead rows from being cleaned up: {listed}.", advice)


def judge_connections(room: int, used: int, of_one_role: int) -> Finding:
    left = max(room - used, 0)
    message = f"{used} of {room} connections are used."
    if left < of_one_role:
        advice = "Raise max_connections, lower ONDOT_DATABASE_CONNECTIONS, or put PgBouncer in between."
        message = f"{message} Another role (up to {of_one_role}) does not fit."
        return Finding("connections", "problem" if left < 3 else "warning", message, advice)
    return Finding("connections", "ok", message)


def judge_self_check(found: "Sequence[Found]", now: "datetime") -> Finding:
    """`found`: every row without an owner since the installation. Each was repaired, but is a bug in ondot."""
    if not found:
        return Finding("self-check", "ok", "It has never found a row without an owner.")
    recent = [entry for entry in found if now - entry.last_at < RECENT]
    listed = "; ".join(
        f"{entry.count:,} × {_what(entry.kind)} (last {entry.last_at:%Y-%m-%d %H:%M:%S} UTC,"
        f" e.g. {', '.join(entry.example['ids'][:1])}: {entry.example['done']})"
        for entry in (recent or found)
    )
    if not recent:
        return Finding("self-check", "ok", f"Nothing in the last day. Before that: {listed}.")
    advice = (
        "Each is a bug in ondot. Please report it, with the schedulers' log of that time (`self_check.found`). If a job"
        " could not be planned, update or delete it."
    )
    return Finding("self-check", "warning", f"It found rows without an owner: {listed}.", advice)


def _what(kind: str) -> str:
    """The kind in words. A newer release may have recorded a kind that this one does not know."""
    return MEANINGS[Kind(kind)].what if kind in {known.value for known in Kind} else kind


def judge_functions(
    waiting: Sequence[tuple[str, int]], shared: Sequence[tuple[str, Sequence[str], str]] = ()
) -> Finding:
    """`waiting`: functions that no worker has, and how many executions wait for each, most first. `shared`: functions
    of one name in several apps, with the apps and the pool."""
    if waiting:
        listed = ", ".join(f"{name!r} ({count:,})" for name, count in waiting)
        message = f"Executions wait for functions that the workers of their pool do not have: {listed}."
        advice = (
            "Start workers that have them: `ondot worker MODULE:APP`. `ondot function list` shows those that are known."
        )
        return Finding("functions", "warning", message, advice)
    if shared:
        listed = "; ".join(f"{name!r} of {' and '.join(apps)}, in the pool {pool}" for name, apps, pool in shared)
        message = f"Different functions have one name, so an execution may run the wrong one: {listed}."
        advice = "Give one of them another name, @app.job(name=…), or its app another pool."
        return Finding("functions", "warning", message, advice)
    return Finding("functions", "ok", "Workers have the functions that executions wait for, one of each name.")
