"""Each short form and its long form."""

from copy import deepcopy
from typing import Any

import pytest

from ondot.document.json_text import escaped, snake_case
from ondot.document.shorthand import SHORT, to_long_form
from ondot.model.errors import Fault, InvalidBody

Body = dict[str, Any]


def lengthen(body: dict[str, object]) -> dict[str, object]:
    """The long form, or all that is wrong raised at once."""
    long = to_long_form(body)
    if long.faults:
        faults = tuple(Fault("".join(f"/{escaped(s)}" for s in path), message) for path, message in long.faults)
        raise InvalidBody(" ".join(fault.message for fault in faults), faults=faults)
    return long.body


AT = "2030-01-31T09:00:00Z"

SHORT_AND_LONG: list[tuple[Body, Body]] = [
    ({"rate": "10/1m"}, {"rate": {"limit": 10, "per": "1m", "burst": 1}}),
    ({"rate": " 10 / 1h30m "}, {"rate": {"limit": 10, "per": "1h30m", "burst": 1}}),
    ({"keyRate": "5/s"}, {"key_rate": {"limit": 5, "per": "1s", "burst": 1}}),
    ({"rate": "5/Minute"}, {"rate": {"limit": 5, "per": "1m", "burst": 1}}),
    ({"unique": "k"}, {"unique": {"key": "k", "within": None}}),
    ({"overlap": "SKIP"}, {"overlap": "skip"}),
    ({"overlap": "Forbid"}, {"overlap": "skip"}),
    ({"overlap": "Replace"}, {"overlap": "cancel"}),
    ({"cron": "@daily"}, {"schedule": {"cron": "@daily"}}),
    ({"cron_expression": "@daily"}, {"schedule": {"cron": "@daily"}}),
    ({"cronExpression": "@daily"}, {"schedule": {"cron": "@daily"}}),
    ({"every": "15m"}, {"schedule": {"every": "15m"}}),
    ({"at": AT}, {"schedule": {"at": AT}}),
    ({"run_at": AT}, {"schedule": {"at": AT}}),
    ({"schedule_at": AT}, {"schedule": {"at": AT}}),
    ({"in": 60}, {"schedule": {"in": 60}}),
    ({"delay": "5m"}, {"schedule": {"in": "5m"}}),
    ({"cron": "@daily", "timezone": "UTC"}, {"schedule": {"cron": "@daily", "timezone": "UTC"}}),
    ({"schedule": {"cron": "@daily"}, "timezone": "UTC"}, {"schedule": {"cron": "@daily", "timezone": "UTC"}}),
    ({"schedule": None, "cron": "@daily"}, {"schedule": {"cron": "@daily"}}),
    ({"schedule": {"cron": None}, "cron": "@daily"}, {"schedule": {"cron": "@daily"}}),
    ({"timezone": None, "url": None}, {}),
    ({"type": "CRON", "schedule": "0 3 * * *"}, {"schedule": {"cron": "0 3 * * *"}}),
    (
        {"type": "CRON", "schedule": "0 3 * * *", "timezone": "Asia/Tokyo"},
        {"schedule": {"cron": "0 3 * * *", "timezone": "Asia/Tokyo"}},
    ),
    ({"type": "ONE_TIME", "schedule": AT}, {"schedule": {"at": AT}}),
    ({"type": "INTERVAL", "schedule": "15m"}, {"schedule": {"every": "15m"}}),
    ({"type": "INTERVAL", "schedule": 900}, {"schedule": {"every": 900}}),
    ({"type": "DELAYED", "schedule": "10m"}, {"schedule": {"in": "10m"}}),
    ({"type": "cron", "schedule": "0 3 * * *"}, {"schedule": {"cron": "0 3 * * *"}}),
    ({"type": "CRON", "cron_expression": "@daily"}, {"schedule": {"cron": "@daily"}}),
    ({"type": "ONE_TIME", "run_at": AT}, {"schedule": {"at": AT}}),
    ({"type": "DELAYED", "delay": 5}, {"schedule": {"in": 5}}),
    ({"type": "ONE_TIME"}, {}),
    ({"type": "CRON", "schedule": {"cron": "@daily"}}, {"schedule": {"cron": "@daily"}}),
    ({"url": "https://a.example"}, {"target": {"http": {"url": "https://a.example"}}}),
    ({"callback_url": "https://a.example"}, {"target": {"http": {"url": "https://a.example"}}}),
    ({"callbackURL": "https://a.example"}, {"target": {"http": {"url": "https://a.example"}}}),
    ({"handler": "https://a.example"}, {"target": {"http": {"url": "https://a.example"}}}),
    ({"handler": "http://a.example"}, {"target": {"http": {"url": "http://a.example"}}}),
    ({"handler": "HTTPS://a.example"}, {"target": {"http": {"url": "HTTPS://a.example"}}}),
    ({"handler": "daily_report"}, {"target": {"function": "daily_report"}}),
    ({"handler": "httpish"}, {"target": {"function": "httpish"}}),
    ({"function": "f"}, {"target": {"function": "f"}}),
    ({"target": {"function": {"name": "f"}}}, {"target": {"function": "f"}}),
    ({"target": {"pool": "gpu", "handler": "f"}}, {"target": {"function": "f"}, "pool": "gpu"}),
    ({"target": {"handler": "https://a.example"}}, {"target": {"http": {"url": "https://a.example"}}}),
    (
        {"url": "https://a.example", "target": {"http": {"method": "GET"}}},
        {"target": {"http": {"url": "https://a.example", "method": "GET"}}},
    ),
    ({"command": ["ls", "-l"]}, {"target": {"shell": {"command": ["ls", "-l"]}}}),
    ({"max_retries": 5}, {"retry": {"max_retries": 5}}),
    ({"max_retries": 5, "retry": {"initial": "1s"}}, {"retry": {"max_retries": 5, "initial": "1s"}}),
    ({"retry_policy": {"max_attempts": 1}}, {"retry": {"max_retries": 0}}),
    (
        {"retry_policy": {"max_attempts": 4, "backoff": "EXPONENTIAL", "initial_delay_ms": 500}},
        {"retry": {"max_retries": 3, "backoff": "exponential", "initial": 0.5}},
    ),
    (
        {"retryPolicy": {"maxAttempts": 2, "backoff": "LINEAR", "maxDelayMs": 60_000}},
        {"retry": {"max_retries": 1, "backoff": "linear", "max": 60.0}},
    ),
    ({"retry_policy": {"backoff": "FIXED"}}, {"retry": {"backoff": "fixed"}}),
    ({"retry_policy": {"backoff": "CONSTANT"}}, {"retry": {"backoff": "fixed"}}),
    ({"retry_policy": {"max_retries": 2, "factor": 3}}, {"retry": {"max_retries": 2, "factor": 3}}),
    ({"timeout_s": 30}, {"timeout": 30}),
    ({"timeout_sec": 30}, {"timeout": 30}),
    ({"timeout_seconds": 30}, {"timeout": 30}),
    ({"timeoutSeconds": 30}, {"timeout": 30}),
    ({"priority": "HIGH"}, {"priority": "high"}),
    ({"priority": "MEDIUM"}, {"priority": "normal"}),
    ({"priority": "medium"}, {"priority": "normal"}),
    ({"priority": "LOW"}, {"priority": "low"}),
    ({"priority": "urgent"}, {"priority": "urgent"}),
    ({"priority": 3}, {"priority": 3}),
    ({"payload": {"cron": "x", "url": "y", "maxRetries": 1}}, {"payload": {"cron": "x", "url": "y", "maxRetries": 1}}),
    ({"labels": {"teamName": "x"}}, {"labels": {"teamName": "x"}}),
]


@pytest.mark.parametrize(("short", "long"), SHORT_AND_LONG, ids=lambda body: str(body)[:60])
def test_a_short_form_becomes_its_long_form(short: Body, long: Body) -> None:
    before = deepcopy(short)
    fields = snake_case(short)
    assert isinstance(fields, dict)
    assert lengthen(fields) == long
    assert short == before, "the body that was sent is not changed"


@pytest.mark.parametrize(("_", "long"), SHORT_AND_LONG, ids=lambda body: str(body)[:60])
def test_a_long_form_is_not_changed(_: Body, long: Body) -> None:
    assert lengthen(long) == long


BOTH: list[tuple[Body, str, str]] = [
    ({"cron": "a", "schedule": {"cron": "a"}}, "cron", "schedule.cron"),
    ({"cron": "a", "cron_expression": "a"}, "cron", "cron_expression"),
    ({"at": AT, "run_at": AT}, "at", "run_at"),
    ({"run_at": AT, "schedule_at": AT}, "run_at", "schedule_at"),
    ({"in": 1, "delay": 1}, "in", "delay"),
    ({"timezone": "UTC", "schedule": {"cron": "a", "timezone": "UTC"}}, "timezone", "schedule.timezone"),
    ({"type": "CRON", "schedule": "a", "cron": "b"}, "schedule", "cron"),
    ({"cron": "a", "schedule": ["b"]}, "cron", "schedule"),
    ({"url": "https://a", "callback_url": "https://a"}, "url", "callback_url"),
    ({"url": "https://a", "handler": "https://a"}, "url", "handler"),
    ({"url": "https://a", "target": {"http": {"url": "https://a"}}}, "url", "target.http.url"),
    ({"function": "f", "handler": "f"}, "function", "handler"),
    ({"function": "f", "target": {"handler": "f"}}, "function", "target.handler"),
    ({"pool": "a", "target": {"pool": "a", "handler": "f"}}, "pool", "target.pool"),
    ({"command": ["a"], "target": {"shell": {"command": ["a"]}}}, "command", "target.shell.command"),
    ({"max_retries": 1, "retry": {"max_retries": 1}}, "max_retries", "retry.max_retries"),
    ({"max_retries": 1, "retry_policy": {"max_attempts": 2}}, "max_retries", "retry_policy.max_attempts"),
    ({"retry": {"backoff": "fixed"}, "retry_policy": {"backoff": "FIXED"}}, "retry.backoff", "retry_policy.backoff"),
    ({"timeout": 1, "timeout_s": 1}, "timeout", "timeout_s"),
    ({"timeout_s": 1, "timeout_sec": 1}, "timeout_s", "timeout_sec"),
]


@pytest.mark.parametrize(("body", "one", "other"), BOTH, ids=lambda value: str(value)[:40])
def test_two_forms_of_one_field_are_rejected_with_both_named(body: Body, one: str, other: str) -> None:
    with pytest.raises(InvalidBody) as rejected:
        lengthen(body)
    (fault,) = rejected.value.faults
    assert f"`{one}`" in fault.message
    assert f"`{other}`" in fault.message
    assert fault.pointer in {"/" + one.replace(".", "/"), "/" + other.replace(".", "/")}


def test_all_faults_of_short_forms_are_reported_at_once() -> None:
    with pytest.raises(InvalidBody) as rejected:
        lengthen({"at": AT, "run_at": AT, "handler": 3, "retry_policy": {"max_attempts": 0}, "type": "HTTP"})
    assert {f.pointer for f in rejected.value.faults} == {"/run_at", "/handler", "/retry_policy/max_attempts", "/type"}


def test_two_spellings_of_one_field_are_rejected_with_both_named() -> None:
    with pytest.raises(InvalidBody, match="`max_retries` and `maxRetries`"):
        snake_case({"max_retries": 1, "maxRetries": 1})


def test_camel_case_is_read_at_every_depth_except_in_the_users_own_data() -> None:
    user = {"maxRetries": {"innerKey": [{"deepKey": 1}]}}
    body = {
        "retryPolicy": {"maxAttempts": 1},
        "payload": user,
        "jobs": [{"startAt": 1}],
        "labels": user,
        "x": {"headers": user},
    }
    assert snake_case(body) == {
        "retry_policy": {"max_attempts": 1},
        "payload": user,
        "jobs": [{"start_at": 1}],
        "labels": user,
        "x": {"headers": user},
    }


def test_no_short_name_is_a_name_of_the_long_form() -> None:
    from ondot.document.body import JobBody

    assert not SHORT.keys() & JobBody.model_fields.keys()
