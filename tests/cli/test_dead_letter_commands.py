"""`ondot dead-letter`, `ondot pool` and `ondot audit`, against the API as it is served."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ondot.cli.letter_views import operation_in_words
from ondot.cli.replay import ends_in_words
from ondot.flow.bulk.turns import bulk_pass
from ondot.model.retry import Retry
from tests.cli.running import Ran, ondot
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, failed, job


async def run(page: Served, *words: str) -> Ran:
    return await asyncio.to_thread(ondot, *words, url=page.url)


async def letters(page: Served, *words: str) -> Ran:
    return await run(page, "dead-letter", *words)


async def answer(page: Served, *words: str) -> dict[str, Any]:
    reply = await run(page, *words, "-o", "json")
    assert (reply.code, reply.err) == (0, "")
    document = json.loads(reply.out)
    assert isinstance(document, dict)
    return document


async def fail(world: World, *messages: str) -> list[str]:
    """Jobs that fail without a retry; returns the ids of their executions."""
    worker = await world.worker()
    ids = []
    for message in messages:
        await world.submit(job("import", payload=b'{"n": 1}', retry=Retry(max_retries=0)))
        attempt = await worker.run_one(failed(message))
        await world.advance(1)
        ids.append(str(attempt.leased.id))
    return ids


def flat(text: str) -> str:
    return " ".join(text.replace("│", " ").split())


@proves("E10", "O5")
async def test_letters_are_listed_grouped_and_shown(world: World) -> None:
    ids = await fail(world, "order 1 is gone", "order 2 is gone", "no route to host " * 8)
    async with served(world.database) as page:
        listed = await letters(page, "list")
        assert [id_ for id_ in ids if id_ in listed.out] == ids
        grouped = await letters(page, "groups")
        groups = (await answer(page, "dead-letter", "groups"))["items"]
        assert sorted(group["count"] for group in groups) == [1, 2]
        assert f"ondot dead-letter replay --fingerprint {groups[0]['fingerprint']}" in grouped.out
        shown = await letters(page, "get", ids[0])
        assert "broken: order 1 is gone" in shown.out
        assert '{"n": 1}' in shown.out
        for reply in (listed, grouped, shown):
            assert (reply.code, reply.err) == (0, "")
        one = await answer(page, "dead-letter", "list", "-q", "ORDER 2", "--pool", "default")
        assert [item["execution_id"] for item in one["items"]] == [ids[1]]
        assert (await letters(page, "list", "--state", "discarded")).out == "No discarded dead letters.\n"
        assert (await letters(page, "get", str(uuid4()))).code == 3


@proves("E10", "O5")
async def test_letters_are_replayed_by_their_ids_with_a_payload_from_a_file(world: World, tmp_path: Path) -> None:
    first, second = await fail(world, "a", "b")
    payload = tmp_path / "payload.json"
    payload.write_text('{"n": 2}')
    async with served(world.database) as page:
        reply = await letters(page, "replay", first, "--payload", f"@{payload}", "--reason", "fixed")
        assert (reply.code, reply.err) == (0, "")
        assert "replayed" in reply.out
        again = await letters(page, "replay", first, second)
        assert again.code == 4
        assert "already resolved" in again.out
        assert (await letters(page, "replay", str(uuid4()))).code == 3
        absent = await letters(page, "replay", second, "--payload", f"@{tmp_path / 'nothing'}")
        assert absent.code == 2
        assert "Cannot read" in absent.err
        letter = await answer(page, "dead-letter", "get", first)
        assert (letter["state"], letter["resolved_reason"]) == ("replayed", "fixed")
    replays = [row for row in await world.executions() if str(row.replay_of) == first]
    assert [row.payload for row in replays] == [{"n": 2}]


@proves("E10", "O5")
async def test_waiting_for_replays_by_ids_shows_how_they_ended(world: World) -> None:
    ids = await fail(world, "a")
    worker = await world.worker()
    async with served(world.database) as page:
        waiting = asyncio.create_task(letters(page, "replay", *ids, "--wait"))
        async with asyncio.timeout(30):
            while not (attempts := await worker.lease()):
                await asyncio.sleep(0.01)
        await worker.complete_all(attempts, failed("again"))
        reply = await waiting
    assert reply.code == 1
    assert f"{attempts[0].leased.id} FAILED" in reply.out


@proves("E10", "O8", "O5")
async def test_by_filter_it_is_counted_first_and_followed_until_all_are_done(world: World) -> None:
    ids = set(await fail(world, "order 1 is gone", "order 2 is gone", "no route"))
    async with served(world.database) as page:
        counted = await letters(page, "replay", "-q", "order", "--dry-run")
        assert counted.out == "It would replay 2 dead letters.\n"
        unasked = await letters(page, "replay", "-q", "order")
        assert unasked.code == 2
        assert "Add --yes, or --dry-run to count" in flat(unasked.err)
        started = await letters(page, "replay", "-q", "order", "--yes", "--rate", "100")
        assert started.out.startswith("Replaying 2 dead letters, 100 per second.\n")
        [operation] = (await answer(page, "dead-letter", "operations"))["items"]
        assert f"ondot dead-letter stop {operation['id']}" in started.out
        assert operation["state"] == "RUNNING"
        stopped = await letters(page, "stop", operation["id"])
        assert stopped.out == "Stopped: replayed 0 of 2 dead letters.\n"
        waiting = asyncio.create_task(letters(page, "discard", "--all", "--reason", "not needed", "--yes", "--wait"))
        async with asyncio.timeout(30):
            while not await bulk_pass(world.database, world.dispatcher):
                await asyncio.sleep(0.01)
            while not waiting.done():
                await bulk_pass(world.database, world.dispatcher)
                await world.advance(1)
                await asyncio.sleep(0.01)
        reply = await waiting
        assert (reply.code, reply.out, reply.err) == (0, "Discarded 3 dead letters.\n", "")
        assert (await letters(page, "replay", "--all", "--yes")).out == "No open dead letters match.\n"
        assert re.search(r"\w+ +not needed", (await letters(page, "operations", "-o", "wide")).out)
        audit = await answer(page, "audit", "--action", "dead_letter.discard")
        assert [item["detail"]["total"] for item in audit["items"]] == [len(ids)], "one entry for all letters"
        table = await run(page, "audit", "--subject", operation["id"])
        assert operation["id"] in table.out


@proves("E10", "O8", "O5")
@pytest.mark.parametrize(
    ("failing", "code", "expected"),
    [
        (1, 1, "3 replays: 1 failed again. See why: ondot dead-letter groups\n"),
        (0, 0, "3 replays succeeded.\n"),
    ],
)
async def test_waiting_for_replays_by_filter_shows_how_many_failed_again(
    world: World, failing: int, code: int, expected: str
) -> None:
    ids = await fail(world, "a", "b", "c", "beside it")
    worker = await world.worker()
    async with served(world.database) as page:
        beside = await letters(page, "replay", ids[-1])
        assert beside.code == 0
        await worker.run_one(failed("not of this operation"))
        await letters(page, "discard", "-q", "not of this", "--reason", "no", "--yes")
        waiting = asyncio.create_task(letters(page, "replay", "--all", "--yes", "--wait", "--rate", "1000"))
        ran = 0
        async with asyncio.timeout(30):
            while not waiting.done():
                await bulk_pass(world.database, world.dispatcher)
                for attempt in await worker.lease():
                    ran += 1
                    await worker.complete_all([attempt], *([failed("again")] if ran <= failing else []))
                await world.advance(1)
                await asyncio.sleep(0.01)
        reply = await waiting
    assert (reply.code, reply.out, reply.err) == (code, f"Replayed 3 dead letters.\n{expected}", "")


@proves("E10", "O5")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["replay"], "Say which dead letters"),
        (["replay", str(uuid4()), "--all"], "only one of them"),
        (["replay", "--all", "-q", "x"], "only one of them"),
        (["replay", str(uuid4()), "--rate", "5"], "are all handled at once"),
        (["replay", "--all", "--from", "yesterday"], "is not an instant"),
        (["replay", str(uuid4()), "--payload", "{"], "This is not JSON"),
        (["discard", str(uuid4())], "Missing option '--reason'"),
    ],
)
def test_an_unclear_choice_is_rejected_before_any_request(words: list[str], expected: str) -> None:
    reply = ondot("dead-letter", *words, url="http://127.0.0.1:1")
    assert (reply.code, reply.out) == (2, "")
    assert expected in flat(reply.err)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"state": "DONE", "done": 2}, "Replayed 2 dead letters."),
        ({"state": "DONE", "done": 1}, "Replayed 1 of 2 dead letters. The others"),
        ({"state": "DONE", "done": 1, "total": 1, "action": "discard"}, "Discarded 1 dead letter."),
        ({"state": "RUNNING"}, "Replaying 2 dead letters, 50 per second."),
    ],
)
def test_an_operation_is_described_in_a_sentence(changes: dict[str, Any], expected: str) -> None:
    operation = {"action": "replay", "state": "RUNNING", "done": 0, "total": 2, "rate": 50.0} | changes
    assert operation_in_words(operation).startswith(expected)


def test_other_ends_of_replays_are_shown_by_their_states() -> None:
    assert ends_in_words({"SUCCEEDED": 1}) == "1 replay succeeded."
    assert ends_in_words({"SUCCEEDED": 1, "SKIPPED": 2}) == "3 replays: 0 failed again, 2 SKIPPED."


@proves("E13", "T6", "O5")
async def test_the_limits_of_a_pool_are_set_shown_and_taken_away(world: World) -> None:
    await world.worker()
    async with served(world.database) as page:
        reply = await run(page, "pool", "set", "default", "--concurrency", "3", "--rate", "100/1m")
        assert (reply.code, reply.err) == (0, "")
        assert "100 in 1 min" in reply.out
        changed = await answer(page, "pool", "set", "default", "--concurrency", "none")
        assert (changed["concurrency"], changed["rate"]["limit"]) == (None, 100)
        listed = await run(page, "pool", "list")
        assert "no limit" in listed.out
        for words, expected in (
            (["--rate", "fast"], "--rate: must be"),
            (["--concurrency", "0"], "--concurrency: must be"),
            (["--concurrency", "many"], "Write, for example, 20, or none"),
            ([], "Name a limit"),
        ):
            refused = await run(page, "pool", "set", "default", *words)
            assert refused.code == 2
            assert expected in flat(refused.err)
        assert (await run(page, "pool", "set", "nowhere", "--concurrency", "1")).code == 3
        assert "pool.limits" in (await run(page, "audit", "--action", "pool.limits")).out
