"""The health line of the first page: on the dot, or late and why."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from ondot.store.overview import Fleet, Missed, PoolAtWork
from ondot.ui.health import judge
from tests.proves import proves

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def fleet(*, nodes: int = 1, workers: int = 1) -> Fleet:
    return Fleet(NOW, nodes=nodes, workers=workers, slots=10 * workers, draining=0)


def pool(name: str = "default", *, workers: int = 1, waits_s: float | None = None) -> PoolAtWork:
    oldest_at = None if waits_s is None else ago(waits_s)
    return PoolAtWork(name, workers, 10 * workers, 0 if waits_s is None else 1, oldest_at)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@proves("L7")
@pytest.mark.parametrize(("waits_s", "words"), [(None, "0.0 s"), (0.34, "0.3 s")])
def test_a_queue_younger_than_a_second_is_on_the_dot(waits_s: float | None, words: str) -> None:
    health = judge(fleet(), [pool(waits_s=waits_s)], None, running=0)
    assert (health.level, health.word) == ("good", "On the dot")
    assert health.text == f"the oldest due fire has waited {words}"


@proves("L7")
def test_late_names_the_pool_without_a_worker_and_what_to_start() -> None:
    health = judge(fleet(), [pool(waits_s=2), pool("reports", workers=0, waits_s=42)], None, running=0)
    assert (health.level, health.word, health.since) == ("bad", "Late", ago(42))
    assert health.why == "No worker serves pool reports"
    assert health.command == "ondot worker --pool reports"


@proves("L7")
def test_late_reports_that_every_slot_is_busy() -> None:
    health = judge(fleet(), [pool(waits_s=5)], None, running=10)
    assert health.why == "All 10 slots of pool default are busy"


@proves("L7")
@pytest.mark.parametrize(("nodes", "why"), [(0, "No scheduler is running"), (1, "No scheduler has planned it yet")])
def test_an_unplanned_fire_is_late_even_if_the_queue_is_empty(nodes: int, why: str) -> None:
    health = judge(fleet(nodes=nodes), [pool()], ago(3), running=0)
    assert (health.level, health.since, health.why) == ("bad", ago(3), why)


@proves("C6")
def test_schedulers_without_a_lease_are_not_said_to_be_gone() -> None:
    away = replace(fleet(nodes=0), away="etcd")
    why = "Schedulers have no lease because etcd is away"
    assert judge(away, [pool()], ago(3), running=0).why == why
    assert judge(away, [pool()], None, running=0).text == f"{why[0].lower()}{why[1:]}, so no fire is planned"


@proves("L7")
@pytest.mark.parametrize(("nodes", "workers", "command"), [(0, 1, "ondot scheduler"), (1, 0, "ondot worker")])
def test_a_missing_role_is_reported_before_anything_is_late(nodes: int, workers: int, command: str) -> None:
    health = judge(fleet(nodes=nodes, workers=workers), [pool(workers=workers)], None, running=0)
    assert (health.level, health.command) == ("warning", command)


@proves("O5", "S6")
def test_fires_missed_in_an_outage_are_reported_with_a_link_to_their_list() -> None:
    health = judge(fleet(), [pool()], None, running=0, missed=Missed(76, 3, False))
    assert (health.level, health.word) == ("warning", "After an outage")
    assert health.text == "76 fires of 3 jobs were missed and will not run"
    assert health.link is not None
    assert health.link[0] == "/skipped"
    one = judge(fleet(), [pool()], None, running=0, missed=Missed(1, 1, True))
    assert one.text.startswith("at least 1 fire of 1 job was missed")
    assert judge(fleet(), [pool()], None, running=0).level == "good"
    assert judge(fleet(), [pool(waits_s=5)], None, running=10, missed=Missed(76, 3, False)).word == "Late"


@proves("L7", "P3")
def test_a_hold_is_reported_before_the_lateness_that_it_causes() -> None:
    held = replace(fleet(nodes=0, workers=0), held_at=ago(90), held_why="it is another cluster")
    health = judge(held, [pool(workers=0, waits_s=42)], ago(3), running=0)
    assert (health.level, health.word, health.since, health.command) == ("bad", "On hold", ago(90), None)
    assert health.why.startswith("Reason: it is another cluster. ")
    assert "`ondot doctor --accept-database`" in health.why
