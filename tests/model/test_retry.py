"""What follows a failure or a loss: within the budgets, each counted apart."""

from hypothesis import given
from hypothesis import strategies as st

from ondot.model.retry import GiveUp, Retry, RetryIn, after_failure, after_loss, backoff_s, free_for_suspects
from tests.proves import proves

retries = st.builds(
    Retry,
    max_retries=st.integers(0, 20),
    backoff=st.sampled_from(["exponential", "linear", "fixed", "listed"]),
    initial_s=st.floats(0, 86_400),
    factor=st.floats(1, 1e6),
    max_s=st.floats(0, 1e6),
    jitter=st.booleans(),
    delays_s=st.lists(st.floats(0, 1e6), max_size=5).map(tuple),
    max_worker_losses=st.integers(0, 20),
)
randoms = st.floats(0, 1, exclude_max=True)


@given(retries, st.integers(1, 100_000), randoms)
@proves("E4")
def test_a_delay_is_never_negative_nor_longer_than_its_cap(retry: Retry, failures: int, random: float) -> None:
    assert 0 <= backoff_s(retry, failures, random) <= retry.max_s


@given(retries, st.integers(1, 50))
@proves("E4")
def test_without_jitter_a_growing_backoff_never_shrinks(retry: Retry, failures: int) -> None:
    if retry.backoff == "listed":
        return
    later = backoff_s(retry, failures + 1, 0.999999)
    assert backoff_s(retry, failures, 0.999999) <= later


@proves("E4")
def test_each_backoff_has_its_delays() -> None:
    def delays(**fields: object) -> list[float]:
        retry = Retry(jitter=False, **fields)  # type: ignore[arg-type]
        return [backoff_s(retry, failures, 0.5) for failures in (1, 2, 3, 4)]

    assert delays() == [1, 2, 4, 8]
    assert delays(initial_s=10, factor=3, max_s=100) == [10, 30, 90, 100]
    assert delays(backoff="linear", initial_s=5) == [5, 10, 15, 20]
    assert delays(backoff="fixed", initial_s=5) == [5, 5, 5, 5]
    assert delays(backoff="listed", delays_s=(1.0, 10.0)) == [1, 10, 10, 10]


@proves("E4")
def test_jitter_spreads_a_delay_from_nothing_to_the_whole_but_leaves_listed_ones_alone() -> None:
    retry = Retry(initial_s=10)
    assert [backoff_s(retry, 1, random) for random in (0.0, 0.5)] == [0, 5]
    assert backoff_s(Retry(backoff="listed", delays_s=(10.0,)), 1, 0.0) == 10


@given(retries, st.integers(1, 30), st.floats(0, 1e6), randoms)
@proves("E4")
def test_a_retry_after_is_a_floor_under_the_delay(
    retry: Retry, failures: int, retry_after_s: float, random: float
) -> None:
    decision = after_failure(retry, failures, retryable=True, retry_after_s=retry_after_s, random=random)
    assert isinstance(decision, RetryIn) == (failures <= retry.max_retries)
    if isinstance(decision, RetryIn):
        assert decision.delay_s >= retry_after_s


@given(retries, st.integers(1, 30))
@proves("E4", "P7")
def test_an_error_that_is_not_retryable_is_given_up_at_once(retry: Retry, failures: int) -> None:
    assert isinstance(after_failure(retry, failures, retryable=False, retry_after_s=None, random=0.0), GiveUp)


@given(retries, st.integers(1, 30))
@proves("E6", "E10", "P7")
def test_losses_have_a_budget_of_their_own_and_end_as_poison(retry: Retry, losses: int) -> None:
    decision = after_loss(retry, losses)
    if losses <= retry.max_worker_losses:
        assert decision == RetryIn(0.0)
    else:
        assert isinstance(decision, GiveUp)
        assert "poison" in decision.reason


@given(st.integers(1, 10_000), st.integers(0, 20_000))
@proves("E6", "L6")
def test_a_worker_has_room_for_some_suspects_and_never_for_fewer_than_none(slots: int, suspects: int) -> None:
    free = free_for_suspects(slots, suspects)
    assert 0 <= free <= max(slots // 8, 1)
    assert free > 0 or suspects >= max(slots // 8, 1)
