"""Which errors are retried: the job's `retry` overrides the target's own judgement."""

import pytest

from ondot.model.outcome import AttemptError, Failed, timed_out
from ondot.model.retry import Retry
from ondot.model.retryable import retryable
from ondot.targets.function.exceptions import report_exception
from tests.proves import proves


class ShopClosed(ConnectionError):
    pass


def answered(status: int, *, may_pass: bool) -> Failed:
    return Failed(AttemptError("http_status", "The receiver said so.", facts={"status": status}), retryable=may_pass)


@proves("E4")
@pytest.mark.parametrize("may_pass", [True, False])
def test_a_job_without_rules_of_its_own_leaves_it_to_the_target(may_pass: bool) -> None:
    assert retryable(Retry(), answered(418, may_pass=may_pass)) is may_pass


@proves("E4")
@pytest.mark.parametrize(
    ("word", "failed"),
    [
        ("503", answered(503, may_pass=True)),
        ("5xx", answered(503, may_pass=True)),
        ("5XX", answered(599, may_pass=True)),
        ("http_status", answered(503, may_pass=True)),
        ("timeout", timed_out(3)),
        ("exception", report_exception(ValueError("no"))),
        ("ValueError", report_exception(ValueError("no"))),
        ("ShopClosed", report_exception(ShopClosed("no"))),
        (f"{__name__}.ShopClosed", report_exception(ShopClosed("no"))),
        ("ConnectionError", report_exception(ShopClosed("no"))),
        ("OSError", report_exception(ShopClosed("no"))),
        ("3", Failed(AttemptError("exit_code", "It ended so.", facts={"exit_code": 3}))),
        ("SIGKILL", Failed(AttemptError("signal", "It ended so.", facts={"signal": "SIGKILL"}))),
    ],
)
def test_an_error_is_meant_by_each_of_its_names(word: str, failed: Failed) -> None:
    will_not_pass = Failed(failed.error, retryable=False)
    assert not retryable(Retry(never_on=(word,)), failed)
    assert retryable(Retry(retry_on=(word,)), will_not_pass)
    assert not retryable(Retry(never_on=(word,), retry_on=(word,)), failed)


@proves("E4")
@pytest.mark.parametrize("word", ["", "50", "4xx", "xx", "Closed", "shopclosed", "KeyError", "connect_timeout", "out"])
@pytest.mark.parametrize("failed", [answered(503, may_pass=True), report_exception(ShopClosed("no")), timed_out(3)])
def test_an_error_does_not_match_a_name_that_is_only_similar(word: str, failed: Failed) -> None:
    assert retryable(Retry(never_on=(word,)), failed)
    assert not retryable(Retry(retry_on=(word,)), Failed(failed.error, retryable=False))
