"""What is expected of a job, in zones and over changes of the clocks (O11)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.expect import Fired, came_good, deadline_after, is_met, p90, parse_wall_time, predict_end
from ondot.model.schedule.dst import zone_info
from tests.proves import proves

ZONES = st.sampled_from(
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Beirut"]
)
INSTANTS = st.datetimes(datetime(2020, 1, 1), datetime(2032, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
TIMES = st.times().map(lambda at: f"{at.hour:02}:{at.minute:02}")


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


@proves("O11", "S3")
@given(fire_at=INSTANTS, end_by=TIMES, zone=ZONES)
def test_the_deadline_is_the_next_time_the_clocks_show_it(fire_at: datetime, end_by: str, zone: str) -> None:
    deadline = deadline_after(fire_at, end_by, zone)
    assert fire_at < deadline <= fire_at + timedelta(hours=26)
    local = deadline.astimezone(zone_info(zone))
    before = (deadline - timedelta(microseconds=1)).astimezone(zone_info(zone))
    shown = f"{local.hour:02}:{local.minute:02}"
    # It shows the time, or the clocks jumped over it right there.
    assert shown == end_by or before.replace(tzinfo=None).time() < parse_wall_time(end_by) <= local.time()


@proves("O11", "S3")
@pytest.mark.parametrize(
    ("fire_at", "end_by", "zone", "expected"),
    [
        ("2026-11-16T02:00Z", "06:00", "UTC", "2026-11-16T06:00Z"),
        ("2026-11-16T06:00Z", "06:00", "UTC", "2026-11-17T06:00Z"),  # at the time: it counts for the next day's
        ("2026-11-16T07:00Z", "06:00", "UTC", "2026-11-17T06:00Z"),
        ("2026-11-16T02:00Z", "06:00", "Europe/Berlin", "2026-11-16T05:00Z"),
        ("2026-03-29T00:00Z", "02:30", "Europe/Berlin", "2026-03-29T01:00Z"),  # skipped: right after the gap
        ("2026-03-28T23:00Z", "06:00", "Europe/Berlin", "2026-03-29T04:00Z"),
        ("2026-10-25T00:00Z", "02:30", "Europe/Berlin", "2026-10-25T01:30Z"),  # repeated: the second time
        ("2026-10-24T23:00Z", "06:00", "Europe/Berlin", "2026-10-25T05:00Z"),
    ],
)
def test_the_deadline_of_a_fire(fire_at: str, end_by: str, zone: str, expected: str) -> None:
    assert deadline_after(at(fire_at), end_by, zone) == at(expected)


@proves("O11")
@pytest.mark.parametrize("text", ["6", "24:00", "06:60", "6:0", "-1:00", "06:00:00", "٠٦:٠٠", "", "noon"])
def test_a_time_of_day_that_does_not_exist_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="time of day"):
        parse_wall_time(text)


@proves("O11")
def test_a_fire_meets_what_is_expected_only_in_time() -> None:
    due = at("2026-11-16T06:00Z")
    start, late = due - timedelta(minutes=20), due + timedelta(minutes=5)

    def fired(state: str, **fields: Any) -> Fired:
        return Fired(start, start, state, **fields)

    assert is_met("end_by", fired("SUCCEEDED", ended_at=due), due)
    assert not is_met("end_by", fired("SUCCEEDED", ended_at=late), due)
    assert came_good("end_by", fired("SUCCEEDED", ended_at=late))
    assert not is_met("end_by", fired("FAILED", ended_at=start), due)
    assert is_met("start_within", fired("FAILED", started_at=start), due)
    assert not is_met("start_within", fired("PENDING"), due)


@proves("O11")
def test_a_miss_is_predicted_from_nine_of_ten_runs() -> None:
    assert p90([60.0] * 4) is None
    assert p90([9000.0, 60.0, 60.0, 60.0, 60.0]) == 60.0, "one slow run of a few is no rule"
    assert p90([9000.0, 9000.0, 60.0, 60.0, 60.0]) == 9000.0
    assert p90([*[60.0] * 17, 1500.0, 1500.0, 9000.0]) == 1500.0
    assert p90([float(n) for n in range(1, 21)]) == 18.0
    five_forty = at("2026-11-16T05:40Z")
    running = Fired(five_forty, five_forty, "RUNNING", five_forty, last_started_at=five_forty)
    assert predict_end(running, 25 * 60, five_forty + timedelta(minutes=1)) == at("2026-11-16T06:05Z")
    waiting = Fired(five_forty, five_forty, "PENDING")
    assert predict_end(waiting, 25 * 60, at("2026-11-16T05:50Z")) == at("2026-11-16T06:15Z")
