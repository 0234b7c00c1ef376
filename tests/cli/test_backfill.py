"""`ondot job backfill`: the requests, the words for people, and Ctrl-C."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ondot.cli.backfill import dry_run_in_words, in_words
from tests.cli.running import Ran, ondot
from tests.cli.samples import JOB_ID
from tests.proves import proves
from tests.receiver import Receiver, open_receiver
from tests.ui.serving import served
from tests.world import World, cron, job

BACKFILL_ID = "019a1de9-9b23-7aac-b1ca-34bc80b2579e"
RANGE = ["--from", "2026-11-01", "--to", "2026-11-02T00:00:00+01:00"]


def backfill(**changes: Any) -> dict[str, Any]:
    return {
        "id": BACKFILL_ID,
        "job_id": JOB_ID,
        "state": "RUNNING",
        "from_at": "2026-11-01T00:00:00Z",
        "to_at": "2026-11-01T23:00:00Z",
        "order": "oldest",
        "concurrency": 1,
        "total": 24,
        "existing": 4,
        "made": 10,
        "open": 1,
        "succeeded": 8,
        "failed": 1,
        "stopped": 0,
        "created_at": "2026-11-15T09:00:00Z",
        "ended_at": None,
    } | changes


DONE = {"state": "DONE", "made": 20, "open": 0, "succeeded": 20, "failed": 0, "ended_at": "2026-11-15T10:00:00Z"}


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        yield receiver


async def run(receiver: Receiver, *words: str) -> Ran:
    return await asyncio.to_thread(ondot, "job", *words, url=receiver.url)


def answers(receiver: Receiver, *documents: dict[str, Any]) -> None:
    """Each request is answered with the next document; the last is answered again and again."""
    left = list(documents)
    receiver.answer(lambda: web.json_response(left.pop(0) if len(left) > 1 else left[0]))


@proves("S7", "O5")
async def test_a_range_is_sent_in_utc_with_its_order_and_limit(receiver: Receiver) -> None:
    answers(receiver, backfill())
    ran = await run(receiver, "backfill", JOB_ID, *RANGE, "--order", "newest", "--concurrency", "4")
    assert ran.code == 0
    [received] = receiver.received
    assert (received.method, received.path) == ("POST", f"/v1/jobs/{JOB_ID}/backfill")
    assert json.loads(received.body) == {
        "from_at": "2026-11-01T00:00:00+00:00",
        "to_at": "2026-11-01T23:00:00+00:00",
        "order": "newest",
        "concurrency": 4,
        "dry_run": False,
    }
    assert "9 of 20" in ran.out
    assert "4 existed already" in ran.out
    assert f"ondot job backfill-cancel {JOB_ID} {BACKFILL_ID}" in ran.out


@proves("S7")
async def test_a_dry_run_counts_in_words(receiver: Receiver) -> None:
    answers(receiver, {"dry_run": True, "total": 24, "existing": 4, "to_run": 20})
    ran = await run(receiver, "backfill", JOB_ID, *RANGE, "--dry-run")
    assert ran.out == "It would run 20 fires; 4 of 24 have already run or are waiting.\n"
    assert json.loads(receiver.received[0].body)["dry_run"] is True
    assert dry_run_in_words({"total": 1, "existing": 0, "to_run": 1}) == "It would run 1 fire."
    nothing = dry_run_in_words({"total": 8, "existing": 8, "to_run": 0})
    assert nothing == "Nothing to do: all 8 fires of this range had already run or were waiting."


@proves("S7")
async def test_a_range_without_a_fire_is_reported_in_words(receiver: Receiver) -> None:
    answers(receiver, backfill(**DONE | {"total": 0, "existing": 0, "made": 0, "succeeded": 0}))
    for words in ([], ["--wait"]):
        ran = await run(receiver, "backfill", JOB_ID, *RANGE, *words)
        assert (ran.code, ran.out) == (0, "Nothing to do: this job has no fire in this range.\n")


@proves("S7")
async def test_fires_that_had_run_are_not_reported_as_run_by_the_backfill(receiver: Receiver) -> None:
    done = DONE | {"total": 8, "existing": 8, "made": 0, "succeeded": 0}
    answers(receiver, backfill(), backfill(**done))
    ran = await run(receiver, "backfill", JOB_ID, *RANGE, "--wait")
    assert "none to run" in ran.out
    assert "8 existed already" in ran.out
    assert "Nothing to do: all 8 fires of this range had already run or were waiting." in ran.out
    assert "Cancel it" not in ran.out


@proves("S7")
@pytest.mark.parametrize(
    ("ended", "code"), [(DONE, 0), (DONE | {"failed": 1, "succeeded": 19}, 1), (DONE | {"state": "CANCELLED"}, 1)]
)
async def test_waiting_ends_with_the_backfill_and_its_exit_code(
    receiver: Receiver, ended: dict[str, Any], code: int
) -> None:
    answers(receiver, backfill(), backfill(), backfill(**ended))
    ran = await run(receiver, "backfill", JOB_ID, *RANGE, "--wait", "-o", "json")
    assert (ran.code, ran.err) == (code, "")
    assert json.loads(ran.out) == backfill(**ended)
    assert receiver.received[-1].path == f"/v1/jobs/{JOB_ID}/backfills/{BACKFILL_ID}"


@proves("S7")
async def test_ctrl_c_ends_the_waiting_and_shows_how_to_cancel(receiver: Receiver, tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def answering(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            asked.set()
        return web.json_response(backfill())

    receiver.answering = answering
    # A shell's background job, which a test run may be, ignores Ctrl-C and hands that down.
    minding_ctrl_c = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from ondot.cli import main; main()"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", minding_ctrl_c, "job", "backfill", JOB_ID, *RANGE, "--wait"],
        env=environment | {"ONDOT_URL": receiver.url},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        await asked.wait()
        process.send_signal(signal.SIGINT)
        out, err = (stream.decode() for stream in await process.communicate())
    assert (process.returncode, out) == (130, "")
    assert f"The backfill continues. Cancel it with: ondot job backfill-cancel {JOB_ID} {BACKFILL_ID}" in err
    assert "Traceback" not in err


@proves("S7", "O5")
async def test_backfills_are_listed_and_cancelled(receiver: Receiver) -> None:
    answers(receiver, {"items": [backfill(), backfill(**DONE)]}, backfill(state="CANCELLED"))
    listed = await run(receiver, "backfills", JOB_ID)
    assert listed.out.count(BACKFILL_ID) == 2
    cancelled = await run(receiver, "backfill-cancel", JOB_ID, BACKFILL_ID)
    assert "CANCELLED" in cancelled.out
    assert (receiver.received[-1].method, receiver.received[-1].path) == (
        "POST",
        f"/v1/jobs/{JOB_ID}/backfills/{BACKFILL_ID}/cancel",
    )


async def test_a_job_without_backfills_is_reported(receiver: Receiver) -> None:
    answers(receiver, {"items": []})
    assert (await run(receiver, "backfills", JOB_ID)).out == "No backfills.\n"


@pytest.mark.parametrize("words", [[], ["--from", "monday", "--to", "2026-11-02"], [*RANGE, "--concurrency", "0"]])
def test_an_invalid_range_is_rejected_here(words: list[str]) -> None:
    ran = ondot("job", "backfill", JOB_ID, *words)
    assert (ran.code, ran.out) == (2, "")


def test_a_held_backfill_is_shown_with_the_reason() -> None:
    assert in_words(backfill(state="HELD", failed=0)) == "Backfill held until the job is resumed"
    assert in_words(backfill()) == "Backfill running, 1 failed"


@proves("S7", "O5")
async def test_a_range_is_counted_run_waited_for_and_cancelled_on_a_real_server(world: World) -> None:
    accepted = await world.submit(job("report", schedule=cron("*/10 * * * *")))
    id_, day = str(accepted.id), f"{world.now - timedelta(days=1):%Y-%m-%d}"
    words = ["backfill", id_, "--from", f"{day}T10:00:00Z", "--to", f"{day}T11:00:00Z", "--concurrency", "10"]
    worker = await world.worker()
    async with served(world.database) as server:

        async def run(*words: str) -> Any:
            ran = await asyncio.to_thread(ondot, "job", *words, "-o", "json", url=server.url)
            assert (ran.code, ran.err) == (0, "")
            return json.loads(ran.out)

        assert await run(*words, "--dry-run") == {"dry_run": True, "total": 7, "existing": 0, "to_run": 7}
        waiting = asyncio.create_task(run(*words, "--wait"))
        async with asyncio.timeout(60):
            while not waiting.done():
                await world.advance(1)
                await world.work_off()
                await worker.complete_all(await worker.lease())
                await asyncio.sleep(0)
        done = await waiting
        assert (done["state"], done["succeeded"], done["failed"], done["open"]) == ("DONE", 7, 0, 0)
        started = await run("backfill", id_, "--from", f"{day}T08:00:00Z", "--to", f"{day}T09:00:00Z")
        assert [item["id"] for item in (await run("backfills", id_))["items"]] == [started["id"], done["id"]]
        assert (await run("backfill-cancel", id_, started["id"]))["state"] == "CANCELLED"
