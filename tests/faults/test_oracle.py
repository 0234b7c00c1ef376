"""The oracle compared with results worked out by hand, and with ondot's own schedules: these tests judge the oracle."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ondot.document.parse import job_spec
from ondot.model.schedule import next_fire
from tests.faults.journal import Operation, Outcome
from tests.faults.mix import Mix
from tests.faults.oracle import ClockStep, expect, expect_once, instants, seconds_of
from tests.proves import proves

BEGAN = datetime(2026, 11, 15, 12, tzinfo=UTC)
EVERY = {"every": "2s", "anchor_at": "2026-11-15T12:00:00Z"}
ZONES = ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York", "Australia/Lord_Howe"]
CHANGES_OF_CLOCKS = [
    datetime(2026, 3, 29, tzinfo=UTC),
    datetime(2026, 10, 25, tzinfo=UTC),
    datetime(2026, 3, 8, 6, tzinfo=UTC),
    datetime(2026, 11, 1, 5, tzinfo=UTC),
    datetime(2026, 4, 4, 14, tzinfo=UTC),
    datetime(2026, 10, 3, 14, tzinfo=UTC),
]


def at(seconds: float) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def an_operation(
    op: str, asked_s: float, acked_s: float | None, *, schedule: dict[str, Any] | None = None, outcome: str = ""
) -> Operation:
    known: Outcome = "refused" if outcome == "refused" else "unclear" if acked_s is None else "acked"
    acked = None if acked_s is None else at(acked_s).timestamp()
    body = None if schedule is None else {"name": "a", "schedule": schedule}
    return Operation(op, "a", body, at(asked_s).timestamp(), known, acked_s=acked)


def offsets(found: list[datetime]) -> list[float]:
    return [(instant - BEGAN).total_seconds() for instant in found]


# One schedule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "after", "wanted"),
    [
        ({"cron": "30 2 * * *", "timezone": "Europe/Berlin"}, "2026-03-28T12:00Z", "03-29T01:00 03-30T00:30"),
        ({"cron": "30 2 * * *", "timezone": "Europe/Berlin"}, "2026-10-24T12:00Z", "10-25T00:30 10-26T01:30"),
        ({"cron": "0 * * * *", "timezone": "Europe/Berlin"}, "2026-03-28T23:30Z", "03-29T00:00 03-29T01:00"),
        ({"cron": "0 0 20 * 1"}, "2026-11-15T00:00Z", "11-16T00:00 11-20T00:00"),
        ({"cron": "0 0 */2 * 1"}, "2026-11-15T00:00Z", "11-23T00:00 12-07T00:00"),
        ({"cron": "15 2 * * *", "timezone": "Australia/Lord_Howe"}, "2026-10-03T12:00Z", "10-03T15:30 10-04T15:15"),
        ({"every": 5400, "start_at": "2026-03-29T00:00:00Z"}, "2026-03-28T12:00Z", "03-29T00:00 03-29T01:30"),
        ({"rrule": "DTSTART:20261115T210000Z\nRRULE:FREQ=MINUTELY;INTERVAL=7"}, "2026-11-15T21:00Z",
         "11-15T21:07 11-15T21:14"),
        ({"at": "2026-11-15T22:00:00+01:00"}, "2026-11-15T20:00Z", "11-15T21:00"),
    ],
)  # fmt: skip
def test_the_oracle_follows_the_documented_schedules(schedule: dict[str, Any], after: str, wanted: str) -> None:
    from_at = datetime.fromisoformat(after)

    found = instants(schedule, from_at, from_at + timedelta(days=23))

    assert " ".join(f"{instant:%m-%dT%H:%M}" for instant in found[:2]) == wanted


def test_the_bounds_of_a_schedule_are_included_and_so_are_seconds() -> None:
    schedule = {"cron": "10,40 * * * * *", "start_at": "2026-11-15T12:00:40Z", "end_at": "2026-11-15T12:02:10Z"}

    assert offsets(instants(schedule, at(0), at(600))) == [40, 70, 100, 130]


def test_durations_are_read_as_users_write_them() -> None:
    assert [seconds_of(written) for written in (90, "90s", "1h30m", "0.5s", "250ms")] == [90, 90, 5400, 0.5, 0.25]


def _random_schedule(chance: random.Random) -> dict[str, Any]:
    if chance.random() < 0.2:
        start = BEGAN - timedelta(seconds=chance.randrange(10_000_000), microseconds=chance.randrange(1_000_000))
        return {"every": chance.randrange(60, 7200), "anchor_at": start.isoformat()}
    minute = chance.choice(["*", "*/15", "0", "30", "5-20/5", "15,45", "7/20"])
    hour = chance.choice(["*", "*/2", "2", "1-3", "0-23", "0,2,3", "2/3"])
    day = chance.choice(["*", "*", "*", "*/2", "29", "1-7", "4,25"])
    month = chance.choice(["*", "*", "*", "MAR,APR", "10-11"])
    weekday = chance.choice(["*", "*", "*", "SUN", "MON-FRI", "FRI-SUN", "0,6", "7"])
    second = chance.choice(["", "", "0 ", "*/20 ", "7,33 "])
    dst = {"gap": chance.choice(["shift", "skip"]), "fold": chance.choice(["first", "last", "both"])}
    cron = f"{second}{minute} {hour} {day} {month} {weekday}"
    return {"cron": cron, "timezone": chance.choice(ZONES), "dst": dst}


@proves("S2", "S3", "S4")
@pytest.mark.parametrize("seed", range(40))
def test_the_oracle_and_ondot_agree_around_clock_changes(seed: int) -> None:
    chance = random.Random(seed)
    schedule = _random_schedule(chance)
    after = chance.choice(CHANGES_OF_CLOCKS) - timedelta(minutes=chance.randrange(24 * 60))
    until = after + timedelta(hours=40)
    stored = job_spec({"name": "a", "url": "http://192.0.2.1/", "schedule": schedule}, after).schedule
    assert stored is not None

    expected, fire_at = [], next_fire(stored, after)
    while fire_at is not None and fire_at <= until:
        expected.append(fire_at)
        fire_at = next_fire(stored, fire_at)

    assert instants(schedule, after, until) == expected, schedule


@proves("S1", "S2", "S3")
def test_every_job_of_a_workload_is_accepted_and_the_oracle_knows_its_fires() -> None:
    mix = Mix("http://192.0.2.1/", 600, 60.0, random.Random(5))
    now = datetime.now(UTC)
    compared = 0
    for life in mix.lives(600, 60.0):
        bodies = [life.body, *(step.body for step in life.steps if step.op in {"update", "upsert"} and step.body)]
        for body in bodies:
            spec = job_spec(body, now)
            if spec.recurs and spec.schedule is not None:
                first_at = next_fire(spec.schedule, now)
                assert first_at is not None
                assert instants(body["schedule"], now, first_at) == [first_at], body
                compared += 1
    assert compared > 50
    assert mix.made == 600


# One job -------------------------------------------------------------------------------------------------------------


def test_a_fire_may_be_between_request_and_answer_and_must_be_after_it() -> None:
    journal = [an_operation("create", 0.5, 3.0, schedule=EVERY), an_operation("delete", 7.5, 9.0)]

    found = expect(journal, at(20))

    assert (offsets(found.must), offsets(found.may)) == ([4, 6], [2, 8])


def test_during_an_update_a_fire_of_both_schedules_must_be() -> None:
    slower = {"every": "4s", "anchor_at": "2026-11-15T12:00:00Z"}
    journal = [an_operation("create", 0.3, 0.5, schedule=EVERY), an_operation("update", 5.5, 10.5, schedule=slower)]

    found = expect(journal, at(20))

    assert offsets(found.must) == [2, 4, 8, 12, 16, 20]
    assert offsets(found.may) == [6, 10]


def test_the_fires_of_a_pause_are_on_record_after_it_has_ended() -> None:
    journal = [
        an_operation("create", 0.3, 0.5, schedule=EVERY),
        an_operation("pause", 2.5, 3.0),
        an_operation("resume", 7.0, 7.5),
        an_operation("pause", 10.5, 11.0),
    ]

    found = expect(journal, at(16))

    assert offsets(found.must) == [2, 8, 10]
    assert (offsets(found.paused), offsets(found.silent)) == ([4, 6], [12, 14, 16])


def test_an_unclear_operation_leaves_two_worlds_until_the_delete() -> None:
    journal = [
        an_operation("create", 0.3, 0.5, schedule=EVERY),
        an_operation("pause", 4.5, None),
        an_operation("delete", 10.5, 10.8),
    ]

    found = expect(journal, at(20))

    assert (offsets(found.must), offsets(found.may)) == ([2, 4], [6, 8, 10])


def test_a_refused_operation_has_changed_nothing() -> None:
    journal = [an_operation("create", 0.3, 0.5, schedule=EVERY), an_operation("delete", 1, 1.5, outcome="refused")]

    assert offsets(expect(journal, at(5)).must) == [2, 4]


def test_max_fires_counts_fires_that_may_have_been_both_ways() -> None:
    journal = [an_operation("create", 1.0, 3.0, schedule=EVERY | {"max_fires": 3})]

    found = expect(journal, at(20))

    assert (offsets(found.must), offsets(found.may)) == ([4, 6], [2, 8])


def test_skipped_fires_do_not_count_against_max_fires() -> None:
    journal = [an_operation("create", 0.3, 0.5, schedule=EVERY | {"max_fires": 2})]

    assert offsets(expect(journal, at(20), uncounted={at(2)}).must) == [2, 4, 6]


def test_a_clock_step_widens_the_window_of_operations_in_it() -> None:
    journal = [an_operation("create", 0.3, 0.5, schedule=EVERY), an_operation("delete", 8.5, 9.0)]
    step = ClockStep(at(8), at(20), timedelta(seconds=4))

    found = expect(journal, at(20), steps=[step])

    assert (offsets(found.must), offsets(found.may)) == ([2, 4, 6, 8], [10, 12])


def test_a_one_time_job_must_fire_at_its_new_instant_and_may_if_it_was_deleted() -> None:
    first, second = {"at": "2026-11-15T12:00:10Z"}, {"at": "2026-11-15T12:00:14Z"}
    moved = [an_operation("create", 0.3, 0.5, schedule=first), an_operation("update", 3.0, 3.5, schedule=second)]

    assert expect_once(moved, at(30)).windows == [(at(14), at(14))]
    assert expect_once(moved, at(30)).must
    assert not expect_once([*moved, an_operation("delete", 5, 5.5)], at(30)).must
    assert expect_once([an_operation("create", 1, 2, schedule={"in": "5s"})], at(30)).windows == [(at(5.9), at(7.1))]
