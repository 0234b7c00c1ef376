"""S4 by example: what each policy does at each kind of transition."""

import re
import zoneinfo
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.resources import files
from itertools import islice, pairwise
from pathlib import Path

import pytest

from ondot.model.errors import InvalidSchedule
from ondot.model.schedule import next_fire, tzdata_version
from ondot.model.schedule.dst import zone_info
from tests.model.schedule.making import Fold, cron, fires_after, next_fires, utc
from tests.proves import proves

BERLIN = "Europe/Berlin"  # 2026-03-29 02:00 → 03:00 at 01:00 UTC; 2026-10-25 03:00 → 02:00 at 01:00 UTC


@proves("S4")
def test_a_fire_in_the_gap_is_shifted_to_the_first_instant_after_it() -> None:
    assert next_fires(cron("30 2 * * *", BERLIN), "2026-03-28 12:00", 2) == [
        "2026-03-29 01:00:00",
        "2026-03-30 00:30:00",
    ]


@proves("S4")
def test_a_fire_in_the_gap_is_skipped_if_the_job_says_so() -> None:
    assert next_fires(cron("30 2 * * *", BERLIN, gap="skip"), "2026-03-28 12:00", 1) == ["2026-03-30 00:30:00"]


@proves("S4")
def test_several_slots_of_one_gap_fire_once_together_with_the_slot_at_its_end() -> None:
    assert next_fires(cron("0,20,40 2,3 * * *", BERLIN), "2026-03-29 00:00", 3) == [
        "2026-03-29 01:00:00",
        "2026-03-29 01:20:00",
        "2026-03-29 01:40:00",
    ]


@proves("S4")
@pytest.mark.parametrize(
    ("fold", "expected"),
    [
        ("first", ["2026-10-25 00:30:00", "2026-10-26 01:30:00"]),
        ("last", ["2026-10-25 01:30:00", "2026-10-26 01:30:00"]),
        ("both", ["2026-10-25 00:30:00", "2026-10-25 01:30:00"]),
    ],
)
def test_a_fire_in_the_repeated_hour_runs_first_last_or_both(fold: Fold, expected: list[str]) -> None:
    assert next_fires(cron("30 2 * * *", BERLIN, fold=fold), "2026-10-24 12:00", 2) == expected


@proves("S4")
@pytest.mark.parametrize(
    ("fold", "expected"),
    [("first", "2026-10-26 01:30:00"), ("last", "2026-10-25 01:30:00"), ("both", "2026-10-25 01:30:00")],
)
def test_a_search_that_starts_inside_the_repeated_hour_never_goes_back(fold: Fold, expected: str) -> None:
    assert next_fires(cron("30 2 * * *", BERLIN, fold=fold), "2026-10-25 01:10", 1) == [expected]
    assert next_fires(cron("0 30 2 * * *", BERLIN, fold=fold), "2026-10-25 01:10", 1) == [expected]


@proves("S4")
@pytest.mark.parametrize("expression", ["0 * * * *", "*/15 * * * *", "* * * * *", "*/10 * * * * *", "@hourly"])
def test_schedules_of_every_hour_keep_their_pace_through_both_transitions(expression: str) -> None:
    for start in ("2026-03-28 22:30", "2026-10-24 22:30"):
        found = list(islice(fires_after(cron(expression, BERLIN), utc(start)), 60))
        assert len({later - earlier for earlier, later in pairwise(found)}) == 1


@proves("S4")
def test_a_wildcard_minute_within_a_fixed_hour_follows_the_clock_as_in_vixie_cron() -> None:
    gap_day = next_fires(cron("*/30 2 * * *", BERLIN), "2026-03-28 12:00", 1)
    fold_day = next_fires(cron("*/30 2 * * *", BERLIN), "2026-10-24 12:00", 5)
    assert gap_day == ["2026-03-30 00:00:00"]
    assert fold_day == [
        "2026-10-25 00:00:00",
        "2026-10-25 00:30:00",
        "2026-10-25 01:00:00",
        "2026-10-25 01:30:00",
        "2026-10-26 01:00:00",
    ]


@proves("S4")
def test_a_range_over_all_hours_is_a_list_of_fixed_times_and_no_wildcard() -> None:
    assert next_fires(cron("0 0-23 * * *", BERLIN), "2026-10-24 23:30", 2) == [
        "2026-10-25 00:00:00",
        "2026-10-25 02:00:00",
    ]


@proves("S4")
def test_half_hour_shifts_lose_and_double_nothing() -> None:
    # Lord Howe: 2026-10-04 02:00 → 02:30 at 15:30 UTC the day before; 2026-04-05 02:00 → 01:30 at 15:00 UTC.
    zone = "Australia/Lord_Howe"
    assert next_fires(cron("15 2 * * *", zone), "2026-10-03 12:00", 2) == [
        "2026-10-03 15:30:00",
        "2026-10-04 15:15:00",
    ]
    assert next_fires(cron("45 1 * * *", zone), "2026-04-04 12:00", 2) == [
        "2026-04-04 14:45:00",
        "2026-04-05 15:15:00",
    ]
    assert next_fires(cron("45 1 * * *", zone, fold="both"), "2026-04-04 12:00", 2) == [
        "2026-04-04 14:45:00",
        "2026-04-04 15:15:00",
    ]


@proves("S4")
@pytest.mark.parametrize(
    ("zone", "after", "shifted", "regular"),
    [
        ("Pacific/Apia", "2011-12-30 00:00", "2011-12-30 10:00:00", "2011-12-30 19:00:00"),
        ("Pacific/Kwajalein", "1993-08-20 22:00", "1993-08-21 12:00:00", "1993-08-21 21:00:00"),
    ],
)
def test_a_day_that_a_zone_left_out_is_a_gap_like_any_other(zone: str, after: str, shifted: str, regular: str) -> None:
    assert next_fires(cron("0 9 * * *", zone), after, 2) == [shifted, regular]
    assert next_fires(cron("0 9 * * *", zone, gap="skip"), after, 1) == [regular]


@proves("S4")
def test_a_gap_at_midnight_shifts_the_daily_job_of_that_day_to_one_o_clock() -> None:
    # Beirut's day of 2026-03-29 begins at 01:00.
    assert next_fires(cron("@daily", "Asia/Beirut"), "2026-03-28 00:00", 2) == [
        "2026-03-28 22:00:00",
        "2026-03-29 21:00:00",
    ]


@proves("S4")
def test_a_schedule_all_of_whose_fires_are_skipped_ends_its_search() -> None:
    assert next_fire(cron("* 0-59 2 * 3 0L", BERLIN, gap="skip"), utc("2026-01-01")) is None


@proves("S4")
def test_searches_at_the_edges_of_time_end() -> None:
    assert next_fire(cron("0 0 * * *", BERLIN), datetime.max.replace(tzinfo=UTC)) is None
    first = next_fire(cron("0 0 * * *", "Asia/Tokyo"), datetime.min.replace(tzinfo=UTC))
    assert first is not None
    assert first.year == 1900


@proves("S4")
def test_instants_of_other_zones_are_taken_and_naive_ones_refused() -> None:
    after = datetime.fromisoformat("2026-06-01T12:00:00+02:00")
    fire_at = next_fire(cron("30 10 * * *"), after)
    assert fire_at == datetime(2026, 6, 1, 10, 30, tzinfo=UTC)
    assert fire_at.utcoffset() == timedelta(0)
    with pytest.raises(ValueError, match="aware"):
        next_fire(cron("30 10 * * *"), after.replace(tzinfo=None))


@proves("S8")
def test_the_version_of_the_zones_is_that_of_the_installed_package() -> None:
    release = re.fullmatch(r"(20\d\d)([a-z])", tzdata_version())
    assert release is not None
    assert version("tzdata").split(".")[:2] == [release[1], str(ord(release[2]) - ord("a") + 1)]


@proves("S4")
def test_the_rules_are_those_of_the_package_and_not_of_the_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Europe").mkdir()
    tokyo = files("tzdata").joinpath("zoneinfo", "Asia", "Tokyo").read_bytes()
    (tmp_path / "Europe" / "Berlin").write_bytes(tokyo)
    zoneinfo.reset_tzpath(to=[str(tmp_path)])
    try:
        zone_info.cache_clear()
        noon = utc("2026-07-01 12:00")
        assert zone_info("Europe/Berlin").utcoffset(noon.replace(tzinfo=None)) == timedelta(hours=2)
    finally:
        zoneinfo.reset_tzpath(to=())
        zone_info.cache_clear()


@proves("S4")
@pytest.mark.parametrize("name", ["../zones", "/etc/passwd", "Europe/../Europe/Berlin", "zones", "", "Europe", "a\0b"])
def test_what_is_no_zone_is_never_looked_for_elsewhere(name: str) -> None:
    with pytest.raises(InvalidSchedule):
        zone_info(name)
