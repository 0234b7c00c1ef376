"""The page of an execution and the list of executions: contents, escaping and links."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from html import unescape
from uuid import UUID

import pytest

from ondot.flow.cancel import cancel
from ondot.model.execution import Outcome, State
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, TenantNo
from ondot.model.outcome import AttemptError, Failed, Succeeded
from ondot.model.retry import Retry
from ondot.store.audit import By
from ondot.store.logs import Progress, save_progress
from ondot.ui.execution import MOST_CHARACTERS, ExecutionView, read_execution
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, every, failed, job

HOSTILE = "<script>alert('x')</script>\"' hx-get=/v1/jobs"


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


async def view(world: World, id_: UUID) -> ExecutionView:
    return await read_execution(world.database, DEFAULT_TENANT, ExecutionId(id_))


@proves("E5", "E14", "O5")
async def test_every_attempt_is_listed_newest_first_with_its_error_and_its_worker(world: World) -> None:
    await world.submit(job("report", retry=Retry(backoff="fixed", initial_s=5, jitter=False)))
    worker = await world.worker()
    error = AttemptError("exception", "no such table", "Traceback …", {"type": "KeyError"})
    first = await worker.run_one(Failed(error, outcome=Outcome.TIMED_OUT))
    shown = await view(world, first.leased.id)
    assert (shown.state, shown.is_live, shown.failures) == (State.RETRYING, True, 1)
    assert shown.explanation.may_start_at == world.after(5)
    await world.advance(5)
    (second,) = await worker.lease()
    await world.advance(2)
    await worker.complete(second, Succeeded('{"rows": 3}'))
    shown = await view(world, first.leased.id)
    assert [(one.number, one.outcome, one.took) for one in shown.attempts] == [
        (2, Outcome.SUCCEEDED, "2.00 s"),
        (1, Outcome.TIMED_OUT, "0 ms"),
    ]
    assert shown.attempts[1].worker == str(worker.id)
    assert shown.attempts[1].error
    assert shown.attempts[1].error.facts == (("type", "KeyError"),)
    assert shown.attempts[1].error.detail
    assert shown.result
    assert shown.result.content == '{\n  "rows": 3\n}'


@proves("E17", "O5")
async def test_a_waiting_execution_shows_why_and_what_to_do(world: World, page: Served) -> None:
    accepted = await world.submit(job("report", pool="gpu", schedule=every(3600, world.now)))
    id_ = await world.run_now(accepted.id)
    html = (await page.client.get(f"/executions/{id_}")).text
    assert "gpu" in unescape(re.findall(r'<p class="sentence">(.*?)</p>', html)[0])
    assert '<code class="breaks">ondot worker --pool gpu</code>' in html
    assert 'id="act-cancel"' in html
    assert 'id="act-again"' not in html


@proves("E9", "O5")
async def test_progress_message_and_checkpoint_are_shown_while_it_runs(world: World, page: Served) -> None:
    await world.submit(job("report"))
    worker = await world.worker()
    (running,) = await worker.lease()
    before = (await view(world, running.leased.id)).mark
    async with world.database.connection() as connection:
        progress = Progress(running.leased.id, 1, '{"page": 12}', 0.42, "page 12")
        await save_progress(connection, worker.id, [progress])
    shown = await view(world, running.leased.id)
    assert (shown.percent, shown.progress_message, shown.worker_name) == (42, "page 12", "here:1")
    assert shown.checkpoint
    assert shown.mark != before
    html = (await page.client.get(f"/executions/{running.leased.id}")).text
    assert '<progress max="100" value="42"' in html


@proves("O5")
async def test_the_mark_stays_the_same_while_only_time_passes(world: World) -> None:
    await world.submit(job("report"))
    worker = await world.worker()
    (running,) = await worker.lease()
    before = await view(world, running.leased.id)
    await world.advance(60)
    await worker.beat()
    after = await view(world, running.leased.id)
    assert after.now - before.now == timedelta(seconds=60)
    assert after.mark == before.mark
    await world.advance(6)
    silent = await view(world, running.leased.id)
    assert silent.mark != after.mark
    await world.advance(1)
    assert (await view(world, running.leased.id)).mark == silent.mark
    await worker.complete(running)
    assert (await view(world, running.leased.id)).mark != before.mark


@proves("E8", "O5")
async def test_a_requested_cancel_is_shown_with_its_reason(world: World, page: Served) -> None:
    await world.submit(job("report"))
    (running,) = await (await world.worker()).lease()
    await cancel(world.database, world.dispatcher, DEFAULT_TENANT, running.leased.id, by=By("local", "wrong region"))
    html = unescape((await page.client.get(f"/executions/{running.leased.id}")).text)
    assert "cancelled by local: wrong region" in html
    assert "Cancelling …" in html


@proves("E14", "O5")
async def test_large_results_and_payloads_are_cut_and_linked(world: World, page: Served) -> None:
    await world.submit(job("report", payload=b'"' + b"p" * 2 * MOST_CHARACTERS + b'"'))
    stored = '{"$object": {"bytes": 7340032, "preview": "[1, 2, 3"}}'
    ran = await (await world.worker()).run_one(Succeeded(stored))
    html = (await page.client.get(f"/executions/{ran.leased.id}")).text
    assert "7,340,032 bytes" in html
    assert f'href="/v1/executions/{ran.leased.id}/result"' in html
    shown = await view(world, ran.leased.id)
    assert shown.payload.is_cut
    assert len(shown.payload.content) == MOST_CHARACTERS
    assert shown.editable
    assert len(shown.editable) > MOST_CHARACTERS


@proves("E10", "O5")
async def test_a_letter_links_to_its_replay_and_the_replay_to_it(world: World, page: Served) -> None:
    await world.submit(job("report", retry=Retry(max_retries=0), payload=b'{"n": 9007199254740993}'))
    ran = await (await world.worker()).run_one(failed())
    id_ = ran.leased.id
    html = (await page.client.get(f"/executions/{id_}")).text
    assert "It is a <a" in html
    assert "9007199254740993" in html
    answer = await page.client.post(f"/v1/executions/{id_}/retry", json={"reason": "fixed"})
    replay = answer.json()["id"]
    html = (await page.client.get(f"/executions/{id_}")).text
    assert f'id="replay" href="/executions/{replay}"' in html
    assert "by local (fixed)" in html
    assert 'id="act-again"' not in html
    assert f'id="replay-of" href="/executions/{id_}"' in (await page.client.get(f"/executions/{replay}")).text


@proves("O5")
async def test_hostile_text_is_shown_as_text(world: World, page: Served) -> None:
    await world.submit(job(HOSTILE, payload=b'"</textarea></pre><script>alert(1)</script>"'))
    error = AttemptError(HOSTILE, HOSTILE, HOSTILE, {HOSTILE: HOSTILE})
    ran = await (await world.worker()).run_one(Failed(error, retryable=False))
    for path in (f"/executions/{ran.leased.id}", "/executions", "/dead-letters"):
        answer = await page.client.get(path)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "<script>alert" not in answer.text
        assert "<script>alert" in unescape(answer.text)
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", answer.text)


@proves("T1")
async def test_an_unknown_execution_or_one_of_another_tenant_is_not_found(world: World, page: Served) -> None:
    await world.submit(job("mine"))
    ran = await (await world.worker()).run_one()
    for id_ in ("019a1de9-4d8d-7d9d-8dd7-1801991e16d7", "no-uuid"):
        answer = await page.client.get(f"/executions/{id_}")
        assert answer.status_code == 404
        assert "There is no execution" in answer.text
    with pytest.raises(Exception, match="There is no execution"):
        await read_execution(world.database, TenantNo(99), ran.leased.id)
    for path in (f"/executions/{ran.leased.id}", "/executions", "/dead-letters"):
        assert (await page.client.get(path, headers={"host": "evil.example"})).status_code == 403
        async with served(world.database, auth="on") as strict:
            assert (await strict.client.get(path)).status_code == 401


@proves("O5")
async def test_executions_are_listed_by_state_pool_and_time(world: World, page: Served) -> None:
    await world.submit_all([job("old"), job("heavy", pool="gpu")])
    worker = await world.worker()
    (old,) = await worker.lease()
    await worker.complete(old, failed("it broke", retryable=False))
    await world.advance(7200)
    await world.submit(job("new"))
    await worker.run_one()

    async def names(query: str) -> list[str]:
        html = (await page.client.get(f"/executions{query}")).text
        return re.findall(r'<th scope="row"><a id="[^"]+" href="/executions/[^"]+">([^<]+)</a>', html)

    assert await names("") == ["new", "heavy", "old"]
    assert await names("?state=failed") == ["old"]
    assert await names("?pool=gpu") == ["heavy"]
    assert await names("?pool=none") == []
    assert await names("?within=1h") == ["new"]
    assert await names("?state=nonsense&within=x&cursor=y") == ["new", "heavy", "old"]
    html = (await page.client.get("/executions?within=1h&state=SUCCEEDED")).text
    address = unescape(re.findall(r'href="(/v1/executions\?[^"]+)"', html)[0])
    assert len((await page.client.get(address)).json()["items"]) == 1


@proves("O5")
async def test_a_long_list_of_executions_has_pages(world: World, page: Served) -> None:
    await world.submit_all([job(f"job {n}") for n in range(60)])
    html = (await page.client.get("/executions")).text
    older = unescape(re.findall(r'<a href="([^"]+)" rel="next"', html)[0])
    rest = (await page.client.get(older)).text
    seen = set(re.findall(r'href="/executions/([^"]+)"', html + rest))
    assert len(seen) == 60
    assert 'rel="next"' not in rest
