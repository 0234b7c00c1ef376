"""`ondot job apply`: the forms of a file, and the result of each job in it."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from ondot.cli.apply import differences, in_sum, jobs_of_file, result_of
from tests.cli.running import Ran, ondot, without_warnings
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

NIGHTLY = {"key": "nightly", "name": "report", "cron": "0 3 * * *", "function": "report"}
HOURLY = {"key": "hourly", "name": "look", "every": "1h", "function": "look"}


def in_file(tmp_path: Path, content: object) -> str:
    path = tmp_path / "jobs.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(path)


async def apply(page: Served, tmp_path: Path, content: object, *words: str) -> Ran:
    file = in_file(tmp_path, content)
    return await asyncio.to_thread(ondot, "job", "apply", "-f", file, "-o", "json", *words, url=page.url)


def results(ran: Ran) -> dict[str, tuple[str, int, list[str]]]:
    assert (ran.code, without_warnings(ran)) == (0, "")
    items = json.loads(ran.out)["items"]
    return {item["key"]: (item["result"], item["version"], item["changes"]) for item in items}


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        (NIGHTLY, ["nightly"]),
        ([NIGHTLY, HOURLY], ["nightly", "hourly"]),
        ({"jobs": [NIGHTLY, HOURLY]}, ["nightly", "hourly"]),
        (f"{json.dumps(NIGHTLY)}\n\n{json.dumps(HOURLY)}\n", ["nightly", "hourly"]),
        (json.dumps(NIGHTLY, indent=2), ["nightly"]),
    ],
)
def test_a_file_holds_a_job_a_list_or_a_job_on_each_line(tmp_path: Path, content: object, keys: list[str]) -> None:
    assert [body["key"] for body in jobs_of_file(in_file(tmp_path, content))] == keys


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([], "no job"),
        ("", "not JSON"),
        ("[1]", "Job 1 is not a JSON object"),
        ([NIGHTLY, {"name": "b"}], r"Job 2 \(b\) has no key"),
        ([{"key": ""}], "Job 1 has no key"),
        ('{"key": "a"}\n{"key": }', "line 2"),
        ('{"key": "a"', "not JSON"),
    ],
)
def test_an_invalid_file_is_rejected_before_anything_is_sent(tmp_path: Path, content: object, expected: str) -> None:
    with pytest.raises(typer.BadParameter) as refusal:
        jobs_of_file(in_file(tmp_path, content))
    assert re.search(expected, f"{refusal.value.param_hint}: {refusal.value}")


@proves("S12")
@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(None, 1, "created"), (None, 3, "changed"), ({"version": 2}, 2, "unchanged"), ({"version": 2}, 3, "changed")],
)
def test_versions_show_the_result_of_a_job(before: dict[str, int] | None, after: int, expected: str) -> None:
    assert result_of(before, {"version": after}) == expected


def test_differences_are_named_to_the_field() -> None:
    before: dict[str, Any] = {"name": "a", "retry": {"max_retries": 3, "factor": 2}, "payload": {"x": 1}}
    wanted: dict[str, Any] = {"name": "b", "retry": {"max_retries": 5, "factor": 2}, "payload": {"x": 2}}
    assert differences(before, wanted) == ["name", "retry.max_retries", "payload"]


def test_the_summary_counts_what_would_change_and_what_did() -> None:
    items = [{"result": "created"}, {"result": "unchanged"}, {"result": "created"}]
    assert in_sum(items, dry_run=False) == "2 created, 1 unchanged."
    assert in_sum(items, dry_run=True) == "Dry run: 2 created, 1 unchanged."


@proves("S12", "O5")
async def test_applied_twice_it_changes_nothing_and_each_change_is_named(world: World, tmp_path: Path) -> None:
    async with served(world.database) as page:
        assert results(await apply(page, tmp_path, [NIGHTLY, HOURLY], "--dry-run")) == {
            "nightly": ("created", 1, []),
            "hourly": ("created", 1, []),
        }
        assert (await page.client.get("/v1/jobs")).json()["items"] == []
        assert results(await apply(page, tmp_path, [NIGHTLY, HOURLY])) == {
            "nightly": ("created", 1, []),
            "hourly": ("created", 1, []),
        }
        changed = [NIGHTLY | {"name": "renamed", "cron": "0 4 * * *"}, HOURLY]
        expected = {"nightly": ("changed", 2, ["name", "schedule.cron"]), "hourly": ("unchanged", 1, [])}
        assert results(await apply(page, tmp_path, changed, "--dry-run")) == expected
        applied = results(await apply(page, tmp_path, changed))
        assert {key: item[:2] for key, item in applied.items()} == {key: item[:2] for key, item in expected.items()}
        unchanged: dict[str, tuple[str, int, list[str]]] = {
            "nightly": ("unchanged", 2, []),
            "hourly": ("unchanged", 1, []),
        }
        assert results(await apply(page, tmp_path, changed)) == unchanged
        assert results(await apply(page, tmp_path, changed, "--dry-run")) == unchanged


@proves("S12")
@pytest.mark.parametrize("more", [{}, {"start_at": "2100-01-01T00:00:00Z"}, {"anchor_at": "2026-01-01T00:00:00Z"}])
async def test_an_anchor_that_the_server_chose_is_no_difference(
    world: World, tmp_path: Path, more: dict[str, str]
) -> None:
    schedule = {"every": "1h", "include": [{"every": "90m"}, {"rrule": "FREQ=DAILY"}], **more}
    often = {"key": "often", "name": "often", "schedule": schedule, "function": "often"}
    async with served(world.database) as page:
        assert results(await apply(page, tmp_path, often))["often"][0] == "created"
        assert results(await apply(page, tmp_path, often, "--dry-run")) == {"often": ("unchanged", 1, [])}
        assert results(await apply(page, tmp_path, often)) == {"often": ("unchanged", 1, [])}


@proves("O5")
async def test_a_table_shows_the_result_of_each_job(world: World, tmp_path: Path) -> None:
    async with served(world.database) as page:
        file = in_file(tmp_path, [NIGHTLY, HOURLY])
        ran = await asyncio.to_thread(ondot, "job", "apply", "-f", file, "--dry-run", url=page.url)
        assert ran.out.count("would create") == 2
        assert "Dry run: 2 created." in ran.out


@proves("O5")
async def test_a_fault_in_one_job_is_reported_with_its_place_and_none_is_created(world: World, tmp_path: Path) -> None:
    async with served(world.database) as page:
        for words in ([], ["--dry-run"]):
            ran = await apply(page, tmp_path, [NIGHTLY, HOURLY | {"every": "soon"}], *words)
            assert ran.code == 2
            assert "/jobs/1/every (job hourly): must be" in ran.err
        assert (await page.client.get("/v1/jobs")).json()["items"] == []
