"""The screen of `ondot top`, made from one answer of the API: numbers, pools, what runs, and what comes next."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from ondot.cli.listing import Listing
from ondot.cli.output import Json, cell, exact, instant_of, lasting, relative, rough, table

if TYPE_CHECKING:
    from rich.console import Group

SORTS: Final = ("longest", "name", "worker", "progress")
KEYS: Final = "q quit  p pause  s sort  ↑↓ select  ⏎ explain"
LOW: Final = 18
"""A terminal with fewer lines shows only numbers and what runs."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a person looks at it. `away_since`: the server has not answered since then. `explained`: of the selected."""

    sort: str = "longest"
    selected: int = 0
    is_paused: bool = False
    away_since: datetime | None = None
    away_why: str = ""
    explained: str = ""


def sorted_executions(seen: Json, sort: str) -> list[Json]:
    def place(execution: Json) -> Any:
        match sort:
            case "name":
                return execution["name"], execution["started_at"]
            case "worker":
                return execution["worker"] or "", execution["started_at"]
            case "progress":
                return -(execution["progress"] or 0), execution["started_at"]
        return execution["started_at"]

    return sorted(seen["executions"], key=place)


def top_screen(seen: Json | None, look: Look, height: int | None = None) -> "Group":
    """`height`: of the terminal; None: show all."""
    from rich.console import Group
    from rich.text import Text

    if seen is None:
        return Group(cell(f"{look.away_why} Retrying.", style="bold red"))
    now = instant_of(seen["now"])
    assert now is not None
    parts: list[Any] = list(_head(seen, look, now))
    executions = sorted_executions(seen, look.sort)
    # What runs gets the room that the others leave; pools and fires at most a quarter each, in a low terminal none.
    quarter = None if height is None else (height - len(parts) - 6) // 4 if height >= LOW else 0
    pools, fires = seen["pools"][:quarter], seen["fires"][:quarter]
    taken = len(parts) + sum(len(rows) + 2 for rows in (pools, fires) if quarter != 0) + 2 + 2 * bool(look.explained)
    room = None if height is None else max(height - taken, 1)
    offset = 0 if room is None else max(0, min(look.selected - room + 1, len(executions) - room))
    shown = executions[offset : None if room is None else offset + room]
    parts += [_pool_table(pools), Text()] if quarter != 0 else []
    parts += [_running_table(shown, now, look.selected - offset if height else None)]
    if look.explained:
        parts += [Text(), cell(look.explained, style="yellow")]
    parts += [Text(), _fire_table(fires, now)] if quarter != 0 else []
    if height is not None:
        parts.append(cell(f"{KEYS}   sorted by {look.sort}", style="dim"))
    group = Group(*(_fit(part) for part in parts))
    return group if look.away_since is None else Group(*(_grey(part) for part in group.renderables))


def _head(seen: Json, look: Look, now: datetime) -> list[Any]:
    recent, window_s = seen["recent"], seen["recent"]["window_s"]
    least = "≥" if recent["is_least"] else ""
    rates = ", ".join(f"{least}{recent[what] / window_s:.1f}/s {what}" for what in ("started", "succeeded", "failed"))
    late = "-" if recent["late_s"] is None else f"{recent['late_s']:.2f} s"
    nodes = "" if seen["nodes"] is None else f"{seen['nodes']:,} schedulers, "
    waiting = sum(pool["waiting"] for pool in seen["pools"])
    if look.away_since is not None:
        title = cell(f"not live since {exact(look.away_since)}: {look.away_why}", style="bold red")
    else:
        title = cell(f"ondot top, {exact(now)}" + (", paused" if look.is_paused else ""), style="bold")
    return [
        title,
        cell(f"{nodes}{seen['workers']:,} workers, {seen['running']:,} of {seen['slots']:,} slots busy"),
        cell(f"{waiting:,} waiting, {seen['held_back']:,} held back by limits, {seen['dead_letters']:,} dead letters"),
        cell(f"{rates}; latest start {late} after due (last minute)"),
        cell(""),
    ]


def _pool_table(pools: Sequence[Json]) -> Listing:
    drawn = table(
        *("POOL", "WORKERS", "SLOTS", "WAITING", "OLDEST"),
        drop=("WORKERS", "SLOTS"),
        whole=("WORKERS", "SLOTS", "WAITING", "OLDEST"),
    )
    for pool in pools:
        oldest = pool["oldest_s"]
        drawn.add_row(
            cell(pool["name"], style="bold"),
            f"{pool['workers']:,}",
            f"{pool['slots']:,}",
            cell(f"{pool['waiting']:,}", style="yellow" if pool["waiting"] else ""),
            "" if oldest is None else rough(max(oldest, 0)),
        )
    return drawn


def _running_table(executions: Sequence[Json], now: datetime, selected: int | None) -> Listing:
    drawn = table(
        *("RUNNING", "FOR", "PROGRESS", "WORKER", "ID"),
        drop=("ID", "WORKER", "PROGRESS"),
        whole=("FOR", "PROGRESS", "ID"),
    )
    for place, execution in enumerate(executions):
        started_at = instant_of(execution["started_at"]) or now
        progress = execution["progress"]
        name = execution["name"] + (f" (try {execution['attempt']})" if execution["attempt"] > 1 else "")
        drawn.add_row(
            cell(name, style="reverse" if place == selected else "bold"),
            lasting(now - started_at),
            "" if progress is None else f"{progress:.0%}",
            execution["worker"],
            execution["id"],
        )
    return drawn


def _fire_table(fires: Sequence[Json], now: datetime) -> Listing:
    drawn = table("NEXT FIRE", "WHEN", "AT", drop=("AT",), whole=("WHEN", "AT"))
    for fire in fires:
        at = instant_of(fire["at"]) or now
        drawn.add_row(cell(fire["name"], style="bold"), relative(at, now), exact(at))
    return drawn


def _fit(part: Any) -> Any:
    """A line is cut, not wrapped: a wrapped one would push the last lines out of the terminal."""
    from rich.text import Text

    if isinstance(part, Text):
        part.no_wrap, part.overflow = True, "ellipsis"
    return part


def _grey(part: Any) -> Any:
    from rich.styled import Styled

    return Styled(part, "dim")
