"""Names, keys and the first characters of ids, in every command that takes an id; several at once, and from a pipe."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command

from ondot.cli import app
from ondot.cli.names import choose
from tests.cli.running import Ran, ondot
from tests.cli.test_bulk_commands import run_while_working
from tests.cli.test_dead_letter_commands import answer, fail, flat, run
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, every, job, once


async def piped(page: Served, stdin: str, *words: str) -> Ran:
    return await asyncio.to_thread(ondot, *words, url=page.url, stdin=stdin)


@proves("D5")
async def test_a_job_is_named_by_its_name_its_key_and_the_beginning_of_its_id(world: World) -> None:
    hourly = every(3600, world.now)
    made = await world.submit(job("nightly export ß", key="exports/nightly", schedule=hourly))
    await world.advance(1)
    await world.submit_all([job("report", schedule=once(world.after(3600))) for _ in range(2)])
    async with served(world.database) as page:
        whole = str(made.id)
        for text in ("nightly export ß", "exports/nightly", whole[:13], whole.replace("-", "")[:20], whole.upper()):
            assert (await answer(page, "job", "get", text))["id"] == whole, text
        started = await answer(page, "job", "run", "nightly export ß")
        shown = await run(page, "execution", "get", "exports/nightly", "-o", "json")
        assert json.loads(shown.out)["id"] == started["execution_id"], "the latest"
        listed = await answer(page, "execution", "list", "--job", "nightly export ß")
        assert [each["id"] for each in listed["items"]] == [started["execution_id"]]
        near = await run(page, "job", "get", "nightly exprot ß")
        assert (near.code, near.out) == (3, "")
        assert "Did you mean 'nightly export ß'?" in flat(near.err)
        unknown = await run(page, "job", "pause", "zzz")
        assert (unknown.code, "See them with: ondot job list" in flat(unknown.err)) == (3, True)
        several = await run(page, "job", "get", "report")
        assert (several.code, several.out) == (2, "")
        assert "may mean several jobs" in several.err
        assert [line.split()[2] for line in several.err.splitlines()[2:]] == ["report", "report"]
        prefix = await run(page, "job", "get", whole[:4])
        assert (prefix.code, prefix.err.count("\njob ")) == (2, 3), "the definition and both one-time jobs"
        # With a schedule it wins over one-time jobs of its name.
        definition = await world.submit(job("report", schedule=hourly))
        assert (await answer(page, "job", "get", "report"))["id"] == str(definition.id)
        assert (await run(page, "job", "delete", "report", "--yes")).code == 0
        gone = await run(page, "job", "get", "report")
        assert gone.code == 2, "the deleted one no longer counts"
        dashed = await world.submit(job("--yes", schedule=hourly))
        shown = await run(page, "job", "get", "-o", "json", "--", "--yes")
        assert json.loads(shown.out)["id"] == str(dashed.id)


@proves("D5")
async def test_a_command_that_changes_an_execution_does_not_choose_one_of_a_job(world: World) -> None:
    await world.submit(job("crawl", key="crawl", schedule=every(3600, world.now)))
    async with served(world.database) as page:
        nothing = await run(page, "execution", "get", "crawl")
        assert (nothing.code, "has no executions" in nothing.err) == (3, True)
        id_ = (await answer(page, "job", "run", "crawl"))["execution_id"]
        refused = await run(page, "execution", "cancel", "crawl")
        assert (refused.code, "is a job. Name one of its executions" in refused.err, id_ in refused.err) == (
            2,
            True,
            True,
        )
        cancelled = await run(page, "execution", "cancel", id_[:30])
        assert (cancelled.code, cancelled.out) == (0, f"Cancelled {id_}. It had not started.\n")
        [letter] = await fail(world, "broken")
        shown = await answer(page, "dead-letter", "get", "import")
        assert shown["execution_id"] == letter
        replayed = await run(page, "dead-letter", "replay", letter[:30])
        assert (replayed.code, "replayed" in replayed.out) == (0, True)


@proves("D5", "O8")
async def test_several_are_named_at_once_or_by_standard_input(world: World) -> None:
    names = [f"job {number}" for number in range(3)]
    await world.submit_all([job(name, schedule=every(3600, world.now)) for name in names])
    async with served(world.database) as page:
        paused = await run_while_working(world, page, "job", "pause", *names[:2])
        assert (paused.code, "Done: pause 2 jobs: 2 done." in paused.out) == (0, True)
        assert await world.value("SELECT count(*) FROM ondot.job WHERE state = 'PAUSED'") == 2
        counted = await piped(page, "\n".join([*names, names[0], ""]), "job", "resume", "-", "--dry-run")
        assert counted.out == "It would resume 3 jobs.\n", "each once"
        empty = await piped(page, "\n", "job", "resume", "-")
        assert (empty.code, "Standard input names no job" in flat(empty.err)) == (2, True)
        unasked = await run(page, "job", "delete", *names)
        assert (unasked.code, "Add --yes" in flat(unasked.err)) == (2, True), "it cannot be undone"
        wrong = await run(page, "job", "delete", names[0], "jbo 1", "--yes")
        assert (wrong.code, await world.value("SELECT count(*) FROM ondot.job WHERE state = 'DELETED'")) == (3, 0)
        started = [(await answer(page, "job", "run", name))["execution_id"] for name in names]
        cancelled = await piped(page, "\n".join(started), "execution", "cancel", "-")
        assert (cancelled.code, cancelled.out.count("It had not started.")) == (0, 3)
        view = await run(page, "view", "create", "mine", "--of", "jobs", "-q", "name:job*")
        assert view.code == 0, view.err
        assert (await run(page, "job", "run", "-V", "mine", "--dry-run")).out == "It would run 3 jobs.\n"
        both = await run(page, "job", "pause", names[0], "--query", "name:job*")
        assert (both.code, "only one of them" in flat(both.err)) == (2, True)


@proves("D5")
async def test_other_things_are_named_by_their_names_too(world: World) -> None:
    async with served(world.database) as page:
        hook = await answer(page, "hook", "create", "from shop", "--type", "order")
        assert (await answer(page, "hook", "get", "from shop"))["id"] == hook["id"]
        assert (await answer(page, "hook", "get", hook["id"][:30]))["id"] == hook["id"]
        made = await answer(page, "alert", "create", "bi", "--when", "failing:in_a_row=3")
        for text in ("bi", made["id"], made["id"][:30]):
            assert (await answer(page, "alert", "get", text))["name"] == "bi", text
        channel = await answer(page, "channel", "create", "ops", "--webhook", "https://example.com/")
        assert (await answer(page, "channel", "get", "ops"))["name"] == channel["name"]
        event = await answer(page, "event", "send", "order")
        assert (await answer(page, "event", "get", event["id"][:30]))["id"] == event["id"]
        view = await answer(page, "view", "create", "failed", "-q", "state:failed")
        assert (await answer(page, "view", "get", view["id"][:30]))["name"] == "failed"
        wrong = await run(page, "hook", "get", "from shpo")
        assert (wrong.code, "Did you mean 'from shop'?" in flat(wrong.err)) == (3, True)


@proves("D5")
def test_what_a_text_means_is_decided_in_one_place() -> None:
    def candidate(id_: str, match: str, **fields: Any) -> dict[str, Any]:
        return {"kind": "job", "id": id_, "name": "n", "match": match, "state": "ACTIVE", "once": False} | fields

    one, two = candidate("1", "name"), candidate("2", "id-prefix")
    assert choose("job", "cafe", [one, two], more=False) == one, "a whole name is more than the beginning of an id"
    assert choose("job", "cafe", [two], more=False) == two
    assert choose("job", "cafe", [candidate("3", "prefix")], more=False) is None, "it only suggests"
    for items, more in (
        ([candidate("1", "key"), candidate("2", "name")], False),
        ([candidate("1", "id-prefix"), candidate("2", "id-prefix")], False),
        ([two], True),
    ):
        with pytest.raises(typer.Exit) as ended:
            choose("job", "cafe", items, more=more)
        assert ended.value.exit_code == 2


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield from commands(command, (*path, name)) if hasattr(command, "commands") else [((*path, name), command)]


@proves("D5")
def test_no_command_takes_whole_ids_only() -> None:
    root: Any = get_command(app)
    root.load_commands()
    bare = [
        " ".join(path) + " " + parameter.name
        for path, command in commands(root)
        for parameter in command.params
        if "UUID" in str(parameter.type_descriptor.annotation)
    ]
    assert bare == [], "declare it by cli.names"
