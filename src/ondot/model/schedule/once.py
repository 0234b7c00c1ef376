"""One fire at an instant (S1). "In ten minutes", "now" and local times are already converted to an instant.

`at` alone decides when. Zone and wall time are kept to show the time as written, and whether a clock change moved it.
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
