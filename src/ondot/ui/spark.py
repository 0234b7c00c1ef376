"""The spark line of a job: one bar for each of its latest runs, oldest on the left (O5).

The height is how long the run took, beside the others. The state has a shape besides its colour: a run that succeeded
is a whole bar, one that failed has a cross above it, one that runs is hollow, and any other is a short line. The text
of the picture says the same to those who do not see it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

from ondot.model.execution import State
from ondot.store.definitions import Run
from ondot.words.job import took

BAR, GAP = 5, 2
HEIGHT: Final = 26
CROSS: Final = 6
"""The room above the bars."""
LEAST: Final = 4
SHAPES: Final = {State.SUCCEEDED: "whole", State.FAILED: "crossed", State.RUNNING: "hollow", State.RETRYING: "hollow"}


@dataclass(frozen=True, slots=True)
class Bar:
    x: int
    y: float
    height: float
    shape: str
    state: str
    title: str


@dataclass(frozen=True, slots=True)
class Spark:
    bars: tuple[Bar, ...]
    text: str
    width: int

    @property
    def height(self) -> int:
        return HEIGHT


def draw_spark(runs: Sequence[Run], most: int) -> Spark:
    """`runs`: latest first. The latest is always at the right edge, so that rows can be compared."""
    longest_s = max((run.took_s or 0.0 for run in runs), default=0.0)
    first = (most - len(runs)) * (BAR + GAP)
    bars = tuple(_bar(run, first + place * (BAR + GAP), longest_s) for place, run in enumerate(reversed(runs[:most])))
    return Spark(bars, _text(runs), most * (BAR + GAP) - GAP)


def _bar(run: Run, x: int, longest_s: float) -> Bar:
    room = HEIGHT - CROSS
    # By the root, so that one slow run leaves the others visible.
    share = sqrt(run.took_s / longest_s) if run.took_s and longest_s else 0.0
    shape = SHAPES.get(run.state, "short")
    height = round(LEAST + (room - LEAST) * (1.0 if shape == "hollow" else share), 1) if shape != "short" else 2.0
    return Bar(x, round(HEIGHT - height, 1), height, shape, run.state.value.lower(), _title(run))


def _title(run: Run) -> str:
    state = run.state.value.capitalize()
    return state if run.took_s is None else f"{state}, took {took(run.took_s)}"


def _text(runs: Sequence[Run]) -> str:
    if not runs:
        return "No runs"
    counts = Counter(run.state.value.lower() for run in runs)
    parts = ", ".join(f"{count} {state}" for state, count in counts.most_common())
    return f"{len(runs)} latest {'run' if len(runs) == 1 else 'runs'}: {parts}; the latest: {_title(runs[0]).lower()}"
