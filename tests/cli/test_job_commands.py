"""`ondot job update`, `resume`, `next` and `create --rrule`, against the API as it is served."""

import asyncio
import json
from typing import Any

from ondot.flow.change.change import delete, pause
from ondot.model.ids import DEFAULT_TENANT
from tests.cli.running import Ran, ondot, without_warnings
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, every, job


async def run(page: Served, *words: str) -> Ran:
    return await asyncio.to_thread(ondot, "job", *words, "-o", "json", url=page.url)


def answer(ran: Ran) -> dict[str, Any]:
    assert (ran.code, without_warnings(ran)) == (0, "")
    document = json.loads(ran.out)
    assert isinstance(document, dict)
    return document


@proves("S8", "O5")
async def test_an_update_changes_the_named_fields_and_guards_the_version(world: World) -> None:
    async with served(world.database) as page:
        made = answer(await run(page, "create", "--function", "report", "--every", "10m", "--retries", "7"))
        changed = answer(
            await run(page, "update", made["id"], "--cron", "0 9 * * *", "-z", "Europe/Berlin", "--if-version", "1")
        )
        assert (changed["version"], changed["schedule"]["cron"]) == (2, "0 9 * * *")
        assert "every" not in changed["schedule"]
        assert changed["retry"]["max_retries"] == 7
        stale = await run(page, "update", made["id"], "--timeout", "1m", "--if-version", "1")
        assert stale.code == 4
        assert stale.err.startswith("error: ")
        patched = answer(
            await asyncio.to_thread(
                ondot, "job", "update", made["id"], "-f", "-", "-o", "json", url=page.url, stdin='{"timeout": 60}'
            )
        )
        assert (patched["timeout"], patched["version"]) == (60, 3)
        nothing = await run(page, "update", made["id"])
        assert nothing.code == 2
        assert "Say what to change" in nothing.err


@proves("E12", "E13", "E16", "O5")
async def test_a_job_is_made_and_changed_with_limits(world: World) -> None:
    async with served(world.database) as page:
        every = ("create", "--function", "report", "--every", "10m")
        made = answer(
            await run(page, *every, "--overlap", "skip", "--concurrency", "2", "--rate", "10/1m", "--order-key", "o",
                      "--concurrency-key", "k", "--start-deadline", "90", "--cancel-grace", "5s")
        )  # fmt: skip
        assert (made["overlap"], made["concurrency"], made["order_key"]) == ("skip", 2, "o")
        assert made["rate"] == {"limit": 10, "per": 60, "burst": 1}
        assert (made["concurrency_key"], made["key_concurrency"]) == ("k", 1)
        assert (made["start_deadline"], made["cancel_grace"]) == (90, 5)
        changed = answer(await run(page, "update", made["id"], "--overlap", "queue", "--key-concurrency", "3"))
        assert (changed["overlap"], changed["key_concurrency"], changed["concurrency"]) == ("queue", 3, 2)
        once = answer(await run(page, "create", "--function", "report", "--in", "1h", "--unique", "report:1"))
        assert once["unique"] == {"key": "report:1", "within": None}
        refused = await run(page, *every, "--unique", "report:1", "--rate", "fast")
        assert refused.code == 2
        assert "--unique: is for jobs that run once" in refused.err
        assert "--rate: must be a limit and a time" in refused.err
        assert (await run(page, *every, "--overlap", "sometimes")).code == 2


@proves("S8", "S6")
async def test_a_resume_decides_about_the_fires_of_the_pause(world: World) -> None:
    made = [await world.submit(job(name, schedule=every(600, world.now))) for name in ("skipping", "asking")]
    for accepted in made:
        await pause(world.database, DEFAULT_TENANT, accepted.id)
    await world.advance(3 * 3600)
    async with served(world.database) as page:
        plain, asked = [str(accepted.id) for accepted in made]
        assert answer(await run(page, "resume", plain))["state"] == "ACTIVE"
        assert answer(await run(page, "resume", asked, "--missed", "once"))["state"] == "ACTIVE"
    assert (await run(page, "resume", plain, "--missed", "some")).code == 2


@proves("S9", "S3")
async def test_a_job_with_a_rule_is_created_and_its_next_fires_are_shown(world: World) -> None:
    rule = "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0"
    async with served(world.database) as page:
        made = answer(
            await run(page, "create", "--function", "report", "--rrule", rule, "-z", "Europe/Berlin", "--gap", "skip")
        )
        assert made["schedule"]["dst"]["gap"] == "skip"
        preview = answer(await run(page, "next", made["id"], "-n", "3"))
    assert len(preview["fires"]) == 3
    assert preview["in_words"] == made["schedule_in_words"]
    assert all("T09:00:00" in fire["local"] for fire in preview["fires"])


@proves("S9", "S12")
async def test_a_job_without_a_next_fire_shows_the_reason(world: World) -> None:
    paused, deleted = [await world.submit(job(name, schedule=every(600, world.now))) for name in ("a", "b")]
    await pause(world.database, DEFAULT_TENANT, paused.id, because="5 failures in a row")
    await delete(world.database, DEFAULT_TENANT, deleted.id)
    async with served(world.database) as page:
        ran = await asyncio.to_thread(ondot, "job", "next", str(paused.id), url=page.url)
        assert f"paused: 5 failures in a row. Resume it with: ondot job resume {paused.id}" in ran.out
        ran = await asyncio.to_thread(ondot, "job", "next", str(deleted.id), url=page.url)
        assert "the job is deleted" in ran.out
        assert answer(await run(page, "next", str(deleted.id)))["fires"] == []


@proves("S6", "O5")
async def test_a_job_is_shown_with_its_skipped_fires(world: World) -> None:
    accepted = await world.submit(job("report", schedule=every(600, world.now)))
    await world.advance(6 * 3600)
    await world.plan()
    async with served(world.database) as page:
        ran = await asyncio.to_thread(ondot, "job", "get", str(accepted.id), url=page.url)
    assert "SKIPPED" in ran.out
    assert "missed in an" in ran.out


@proves("E8")
def test_a_delete_without_a_terminal_needs_yes() -> None:
    ran = ondot("job", "cancel", "019a1de9-4d8d-7d9d-8dd7-1801991e16d7", url="http://127.0.0.1:1")
    assert (ran.code, ran.out) == (2, "")
    assert "Add --yes" in ran.err
