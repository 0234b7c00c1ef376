"""One fire, at an instant (S1); "in ten minutes" and "now" have become instants before they come here."""

from datetime import UTC, datetime

from msgspec import Struct


class Once(
    Struct,
    tag_field="kind",
    tag="once",
    frozen=True,
    kw_only=True,
    cache_hash=True,
):
    at: datetime


def next_after(once: Once, after: datetime) -> datetime | None:
    return once.at.astimezone(UTC) if once.at > after else None
