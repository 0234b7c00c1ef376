"""Exceptions by which a handler decides what follows (E4).

    RetryIn(90)            retry, not before 90 seconds from now
    RetryAt(tomorrow)      retry, not before that instant by the database's clock
    GiveUp("no such user") do not retry: the execution ends FAILED

The first two count as a failed attempt: they choose the time, and the job's `max_retries` limits how often.
"""

from datetime import UTC, datetime, timedelta
from math import isfinite


class Decision(Exception):
    """The base of the three below."""


class RetryIn(Decision):
    """Retry, not before this delay: seconds, or a timedelta. It counts as a failed attempt."""

    def __init__(self, delay: float | timedelta, reason: str = "") -> None:
        delay_s = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not isfinite(delay_s) or delay_s < 0:
            raise ValueError(f"RetryIn takes zero or more seconds, or a timedelta, got {delay!r}.")
        super().__init__(reason)
        self.delay_s = delay_s
        self.reason = reason


class RetryAt(Decision):
    """Retry, not before this instant, which needs a time zone. It counts as a failed attempt."""

    def __init__(self, when: datetime, reason: str = "") -> None:
        if when.tzinfo is None:
            raise ValueError("RetryAt takes an aware datetime. Add a time zone, such as tzinfo=UTC.")
        super().__init__(reason)
        self.when = when.astimezone(UTC)
        self.reason = reason


class GiveUp(Decision):
    """Do not retry: the execution ends FAILED."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
