"""Workflows and their steps as tables, made from the API's answers, without a request."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ondot.cli.listing import Listing
from ondot.cli.output import Json, cell, exactly, state_cell, table, when
from ondot.cli.views import target_in_words

MOST_STEPS = 100
"""Steps that a table shows; `-o json` has all."""


def workflow_table(workflows: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("NAME", "STEPS", "STATE", "NEXT FIRE", "SCHEDULE", "ID", "AT", "KEY"),
        drop=("ID", "SCHEDULE", "STEPS", "NEXT FIRE"),
        whole=("STEPS", "STATE", "NEXT FIRE", "ID"),
        wide=("AT", "KEY"),
    )
    for workflow in workflows:
        drawn.add_row(
            cell(workflow["name"], style="bold"),
            f"{workflow['steps']:,}",
            state_cell(workflow["state"]),
            when(workflow["next_fire_at"], now),
            workflow["schedule_in_words"],
            workflow["id"],
            exactly(workflow["next_fire_at"]),
            workflow.get("key"),
        )
    return drawn


def step_table(steps: Mapping[str, Any]) -> Listing:
    drawn = table("STEP", "AFTER", "DOES", drop=("AFTER",))
    for name, step in list(steps.items())[:MOST_STEPS]:
        drawn.add_row(cell(name, style="bold"), _after(step), step_in_words(step))
    if len(steps) > MOST_STEPS:
        drawn.add_row(f"{len(steps) - MOST_STEPS:,} more", "", "all with -o json")
    return drawn


def _after(step: Mapping[str, Any]) -> str:
    parents = step.get("depends_on", [])
    names = ", ".join(parents[:5]) + (f" and {len(parents) - 5:,} more" if len(parents) > 5 else "")
    when = step.get("when", "success")
    rule = "" if when == "success" else f" ({when.replace('_', ' ')})"
    return ("at the end" + (f", after {names}" if names else "") if step.get("finally") else names) + rule


def step_in_words(step: Mapping[str, Any]) -> str:
    """What a step does, in a few words."""
    match step:
        case {"target": target}:
            words = target_in_words(target)
        case {"wait": {"event": event}}:
            words = f"waits for {event['type']}"
        case {"wait": seconds}:
            words = f"waits {seconds:g} s"
        case {"approve": {"by": role}}:
            words = f"waits for approval by {role}"
        case {"workflow": key}:
            words = f"workflow {key}"
        case _:
            words = "join"
    match step.get("map"):
        case {"each": each}:
            words = f"{words}, for each item of {each}"
        case {"over": {"$from": path}}:
            words = f"{words}, for each of {path if isinstance(path, str) else '.'.join(path)}"
        case {"over": items}:
            words = f"{words}, for each of {len(items):,} items"
    return f"{words}, if its condition is met" if "if" in step else words
