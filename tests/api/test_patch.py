"""Merge patches (RFC 7396) on jobs: what they change, what they keep, and which are rejected."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.document.body import JobBody
from ondot.document.merge_patch import merge
from ondot.document.parse import job_spec, patched_spec
from ondot.document.render import render_spec
from ondot.document.requests import RunBody
from ondot.model.errors import InvalidBody
from tests.api.conftest import Caller
from tests.document.test_limits import LIMITED
from tests.proves import proves

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
BERLIN = "Europe/Berlin"
TEXT = f"DTSTART;TZID={BERLIN}:20260101T090000\nRRULE:FREQ=DAILY"

CRON: dict[str, Any] = {
    "name": "report",
    "schedule": {
        "cron": "0 9 * * *",
        "timezone": BERLIN,
        "dst": {"gap": "skip", "fold": "last"},
        "jitter": "30s",
        "calendar": {"exclude_holidays": "DE", "business_days": True},
        "misfire": {"policy": "all", "limit": 7},
    },
    "target": {"http": {"url": "https://example.com/a", "method": "PUT", "headers": {"x-a": "1", "x-b": "2"}}},
    "payload": {"region": "eu", "deep": {"a": 1, "b": [1, 2]}},
    "labels": {"team": "bi", "city": "Bonn"},
    "retry": {"max_retries": 7, "backoff": "listed", "delays": [1, 2]},
    "timeout": "10m",
    "priority": "high",
    "pool": "reports",
    "pause_after_failures": 4,
}

# A patch, and the values at these paths of the long form after it; "…" means that there is none.
CHANGES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": "other"}, {"name": "other", "timeout": 600}),
    ({"name": None}, {"name": "example.com/a"}),
    ({"timeout": "1m"}, {"timeout": 60}),
    ({"timeoutSeconds": 60}, {"timeout": 60}),
    ({"timeout": None}, {"timeout": None}),
    ({"timeout_s": None}, {"timeout": None}),
    ({"priority": "LOW"}, {"priority": "low"}),
    ({"priority": None, "pool": None}, {"priority": "normal", "pool": "default"}),
    ({"pause_after_failures": None}, {"pause_after_failures": None}),
    ({"pauseAfterFailures": 9}, {"pause_after_failures": 9}),
    ({"labels": {"team": None, "floor": "3"}}, {"labels": {"city": "Bonn", "floor": "3"}}),
    ({"labels": None}, {"labels": {}}),
    ({"payload": {"region": "us"}}, {"payload": {"region": "us", "deep": {"a": 1, "b": [1, 2]}}}),
    ({"payload": {"deep": {"a": None, "b": [3]}}}, {"payload": {"region": "eu", "deep": {"b": [3]}}}),
    ({"payload": {"camelCase": 1, "region": None, "deep": None}}, {"payload": {"camelCase": 1}}),
    ({"payload": [1]}, {"payload": [1]}),
    ({"payload": None}, {"payload": None}),
    ({"retry": {"max_retries": 1}}, {"retry.max_retries": 1, "retry.backoff": "listed", "retry.delays": [1, 2]}),
    ({"max_retries": 0}, {"retry.max_retries": 0, "retry.delays": [1, 2]}),
    ({"maxRetries": None}, {"retry.max_retries": 3, "retry.delays": [1, 2]}),
    ({"retry": {"backoff": "fixed"}}, {"retry.backoff": "fixed", "retry.delays": [], "retry.max_retries": 7}),
    ({"retry_policy": {"max_attempts": 3}}, {"retry.max_retries": 2}),
    ({"retry": None}, {"retry.max_retries": 3, "retry.backoff": "exponential", "retry.delays": []}),
    ({"url": "https://example.com/b"}, {"target.http.url": "https://example.com/b", "target.http.method": "PUT"}),
    ({"target": {"http": {"method": "GET"}}}, {"target.http.method": "GET", "target.http.headers.x-a": "1"}),
    ({"target": {"http": {"method": None}}}, {"target.http.method": "POST"}),
    ({"target": {"http": {"headers": {"x-a": None, "X-C": "3"}}}}, {"target.http.headers": {"x-b": "2", "X-C": "3"}}),
    ({"target": {"http": {"headers": None}}}, {"target.http.headers": {}}),
    ({"function": "f"}, {"target": {"function": "f"}}),
    ({"handler": "f"}, {"target": {"function": "f"}}),
    ({"target": {"shell": {"command": ["ls"]}}}, {"target": {"shell": {"command": ["ls"]}}}),
    ({"target": {"pool": "gpu", "handler": "f"}}, {"target": {"function": "f"}, "pool": "gpu"}),
    ({"cron": "0 10 * * *"}, {"schedule.cron": "0 10 * * *", "schedule.timezone": BERLIN, "schedule.jitter": 30}),
    ({"cronExpression": "H 10 * * *"}, {"schedule.cron": "H 10 * * *", "schedule.dst.gap": "skip"}),
    ({"timezone": "Asia/Tokyo"}, {"schedule.cron": "0 9 * * *", "schedule.timezone": "Asia/Tokyo"}),
    ({"timezone": None}, {"schedule.timezone": "UTC"}),
    ({"schedule": {"dst": {"gap": None}}}, {"schedule.dst.gap": "shift", "schedule.dst.fold": "last"}),
    ({"schedule": {"dst": None}}, {"schedule.dst.gap": "shift", "schedule.dst.fold": "first"}),
    ({"schedule": {"jitter": None}}, {"schedule.jitter": 0, "schedule.cron": "0 9 * * *"}),
    ({"schedule": {"maxFires": 3}}, {"schedule.max_fires": 3}),
    ({"schedule": {"misfire": {"limit": None}}}, {"schedule.misfire.limit": 100, "schedule.misfire.policy": "all"}),
    ({"schedule": {"calendar": None}}, {"schedule.calendar": None}),
    (
        {"schedule": {"calendar": {"exclude_holidays": None, "business_days": "next"}}},
        {"schedule.calendar.exclude_holidays": None, "schedule.calendar.business_days": "next"},
    ),
    ({"schedule": {"include": [{"cron": "0 18 * * *"}]}}, {"schedule.include.0.timezone": BERLIN}),
    ({"every": "15m"}, {"schedule.every": 900, "schedule.cron": "…", "schedule.timezone": "…", "schedule.dst": "…"}),
    ({"every": "15m", "cron": None}, {"schedule.every": 900, "schedule.jitter": 30}),
    ({"cron": "@every 15m"}, {"schedule.every": 900, "schedule.cron": "…", "schedule.dst": "…"}),
    ({"type": "INTERVAL", "schedule": "15m"}, {"schedule.every": 900, "schedule.cron": "…"}),
    ({"schedule": {"rrule": "FREQ=DAILY"}}, {"schedule.rrule": "FREQ=DAILY", "schedule.timezone": BERLIN}),
    ({"schedule": {"rrule": TEXT}, "timezone": None}, {"schedule.timezone": BERLIN, "schedule.dst.gap": "skip"}),
    (
        {"schedule": {"rrule": TEXT.replace(BERLIN, "Asia/Tokyo")}},
        {"schedule.timezone": "Asia/Tokyo", "schedule.cron": "…", "schedule.anchor_at": "…"},
    ),
    (
        {"at": "2027-07-01T09:00:00", "schedule": {"calendar": None}, "pause_after_failures": None},
        {"schedule.at": "2027-07-01T07:00:00Z", "schedule.cron": "…"},
    ),
    (
        {"delay": "5m", "schedule": {"calendar": None}, "pause_after_failures": None},
        {"schedule.at": "2026-11-15T12:05:00Z", "schedule.dst": "…"},
    ),
]  # fmt: skip

NOTHING: list[dict[str, Any]] = [
    {},
    {"schedule": {}},
    {"name": "report"},
    {"timeout": "600s"},
    {"cron": "0 9 * * *", "timezone": BERLIN},
    {"schedule": {"jitter": "30s", "end_at": None, "max_fires": None, "include": [], "exclude": None}},
    {"payload": {}, "labels": {"team": "bi"}, "key": None},
    {"target": {"http": {"headers": {"x-c": None}}}},
    {"overlap": "allow", "concurrency_key": None, "depends_on": []},
    {"rate": None, "keyRate": None, "orderKey": None, "startDeadline": None, "cancelGrace": 10, "unique": None},
    {"retry": {"retry_on": [], "neverOn": None}, "target": {"http": {"connectTimeout": None}}},
    {"priority": "HIGH", "retryPolicy": {"maxAttempts": 8}},
]

# A patch, the pointer of its fault, and words of it.
REFUSED: list[tuple[object, str, tuple[str, ...]]] = [
    ([], "", ("must be a JSON object", "the fields to change", "got a list of 0")),
    ([{"op": "replace", "path": "/name", "value": "x"}], "", ("must be a JSON object",)),
    (None, "", ("must be a JSON object", "got null")),
    ({"nmae": "x"}, "/nmae", ("no field `nmae`", "did you mean `name`?")),
    ({"nmae": None}, "/nmae", ("no field `nmae`", "did you mean `name`?")),
    ({"schedule": {"crn": None}}, "/schedule/crn", ("did you mean `cron`?",)),
    ({"schedule": {"dst": {"gab": None}}}, "/schedule/dst/gab", ("did you mean `gap`?",)),
    ({"target": {"http": {"hedders": None}}}, "/target/http/hedders", ("did you mean `headers`?",)),
    ({"timeout": "soon"}, "/timeout", ("a duration", 'got the text "soon"')),
    ({"timeoutSeconds": 0}, "/timeoutSeconds", ("more than 0",)),
    ({"maxRetries": "3"}, "/maxRetries", ("a whole number",)),
    ({"maxRetries": 1, "max_retries": 1}, "/max_retries", ("two spellings",)),
    ({"timeout": 1, "timeout_s": 1}, "/timeout_s", ("`timeout` and `timeout_s`",)),
    ({"cron": "99 * * * *"}, "/cron", ("0 to 59",)),
    ({"cronExpression": "99 * * * *"}, "/cronExpression", ("0 to 59",)),
    ({"cron": None}, "/cron", ("exactly one of", "got none")),
    ({"schedule": {"cron": None}}, "/schedule", ("exactly one of", "got none")),
    ({"schedule": None}, "/schedule", ("always has a schedule", "pause")),
    ({"schedule": 5}, "/schedule", ("must be an object",)),
    ({"schedule": []}, "/schedule", ("must be an object",)),
    ({"every": "5m", "at": "2030-01-01T00:00:00Z"}, "/at", ("exactly one of", "got `every` and `at`")),
    ({"every": "5m", "schedule": {"dst": {"gap": "skip"}}}, "/schedule/dst", ("for `cron`",)),
    ({"in": "5m", "schedule": {"calendar": None}}, "/pause_after_failures", ("for recurring jobs",)),
    ({"in": "5m", "schedule": {"include": [{"cron": "@daily"}]}}, "/schedule/include", ("recur",)),
    ({"timezone": "Mars/Base"}, "/timezone", ("no time zone",)),
    ({"schedule": {"include": [{"cron": "99 * * * *"}]}}, "/schedule/include/0/cron", ("0 to 59",)),
    ({"schedule": {"rrule": TEXT}, "timezone": "UTC"}, "/timezone", ("DTSTART is in Europe/Berlin",)),
    ({"target": None}, "/target", ("Say what to call",)),
    ({"url": None}, "/url", ("is missing",)),
    ({"target": {"http": None}}, "/target", ("exactly one of", "got none")),
    ({"function": "f", "command": ["ls"]}, "/command", ("exactly one of",)),
    ({"retry": {"backoff": "listed", "delays": None}}, "/retry/delays", ("Give `delays`",)),
    ({"retry": {"backoff": {}}}, "/retry/backoff", ("must be",)),
    ({"retry": {"backoff": ["fixed"]}}, "/retry/backoff", ("must be",)),
    ({"overlap": "some"}, "/overlap", ('"allow"', 'got the text "some"')),
    ({"rate": {"per": "1m"}}, "/rate/limit", ("is missing",)),
    ({"unique": "k"}, "/unique", ("this one recurs",)),
    ({"payload": {"a": 1}, "payloads": {}}, "/payloads", ("did you mean `payload`?",)),
]


def at(shown: Any, path: str) -> object:
    for name in path.split("."):
        if isinstance(shown, dict) and name not in shown:
            return "…"
        shown = shown[int(name)] if isinstance(shown, list) else shown[name]
    found: object = shown
    return found


@proves("S8")
@pytest.mark.parametrize(("patch", "expected"), CHANGES, ids=lambda value: str(value)[:60])
def test_a_patch_changes_what_it_names_and_nothing_else(patch: dict[str, Any], expected: dict[str, Any]) -> None:
    before = job_spec(CRON, NOW)
    shown = render_spec(patched_spec(before, patch, NOW))
    assert {path: at(shown, path) for path in expected} == expected
    named = {path.partition(".")[0] for path in expected}
    assert {name: value for name, value in shown.items() if name not in named | {"pause_after_failures"}} == {
        name: value for name, value in render_spec(before).items() if name not in named | {"pause_after_failures"}
    }


@proves("S8")
@pytest.mark.parametrize("patch", NOTHING, ids=str)
def test_a_patch_with_the_current_values_changes_nothing(patch: dict[str, Any]) -> None:
    before = job_spec(CRON, NOW)
    assert render_spec(patched_spec(before, patch, NOW)) == render_spec(before)


@proves("S8")
@pytest.mark.parametrize(("patch", "pointer", "words"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_bad_patch_is_rejected_with_a_pointer_into_it(patch: object, pointer: str, words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidBody) as rejected:
        patched_spec(job_spec(CRON, NOW), patch, NOW)
    found = [fault.message for fault in rejected.value.faults if fault.pointer == pointer]
    assert any(all(word in message for word in words) for message in found), rejected.value.faults


# The test cases of RFC 7396, appendix A, as far as both sides are objects, each as a payload.
RFC_7396: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), RFC_7396)
def test_objects_are_merged_as_the_rfc_says(
    target: dict[str, Any], patch: dict[str, Any], result: dict[str, Any]
) -> None:
    assert merge({"payload": target}, {"payload": patch}, RunBody) == {"payload": result}


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("aB", max_size=3) | st.just("@daily"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["cron", "x", "gap"]), inner),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([*JobBody.model_fields, "cron", "every", "in", "url", "type", "timezone", "x"]),
        _JSON | st.dictionaries(st.sampled_from(["cron", "every", "rrule", "include", "http", "dst"]), _JSON),
        max_size=4,
    )
)
def test_every_patch_is_applied_or_rejected(patch: dict[str, object]) -> None:
    before = job_spec(CRON, NOW)
    try:
        after = patched_spec(before, patch, NOW)
    except InvalidBody:
        return
    again = patched_spec(after, patch, NOW)
    assert render_spec(again) == render_spec(after), "a patch twice is a patch once"
    msgspec.json.encode(after)


PULSE = {"name": "pulse", "every": "10s", "function": "f", "key": "pulse", "payload": {"a": 1}}


@proves("S8", "P10")
async def test_a_patch_makes_a_new_version_that_takes_effect_at_once(api: Caller) -> None:
    job = await api.create(PULSE)
    path = f"/v1/jobs/{job['id']}"
    changed = await api.http.patch(path, json={"every": "15s", "payload": {"b": 2}})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"2"'), changed.text
    shown = changed.json()
    assert (shown["version"], shown["key"], shown["payload"]) == (2, "pulse", {"a": 1, "b": 2})
    await api.world.advance(10)
    assert await api.run_all() == []
    await api.world.advance(5)
    assert len(await api.run_all()) == 1


@proves("S8")
@pytest.mark.parametrize("media_type", ["application/json", "application/merge-patch+json"])
async def test_a_patch_that_changes_nothing_makes_no_version(api: Caller, media_type: str) -> None:
    job = await api.create(PULSE)
    path = f"/v1/jobs/{job['id']}"
    await api.world.advance(3)
    same = await api.http.patch(path, content=b'{"every": "10s"}', headers={"content-type": media_type})
    assert (same.status_code, same.headers["etag"]) == (200, '"1"')
    assert same.json()["schedule"] == job["schedule"]
    assert (await api.http.patch(path, json=await api.get(path))).json()["version"] == 1


@proves("S8")
async def test_if_match_guards_a_patch_too(api: Caller) -> None:
    job = await api.create(PULSE)
    path = f"/v1/jobs/{job['id']}"
    assert (await api.http.patch(path, json={"timeout": 5}, headers={"If-Match": '"1"'})).status_code == 200
    for late in ({"timeout": 6}, {"timeout": 5}):
        answer = await api.http.patch(path, json=late, headers={"If-Match": '"1"'})
        assert (answer.status_code, answer.json()["type"]) == (412, "urn:ondot:problem:precondition-failed")
    assert (await api.http.patch(path, json={"timeout": 6}, headers={"If-Match": "*"})).json()["version"] == 3


@proves("S8")
async def test_patches_of_several_editors_at_once_are_all_kept(api: Caller) -> None:
    job = await api.create(PULSE)
    path = f"/v1/jobs/{job['id']}"
    answers = await asyncio.gather(
        *(api.http.patch(path, json={"labels": {f"editor-{n}": "was here"}}) for n in range(4))
    )
    assert {answer.status_code for answer in answers} == {200}
    shown = await api.get(path)
    assert (len(shown["labels"]), shown["version"]) == (4, 5)


@proves("S8")
async def test_a_deleted_job_cannot_be_patched_and_an_unknown_one_is_404(api: Caller) -> None:
    job = await api.create(PULSE)
    path = f"/v1/jobs/{job['id']}"
    await api.http.delete(path)
    answer = await api.http.patch(path, json={"timeout": 5})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:ondot:problem:conflict")
    assert (await api.http.patch(path, json={})).status_code == 409
    unknown = "/v1/jobs/01a1de89-cd41-7462-b41c-105d59568642"
    assert (await api.http.patch(unknown, json={"timeout": 5})).status_code == 404


@proves("S8")
async def test_a_one_time_job_can_be_patched_before_it_runs_and_not_after(api: Caller) -> None:
    job = await api.create({"name": "later", "in": "1h", "function": "f"})
    path = f"/v1/jobs/{job['id']}"
    assert (await api.http.patch(path, json={"in": "5s"})).json()["version"] == 2
    await api.world.advance(5)
    assert len(await api.run_all()) == 1
    assert (await api.http.patch(path, json={"timeout": 5})).status_code == 409


@proves("S12")
async def test_the_key_of_a_job_cannot_be_patched(api: Caller) -> None:
    job = await api.create(PULSE)
    path = f"/v1/jobs/{job['id']}"
    assert (await api.http.patch(path, json={"key": "other"})).status_code == 409
    assert (await api.http.patch(path, json={"key": None})).json()["key"] == "pulse"


@proves("S8")
async def test_a_bad_patch_is_answered_with_a_problem_and_changes_nothing(api: Caller) -> None:
    job = await api.create(PULSE)
    path = f"/v1/jobs/{job['id']}"
    answer = await api.http.patch(path, json={"timeOut": "x", "cron": "99 * * * *"})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert {fault["pointer"] for fault in answer.json()["errors"]} == {"/timeOut", "/cron"}
    answer = await api.http.patch(path, json={"state": "PAUSED"})
    assert (answer.status_code, "/pause" in answer.json()["detail"]) == (422, True)
    assert (await api.get(path))["version"] == 1


@proves("S8", "E12", "E13", "E16")
async def test_limits_go_through_the_api_and_a_default_that_is_written_makes_no_version(api: Caller) -> None:
    job = await api.create({"name": "limited", "function": "f", "key": "limited", **LIMITED})
    path = f"/v1/jobs/{job['id']}"
    read = await api.get(path)
    assert (read["rate"], read["overlap"], read["key_rate"]) == (
        {"limit": 10, "per": 60, "burst": 8},
        "skip",
        {"limit": 5, "per": 1, "burst": 1},
    )
    assert (await api.http.patch(path, json=read)).json()["version"] == 1
    upsert = await api.create({"name": "limited", "function": "f", "key": "limited", **LIMITED, "timeout": None})
    assert upsert["version"] == 1
    changed = await api.http.patch(path, json={"rate": None, "cancelGrace": None})
    assert (changed.json()["version"], changed.json()["rate"], changed.json()["cancel_grace"]) == (2, None, 10)
    assert (await api.http.patch(path, json={"rate": None, "cancel_grace": 10})).json()["version"] == 2
    put = (await api.http.put(path, json=read)).json()
    shown = put.keys() - {"version", "updated_at", "warnings"}
    assert {name: put[name] for name in shown} == {name: read[name] for name in shown}
