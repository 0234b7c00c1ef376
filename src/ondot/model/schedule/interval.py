"""A fixed interval from an anchor, without drift (S3).

The k-th fire is `anchor_at + k * every_s`, computed from the anchor in whole microseconds and not from the previous
fire: a late fire, a restart or a million fires cause no drift. Intervals measure real time, so time zones do not affect
them. `@every 90s`, as some crons write it, is an interval too.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from ondot.model import duration
from ondot.model.errors import Fault, InvalidSchedule

SMALLEST_S: Final = 1
LARGEST_S: Final = 10 * 366 * 86_400


class Interval(
    Struct,
    tag_field="kind",
    tag="interval",
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    cache_hash=True,
):
    every_s: float
    anchor_at: datetime
    is_anchored: bool = False  # whether the user chose the anchor; otherwise it is when the job was accepted


def next_after(interval: Interval, after: datetime) -> datetime | None:
    anchor_at = interval.anchor_at.astimezone(UTC)
    if after < anchor_at:
        return anchor_at
    every = timedelta(microseconds=round(interval.every_s * 1_000_000))
    try:
        return anchor_at + ((after - anchor_at) // every + 1) * every
    except OverflowError:  # past the year 9999
        return None


def every_of(text: str) -> float | None:
    """The seconds of a cron text `@every 90s`, or None for any other text."""
    macro, _, written = text.strip().partition(" ")
    if macro.lower() != "@every":
        return None
    try:
        return duration.seconds(written)
    except ValueError as refusal:
        message = f'The cron text "{text[:80]}" is not valid: after @every it needs {refusal}.'
        raise InvalidSchedule(message, faults=(Fault("/cron", message),), cron=text[:80]) from None
