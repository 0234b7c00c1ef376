"""What is wrong with a fleet, in words: each trouble with what to do, and nothing of a fleet that is well."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ondot.model.liveness import when_lost
from ondot.words.fleet import PoolLoad, StalledLoop, Trouble, WorkerBeat, more_expired, ranges, troubles
from tests.proves import proves

WELL: dict[str, Any] = {
    "partitions": 64,
    "unowned": (),
    "live_nodes": 2,
    "pools": [PoolLoad("default", 1, 10, 3, 5, 0.2)],
    "workers": [WorkerBeat("a:1", "ALIVE", 1.0), WorkerBeat("a:2", "GONE", 400.0)],
    "heartbeat_s": 10.0,
}


def told(**changes: Any) -> list[Trouble]:
    return troubles(**(WELL | changes))


@proves("C1", "O5")
@pytest.mark.parametrize(
    ("numbers", "words"),
    [([], ""), ([7], "7"), (range(22), "0–21"), ([3, 1, 2, 5, 63, 62], "1–3, 5, 62–63")],
)
def test_partitions_are_told_in_ranges(numbers: list[int], words: str) -> None:
    assert ranges(numbers) == words


@proves("C1", "O5")
def test_nothing_is_said_of_a_fleet_that_is_well() -> None:
    assert told() == []


@proves("C1", "O5")
def test_partitions_without_an_owner_are_told_first() -> None:
    first, second = told(unowned=[4, 5, 6], pools=[PoolLoad("default", 1, 10, 10, 900, 61)])
    assert first.level == "bad"
    assert "partitions 4–6 have no live owner" in first.text
    assert first.command == "ondot scheduler"
    assert (second.level, second.command) == ("warning", "ondot worker")
    assert "900 due executions wait in pool default, the oldest for 1 min 01 s: all 10 slots are busy" in second.text
    assert "partition 4 has" in told(unowned=[4])[0].text
    assert told(unowned=range(64), live_nodes=0)[0].text.startswith("No scheduler runs")


@proves("C7", "O5")
def test_a_pool_with_work_and_no_worker_is_told_loudly() -> None:
    [trouble] = told(pools=[*WELL["pools"], PoolLoad("mail", 0, 0, 0, 1, 31)])
    assert trouble == Trouble(
        "bad",
        "1 due execution waits in pool mail, the oldest for 31 s, and no worker serves it",
        "ondot worker --pool mail",
    )
    assert told(pools=[PoolLoad("mail", 0, 0, 0, 0, None)]) == [
        Trouble("warning", "No worker runs: what comes due will wait", "ondot worker")
    ]


@proves("E6", "O5")
def test_workers_that_are_lost_or_silent_are_named() -> None:
    workers = [*(WorkerBeat(f"a:{n}", "LOST", 12.0) for n in range(5)), WorkerBeat("b:9", "ALIVE", 7.0)]
    lost, silent = told(workers=workers)
    assert "5 workers were lost in the last 10 minutes: a:0, a:1, a:2 and 2 more." in lost.text
    assert silent.text == f"1 worker is silent, for up to 7 s: b:9. {when_lost(10)}"


@proves("C1", "O5")
@pytest.mark.parametrize(
    ("silent_s", "words"),
    [([], None), ([9.0, 3599.0], "and 2 more in the last hour"), ([9.0] * 1_000 + [7_200.0], "and 1,001 more")],
)
def test_expired_schedulers_that_are_not_shown_are_counted(silent_s: list[float], words: str | None) -> None:
    assert more_expired(silent_s) == words


@proves("C1", "O5", "P3")
def test_while_everything_is_held_nobody_is_told_to_start_what_stands_still() -> None:
    held_at = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
    gone = {"unowned": range(64), "live_nodes": 0, "workers": [WorkerBeat("a:1", "LOST", 12.0)]}
    pools = [PoolLoad("mail", 0, 0, 0, 1, 31)]
    [trouble] = told(**gone, pools=pools, held_at=held_at, held_why="it is another cluster")
    assert (trouble.level, trouble.command) == ("bad", None)
    assert trouble.text.startswith("Nothing starts since 2026-03-04 12:00:00 UTC: it is another cluster. ")
    assert trouble.text.endswith("`ondot doctor --accept-database`")


@proves("P13", "O5")
def test_a_process_whose_loop_stands_still_is_told_with_the_line() -> None:
    [trouble] = told(stalled=[StalledLoop("worker", "a:1", "tasks.py:12 in crawl")])
    assert trouble.level == "bad"
    assert "The worker a:1 hangs: its loop stands still at tasks.py:12 in crawl" in trouble.text
