"""Fires listed fast are those that `next_fire` finds one by one."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.model.schedule import Cron, Dst, Interval, Schedule, next_fire
from ondot.model.schedule.listing import list_fires
from tests.proves import proves

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "Africa/Casablanca")


def field(last: int) -> st.SearchStrategy[str]:
    return st.one_of(
        st.just("*"), st.integers(0, last).map(str), st.integers(2, 20).map(lambda step: f"*/{min(step, last)}")
    )


crons = st.builds(
    lambda minute, hour, day, weekday: f"{minute} {hour} {day} * {weekday}",
    field(59),
    field(23),
    st.sampled_from(("*", "1", "15", "L", "*/3")),
    st.sampled_from(("*", "1-5", "0")),
)
rules = st.one_of(
    st.builds(
        lambda text, zone, gap, fold: Cron(expression=text, timezone=zone, dst=Dst(gap=gap, fold=fold)),
        crons,
        st.sampled_from(ZONES),
        st.sampled_from(("shift", "skip")),
        st.sampled_from(("first", "last", "both")),
    ),
    st.builds(
        lambda every, ago: Interval(every_s=every, anchor_at=datetime(2026, 3, 1, tzinfo=UTC) - timedelta(seconds=ago)),
        st.sampled_from((60, 90, 300.5, 3600)),
        st.integers(-86_400, 86_400),
    ),
)


@proves("S13", "S4")
@settings(max_examples=150, deadline=None)
@given(
    rule=rules,
    begin_at=st.datetimes(datetime(2026, 3, 1), datetime(2026, 11, 30), timezones=st.just(UTC)),  # noqa: DTZ001
    hours=st.integers(1, 100),
)
def test_listed_fires_are_those_found_one_by_one(rule: Cron | Interval, begin_at: datetime, hours: int) -> None:
    schedule, until = Schedule(when=rule), begin_at + timedelta(hours=hours)
    expected: list[int] = []
    at = next_fire(schedule, begin_at)
    while at is not None and at <= until and len(expected) < 500:
        expected.append(int(at.timestamp()))
        at = next_fire(schedule, at)
    listed, is_complete = list_fires(schedule, begin_at, until, 500)
    assert listed == expected
    assert is_complete == (at is None or at > until)


@proves("S13")
def test_bounds_of_a_schedule_bound_the_list() -> None:
    begin_at = datetime(2026, 11, 16, 12, tzinfo=UTC)
    schedule = Schedule(
        when=Cron(expression="0 * * * *"),
        start_at=begin_at + timedelta(hours=2),
        end_at=begin_at + timedelta(hours=4),
    )
    listed, is_complete = list_fires(schedule, begin_at, begin_at + timedelta(days=1), 100)
    assert [datetime.fromtimestamp(at, UTC).hour for at in listed] == [14, 15, 16]
    assert is_complete
