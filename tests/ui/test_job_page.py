"""A job's page: executions, next fires, why it does not run, and hostile names shown as text."""

import re
from collections.abc import AsyncIterator
from html import unescape

import pytest

from ondot.flow.change.change import pause
from ondot.model.ids import DEFAULT_TENANT, JobId, TenantNo
from ondot.model.job import JobState
from ondot.model.schedule import Cron, Schedule
from ondot.store.jobs import change_job
from ondot.ui.job import JobView, read_job
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, every, failed, job, once

HOSTILE = "<script>alert('x')</script>\"' hx-get=/v1/jobs"


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


async def view(world: World, job_id: JobId) -> JobView:
    return await read_job(world.database, DEFAULT_TENANT, job_id)


@proves("O5", "S9")
async def test_a_job_is_shown_with_its_next_fires_and_their_remarks(world: World) -> None:
    schedule = Schedule(when=Cron(expression="0 9 * * *", timezone="Europe/Berlin"), jitter_s=60)
    accepted = await world.submit(job("report", schedule=schedule, key="nightly", labels={"team": "bi"}))
    shown = await view(world, accepted.id)
    assert (shown.name, shown.state, shown.why, shown.key) == ("report", JobState.ACTIVE, None, "nightly")
    assert shown.schedule == "At 09:00, Europe/Berlin, up to 1 minute late"
    assert shown.fires[0].at == shown.next_fire_at
    assert {fire.remark for fire in shown.fires} <= {"jittered", "shifted", "repeated"}
    assert shown.target == "function report"


@proves("O5")
async def test_executions_are_listed_with_state_duration_and_error(world: World) -> None:
    accepted = await world.submit(job("report", schedule=every(5, world.now)))
    worker = await world.worker()
    await world.plan()
    await world.advance(10)
    first, second = await worker.lease()
    await world.advance(2)
    await worker.complete(first)
    await worker.complete(second, failed("no such\ntable", retryable=False))
    shown = await view(world, accepted.id)
    ended = {row.state.value: row for row in shown.executions if row.took}
    assert ended["SUCCEEDED"].message == ""
    assert (ended["FAILED"].message, ended["FAILED"].took, ended["FAILED"].version) == ("no such table", "2.00 s", 1)


@proves("S8", "S6")
async def test_skipped_ranges_are_listed_with_reason_and_count(world: World) -> None:
    accepted = await world.submit(job("report", schedule=every(600, world.now)))
    await world.advance(6 * 3600)
    await world.plan()
    [skipped] = (await view(world, accepted.id)).skipped
    assert skipped.count is not None
    assert skipped.count > 30
    assert "only the latest of them was run" in skipped.reason


@proves("S8", "O5")
async def test_a_paused_job_shows_why_and_offers_to_resume(world: World, page: Served) -> None:
    accepted = await world.submit(job("report", schedule=every(600, world.now)))
    assert 'data-act="pause"' in (await page.client.get(f"/jobs/{accepted.id}")).text
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    async with world.database.connection() as connection:
        row = await world.job(accepted.id)
        await change_job(
            connection,
            DEFAULT_TENANT,
            accepted.id,
            state=JobState.PAUSED,
            version=row.version,
            state_reason="5 executions in a row failed",
        )
    html = (await page.client.get(f"/jobs/{accepted.id}")).text
    assert "Paused: 5 executions in a row failed" in html
    assert 'data-act="resume"' in html
    assert 'data-act="pause"' not in html
    assert "None, while it is paused." in html


@proves("S8")
async def test_a_new_version_is_shown(world: World) -> None:
    accepted = await world.submit(job("report", schedule=every(600, world.now)))
    changed = job("renamed", schedule=every(300, world.now))
    await world.update(accepted.id, changed)
    shown = await view(world, accepted.id)
    assert (shown.name, shown.version, shown.schedule) == ("renamed", 2, "Every 5 minutes")


@proves("S8")
async def test_a_pause_does_not_change_when_the_version_was_created(world: World) -> None:
    accepted = await world.submit(job("report", schedule=every(600, world.now)))
    made_at = (await view(world, accepted.id)).version_at
    await world.advance(60)
    await pause(world.database, DEFAULT_TENANT, accepted.id)
    assert (await view(world, accepted.id)).version_at == made_at
    plain = await world.submit(job("now"))
    shown = await view(world, plain.id)
    assert shown.version_at == shown.created_at


@proves("O5")
async def test_hostile_names_and_messages_are_shown_as_text(world: World, page: Served) -> None:
    accepted = await world.submit(job(HOSTILE, labels={"team": HOSTILE}))
    await (await world.worker()).run_one(failed(HOSTILE, retryable=False))
    answer = await page.client.get(f"/jobs/{accepted.id}")
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
    assert "<script>alert" not in answer.text
    assert unescape(answer.text).count("<script>alert") >= 4
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", answer.text)


@proves("O5")
async def test_a_future_fire_links_to_the_page_of_its_job(world: World, page: Served) -> None:
    accepted = await world.submit(job("later", schedule=once(world.after(90))))
    html = (await page.client.get("/")).text
    assert f'href="/jobs/{accepted.id}"' in html
    assert (await page.client.get(f"/jobs/{accepted.id}")).status_code == 200


@proves("T1")
async def test_an_unknown_job_or_one_of_another_tenant_is_not_found(world: World, page: Served) -> None:
    accepted = await world.submit(job("mine"))
    for id_ in ("019a1de9-4d8d-7d9d-8dd7-1801991e16d7", "no-uuid"):
        answer = await page.client.get(f"/jobs/{id_}")
        assert answer.status_code == 404
        assert "There is no job" in answer.text
    with pytest.raises(Exception, match="There is no job"):
        await read_job(world.database, TenantNo(99), accepted.id)
    async with served(world.database, auth="on") as strict:
        assert (await strict.client.get(f"/jobs/{accepted.id}")).status_code == 401


@proves("O5")
async def test_invisible_characters_of_a_stored_name_are_shown_on_every_page(world: World, page: Served) -> None:
    """A job of an earlier release may have such a name; new ones are rejected."""
    accepted = await world.submit(job("re\u202eport\x1b[31m_x\u200b", schedule=every(600, world.now)))
    for path in ("/", "/jobs", f"/jobs/{accepted.id}"):
        text = (await page.client.get(path)).text
        assert not {"\u202e", "\x1b", "\u200b"} & set(text), path
    assert r"re\u202eport\u001b[31m_<wbr>x\u200b" in (await page.client.get("/jobs")).text
