"""The fields that limit a job: how they are read and written, and how they change."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from ondot.document.body import JobBody
from ondot.document.fields import ERROR_CODES
from ondot.document.parse import job_spec, patched_spec
from ondot.document.render import render_spec
from ondot.model.errors import InvalidBody
from ondot.model.gates import Limits, Rate
from ondot.model.ids import JobId
from ondot.model.job import Debounce, JobSpec, Throttle, Unique, encode_spec, fill_in_schedule, is_same_spec
from ondot.model.target import HttpTarget
from tests.proves import proves
from tests.test_documents import DOCS

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
ID = JobId(UUID(int=7))


def spec(**fields: Any) -> JobSpec:
    return job_spec({"name": "n", "function": "f", **fields}, NOW)


def stored(**fields: Any) -> JobSpec:
    """As it is after submit: with a schedule, and so with an instant at which it runs."""
    return fill_in_schedule(spec(**fields), ID, NOW)


FIELDS: list[tuple[dict[str, Any], Limits]] = [
    ({"overlap": "skip"}, Limits(overlap="skip")),
    ({"overlap": "QUEUE"}, Limits(overlap="queue")),
    ({"concurrency": 5}, Limits(concurrency=5)),
    ({"rate": "10/1m"}, Limits(rate=Rate(limit=10, per_s=60.0))),
    ({"rate": "5/s"}, Limits(rate=Rate(limit=5, per_s=1.0))),
    ({"rate": {"limit": 10, "per": 60, "burst": 3}}, Limits(rate=Rate(limit=10, per_s=60.0, burst=3))),
    ({"concurrency_key": "k"}, Limits(key="k", key_concurrency=1)),
    ({"concurrencyKey": "k", "keyConcurrency": 4}, Limits(key="k", key_concurrency=4)),
    ({"concurrencyKey": "k", "keyRate": "1/h"}, Limits(key="k", key_rate=Rate(limit=1, per_s=3600.0))),
    ({"orderKey": "account:17"}, Limits(order_key="account:17")),
]


@proves("E12", "E13", "E16")
@pytest.mark.parametrize(("fields", "limits"), FIELDS, ids=str)
def test_the_fields_that_limit_a_job_are_read_and_written_again(fields: dict[str, Any], limits: Limits) -> None:
    job = spec(every="5m", **fields)
    assert job.limits == limits
    again = job_spec(render_spec(job), NOW, current=job)
    assert is_same_spec(again, job)
    assert encode_spec(again) == encode_spec(job)


@proves("E12", "E13", "E16")
def test_a_job_without_limits_stores_none_even_if_the_defaults_are_written() -> None:
    defaults: dict[str, Any] = {
        "overlap": "allow",
        "concurrency": None,
        "rate": None,
        "concurrency_key": None,
        "key_concurrency": None,
        "key_rate": None,
        "order_key": None,
        "start_deadline": None,
        "cancel_grace": "10s",
        "unique": None,
        "debounce": None,
        "throttle": None,
        "retry": {"retry_on": [], "never_on": []},
    }
    assert (
        encode_spec(spec(**defaults)) == encode_spec(spec()) == '{"name":"n","target":{"kind":"function","name":"f"}}'
    )
    shown: Any = render_spec(spec())
    assert {name: shown[name] for name in defaults if name != "retry"} == {
        name: value for name, value in defaults.items() if name != "retry"
    } | {"cancel_grace": 10}


@proves("E16", "E8")
def test_a_start_deadline_and_a_grace_are_durations() -> None:
    job = spec(start_deadline="10m", cancelGrace=0)
    assert (job.start_deadline_s, job.cancel_grace_s) == (600.0, 0.0)
    shown = render_spec(job)
    assert (shown["start_deadline"], shown["cancel_grace"]) == (600, 0)


@proves("E16")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"unique": "k"}, Unique(key="k")),
        ({"unique": {"key": "k", "within": "1h"}}, Unique(key="k", within_s=3600.0)),
        ({"unique": {"key": "k"}, "in": "5m"}, Unique(key="k")),
        ({"debounce": {"key": "k", "wait": "5s"}}, Debounce(key="k", wait_s=5.0)),
        ({"debounce": {"key": "k", "wait": 5, "maxWait": 60}}, Debounce(key="k", wait_s=5.0, max_wait_s=60.0)),
        ({"throttle": {"key": "k", "per": "1h"}}, Throttle(key="k", per_s=3600.0)),
        ({"throttle": {"key": "k", "per": "1h", "limit": 3}, "in": 60}, Throttle(key="k", per_s=3600.0, limit=3)),
    ],
    ids=str,
)
def test_the_fields_for_creation_are_read_and_written_again(fields: dict[str, Any], expected: object) -> None:
    [name] = fields.keys() - {"in"}
    job = stored(**fields)
    assert getattr(job, name) == expected
    assert is_same_spec(job_spec(render_spec(job), NOW, current=job), job), "what was read can be sent back"
    assert is_same_spec(patched_spec(job, render_spec(job), NOW), job)
    assert getattr(patched_spec(job, {"timeout": 5}, NOW), name) == expected
    assert getattr(patched_spec(job, {name: None}, NOW), name) is None
    assert getattr(patched_spec(job, {name: fields[name]}, NOW), name) == expected


@proves("E16")
@pytest.mark.parametrize(
    ("before", "patch", "words"),
    [
        ({}, {"unique": "k"}, "when it is created"),
        ({"unique": "k"}, {"unique": {"within": "1h"}}, "remove it with null"),
        ({}, {"debounce": {"key": "k", "wait": 5}}, "create another job"),
        ({"throttle": {"key": "k", "per": 5}}, {"throttle": {"per": 6}}, "when it is created"),
        ({"unique": "k"}, {"every": "5m"}, "this one recurs"),
    ],
    ids=str,
)
def test_a_change_cannot_set_the_fields_for_creation(before: dict[str, Any], patch: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidBody, match=words) as rejected:
        patched_spec(stored(**before), patch, NOW)
    assert {fault.pointer for fault in rejected.value.faults} <= {"/unique", "/debounce", "/throttle"}


LIMITED: dict[str, Any] = {
    "every": "5m",
    "overlap": "skip",
    "concurrency": 3,
    "rate": {"limit": 10, "per": 60, "burst": 8},
    "concurrency_key": "k",
    "key_concurrency": 2,
    "key_rate": "5/s",
    "order_key": "o",
    "start_deadline": 600,
    "cancel_grace": 30,
    "retry": {"retry_on": [404], "never_on": ["5xx", "ValueError"]},
}

# A patch upon it, and what the long form then has.
PATCHES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"overlap": None}, {"overlap": "allow", "concurrency": 3}),
    ({"concurrency": None}, {"concurrency": None}),
    ({"rate": None}, {"rate": None}),
    ({"rate": "5/s"}, {"rate": {"limit": 5, "per": 1, "burst": 1}}),
    ({"rate": {"limit": 20}}, {"rate": {"limit": 20, "per": 60, "burst": 8}}),
    ({"rate": {"burst": None}}, {"rate": {"limit": 10, "per": 60, "burst": 1}}),
    ({"concurrencyKey": "other"}, {"concurrency_key": "other", "key_concurrency": 2}),
    ({"concurrencyKey": None}, {"concurrency_key": None, "key_concurrency": None, "key_rate": None}),
    ({"keyConcurrency": None}, {"key_concurrency": None, "concurrency_key": "k"}),
    ({"keyConcurrency": None, "keyRate": None}, {"key_concurrency": 1, "key_rate": None}),
    ({"orderKey": None}, {"order_key": None}),
    ({"startDeadline": None}, {"start_deadline": None}),
    ({"cancelGrace": None}, {"cancel_grace": 10}),
]


@proves("S8", "E12", "E13", "E16")
@pytest.mark.parametrize(("patch", "expected"), PATCHES, ids=str)
def test_a_patch_changes_the_limits_it_names_and_null_removes_them(
    patch: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = spec(**LIMITED)
    after: Any = render_spec(patched_spec(before, patch, NOW))
    assert {name: after[name] for name in expected} == expected
    shown: Any = render_spec(before)
    named = expected.keys() | {"key_concurrency", "key_rate"}
    assert {n: v for n, v in after.items() if n not in named} == {n: v for n, v in shown.items() if n not in named}


@proves("S8")
def test_a_patch_that_removes_every_limit_leaves_none_in_the_store() -> None:
    nothing = dict.fromkeys([*LIMITED.keys() - {"every"}], None)
    assert patched_spec(spec(**LIMITED), nothing, NOW).limits is None
    assert is_same_spec(patched_spec(spec(**LIMITED), nothing, NOW), spec(every="5m"))


@proves("E4")
def test_errors_that_are_and_are_not_retried_are_stored_once_as_text() -> None:
    retry = spec(
        retry={"retryOn": [404, "404", "4XX", "exit_code"], "neverOn": ["app.Bad", "Timeout", "f.<locals>.E"]}
    ).retry
    assert retry.retry_on == ("404", "4xx", "exit_code")
    assert retry.never_on == ("app.Bad", "Timeout", "f.<locals>.E")
    patched = patched_spec(stored(retry={"retry_on": [404], "never_on": ["5xx"]}), {"retry": {"never_on": None}}, NOW)
    assert (patched.retry.retry_on, patched.retry.never_on) == (("404",), ())


def test_the_documented_error_codes_are_those_that_a_retry_may_name() -> None:
    [listed] = [line for line in (DOCS / "reference/errors.md").read_text().splitlines() if "Codes: `timeout`" in line]
    codes = set(listed.partition("Codes: ")[2].replace("`", "").rstrip(".").split(", "))
    assert codes == ERROR_CODES, "add them to ERROR_CODES of document/fields.py: a similar one would be rejected"


def test_every_field_of_a_job_is_documented() -> None:
    text = (DOCS / "reference/api.md").read_text()
    assert [name for name in JobBody.model_fields if f"`{name}`" not in text and f'"{name}": ' not in text] == []


@proves("E7")
def test_an_http_call_has_a_timeout_to_connect_and_one_for_the_first_byte() -> None:
    http = {"url": "https://example.com", "connectTimeout": "1.5s", "first_byte_timeout": 30}
    job = job_spec({"name": "n", "target": {"http": http}, "every": "5m"}, NOW)
    assert job.target == HttpTarget(url="https://example.com", connect_timeout_s=1.5, first_byte_timeout_s=30.0)
    shown = render_spec(job)["target"]["http"]
    assert (shown["connect_timeout"], shown["first_byte_timeout"]) == (1.5, 30)
    patched = patched_spec(job, {"target": {"http": {"connect_timeout": None}}}, NOW)
    assert patched.target == HttpTarget(url="https://example.com", first_byte_timeout_s=30.0)
