"""`ondot cron explain`: no server, no settings, the same fires as the engine."""

import asyncio
import json

import pytest

from tests.cli.running import Ran, ondot
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World


def explain(expression: str, *words: str, zone: str, after: str, n: int) -> Ran:
    return ondot("cron", "explain", expression, "-z", zone, "--after", after, "-n", str(n), "-o", "json", *words)


@proves("S9")
def test_json_has_words_fires_and_remarks() -> None:
    ran = explain("30 2 * * *", zone="Europe/Berlin", after="2026-03-28T00:00Z", n=3)
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(ran.out) == {
        "in_words": "At 02:30, Europe/Berlin",
        "fires": [
            {"fire_at": "2026-03-28T01:30:00Z", "local": "2026-03-28T02:30:00+01:00", "remark": None},
            {"fire_at": "2026-03-29T01:00:00Z", "local": "2026-03-29T03:00:00+02:00", "remark": "shifted"},
            {"fire_at": "2026-03-30T00:30:00Z", "local": "2026-03-30T02:30:00+02:00", "remark": None},
        ],
        "skipped": [],
    }


@proves("S9")
def test_json_has_the_skipped_fires() -> None:
    ran = explain("30 2 * * *", "--gap", "skip", zone="Europe/Berlin", after="2026-03-28", n=2)
    assert json.loads(ran.out)["skipped"] == [{"local": "2026-03-29T02:30:00", "reason": "gap"}]


def test_json_lines_are_the_fires() -> None:
    ran = ondot("cron", "explain", "@hourly", "-n", "4", "-o", "jsonl")
    assert [set(json.loads(line)) for line in ran.out.splitlines()] == [{"fire_at", "local", "remark"}] * 4


def test_a_table_fits_80_columns_and_has_no_colour() -> None:
    ran = ondot("cron", "explain", "30 2 * * *", "-z", "America/Argentina/Buenos_Aires")
    assert ran.out.startswith("At 02:30, America/Argentina/Buenos_Aires\n")
    assert all(len(line) <= 80 for line in ran.out.splitlines())
    assert "\x1b" not in ran.out


def test_invalid_settings_do_not_matter() -> None:
    assert ondot("cron", "explain", "@daily", no_such_setting="1").code == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["0 0 30 2 *"], "never fires"),
        (["61 * * * *"], "minute"),
        (["0 3 * * *", "-z", "Europe/Berln"], "Europe/Berlin"),
        (["0 3 * * *", "--after", "tomorrow"], "2026-03-29T00:00:00Z"),
        (["0 3 * * *", "--jitter", "some"], "--jitter"),
        (["0 3 * * *", "--calendar", "Germany"], "did you mean DE"),
        (["0 3 * * *", "--every", "5m"], "Give EXPR or --every"),
        (["0", "9", "*", "*", "1-5"], "put it in quotes"),
        (["--every", "5m", "--gap", "skip"], "--gap"),
        (["--rrule", "FREQ=SOMETIMES"], "FREQ must be one of"),
        (["0 3 * * *", "-n", "0"], "-n"),
        (["0 3 * * *", "-o", "xml"], "jsonl"),
        ([], "EXPR"),
    ],
)
def test_an_error_says_what_to_do_and_exits_with_2(words: list[str], expected: str) -> None:
    ran = ondot("cron", "explain", *words)
    assert ran.code == 2
    assert ran.out == ""
    assert expected in ran.err
    assert "Traceback" not in ran.err


def test_an_instant_without_an_offset_is_local() -> None:
    ran = explain("@daily", zone="Asia/Tokyo", after="2026-01-01T00:00", n=1)
    assert json.loads(ran.out)["fires"][0]["local"] == "2026-01-02T00:00:00+09:00"


def test_a_schedule_without_fires_is_reported() -> None:
    assert "No further fires." in ondot("cron", "explain", "@daily", "--after", "9999-01-01").out


@proves("S9", "S10")
def test_a_calendar_is_explained() -> None:
    ran = explain("0 9 25 12 *", "--calendar", "DE", zone="Europe/Berlin", after="2025-12-01", n=1)
    assert (ran.code, "holiday" in ran.out) == (2, False)  # it leaves nothing of the schedule
    ran = explain("0 9 * * *", "--calendar", "DE-BY", zone="Europe/Berlin", after="2026-01-05T12:00", n=1)
    answer = json.loads(ran.out)
    assert answer["fires"][0]["local"] == "2026-01-07T09:00:00+01:00"
    assert answer["skipped"] == [{"local": "2026-01-06T09:00:00+01:00", "reason": "holiday"}]
    ran = explain("0 9 1 * *", "--business-days", "next", zone="Europe/Berlin", after="2026-01-15", n=1)
    assert json.loads(ran.out)["fires"][0]["local"] == "2026-02-02T09:00:00+01:00"


@proves("S9")
def test_a_rule_and_an_interval_are_explained_too() -> None:
    rule = "DTSTART:20260101T090000\nRRULE:FREQ=MONTHLY;BYDAY=-1FR"
    ran = ondot(
        "cron", "explain", "--rrule", rule, "-z", "Europe/Berlin", "--after", "2026-01-01", "-n", "1", "-o", "json"
    )
    assert json.loads(ran.out)["fires"][0]["local"] == "2026-01-30T09:00:00+01:00"
    assert ondot("cron", "explain", "--every", "90m", "-n", "1").out.startswith("Every 1 hour 30 minutes\n")


@proves("S9")
@pytest.mark.parametrize(
    ("words", "schedule"),
    [
        (["30 2 * * *", "--gap", "skip"], {"cron": "30 2 * * *", "dst": {"gap": "skip"}}),
        (["30 2 * * *", "--fold", "both"], {"cron": "30 2 * * *", "dst": {"fold": "both"}}),
        (["@daily", "--jitter", "30"], {"cron": "@daily", "jitter": 30}),
        (
            ["0 9 * * *", "--calendar", "DE", "--business-days", "true"],
            {"cron": "0 9 * * *", "calendar": {"exclude_holidays": "DE", "business_days": True}},
        ),
    ],
)
async def test_without_a_server_the_answer_is_that_of_the_server(
    world: World, words: list[str], schedule: dict[str, object]
) -> None:
    at = "2026-03-28T00:00:00Z"
    flags = ["-z", "Europe/Berlin", "--after", at, "-n", "5", "-o", "json"]
    ran = await asyncio.to_thread(ondot, "cron", "explain", *words, *flags)
    async with served(world.database) as server:
        body = {"schedule": {"timezone": "Europe/Berlin"} | schedule, "after": at, "n": 5}
        answer = (await server.client.post("/v1/schedules/preview", json=body)).json()
    assert json.loads(ran.out) == answer


@proves("S9")
def test_the_servers_packages_are_not_needed() -> None:
    absent = "import sys; sys.modules.update(dict.fromkeys(['fastapi', 'asyncpg', 'uvicorn', 'aiohttp', 'jinja2']))"
    ran = ondot("cron", "explain", "@daily", "-o", "json", python=f"{absent}; from ondot.cli import main; main()")
    assert (ran.code, ran.err) == (0, "")
