"""Instants as people type them."""

from datetime import UTC, datetime

import typer


def instant(written: str, flag: str) -> datetime:
    try:
        at = datetime.fromisoformat(written)
        return (at.replace(tzinfo=UTC) if at.tzinfo is None else at).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        advice = "write 2026-03-29T00:00:00Z, or 2026-03-29 for midnight in UTC."
        raise typer.BadParameter(f"{written!r} is no instant: {advice}", param_hint=flag) from error
