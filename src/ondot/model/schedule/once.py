"""One fire, at an instant (S1); "in ten minutes" and "now" have become instants before they come here.

So has local time: `at` alone says when. Zone and wall time are kept to tell it as it was written, and whether a change
of the clocks has moved it.
"""

from datetime import UTC, datetime

from msgspec import Struct


class Once(
    Struct,
    tag_field="kind",
    tag="once",
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    cache_hash=True,
):
    at: datetime
    timezone: str = "UTC"
    wall: datetime | None = None  # as written, without an offset; a gap may have no such time


def next_after(once: Once, after: datetime) -> datetime | None:
    return once.at.astimezone(UTC) if once.at > after else None
