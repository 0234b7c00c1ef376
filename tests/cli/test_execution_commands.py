"""`ondot execution` get, logs, result, cancel, retry, explain, and `ondot job explain`, against the API as served."""

import asyncio
import json
import re
from typing import Any
from uuid import uuid4

import pytest

from ondot.cli.cancel import end_in_words
from ondot.cli.waiting import progress_of
from ondot.flow.attempt_log import AttemptLogs
from ondot.model.gates import Limits, Rate
from ondot.model.outcome import Cancelled, Succeeded
from ondot.model.retry import Retry
from ondot.model.trace import parse_traceparent
from ondot.store.search import search_executions
from tests.cli.running import Ran, ondot
from tests.cli.samples import EXECUTION_ID, execution
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, every, failed, job


async def run(page: Served, *words: str) -> Ran:
    return await asyncio.to_thread(ondot, *words, url=page.url)


async def answer(page: Served, *words: str) -> dict[str, Any]:
    ran = await run(page, *words, "-o", "json")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    assert isinstance(document, dict)
    return document


async def until(world: World, condition: str, *arguments: object) -> None:
    """Until another process has had its effect on the database."""
    async with asyncio.timeout(30):
        while not await world.value(f"SELECT EXISTS ({condition})", *arguments):
            await asyncio.sleep(0.01)


@proves("E8", "O5")
async def test_waiting_executions_are_cancelled_at_once_and_one_error_does_not_stop_the_others(world: World) -> None:
    await world.submit_all([job(), job()])
    first, second = [str(row.id) for row in await world.executions()]
    missing = str(uuid4())
    async with served(world.database) as page:
        ran = await run(page, "execution", "cancel", first, missing, second, "--reason", "wrong region")
        assert ran.code == 3
        assert ran.out.splitlines() == [f"Cancelled {id_}. It had not started." for id_ in (first, second)]
        assert ran.err == f"error: There is no execution {missing}.\n"
        shown = await run(page, "execution", "get", first)
        assert re.search(r"cancelled by \w+: wrong region", shown.out)
        assert (await run(page, "execution", "cancel", missing)).code == 3


@proves("E8", "O5")
@pytest.mark.parametrize(
    ("report", "words", "code"),
    [
        (Cancelled("It ended when it was asked to."), "by itself. It ended when it was asked to.", 0),
        (Cancelled("It was ended by SIGKILL.", forced=True), "by force. It was ended by SIGKILL.", 0),
        (Succeeded('"done"'), "ended SUCCEEDED before it could be cancelled.", 4),
    ],
)
async def test_a_cancel_waits_for_a_running_execution_and_shows_how_it_ended(
    world: World, report: Cancelled | Succeeded, words: str, code: int
) -> None:
    await world.submit(job())
    worker = await world.worker()
    [attempt] = await worker.lease()
    id_ = str(attempt.leased.id)
    async with served(world.database) as page:
        waiting = asyncio.create_task(run(page, "execution", "cancel", id_, "--wait"))
        await until(world, "SELECT FROM ondot.execution WHERE cancel_at IS NOT NULL")
        asked = await run(page, "execution", "cancel", id_)
        assert asked.out.startswith(f"Asked {id_} to stop")
        assert f"ondot execution get {id_} --watch" in asked.out
        assert "cancel requested" in (await run(page, "execution", "get", id_)).out
        await worker.complete(attempt, report)
        ran = await waiting
    assert (ran.code, ran.err) == (code, "")
    assert words in ran.out


def test_a_cancel_that_is_too_late_shows_the_state() -> None:
    assert end_in_words(execution(state="FAILED", error=None)) == (
        f"{EXECUTION_ID} ended FAILED before it could be cancelled."
    )


@proves("E10", "O5")
async def test_an_ended_execution_is_run_again_with_another_payload_and_waited_for(world: World) -> None:
    await world.submit(job(payload=b'{"n": 1}', retry=Retry(max_retries=0)))
    worker = await world.worker()
    old = str((await worker.run_one(failed())).leased.id)
    async with served(world.database) as page:
        waiting = asyncio.create_task(
            answer(page, "execution", "retry", old, "--payload", '{"n": 2}', "--reason", "fixed", "--wait")
        )
        await until(world, "SELECT FROM ondot.ready")
        await worker.run_one()
        again = await waiting
        assert (again["state"], again["payload"], again["replay_of"]) == ("SUCCEEDED", {"n": 2}, old)
        assert f"replay of  {old}" in (await run(page, "execution", "get", again["id"])).out
        refused = await run(page, "execution", "retry", old)
        assert refused.code == 4
        assert again["id"] in refused.err


@proves("E10")
async def test_an_execution_that_waits_for_its_next_attempt_starts_it_now(world: World) -> None:
    await world.submit(job(retry=Retry(initial_s=600, jitter=False)))
    worker = await world.worker()
    id_ = str((await worker.run_one(failed("hung up"))).leased.id)
    async with served(world.database) as page:
        ran = await run(page, "execution", "explain", id_)
        assert "RETRYING" in ran.out
        assert "hung up" in ran.out
        assert "may start" in ran.out
        assert (await run(page, "execution", "retry", id_)).out == f"The next attempt of {id_} is due now.\n"
    assert (await worker.run_one()).leased.attempt_no == 2


@proves("E17", "O5")
async def test_the_reason_why_it_does_not_run_is_shown_with_the_executions_ahead(world: World) -> None:
    limits = Limits(key="warehouse", key_concurrency=1)
    await world.submit_all([job(limits=limits), job(limits=limits)])
    worker = await world.worker()
    [running] = await worker.lease()
    [waits] = [row for row in await world.executions() if row.id != running.leased.id]
    async with served(world.database) as page:
        ran = await run(page, "execution", "explain", str(waits.id))
        assert (ran.code, ran.err) == (0, "")
        assert "'warehouse'" in ran.out
        assert f"held by     {running.leased.id}" in ran.out
        assert "what to do" in ran.out
        shown = await run(page, "execution", "get", str(waits.id))
        assert "waits for" in shown.out
        document = await answer(page, "execution", "explain", str(waits.id))
        assert document["reasons"][0]["code"] == "concurrency"
        of_job = await run(page, "job", "explain", str(waits.job_id))
        summary = (await answer(page, "job", "explain", str(waits.job_id)))["summary"]
        assert of_job.out.startswith(f"{summary}\n")
        assert "the oldest one waits" in summary
        assert of_job.out.index(str(waits.id)) < of_job.out.index("No fire is left"), "what is decisive comes first"
        assert (await run(page, "execution", "explain", str(uuid4()))).code == 3


@proves("E17", "S6")
async def test_the_outcome_of_a_fire_is_explained_by_its_instant(world: World) -> None:
    accepted = await world.submit(job(schedule=every(600, world.now)))
    async with served(world.database) as page:
        ran = await run(page, "job", "explain", str(accepted.id), "--at", world.after(-3600).isoformat())
        assert (ran.code, ran.err) == (0, "")
        assert "before job" in ran.out
        *_, now, more = ran.out.splitlines()
        assert ran.out.startswith("fire")
        assert now.startswith("Now: Its next fire is at ")
        assert more == f"For details: ondot job explain {accepted.id}"
        bad = await run(page, "job", "explain", str(accepted.id), "--at", "yesterday")
        assert bad.code == 2
        assert "is not an instant" in bad.err


@proves("E14")
async def test_logs_are_followed_to_the_end_searched_and_read_whole(world: World) -> None:
    await world.submit(job())
    worker = await world.worker()
    [attempt] = await worker.lease()
    notes = AttemptLogs(world.database, worker.id)
    id_ = str(attempt.leased.id)
    async with served(world.database) as page:
        notes.say(attempt.leased, "stdout", "first of all")
        await notes.one_pass()
        following = asyncio.create_task(run(page, "execution", "logs", "-f", id_))
        missing = await run(page, "execution", "result", id_)
        assert missing.code == 3
        assert "has not ended" in missing.err
        notes.say(attempt.leased, "log", "then the rest \x1b[31m")
        await notes.close(attempt.leased)
        await worker.complete(attempt, Succeeded('{"n": [1, 2]}'))
        ran = await following
        assert (ran.code, ran.err) == (0, "")
        assert [line.split(maxsplit=4)[3:] for line in ran.out.splitlines()] == [
            ["stdout", "first of all"],
            ["log", "then the rest \\u001b[31m"],
        ]
        searched = await run(page, "execution", "logs", id_, "-q", "FIRST", "-o", "jsonl")
        assert [json.loads(line)["line"] for line in searched.out.splitlines()] == ["first of all"]
        assert (await run(page, "execution", "logs", id_, "--attempt", "2")).out == ""
        assert (await run(page, "execution", "result", id_)).out == '{"n": [1, 2]}\n'
        refused = await run(page, "execution", "logs", id_, "--whole", "-f")
        assert refused.code == 2
        assert "leave out -f and -o" in " ".join(refused.err.replace("│", " ").split())


@proves("E9", "O5")
async def test_an_execution_is_watched_to_its_end_and_sets_the_exit_code(world: World) -> None:
    await world.submit(job(retry=Retry(max_retries=0)))
    worker = await world.worker()
    [attempt] = await worker.lease()
    id_ = str(attempt.leased.id)
    notes = AttemptLogs(world.database, worker.id)
    notes.progress(attempt.leased, 0.25, "a quarter", None)
    await notes.one_pass()
    async with served(world.database) as page:
        shown = await run(page, "execution", "get", id_)
        assert "25%, a quarter" in shown.out
        assert "on here" in shown.out
        watching = asyncio.create_task(run(page, "execution", "get", id_, "--watch"))
        await worker.complete(attempt, failed("no such order"))
        ran = await watching
    assert (ran.code, ran.err) == (1, "")
    assert "FAILED" in ran.out
    assert "no such order" in ran.out


def test_progress_is_what_the_function_reported() -> None:
    live = execution(state="RUNNING", attempt=1, progress={"fraction": 0.25, "message": "a quarter"})
    assert progress_of(live) == ("RUNNING, a quarter", 25, 100)
    silent = execution(state="RUNNING", attempt=2, progress=None, cancel_requested_at="2026-11-15T12:00:00Z")
    assert progress_of(silent) == ("RUNNING, attempt 2, asked to stop", 0, None)


@proves("E12", "E13", "E16")
async def test_a_job_is_shown_with_its_limits(world: World) -> None:
    limits = Limits(
        overlap="skip", concurrency=2, rate=Rate(limit=10, per_s=90), key="warehouse", key_concurrency=4, order_key="o"
    )
    spec = job(schedule=every(600, world.now), limits=limits, start_deadline_s=3600.0, cancel_grace_s=30.0)
    accepted = await world.submit(spec)
    async with served(world.database) as page:
        ran = await run(page, "job", "get", str(accepted.id))
    facts = dict(line.split("  ", 1) for line in ran.out.splitlines() if "  " in line)
    facts = {name.strip(): fact.strip() for name, fact in facts.items()}
    assert facts["overlap"] == "skip"
    assert facts["concurrency"] == "2 at once"
    assert facts["rate"] == "10 in 1 min 30 s"
    assert facts["limit by key"] == "warehouse, 4 at once"
    assert facts["order key"] == "o"
    assert facts["start deadline"] == "1 h after it was due"
    assert facts["cancel grace"] == "30 s"


@proves("O1", "O5")
async def test_lists_are_searched_and_a_list_that_stopped_early_says_how_to_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.submit_all([job("nightly", labels={"team": "bi"}), job("hourly")])
    async with served(world.database) as page:
        for noun in ("execution", "job"):
            found = await run(page, noun, "list", "-q", "label.team=bi")
            assert "nightly" in found.out
            assert "hourly" not in found.out
            wrong = await run(page, noun, "list", "-q", "stat:active")
            assert (wrong.code, "Did you mean state?" in wrong.err) == (2, True)
        monkeypatch.setattr(search_executions, "__defaults__", (None, 50, 1e-9))
        stopped = await run(page, "execution", "list", "-q", "nothing-like-this")
        [cursor] = re.findall(r"^Searched through \S+Z; go on with --cursor (\S+)$", stopped.out, re.MULTILINE)
        lines = await run(page, "execution", "list", "-q", "nothing-like-this", "-o", "jsonl", "--cursor", cursor)
        assert (lines.out, "go on with --cursor" in lines.err) == ("", True)
        assert (await answer(page, "execution", "list", "-q", "nothing-like-this"))["searched_through"]


@proves("O3", "O5")
async def test_a_command_continues_the_trace_of_the_program_that_calls_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = await world.submit(job(schedule=every(3600, world.now)))
    async with served(world.database) as page:
        for traceparent in ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "nonsense"):
            monkeypatch.setenv("TRACEPARENT", traceparent)
            monkeypatch.setenv("TRACESTATE", "rojo=1")
            assert (await run(page, "job", "run", str(accepted.id))).code == 0
    worker = await world.worker()
    traces = [assignment.trace for assignment in await worker.lease()]
    expected = parse_traceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "rojo=1")
    assert expected in traces
    assert traces.count(None) == 1
