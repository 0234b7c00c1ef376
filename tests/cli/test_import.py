"""`ondot import crontab`: `ondot job apply` reads what it writes, and a second time changes nothing."""

import asyncio
import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ondot.document.requests import preview_request
from ondot.model.schedule.preview import preview
from tests.cli.running import ondot
from tests.model.test_crontab import DEBIAN, OWN
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World


def jobs_of(text: str, *words: str) -> list[dict[str, Any]]:
    ran = ondot("import", "crontab", "-", *words, stdin=text)
    assert ran.code == 0, ran.err
    return list(json.loads(ran.out)["jobs"])


@proves("D6")
async def test_applied_twice_an_import_changes_nothing(world: World, tmp_path: Path) -> None:
    file, crontab = tmp_path / "jobs.json", tmp_path / "crontab"
    crontab.write_text(DEBIAN)
    words = ("import", "crontab", str(crontab), "--to", str(file), "-z", "Europe/Berlin")
    async with served(world.database) as page:
        ran = await asyncio.to_thread(ondot, *words)
        assert (ran.code, ran.out) == (0, "")
        for expected in ("Wrote 4 jobs to", "Europe/Berlin", "ONDOT_ALLOW_SHELL=1", "no run has a timeout", "root"):
            assert expected in ran.err
        first = await asyncio.to_thread(ondot, "job", "apply", "-f", str(file), url=page.url)
        assert first.out.splitlines()[-1] == "4 created."
        await asyncio.to_thread(ondot, *words)
        again = await asyncio.to_thread(ondot, "job", "apply", "-f", str(file), url=page.url)
        assert again.out.splitlines()[-1] == "4 unchanged."


@proves("D6")
def test_each_line_that_is_left_is_reported_and_the_others_are_written() -> None:
    ran = ondot("import", "crontab", "-", stdin=f"{OWN}61 * * * * never\n0 0 31 2 * nor this\n")
    assert ran.code == 0
    assert len(json.loads(ran.out)["jobs"]) == 5
    for line, why in ((8, "@reboot"), (10, "random"), (12, "0 to 59"), (13, "month 2 has no day 31")):
        assert f"line {line} is not taken over" in ran.err
        assert why in ran.err
    assert "MAILTO" in ran.err


@pytest.mark.parametrize("text", ["", "# nothing\n", "@reboot x\n", "\x00"])
def test_if_nothing_is_taken_over_it_exits_with_1_and_writes_nothing(text: str, tmp_path: Path) -> None:
    ran = ondot("import", "crontab", "-", "--to", str(tmp_path / "jobs.json"), stdin=text)
    assert (ran.code, ran.out) == (1, "")
    assert "Nothing in - could be taken over" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_does_not_exist_exits_with_2() -> None:
    assert ondot("import", "crontab", "/nonexistent").code == 2


def test_flags_set_zone_pool_prefix_and_the_column_of_users() -> None:
    words = ("--no-user-column", "-z", "Asia/Tokyo", "--pool", "ops", "--prefix", "web1")
    [job] = jobs_of("0 1 * * * root thing\n", *words)
    assert (job["pool"], job["schedule"]["timezone"]) == ("ops", "Asia/Tokyo")
    assert job["key"].startswith("web1-root-thing-")
    [job] = jobs_of("0 1 * * * deploy thing\n", "--user-column")
    assert (job["name"], job["labels"]["user"]) == ("thing", "deploy")


@proves("D6")
def test_a_command_runs_as_cron_runs_it(tmp_path: Path) -> None:
    lines = [
        f"HOME={tmp_path}",
        'GREETING=it\'s "quoted" $HOME',
        'SHELL="/bin/bash"',
        "* * * * * pwd; echo $GREETING; cat%first%100\\% INPUT%INPUT%last",
    ]
    [job] = jobs_of("\n".join(lines))
    ran = subprocess.run(job["target"]["shell"]["command"], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == f'{tmp_path}\nit\'s "quoted" $HOME\nfirst\n100% INPUT\nINPUT\nlast\n'


def values(written: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for part in written.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin, end = (low, high) if span == "*" else (int(first), int(last or (high if step else first)))
        found.update(range(begin, end + 1, int(step or 1)))
    return found


def runs_of_cron(expression: str, at: datetime, count: int) -> list[datetime]:
    """An oracle that tries each minute, by cron's rule: of two restricted day fields either is enough."""
    minute, hour, day, month, weekday = expression.split()
    minutes, hours, months = values(minute, 0, 59), values(hour, 0, 23), values(month, 1, 12)
    days, weekdays = values(day, 1, 31), {each % 7 for each in values(weekday, 0, 7)}
    is_either = day[0] != "*" and weekday[0] != "*"
    found: list[datetime] = []
    while len(found) < count:
        at += timedelta(minutes=1)
        fits = [at.day in days, at.isoweekday() % 7 in weekdays]
        if at.month in months and at.hour in hours and at.minute in minutes and (any if is_either else all)(fits):
            found.append(at)
    return found


@proves("D6")
@pytest.mark.parametrize(
    "expression",
    ["0 6 13 * 5", "*/20 */9 * * *", "5-55/25 23 */2 * 1", "59 23 1,15 2-11/3 *", "0 0 1 * 7", "30 4 * * 0"],
)
def test_a_job_fires_when_cron_would_run_it(expression: str) -> None:
    [job] = jobs_of(f"{expression} x\n", "-z", "UTC")
    start = datetime(2026, 11, 18, tzinfo=UTC)
    rule, instant, n = preview_request({"schedule": job["schedule"], "n": 5}, start, after=start)
    assert [fire.fire_at for fire in preview(rule, instant, n).fires] == runs_of_cron(expression, start, 5)


def test_thousands_of_lines_have_names_and_keys_of_their_own() -> None:
    jobs = jobs_of("".join(f"{n % 60} {n % 24} * * * /usr/bin/job --number {n}\n" for n in range(2000)))
    assert len({job["key"] for job in jobs}) == len({job["name"] for job in jobs}) == 2000
