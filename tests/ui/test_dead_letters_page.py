"""The page of dead letters: groups of similar errors, open and resolved letters, and the badge."""

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest

from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.retry import Retry
from ondot.ui.dead_letters import LettersView, Query, parse_query, read_letters
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, failed, job


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


async def fail(world: World, *messages: str, name: str = "report") -> list[str]:
    """Submit a job for each message, which fails for good with it. Returns the executions."""
    worker = await world.worker()
    ids = []
    for message in messages:
        await world.submit(job(name, retry=Retry(max_retries=0)))
        ran = await worker.run_one(failed(message))
        ids.append(str(ran.leased.id))
        await world.advance(1)
    return ids


async def view(world: World, **parameters: str) -> LettersView:
    return await read_letters(world.database, DEFAULT_TENANT, parse_query(parameters))


@proves("E10", "O5")
async def test_letters_with_similar_errors_are_a_group(world: World) -> None:
    await fail(world, "order 17 is gone", "order 18 is gone", name="orders")
    await fail(world, "connection refused", name="mail")
    letters = await view(world)
    assert letters.total == 3
    assert [
        (group.count, group.message, [one.name for one in group.jobs], group.job_count) for group in letters.groups
    ] == [
        (1, "connection refused", ["mail"], 1),
        (2, "order 18 is gone", ["orders"], 2),
    ]
    orders = letters.groups[1]
    assert (orders.last_at - orders.first_at).total_seconds() == 1
    similar = await view(world, fingerprint=orders.fingerprint)
    assert [row.message for row in similar.rows] == ["order 18 is gone", "order 17 is gone"]
    assert similar.group == orders
    assert (await view(world, q="REFUSED")).groups[0].message == "connection refused"


@proves("E10", "O5")
async def test_replayed_and_discarded_letters_are_listed(world: World, page: Served) -> None:
    replayed, discarded, _ = await fail(world, "a broke", "b broke", "c broke")
    answer = await page.client.post("/v1/dead-letters/replay", json={"ids": [replayed], "reason": "fixed"})
    again = answer.json()["items"][0]["replay_id"]
    await page.client.post("/v1/dead-letters/discard", json={"ids": [discarded], "reason": "not needed"})
    html = (await page.client.get("/dead-letters?state=replayed")).text
    assert "by local: fixed" in html
    assert f'href="/executions/{again}"' in html
    assert "data-act" not in html.partition('id="letters"')[2].partition("<dialog")[0]
    assert "by local: not needed" in (await page.client.get("/dead-letters?state=discarded")).text
    assert (await view(world)).total == 1


@proves("E10", "O5")
async def test_the_badge_counts_the_letters_that_are_open(world: World, page: Served) -> None:
    async def badge(path: str) -> list[str]:
        html = (await page.client.get(path)).text
        return re.findall(r'<span class="badge"><span class="unseen">[^<]*</span>(\d+)</span>', html)

    paths = ("/jobs", "/executions", "/dead-letters", "/schedules")
    assert [await badge(path) for path in (*paths, "/")] == [[]] * 5
    first, _ = await fail(world, "a broke", "b broke")
    assert [await badge(path) for path in (*paths, "/", f"/executions/{first}")] == [["2"]] * 6
    await page.client.post("/v1/dead-letters/discard", json={"ids": [first], "reason": "not needed"})
    assert [await badge(path) for path in (*paths, "/")] == [["1"]] * 5


@proves("E10", "O5")
async def test_a_jobs_page_lists_its_open_letters_and_links_to_them(world: World, page: Served) -> None:
    [id_] = await fail(world, "it broke")
    await fail(world, "the other one broke")
    execution = (await page.client.get(f"/v1/executions/{id_}")).json()
    html = (await page.client.get(f"/jobs/{execution['job_id']}")).text
    assert f'href="/dead-letters?job_id={execution["job_id"]}"' in html
    assert "it broke" in html
    assert "the other one" not in html
    letters = await view(world, job_id=execution["job_id"])
    assert (letters.total, len(letters.groups)) == (1, 1)


@proves("E10")
async def test_letters_are_paged_without_loss(world: World, page: Served) -> None:
    await world.submit_all([job("report", retry=Retry(max_retries=0)) for _ in range(60)])
    worker = await world.worker()
    await worker.complete_all(await worker.lease(), failed("it broke"))
    html = (await page.client.get((await view(world)).groups[0].address)).text
    older = unescape(re.findall(r'<a href="([^"]+)" rel="next"', html)[0])
    seen = set(re.findall(r'id="letter-([^"]+)"', html + (await page.client.get(older)).text))
    assert len(seen) == 60


@proves("E10")
@pytest.mark.parametrize("query", ["state=lost", "job_id=x", "cursor=1.2", "cursor=%00", "q=%00", "fingerprint=%00"])
async def test_invalid_values_of_the_query_are_ignored(page: Served, query: str) -> None:
    answer = await page.client.get(f"/dead-letters?{query}")
    assert answer.status_code == 200
    assert "No failed execution waits" in answer.text


@proves("T1")
async def test_letters_of_another_tenant_are_not_listed(world: World) -> None:
    await fail(world, "mine")
    letters = await read_letters(world.database, TenantNo(99), Query())
    assert (letters.total, letters.groups) == (0, ())


@proves("E10")
def test_a_button_selects_exactly_the_letters_of_the_page() -> None:
    assert Query().selection() == {"all": True}
    assert Query(q="refused").selection("906d") == {"filter": {"fingerprint": "906d", "q": "refused"}}
    assert Query(fingerprint="906d").selection() == {"filter": {"fingerprint": "906d"}}
