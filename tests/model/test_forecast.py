"""The pure part of the forecast: fires and work by step, the waits they make, and where there is room."""

from array import array
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from ondot.model.crowd import Crowd
from ondot.model.forecast import Load, add_up, gather, predict_waits
from ondot.model.herd import Grid, Herds, Jobs
from ondot.model.ids import JobId
from ondot.model.schedule import Cron, Interval, Schedule
from tests.proves import proves

BEGIN = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = Grid(BEGIN, 60, 1440)


def one(lasts_s: float) -> Jobs:
    return Jobs(1, lasts_s, [(lasts_s, JobId(uuid4()))])


def load_of(*schedules: Schedule, grid: Grid = DAY, delay_s: float = 0, lasts_s: float = 10) -> Load:
    herds = Herds(grid, BEGIN)
    for schedule in schedules:
        herds.add(schedule, delay_s, 1, one(lasts_s), BEGIN)
    return add_up(herds)[1]


def daily(text: str) -> Schedule:
    return Schedule(when=Cron(expression=text))


@proves("S13")
def test_jobs_that_share_a_schedule_are_added_up_and_long_work_is_busy_beyond_its_step() -> None:
    load = load_of(*[daily("30 13 * * *")] * 3, lasts_s=150)
    assert (load.fires[90], sum(load.fires)) == (3, 3)
    assert (load.work_s[90], sum(load.work_s)) == (450, 450)
    assert [round(busy) for busy in load.busy_s[89:94]] == [0, 225, 225, 0, 0]
    assert len(load.top[90]) == 3


@proves("S13")
def test_a_delay_moves_fires_also_those_from_before_the_grid() -> None:
    grid = Grid(BEGIN, 60, 10)
    assert list(load_of(daily("* * * * *"), grid=grid, delay_s=150).fires) == [0, 0, *[1] * 8]
    herds = Herds(grid)
    herds.add(daily("* * * * *"), 150, 1, one(1))
    assert list(add_up(herds)[1].fires) == [1] * 10


@proves("S13")
@pytest.mark.parametrize("every_s", [7, 60, 90, 300, 3600])
def test_intervals_of_any_phase_fire_as_often_as_they_do(every_s: float) -> None:
    anchors = [BEGIN - timedelta(seconds=ago) for ago in (0, 11, 59, 61, 1234)]
    load = load_of(*(Schedule(when=Interval(every_s=every_s, anchor_at=anchor)) for anchor in anchors))
    assert sum(load.fires) == pytest.approx(5 * 86_400 / every_s, rel=0.01)


@proves("S13")
def test_the_wait_is_that_of_the_last_in_the_line() -> None:
    none = array("d", [0] * 20)
    herd, work = array("d", none), array("d", none)
    herd[1], work[1] = 1000, 10_000
    waits = predict_waits(herd, work, 10, 60)
    assert waits[0] == 0
    assert waits[1] == pytest.approx(990)
    assert waits[2] == pytest.approx(930)
    long, work = array("d", none), array("d", none)
    long[0], work[0], long[1], work[1] = 5, 18_000, 1, 3600
    assert max(predict_waits(long, work, 10, 60)) == 0
    assert predict_waits(long, work, 0, 60)[0] == float("inf")
    assert predict_waits(none, none, 10, 60, due=0)[0] == 0


@proves("S13")
def test_buckets_add_up_steps_and_show_the_longest_wait_and_the_largest_jobs() -> None:
    by_hour = Grid(BEGIN, 60, 1440, 60)
    load = load_of(daily("0 13 * * *"), daily("5 13 * * *"), daily("0 14 * * *"), grid=by_hour)
    waits = predict_waits(load.fires, load.work_s, 1, 60)
    hours = gather(load, by_hour, waits)
    assert [bucket.fires for bucket in hours[:4]] == [0, 2, 1, 0]
    assert hours[1].at == BEGIN + timedelta(hours=1)
    assert len(hours[1].top) == 2


@proves("S13")
def test_a_crowded_minute_is_named_with_minutes_that_have_room() -> None:
    load = load_of(*[daily("0 2 * * *")] * 100, *[daily("1 2 * * *")] * 50)
    crowd = Crowd(DAY, load.fires, predict_waits(load.fires, load.work_s, 10, 60))
    warned = crowd.warn(daily("0 2 * * *"), 0)
    assert warned is not None
    assert warned.at == datetime(2026, 11, 17, 2, tzinfo=UTC)
    assert warned.minutes
    assert not {0, 1} & set(warned.minutes)
    for minute in warned.minutes:
        assert crowd.warn(daily(f"{minute} 2 * * *"), 0) is None
    assert crowd.warn(daily("0 5 * * *"), 0) is None


@proves("S13")
def test_spread_jobs_choose_offsets_away_from_others_and_from_each_other() -> None:
    load = load_of(*[daily("0 2 * * *")] * 100, *[daily("1 2 * * *")] * 50)
    crowd = Crowd(DAY, load.fires, predict_waits(load.fires, load.work_s, 10, 60))
    schedule = Schedule(when=Cron(expression="0 2 * * *"), spread_s=600)
    offsets = [crowd.choose_offset(schedule, str(number).encode()) for number in range(18)]
    assert all(120 <= offset <= 600 for offset in offsets)
    by_minute = [offset // 60 for offset in offsets]
    assert max(map(by_minute.count, by_minute)) <= 2


@proves("S13")
def test_an_offset_in_a_window_of_a_day_is_that_of_the_least_other_fires() -> None:
    fires = array("d", [1 + (step * 7919) % 13 for step in range(1440)])
    fires[1000] = 0
    for spread_s in (20 * 3600, 86_400):  # the longer one ends after what is known: its end is as a day before
        schedule = Schedule(when=Cron(expression="0 13 * * *"), spread_s=spread_s)
        assert Crowd(DAY, array("d", fires), fires).choose_offset(schedule, b"seed") // 60 == 940


@proves("S13")
@pytest.mark.parametrize(("minutes", "fires"), [(52, 46), (0, 48)])
def test_jobs_created_after_the_first_bucket_began_share_the_herd_of_their_phase(minutes: int, fires: int) -> None:
    herds = Herds(DAY, BEGIN + timedelta(minutes=minutes))
    for created in (-20, 40):
        anchor_at = BEGIN + timedelta(minutes=created)
        herds.add(Schedule(when=Interval(every_s=3600, anchor_at=anchor_at)), 0, 1, one(1))
    assert len(list(herds)) == 1
    assert sum(add_up(herds)[1].fires) == fires
