"""S4 in every zone of the IANA database, at every change of its offset from 2020 to 2035.

Zones whose clocks agree over these years are one group (about 85 groups for 600 names; that they agree is a test too).
At each change of a group the fires of one of its zones, each in turn, are compared with the oracle's over two days to
both sides, and so is the next fire from instants before, at, inside and after the change. One chain of fires suffices
for all of them: the next fire is a function of the instant, so a start that finds a fire of the chain finds the rest.

`ONDOT_TEST_SEED` picks other expressions and start instants; `ONDOT_TEST_SIZE=big` takes every expression at every
change, and each other zone of the group besides (ten minutes).
"""

import os
import random
from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from itertools import pairwise, product, takewhile
from zoneinfo import ZoneInfo

import pytest

from ondot.model.schedule import next_fire
from tests.model.schedule import oracle
from tests.model.schedule.making import Fold, Gap, cron, fires_after, utc
from tests.proves import proves

SEED = os.environ.get("ONDOT_TEST_SEED", "2026")
IS_BIG = os.environ.get("ONDOT_TEST_SIZE") == "big"
EXPRESSIONS_A_CHANGE = 2
CHUNKS = 8

DAY, HOUR, MINUTE = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1)
SECOND, MICROSECOND = timedelta(seconds=1), timedelta(microseconds=1)
BEGIN_AT, END_AT = utc("2020-01-01"), utc("2036-01-01")
GAPS: tuple[Gap, ...] = ("shift", "skip")
FOLDS: tuple[Fold, ...] = ("first", "last", "both")
POLICIES = list(product(GAPS, FOLDS))

# No zone has two changes within 95 hours (tzdata 2025b and 2026f), so a look every three days sees each.
LOOK = 3 * DAY

Changes = tuple[tuple[datetime, timedelta], ...]


@cache
def zones_by_changes() -> dict[Changes, list[str]]:
    groups: dict[Changes, list[str]] = {}
    for zone in sorted(resources.files("tzdata").joinpath("zones").read_text().split()):
        if zone != "Factory":  # a placeholder for machines without a configured zone
            changes_at = oracle.offset_changes(zone, BEGIN_AT - 366 * DAY, END_AT + 366 * DAY, LOOK)
            key = tuple((at, offset(zone, at)) for at in (BEGIN_AT - 366 * DAY, *changes_at))
            groups.setdefault(key, []).append(zone)
    return groups


def offset(zone: str, at: datetime) -> timedelta:
    found = at.astimezone(ZoneInfo(zone)).utcoffset()
    assert found is not None
    return found


def changes_of(chunk: int) -> list[tuple[str, datetime, bool]]:
    """A share of all changes, each in a zone of its group, in turn; and whether to try every expression."""
    tried: list[tuple[str, datetime, bool]] = []
    for key, zones in zones_by_changes().items():
        changes_at = [at for at, _ in key[1:] if BEGIN_AT <= at < END_AT]
        for n, change_at in enumerate(changes_at):
            turn = zones[n % len(zones)]
            tried.append((turn, change_at, IS_BIG))
            if IS_BIG:
                tried.extend((zone, change_at, False) for zone in zones if zone != turn)
    return tried[chunk::CHUNKS]


def expressions(low: datetime, high: datetime) -> list[str]:
    """For a gap or fold between two wall times: fixed times in and around it, wildcards, seconds, days restricted."""
    half = low + (high - low) / 2
    weekday, month, day = low.isoweekday() % 7, low.month, low.day
    name = oracle.WEEKDAYS[weekday]

    def time(wall: datetime) -> str:
        return f"{wall.minute} {wall.hour}"

    hours = ",".join(sorted({str((low + n * HOUR).hour) for n in range(-1, 4)}))
    around = (low - MINUTE, low, low + MINUTE, half, high - MINUTE, high, high + MINUTE, low - HOUR, high + HOUR)
    return [
        *(f"{time(wall)} * * *" for wall in around),
        f"0,30 {low.hour},{high.hour} * * *",
        f"*/15 {low.hour} * * *",
        f"0-59 {low.hour} * * *",
        f"5/10 {half.hour} * * *",
        f"7,37 {hours} * * *",
        f"* {high.hour} * * *",
        "*/7 * * * *",
        "0 * * * *",
        "30 */2 * * *",
        "0-59/20 0-23 * * *",
        "@hourly",
        "@daily",
        f"59 {time(low - MINUTE)} * * *",
        f"0 {time(low)} * * *",
        f"1 {time(low)} * * *",
        f"59 {time(high - MINUTE)} * * *",
        f"*/20 {time(half)} * * *",
        f"* {time(high)} * * *",
        f"0,59 0,59 {hours} * * *",
        "30 */10 * * * *",
        f"15 * {half.hour} * * *",
        f"{time(half)} {day} * *",
        f"{time(half)} {day} {month} {weekday}",
        f"{time(low)} * {oracle.MONTHS[month - 1]} {name}",
        f"{time(half)} * * {name}#{(day - 1) // 7 + 1}",
        f"{time(high)} ? * {weekday}L",
        f"{time(half)} L * *",
        f"{time(half)} LW,{day}W * ?",
        f"{time(half)} */2 * {weekday}",
        f"{time(half)} * * 1-5",
        f"0 * {day} * *",
        f"*/30 {time(half)} {day},L * *",
    ]


def starts(change_at: datetime, size: timedelta, randomly: random.Random) -> Iterable[datetime]:
    """Before, at and after the change, and inside what it repeats or leaves out, on both sides."""
    yield change_at
    for distance in (MICROSECOND, SECOND, MINUTE, size / 2, size - SECOND, size, size + SECOND, 12 * HOUR):
        yield change_at - distance
        yield change_at + distance
    for _ in range(2):
        yield change_at + timedelta(seconds=randomly.randint(-5 * 3600, 5 * 3600))
        yield change_at + timedelta(microseconds=randomly.randint(-(10**11), 10**11))


def compare(zone: str, change_at: datetime, *, is_whole: bool) -> int:
    """How many (expression, policy, start) were compared, all of them without a difference."""
    randomly = random.Random(f"{SEED} {zone} {change_at}")
    change = offset(zone, change_at) - offset(zone, change_at - SECOND)
    size, around = abs(change), 2 * DAY
    begin_at, end_at = change_at - around, change_at + around
    clock = oracle.Clock(zone, begin_at - size - HOUR, end_at + size + HOUR)
    ends = (change_at + offset(zone, change_at), change_at + offset(zone, change_at - SECOND))
    low, high = (wall.replace(tzinfo=None) for wall in sorted(ends))
    tried = expressions(low, high)
    compared = 0
    for expression in tried if is_whole else randomly.sample(tried, EXPRESSIONS_A_CHANGE):
        reading = oracle.Reading(expression)
        minutes = clock.of(reading)
        starts_at = [begin_at, *starts(change_at, size, randomly)]
        chain_of = randomly.choice(POLICIES)
        for gap, fold in POLICIES:
            where = f"{expression!r} in {zone}, gap {gap}, fold {fold}, at the change of {change_at}"
            expected = oracle.fires(reading, minutes, gap=gap, fold=fold, begin_at=begin_at, end_at=end_at)
            schedule = cron(expression, zone, gap, fold)
            # The policy does not touch a schedule that follows real time: of those one chain is walked.
            if not reading.is_straight or (gap, fold) == chain_of:
                found = list(takewhile(lambda at: at <= end_at, fires_after(schedule, begin_at)))
                assert found == expected, where
                assert all(earlier < later for earlier, later in pairwise([begin_at, *found])), where
            for after in starts_at:
                fire_at = next_fire(schedule, after)
                index = bisect_right(expected, after)
                if index < len(expected):
                    assert fire_at == expected[index], f"{where}, after {after}"
                else:
                    assert fire_at is None or fire_at > end_at, f"{where}, after {after}"
            compared += len(starts_at)
    return compared


@proves("S4", "S2")
@pytest.mark.timeout(3600 if IS_BIG else 120)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_fires_at_every_offset_change_of_every_zone_are_those_of_the_oracle(chunk: int) -> None:
    changes = changes_of(chunk)
    compared = sum(compare(zone, change_at, is_whole=is_whole) for zone, change_at, is_whole in changes)
    assert compared > 200 * len(changes) > 10_000


@proves("S4")
@pytest.mark.timeout(3600 if IS_BIG else 120)
def test_zones_of_a_group_show_the_same_time_and_change_when_it_says() -> None:
    randomly = random.Random(SEED)
    step = 6 * HOUR if IS_BIG else 61 * DAY + 7 * HOUR
    for key, zones in zones_by_changes().items():
        instants = [at + distance for at, _ in key for distance in (-3 * DAY, -SECOND, timedelta(0), 3 * DAY)]
        at = BEGIN_AT - timedelta(seconds=randomly.randint(0, 86_400))
        while at < END_AT + 3 * DAY:
            instants.append(at)
            at += step
        for at in instants[1:]:
            by_key = [new for changed_at, new in key if changed_at <= at][-1:] or [key[0][1]]
            assert {offset(zone, at) for zone in zones} == set(by_key), f"{zones} at {at}"


# Past years, which no government can change any more.
@proves("S4")
@pytest.mark.parametrize(
    ("zone", "year", "shifts"),
    [
        ("Australia/Lord_Howe", 2025, [-30, 30]),
        ("Antarctica/Troll", 2025, [120, -120]),
        ("Africa/Casablanca", 2025, [-60, 60]),  # back for Ramadan
        ("Africa/El_Aaiun", 2024, [-60, 60]),
        ("Europe/Dublin", 2025, [60, -60]),  # where winter is the exception
        ("America/St_Johns", 2025, [60, -60]),
        ("Africa/Cairo", 2025, [60, -60]),  # at midnight
        ("Asia/Gaza", 2023, [60, -60]),
        ("Antarctica/Casey", 2020, [-180, 180]),
        ("Pacific/Apia", 2011, [-60, 60, 24 * 60]),
        ("Pacific/Kwajalein", 1993, [24 * 60]),  # went to bed on a Friday and woke on Sunday
        ("Asia/Pyongyang", 2018, [30]),
        ("America/Caracas", 2016, [30]),
    ],
)
def test_odd_changes_are_those_of_the_oracle(zone: str, year: int, shifts: list[int]) -> None:
    changes_at = oracle.year_changes(zone, year)
    found = [(offset(zone, at) - offset(zone, at - SECOND)) // MINUTE for at in changes_at]
    assert found == shifts
    for change_at in changes_at:
        assert compare(zone, change_at, is_whole=True) > 1000


@proves("S4")
def test_a_day_that_a_zone_never_had_fires_once_at_its_end_or_not_at_all() -> None:
    """Samoa went from the end of 2011-12-29 to the beginning of the 31st."""
    for expression in ("0 9 * * *", "0 9,17 * * *", "0 9 30 12 *", "59 59 23 30 12 *", "* 0-59 0-23 30 12 ?"):
        after = utc("2011-12-30 09:59:59")
        shifted, skipped = (next_fire(cron(expression, "Pacific/Apia", gap), after) for gap in GAPS)
        assert shifted == utc("2011-12-30 10:00")
        assert skipped is not None
        assert skipped > shifted
        assert skipped.astimezone(ZoneInfo("Pacific/Apia")).day != 30 or skipped.year > 2011
    assert next_fire(cron("0 9 * * *", "Pacific/Apia"), datetime(2011, 12, 30, 10, tzinfo=UTC)) == utc(
        "2011-12-30 19:00"
    )
