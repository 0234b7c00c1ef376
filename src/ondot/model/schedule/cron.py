"""Cron schedules: by calendar and wall clock (S2, S4).

The expression lists slots of wall time, and `dst` maps each to its instants. Results are cached: jobs that share an
expression are due at the same time, so many of them ask the same question.
"""

from datetime import datetime
from functools import lru_cache

from msgspec import Struct

from ondot.model.schedule.dst import NEVER_AFTER, STRAIGHT, Dst, aware, naive, next_instant
from ondot.model.schedule.expression import Expression, expression
from ondot.model.schedule.spread import resolve


class Cron(
    Struct,
    tag_field="kind",
    tag="cron",
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    cache_hash=True,
):
    expression: str
    timezone: str = "UTC"
    dst: Dst = Dst()
    spread: int = 0  # the job's seed for H; 0 if there is no H, or no job yet


@lru_cache(maxsize=8192)
def next_after(cron: Cron, after: datetime) -> datetime | None:
    """The first fire strictly after an aware UTC instant."""
    after_at = naive(after)
    if after_at >= NEVER_AFTER:
        return None
    parsed = parsed_of(cron)
    fire_at = next_instant(parsed.slot_after, cron.timezone, STRAIGHT if parsed.is_straight else cron.dst, after_at)
    return None if fire_at is None else aware(fire_at)


def parsed_of(cron: Cron) -> Expression:
    """The expression with the job's own values for H."""
    return expression(resolve(cron.expression, cron.spread) if cron.spread else cron.expression)


def effective_dst(cron: Cron) -> Dst:
    """The job's policy, or `STRAIGHT` for an expression that follows real time."""
    return STRAIGHT if parsed_of(cron).is_straight else cron.dst
