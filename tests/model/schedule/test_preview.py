"""S9: the coming fires with their remarks, and the schedule in words."""

import re
from datetime import datetime

import pytest
from hypothesis import given, settings

from ondot.model.errors import InvalidSchedule
from ondot.model.schedule import Interval, Once, Rrule, Schedule, Skipped, check, in_words, preview
from tests.model.schedule.making import Field, cron, fields, utc
from tests.proves import proves

NOON = utc("2026-11-15 12:00")
BERLIN = "Europe/Berlin"


def recurring(text: str) -> Schedule:
    begins = datetime(2026, 1, 1, 9, 30)  # noqa: DTZ001  wall time, a Thursday
    return Schedule(when=Rrule(text=text, begins=begins, timezone=BERLIN))


def remarks(schedule: Schedule, after: str, n: int) -> list[tuple[str, str | None]]:
    return [(fire.local, fire.remark) for fire in preview(schedule, utc(after), n).fires]


@proves("S9", "S4")
def test_a_shifted_fire_is_marked() -> None:
    assert remarks(cron("30 2 * * *", BERLIN), "2026-03-28 12:00", 2) == [
        ("2026-03-29T03:00:00+02:00", "shifted"),
        ("2026-03-30T02:30:00+02:00", None),
    ]


@proves("S9", "S4")
def test_a_skipped_fire_is_listed_with_its_reason() -> None:
    shown = preview(cron("30 2 * * *", BERLIN, gap="skip"), utc("2026-03-28 12:00"), 2)
    assert shown.skipped == (Skipped(local="2026-03-29T02:30:00", reason="gap"),)
    assert [fire.remark for fire in shown.fires] == [None, None]


@proves("S9", "S4")
def test_nothing_is_skipped_before_the_preview_begins_or_after_its_last_fire() -> None:
    schedule = cron("30 2 * * *", BERLIN, gap="skip")
    assert preview(schedule, utc("2026-03-29 01:00"), 3).skipped == ()
    assert preview(schedule, utc("2026-03-26 12:00"), 2).skipped == ()


@proves("S9", "S4")
def test_a_repeated_fire_is_marked() -> None:
    assert remarks(cron("30 2 * * *", BERLIN, fold="both"), "2026-10-24 12:00", 3) == [
        ("2026-10-25T02:30:00+02:00", None),
        ("2026-10-25T02:30:00+01:00", "repeated"),
        ("2026-10-26T02:30:00+01:00", None),
    ]
    assert remarks(cron("0 * * * *", BERLIN), "2026-10-24 23:30", 3) == [
        ("2026-10-25T02:00:00+02:00", None),
        ("2026-10-25T02:00:00+01:00", "repeated"),
        ("2026-10-25T03:00:00+01:00", None),
    ]


@proves("S9", "S4")
def test_a_schedule_that_follows_real_time_lists_the_wall_times_that_never_came() -> None:
    shown = preview(cron("*/30 * * * *", BERLIN), utc("2026-03-29 00:00"), 3)
    assert [fire.remark for fire in shown.fires] == [None, None, None]
    assert [skipped.local for skipped in shown.skipped] == ["2026-03-29T02:00:00", "2026-03-29T02:30:00"]


@proves("S9", "S4")
def test_a_recurrence_is_marked_as_a_cron_is() -> None:
    assert remarks(recurring("FREQ=DAILY;BYHOUR=2"), "2026-03-28 12:00", 2) == [
        ("2026-03-29T03:00:00+02:00", "shifted"),
        ("2026-03-30T02:30:00+02:00", None),
    ]
    shown = preview(recurring("FREQ=HOURLY"), utc("2026-03-28 23:45"), 3)
    assert [skipped.local for skipped in shown.skipped] == ["2026-03-29T02:30:00"]
    assert remarks(recurring("FREQ=HOURLY"), "2026-10-25 00:00", 2) == [
        ("2026-10-25T02:30:00+02:00", None),
        ("2026-10-25T02:30:00+01:00", "repeated"),
    ]


@proves("S9", "S5")
def test_jitter_is_marked_and_described_but_does_not_move_the_fire() -> None:
    shown = preview(Schedule(when=cron("0 9 * * *").when, jitter_s=30), NOON, 1)
    assert shown.in_words == "At 09:00, UTC, up to 30 seconds late"
    assert shown.fires[0].fire_at == utc("2026-11-16 09:00")
    assert shown.fires[0].remark == "jittered"


@proves("S9", "S8")
def test_a_preview_ends_with_the_schedule() -> None:
    assert len(preview(Schedule(when=Interval(every_s=60, anchor_at=NOON), max_fires=2), NOON, 10).fires) == 2
    assert len(preview(Schedule(when=cron("0 * * * *").when, end_at=utc("2026-11-15 15:00")), NOON, 10).fires) == 3
    assert len(preview(Schedule(when=Once(at=NOON)), utc("2026-11-01 00:00"), 10).fires) == 1
    assert preview(cron("* * * * *"), NOON, 0).fires == ()


@proves("S9", "S1", "S4")
@pytest.mark.parametrize(
    ("at", "wall", "local", "remark"),
    [
        ("2027-03-28 01:00", "2027-03-28 02:30", "2027-03-28T03:00:00+02:00", "shifted"),
        ("2027-03-28 01:00", "2027-03-28 03:00", "2027-03-28T03:00:00+02:00", None),
        ("2027-03-28 01:00", None, "2027-03-28T03:00:00+02:00", None),
        ("2026-10-25 00:30", "2026-10-25 02:30", "2026-10-25T02:30:00+02:00", None),
        ("2026-10-25 01:30", "2026-10-25 02:30", "2026-10-25T02:30:00+01:00", "repeated"),
    ],
)
def test_an_instant_is_shown_in_its_zone_and_marked(at: str, wall: str | None, local: str, remark: str | None) -> None:
    once = Once(at=utc(at), timezone=BERLIN, wall=None if wall is None else datetime.fromisoformat(wall))
    assert remarks(Schedule(when=once), "2026-01-01 00:00", 2) == [(local, remark)]
    included = Schedule(when=cron("0 0 1 1 *", BERLIN).when, include=(once,))
    assert (local, remark) in remarks(included, "2026-02-01 00:00", 3)


@proves("S9")
def test_no_fire_beyond_the_year_2200_is_shown() -> None:
    assert len(preview(cron("0 0 1 1 *"), utc("2198-06-01 00:00"), 10).fires) == 2
    assert len(preview(Schedule(when=Interval(every_s=366 * 86_400, anchor_at=NOON)), NOON, 1000).fires) == 173
    assert preview(cron("0 0 1 1 *"), utc("2200-06-01 00:00"), 10).fires == ()


EVERY = re.compile(r"\bevery (\d+) (second|minute|hour)s\b", re.IGNORECASE)
SIZES = {"second": 60, "minute": 60, "hour": 24}


@proves("S9")
@settings(max_examples=300)
@given(second=fields(0, 59), minute=fields(0, 59), hour=fields(0, 23))
def test_words_name_a_distance_only_if_it_is_even(second: Field, minute: Field, hour: Field) -> None:
    values = {"second": second[1], "minute": minute[1], "hour": hour[1]}
    for number, unit in EVERY.findall(in_words(cron(f"{second[0]} {minute[0]} {hour[0]} * * *"))):
        assert len(values[unit]) * int(number) == SIZES[unit]
        assert {value % int(number) for value in values[unit]} == {min(values[unit])}


@proves("S9")
@pytest.mark.parametrize("step", range(1, 120))
def test_a_step_is_a_distance_only_if_it_divides_its_field(step: int) -> None:
    for expression, unit in (
        (f"*/{step} * * * * *", "second"),
        (f"*/{step} * * * *", "minute"),
        (f"0 */{step} * * *", "hour"),
    ):
        found = EVERY.findall(in_words(cron(expression)))
        assert found == ([(str(step), unit)] if 1 < step < SIZES[unit] and SIZES[unit] % step == 0 else [])


@proves("S9")
@given(minute=fields(0, 59), hour=fields(0, 23), day=fields(1, 28), weekday=fields(0, 6))
def test_every_valid_schedule_can_be_described_in_words(minute: Field, hour: Field, day: Field, weekday: Field) -> None:
    schedule = cron(f"{minute[0]} {hour[0]} {day[0]} * {weekday[0]}")
    try:
        check(schedule)
    except InvalidSchedule:
        return  # no day is in both day fields
    assert in_words(schedule)


@proves("S9")
@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (cron("0 9 * * 1-5", BERLIN), "At 09:00, Monday through Friday, Europe/Berlin"),
        (cron("*/15 * * * *"), "Every 15 minutes"),
        (cron("*/15 * * * *", BERLIN), "Every 15 minutes, Europe/Berlin"),
        (cron("*/70 * * * *"), "Every hour"),
        (cron("*/40 * * * *"), "At 0 and 40 minutes past the hour"),
        (cron("*/7 * * * *"), "At 0, 7, 14, 21, 28, 35, 42, 49, and 56 minutes past the hour"),
        (cron("*/25 * * * * *"), "At 0, 25, and 50 seconds past the minute"),
        (cron("0 */25 * * *"), "At 00:00, UTC"),
        (cron("0 */6 * * *"), "Every 6 hours, UTC"),
        (cron("0-40/3 * * * *"), "Every 3rd minute, minutes 0 through 40 past the hour"),
        (cron("0-30/3,*/11 * * * *"), "Every third minute from 0 through 30 and every 11th minute of every hour"),
        (cron("0 9 */7 * *"), "At 09:00, on day 1, 8, 15, 22, and 29 of the month, UTC"),
        (cron("0 9 */2 * *"), "At 09:00, every 2nd day, between day 1 and 31 of the month, UTC"),
        (cron("0 9 1 */5 *"), "At 09:00, on day 1 of the month, only in January, June, and November, UTC"),
        (cron("0 9 * * */2"), "At 09:00, only on Sunday, Tuesday, Thursday, and Saturday, UTC"),
        (cron("@daily"), "At 00:00, UTC"),
        (cron("0 12 ? * FRI-SUN"), "At 12:00, Friday through Sunday, UTC"),
        (cron("0 0 15W * *"), "At 00:00, on the weekday nearest day 15 of the month, UTC"),
        (cron("0 0 * * FRIL"), "At 00:00, on the last Friday of the month, UTC"),
        (cron("0 0 L,15 * *"), "At 00:00 on the last and the 15th day of month, UTC"),
        (cron("0 0 */2 * MON"), "At 00:00 on every second day of month if it's on Monday, UTC"),
        (cron("0 12,*/5 * * *"), "At 00:00, 05:00, 10:00, 12:00, 15:00 and 20:00, UTC"),
        (cron("0 0 1,15W * *"), "At the times of cron 0 0 1,15W * *, UTC"),
        (
            recurring("FREQ=WEEKLY;INTERVAL=2;BYDAY=TH,MO"),
            "Every 2 weeks on Monday and Thursday at 09:30, Europe/Berlin",
        ),
        (recurring("FREQ=WEEKLY"), "Every week on Thursday at 09:30, Europe/Berlin"),
        (recurring("FREQ=DAILY;BYDAY=MO,TU,WE,TH,FR"), "Every day on Monday to Friday at 09:30, Europe/Berlin"),
        (recurring("FREQ=DAILY;BYHOUR=9,17;BYMINUTE=0"), "Every day at 09:00 and 17:00, Europe/Berlin"),
        (recurring("FREQ=DAILY;BYSECOND=5;COUNT=3"), "Every day at 09:30:05, 3 times, Europe/Berlin"),
        (recurring("FREQ=MONTHLY;BYDAY=-1FR"), "Every month on the last Friday at 09:30, Europe/Berlin"),
        (recurring("FREQ=MONTHLY;BYDAY=FR"), "Every month on every Friday at 09:30, Europe/Berlin"),
        (
            recurring("FREQ=MONTHLY;BYMONTHDAY=1,15,-1;UNTIL=20271231"),
            "Every month on day 1 and 15 and the last day at 09:30, until 2027-12-31, Europe/Berlin",
        ),
        (recurring("FREQ=MONTHLY"), "Every month on day 1 at 09:30, Europe/Berlin"),
        (recurring("FREQ=YEARLY"), "Every year on 1 January at 09:30, Europe/Berlin"),
        (
            recurring("FREQ=YEARLY;BYMONTH=3;BYDAY=2SU"),
            "Every year on the second Sunday in March at 09:30, Europe/Berlin",
        ),
        (recurring("FREQ=MINUTELY;INTERVAL=15"), "Every 15 minutes, Europe/Berlin"),
        (
            recurring("RRULE:FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=-1"),
            "By the recurrence rule RRULE:FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=-1, Europe/Berlin",
        ),
        (Schedule(when=Once(at=NOON)), "Once at 2026-11-15 12:00:00 UTC"),
        (Schedule(when=Once(at=NOON, timezone=BERLIN)), "Once at 2026-11-15 13:00, Europe/Berlin"),
        (
            Schedule(when=Once(at=utc("2026-07-01 12:00:05"), timezone=BERLIN)),
            "Once at 2026-07-01 14:00:05, Europe/Berlin",
        ),
        (Schedule(when=Interval(every_s=900, anchor_at=NOON)), "Every 15 minutes"),
        (Schedule(when=Interval(every_s=3600, anchor_at=NOON)), "Every hour"),
        (Schedule(when=Interval(every_s=5400, anchor_at=NOON)), "Every 1 hour 30 minutes"),
        (Schedule(when=Interval(every_s=1.5, anchor_at=NOON)), "Every 1.5 seconds"),
        (
            Schedule(when=cron("@hourly").when, start_at=NOON, end_at=NOON, max_fires=1),
            "Every hour, from 2026-11-15 12:00:00 UTC, until 2026-11-15 12:00:00 UTC, at most 1 time",
        ),
    ],
)
def test_schedules_are_described_in_words(schedule: Schedule, words: str) -> None:
    assert in_words(schedule) == words
