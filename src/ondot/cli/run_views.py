"""Runs of workflows as tables and trees, made from the API's answers, without a request."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Final

from ondot.cli.listing import Listing
from ondot.cli.output import (
    STYLES,
    Json,
    card,
    cell,
    compact,
    console,
    exactly,
    harmless,
    rough,
    state_cell,
    table,
    time_line,
    took,
    when,
)
from ondot.cli.views import error_in_words

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text
    from rich.tree import Tree

MOST_STEPS: Final = 200
"""Steps that a tree shows: those that failed or run come first if there are more. `-o json` has all."""
NAMED: Final = 20
MOST_ITEMS: Final = 20
"""Failed items that are listed below a mapped step."""


def run_table(runs: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("ID", "WORKFLOW", "STATE", "STEPS", "STARTED", "TOOK", "AT", "REASON"),
        drop=("TOOK", "STARTED", "STEPS", "STATE"),
        whole=("ID", "STATE", "STARTED", "TOOK"),
        wide=("AT", "REASON"),
    )
    for run in runs:
        drawn.add_row(
            run["id"],
            cell(run["job_name"] or "-", style="bold"),
            cell(f"{run['state']}, paused" if run["is_paused"] else run["state"], style=STYLES.get(run["state"], "")),
            counts_in_words(run["counts"]),
            when(run["started_at"], now),
            took(run["started_at"], run["ended_at"]),
            exactly(run["started_at"]),
            run["reason"],
        )
    return drawn


def counts_in_words(counts: Json) -> str:
    """`12 of 20`, and those that failed or are blocked."""
    whole = sum(counts.values())
    done = counts["succeeded"] + counts["skipped"]
    bad = [f"{counts[name]:,} {name}" for name in ("failed", "blocked") if counts[name]]
    return ", ".join([f"{done:,} of {whole:,}", *bad])


def run_card(run: Json, now: datetime) -> "Table":
    return card(
        [
            ("run", run["id"]),
            ("workflow", cell(run["job_name"] or "-", run["job_id"], style="bold")),
            ("version", str(run["job_version"])),
            ("state", state_cell(run["state"], run["reason"])),
            ("paused", "yes: no further steps start" if run["is_paused"] else None),
            ("steps", counts_in_words(run["counts"])),
            ("fire", time_line(run["fire_at"], now)),
            ("started", time_line(run["started_at"], now)),
            ("ended", time_line(run["ended_at"], now)),
            ("took", took(run["started_at"], run["ended_at"]) or None),
            ("rerun of", run["rerun_of"]),
            ("child of", run["parent"] and run["parent"]["run_id"]),
            ("payload", compact(run.get("payload"))),
            ("critical path", " → ".join(run["critical_path"][:NAMED]) or None),
        ]
    )


def run_tree(run: Json) -> "Tree":
    """The steps as a tree: each below its first parent, with its other parents named."""
    from rich.tree import Tree

    steps = {step["name"]: step for step in run["steps"]}
    shown = set(steps)
    if len(steps) > MOST_STEPS:
        order = {"FAILED": 0, "RELEASED": 1, "BLOCKED": 2}
        names = sorted(steps, key=lambda name: order.get(steps[name]["state"], 3))
        shown = set(names[:MOST_STEPS])
    tree = Tree(cell(run["job_name"] or run["id"], style="bold"), hide_root=False)
    branches: dict[str, Tree] = {}
    for name, step in steps.items():
        if name in shown:
            parents = [parent for parent in step["depends_on"] if parent in branches]
            above = branches[parents[0]] if parents else tree
            branches[name] = above.add(step_line(step, parents[1:]))
    hidden = sum(run["counts"].values()) - len([name for name in shown if not steps[name]["is_final"]])
    if hidden > 0:
        tree.add(f"{hidden:,} more steps: ondot run get {run['id']} -o json")
    return tree


def step_line(step: Json, other_parents: list[str]) -> "Text":
    """A step in one line: its state, how long it took, and why it is so."""
    line = state_cell("RUNNING" if step["execution_state"] == "RUNNING" else _shown_state(step))
    line.append(f" {harmless(step['name'])}", style="bold")
    words = [
        f"after {', '.join(other_parents)} too" if other_parents else None,
        f"generation {step['generation']}" if step["generation"] > 1 else None,
        rough(step["running_s"]) if step["running_s"] is not None else None,
        items_in_words(step["map"]) if step.get("map") else None,
        _why(step),
        "waits for its generation before to end" if step["is_stopping"] else None,
    ]
    if step["state"] == "WAITING" and step["waits_for"]:
        words.append(f"waits for {', '.join(step['waits_for'][:3])}")
    said = ", ".join(word for word in words if word)
    if said:
        line.append(f"  {harmless(said)}", style="dim")
    return line


def _why(step: Json) -> str | None:
    """Its error; else its reason, which may repeat it."""
    error = error_in_words(step["error"]) if step["state"] == "FAILED" else None
    return error or step["reason"]


def items_in_words(items: Json) -> str:
    failed = f", {items['failed']:,} failed" if items["failed"] else ""
    return f"{items['succeeded']:,} of {items['total']:,} items{failed}"


def _shown_state(step: Json) -> str:
    return "QUEUED" if step["state"] == "RELEASED" and step["execution_state"] == "PENDING" else str(step["state"])


def advice_for(run: Json) -> Iterator[str]:
    """What a person can do about a run that waits for one."""
    if run["state"] == "BLOCKED":
        failed = ", ".join(run["failed_steps"][:NAMED])
        yield ""
        yield f"Blocked by {failed or 'a child run'}. Run it again: ondot run retry {run['id']}"
    elif run["state"] == "FAILED":
        yield ""
        yield f"Run what failed again, as a new run: ondot run rerun {run['id']}"


def step_card(step: Json, now: datetime) -> "Table":
    return card(
        [
            ("step", cell(step["name"], style="bold")),
            ("run", step["run_id"]),
            ("state", state_cell(_shown_state(step), step["reason"])),
            ("after", ", ".join(step["depends_on"][:NAMED]) or None),
            ("rule", step["when"]),
            ("waits for", ", ".join(step["waits_for"][:NAMED]) or None),
            ("generation", str(step["generation"])),
            ("execution", step["execution_id"]),
            ("released", time_line(step["released_at"], now)),
            ("started", time_line(step["started_at"], now)),
            ("ended", time_line(step["ended_at"], now)),
            ("items", items_in_words(step["map"]) if step.get("map") else None),
            ("result", compact(step["result"])),
            ("error", error_in_words(step["error"])),
        ]
    )


def generation_table(generations: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("GENERATION", "STATE", "EXECUTION", "STARTED"),
        drop=("STARTED", "GENERATION"),
        whole=("GENERATION", "STATE", "EXECUTION", "STARTED"),
    )
    for generation in generations:
        drawn.add_row(
            str(generation["generation"]),
            state_cell(generation["state"]),
            generation["execution_id"],
            when(generation["started_at"], now),
        )
    return drawn


def item_table(items: Iterable[Json]) -> Listing:
    drawn = table("ITEM", "EXECUTION", "ERROR", drop=("ERROR",), whole=("ITEM", "EXECUTION"))
    for item in items:
        drawn.add_row(f"{item['item']:,}", item["execution_id"], error_in_words(item["error"]))
    return drawn


def change_in_words(done: Json) -> Iterator[str]:
    """What a change of a run did, or would do."""
    would = "Would run" if done["dry_run"] else "Runs"
    if done["runs_again"]:
        yield f"{would} again, if its rule says so: {_names(done['runs_again'])}"
    if done["stops"]:
        yield f"{'Would cancel' if done['dry_run'] else 'Cancels'} first what runs: {_names(done['stops'])}"
    for name, state in done["set_by_hand"].items():
        yield f"{name} {'would count' if done['dry_run'] else 'counts'} as {state}."
    if done["rerun_of"] is not None:
        run = "a new run would be" if done["dry_run"] else f"the new run {done['run_id']} is"
        yield f"The run {done['rerun_of']} stays as it is; {run} {done['state']}."
        return
    yield f"The run {done['run_id']} {'would be' if done['dry_run'] else 'is'} {done['state']}."


def _names(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


@contextmanager
def live_tree() -> Iterator[Callable[[Json], None]]:
    """Yields a function that draws a run in place; a program sees none of it."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.live import Live

    with Live(console=console(stderr=True), transient=True, auto_refresh=False) as live:
        yield lambda run: live.update(run_tree(run), refresh=True)
