"""A batch becomes smaller after a timeout, and larger after a success."""

import asyncpg
import pytest

from ondot.model.errors import Unavailable
from ondot.store import adaptive_batch
from ondot.store.adaptive_batch import AdaptiveBatch
from tests.proves import proves


def _fail(at_once: AdaptiveBatch, error: Exception) -> int:
    with pytest.raises(type(error)), at_once.adapt(at_once.size):
        raise error
    return at_once.size


def _unavailable(cause: Exception) -> Unavailable:
    error = Unavailable("PostgreSQL does not answer.")
    error.__cause__ = cause
    return error


@proves("L4")
@pytest.mark.parametrize(
    "error",
    [TimeoutError(), asyncpg.QueryCanceledError("too long"), _unavailable(TimeoutError())],
    ids=["no answer", "cancelled", "unavailable"],
)
def test_after_a_timeout_the_batch_is_a_quarter_down_to_one_row(error: Exception) -> None:
    at_once = AdaptiveBatch(100)
    assert [_fail(at_once, error) for _ in range(5)] == [25, 6, 1, 1, 1]


@proves("L4")
@pytest.mark.parametrize("error", [ConnectionResetError(), _unavailable(ConnectionResetError()), ValueError()])
def test_another_error_leaves_the_size(error: Exception) -> None:
    assert _fail(AdaptiveBatch(100), error) == 100


@proves("L4")
def test_the_next_batch_is_a_quarter_of_the_rows_that_did_not_fit_and_not_of_the_limit() -> None:
    at_once = AdaptiveBatch(1000)
    with pytest.raises(TimeoutError), at_once.adapt(40):
        raise TimeoutError
    assert at_once.size == 10


@proves("L4")
def test_a_quick_success_doubles_the_batch_and_a_slow_one_adds_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = AdaptiveBatch(100)
    at_once.size = 1
    sizes = []
    for _ in range(8):
        with at_once.adapt(at_once.size):
            sizes.append(at_once.size)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 100]
    monkeypatch.setattr(adaptive_batch, "QUICK_S", -1.0)
    at_once.size = 7
    with at_once.adapt(7):
        pass
    assert at_once.size == 8
    with at_once.adapt(3):
        pass
    with at_once.adapt(8, may_grow=False):
        pass
    assert at_once.size == 8
