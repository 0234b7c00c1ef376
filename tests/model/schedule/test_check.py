"""S3, S4, S8: what is refused at creation, where, and with which advice."""

from datetime import UTC, datetime, timedelta

import pytest

from ondot.model.errors import InvalidSchedule
from ondot.model.schedule import Blackout, Calendar, Cron, Dst, Interval, Misfire, Once, Schedule, check
from tests.model.schedule.making import cron, utc
from tests.proves import proves

NOON = utc("2026-11-15 12:00")
DAY = timedelta(days=1)


def faults(schedule: Schedule) -> dict[str, str]:
    with pytest.raises(InvalidSchedule) as refusal:
        check(schedule)
    assert refusal.value.message
    return {fault.pointer: fault.message for fault in refusal.value.faults}


@proves("S4")
@pytest.mark.parametrize(
    ("zone", "advice"),
    [
        ("europe/berlin", "did you mean Europe/Berlin?"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("new york", "did you mean America/New_York?"),
        ("Europe/Berlni", "Europe/Berlin"),
        ("CEST", "use a name such as Europe/Berlin"),
        ("America", "There is no time zone"),
        ("localtime", "There is no time zone"),
        ("right/Europe/Berlin", "There is no time zone"),
        ("../../etc/passwd", "There is no time zone"),
        ("", "There is no time zone"),
        ("a\0b", "There is no time zone"),
        ("x" * 5000, "There is no time zone"),
    ],
)
def test_an_unknown_time_zone_is_refused_with_names_that_are_close(zone: str, advice: str) -> None:
    assert advice in faults(cron("0 9 * * *", zone))["/timezone"]


@proves("S1", "S4")
def test_an_instant_of_an_unknown_time_zone_is_refused() -> None:
    assert "did you mean Europe/Berlin?" in faults(Schedule(when=Once(at=NOON, timezone="Berlin")))["/timezone"]


@proves("S10")
def test_what_a_calendar_leaves_is_looked_for_from_now_on_and_not_from_a_start_long_ago() -> None:
    windows = (Blackout(from_at=NOON, to_at=NOON + 6 * 366 * DAY),)
    schedule = Schedule(when=cron("@daily").when, start_at=NOON - 366 * DAY, calendar=Calendar(blackouts=windows))
    check(schedule, NOON - DAY)
    with pytest.raises(InvalidSchedule, match="The calendar excludes"):
        check(schedule, NOON)


@proves("S2", "S4")
def test_all_faults_are_reported_at_once() -> None:
    schedule = Schedule(
        when=Cron(expression="61 * * * *", timezone="Nowhere"),
        jitter_s=-1,
        max_fires=0,
        start_at=datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None),
        misfire=Misfire(grace_s=-1, window_s=-1, limit=0),
    )
    assert set(faults(schedule)) == {
        "/cron",
        "/timezone",
        "/jitter",
        "/max_fires",
        "/start_at",
        "/misfire/grace",
        "/misfire/window",
        "/misfire/limit",
    }


@proves("S3")
@pytest.mark.parametrize("every_s", [0.0, -5.0, 0.999, 11 * 366 * 86_400.0, float("inf"), float("nan")])
def test_an_interval_is_between_a_second_and_ten_years(every_s: float) -> None:
    assert "interval is" in faults(Schedule(when=Interval(every_s=every_s, anchor_at=NOON)))["/every"]


@proves("S8")
def test_an_end_that_leaves_no_fire_is_refused() -> None:
    assert (
        "ends before it starts"
        in faults(Schedule(when=cron("* * * * *").when, start_at=NOON, end_at=NOON - DAY))["/end_at"]
    )
    assert (
        "no fire before" in faults(Schedule(when=cron("0 0 1 1 *").when, start_at=NOON, end_at=NOON + DAY))["/end_at"]
    )
    assert "no fire before" in faults(Schedule(when=Interval(every_s=60, anchor_at=NOON), end_at=NOON - DAY))["/end_at"]
    assert "outside" in faults(Schedule(when=Once(at=NOON), start_at=NOON + DAY))["/at"]


@proves("S1", "S8")
def test_instants_without_an_offset_or_beyond_the_calendar_are_refused() -> None:
    assert "2026-11-15T12:00:00Z" in faults(Schedule(when=Once(at=NOON.replace(tzinfo=None))))["/at"]
    assert "1970" in faults(Schedule(when=Once(at=NOON.replace(year=1))))["/at"]
    far = datetime.fromisoformat("9999-12-31T23:59:59-05:00")
    assert "1970" in faults(Schedule(when=cron("* * * * *").when, end_at=far))["/end_at"]


@proves("S4")
def test_a_schedule_that_only_ever_falls_into_gaps_is_refused() -> None:
    when = Cron(expression="30 2 * 3 0L", timezone="Europe/Berlin", dst=Dst(gap="skip"))
    assert "never fires" in faults(Schedule(when=when))["/cron"]


@proves("S1", "S2", "S3", "S8")
def test_good_schedules_pass() -> None:
    check(Schedule(when=Once(at=NOON)))
    check(Schedule(when=Interval(every_s=1, anchor_at=NOON), end_at=NOON))
    check(Schedule(when=Interval(every_s=60, anchor_at=NOON), start_at=NOON + DAY, end_at=NOON + 2 * DAY))
    check(Schedule(when=cron("0 9 * * 1-5", "Europe/Berlin").when, start_at=NOON, end_at=NOON + 3 * DAY, max_fires=1))
    check(Schedule(when=cron("@daily").when, end_at=utc("9999-12-31 23:59:59"), jitter_s=30))
