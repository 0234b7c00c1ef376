"""The preview of a schedule as a page: the same fires, words and errors as the API, in a form that is its address."""

import json
import re
import shlex
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from html import unescape
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner

from ondot.cli import app as cli
from ondot.document.requests import preview_request
from ondot.model.schedule import Blackout, Calendar, Cron, Interval, Schedule
from ondot.ui.schedules import EXAMPLES, Form, FormErrors, PreviewView, form_of, local_words, preview_form, zones
from ondot.ui.year import Day, Year, build_year
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

NOW = datetime(2026, 3, 20, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def preview(**fields: str) -> PreviewView:
    answer = preview_form(Form(**fields), preview_request, NOW)
    assert isinstance(answer, PreviewView), answer
    return answer


def errors_of(**fields: str) -> dict[str, tuple[str, ...]]:
    answer = preview_form(Form(**fields), preview_request, NOW)
    assert isinstance(answer, FormErrors)
    return answer.faults


def year(schedule: Schedule, after: datetime = NOW) -> Year:
    return build_year(schedule, after, BERLIN, {})


def days(shown: Year) -> dict[date, Day]:
    return {day.on: day for month in shown.months for day in month.days}


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


@proves("S9")
def test_an_empty_form_shows_an_example() -> None:
    assert form_of({}) == Form()
    assert form_of({"utm_source": "mail"}) == Form()
    assert preview().in_words == "At 09:00, Monday through Friday, Europe/Berlin"


@proves("S9")
def test_a_form_with_values_has_no_example_values() -> None:
    assert form_of({"expression": " @daily "}) == Form(expression="@daily", timezone="")
    assert form_of({"kind": "every", "expression": ""}).expression == ""


@proves("S9")
@pytest.mark.parametrize("kind", ["cron", "every", "rrule"])
def test_each_kind_has_an_example_of_its_own(kind: str) -> None:
    form = form_of({"kind": kind})
    assert form.expression == EXAMPLES[kind]
    assert isinstance(preview_form(form, preview_request, NOW), PreviewView)


@proves("S9", "S3")
def test_a_rule_has_lines_and_an_expression_has_one() -> None:
    rule = form_of({"kind": "rrule", "expression": "DTSTART:20260401T093000\r\nRRULE:FREQ=WEEKLY\r\n"})
    assert rule.expression == "DTSTART:20260401T093000\nRRULE:FREQ=WEEKLY"
    answer = preview_form(rule, preview_request, NOW)
    assert isinstance(answer, PreviewView)
    assert answer.fires[0].local == "Wed 1 Apr 2026, 09:30 +00:00"
    assert form_of({"expression": "0 9\r\n* * *"}).expression == "0 9 * * *"


@proves("S9")
def test_errors_of_several_fields_are_shown_at_once() -> None:
    assert set(errors_of(n="5000", jitter="2d", expression="61 * * * *")) >= {"n", "jitter"}


@proves("S9")
def test_an_unknown_zone_is_no_error_of_the_instant_too() -> None:
    assert set(errors_of(timezone="Berlin", after="2026-03-28T12:00")) == {"timezone"}


@proves("S9")
def test_seconds_are_shown_for_all_fires_or_for_none() -> None:
    fires = preview(expression="*/30 * * * * *", timezone="", n="3").fires
    assert [fire.local[-15:] for fire in fires] == ["12:00:30 +00:00", "12:01:00 +00:00", "12:01:30 +00:00"]
    assert preview(expression="* * * * *", timezone="", n="1").fires[0].local == "Fri 20 Mar 2026, 12:01 +00:00"


@proves("S9", "S4")
def test_fires_have_remarks_about_clock_changes() -> None:
    shifted = preview(expression="30 2 * * *", after="2026-03-28T12:00", n="2")
    assert [(fire.local, fire.remark) for fire in shifted.fires] == [
        ("Sun 29 Mar 2026, 03:00 +02:00", "shifted"),
        ("Mon 30 Mar 2026, 02:30 +02:00", None),
    ]
    assert set(shifted.remarks) == {"shifted"}
    skipped = preview(expression="30 2 * * *", after="2026-03-28T12:00", n="1", gap="skip").skipped
    assert [(entry.local, entry.reason) for entry in skipped] == [("Sun 29 Mar 2026, 02:30", "gap")]


@proves("S9")
@pytest.mark.parametrize(
    ("fields", "at"),
    [
        ({"expression": "61 * * * *"}, "expression"),
        ({"expression": ""}, "expression"),
        ({"kind": "every", "expression": "soon"}, "expression"),
        ({"kind": "rrule", "expression": "FREQ=NEVER"}, "expression"),
        ({"timezone": "Europe/Berln"}, "timezone"),
        ({"gap": "leap"}, "gap"),
        ({"jitter": "much"}, "jitter"),
        ({"country": "Atlantis"}, "country"),
        ({"business_days": "perhaps"}, "business_days"),
        ({"after": "later"}, "after"),
        ({"n": "0"}, "n"),
        ({"n": "many"}, "n"),
    ],
)
def test_an_error_is_shown_at_its_field(fields: dict[str, str], at: str) -> None:
    faults = errors_of(**fields)
    assert set(faults) == {at}
    assert all((message and not message.startswith("`schedule.")) or "must" in message for message in faults[at])


@proves("S9")
async def test_page_and_api_reject_a_schedule_in_the_same_words(page: Served) -> None:
    form = Form(expression="0 0 30 2 *")
    answer = await page.client.post("/v1/schedules/preview", json=form.body())
    assert answer.status_code == 422
    [error] = answer.json()["errors"]
    html = (await page.client.get("/schedules", params={"expression": form.expression})).text
    words = error["detail"].removeprefix("`schedule.cron`: ")
    assert words.split("`")[0].rstrip() in unescape(html)
    assert "This schedule is not valid" in html


@proves("S9")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"expression": "30 2 * * *", "gap": "skip", "fold": "both", "jitter": "30s"},
        {"kind": "every", "expression": "90"},
        {"kind": "rrule", "expression": "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=9;BYMINUTE=0;BYSECOND=0"},
        {"country": "DE-BY", "business_days": "next", "expression": "0 9 25 12 *"},
    ],
)
async def test_page_and_api_show_the_same_fires(page: Served, fields: dict[str, str]) -> None:
    form = Form(**fields)
    answer = (await page.client.post("/v1/schedules/preview", json=form.body())).json()
    html = unescape((await page.client.get(f"/schedules?{urlencode(form_fields(form))}")).text)
    assert answer["in_words"] in html
    assert len(answer["fires"]) == 10
    seconds = any(not fire["local"][17:].startswith("00") for fire in answer["fires"])
    for fire in answer["fires"][1:]:
        day, time = local_words(fire["local"], seconds).split(", ")
        assert f'<span class="whole">{day},</span> <span class="whole">{time}</span>' in html


@proves("S9")
async def test_the_json_and_the_curl_command_of_the_page_create_a_job(page: Served) -> None:
    fields = {"expression": "0 9 * * 1-5", "timezone": "Europe/Berlin", "country": "DE", "jitter": "30s"}
    html = (await page.client.get("/schedules", params=fields)).text
    schedule = json.loads(block(html, "as-json"))
    _, address, _, body = shlex.split(block(html, "as-curl"))
    assert json.loads(body)["schedule"] == schedule
    made = await page.client.post(address, content=body)
    assert made.status_code == 201
    assert made.json()["schedule_in_words"] in unescape(html)


@proves("S9")
def test_the_command_of_the_page_is_accepted_by_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    form = Form(gap="skip", fold="last", jitter="30s", country="DE", business_days="yes")
    bodies: list[Any] = []
    monkeypatch.setattr("ondot.cli.body.reject_surrogates", bodies.append)
    monkeypatch.setenv("ONDOT_URL", "http://127.0.0.1:1")
    name, *words = shlex.split(form.command().replace("\\\n", " "))
    CliRunner().invoke(cli, words)
    assert name == "ondot"
    assert bodies[0]["schedule"] == form.schedule()


@proves("S9")
async def test_the_form_shows_hostile_input_as_text(page: Served) -> None:
    hostile = '"><script>alert(1)</script>'
    html = (await page.client.get("/schedules", params={"expression": hostile, "timezone": hostile})).text
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert(1)") >= 2
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", html)


@proves("S9")
async def test_the_page_is_linked_keeps_its_policy_and_answers_typing_with_a_fragment(page: Served) -> None:
    assert 'href="/schedules"' in (await page.client.get("/jobs")).text
    assert 'href="/schedules"' in (await page.client.get("/docs")).text
    whole = await page.client.get("/schedules")
    assert "script-src 'self'" in whole.headers["content-security-policy"]
    assert "form-action 'self'" in whole.headers["content-security-policy"]
    fragment = await page.client.get("/schedules", headers={"hx-request": "true"})
    assert "<html" not in fragment.text
    assert 'id="preview"' in fragment.text
    assert len(fragment.text) < len(whole.text) * 0.8


@proves("T1")
async def test_the_preview_needs_a_key_if_auth_is_on(world: World) -> None:
    async with served(world.database, auth="on") as page:
        assert (await page.client.get("/schedules")).status_code == 401


@proves("S9", "S10")
def test_a_year_marks_days_with_fires_and_excluded_days() -> None:
    schedule = Schedule(
        when=Cron(expression="0 9 * * *", timezone="Europe/Berlin"), calendar=Calendar(exclude_holidays="DE")
    )
    shown = year(schedule)
    marks = {on: day.mark for on, day in days(shown).items()}
    assert (len(shown.months), shown.months[0].name, shown.months[-1].name) == (12, "March 2026", "February 2027")
    assert marks[date(2026, 3, 19)] == "past"
    assert marks[date(2026, 3, 20)] == "free"  # 09:00 had passed
    assert marks[date(2026, 3, 21)] == "fires"
    assert marks[date(2026, 12, 25)] == "excluded"
    assert shown.excluded == sum(mark == "excluded" for mark in marks.values())
    assert shown.fires_on == sum(mark == "fires" for mark in marks.values()) == 346 - 1 - shown.excluded


@proves("S9", "S10")
def test_a_year_marks_the_days_whose_fire_moves_to_a_business_day() -> None:
    blackout = Blackout(from_at=datetime(2026, 6, 30, tzinfo=UTC), to_at=datetime(2026, 7, 3, tzinfo=UTC))
    calendar = Calendar(business_days="next", blackouts=(blackout,))
    shown = year(Schedule(when=Cron(expression="0 9 1 * *", timezone="Europe/Berlin"), calendar=calendar))
    marks = {on: day.mark for on, day in days(shown).items()}
    assert marks[date(2026, 8, 1)] == "moved"  # a Saturday
    assert marks[date(2026, 8, 3)] == "fires"
    assert marks[date(2026, 7, 1)] == "excluded"  # a Wednesday, in the blackout
    assert shown.moved == sum(mark == "moved" for mark in marks.values()) == 2
    assert shown.excluded == 1
    assert "moved to a business day: 1" in next(month.summary for month in shown.months if month.name == "August 2026")


@proves("S9", "S4")
def test_a_year_marks_the_clock_changes_of_its_zone() -> None:
    shown = year(Schedule(when=Cron(expression="@monthly", timezone="Europe/Berlin")))
    assert shown.changes == (
        "Sun 29 Mar 2026: clocks go from 02:00 to 03:00",
        "Sun 25 Oct 2026: clocks go from 03:00 to 02:00",
    )
    assert days(shown)[date(2026, 3, 29)].change
    assert "clocks go from 02:00 to 03:00 on 29 March" in shown.months[0].summary


@proves("S9")
def test_a_year_takes_one_step_for_each_day_even_if_it_fires_each_second() -> None:
    shown = year(Schedule(when=Interval(every_s=1, anchor_at=NOW)))
    assert shown.fires_on == 346


@proves("S9")
def test_a_year_is_right_where_midnight_is_skipped_or_a_day_is_missing() -> None:
    cairo = build_year(
        Schedule(when=Cron(expression="30 0 * * *", timezone="Africa/Cairo")), NOW, ZoneInfo("Africa/Cairo"), {}
    )
    assert cairo.fires_on == 345
    samoa = build_year(
        Schedule(when=Cron(expression="0 9 * * *", timezone="Pacific/Apia")),
        datetime(2011, 12, 1, tzinfo=UTC),
        ZoneInfo("Pacific/Apia"),
        {},
    )
    assert days(samoa)[date(2011, 12, 29)].mark == "fires"
    assert days(samoa)[date(2011, 12, 31)].mark == "fires"


def test_the_suggested_zones_are_iana_names_of_places() -> None:
    assert {"Europe/Berlin", "Pacific/Apia", "UTC"} <= set(zones())
    assert "CET" not in zones()


def form_fields(form: Form) -> dict[str, str]:
    return {name: getattr(form, name) for name in Form.__dataclass_fields__}


def block(html: str, id_: str) -> str:
    found = re.search(rf'<pre[^>]*id="{id_}">(.*?)</pre>', html, re.DOTALL)
    assert found
    return unescape(found[1])
