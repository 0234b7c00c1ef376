"""Keys of jobs, decided: the row of a key and the clock in, what becomes of a job out."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from ondot.model.ids import JobId
from ondot.model.job import Debounce, Throttle, Unique
from ondot.model.unique_keys import SKEW, Claim, Runs, Skipped, Wish, decide_claim, is_put_off, key_of
from tests.proves import proves

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FIRST, SECOND = JobId(UUID(int=1)), JobId(UUID(int=2))


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def claimed(wish: Wish, at: datetime, held: Claim | None = None, *, is_live: bool = True) -> Claim:
    """The row of a key after a submit at this instant."""
    claim = decide_claim(wish, FIRST, held, at).claim
    return Claim(claim.job_id, claim.since_at, claim.until_at, claim.count, is_live)


@proves("E16")
def test_a_key_is_found_by_its_kind_and_its_text() -> None:
    wishes = (Unique(key="k"), Throttle(key="k", per_s=1), Debounce(key="k", wait_s=1))
    assert [key_of(wish) for wish in wishes] == [("unique", "k"), ("throttle", "k"), ("debounce", "k")]


@proves("E16")
@pytest.mark.parametrize(
    "wish",
    [Unique(key="k", within_s=60), Throttle(key="k", per_s=60), Debounce(key="k", wait_s=60)],
    ids=lambda wish: key_of(wish)[0],
)
def test_a_key_that_nobody_has_is_taken(wish: Wish) -> None:
    verdict = decide_claim(wish, FIRST, None, NOW)
    assert isinstance(verdict, Runs)
    assert verdict.claim == Claim(FIRST, NOW, NOW + s(60), 1, is_live=True)
    assert verdict.replaces is None


@proves("E16")
def test_a_unique_key_is_held_while_its_job_lives_and_within_its_time() -> None:
    wish = Unique(key="k", within_s=60)
    live, ended = claimed(wish, NOW), claimed(wish, NOW, is_live=False)
    assert isinstance(decide_claim(wish, SECOND, live, NOW + s(3600)), Skipped)
    assert decide_claim(wish, SECOND, ended, NOW + s(59)) == Skipped(ended, f"unique: the job {FIRST} has the key 'k'")
    assert isinstance(decide_claim(wish, SECOND, ended, NOW + s(60)), Runs)


@proves("E16")
def test_after_the_clock_was_set_back_a_unique_key_is_held_for_its_own_length_from_then_on() -> None:
    wish = Unique(key="k", within_s=60)
    ended = claimed(wish, NOW, is_live=False)
    earlier = NOW - s(3600)
    verdict = decide_claim(wish, SECOND, ended, earlier)
    assert isinstance(verdict, Skipped)
    assert (verdict.claim.since_at, verdict.claim.until_at) == (earlier, earlier + s(60))
    assert isinstance(decide_claim(wish, SECOND, verdict.claim, earlier + s(59)), Skipped)
    assert isinstance(decide_claim(wish, SECOND, verdict.claim, earlier + s(60)), Runs)


@proves("E16")
def test_after_the_clock_was_set_back_the_window_of_a_throttle_starts_again() -> None:
    wish = Throttle(key="k", per_s=60, limit=1)
    earlier = NOW - s(3600)
    verdict = decide_claim(wish, SECOND, claimed(wish, NOW), earlier)
    assert verdict == Runs(Claim(SECOND, earlier, earlier + s(60), 1, is_live=True))


@proves("E16")
def test_a_node_whose_clock_is_a_little_behind_counts_into_the_same_window() -> None:
    wish = Throttle(key="k", per_s=60, limit=1)
    assert isinstance(decide_claim(wish, SECOND, claimed(wish, NOW), NOW - SKEW), Skipped)


@proves("E16")
def test_after_the_clock_was_set_back_a_debounce_is_bounded_from_then_on() -> None:
    wish = Debounce(key="k", wait_s=10, max_wait_s=15)
    earlier = NOW - s(3600)
    verdict = decide_claim(wish, SECOND, claimed(wish, NOW), earlier)
    assert isinstance(verdict, Runs)
    assert (verdict.fire_at, verdict.replaces) == (earlier + s(10), FIRST)
    third = decide_claim(wish, SECOND, verdict.claim, earlier + s(9))
    assert isinstance(third, Runs)
    assert third.fire_at == earlier + s(15)


@proves("E16")
def test_a_debounced_job_is_put_off_until_its_instant_or_its_end() -> None:
    wish = Debounce(key="k", wait_s=10)
    assert is_put_off(claimed(wish, NOW), NOW + s(9))
    assert not is_put_off(claimed(wish, NOW), NOW + s(10))
    assert not is_put_off(claimed(wish, NOW, is_live=False), NOW)
