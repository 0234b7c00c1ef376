"""The search boxes: they keep what was typed, show errors beside it, and say how far back a search came."""

import pytest

from ondot.store import search, search_jobs
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, job


@proves("O1", "O5")
async def test_a_search_box_keeps_its_text_shows_its_error_and_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit_all([job('a "quoted" report', key="q"), job("other", key="o")])
    async with served(world.database) as page:

        async def read(path: str, q: str) -> str:
            answer = await page.client.get(f"/{path}", params={"q": q})
            assert answer.status_code == 200
            return str(answer.text)

        for path in ("executions", "jobs"):
            html = await read(path, r'"\"quoted\""')
            assert "quoted&#34; report" in html
            assert ">other<" not in html
            assert r'value="&#34;\&#34;quoted\&#34;&#34;"' in html
            assert "label.team=bi" in html  # the help
            wrong = await read(path, "report stat:failed")
            assert "Unknown field &#39;stat&#39;. Did you mean state?" in wrong
            assert 'value="report stat:failed"' in wrong
            assert 'aria-invalid="true"' in wrong
            assert "2,000 are allowed" in await read(path, "a " * 1_500)
        for module, name in ((search, "search_executions"), (search_jobs, "search_jobs")):
            monkeypatch.setattr(getattr(module, name), "__defaults__", (None, 50, 1e-9))
        for path in ("executions", "jobs"):
            html = await read(path, "no such")
            assert "Nothing was found back to" in html
            assert "Search further back" in html
            assert f'href="/{path}?q=no+such&amp;cursor=' in html
            assert " matches. " not in html
