"""S10: what a calendar leaves out, why, and that nothing else is lost or slow."""

import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import holidays
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ondot.model.errors import InvalidSchedule
from ondot.model.schedule import (
    Blackout,
    Calendar,
    Interval,
    Once,
    Schedule,
    Skipped,
    When,
    check,
    in_words,
    next_fire,
    preview,
)
from tests.model.schedule.making import cron, fires_after, next_fires, utc
from tests.proves import proves

BERLIN = "Europe/Berlin"
DAY = timedelta(days=1)
CHRISTMAS = utc("2026-12-25 09:00")
EVERY_SECOND = cron("* * * * * *", BERLIN).when


def blackout(from_at: str, to_at: str) -> Blackout:
    return Blackout(from_at=utc(from_at), to_at=utc(to_at))


def within(when: When, calendar: Calendar) -> Schedule:
    return Schedule(when=when, calendar=calendar)


def faults(schedule: Schedule, after: datetime | None = None) -> dict[str, str]:
    with pytest.raises(InvalidSchedule) as refusal:
        check(schedule, after)
    return {fault.pointer: fault.message for fault in refusal.value.faults}


def days_of(schedule: Schedule, after: str, n: int) -> list[str]:
    return [fire[:10] for fire in next_fires(schedule, after, n)]


@proves("S10")
def test_holidays_of_a_country_are_left_out_and_those_of_a_region_where_it_is_named() -> None:
    nine = cron("0 9 * * *", BERLIN).when
    around_epiphany = "2027-01-04 12:00"
    assert days_of(within(nine, Calendar(exclude_holidays="DE")), around_epiphany, 2) == ["2027-01-05", "2027-01-06"]
    assert days_of(within(nine, Calendar(exclude_holidays="DE-BY")), around_epiphany, 2) == ["2027-01-05", "2027-01-07"]


@proves("S10")
def test_a_listed_date_is_the_date_on_the_clock_of_the_schedules_zone() -> None:
    calendar = Calendar(exclude_dates=("2026-12-24",))
    auckland = within(cron("0 */6 * * *", "Pacific/Auckland").when, calendar)
    # 13 hours ahead of UTC: the 24th lasts from 11:00 to 11:00 UTC.
    assert next_fires(auckland, "2026-12-23 04:00", 3) == [
        "2026-12-23 05:00:00",
        "2026-12-24 11:00:00",
        "2026-12-24 17:00:00",
    ]
    interval = within(Interval(every_s=6 * 3600, anchor_at=utc("2026-12-01 00:00")), calendar)
    assert next_fires(interval, "2026-12-23 17:00", 2) == ["2026-12-23 18:00:00", "2026-12-25 00:00:00"]


@proves("S10")
@pytest.mark.parametrize(
    ("country", "days"),
    [
        (None, ["2026-12-24", "2026-12-25", "2026-12-28"]),
        ("DE", ["2026-12-24", "2026-12-28", "2026-12-29"]),
        ("EG", ["2026-12-24", "2026-12-27", "2026-12-28"]),  # Friday and Saturday are the weekend
        ("HK", ["2026-12-24", "2026-12-28", "2026-12-29"]),  # Saturday is worked, but the 26th is a holiday
    ],
)
def test_business_days_are_those_of_the_country_or_monday_to_friday(country: str | None, days: list[str]) -> None:
    calendar = Calendar(business_days=True, exclude_holidays=country)
    assert days_of(within(cron("0 9 * * *").when, calendar), "2026-12-23 12:00", 3) == days


@proves("S10")
def test_a_weekend_day_that_a_country_declares_a_working_day_is_one() -> None:
    saturdays = within(cron("0 9 * * 6").when, Calendar(business_days=True, exclude_holidays="CN"))
    assert days_of(saturdays, "2026-02-01 00:00", 1) == ["2026-02-14"]


@proves("S10")
def test_a_blackout_takes_its_first_instant_and_not_its_last() -> None:
    calendar = Calendar(blackouts=(blackout("2026-11-15 12:00", "2026-11-15 14:00"),))
    assert next_fires(within(cron("0 * * * *").when, calendar), "2026-11-15 10:30", 3) == [
        "2026-11-15 11:00:00",
        "2026-11-15 14:00:00",
        "2026-11-15 15:00:00",
    ]


@proves("S10")
def test_blackouts_may_overlap_meet_and_stand_in_any_order() -> None:
    windows = (
        blackout("2026-11-15 16:00", "2026-11-15 18:00"),
        blackout("2026-11-15 12:00", "2026-11-15 15:00"),
        blackout("2026-11-15 13:00", "2026-11-15 14:00"),
        blackout("2026-11-15 15:00", "2026-11-15 15:30"),
    )
    hourly = within(cron("0 * * * *").when, Calendar(blackouts=windows))
    assert [fire[11:16] for fire in next_fires(hourly, "2026-11-15 10:30", 3)] == ["11:00", "18:00", "19:00"]
    for inside in ("12:30", "13:30", "14:30", "15:10", "15:40", "16:40"):
        assert next_fires(hourly, f"2026-11-15 {inside}", 1) == ["2026-11-15 18:00:00"]


@proves("S10")
def test_a_blackout_given_in_another_offset_is_the_same_window() -> None:
    window = msgspec.json.decode(
        b'{"from_at":"2026-11-15T13:00:00+01:00","to_at":"2026-11-15T15:00:00+01:00"}', type=Blackout
    )
    hourly = within(cron("0 * * * *").when, Calendar(blackouts=(window,)))
    assert next_fires(hourly, "2026-11-15 11:30", 1) == ["2026-11-15 14:00:00"]


@proves("S10", "S4")
@pytest.mark.parametrize(
    ("day", "last", "first"),
    [
        ("2026-03-29", "2026-03-28 22:00:00", "2026-03-29 22:00:00"),  # a day of 23 hours
        ("2026-10-25", "2026-10-24 21:00:00", "2026-10-25 23:00:00"),  # of 25
        ("2026-10-26", "2026-10-25 22:00:00", "2026-10-26 23:00:00"),
    ],
)
def test_a_day_left_out_is_as_long_as_it_is_on_the_clock(day: str, last: str, first: str) -> None:
    hourly = within(cron("0 * * * *", BERLIN).when, Calendar(exclude_dates=(day,)))
    before = utc(last) - timedelta(minutes=1)
    assert next_fires(hourly, before.replace(tzinfo=None).isoformat(), 2) == [last, first]


@proves("S10")
def test_a_fire_shifted_out_of_a_skipped_day_counts_by_the_date_it_fires_on() -> None:
    """Samoa left out 2011-12-30; the fire of that day is shifted to the first instant of the 31st."""
    nine = cron("0 9 * * *", "Pacific/Apia").when
    assert next_fires(within(nine, Calendar(exclude_dates=("2011-12-30",))), "2011-12-29 20:00", 2) == [
        "2011-12-30 10:00:00",
        "2011-12-30 19:00:00",
    ]
    assert next_fires(within(nine, Calendar(exclude_dates=("2011-12-31",))), "2011-12-29 20:00", 1) == [
        "2011-12-31 19:00:00"
    ]
    assert next_fires(within(nine, Calendar(exclude_dates=("2011-12-29",))), "2011-12-29 12:00", 1) == [
        "2011-12-30 10:00:00"
    ]


@proves("S10")
def test_a_day_that_the_clock_goes_back_to_is_left_out_both_times() -> None:
    """St. John's set its clock back at 00:01, so that the day before was repeated for 59 minutes."""
    every_half_minute = within(cron("*/30 * * * * *", "America/St_Johns").when, Calendar(exclude_dates=("2010-11-06",)))
    assert next_fires(every_half_minute, "2010-11-06 12:00", 3) == [
        "2010-11-07 02:30:00",  # 00:00 on the 7th, for the first time
        "2010-11-07 02:30:30",
        "2010-11-07 03:30:00",  # 00:00 on the 7th, for the second
    ]


@proves("S10", "S8")
def test_start_and_end_hold_beside_a_calendar() -> None:
    schedule = Schedule(
        when=cron("0 9 * * *").when,
        calendar=Calendar(exclude_dates=("2026-12-24",)),
        start_at=utc("2026-12-24 00:00"),
        end_at=utc("2026-12-26 09:00"),
    )
    assert days_of(schedule, "2026-01-01 00:00", 9) == ["2026-12-25", "2026-12-26"]


@proves("S10", "S9")
def test_the_preview_lists_what_is_left_out_with_the_first_reason_that_holds() -> None:
    calendar = Calendar(
        exclude_holidays="DE",
        exclude_dates=("2026-12-24", "2026-12-25"),
        business_days=True,
        blackouts=(blackout("2026-12-23 00:00", "2026-12-29 00:00"),),
    )
    shown = preview(within(cron("0 9 * * *", BERLIN).when, calendar), utc("2026-12-22 00:00"), 6)
    assert [fire.local[:10] for fire in shown.fires] == [
        *("2026-12-22", "2026-12-29", "2026-12-30", "2026-12-31"),
        *("2027-01-04", "2027-01-05"),
    ]
    assert [(entry.local, entry.reason) for entry in shown.skipped] == [
        ("2026-12-23T09:00:00+01:00", "blackout"),
        ("2026-12-24T09:00:00+01:00", "date"),
        ("2026-12-25T09:00:00+01:00", "holiday"),
        ("2026-12-26T09:00:00+01:00", "holiday"),
        ("2026-12-27T09:00:00+01:00", "weekend"),
        ("2026-12-28T09:00:00+01:00", "blackout"),
    ]


@proves("S10", "S9", "S4")
def test_gaps_and_fires_left_out_stand_in_the_order_of_time() -> None:
    calendar = Calendar(exclude_dates=("2026-03-28", "2026-03-30"))
    shown = preview(within(cron("30 2 * * *", BERLIN, gap="skip").when, calendar), utc("2026-03-27 00:00"), 2)
    assert shown.skipped == (
        Skipped(local="2026-03-28T02:30:00+01:00", reason="date"),
        Skipped(local="2026-03-29T02:30:00", reason="gap"),
    )


@proves("S10", "S9", "S8")
def test_nothing_is_listed_after_the_last_of_max_fires() -> None:
    schedule = Schedule(when=EVERY_SECOND, max_fires=2, calendar=Calendar(exclude_dates=("2026-12-24",)))
    assert preview(schedule, utc("2026-12-23 12:00"), 5).skipped == ()


@proves("S10", "S9")
@pytest.mark.parametrize("when", [EVERY_SECOND, Interval(every_s=1, anchor_at=utc("2026-01-01 00:00"))])
@pytest.mark.timeout(60)
def test_a_schedule_of_seconds_passes_a_blackout_of_years_in_one_step(when: When) -> None:
    calendar = Calendar(blackouts=(blackout("2026-06-01 00:00", "2060-06-01 00:00"),), business_days=True)
    schedule = within(when, calendar)
    assert next_fire(schedule, utc("2026-06-01 00:00")) == utc("2060-06-01 00:00")
    assert len(preview(schedule, utc("2026-06-01 00:00"), 5).skipped) == 5
    assert "/calendar" in faults(schedule, utc("2026-06-01 00:00"))


@proves("S10")
@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("when", "calendar"),
    [
        (cron("* * * * * 6").when, Calendar(business_days=True)),
        (cron("* * * * * SAT,SUN", BERLIN).when, Calendar(business_days=True, exclude_holidays="DE")),
        (cron("0 0 1 1 *", BERLIN).when, Calendar(exclude_holidays="DE")),
        (EVERY_SECOND, Calendar(blackouts=(blackout("2026-01-01 00:00", "2040-01-01 00:00"),))),
    ],
)
def test_a_calendar_that_leaves_nothing_for_five_years_is_refused(when: When, calendar: Calendar) -> None:
    assert "excludes each fire from" in faults(within(when, calendar))["/calendar"]


@proves("S10")
def test_whether_anything_is_left_is_asked_from_the_instant_the_caller_gives() -> None:
    calendar = Calendar(
        blackouts=(blackout("2020-01-01 00:00", "2020-02-01 00:00"), blackout("2026-01-01 00:00", "2040-01-01 00:00"))
    )
    schedule = within(EVERY_SECOND, calendar)
    check(schedule)
    assert "2026-11-15" in faults(schedule, utc("2026-11-15 12:00"))["/calendar"]


@proves("S10")
def test_a_rare_schedule_is_kept_although_its_next_fire_is_left_out() -> None:
    """29 February 2032 is a Sunday; 2036's is a Friday."""
    leap_day = Schedule(
        when=cron("0 0 29 2 *").when, start_at=utc("2028-03-01 00:00"), calendar=Calendar(business_days=True)
    )
    check(leap_day)
    assert next_fire(leap_day, utc("2028-03-01 00:00")) == utc("2036-02-29 00:00")


@proves("S10", "S8")
def test_an_end_before_the_calendar_lets_anything_through_is_refused() -> None:
    schedule = Schedule(
        when=cron("0 9 * * *").when,
        calendar=Calendar(business_days=True),
        start_at=utc("2026-11-14 00:00"),
        end_at=utc("2026-11-15 23:00"),
    )
    assert "exclude less" in faults(schedule)["/calendar"]


@proves("S10", "S1")
@pytest.mark.parametrize(
    ("calendar", "why"),
    [
        (Calendar(exclude_holidays="DE"), "a holiday of DE"),
        (Calendar(exclude_dates=("2026-12-25",)), "one of exclude_dates"),
        (Calendar(blackouts=(blackout("2026-12-25 09:00", "2026-12-25 09:01"),)), "is in a blackout"),
    ],
)
def test_a_one_time_schedule_that_is_left_out_is_refused_with_the_reason(calendar: Calendar, why: str) -> None:
    schedule = within(Once(at=CHRISTMAS), calendar)
    assert why in faults(schedule)["/at"]
    assert next_fire(schedule, CHRISTMAS - DAY) is None
    check(within(Once(at=CHRISTMAS - DAY), calendar))


@proves("S10", "S1")
def test_a_one_time_schedule_on_a_weekend_is_refused_where_only_business_days_count() -> None:
    schedule = within(Once(at=utc("2026-12-26 09:00")), Calendar(business_days=True))
    assert "not a business day" in faults(schedule)["/at"]


@proves("S10")
@pytest.mark.parametrize(
    ("region", "advice"),
    [
        ("de", "did you mean DE?"),
        ("Germany", "did you mean DE?"),
        ("Germny", "did you mean DE?"),
        ("DEU", "did you mean DE?"),
        ("UK", "did you mean GB?"),
        ("DE-Bayern", "did you mean DE-BY?"),
        ("de_by", "did you mean DE-BY?"),
        ("US-CAL", "US-CA"),
        ("DE-XX", "did you mean DE or DE-BB"),
        ("DE-", "did you mean DE or"),
        ("VA-1", "did you mean VA?"),
        ("XX", 'such as "DE"'),
        ("", 'such as "DE"'),
        ("HolidayBase", "not known"),
        ("x" * 5000, "not known"),
    ],
)
def test_an_unknown_country_or_region_is_refused_with_what_is_close(region: str, advice: str) -> None:
    schedule = within(cron("0 9 * * *").when, Calendar(exclude_holidays=region))
    message = faults(schedule)["/calendar/exclude_holidays"]
    assert advice in message
    assert len(message) < 300


@proves("S10")
def test_bad_dates_and_blackouts_are_all_reported_at_once_each_with_its_place() -> None:
    naive = CHRISTMAS.replace(tzinfo=None)
    calendar = Calendar(
        exclude_dates=("2026-12-24", "20261224", "2026-W52-4", "2026-02-30", "24.12.2026", ""),
        blackouts=(
            blackout("2026-01-01 00:00", "2026-01-02 00:00"),
            blackout("2026-01-02 00:00", "2026-01-01 00:00"),
            blackout("2026-01-02 00:00", "2026-01-02 00:00"),
            Blackout(from_at=naive, to_at=CHRISTMAS + DAY),
        ),
    )
    found = faults(Schedule(when=cron("61 * * * *").when, calendar=calendar))
    assert set(found) == {
        "/cron",
        *(f"/calendar/exclude_dates/{index}" for index in range(1, 6)),
        "/calendar/blackouts/1/to_at",
        "/calendar/blackouts/2/to_at",
        "/calendar/blackouts/3/from_at",
    }


@proves("S10", "S9")
@pytest.mark.parametrize(
    ("calendar", "words"),
    [
        (Calendar(), ""),
        (Calendar(exclude_holidays="DE"), ", except holidays of DE"),
        (Calendar(business_days=True), ", on business days"),
        (Calendar(exclude_holidays="DE-BY", business_days=True), ", on business days of DE-BY"),
        (Calendar(exclude_dates=("2026-12-24",)), ", except on 2026-12-24"),
        (Calendar(exclude_dates=("2026-12-24", "2026-12-30", "2026-12-31")), ", except on 3 dates"),
        (Calendar(blackouts=(blackout("2026-01-01 00:00", "2026-01-02 00:00"),)), ", except in 1 blackout"),
    ],
)
def test_a_calendar_is_described_in_words(calendar: Calendar, words: str) -> None:
    assert in_words(within(cron("0 9 * * *", BERLIN).when, calendar)) == f"At 09:00, Europe/Berlin{words}"


@proves("S10", "S8")
def test_a_calendar_comes_back_from_storage_as_it_went_in() -> None:
    calendar = Calendar(
        exclude_holidays="DE",
        exclude_dates=("2026-12-24",),
        business_days=True,
        blackouts=(blackout("2026-01-01 00:00", "2026-01-02 00:00"),),
    )
    schedule = within(EVERY_SECOND, calendar)
    stored = msgspec.json.decode(msgspec.json.encode(schedule), type=Schedule)
    assert stored == schedule
    assert hash(stored) == hash(schedule)
    assert b"calendar" not in msgspec.json.encode(Schedule(when=EVERY_SECOND))


@proves("S10", "S3")
def test_the_end_of_all_years_is_no_trouble() -> None:
    interval = within(
        Interval(every_s=3600, anchor_at=utc("2026-01-01 00:00")), Calendar(business_days=True, exclude_holidays="DE")
    )
    for after in ("9899-12-31 22:00", "9998-12-31 22:00", "9999-12-31 22:00"):
        assert preview(interval, utc(after), 3).in_words
    assert next_fire(interval, utc("9999-12-31 22:00")) is None


@proves("S10", "S9")
def test_without_a_calendar_the_holidays_package_is_not_even_imported() -> None:
    program = (
        "import sys\n"
        "from datetime import UTC, datetime\n"
        "from ondot.model.schedule import Cron, Schedule, check, preview\n"
        "schedule = Schedule(when=Cron(expression='0 9 * * 1-5', timezone='Europe/Berlin'))\n"
        "check(schedule)\n"
        "preview(schedule, datetime(2026, 11, 15, tzinfo=UTC), 5)\n"
        "sys.exit('holidays' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


ZONES = ["UTC", BERLIN, "America/Santiago", "Africa/Cairo", "Australia/Lord_Howe", "Pacific/Apia", "America/St_Johns"]
REGIONS = [None, "DE", "DE-BY", "US-CA", "EG", "HK"]
# Near changes of the clocks of these zones, and anywhere.
CHANGES = [
    *("2026-03-29 01:00", "2026-10-25 01:00", "2026-04-05 03:00", "2026-09-06 04:00", "2026-04-23 22:00"),
    *("2026-10-29 21:00", "2026-04-04 15:00", "2026-10-03 15:30", "2011-12-30 10:00", "2010-11-07 02:31"),
]
INSTANTS = st.one_of(
    st.tuples(st.sampled_from(CHANGES), st.integers(-72 * 60, 12 * 60)).map(
        lambda pair: utc(pair[0]) + timedelta(minutes=pair[1])
    ),
    st.datetimes(datetime(2009, 1, 1), datetime(2034, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)


@st.composite
def calendars(draw: st.DrawFn, near: datetime) -> Calendar:
    days = st.integers(-2, 20).map(lambda n: (near + n * DAY).date().isoformat())
    hours = st.integers(-30, 20 * 24).map(lambda n: near.replace(minute=0) + timedelta(hours=n))
    windows = st.tuples(hours, st.integers(1, 60)).map(
        lambda pair: Blackout(from_at=pair[0], to_at=pair[0] + timedelta(hours=pair[1]))
    )
    return Calendar(
        exclude_holidays=draw(st.sampled_from(REGIONS)),
        exclude_dates=tuple(draw(st.lists(days, max_size=6))),
        business_days=draw(st.booleans()),
        blackouts=tuple(draw(st.lists(windows, max_size=4))),
    )


def is_left_out(calendar: Calendar, zone: str, fire_at: datetime) -> bool:
    day: date = fire_at.astimezone(ZoneInfo(zone)).date()
    by_date = day.isoformat() in calendar.exclude_dates
    by_blackout = any(window.from_at <= fire_at < window.to_at for window in calendar.blackouts)
    if calendar.exclude_holidays is None:
        return by_date or by_blackout or (calendar.business_days and day.isoweekday() > 5)
    country, _, region = calendar.exclude_holidays.partition("-")
    known = holidays.country_holidays(country, subdiv=region or None)
    by_holiday = day in known or (calendar.business_days and not known.is_working_day(day))
    return by_date or by_blackout or by_holiday


@proves("S10")
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    zone=st.sampled_from(ZONES),
    expression=st.sampled_from(["0 9 * * *", "30 2 * * *", "0 * * * *", "30 */5 * * *", "0 0,23 * * *", "0 9 * * 1-5"]),
    after=INSTANTS,
)
def test_the_fires_are_those_of_the_schedule_alone_without_those_left_out(
    data: st.DataObject, zone: str, expression: str, after: datetime
) -> None:
    calendar = data.draw(calendars(after))
    alone = data.draw(st.sampled_from([cron(expression, zone), Schedule(when=Interval(every_s=7000, anchor_at=after))]))
    clock = zone if alone.when == cron(expression, zone).when else "UTC"
    end_at = after + 20 * DAY
    unrestricted = takewhile(lambda at: at <= end_at, fires_after(alone, after))
    expected = [fire_at for fire_at in unrestricted if not is_left_out(calendar, clock, fire_at)]
    found = islice(fires_after(within(alone.when, calendar), after), 1000)
    assert list(takewhile(lambda at: at <= end_at, found)) == expected
