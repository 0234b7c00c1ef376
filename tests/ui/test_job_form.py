"""The form of a job, sent as a browser without scripts sends it: create, edit, duplicate; faults, conflicts, rights."""

import json
import re
from collections.abc import AsyncIterator
from html import unescape
from html.parser import HTMLParser
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.document.parse import job_spec
from ondot.model.errors import InvalidBody
from ondot.model.ids import EPOCH
from ondot.ui.job_form import JobForm, build_document, fill_form, place_faults, read_job_form
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, every, job

HOSTILE: Final = "<script>alert('x')</script>\"' hx-get=/v1/jobs"
CRON: Final = {
    "name": "nightly",
    "kind": "cron",
    "expression": "0 3 * * *",
    "target": "http",
    "url": "http://a.example/",
}
DOCUMENTS: Final[list[dict[str, Any]]] = [
    {"name": "a", "cron": "0 9 * * 1-5", "timezone": "Europe/Berlin", "url": "https://example.com"},
    {"name": "b", "every": "15m", "function": "f", "payload": {"n": [1, None, "x"]}, "labels": {"team": "bi", "x": ""}},
    {"name": "c", "schedule": {"rrule": "FREQ=DAILY;BYHOUR=9"}, "command": ["sh", "-c", "echo 'a b'"], "pool": "gpu"},
    {"name": "d", "schedule": {"event": {"type": "t.x", "filter": {"data": {"n": [1]}}}}, "function": "f"},
    {"name": "e", "at": "2030-01-31T09:00:00Z", "function": "f", "key": "k", "priority": "high"},
    {
        "name": "f",
        "schedule": {
            "cron": "0 9 * * *",
            "dst": {"gap": "skip", "fold": "both"},
            "jitter": 30,
            "calendar": {"exclude_holidays": "DE", "business_days": "next", "exclude_dates": ["2030-01-01"]},
            "misfire": {"policy": "all", "limit": 7},
            "max_fires": 3,
            "include": [{"cron": "0 10 * * *"}],
        },
        "target": {"http": {"url": "https://e.example/x", "method": "GET", "headers": {"x-a": "b"}}},
        "retry": {"max_retries": 0, "backoff": "fixed"},
        "timeout": "90s",
        "overlap": "skip",
        "concurrency": 2,
        "rate": "10/1m",
        "expect": {"end_within": "1h"},
        "labels": {"a=b": "c"},
    },
    {"name": "g", "every": "1h", "steps": {"a": {"function": "x"}, "b": {"function": "y", "depends_on": ["a"]}}},
]


@proves("S8")
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["name"])
def test_a_job_that_goes_through_the_form_means_the_same(document: dict[str, Any]) -> None:
    spec = job_spec(document, EPOCH)
    form = fill_form(spec, 3)
    sent = read_job_form({name: getattr(form, name) for name in JobForm.__dataclass_fields__})
    again = job_spec(build_document(sent), EPOCH, current=spec)
    assert again == spec
    assert form.version == "3"


@proves("S8")
def test_a_form_shows_only_what_differs_from_the_defaults() -> None:
    form = fill_form(job_spec(DOCUMENTS[0], EPOCH))
    assert (form.kind, form.expression, form.timezone, form.target) == ("cron", "0 9 * * 1-5", "Europe/Berlin", "http")
    assert (form.rest, form.retries, form.pool, form.method, form.overlap, form.misfire) == ("", "", "", "", "", "")


@proves("S8")
@given(st.dictionaries(st.sampled_from(sorted(JobForm.__dataclass_fields__)), st.text(max_size=40)))
@settings(max_examples=200, deadline=None)
def test_whatever_is_typed_gets_a_document_or_faults_at_inputs(typed: dict[str, str]) -> None:
    faults: dict[str, tuple[str, ...]] = {}
    try:
        build_document(read_job_form(typed))
    except InvalidBody as error:
        faults = place_faults(error.faults)
    assert faults.keys() <= {"payload", "labels", "rest", "command"}


@proves("S8")
def test_a_field_above_and_in_the_json_is_rejected() -> None:
    with pytest.raises(InvalidBody) as found:
        build_document(JobForm(pool="gpu", rest='{"pool": "cpu", "schedule": {"cron": "x", "spread": "1m"}}'))
    said = {fault.message.partition(":")[0] for fault in found.value.faults}
    assert said == {"`schedule.cron` is set above", "`pool` is set above"}


class Inputs(HTMLParser):
    """What a browser would send for the form of the page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self.faults: dict[str, str] = {}
        self._area = self._select = self._fault = ""
        self._in_form = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "form":
            self._in_form = given.get("id") == "job-form"
        if not self._in_form:
            return
        name = given.get("name") or ""
        if tag == "input":
            self.fields[name] = given.get("value") or ""
        elif tag == "textarea":
            self._area = name
            self.fields[name] = ""
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select:
            if self._select not in self.fields or "selected" in given:
                self.fields[self._select] = given.get("value") or ""
        elif tag == "span" and (given.get("id") or "").startswith("fault-"):
            self._fault = (given["id"] or "").removeprefix("fault-")

    def handle_data(self, data: str) -> None:
        if self._area:
            self.fields[self._area] += data
        elif self._fault:
            self.faults[self._fault] = self.faults.get(self._fault, "") + data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self.fields[self._area] = self.fields[self._area].removeprefix("\n")
            self._area = ""
        elif tag == "select":
            self._select = ""
        elif tag == "span":
            self._fault = ""


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


async def send(page: Served, path: str, **fields: str) -> Any:
    return await page.client.post(path, data=fields, headers={"origin": page.url})


async def created(page: Served, **fields: str) -> dict[str, Any]:
    answer = await send(page, "/jobs/new", **{**CRON, **fields})
    assert answer.status_code == 303, answer.text
    found: dict[str, Any] = (await page.client.get(f"/v1{answer.headers['location']}")).json()
    return found


@proves("S8", "O5")
async def test_a_job_is_created_by_the_form_and_recorded_with_its_reason(page: Served) -> None:
    made = await created(
        page, key="n1", payload='{"region": "eu"}', labels="team=bi\nsize=a=b", retries="0", reason="asked by Ada"
    )
    assert (made["name"], made["key"], made["payload"]) == ("nightly", "n1", {"region": "eu"})
    assert (made["labels"], made["retry"]["max_retries"]) == ({"team": "bi", "size": "a=b"}, 0)
    entries = (await page.client.get(f"/v1/audit?subject={made['id']}")).json()["items"]
    assert [(entry["action"], entry["reason"]) for entry in entries] == [("job.create", "asked by Ada")]


@proves("S8")
async def test_faults_come_back_at_their_inputs_and_nothing_typed_is_lost(page: Served) -> None:
    answer = await send(
        page,
        "/jobs/new",
        **{**CRON, "expression": "61 * * * *", "url": "ftp://x", "retries": "many", "payload": '{"a": '},
    )
    assert answer.status_code == 422
    assert Inputs(answer.text).faults["payload"].strip()
    fixed = Inputs(answer.text).fields | {
        "payload": '{"a": 1}',
        "rest": '{"expect": {"end_within": "soon"}, "colour": 1}',
    }
    answer = await send(page, "/jobs/new", **fixed)
    assert answer.status_code == 422
    shown = Inputs(answer.text)
    assert {name for name, text in shown.faults.items() if text.strip()} >= {"expression", "url", "retries", "rest"}
    assert "/colour" in shown.faults["rest"]
    assert (shown.fields["url"], shown.fields["payload"], shown.fields["name"]) == ("ftp://x", '{"a": 1}', "nightly")
    assert (await page.client.get("/v1/jobs")).json()["items"] == []


@proves("S8")
async def test_a_key_that_a_job_has_already_is_rejected(page: Served) -> None:
    await created(page, key="n1")
    answer = await send(page, "/jobs/new", **CRON, key="n1")
    assert answer.status_code == 422
    assert "has the key 'n1' already" in Inputs(answer.text).faults["key"]


@proves("S8")
async def test_an_edit_keeps_what_it_does_not_show(page: Served) -> None:
    body = {**DOCUMENTS[5], "key": "k"}
    made = (await page.client.post("/v1/jobs", json=body)).json()
    fields = Inputs((await page.client.get(f"/jobs/{made['id']}/edit")).text).fields
    answer = await send(page, f"/jobs/{made['id']}/edit", **fields)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{made['id']}")
    assert (await page.client.get(f"/v1/jobs/{made['id']}")).json()["version"] == 1
    answer = await send(page, f"/jobs/{made['id']}/edit", **{**fields, "concurrency": "30", "reason": "night"})
    after = (await page.client.get(f"/v1/jobs/{made['id']}")).json()
    assert (after["version"], after["concurrency"], after["rate"]["limit"]) == (2, 30, 10)
    changed = {name for name in made if name in after and made[name] != after[name]}
    assert changed == {"version", "concurrency"}


@proves("S8", "S2")
async def test_an_edit_does_not_move_the_fires_of_an_interval(world: World, page: Served) -> None:
    made = await created(page, kind="every", expression="1h")
    await world.advance(1000)
    path = f"/jobs/{made['id']}/edit"
    fields = Inputs((await page.client.get(path)).text).fields
    assert (fields["expression"], fields["rest"]) == ("3600", "")
    assert (await send(page, path, **{**fields, "pool": "default", "concurrency": "2"})).status_code == 303
    after = (await page.client.get(f"/v1/jobs/{made['id']}")).json()
    assert (after["version"], after["next_fire_at"]) == (2, made["next_fire_at"])


@proves("S8")
async def test_an_edit_that_meets_anothers_change_stores_nothing_and_shows_both(page: Served) -> None:
    made = await created(page, concurrency="1")
    path = f"/jobs/{made['id']}/edit"
    fields = Inputs((await page.client.get(path)).text).fields | {"concurrency": "5"}
    await page.client.patch(f"/v1/jobs/{made['id']}", json={"concurrency": 30, "timeout": "1h"})
    answer = await send(page, path, **fields)
    assert answer.status_code == 412
    rows = re.findall(r"<code>(/[^<]*)</code></th>(.*?)</tr>", answer.text, re.DOTALL)
    texts = {pointer: re.findall(r">([^<]*)</td>", cells) for pointer, cells in rows}
    assert texts == {"/concurrency": ["1", "30", "5"], "/timeout": ["the default", "3600", "the default"]}
    assert (await page.client.get(f"/v1/jobs/{made['id']}")).json()["concurrency"] == 30
    again = Inputs(answer.text).fields
    assert (again["version"], again["concurrency"]) == ("2", "5")
    assert (await send(page, path, **again)).status_code == 303
    assert (await page.client.get(f"/v1/jobs/{made['id']}")).json()["concurrency"] == 5


@proves("S8")
async def test_a_duplicate_has_no_key_and_its_own_name(page: Served) -> None:
    made = await created(page, key="n1", payload="[1]")
    fields = Inputs((await page.client.get(f"/jobs/{made['id']}/duplicate")).text).fields
    assert (fields["name"], fields["key"], fields["payload"]) == ("nightly (copy)", "", "[\n  1\n]")
    answer = await send(page, "/jobs/new", **fields)
    copy = (await page.client.get(f"/v1{answer.headers['location']}")).json()
    assert copy["id"] != made["id"]
    assert (copy["schedule"], copy["target"], copy["payload"]) == (made["schedule"], made["target"], made["payload"])


@proves("S9")
async def test_a_previewed_schedule_becomes_a_job(page: Served) -> None:
    query = "kind=cron&expression=30+2+*+*+*&timezone=Europe/Berlin&gap=skip&country=DE"
    html = (await page.client.get(f"/schedules?{query}")).text
    link = re.search(r'href="(/jobs/new\?[^"]+)"', html)
    assert link
    fields = Inputs((await page.client.get(unescape(link[1]))).text).fields
    assert (fields["expression"], fields["timezone"], fields["gap"], fields["country"]) == (
        *("30 2 * * *", "Europe/Berlin", "skip", "DE"),
    )


@proves("S9")
async def test_the_preview_of_the_form_has_words_fires_and_faults(page: Served) -> None:
    good = (await page.client.get("/jobs/preview?kind=cron&expression=30+2+*+*+*&timezone=Europe/Berlin")).text
    assert "At 02:30, Europe/Berlin" in good
    assert good.count('<th scope="row"') == 5
    bad = (await page.client.get("/jobs/preview?kind=cron&expression=0+0+30+2+*")).text
    assert "never" in bad
    assert "<table" not in bad


@proves("O5")
async def test_hostile_fields_are_shown_as_text(world: World, page: Served) -> None:
    made = await world.submit(job(HOSTILE, schedule=every(600, world.now), labels={HOSTILE: HOSTILE}))
    for answer in (
        await page.client.get(f"/jobs/{made.id}/edit"),
        await page.client.get(
            "/jobs/new", params={"kind": HOSTILE, "expression": HOSTILE, "rest": "</textarea>" + HOSTILE}
        ),
        await send(page, "/jobs/new", name=HOSTILE, kind="at", expression=HOSTILE, payload=json.dumps(HOSTILE)),
    ):
        assert "<script>alert" not in answer.text
        assert not re.search(r"<style|\sstyle=|javascript:|<script(?![^>]*\ssrc=)", answer.text)
        assert "script-src 'self'" in answer.headers["content-security-policy"]


@proves("S8")
async def test_a_payload_that_is_too_large_is_rejected_in_words(page: Served) -> None:
    answer = await send(page, "/jobs/new", **CRON, payload=json.dumps("x" * 1_100_000))
    assert answer.status_code == 422
    assert "1,048,576" in answer.text
    whole = await created(page, payload=json.dumps("é" * 500_000, ensure_ascii=False))
    assert len(whole["payload"]) == 500_000
    answer = await send(page, "/jobs/new", **CRON, payload="x" * 9_000_000)
    assert answer.status_code == 422


@proves("T1")
async def test_a_form_of_another_site_is_refused(page: Served) -> None:
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        answer = await page.client.post("/jobs/new", data=CRON, headers=headers)
        assert answer.status_code == 403, headers
    assert (await page.client.get("/v1/jobs")).json()["items"] == []


@proves("O5")
async def test_a_form_of_an_unknown_or_deleted_job_is_not_found(page: Served) -> None:
    made = await created(page)
    await page.client.delete(f"/v1/jobs/{made['id']}")
    assert (await page.client.get(f"/jobs/{made['id']}/edit")).status_code == 404
    assert (await page.client.get(f"/jobs/{made['id']}/duplicate")).status_code == 200
    for path in ("/jobs/none/edit", "/jobs/019a1de9-4d8d-7d9d-8dd7-1801991e16d7/duplicate"):
        assert (await page.client.get(path)).status_code == 404
