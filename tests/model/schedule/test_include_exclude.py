"""S12: several rules in one schedule; what one includes, another excludes; against plain sets of instants."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile
from time import perf_counter
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.model.errors import InvalidSchedule
from ondot.model.schedule import (
    Blackout,
    Calendar,
    Cron,
    Dst,
    Interval,
    Once,
    Rrule,
    Schedule,
    When,
    check,
    in_words,
    next_fire,
    preview,
)
from tests.model.schedule.making import fires_after, next_fires, utc
from tests.proves import proves

BERLIN = "Europe/Berlin"
NOON = utc("2026-11-15 12:00")
EVERY_SECOND = Cron(expression="* * * * * *")


def rule(expression: str, zone: str = "UTC") -> Cron:
    return Cron(expression=expression, timezone=zone)


def faults(schedule: Schedule, after: datetime | None = None) -> dict[str, str]:
    with pytest.raises(InvalidSchedule) as refusal:
        check(schedule, after)
    return {fault.pointer: fault.message for fault in refusal.value.faults}


def crons() -> st.SearchStrategy[When]:
    minutes = st.sampled_from(["*", "*/7", "0", "0,30", "0-59", "15-45"])
    hours = st.sampled_from(["*", "*/3", "1-3", "2", "0-23", "9"])
    days = st.sampled_from(["*", "29", "24-26", "*/2", "L"])
    weekdays = st.sampled_from(["*", "*", "0", "1-5", "6"])
    zones = st.sampled_from(["UTC", BERLIN, "Australia/Lord_Howe", "Asia/Kolkata"])
    policies = st.builds(Dst, gap=st.sampled_from(["shift", "skip"]), fold=st.sampled_from(["first", "last", "both"]))
    texts = st.tuples(minutes, hours, days, weekdays).map(lambda f: f"{f[0]} {f[1]} {f[2]} * {f[3]}")
    return st.builds(Cron, expression=texts, timezone=zones, dst=policies)


def rules() -> st.SearchStrategy[When]:
    instants = st.datetimes(datetime(2026, 3, 1), datetime(2026, 3, 31), timezones=st.just(UTC))  # noqa: DTZ001
    on_the_minute = instants.map(lambda at: at.replace(second=0, microsecond=0))
    intervals = st.builds(Interval, every_s=st.sampled_from([600.0, 1200.5, 3600.0, 5430.0]), anchor_at=on_the_minute)
    return st.one_of(crons(), crons(), crons(), intervals, st.builds(Once, at=on_the_minute))


@proves("S12")
@given(
    when=rules(),
    include=st.lists(rules(), max_size=2),
    exclude=st.lists(rules(), max_size=3),
    blackout=st.booleans(),
    second=st.integers(0, 50 * 3600),
)
@settings(max_examples=150, deadline=None)
def test_fires_are_the_union_without_what_is_excluded(
    when: When, include: list[When], exclude: list[When], blackout: bool, second: int
) -> None:
    after = utc("2026-03-28 00:00") + timedelta(seconds=second)
    until = after + timedelta(hours=30)

    def alone(each: When) -> set[datetime]:
        return set(takewhile(lambda fire_at: fire_at <= until, fires_after(Schedule(when=each), after)))

    expected = set().union(*map(alone, [when, *include])) - set().union(*map(alone, exclude))
    calendar = None
    if blackout:
        window = Blackout(from_at=after + timedelta(hours=3), to_at=after + timedelta(hours=7))
        calendar = Calendar(blackouts=(window,))
        expected = {fire_at for fire_at in expected if not window.from_at <= fire_at < window.to_at}
    schedule = Schedule(when=when, include=tuple(include), exclude=tuple(exclude), calendar=calendar, end_at=until)
    assert list(fires_after(schedule, after)) == sorted(expected)


@proves("S12")
def test_a_fire_that_two_rules_give_is_one() -> None:
    schedule = Schedule(when=rule("0 9 * * *"), include=(rule("0 9,18 * * 1"), rule("0 10 * * *", BERLIN)))
    assert next_fires(schedule, "2026-11-15 12:00", 3) == [
        "2026-11-16 09:00:00",
        "2026-11-16 18:00:00",
        "2026-11-17 09:00:00",
    ]


@proves("S12")
def test_each_rule_has_its_own_zone_and_policy() -> None:
    night = Cron(expression="30 2 * * *", timezone=BERLIN, dst=Dst(gap="skip"))
    schedule = Schedule(when=rule("0 12 * * *", "Asia/Kolkata"), include=(night,))
    assert next_fires(schedule, "2026-03-28 12:00", 3) == [
        "2026-03-29 06:30:00",
        "2026-03-30 00:30:00",
        "2026-03-30 06:30:00",
    ]
    excluded = Schedule(when=rule("0 * * * *"), exclude=(rule("0 9-16 * * *", BERLIN),))
    assert next_fires(excluded, "2026-11-15 06:30", 2) == ["2026-11-15 07:00:00", "2026-11-15 16:00:00"]
    assert next_fires(excluded, "2026-07-15 05:30", 2) == ["2026-07-15 06:00:00", "2026-07-15 15:00:00"]


@proves("S12")
def test_start_and_end_bound_all_rules() -> None:
    schedule = Schedule(
        when=rule("0 9 * * *"),
        include=(Once(at=NOON), Once(at=NOON + timedelta(days=9))),
        start_at=NOON,
        end_at=utc("2026-11-17 09:00"),
    )
    check(schedule)
    assert next_fires(schedule, "2026-01-01 00:00", 9) == [
        "2026-11-15 12:00:00",
        "2026-11-16 09:00:00",
        "2026-11-17 09:00:00",
    ]


@proves("S12")
@pytest.mark.parametrize(
    ("when", "exclude", "after", "first"),
    [
        (EVERY_SECOND, rule("* * * * 8 *"), "2026-07-31 23:59:59", "2026-09-01 00:00:00"),
        (EVERY_SECOND, rule("* * * * 8 *", BERLIN), "2026-07-31 21:59:59", "2026-08-31 22:00:00"),
        (EVERY_SECOND, rule("* * 9-16 * * *", BERLIN), "2026-11-15 07:59:59", "2026-11-15 16:00:00"),
        (EVERY_SECOND, rule("* 0-29 * * * *"), "2026-11-15 07:59:59", "2026-11-15 08:30:00"),
        (rule("* * * * *"), rule("* * * 1-11 *", BERLIN), "2026-01-01 00:00:00", "2026-11-30 23:00:00"),
        (rule("*/5 * * * *"), rule("*/5 * * 1-11 *"), "2026-01-01 00:00:00", "2026-12-01 00:00:00"),
        (Interval(every_s=1, anchor_at=NOON), rule("* * * * 8 *"), "2026-11-15 12:00:00", "2026-11-15 12:00:01"),
        (Interval(every_s=60, anchor_at=NOON), rule("* * * 8 *"), "2027-07-31 23:59:59", "2027-09-01 00:00:00"),
        (
            Interval(every_s=1.5, anchor_at=NOON),
            rule("* * * * 11-12 *"),
            "2026-11-15 12:00:00",
            "2026-11-15 12:00:01",
        ),
    ],
)
def test_what_an_exclusion_covers_is_jumped_over(when: When, exclude: Cron, after: str, first: str) -> None:
    schedule = Schedule(when=when, exclude=(exclude,))
    began = perf_counter()
    assert next_fires(schedule, after, 1) == [first]
    assert perf_counter() - began < 1  # 50 ms at most; walked it would be minutes


@proves("S12")
def test_an_exclusion_is_not_taken_for_more_than_it_covers() -> None:
    # Only the first second of each minute, and only the whole seconds of an interval with halves.
    assert next_fires(Schedule(when=EVERY_SECOND, exclude=(rule("* * * * *"),)), "2026-11-15 11:59:59", 1) == [
        "2026-11-15 12:00:01"
    ]
    halves = Schedule(when=Interval(every_s=1.5, anchor_at=NOON), exclude=(rule("* * * * * *"),))
    fires = list(islice(fires_after(halves, NOON), 3))
    assert fires == [NOON + timedelta(seconds=1.5 + 3 * n) for n in range(3)]
    # A list of all hours names fixed times, so the second 02:30 of a repeated hour is not excluded.
    autumn = Schedule(when=rule("30 * * * *", BERLIN), exclude=(rule("30 0-23 * * *", BERLIN),))
    assert next_fires(autumn, "2026-10-24 12:00", 1) == ["2026-10-25 01:30:00"]


@proves("S12")
def test_rules_that_exclude_each_other_for_ever_are_refused_at_creation() -> None:
    for when, exclude in [
        (rule("0 9 * * *"), (rule("0 9 * * *"),)),
        (rule("*/5 * * * *", BERLIN), (rule("* * * * *"),)),
        (EVERY_SECOND, (EVERY_SECOND,)),
        (rule("0 0 1 1 *"), (rule("0 0 * * *"),)),
    ]:
        assert "exclude each fire from" in faults(Schedule(when=when, exclude=exclude))["/exclude"]
    assert "exclude each fire" in faults(Schedule(when=Once(at=NOON), exclude=(rule("0 12 * * *"),)), NOON)["/exclude"]


@proves("S12")
def test_a_walk_that_looks_at_rules_50_000_times_is_given_up() -> None:
    halves = (rule("*/2 * * * * *"), rule("1/2 * * * * *"))
    schedule = Schedule(when=EVERY_SECOND, exclude=halves)
    with pytest.raises(InvalidSchedule, match="24,999 excluded fires in a row"):
        next_fire(schedule, NOON)
    many = Schedule(when=EVERY_SECOND, exclude=halves * 15)
    with pytest.raises(InvalidSchedule, match="3,124 excluded fires in a row"):
        next_fire(many, NOON)


@proves("S12")
def test_faults_point_at_the_rule_that_has_them() -> None:
    schedule = Schedule(
        when=rule("0 9 * * *"),
        include=(rule("61 * * * *"), Interval(every_s=0.1, anchor_at=NOON)),
        exclude=(
            rule("0 9 * * *", "Berlin"),
            Rrule(text="FREQ=SOMETIMES", begins=datetime(2026, 1, 1)),  # noqa: DTZ001
            Once(at=NOON.replace(tzinfo=None)),
            Cron(expression="30 2 * 3 0L", timezone=BERLIN, dst=Dst(gap="skip")),
        ),
    )
    found = faults(schedule)
    assert set(found) == {
        "/include/0/cron",
        "/include/1/every",
        "/exclude/0/timezone",
        "/exclude/1/rrule",
        "/exclude/2/at",
        "/exclude/3/cron",
    }
    ended = Rrule(text="FREQ=DAILY;COUNT=3", begins=datetime(2026, 1, 1))  # noqa: DTZ001
    assert "ends before start_at" in faults(Schedule(when=ended, start_at=NOON))["/rrule"]
    never = Rrule(text="FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", begins=datetime(2026, 1, 1))  # noqa: DTZ001
    assert "never fires" in faults(Schedule(when=never))["/rrule"]
    assert "at most 100" in faults(Schedule(when=rule("@daily"), include=(rule("@hourly"),) * 101))["/include"]


@proves("S12", "S9")
def test_the_preview_shows_excluded_fires_and_marks_by_the_rule_that_fires() -> None:
    schedule = Schedule(
        when=rule("30 2 * * *", BERLIN),
        include=(rule("0 3 29 3 *", BERLIN),),
        exclude=(rule("30 2 28 3 *", BERLIN),),
        calendar=Calendar(exclude_dates=("2026-03-27",)),
    )
    shown = preview(schedule, utc("2026-03-26 12:00"), 2)
    assert [(fire.local, fire.remark) for fire in shown.fires] == [
        ("2026-03-29T03:00:00+02:00", None),  # shifted to where another rule fires anyway
        ("2026-03-30T02:30:00+02:00", None),
    ]
    assert [(entry.local, entry.reason) for entry in shown.skipped] == [
        ("2026-03-27T02:30:00+01:00", "date"),
        ("2026-03-28T02:30:00+01:00", "excluded"),
    ]


@proves("S12", "S9")
def test_a_skipped_hour_of_an_included_rule_is_reported() -> None:
    night = Cron(expression="30 2 * * *", timezone=BERLIN, dst=Dst(gap="skip"))
    shown = preview(Schedule(when=rule("0 9 * * *", BERLIN), include=(night,)), utc("2026-03-28 12:00"), 2)
    assert [(entry.local, entry.reason) for entry in shown.skipped] == [("2026-03-29T02:30:00", "gap")]


@proves("S12", "S9")
def test_the_words_name_each_rule() -> None:
    schedule = Schedule(
        when=rule("0 9 * * 1-5", BERLIN),
        include=(rule("0 12 * * 6", BERLIN),),
        exclude=(Once(at=NOON),),
        jitter_s=5,
    )
    assert in_words(schedule) == (
        "At 09:00, Monday through Friday, Europe/Berlin, and at 12:00, only on Saturday, Europe/Berlin, "
        "except once at 2026-11-15 12:00:00 UTC, up to 5 seconds late"
    )
    many = Schedule(when=rule("0 9 * * *"), exclude=(rule("0 9 1 * *"),) * 7)
    assert in_words(many).endswith("on day 1 of the month, UTC, except by 4 more rules")


@proves("S12")
def test_schedules_of_several_rules_are_stored_and_read_back() -> None:
    schedule = Schedule(
        when=rule("0 9 * * *"),
        include=(Rrule(text="FREQ=DAILY", begins=datetime(2026, 1, 1, 9)), Once(at=NOON)),  # noqa: DTZ001
        exclude=(Interval(every_s=60, anchor_at=NOON, is_anchored=True),),
    )
    stored = msgspec.json.encode(schedule)
    assert msgspec.json.decode(stored, type=Schedule) == schedule
    # What an older release has stored is read as it was meant.
    older = msgspec.json.decode(
        b'{"when":{"kind":"interval","every_s":60,"anchor_at":"2026-11-15T12:00:00Z"}}', type=Schedule
    )
    assert older == Schedule(when=Interval(every_s=60, anchor_at=NOON))


@proves("S12")
def test_fires_strictly_increase_through_a_year_of_several_rules() -> None:
    schedule = Schedule(
        when=rule("0 */2 * * *", BERLIN),
        include=(rule("30 2 * * *", BERLIN), Interval(every_s=86_400, anchor_at=NOON)),
        exclude=(rule("* * * 8 *", BERLIN),),
        calendar=Calendar(business_days=True, exclude_holidays="DE"),
    )
    fires = list(takewhile(lambda fire_at: fire_at.year == 2026, fires_after(schedule, utc("2026-01-01 00:00"))))
    assert all(sooner < later for sooner, later in pairwise(fires))
    # The interval fires at 12:00 UTC, which August in Berlin covers too.
    months = {fire_at.astimezone(ZoneInfo(BERLIN)).month for fire_at in fires}
    assert months == set(range(1, 13)) - {8}


@proves("S12")
def test_the_counts_of_all_rules_together_have_a_bound() -> None:
    rules = tuple(
        Rrule(text=f"FREQ=MINUTELY;INTERVAL={n};COUNT=4000", begins=NOON.replace(tzinfo=None)) for n in (1, 2, 3)
    )
    assert check(Schedule(when=rules[0], include=rules[1:2])) is None  # type: ignore[func-returns-value]
    assert "may add up to 10,000" in faults(Schedule(when=rules[0], include=rules[1:]))["/include/1/rrule"]
