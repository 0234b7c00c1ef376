"""The routes `/`, `/ui/live` and `/ui/static/…`, as a browser and as an attacker sees them."""

import re
from collections.abc import AsyncIterator

import httpx2
import pytest

from ondot.store.database import open_database
from ondot.ui.render import mark_instants
from tests.proves import proves
from tests.servers import settings_for
from tests.ui.serving import Served, build, events, served
from tests.world import World, every, failed, job, once

HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)>\"' hx-get=/v1/jobs"


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


@proves("O5")
async def test_an_empty_page_shows_a_new_user_what_to_type(page: Served) -> None:
    answer = await page.client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "Welcome: run your first job" in answer.text
    assert f"curl {page.url}/v1/jobs -d" in answer.text
    assert '<noscript><meta http-equiv="refresh" content="10"></noscript>' in answer.text
    for words in ("Nothing is running", "No fire is planned", "Nothing has run yet"):
        assert words in answer.text


@proves("O5")
async def test_the_command_for_a_new_user_is_accepted(page: Served) -> None:
    html = (await page.client.get("/")).text
    body = re.search(r"/v1/jobs -d &#39;(.*?)&#39;|/v1/jobs -d '(.*?)'", html, re.DOTALL)
    assert body
    answer = await page.client.post("/v1/jobs", content=body[1] or body[2])
    assert answer.status_code == 201
    html = (await page.client.get("/")).text
    assert "first-look" in html
    assert "Every 10 seconds" in html
    assert "Welcome" not in html


@proves("O5")
async def test_the_page_runs_only_its_own_scripts_and_styles(page: Served) -> None:
    answer = await page.client.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    )
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", answer.text)
    named = re.findall(r'(?:src|href)="(/ui/static/[^"]+)"', answer.text)
    assert len(named) == 7
    for address in named:
        file = await page.client.get(address)
        assert file.status_code == 200
        assert "immutable" in file.headers["cache-control"]
        assert file.headers["x-content-type-options"] == "nosniff"


@proves("O5")
async def test_hostile_names_and_messages_are_shown_as_text(world: World, page: Served) -> None:
    await world.submit_all([job(HOSTILE), job(HOSTILE, schedule=once(world.after(90)))])
    worker = await world.worker()
    await worker.complete_all(await worker.lease(), failed(HOSTILE, retryable=False))
    html = (await page.client.get("/")).text
    assert html.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;") >= 4
    assert "<script>alert" not in html
    assert "<img" not in html


@proves("O5")
async def test_links_to_json_say_so(world: World, page: Served) -> None:
    await world.submit_all([job("now"), job("minute_report", schedule=once(world.after(90)))])
    html = (await page.client.get("/")).text
    assert not re.findall(r'<a [^>]*href="/v1/[^"]*"[^>]*>', html)
    [execution] = re.findall(r'<a [^>]*href="(/executions/[^"]+)"', html)
    shown = (await page.client.get(execution)).text
    assert 'title="This execution, as JSON"' in shown
    assert '<a href="/jobs">Work</a>' in html
    assert '<a href="/jobs">Jobs</a>' in shown
    assert 'title="These jobs, as JSON"' in (await page.client.get("/jobs")).text
    assert 'title="minute_report">minute_<wbr>report</a>' in html


@proves("T1")
async def test_without_a_key_the_page_shows_how_to_use_one_if_auth_is_on(world: World) -> None:
    async with served(world.database, auth="on") as page:
        answer = await page.client.get("/")
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "ondot key create" in answer.text
        assert (await page.client.get("/ui/live")).status_code == 401


@proves("T1")
async def test_a_request_for_another_host_is_refused(page: Served) -> None:
    for path in ("/", "/ui/live"):
        assert (await page.client.get(path, headers={"host": "evil.example"})).status_code == 403


@proves("O5")
async def test_the_page_explains_that_the_database_is_away() -> None:
    database = await open_database(settings_for("postgresql://nobody@127.0.0.1:1/none"))
    app, _ = build(database, settings_for("postgresql://nobody@127.0.0.1:1/none", auth="off"))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client:
        answer = await client.get("/")
    await database.close()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "2"
    assert "Nothing is lost" in answer.text


@proves("O5")
@pytest.mark.parametrize("name", ["none.js", "README", "..%2fpages.py", "%2e%2e/pages.py"])
async def test_only_the_files_of_the_page_are_served(page: Served, name: str) -> None:
    assert (await page.client.get(f"/ui/static/{name}")).status_code == 404


@proves("O5")
async def test_a_changed_fragment_reaches_the_watcher(world: World, page: Served) -> None:
    async with page.client.stream("GET", "/ui/live") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = events(response)
        await page.until_watched()
        await page.feed.one_pass()
        names = [(await anext(stream))[0] for _ in range(11)]
        assert sorted(names) == [
            "badge",
            "blocked",
            "failures",
            "fires",
            "health",
            "latest",
            "live",
            "numbers",
            "open_incidents",
            "paused",
            "running",
        ]

        await world.submit(job("surprise\r\nevent: live", schedule=once(world.after(90))))
        await page.feed.one_pass()
        name, html = await anext(stream)
        assert name == "fires"
        assert "surprise" in html
        assert (await anext(stream))[0] == "live"
    await page.until_watched(0)


@proves("O5")
async def test_open_streams_do_not_delay_a_stop(world: World) -> None:
    async with served(world.database, by_itself=True) as page, page.client.stream("GET", "/ui/live") as response:
        stream = events(response)
        await anext(stream)
        page.feed.close()
        assert [name async for name, _ in stream].count("live") <= 1


@proves("O5")
def test_an_instant_in_a_sentence_becomes_one_that_the_browser_can_convert() -> None:
    shown = mark_instants("<b>Once</b> at 2026-03-04 12:00:05 UTC; not 2026-99-99 12:00 UTC.")
    assert shown == (
        '&lt;b&gt;Once&lt;/b&gt; at <time class="clock" datetime="2026-03-04T12:00:05+00:00" data-clock="date"'
        ' title="2026-03-04 12:00:05 UTC">2026-03-04 12:00:05 UTC</time>; not 2026-99-99 12:00 UTC.'
    )


@proves("S13", "O5")
async def test_the_forecast_says_what_of_its_address_it_cannot_read(world: World) -> None:
    await world.submit(job(schedule=every(3600, world.now)))
    async with served(world.database) as page:
        for query, words in (
            ("pool=nosuch", "no load of a pool &#39;nosuch&#39; in this week. Use one of: default."),
            ("from=zzz", "Unknown parameter &#39;from&#39;. Use one of: week, hour, pool."),
            ("week=zzz", "week: cannot read &#39;zzz&#39;"),
            ("week=0001-01-01", "week: cannot read"),
            ("hour=12", "hour: cannot read &#39;12&#39;"),
        ):
            html = (await page.client.get(f"/forecast?{query}")).text
            assert words in html, (query, html)
        right = await page.client.get(f"/forecast?pool=default&week={world.now:%Y-%m-%d}")
        assert 'class="refusal"' not in right.text
