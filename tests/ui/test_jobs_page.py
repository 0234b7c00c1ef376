"""The list of jobs: definitions with their latest runs; filters, search, order, pages; hostile names shown as text."""

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
from tests.world import World, every, failed, job, once

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
    assert re.findall(r' href="/jobs/([0-9a-f-]{36})"', html) == [str(doomed.id)]
    assert "Paused: 5 failures in a row" in html
    assert "Every 10 minutes" in html
    assert '<option value="PAUSED" selected>' in html


@proves("O5")
async def test_jobs_are_listed_with_schedule_state_and_next_fire(world: World) -> None:
    made = await world.submit_all(
        [job("report", schedule=every(600, world.now)), job("later", key="k", schedule=once(world.after(90)))]
    )
    await delete(world.database, DEFAULT_TENANT, made[0].id)
    [line] = (await read_jobs(world.database, DEFAULT_TENANT, Query())).rows
    assert (line.name, line.state, line.why, line.next_fire_at) == ("later", JobState.ACTIVE, None, world.after(90))
    assert (line.key, line.target, line.pool, line.last) == ("k", "function report", "default", None)
    [gone] = (await read_jobs(world.database, DEFAULT_TENANT, Query(state=JobState.DELETED))).rows
    assert (gone.name, gone.next_fire_at) == ("report", None)
    assert not (await read_jobs(world.database, TenantNo(99), Query())).rows


@proves("O5")
async def test_jobs_are_searched_and_paged_by_the_cursor_of_the_api(world: World, page: Served) -> None:
    await world.submit_all([job(f"report-{n}", schedule=every(600, world.now)) for n in range(PAGE_SIZE + 3)])
    await world.submit(job("other", schedule=every(600, world.now)))
    html = (await page.client.get("/jobs?q=REPORT")).text
    first = re.findall(r' href="/jobs/([0-9a-f-]{36})"', html)
    older = re.search(r'<a href="([^"]+)" rel="next">', html)
    assert older
    following = (await page.client.get(unescape(older[1]))).text
    rest = re.findall(r' href="/jobs/([0-9a-f-]{36})"', following)
    assert (len(first), len(rest), len({*first, *rest})) == (PAGE_SIZE, 3, PAGE_SIZE + 3)
    assert 'rel="next"' not in following
    assert 'href="/jobs?q=REPORT">First page' in following
    api = await page.client.get("/v1/jobs", params={"q": "REPORT definition:yes", "limit": PAGE_SIZE})
    assert api.json()["next_cursor"] in unescape(older[1])


@proves("O5")
async def test_invalid_values_of_the_query_are_ignored(page: Served) -> None:
    assert parse_query({"state": "nonsense", "cursor": "1", "q": " a\0b "}) == Query(q="ab")
    assert parse_query({"state": "paused", "sort": "age"}) == Query(state=JobState.PAUSED)
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


@proves("O5")
async def test_jobs_that_run_once_are_under_executions_and_not_among_the_definitions(
    world: World, page: Served
) -> None:
    flood = await world.submit_all([job(f"once-{n}") for n in range(PAGE_SIZE + 10)])
    await world.submit(job("nightly", schedule=every(600, world.now)))
    paused = await world.submit(job("once-later", schedule=once(world.after(900))))
    await pause(world.database, DEFAULT_TENANT, paused.id)  # it is among the jobs that may change now
    assert [row.name for row in (await read_jobs(world.database, DEFAULT_TENANT, Query())).rows] == ["nightly"]
    assert not (await read_jobs(world.database, DEFAULT_TENANT, Query(q="once"))).rows
    others = await read_jobs(world.database, DEFAULT_TENANT, Query(q="once definition:no"))
    assert (len(others.rows), others.rows[0].id) == (PAGE_SIZE, paused.id)
    assert str(flood[0].id) not in (await page.client.get("/jobs")).text
    assert "once-0" in (await page.client.get("/executions?q=once-0")).text


@proves("O5")
async def test_what_a_bulk_operation_matches_is_what_the_list_shows(world: World, page: Served) -> None:
    await world.submit_all([job("report"), job("report", schedule=every(600, world.now))])
    html = (await page.client.get("/jobs?q=report")).text
    [search] = {unescape(found) for found in re.findall(r'data-q="([^"]+)"', html)}
    counted = await page.client.post("/v1/bulk", json={"of": "jobs", "action": "pause", "q": search, "dry_run": True})
    assert counted.json()["count"] == 1


@proves("O5")
async def test_a_job_shows_its_last_result_and_a_spark_line_of_its_latest_runs(world: World, page: Served) -> None:
    await world.submit(job("report", schedule=every(60, world.now)))
    worker = await world.worker()
    for report in (None, failed("no", retryable=False), None):
        await world.advance(60)
        await world.plan()
        [assignment] = await worker.lease()
        await world.advance(3)
        await worker.complete(assignment, report)
    await world.advance(57)
    await world.plan()
    await worker.lease()
    [line] = (await read_jobs(world.database, DEFAULT_TENANT, Query())).rows
    assert line.last is not None
    assert (line.last.state.value, line.last_took) == ("SUCCEEDED", "3.00 s")
    assert [bar.shape for bar in line.spark.bars] == ["whole", "crossed", "whole", "hollow"]
    assert line.spark.text == "4 latest runs: 2 succeeded, 1 running, 1 failed; the latest: running"
    html = (await page.client.get("/jobs")).text
    assert f'role="img" aria-label="{line.spark.text}"' in html
    assert "<title>Failed, took 3.00 s</title>" in html
    assert f'href="/executions/{line.last.id}"' in html


@proves("O5")
async def test_jobs_are_sorted_by_name_over_several_pages(world: World) -> None:
    names = [f"job-{n:03}" for n in range(PAGE_SIZE + 5)]
    for name in ("same", "same", *reversed(names)):
        await world.submit(job(name, schedule=every(600, world.now)))
    first = await read_jobs(world.database, DEFAULT_TENANT, Query(sort="name"))
    assert first.older
    cursor = first.rows[-1].id
    second = await read_jobs(world.database, DEFAULT_TENANT, Query(sort="name", cursor=cursor))
    assert [row.name for row in (*first.rows, *second.rows)] == [*names, "same", "same"]
    assert len({row.id for row in (*first.rows, *second.rows)}) == PAGE_SIZE + 7
    assert second.older is None
