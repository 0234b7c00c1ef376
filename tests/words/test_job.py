"""Durations and instants in words."""

from datetime import UTC, datetime, timedelta

import pytest

from ondot.words.job import ahead, clock, elapsed, took, zones
from tests.proves import proves

NOON = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)


@proves("O5")
@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (-3, "0 s"),
        (0, "0 s"),
        (59.9, "59 s"),
        (65, "1 min 05 s"),
        (7800, "2 h 10 min"),
        (4 * 86400 + 3 * 3600, "4 d 3 h"),
    ],
)
def test_a_running_duration_has_two_units_at_most(seconds: float, words: str) -> None:
    assert elapsed(seconds) == words


@proves("O5")
@pytest.mark.parametrize(
    ("seconds", "words"), [(-5, "now"), (0.4, "now"), (0.6, "in 1 s"), (11.7, "in 12 s"), (90, "in 1 min 30 s")]
)
def test_a_future_time_is_counted_down_to_now(seconds: float, words: str) -> None:
    assert ahead(seconds) == words


@proves("O5")
@pytest.mark.parametrize(
    ("seconds", "words"), [(0.0041, "4 ms"), (1.239, "1.24 s"), (12.34, "12.3 s"), (185, "3 min 05 s")]
)
def test_a_finished_duration_keeps_the_digits_that_matter(seconds: float, words: str) -> None:
    assert took(seconds) == words


@proves("O5")
@pytest.mark.parametrize(
    ("before", "words"),
    [
        (timedelta(), "12:00:05 UTC"),
        (timedelta(days=1), "3 Mar 12:00:05 UTC"),
        (timedelta(days=365), "4 Mar 2025 12:00:05 UTC"),
    ],
)
def test_an_instant_has_a_date_only_if_it_is_not_today(before: timedelta, words: str) -> None:
    assert clock(NOON - before, NOON) == words


def test_the_tooltip_has_the_jobs_zone_if_it_is_not_utc() -> None:
    assert zones(NOON) == zones(NOON, "UTC") == "2026-03-04 12:00:05 UTC"
    assert zones(NOON, "Europe/Berlin") == "2026-03-04 12:00:05 UTC · 2026-03-04 13:00:05 Europe/Berlin"
