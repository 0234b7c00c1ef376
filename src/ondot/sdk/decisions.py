"""What a handler may raise to decide itself what follows (E4).

    RetryIn(90)            try again, not before 90 seconds from now
    RetryAt(tomorrow)      try again, not before that instant by the database's clock
    GiveUp("no such user") do not try again: the execution ends FAILED

The first two count as a failed attempt: they say when, and the job's `max_retries` says how often.
"""

from datetime import UTC, datetime, timedelta
from math import isfinite


class Decision(Exception):
    """One of the three below."""


class RetryIn(Decision):
    def __init__(self, delay: float | timedelta, reason: str = "") -> None:
        delay_s = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
        if not isfinite(delay_s) or delay_s < 0:
            raise ValueError(f"RetryIn takes zero or more seconds, or a timedelta; {delay!r} came.")
        super().__init__(reason)
        self.delay_s = delay_s
        self.reason = reason


class RetryAt(Decision):
    def __init__(self, when: datetime, reason: str = "") -> None:
        if when.tzinfo is None:
            raise ValueError("RetryAt takes an aware datetime; give it a time zone, such as tzinfo=UTC.")
        super().__init__(reason)
        self.when = when.astimezone(UTC)
        self.reason = reason


class GiveUp(Decision):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
