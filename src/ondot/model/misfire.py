"""What is owed after an outage (S6): the policy as data.

A misfire is a fire that was not planned by `fire_at + grace_s`. The policy says which of them are still
executed: none (`skip`), the latest (`once`), or each one no older than `window_s` and at most `limit` of
them (`all`). What is not executed is recorded as skipped, by the flow.
"""

from typing import Final, Literal

from msgspec import Struct

from ondot.model.errors import Fault

LARGEST_LIMIT: Final = 10_000

MissedPolicy = Literal["skip", "once", "all"]


class Misfire(Struct, frozen=True, kw_only=True, omit_defaults=True):
    policy: MissedPolicy = "once"
    grace_s: float = 60.0
    window_s: float = 3600.0
    limit: int = 100


def faults(misfire: Misfire) -> list[Fault]:
    """What is wrong with the policy; pointers are relative to the schedule's long form on the wire."""
    found = []
    if not 0 <= misfire.grace_s <= 86_400:
        found.append(Fault("/misfire/grace", 'Give a grace between 0 and one day, for example "60s".'))
    if not 0 <= misfire.window_s <= 366 * 86_400:
        found.append(Fault("/misfire/window", 'Give a window between 0 and one year, for example "1h".'))
    if not 1 <= misfire.limit <= LARGEST_LIMIT:
        found.append(Fault("/misfire/limit", f"Give a limit between 1 and {LARGEST_LIMIT:,} fires."))
    return found
