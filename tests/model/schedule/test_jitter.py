"""S5: late by a bit on purpose, the same for one job each time, even over the window."""

from datetime import timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from ondot.model.schedule import jitter_offset
from tests.model.schedule.making import utc
from tests.proves import proves


@proves("S5")
@given(job_id=st.uuids(), jitter_s=st.floats(0, 86_400))
def test_jitter_is_never_early_never_beyond_its_window_and_always_the_same(job_id: UUID, jitter_s: float) -> None:
    offset = jitter_offset(job_id, jitter_s)
    assert timedelta(0) <= offset <= timedelta(microseconds=round(jitter_s * 1_000_000))
    assert jitter_offset(UUID(str(job_id)), jitter_s) == offset


@proves("S5")
def test_jitter_of_a_job_is_a_constant_that_no_release_may_change() -> None:
    assert jitter_offset(UUID("01939b8a-0000-7000-8000-000000000001"), 30) == timedelta(microseconds=14812416)


@proves("S5")
def test_ids_minted_in_a_row_spread_evenly_over_the_window() -> None:
    tenths = [0] * 10
    for n in range(10_000):
        offset = jitter_offset(UUID(int=(0x01939B8A_0000_7000_8000 << 48) + n), 30)
        tenths[min(int(offset / timedelta(seconds=3)), 9)] += 1
    assert all(850 < count < 1150 for count in tenths)


@proves("S5")
def test_without_a_window_there_is_no_jitter() -> None:
    assert jitter_offset(UUID(int=7), 0) == timedelta(0)


@proves("S5")
def test_jitter_by_fire_differs_between_fires_and_is_as_repeatable() -> None:
    one, other = utc("2026-11-15 12:00"), utc("2026-11-15 12:01")
    assert jitter_offset(UUID(int=7), 30, one) == jitter_offset(UUID(int=7), 30, one)
    assert jitter_offset(UUID(int=7), 30, one) != jitter_offset(UUID(int=7), 30, other)
