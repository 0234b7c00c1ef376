"""The page of the forecast: weeks and hours as a browser may write them."""

import pytest

from ondot.model.ids import DEFAULT_TENANT
from ondot.ui.forecast import read_forecast
from tests.proves import proves
from tests.world import World, cron, job


@proves("S13")
@pytest.mark.parametrize(
    "query",
    [
        {"week": "0001-01-01"},
        {"week": "9999-12-31"},
        {"week": "1971-01-01"},
        {"hour": "1971-01-01T00:00:00Z", "pool": "none"},
        {"hour": "2199-12-31T23:00:00Z"},
        {"hour": "2026-03-29T01:30:00+01:00"},
        {"hour": "soon", "week": "soon"},
    ],
)
async def test_a_page_of_any_week_or_hour_has_seven_whole_days(world: World, query: dict[str, str]) -> None:
    await world.submit(job(schedule=cron("0 3 * * *")))
    view = await read_forecast(world.database, DEFAULT_TENANT, query)
    assert [len(cells) for _, cells in view.days] in ([24] * 7, [])  # a day of UTC has 24 hours, whatever clocks do
