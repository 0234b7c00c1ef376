"""S1, S3 and S8: one fire, fires at a distance, and the bounds of both; and all of them as stored JSON."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.errors import InvalidSchedule
from ondot.model.schedule import Calendar, Interval, Misfire, Once, Schedule, every_of, next_fire
from tests.model.schedule.making import cron, fires_after, utc
from tests.proves import proves

NOON = utc("2026-11-15 12:00")
MICROSECOND = timedelta(microseconds=1)


@proves("S1")
def test_a_one_time_job_fires_once_at_its_instant() -> None:
    schedule = Schedule(when=Once(at=NOON))
    assert next_fire(schedule, NOON - MICROSECOND) == NOON
    assert next_fire(schedule, NOON) is None


@proves("S3")
def test_an_interval_fires_at_its_anchor_first() -> None:
    schedule = Schedule(when=Interval(every_s=900, anchor_at=NOON))
    assert next_fire(schedule, NOON - timedelta(days=400)) == NOON
    assert next_fire(schedule, NOON) == NOON + timedelta(minutes=15)
    assert next_fire(schedule, NOON + timedelta(minutes=14)) == NOON + timedelta(minutes=15)


@proves("S3")
@pytest.mark.parametrize("every_s", [1.1, 7.0, 90.000001, 86_400.0])
def test_an_interval_has_not_drifted_after_a_million_fires(every_s: float) -> None:
    every_us = int(Fraction(str(every_s)) * 1_000_000)
    schedule = Schedule(when=Interval(every_s=every_s, anchor_at=NOON))
    for k in (1, 999, 999_999, 1_000_000):
        late_by = MICROSECOND * (every_us // 3)
        assert (
            next_fire(schedule, NOON + MICROSECOND * (every_us * (k - 1)) + late_by)
            == NOON + MICROSECOND * every_us * k
        )


@proves("S3")
@given(
    every_s=st.floats(1, 1e8),
    anchor_at=st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    after=st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)
def test_the_next_fire_of_an_interval_is_a_multiple_from_its_anchor_and_the_first_one_after(
    every_s: float, anchor_at: datetime, after: datetime
) -> None:
    every = timedelta(microseconds=round(every_s * 1_000_000))
    fire_at = next_fire(Schedule(when=Interval(every_s=every_s, anchor_at=anchor_at)), after)
    assert fire_at is not None
    assert fire_at > after
    assert fire_at >= anchor_at
    assert (fire_at - anchor_at) % every == timedelta(0)
    assert fire_at == anchor_at or fire_at - every <= after


@proves("S3")
def test_an_interval_ends_with_the_calendar() -> None:
    schedule = Schedule(when=Interval(every_s=86_400 * 3000, anchor_at=NOON))
    assert next_fire(schedule, utc("9999-12-31 00:00")) is None


@proves("S8")
@pytest.mark.parametrize(
    "when",
    [cron("0 * * * *").when, cron("0 * * * *", "Europe/Berlin").when, Interval(every_s=3600, anchor_at=NOON)],
)
def test_start_and_end_are_both_included(when: Interval) -> None:
    start_at, end_at = NOON + timedelta(hours=3), NOON + timedelta(hours=5)
    schedule = Schedule(when=when, start_at=start_at, end_at=end_at)
    assert list(fires_after(schedule, NOON)) == [start_at, start_at + timedelta(hours=1), end_at]
    just_inside = Schedule(when=when, start_at=start_at + MICROSECOND, end_at=end_at - MICROSECOND)
    assert list(fires_after(just_inside, NOON)) == [start_at + timedelta(hours=1)]


@proves("S8")
@pytest.mark.parametrize(
    "schedule",
    [
        Schedule(when=Once(at=NOON)),
        Schedule(when=Interval(every_s=90.5, anchor_at=NOON), jitter_s=30, max_fires=3),
        cron("0 9 * * 1-5", "Europe/Berlin", gap="skip", fold="both"),
        Schedule(when=cron("@daily").when, start_at=NOON, end_at=NOON, misfire=Misfire(policy="all", limit=5)),
    ],
)
def test_a_schedule_comes_back_from_storage_as_it_went_in(schedule: Schedule) -> None:
    stored = msgspec.json.encode(schedule)
    assert msgspec.json.decode(stored, type=Schedule) == schedule
    assert hash(msgspec.json.decode(stored, type=Schedule)) == hash(schedule)


@proves("S8")
@pytest.mark.parametrize(
    ("stored", "schedule"),
    [
        (b'{"when":{"kind":"cron","expression":"@daily","new":1,"dst":{"gap":"skip","new":1}},"new":1}', "cron"),
        (b'{"when":{"kind":"interval","every_s":60,"anchor_at":"2026-11-15T12:00:00Z","new":1}}', "interval"),
        (b'{"when":{"kind":"once","at":"2026-11-15T12:00:00Z","new":1},"calendar":{"new":1}}', "once"),
    ],
)
def test_a_schedule_stored_by_a_newer_release_is_read_without_the_fields_it_added(stored: bytes, schedule: str) -> None:
    expected = {
        "cron": cron("@daily", gap="skip"),
        "interval": Schedule(when=Interval(every_s=60, anchor_at=NOON)),
        "once": Schedule(when=Once(at=NOON), calendar=Calendar()),
    }
    assert msgspec.json.decode(stored, type=Schedule) == expected[schedule]


@proves("S2", "S3")
@pytest.mark.parametrize(
    ("text", "every_s"),
    [("@every 90s", 90), (" @EVERY  1h30m ", 5400), ("@every PT15M", 900), ("@hourly", None), ("*/5 * * * *", None)],
)
def test_every_in_a_cron_text_is_an_interval(text: str, every_s: float | None) -> None:
    assert every_of(text) == every_s


@proves("S2", "S3")
@pytest.mark.parametrize("text", ["@every", "@every 90", "@every soon", "@every -5s", "@every P1M"])
def test_every_that_cannot_be_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSchedule, match="after @every it needs a duration") as refusal:
        every_of(text)
    assert [fault.pointer for fault in refusal.value.faults] == ["/cron"]


@proves("S3")
def test_whether_someone_chose_the_anchor_is_remembered_and_moves_no_fire() -> None:
    chosen, default = Interval(every_s=60, anchor_at=NOON, is_anchored=True), Interval(every_s=60, anchor_at=NOON)
    assert chosen != default
    assert msgspec.json.decode(msgspec.json.encode(chosen), type=Interval) == chosen
    assert next_fire(Schedule(when=chosen), NOON) == next_fire(Schedule(when=default), NOON)
