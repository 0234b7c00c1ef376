"""The list of jobs: filters by state and name, pages, and hostile names shown as text."""

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest

from ondot.flow.change.change import delete, pause
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.job import JobState
from ondot.ui.jobs import PAGE_SIZE, Query, parse_query, read_jobs
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, every, job, once

HOSTILE = "<script>alert('x')</script>\"' hx-get=/v1/jobs"


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


@proves("O5", "S12")
async def test_a_paused_job_is_found_by_clicking_from_the_first_page(world: World, page: Served) -> None:
    doomed = await world.submit(job("doomed_report", schedule=every(600, world.now)))
    await world.submit(job("well", schedule=every(600, world.now)))
    await pause(world.database, DEFAULT_TENANT, doomed.id, because="5 failures in a row")
    first = (await page.client.get("/")).text
    assert "5 failures in a row" in first
    assert f'href="/jobs/{doomed.id}"' in first
    html = (await page.client.get("/jobs?state=PAUSED")).text
    assert 'href="/jobs?state=PAUSED"' in first
    assert re.findall(r'<a href="/jobs/([0-9a-f-]{36})"', html) == [str(doomed.id)]
    assert "Paused: 5 failures in a row" in html
    assert "Every 10 minutes" in html
    assert '<option value="PAUSED" selected>' in html


@proves("O5")
async def test_jobs_are_listed_with_schedule_state_and_next_fire(world: World) -> None:
    made = await world.submit_all(
        [job("report", schedule=every(600, world.now)), job("later", schedule=once(world.after(90)))]
    )
    await delete(world.database, DEFAULT_TENANT, made[0].id)
    [line] = (await read_jobs(world.database, DEFAULT_TENANT, Query())).rows
    assert (line.name, line.state, line.why, line.next_fire_at) == ("later", JobState.ACTIVE, None, world.after(90))
    [gone] = (await read_jobs(world.database, DEFAULT_TENANT, Query(state=JobState.DELETED))).rows
    assert (gone.name, gone.next_fire_at) == ("report", None)
    assert not (await read_jobs(world.database, TenantNo(99), Query())).rows


@proves("O5")
async def test_jobs_are_searched_and_paged_by_the_cursor_of_the_api(world: World, page: Served) -> None:
    await world.submit_all([job(f"report-{n}", schedule=every(600, world.now)) for n in range(PAGE_SIZE + 3)])
    await world.submit(job("other", schedule=every(600, world.now)))
    html = (await page.client.get("/jobs?q=REPORT")).text
    first = re.findall(r'<a href="/jobs/([0-9a-f-]{36})"', html)
    older = re.search(r'<a href="([^"]+)" rel="next">', html)
    assert older
    following = (await page.client.get(unescape(older[1]))).text
    rest = re.findall(r'<a href="/jobs/([0-9a-f-]{36})"', following)
    assert (len(first), len(rest), len({*first, *rest})) == (PAGE_SIZE, 3, PAGE_SIZE + 3)
    assert 'rel="next"' not in following
    assert 'href="/jobs?q=REPORT">Newest' in following
    api = await page.client.get("/v1/jobs", params={"q": "REPORT", "limit": PAGE_SIZE})
    assert api.json()["next_cursor"] in unescape(older[1])


@proves("O5")
async def test_invalid_values_of_the_query_are_ignored(page: Served) -> None:
    assert parse_query({"state": "nonsense", "cursor": "1", "q": " a\0b "}) == Query(q="ab")
    assert parse_query({"state": "paused"}).state is JobState.PAUSED
    answer = await page.client.get("/jobs?state=x&cursor=y&q=%00")
    assert answer.status_code == 200
    assert "There are no jobs yet" in answer.text
    assert "No job matches" in (await page.client.get("/jobs?q=none")).text


@proves("O5")
async def test_hostile_names_are_shown_as_text(world: World, page: Served) -> None:
    await world.submit(job(HOSTILE, schedule=every(600, world.now)))
    answer = await page.client.get("/jobs", params={"q": "<script>"})
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "form-action 'self'" in answer.headers["content-security-policy"]
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert" in answer.text
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", answer.text)


@proves("T1")
async def test_the_list_needs_a_key_if_auth_is_on(world: World) -> None:
    async with served(world.database, auth="on") as page:
        assert (await page.client.get("/jobs")).status_code == 401
