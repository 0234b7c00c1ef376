"""`/incidents`, and open incidents on the first page: an operator sees them first, and they are live (O4, O5)."""

import re
from datetime import UTC, datetime

from ondot.model.report.findings import Finding, Kind
from ondot.ui.report import _sections
from tests.flow.test_alerts import NEVER, Alerts, fail
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, job, once


def mark_of(html: str) -> str:
    [mark] = re.findall(r'id="incidents?" data-mark="([0-9a-f]+)"', html)
    return str(mark)


@proves("O4", "O5")
async def test_an_incident_is_first_on_the_first_page_and_its_pages_change_only_with_it(world: World) -> None:
    alerts = Alerts(world)
    async with served(world.database) as page:
        assert "so nothing is watched" in (await page.client.get("/incidents")).text
    await alerts.define("nightly fails", {"failing": {"in_a_row": 1}}, notify=[])
    async with served(world.database) as page:
        assert "Nothing went wrong" in (await page.client.get("/incidents")).text
    nightly = await world.submit(job("nightly", schedule=once(world.after(1e6)), **NEVER))
    await fail(world, nightly.id)
    await alerts.look()
    [incident] = await alerts.incidents()
    async with served(world.database) as page:

        async def read(path: str) -> str:
            return str((await page.client.get(path)).text)

        first = await read("/")
        assert first.index("Open incidents") < first.index('id="numbers"')
        paths = (f"/incidents?job={nightly.id}", f"/incidents/{incident.id}")
        before = [mark_of(await read(path)) for path in paths]
        await world.advance(7)
        assert [mark_of(await read(path)) for path in paths] == before
        for path in paths:
            assert f'hx-get="{path}"' in await read(path)
        await page.client.post(f"/v1/incidents/{incident.id}/acknowledge", json={"note": "on it"})
        after = [mark_of(await read(path)) for path in paths]
        assert all(new != old for new, old in zip(after, before, strict=True))


@proves("O10")
def test_a_kind_of_finding_is_one_section_of_the_report() -> None:
    at = datetime(2026, 3, 4, tzinfo=UTC)
    kinds: tuple[Kind, ...] = ("retried", "expectation", "retried", "skipped")
    sections = _sections([Finding(kind, str(n), 1, is_open=False, last_at=at) for n, kind in enumerate(kinds)])
    assert [[one.reason for one in section.findings] for section in sections] == [["0", "2"], ["1"], ["3"]]
