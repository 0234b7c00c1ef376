"""The window of a report (O10): "24h", "yesterday" or an instant, in the zone of the caller."""

from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Final

from ondot.model.duration import seconds
from ondot.model.errors import InvalidParameters, InvalidSchedule
from ondot.model.schedule.dst import zone_info

LONGEST: Final = timedelta(days=31)
_FORMS: Final = "Write 24h, 90m, yesterday, today, or an instant such as 2026-11-15T22:00:00Z."


@dataclass(frozen=True, slots=True)
class Window:
    """`zone`: in which "yesterday" was meant. `is_open`: it ends now, so work that waits now belongs to it."""

    since: datetime
    until: datetime
    zone: str
    is_open: bool


def parse_window(since: str, until: str | None, zone: str | None, now: datetime) -> Window:
    """Raises InvalidParameters. `yesterday` starts at midnight in the zone; the report goes on until now."""
    name = zone or "UTC"
    try:
        zone_info(name)
    except InvalidSchedule as error:
        raise InvalidParameters(f"zone: {error.message}") from None
    since_at = _parse("since", since, name, now)
    until_at = now if until is None else _parse("until", until, name, now)
    until_at = min(until_at, now)
    if since_at >= until_at:
        raise InvalidParameters("since must lie before until, and in the past.")
    if until_at - since_at > LONGEST:
        raise InvalidParameters(f"A report covers {LONGEST.days} days at most: choose a later `since`.")
    return Window(since_at, until_at, name, is_open=until_at == now)


def _parse(name: str, written: str, zone: str, now: datetime) -> datetime:
    text = written.strip()
    if text in {"yesterday", "today"}:
        local = zone_info(zone)
        day = now.astimezone(local).date() - timedelta(days=text == "yesterday")
        return datetime.combine(day, time(), local).astimezone(UTC)
    try:
        duration_s = seconds(text)
    except ValueError:
        return _parse_instant(name, text, zone)
    if duration_s > LONGEST.total_seconds():
        raise InvalidParameters(f"{name}: a report covers {LONGEST.days} days at most.")
    return now - timedelta(seconds=duration_s)


def _parse_instant(name: str, text: str, zone: str) -> datetime:
    try:
        at = datetime.fromisoformat(text)
        # Without an offset it is a time on the caller's wall.
        return (at.replace(tzinfo=zone_info(zone)) if at.tzinfo is None else at).astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidParameters(f"{name}: cannot read {text[:64]!r}. {_FORMS}") from None
