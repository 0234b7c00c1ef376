"""The fleet on a terminal: problems first, then schedulers, workers and pools.

Made from the API's answers. Ages come from the server (`silent_s`) where it sends them, because this machine's clock
may differ from the server's.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from ondot.cli.listing import Listing
from ondot.cli.output import Json, cell, exact, instant_of, relative, rough, table
from ondot.cli.views import pool_table, running_in_words
from ondot.model.held_back import HeldBack, HeldLine
from ondot.model.ids import EPOCH, JobId
from ondot.model.liveness import is_silent, is_stalled
from ondot.words.fleet import (
    EXPIRED_SHOWN,
    NodeAway,
    PoolLoad,
    StalledLoop,
    Trouble,
    WorkerBeat,
    count_more_expired,
    describe_healthy_fleet,
    find_troubles,
    format_ranges,
)

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

STYLES: Final = {
    "ALIVE": "green",
    "DRAINING": "cyan",
    "SILENT": "yellow",
    "STALLED": "bold red",
    "LOST": "bold red",
    "EXPIRED": "bold red",
}


def fleet_screen(seen: Json, now: datetime) -> "Group":
    from rich.console import Group
    from rich.text import Text

    nodes, workers, pools = seen["nodes"], seen["workers"]["items"], seen["pools"]["items"]
    heartbeat_s = seen["workers"]["heartbeat_s"]
    found = _troubles(seen)
    parts: list[Any] = []
    for trouble in found:
        parts += [_trouble_line(trouble), Text()]
    if not found:
        parts += [cell(f"{describe_healthy_fleet(nodes['partitions'])}.", style="green"), Text()]
    owned = nodes["partitions"] - len(nodes["unowned"])
    for title, drawn, none in (
        (f"Schedulers: {owned} of {nodes['partitions']} partitions owned", node_table(nodes["items"], now), "none"),
        (_workers_title(workers, heartbeat_s), worker_table(workers, heartbeat_s), "none"),
        ("Pools", pool_table(pools, now), "none: a pool is created when a job or a worker first names it"),
    ):
        parts += [cell(title, style="bold"), drawn if drawn.row_count else cell(none, style="dim"), Text()]
    return Group(*parts[:-1])


def away_screen(message: str, now: datetime) -> "Text":
    return cell(f"{message} Retrying.", f"as of {exact(now)}", style="bold red")


def node_table(nodes: Sequence[Json], now: datetime) -> Listing:
    """Live schedulers; below them the latest of those that ended without signing off."""
    drawn = table(
        *("SCHEDULER", "STATE", "PARTITIONS", "HEARTBEAT", "SINCE", "EPOCH", "LEASE", "ID", "RELEASE"),
        drop=("SINCE", "PARTITIONS", "HEARTBEAT"),
        whole=("STATE", "HEARTBEAT"),
        wide=("EPOCH", "LEASE", "ID", "RELEASE"),
    )
    alive = [node for node in nodes if node["state"] == "ALIVE"]
    expired = sorted((node for node in nodes if node["state"] == "EXPIRED"), key=lambda node: node["silent_s"])
    for node in (*alive, *expired[:EXPIRED_SHOWN]):
        state = "STALLED" if is_stalled(node["state"], node.get("stalled_at")) else node["state"]
        drawn.add_row(
            cell(f"{node['host']}:{node['pid']}", style="bold"),
            cell(state, style=STYLES[state]),
            *_describe_owned(node, now),
            node.get("coordination", ""),
            node["id"],
            node["release"],
        )
    if more := count_more_expired([node["silent_s"] for node in expired[EXPIRED_SHOWN:]]):
        drawn.add_row(more, cell("EXPIRED", style=STYLES["EXPIRED"]), *[None] * 7)
    return drawn


def _describe_owned(node: Json, now: datetime) -> tuple["str | Text", ...]:
    """Partitions, the last heartbeat, since when it owns them, and by which epochs."""
    silent = cell(f"{rough(node['silent_s'])} ago", style=STYLES["EXPIRED"] if node["state"] == "EXPIRED" else "")
    partitions = node["partitions"]
    if not partitions:
        return "none", silent, "", ""
    owned = f"{len(partitions)}: {format_ranges(each['partition'] for each in partitions)}"
    epochs = sorted({each["epoch"] for each in partitions})
    epoch = str(epochs[0]) if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]}"
    since = [at for each in partitions if (at := instant_of(each["owned_since"])) is not None]
    first, last = (relative(min(since), now), relative(max(since), now)) if since else ("", "")
    return owned, silent, first if first == last else f"{first} to {last}", epoch


def worker_table(workers: Sequence[Json], heartbeat_s: float) -> Listing:
    """Workers that need attention first."""
    drawn = table(
        *("WORKER", "STATE", "RUNNING", "POOLS", "APP", "HEARTBEAT", "TRUSTS", "TENANTS", "ID", "ONDOT"),
        drop=("APP", "POOLS", "HEARTBEAT"),
        whole=("STATE", "RUNNING", "HEARTBEAT"),
        wide=("TRUSTS", "TENANTS", "ID", "ONDOT"),
    )
    order = ["STALLED", "LOST", "SILENT", "DRAINING", "ALIVE", "GONE"]
    for worker in sorted(workers, key=lambda worker: order.index(_state(worker, heartbeat_s))):
        state = _state(worker, heartbeat_s)
        has_ended = worker["ended_at"] is not None
        drawn.add_row(
            cell(f"{worker['host']}:{worker['pid']}", style="bold"),
            cell(state, style=STYLES.get(state, "dim")),
            "" if has_ended else running_in_words(worker),
            ", ".join(worker["pools"]),
            _describe_app(worker),
            "" if has_ended else cell(f"{rough(worker['silent_s'])} ago", style=STYLES.get(state, "")),
            None if has_ended else ", ".join(worker.get("trusts") or ()) or None,
            _describe_tenants(worker),
            worker["id"],
            worker["release"],
        )
    return drawn


def _describe_app(worker: Json) -> str | None:
    return f"{worker['app']} {worker['app_release']}" if worker.get("app") else None


def _describe_tenants(worker: Json) -> str | None:
    tenants = worker.get("tenants")
    return None if tenants is None else ", ".join(tenants) or "others"


def _state(worker: Json, heartbeat_s: float) -> str:
    if is_stalled(worker["state"], worker.get("stalled_at")):
        return "STALLED"
    return "SILENT" if is_silent(worker["state"], worker["silent_s"], heartbeat_s) else str(worker["state"])


def _workers_title(workers: Sequence[Json], heartbeat_s: float) -> str:
    """The slots of silent workers count, too, as in the table of pools."""
    states = [_state(worker, heartbeat_s) for worker in workers]
    silent = "".join(f", {states.count(state):,} {state.lower()}" for state in ("SILENT", "STALLED") if state in states)
    alive = [worker for worker in workers if worker["state"] == "ALIVE"]
    busy, slots = (sum(worker[what] for worker in alive) for what in ("running", "slots"))
    return f"Workers: {states.count('ALIVE'):,} alive{silent}, {busy:,} of {slots:,} slots busy"


def _troubles(seen: Json) -> list[Trouble]:
    nodes, workers = seen["nodes"], seen["workers"]
    return find_troubles(
        partitions=nodes["partitions"],
        unowned=nodes["unowned"],
        live_nodes=sum(node["state"] == "ALIVE" for node in nodes["items"]),
        pools=[
            PoolLoad(
                pool["name"],
                pool["workers"],
                pool["slots"],
                pool["running"] or 0,
                pool["waiting"],
                pool["oldest_waiting_s"],
            )
            for pool in seen["pools"]["items"]
        ],
        workers=[
            WorkerBeat(f"{worker['host']}:{worker['pid']}", worker["state"], worker["silent_s"])
            for worker in workers["items"]
            if not is_stalled(worker["state"], worker.get("stalled_at"))
        ],
        heartbeat_s=workers["heartbeat_s"],
        stalled=[
            StalledLoop(role, f"{row['host']}:{row['pid']}", row["stalled_in"] or "?")
            for role, rows in (("scheduler", nodes["items"]), ("worker", workers["items"]))
            for row in rows
            if is_stalled(row["state"], row.get("stalled_at"))
        ],
        away=[
            NodeAway(f"{node['host']}:{node['pid']}", node["away_why"])
            for node in nodes["items"]
            if node.get("away_since")
        ],
        held_at=instant_of(nodes.get("held_at")),
        held_why=nodes.get("held_why"),
        held_back=_held_back(seen.get("readiness", {})),
    )


def _held_back(ready: Json) -> HeldBack:
    """As `/readyz` reports it: without lines for a caller who may not read all jobs of the installation."""
    now = EPOCH + timedelta(seconds=ready.get("held_back_s", 0.0))
    lines = tuple(
        HeldLine(
            JobId(UUID(line["job_id"])),
            line.get("job", f"job {line['job_id']}"),
            "",
            line["limit"],
            line["count"],
            EPOCH,
        )
        for line in ready.get("limits", [])
    )
    return HeldBack(now, ready.get("held_back", 0), oldest_at=EPOCH, lines=lines)


def _trouble_line(trouble: Trouble) -> "Text":
    style = "bold red" if trouble.level == "bad" else "yellow"
    advice = f"  Start one: {trouble.command}" if trouble.command else None
    return cell(f"{'!' if trouble.level == 'bad' else '·'} {trouble.text}.", advice, style=style)
