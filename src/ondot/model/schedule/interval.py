"""Every so many seconds from an anchor, without drift (S3).

The k-th fire is `anchor_at + k * every_s`, computed from the anchor in whole microseconds and not from the
fire before: a late fire, a restart or a million fires move nothing. Intervals measure real time, so time
zones do not touch them.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

SMALLEST_S: Final = 1
LARGEST_S: Final = 10 * 366 * 86_400


class Interval(
    Struct,
    tag_field="kind",
    tag="interval",
    frozen=True,
    kw_only=True,
    cache_hash=True,
):
    every_s: float
    anchor_at: datetime


def next_after(interval: Interval, after: datetime) -> datetime | None:
    anchor_at = interval.anchor_at.astimezone(UTC)
    if after < anchor_at:
        return anchor_at
    every = timedelta(microseconds=round(interval.every_s * 1_000_000))
    try:
        return anchor_at + ((after - anchor_at) // every + 1) * every
    except OverflowError:  # past the year 9999
        return None
