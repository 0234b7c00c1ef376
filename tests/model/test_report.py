"""The window of a report in the caller's zone, and its first line (O10)."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.report.findings import Finding, Ran, sort_findings, summarize
from ondot.model.report.window import parse_window
from ondot.model.schedule.dst import zone_info
from tests.proves import proves

ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Pacific/Apia", "Africa/Cairo"])
INSTANTS = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@proves("O10")
@given(now=INSTANTS, zone=ZONES)
def test_yesterday_starts_at_the_midnight_before_the_last_one(now: datetime, zone: str) -> None:
    window = parse_window("yesterday", None, zone, now)
    local, today = window.since.astimezone(zone_info(zone)), now.astimezone(zone_info(zone))
    assert today.date() - local.date() == timedelta(days=1)
    # A midnight that a change of the clocks skips is the first instant after it.
    before = (window.since - timedelta(microseconds=1)).astimezone(zone_info(zone))
    assert before.date() < local.date()
    assert window.until == now
    assert window.is_open


@proves("O10")
@pytest.mark.parametrize(
    ("since", "zone", "expected"),
    [
        ("24h", None, "2026-03-28T12:00Z"),
        ("90m", "Europe/Berlin", "2026-03-29T10:30Z"),
        ("yesterday", "Europe/Berlin", "2026-03-27T23:00Z"),
        ("today", "Europe/Berlin", "2026-03-28T23:00Z"),
        ("2026-03-29T01:00", "Europe/Berlin", "2026-03-29T00:00Z"),
        ("2026-03-29T01:00Z", "Europe/Berlin", "2026-03-29T01:00Z"),
    ],
)
def test_a_window_is_read_in_the_callers_zone(since: str, zone: str | None, expected: str) -> None:
    now = datetime(2026, 3, 29, 12, tzinfo=UTC)
    assert parse_window(since, None, zone, now).since == datetime.fromisoformat(expected)


@proves("O10")
def test_the_first_line_counts_what_was_fine_and_what_needs_a_person() -> None:
    def ran(ended: int, succeeded: int, from_at: datetime | None = None) -> Ran:
        return Ran(ended, succeeded, ended - succeeded, 0, 0, from_at)

    assert summarize(ran(2341, 2339), 2, 3) == "2,341 ran, 2,339 succeeded. 2 things need a person."
    assert summarize(ran(5, 5), 0, 0) == "5 ran, 5 succeeded. Nothing went wrong."
    assert summarize(ran(5, 5), 0, 1) == "5 ran, 5 succeeded. Nothing needs a person."
    assert summarize(ran(0, 0), 1, 1) == "Nothing ran. 1 thing needs a person."
    assert summarize(ran(0, 0), 0, 0) == "Nothing ran, and nothing went wrong."
    assert summarize(ran(9, 9, datetime(2026, 1, 1, tzinfo=UTC)), 0, 0).startswith("At least 9 ran")


@proves("O10")
def test_open_findings_are_first_and_the_worst_kind_before_the_most() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    many = Finding("late", "late", 900, is_open=False, last_at=at)
    few = Finding("failed", "broke", 1, is_open=True, last_at=at)
    blocked = Finding("blocked", "waits", 5, is_open=True, last_at=at)
    done = Finding("failed", "replayed", 7, is_open=False, last_at=at, repaired=7)
    assert [one.reason for one in sort_findings([many, done, blocked, few])] == ["broke", "waits", "late", "replayed"]
