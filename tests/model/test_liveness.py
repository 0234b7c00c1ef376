"""Who is lost: only whose beat stood still by both clocks, as seen by a housekeeper who was awake."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ondot.model.liveness import BACK_S, Beat, Watch, gap_s, is_silent, most_gaps, when_lost
from tests.proves import proves

NOON = datetime(2031, 3, 3, 12, tzinfo=UTC)
TIMEOUT_S = 10.0
ID = UUID(int=1)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def look(watch: Watch, seconds: float, beat_at: float, beat_no: int = 0, database_s: float | None = None) -> bool:
    beat = Beat(ID, beat_no, at(beat_at))
    now = at(seconds if database_s is None else database_s)
    return watch.look([beat], monotonic_s=seconds, database_now=now) == [beat]


@proves("E6", "L3")
def test_a_worker_is_lost_at_the_first_look_after_the_timeout_by_both_clocks() -> None:
    watch = Watch(TIMEOUT_S)
    assert [look(watch, seconds, 0) for seconds in (0, 3, 6, 9, 10, 10.1)] == [False] * 5 + [True]


@proves("E6")
def test_a_heartbeat_restarts_the_wait() -> None:
    watch = Watch(TIMEOUT_S)
    for seconds in range(0, 100, 4):
        assert not look(watch, seconds, beat_at=seconds, beat_no=seconds)
    assert [look(watch, seconds, 96, 96) for seconds in (99, 102, 105, 106)] == [False] * 4
    assert look(watch, 107, 96, 96)


@proves("E6", "L4")
def test_a_gap_of_the_housekeeper_counts_for_nobody() -> None:
    watch = Watch(TIMEOUT_S)
    look(watch, 0, 0)
    assert not look(watch, 60, 0)
    assert [look(watch, seconds, 0) for seconds in (63, 66, 69, 70)] == [False] * 4
    assert look(watch, 70.1, 0)


@proves("E6", "L3", "L4")
def test_a_silence_that_was_seen_before_a_gap_is_not_forgotten_and_who_lives_has_time_to_beat_again() -> None:
    watch = Watch(TIMEOUT_S)
    assert [look(watch, seconds, 0) for seconds in (0, 3, 6, 8, 30, 33, 35)] == [False] * 7
    assert watch.next_loss_s(33) == 2
    assert look(watch, 35.1, 0)


@proves("E6", "L3", "L4")
def test_a_server_that_restarts_again_and_again_does_not_keep_the_dead_alive() -> None:
    watch = Watch(TIMEOUT_S)
    # There for eight seconds, away for six, and so on.
    looks = [begin + seconds for begin in (0, 14, 28, 42) for seconds in (0, 2, 4, 6, 8)]
    assert [seconds for seconds in looks if look(watch, seconds, 0)][:1] == [20]
    # Hardly ever there.
    watch = Watch(TIMEOUT_S)
    looks_between = [begin + seconds for begin in range(0, 100, 8) for seconds in (0, 2, 4)]
    assert [seconds for seconds in looks_between if look(watch, seconds, 0)][:1] == [20]
    alive = Watch(TIMEOUT_S)
    assert not any(look(alive, seconds, seconds - seconds % 14 + 3, beat_no=seconds // 14) for seconds in looks)


@proves("E6", "C3")
def test_after_a_step_of_the_databases_clock_a_full_timeout_starts_again() -> None:
    for step in (3600, -3600):
        watch = Watch(TIMEOUT_S)
        look(watch, 0, 0)
        assert not look(watch, 4, 0, database_s=4 + step)
        assert not look(watch, 8, 0, database_s=8 + step)
        assert not look(watch, 12, 0, database_s=12 + step)


@proves("E6")
def test_a_worker_that_is_seen_for_the_first_time_is_not_judged_by_its_past() -> None:
    watch = Watch(TIMEOUT_S)
    assert not look(watch, 1000, beat_at=0, database_s=1000)


@proves("E6", "L4")
def test_what_is_shown_about_a_silent_worker_is_what_the_watch_does_also_after_an_outage() -> None:
    assert [is_silent("ALIVE", seconds, TIMEOUT_S) for seconds in (5, 5.1, 46)] == [False, True, True]
    assert (is_silent("DRAINING", 6, TIMEOUT_S), is_silent("LOST", 6, TIMEOUT_S)) == (True, False)
    assert when_lost(TIMEOUT_S) == (
        "A worker that sends no heartbeat for 10 s is marked lost; an outage of PostgreSQL longer than 3 s does not"
        " count, and no worker is marked lost in the 5 s after it"
    )
    for outage_s in (gap_s(TIMEOUT_S) + 0.1, 46):
        watch = Watch(TIMEOUT_S)
        back_s = 3 + outage_s
        assert not any(look(watch, seconds, 0) for seconds in (0, 3, back_s, back_s + 3, back_s + BACK_S))
        assert not look(watch, 10 + outage_s, 0)
        assert look(watch, 10.1 + outage_s, 0)


@given(st.lists(st.floats(0.1, 2.9), min_size=1, max_size=40))
@proves("E6")
def test_a_worker_that_beats_between_all_looks_is_never_lost(pauses: list[float]) -> None:
    watch = Watch(TIMEOUT_S)
    seconds = 0.0
    for number, pause in enumerate(pauses):
        seconds += pause
        assert not look(watch, seconds, beat_at=seconds - pause / 2, beat_no=number)


@given(st.lists(st.floats(0.1, 2.9), min_size=1, max_size=40))
@proves("E6", "L3")
def test_a_silent_worker_is_lost_exactly_when_the_timeout_has_passed(pauses: list[float]) -> None:
    watch = Watch(TIMEOUT_S)
    look(watch, 0.0, 0)
    seconds = 0.0
    for pause in pauses:
        seconds += pause
        assert look(watch, seconds, 0) == (at(seconds) - at(0) > timedelta(seconds=TIMEOUT_S) and seconds > TIMEOUT_S)


@proves("E6", "C3", "L3")
def test_who_died_before_the_clock_was_set_back_is_lost_after_a_full_timeout_and_not_an_hour_later() -> None:
    watch = Watch(TIMEOUT_S)
    assert not look(watch, 0, beat_at=0)
    looks = [look(watch, seconds, beat_at=0, database_s=seconds - 3600) for seconds in (3, 6, 9, 12, 13, 13.1)]
    assert looks == [False] * 5 + [True]


@proves("L3")
def test_the_watch_returns_when_the_next_worker_may_be_lost() -> None:
    watch = Watch(TIMEOUT_S)
    assert watch.next_loss_s(0) is None
    look(watch, 0, beat_at=0)
    assert watch.next_loss_s(4) == 6
    look(watch, 4, beat_at=4, beat_no=1)
    assert watch.next_loss_s(4) == TIMEOUT_S
    assert watch.next_loss_s(15) == 0


@proves("E6", "L3", "P13")
def test_a_dead_worker_is_lost_though_looks_are_more_than_a_gap_apart() -> None:
    """Each look was taken for a gap that moves the deadline: at 3.1 s it was not lost after an hour."""
    for pause_s, within_s in ((3.1, 16), (5, 26), (20, 101)):
        watch = Watch(TIMEOUT_S)
        looks = (number * pause_s for number in range(2000))
        assert next(seconds for seconds in looks if look(watch, seconds, 0)) <= within_s


@given(st.lists(st.floats(0.01, 60), min_size=1, max_size=80), st.sampled_from([0.5, 1.5, 10, 60, 600]))
@proves("E6", "L3", "P13")
def test_a_worker_that_never_beats_again_is_lost_after_so_many_gaps_and_the_timeout(
    pauses: list[float], timeout_s: float
) -> None:
    watch = Watch(timeout_s)
    seconds = in_rhythm_s = 0.0
    gaps = 0
    look(watch, 0.0, 0)
    for pause in pauses:
        seconds += pause
        if pause > gap_s(timeout_s):
            gaps += 1
        else:
            in_rhythm_s += pause
        if look(watch, seconds, 0):
            assert seconds > timeout_s
            return
        assert gaps <= most_gaps(timeout_s)
        assert gaps or in_rhythm_s <= timeout_s
        # With gaps between them, the looks in rhythm need no longer than the timeout and the time to beat again.
        assert in_rhythm_s <= timeout_s + BACK_S


@given(st.lists(st.floats(0.01, 60), min_size=1, max_size=80))
@proves("E6")
def test_a_worker_that_beats_between_all_looks_is_never_lost_however_far_apart_they_are(pauses: list[float]) -> None:
    watch = Watch(TIMEOUT_S)
    seconds = 0.0
    for number, pause in enumerate(pauses):
        seconds += pause
        assert not look(watch, seconds, beat_at=max(seconds - 3.4, seconds - pause / 2), beat_no=number)


@proves("E6", "C3", "P13")
def test_a_busy_housekeeper_that_reads_the_time_late_does_not_take_that_for_a_step_of_the_clock() -> None:
    watch = Watch(TIMEOUT_S)
    looks = [(3.0 * number, 2.5 * (number % 2)) for number in range(20)]
    lost = [
        watch.look([Beat(ID, 0, at(0))], monotonic_s=asked_s + took_s, database_now=at(asked_s), took_s=took_s)
        for asked_s, took_s in looks
    ]
    assert next(asked_s for (asked_s, _), found in zip(looks, lost, strict=True) if found) <= 24
