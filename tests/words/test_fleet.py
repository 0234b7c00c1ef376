"""What is wrong with a fleet, in words: each trouble with what to do, and none for a healthy fleet."""

from datetime import UTC, datetime
from typing import Any

import pytest

from ondot.model.liveness import when_lost
from ondot.words.fleet import (
    NodeAway,
    PoolLoad,
    StalledLoop,
    Trouble,
    WorkerBeat,
    count_more_expired,
    find_troubles,
    format_ranges,
)
from tests.proves import proves

HEALTHY: dict[str, Any] = {
    "partitions": 64,
    "unowned": (),
    "live_nodes": 2,
    "pools": [PoolLoad("default", 1, 10, 3, 5, 0.2)],
    "workers": [WorkerBeat("a:1", "ALIVE", 1.0), WorkerBeat("a:2", "GONE", 400.0)],
    "heartbeat_s": 10.0,
}


def troubles(**changes: Any) -> list[Trouble]:
    return find_troubles(**(HEALTHY | changes))


@proves("C1", "O5")
@pytest.mark.parametrize(
    ("numbers", "words"),
    [([], ""), ([7], "7"), (range(22), "0–21"), ([3, 1, 2, 5, 63, 62], "1–3, 5, 62–63")],
)
def test_partitions_are_written_as_ranges(numbers: list[int], words: str) -> None:
    assert format_ranges(numbers) == words


@proves("C1", "O5")
def test_a_healthy_fleet_has_no_troubles() -> None:
    assert troubles() == []


@proves("C1", "O5")
def test_partitions_without_an_owner_come_first() -> None:
    first, second = troubles(unowned=[4, 5, 6], pools=[PoolLoad("default", 1, 10, 10, 900, 61)])
    assert first.level == "bad"
    assert "Partitions 4–6 of 64 have no live owner, so fires of their jobs" in first.text
    assert first.command == "ondot scheduler"
    assert (second.level, second.command) == ("warning", "ondot worker")
    assert "900 due executions wait in pool default, the oldest for 1 min 01 s: all 10 slots are busy" in second.text
    assert "Partition 4 of 64 has no live owner, so fires of its jobs" in troubles(unowned=[4])[0].text
    assert troubles(unowned=range(64), live_nodes=0)[0].text.startswith("No scheduler is running")


@proves("C7", "O5")
def test_a_pool_with_work_and_no_worker_is_bad() -> None:
    [trouble] = troubles(pools=[*HEALTHY["pools"], PoolLoad("mail", 0, 0, 0, 1, 31)])
    assert trouble == Trouble(
        "bad",
        "1 due execution waits in pool mail, the oldest for 31 s, and no worker serves it",
        "ondot worker --pool mail",
    )
    assert troubles(pools=[PoolLoad("mail", 0, 0, 0, 0, None)]) == [
        Trouble("warning", "No worker is running, so due executions will wait", "ondot worker")
    ]


@proves("E6", "O5")
def test_workers_that_are_lost_or_silent_are_named() -> None:
    workers = [*(WorkerBeat(f"a:{n}", "LOST", 12.0) for n in range(5)), WorkerBeat("b:9", "ALIVE", 7.0)]
    lost, silent = troubles(workers=workers)
    assert "5 workers were lost in the last 10 minutes: a:0, a:1, a:2 and 2 more." in lost.text
    assert silent.text == f"1 worker is silent, for up to 7 s: b:9. {when_lost(10)}"


@proves("C1", "O5")
@pytest.mark.parametrize(
    ("silent_s", "words"),
    [([], None), ([9.0, 3599.0], "and 2 more in the last hour"), ([9.0] * 1_000 + [7_200.0], "and 1,001 more")],
)
def test_expired_schedulers_that_are_not_shown_are_counted(silent_s: list[float], words: str | None) -> None:
    assert count_more_expired(silent_s) == words


@proves("C1", "O5", "P3")
def test_during_a_hold_no_start_command_is_suggested() -> None:
    held_at = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)
    gone = {"unowned": range(64), "live_nodes": 0, "workers": [WorkerBeat("a:1", "LOST", 12.0)]}
    pools = [PoolLoad("mail", 0, 0, 0, 1, 31)]
    [trouble] = troubles(**gone, pools=pools, held_at=held_at, held_why="it is another cluster")
    assert (trouble.level, trouble.command) == ("bad", None)
    assert trouble.text.startswith("Nothing starts since 2026-03-04 12:00:00 UTC: it is another cluster. ")
    assert trouble.text.endswith("`ondot doctor --accept-database`")


@proves("P13", "O5")
def test_a_stalled_process_is_named_with_the_line_that_blocks_it() -> None:
    [trouble] = troubles(stalled=[StalledLoop("worker", "a:1", "tasks.py:12 in crawl")])
    assert trouble.level == "bad"
    assert "The worker a:1 is stalled: its event loop is blocked at tasks.py:12 in crawl" in trouble.text


@proves("C6")
def test_schedulers_without_a_lease_are_named_and_not_said_to_be_gone() -> None:
    [trouble] = troubles(
        live_nodes=0, unowned=range(64), away=[NodeAway("a:1", "No lease from etcd: a does not answer")]
    )
    assert trouble == Trouble(
        "bad", "The scheduler a:1 runs, but may plan nothing. No lease from etcd: a does not answer"
    )
