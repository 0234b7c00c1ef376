"""The limits of a job in words, for its page."""

import pytest

from ondot.model.gates import Limits, Rate
from ondot.model.job import Debounce, JobSpec, Throttle, Unique
from ondot.model.retry import Retry
from ondot.model.target import HttpTarget, ShellTarget
from ondot.ui.limits import limits_in_words, retries_in_words
from tests.proves import proves
from tests.world import job


def limits_of(spec: JobSpec) -> dict[str, str]:
    return dict(limits_in_words(spec))


@proves("E4", "E7")
def test_a_job_without_limits_shows_its_timeout_and_its_retries() -> None:
    assert limits_of(job(target=HttpTarget(url="http://there"))) == {
        "Timeout": "At most 5 minutes for each attempt, the default for HTTP calls",
        "Retries": "Up to 3 retries, after 1 second, then with growing delays, up to 1 hour",
    }
    assert limits_of(job(target=ShellTarget(command=("true",))))["Timeout"].startswith("None")
    assert limits_of(job(timeout_s=60))["Timeout"] == "At most 1 minute for each attempt"


@proves("E12", "E13", "E16")
def test_each_limit_is_a_sentence() -> None:
    limits = Limits(
        overlap="skip",
        order_key="customer-7",
        concurrency=3,
        rate=Rate(limit=10, per_s=60, burst=4),
        key="erp",
        key_concurrency=2,
        key_rate=Rate(limit=1, per_s=5),
    )
    words = limits_of(job(limits=limits, start_deadline_s=90))
    assert "skipped while an earlier execution" in words["Overlap"]
    assert "customer-7" in words["Order"]
    assert words["Concurrency"] == "At most 3 at a time"
    assert words["Rate"] == "At most 10 in 1 minute, in bursts of up to 4"
    assert words["Concurrency by key"] == "At most 2 at a time with the key erp"
    assert words["Rate by key"] == "At most 1 in 5 seconds, with the key erp"
    assert words["Start deadline"] == "Skipped if it has not started 1 minute 30 seconds after it was due"


@proves("E16")
def test_unique_debounce_and_throttle_keys_are_sentences() -> None:
    assert "or within 1 hour" in limits_of(job(unique=Unique(key="a", within_s=3600)))["Unique"]
    assert (
        "30 seconds after it arrived, but at most 5 minutes"
        in limits_of(job(debounce=Debounce(key="a", wait_s=30, max_wait_s=300)))["Debounce"]
    )
    assert limits_of(job(throttle=Throttle(key="a", per_s=60, limit=2)))["Throttle"].startswith("At most 2 in 1 minute")


@proves("E4")
@pytest.mark.parametrize(
    ("retry", "words"),
    [
        (Retry(max_retries=0), "None: the first failure is final"),
        (Retry(max_retries=1, backoff="fixed", initial_s=5), "1 retry, 5 seconds after the failure"),
        (Retry(backoff="listed", delays_s=(1, 60, 3600)), "Up to 3 retries, after 1 second, 1 minute, 1 hour"),
        (Retry(backoff="linear"), "Up to 3 retries, after 1 second, then each time 1 second later, up to 1 hour"),
    ],
)
def test_retries_are_described_by_their_backoff(retry: Retry, words: str) -> None:
    assert retries_in_words(retry) == words
