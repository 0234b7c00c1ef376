"""How long from `ondot up` to the first served request: on an empty home, and on the same home again.

Medians of three runs (one with --quick). On an empty home the time of `initdb` and of all migrations is in it. The
embedded PostgreSQL has fsync and synchronous_commit on.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

from statistics import median

from question import Result, ask
from started import place, start


def from_cold(quick: bool) -> Result:
    first: list[float] = []
    again: list[float] = []
    for _ in range(1 if quick else 3):
        with place() as home:
            for figures in (first, again):
                started = start(home)
                figures.append(started.took_s)
                started.stop()
    return {"question": "start", "first_s": round(median(first), 2), "again_s": round(median(again), 2)}


if __name__ == "__main__":
    ask(from_cold, full="three runs", quick="one run")
