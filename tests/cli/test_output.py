"""The output for people and programs: tables that fit, times twice, valid JSON, no control characters."""

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console, RenderableType

from ondot.cli import output, views
from ondot.cli.errors import exit_code, expected_error, message_of, named_once
from ondot.cli.output import Format
from ondot.cli.pages import DEFAULT_LIMIT, gather, show_page
from ondot.model import errors
from ondot.model.errors import Fault, InvalidBody, Misconfigured, OndotError
from tests.cli.samples import EXECUTION_ID, JOB_ID, execution, job
from tests.proves import proves

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


KEY: dict[str, Any] = {
    "id": JOB_ID,
    "name": "k",
    "state": "VALID",
    "role": "editor",
    "scopes": None,
    "pools": None,
    "created_at": NOW,
    "expires_at": None,
    "last_used_at": NOW,
    "revoked_at": None,
}
SKIPPED = {"from_at": "2026-11-15T08:00:00Z", "to_at": "2026-11-15T09:00:00Z", "count": 61, "reason": "misfire"}


def drawn(renderable: RenderableType, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False, markup=False).print(renderable, crop=False)
    return stream.getvalue()


def on_terminal(renderable: RenderableType, width: int, form: Format = Format.TABLE) -> str:
    stream = io.StringIO()
    screen = Console(file=stream, width=width, force_terminal=True, color_system=None, highlight=False, markup=False)
    screen.is_wide = form is Format.WIDE  # type: ignore[attr-defined]
    screen.print(renderable, crop=False)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("away", "expected"),
    [
        ({"milliseconds": 300}, "now"),
        ({"seconds": 4}, "in 4 s"),
        ({"seconds": -59}, "59 s ago"),
        ({"minutes": -2}, "2 min ago"),
        ({"hours": 3, "minutes": 59}, "in 3 h"),
        ({"days": 1}, "in 1 day"),
        ({"days": -400}, "400 days ago"),
    ],
)
def test_times_are_written_as_people_say_them(away: dict[str, float], expected: str) -> None:
    assert output.relative(NOW + timedelta(**away), NOW) == expected


@pytest.mark.parametrize(
    ("lasted_s", "expected"),
    [(0.0124, "12 ms"), (1.31, "1.3 s"), (125, "2 min 5 s"), (7260, "2 h 1 min"), (-1, "0 ms")],
)
def test_durations_are_written_as_people_say_them(lasted_s: float, expected: str) -> None:
    assert output.lasting(timedelta(seconds=lasted_s)) == expected


def test_a_list_of_jobs_shows_the_next_fire_and_the_schedule_in_words() -> None:
    shown = drawn(views.job_table([job()], NOW))
    for expected in (JOB_ID, "daily-report", "ACTIVE", "in 20 h", "Monday through Friday"):
        assert expected in shown
    assert "2026-11-16 08:00:00Z" in on_terminal(views.job_table([job()], NOW), 80, Format.WIDE)


def test_skipped_ranges_show_from_to_how_many_and_why() -> None:
    shown = drawn(views.skipped_table([SKIPPED], NOW), 120)
    for expected in (
        "61 fires",
        "2026-11-15 08:00:00Z",
        "2026-11-15 09:00:00Z",
        "missed in an outage; the job's policy",
    ):
        assert expected in shown
    assert "many fires" in drawn(views.skipped_table([SKIPPED | {"count": None}], NOW), 120)


def test_a_version_is_not_dated_by_what_a_pause_moves() -> None:
    shown = drawn(views.job_card(job(), NOW))
    assert "last changed" in shown
    assert ", of " not in shown


def test_a_job_that_fires_no_more_shows_no_time() -> None:
    assert "None" not in drawn(views.job_table([job(next_fire_at=None, state="ENDED")], NOW))


def test_an_execution_shows_its_state_reason_error_and_time() -> None:
    shown = drawn(views.execution_card(execution(), NOW))
    for expected in (
        EXECUTION_ID,
        JOB_ID,
        "FAILED",
        "retry used, none left",
        "2 min ago",
        "1.3 s",
        "50%, half of it",
        "2, 2 failed",
    ):
        assert expected in shown
    assert "exception: ValueError: line 17" in shown


def test_a_waiting_execution_shows_when_it_may_start() -> None:
    waiting = execution(state="RETRYING", started_at=None, ended_at=None, ready_at="2026-11-15T12:00:04Z")
    assert "in 4 s" in drawn(views.execution_card(waiting, NOW))


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"http": {"url": "https://x", "method": "GET", "headers": {}}}, "GET https://x"),
        ({"function": "hello"}, "function hello"),
        ({"shell": {"command": ["echo", "a b"]}}, "echo 'a b'"),
        ({"grpc": {"of": "a later release"}}, '{"grpc": {"of": "a later release"}}'),
    ],
)
def test_targets_are_described_in_words(target: dict[str, Any], expected: str) -> None:
    assert views.target_in_words(target) == expected


def test_names_cannot_steer_the_terminal_nor_the_markup() -> None:
    shown = drawn(views.job_table([job(name="\x1b[31mred\x07[bold]b[/bold]")], NOW))
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\\u001b[31mred\\u0007[bold]b[/bold]" in shown


def test_no_colour_is_used_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.console().color_system is None


def test_json_keeps_letters_and_survives_invalid_text(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_json({"name": "grüße", "broken": "\ud800"})
    shown = capsys.readouterr().out
    assert "grüße" in shown
    assert json.loads(shown)["name"] == "grüße"


def test_json_lines_are_one_for_each_thing(capsys: pytest.CaptureFixture[str]) -> None:
    show_page({"items": [job(), job()], "next_cursor": None}, output.Format.JSONL, views.job_table, none="")
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == [JOB_ID, JOB_ID]


@proves("D5")
@pytest.mark.parametrize("form", [output.Format.TABLE, output.Format.JSONL, output.Format.NAME])
@pytest.mark.parametrize(("count", "is_chosen"), [(DEFAULT_LIMIT, False), (3, True)])
def test_a_list_that_was_cut_by_no_choice_says_so_to_scripts(
    form: output.Format, count: int, is_chosen: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    page = {"items": [job()] * count, "next_cursor": "c"}
    show_page(page, form, views.job_table, none="")
    said = "" if is_chosen else "There are more than these 50. Show more with --limit.\n"
    assert capsys.readouterr().err == said


def test_an_empty_list_prints_a_sentence_only_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    page: dict[str, Any] = {"items": [], "next_cursor": None}
    show_page(page, output.Format.TABLE, views.job_table, none="No jobs.")
    assert capsys.readouterr().out == "No jobs.\n"
    show_page(page, output.Format.JSON, views.job_table, none="No jobs.")
    assert json.loads(capsys.readouterr().out) == page


async def test_pages_are_gathered_up_to_the_limit() -> None:
    asked = []

    async def page(paging: dict[str, Any]) -> dict[str, Any]:
        asked.append((paging["limit"], paging["cursor"]))
        return {"items": [{}] * paging["limit"], "next_cursor": f"after {len(asked)}"}

    answer = await gather(page, 2300)
    assert len(answer["items"]) == 2300
    assert asked == [(1000, None), (1000, "after 1"), (300, "after 2")]
    assert answer["next_cursor"] == "after 3"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidBody("…"), 2),
        (errors.Unauthorized("…"), 2),
        (errors.Misconfigured("…"), 2),
        (errors.NotFound("…"), 3),
        (errors.Conflict("…"), 4),
        (errors.PreconditionFailed("…"), 4),
        (errors.Unavailable("…"), 5),
        (errors.OndotError("…"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_has_its_exit_code(error: OndotError, code: int) -> None:
    assert exit_code(error) == code


def test_faults_are_listed_by_pointer() -> None:
    refusal = InvalidBody("One. Two.", faults=(Fault("/name", "One."), Fault("", "Two.")))
    assert message_of(refusal) == "The body is not valid:\n  /name: One.\n  /: Two."


@pytest.mark.parametrize(
    ("pointer", "message", "words"),
    [
        ("/schedule/cron", "`schedule.cron`: It never fires.", "It never fires."),
        ("/jobs/1/every", "`every` must be a duration.", "must be a duration."),
        ("/name", "`name` of this job is x: leave it out.", "`name` of this job is x: leave it out."),
        ("/schedule/every", "`schedule` takes one, got two.", "`schedule` takes one, got two."),
        ("/target", "Say what to call.", "Say what to call."),
    ],
)
def test_a_field_is_named_once(pointer: str, message: str, words: str) -> None:
    assert named_once(Fault(pointer, message)) == words


def test_the_first_error_of_a_group_is_shown_unless_one_is_a_bug() -> None:
    first = Misconfigured("This.")
    assert expected_error(ExceptionGroup("", [first, errors.Unavailable("That.")])) is first
    assert expected_error(ExceptionGroup("", [first, KeyError("bug")])) is None


def test_json_on_a_terminal_steers_nothing_and_means_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = {"name": "re\u202eport \x9b31m grüße \U000e0001", "lines": "a\nb"}
    output.show_json(document)
    assert capsys.readouterr().out == json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    output.show_json(document)
    shown = capsys.readouterr().out
    assert json.loads(shown) == document
    assert r"re\u202eport \u009b31m grüße" in shown
    output.show_line("x\x1b]0;title\x07\u202ey")
    assert r"x\u001b]0;title\u0007\u202ey" in capsys.readouterr().out
