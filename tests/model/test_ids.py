"""Ids: UUIDv7 that sort by time, say when they were made, and spread over the partitions."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.model.ids import PARTITIONS, first_id_at, instant_of, partition_of, ticks_at, uuid7
from ondot.store.clock import ROUNDING_S, ClockStepped, DatabaseClock
from tests.proves import proves

instants = st.datetimes(datetime(1970, 1, 1), datetime(8999, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
randoms = st.integers(0, 2**62 - 1)
NOON = datetime(2031, 3, 3, 12, tzinfo=UTC)


@given(instants, randoms)
@proves("E11")
def test_an_id_is_a_uuid_of_version_seven_that_says_when_it_was_made(at: datetime, random: int) -> None:
    id_ = UUID(bytes=uuid7(ticks_at(at), random))
    assert (id_.version, id_.variant) == (7, RFC_4122)
    assert timedelta(0) <= at - instant_of(id_) < timedelta(milliseconds=1)
    assert first_id_at(at) <= id_ < first_id_at(at + timedelta(milliseconds=1))


@given(instants, instants, randoms, randoms)
@proves("E11")
def test_ids_sort_as_their_instants_do(one: datetime, other: datetime, first: int, second: int) -> None:
    if ticks_at(one) < ticks_at(other):
        assert uuid7(ticks_at(one), first) < uuid7(ticks_at(other), second)


@given(st.integers(1, 500))
@proves("E11")
def test_ids_of_one_instant_are_all_different_and_in_the_order_of_their_making(count: int) -> None:
    clock = DatabaseClock()
    clock.freeze(NOON)
    ids = [*clock.new_ids(count), clock.new_id()]
    assert ids == sorted(set(ids))
    assert instant_of(ids[-1]) - NOON <= timedelta(milliseconds=1)


@proves("C3")
def test_ids_follow_the_clock_again_after_one_wrong_reading() -> None:
    clock = DatabaseClock(lambda: 0.0)
    clock.see(NOON, 0.0)
    before = clock.new_id()
    clock.see(NOON + timedelta(days=100), 0.0)
    assert instant_of(clock.new_id()) == NOON + timedelta(days=100)
    clock.see(NOON, 0.0)
    after = clock.new_ids(100)
    assert instant_of(after[-1]) - NOON <= timedelta(milliseconds=1)
    assert len({before, *after}) == 101, "the random bits differ"


@proves("C3", "E11")
def test_ids_stay_in_order_while_the_clock_goes_back_by_less_than_a_second() -> None:
    clock = DatabaseClock()
    clock.freeze(NOON)
    before = clock.new_ids(10)
    clock.freeze(NOON - timedelta(milliseconds=900))
    assert clock.new_id() > before[-1]


@proves("C3")
def test_ids_that_the_database_asked_for_are_not_before_its_instant_however_far_the_estimate_lags() -> None:
    clock = DatabaseClock()
    clock.freeze(NOON)
    for days in (100, 50):
        ahead_at = NOON + timedelta(days=days)
        assert instant_of(clock.new_ids(1, not_before=ahead_at)[0]) == ahead_at
    assert instant_of(clock.new_id()) == NOON


@proves("C1")
def test_jobs_made_in_one_burst_spread_over_all_partitions() -> None:
    clock = DatabaseClock()
    clock.freeze(NOON)
    shares = Counter(partition_of(id_) for id_ in clock.new_ids(64 * 200))
    assert len(shares) == PARTITIONS
    assert max(shares.values()) < 2 * 200


@given(st.uuids())
@proves("C1")
def test_a_job_has_one_partition_for_ever(id_: UUID) -> None:
    assert 0 <= partition_of(id_) < PARTITIONS
    assert partition_of(UUID(str(id_))) == partition_of(id_)


@proves("C3")
def test_the_clock_prefers_a_quick_reading_until_a_slow_one_is_more_precise() -> None:
    monotonic = 100.0
    clock = DatabaseClock(lambda: monotonic)
    clock.see(NOON, 99.9)
    assert abs(clock.now() - NOON - timedelta(seconds=0.05)) < timedelta(milliseconds=1)
    monotonic = 110.0
    clock.see(NOON + timedelta(seconds=10), 105.0)
    assert clock.now() - NOON < timedelta(seconds=10.1)
    monotonic = 140.0
    clock.see(NOON + timedelta(seconds=40), 139.0)
    assert clock.now() - NOON < timedelta(seconds=40.1)
    assert abs(clock.uncertain_s - 0.09) < 1e-9
    monotonic = 700.0
    clock.see(NOON + timedelta(seconds=600), 699.0)
    assert clock.now() - NOON > timedelta(seconds=600.4)


@proves("C3")
@pytest.mark.parametrize("step_s", [3600, -3600, 4, -4, 0.2, -2.2])
def test_the_clock_follows_a_step_of_the_database_s_at_once(step_s: float) -> None:
    monotonic = 100.0
    clock = DatabaseClock(lambda: monotonic)
    clock.see(NOON, 99.9)
    monotonic = 110.0
    clock.see(NOON + timedelta(seconds=10 + step_s), 108.0)
    assert abs(clock.now() - NOON - timedelta(seconds=11 + step_s)) < timedelta(milliseconds=1)


@proves("C3")
@given(st.lists(st.tuples(st.floats(-20, 20), st.floats(0, 60), st.floats(0, 5), st.floats(0, 1)), min_size=1))
def test_after_a_reading_the_clock_never_contradicts_it(readings: list[tuple[float, float, float, float]]) -> None:
    """Whatever the database's clock was set by between them, how long each took, and when in that time it was read."""
    monotonic, set_by = 100.0, 0.0
    clock = DatabaseClock(lambda: monotonic)
    for step_s, pause_s, took_s, part in readings:
        set_by += step_s
        sent_s = monotonic = monotonic + pause_s
        read_at = NOON + timedelta(seconds=sent_s + part * took_s + set_by)
        monotonic += took_s
        clock.see(read_at, sent_s)
        off = timedelta(seconds=clock.uncertain_s + ROUNDING_S)
        assert read_at - off <= clock.now() <= read_at + timedelta(seconds=took_s) + off


@proves("C3")
def test_a_late_answer_to_an_older_question_does_not_undo_a_step() -> None:
    monotonic = 100.0
    clock = DatabaseClock(lambda: monotonic)
    clock.see(NOON, 99.9)
    monotonic = 110.0
    clock.see(NOON + timedelta(seconds=1000), 109.9)
    clock.see(NOON + timedelta(seconds=8), 108.0)
    assert clock.now() > NOON + timedelta(seconds=999)


@proves("C3", "P4")
@pytest.mark.parametrize(
    ("off_s", "stored"), [(0.0, True), (0.9, True), (1.5, False), (-0.05, True), (-0.3, False), (19, False)]
)
def test_a_statement_stores_only_by_a_clock_that_agrees_with_the_moment_before_it(off_s: float, stored: bool) -> None:
    monotonic = 100.0
    clock = DatabaseClock(lambda: monotonic)
    clock.see(NOON, 99.8)
    moment = clock.moment()
    monotonic = 107.0
    earliest_s, latest_s = clock.bounds([moment])
    assert (earliest_s <= (clock.now() + timedelta(seconds=off_s)).timestamp() <= latest_s) is stored


@proves("C3", "P4")
def test_a_moment_of_before_a_step_that_others_noticed_is_contradicted() -> None:
    monotonic = 100.0
    clock = DatabaseClock(lambda: monotonic)
    clock.see(NOON, 99.99)
    moment = clock.moment()
    monotonic = 101.0
    set_at = NOON + timedelta(seconds=6)
    clock.see(set_at, 100.99)
    with pytest.raises(ClockStepped):
        clock.check(moment, set_at)
    earliest_s, latest_s = clock.bounds([moment])
    assert not earliest_s <= set_at.timestamp() <= latest_s
    clock.check(clock.moment(), set_at)
