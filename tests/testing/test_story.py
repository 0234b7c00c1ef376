"""A year in Berlin: both transitions, an outage over one of them, and what three policies make of it."""

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from ondot import Context, Ondot
from ondot.testing import open_world
from tests.proves import proves

BERLIN = ZoneInfo("Europe/Berlin")
BEGIN, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
AWAY, BACK = datetime(2026, 10, 24, 12, tzinfo=UTC), datetime(2026, 10, 26, 12, tzinfo=UTC)
"""The clocks go back on 25 October: 02:30 is repeated that night, during the outage."""


def half_past_two(day: date) -> datetime:
    """02:30 in Berlin, computed without ondot: the first of two, and the end of the gap where there is none."""
    wall = datetime(day.year, day.month, day.day, 2, 30, tzinfo=BERLIN, fold=0)
    at = wall.astimezone(UTC)
    if at.astimezone(BERLIN).replace(tzinfo=None) == wall.replace(tzinfo=None):
        return at
    at -= timedelta(hours=3)
    while (at + timedelta(minutes=1)).astimezone(BERLIN).utcoffset() == at.astimezone(BERLIN).utcoffset():
        at += timedelta(minutes=1)
    return at + timedelta(minutes=1)


NIGHTS = [half_past_two(date(2026, 1, 1) + timedelta(days=n)) for n in range(365)]
NOONS = [BEGIN + timedelta(hours=12, days=n) for n in range(365)]


@pytest.mark.timeout(300)
@proves("O7", "S4", "S6")
async def test_a_year_with_both_transitions_and_an_outage_fires_as_computed_by_hand() -> None:
    app = Ondot()

    @app.job(cron="30 2 * * *", timezone="Europe/Berlin")
    async def nightly(ctx: Context) -> None:
        assert ctx.fire_at <= world.now

    @app.job
    def at_noon() -> None: ...

    async with open_world(app, at=BEGIN) as world:
        nights = {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "misfire": {"policy": "all", "window": "3d"}}
        await world.create({"name": "every_night", "function": "nightly", "schedule": nights})
        noons = {"every": "1d", "start_at": "2026-01-01T12:00:00Z", "misfire": {"policy": "skip"}}
        await world.create({"name": "at_noon", "function": "at_noon", "schedule": noons})
        await world.run_until(AWAY)
        await world.outage(until=BACK)
        await world.run_until(END)

        missed = [fire_at for fire_at in NIGHTS if AWAY < fire_at < BACK]
        assert missed == [datetime(2026, 10, 25, 0, 30, tzinfo=UTC), datetime(2026, 10, 26, 1, 30, tzinfo=UTC)]

        calls = [call for call in world.calls(nightly) if call.job == "nightly"]
        assert [call.fire_at for call in calls] == [fire_at for fire_at in NIGHTS if fire_at != missed[0]]
        assert [call.at for call in calls if call.at != call.fire_at] == [BACK]
        [skipped] = await world.skipped("nightly")
        assert (skipped.from_at, skipped.to_at, skipped.reason, skipped.count) == (missed[0], missed[0], "coalesced", 1)

        calls = sorted(world.calls("every_night"), key=lambda call: call.fire_at)
        assert [call.fire_at for call in calls] == NIGHTS
        assert [call.fire_at for call in calls if call.at != call.fire_at] == missed
        assert await world.skipped("every_night") == []

        calls = world.calls("at_noon")
        # The noon at which the outage ends is not missed: it is planned within its grace.
        assert [call.fire_at for call in calls] == [at for at in NOONS if not AWAY < at < BACK]
        [skipped] = await world.skipped("at_noon")
        assert (skipped.from_at, skipped.reason, skipped.count) == (AWAY + timedelta(days=1), "misfire", 1)

        gap = [call for call in world.calls("every_night") if call.fire_at.date() == date(2026, 3, 29)]
        assert [call.fire_at.astimezone(BERLIN).isoformat() for call in gap] == ["2026-03-29T03:00:00+02:00"]
