"""Bodies that must be rejected: each with its code, its status, a pointer to the fault and words that help.

Every body goes the whole way of a request: bytes → JSON → job (or batch, or preview) → problem+json.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.api.problems import problem
from ondot.document.body import JobBody
from ondot.document.json_text import read_json
from ondot.document.parse import job_spec, job_specs
from ondot.document.requests import preview_request
from ondot.document.schedule_body import ScheduleBody
from ondot.document.shorthand import SHORT_NAMES, TARGET_KINDS
from ondot.model.errors import InvalidBody, NotJson, OndotError

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
MAX_BYTES = 16 * 1024 * 1024


class Bad(NamedTuple):
    """A body, where its fault is, and words that the message must have."""

    body: object
    pointer: str
    words: tuple[str, ...]
    code: str = "invalid-body"
    status: int = 422


def bad(body: object, pointer: str, *words: str, code: str = "invalid-body", status: int = 422) -> Bad:
    return Bad(body, pointer, words, code, status)


def job(**fields: Any) -> dict[str, Any]:
    return {"name": "n", "url": "https://example.com", **fields}


def when(pointer: str, *words: str, **fields: Any) -> Bad:
    """A job whose schedule alone is at fault."""
    return bad(job(**fields), pointer, *words, code="invalid-schedule")


def calendar(pointer: str, *words: str, **fields: Any) -> Bad:
    return when(pointer, *words, schedule={"cron": "@daily", "calendar": fields})


def http(**fields: Any) -> dict[str, Any]:
    return {"name": "n", "target": {"http": {"url": "https://example.com", **fields}}}


def retry(**fields: Any) -> dict[str, Any]:
    return job(retry=fields)


def including(rule: object) -> dict[str, Any]:
    """A schedule whose second rule is at fault."""
    return {"cron": "@daily", "include": [{"every": "7h"}, rule]}


BEGINS = "20260101T090000"

NO_OBJECT = [
    bad([], "", "must be a JSON object", "got a list of 0"),
    bad("text", "", "must be a JSON object", 'got the text "text"'),
    bad(3, "", "must be a JSON object", "got the number 3"),
    bad(None, "", "must be a JSON object", "got null"),
    bad(True, "", "must be a JSON object", "got true"),
    bad([job()], "", "must be a JSON object"),
]

NAMES_AND_TYPES = [
    bad({}, "/target", "Say what to call"),
    bad({"name": "n"}, "/target", "Say what to call", "`url`"),
    bad(job(name=3), "/name", "must be text", "for example", "got the number 3"),
    bad(job(name=True), "/name", "must be text", "got true"),
    bad(job(name=["n"]), "/name", "must be text", "got a list of 1"),
    bad(job(name={"n": 1}), "/name", "must be text", "got an object"),
    bad(job(name=""), "/name", "at least 1"),
    bad(job(name="   "), "/name", "not blank"),
    bad(job(name="n" * 201), "/name", "at most 200"),
    bad(job(name="a\nb"), "/name", "control characters"),
    bad(job(name="a\tb"), "/name", "control characters"),
    bad(job(name="a\x7fb"), "/name", "control characters"),
    bad(job(name="a\x1b[31mb"), "/name", "control characters"),
    bad(job(name="a\u2028b"), "/name", "control characters"),
    bad(job(name="a\u202eb"), "/name", "U+202E, right-to-left override, at character 2", r'got the text "a\u202eb"'),
    bad(job(name="a\u2066b"), "/name", "U+2066"),
    bad(job(name="a\u200bb"), "/name", "U+200B, zero width space"),
    bad(job(name="\ufeffb"), "/name", "U+FEFF"),
    bad(job(name="a\xadb"), "/name", "U+00AD"),
    bad(job(name="a\u3164b"), "/name", "U+3164"),
    bad(job(name="a\U000e0041b"), "/name", "U+E0041"),
    bad(job(name="a\x9b31mb"), "/name", "U+009B, a control character"),
    bad(job(key="a\u202eb"), "/key", "U+202E"),
    bad(job(concurrency_key="a\x1bb"), "/concurrency_key", "U+001B"),
    bad(job(order_key="a\nb"), "/order_key", "U+000A"),
    bad(job(unique="a\u202eb"), "/unique", "U+202E"),
    bad(job(throttle={"key": "a\u2069b", "per": "1h"}), "/throttle/key", "U+2069"),
    bad(job(labels={"a\u202eb": "x"}), "/labels/a\u202eb", "U+202E"),
    bad(job(labels={"a": "x\x1b[31m"}), "/labels/a", "U+001B", "control characters"),
    bad(job(labels={"a": "x\ny"}), "/labels/a", "U+000A"),
    bad(job(pool="a\u202eb"), "/pool", "a pool's name"),
    bad({"name": "n", "function": "f\u202eg"}, "/function", "the name under which"),
    bad(job(**{"a\u202eb": 1}), "/a\u202eb", r"no field `a\u202eb`"),
    bad(job(name="a\x00b"), "/name", "NUL"),
    bad(job(payload={"a": ["\x00"]}), "/payload/a/0", "NUL"),
    bad(job(labels={"a\x00": "b"}), "/labels", "NUL"),
    bad(job(key=""), "/key", "at least 1"),
    bad(job(key="k" * 201), "/key", "at most 200"),
    bad(job(key=7), "/key", "must be text"),
    bad(job(pool=""), "/pool", "a pool's name", "for example"),
    bad(job(pool="Default"), "/pool", "lower-case"),
    bad(job(pool="-a"), "/pool", "a letter or digit first"),
    bad(job(pool="p" * 64), "/pool", "at most 63"),
    bad(job(pool="a\n"), "/pool", "a pool's name"),
    bad(job(cron=None), "/cron", "runs at once", "leave it out"),
    bad(job(delay=None), "/delay", "runs at once"),
    bad(job(pool=None), "/pool", "must be text", "got null"),
    bad(job(priority="urgent"), "/priority", '"high"', '"normal"', '"low"', 'got the text "urgent"'),
    bad(job(priority=1), "/priority", '"high"', "got the number 1"),
    bad(job(priority=None), "/priority", '"high"'),
    bad(job(labels=[]), "/labels", "must be an object"),
    bad(job(labels={"a": 1}), "/labels/a", "must be text"),
    bad(job(labels={"a": None}), "/labels/a", "must be text"),
    bad(job(labels={"": "x"}), "/labels/", "at least 1"),
    bad(job(labels={"k" * 64: "x"}), f"/labels/{'k' * 64}", "at most 63"),
    bad(job(labels={"a/b~c": "x" * 256}), "/labels/a~1b~0c", "at most 255"),
    bad(job(labels={str(i): "x" for i in range(65)}), "/labels", "at most 64"),
    bad(job(timeout=0), "/timeout", "more than 0", '"5m"'),
    bad(job(timeout=-1), "/timeout", "zero or more"),
    bad(job(timeout="8d"), "/timeout", "at most 604800"),
    bad(job(timeout="5"), "/timeout", "a number of seconds", '"15m"', 'got the text "5"'),
    bad(job(timeout="5 minutes"), "/timeout", "a number of seconds"),
    bad(job(timeout="P1M"), "/timeout", "use days"),
    bad(job(timeout=True), "/timeout", "a duration", "got true"),
    bad(job(timeout=[5]), "/timeout", "a duration"),
    bad(job(timeout_s="soon"), "/timeout_s", "`timeout_s` must be", "a duration"),
    bad(job(timeoutSeconds=10**9), "/timeoutSeconds", "`timeoutSeconds`", "at most"),
]

UNKNOWN = [
    bad(job(nmae="x"), "/nmae", "no field `nmae`", "did you mean `name`?"),
    bad(job(prioritty="high"), "/prioritty", "did you mean `priority`?"),
    bad(job(timeZone="UTC"), "/timeZone", "did you mean `timezone`?"),
    bad(job(crom="* * * * *"), "/crom", "did you mean `cron`?"),
    bad(job(xyzzy=1), "/xyzzy", "no field `xyzzy`", "known: name, schedule"),
    bad(job(jitter="3s"), "/jitter", "belongs in `schedule`"),
    bad(job(backoff="fixed"), "/backoff", "belongs in `retry`"),
    bad(job(headers={}), "/headers", "belongs in `target.http`"),
    bad(job(**{"a/b": 1}), "/a~1b", "no field `a/b`"),
    bad(job(**{"": 1}), "/", "no field"),
    bad(http(metod="GET"), "/target/http/metod", "did you mean `method`?"),
    bad(retry(max_retry=1), "/retry/max_retry", "did you mean `max_retries`?"),
    bad(job(retry_policy={"max_atempts": 2}), "/retry_policy/max_atempts", "no field `max_atempts`"),
    bad(job(target={"htpp": {}}), "/target/htpp", "did you mean `http`?"),
    when("/schedule/crn", "did you mean `cron`?", schedule={"crn": "@daily"}),
    when("/schedule/dst/gab", "did you mean `gap`?", schedule={"cron": "@daily", "dst": {"gab": "skip"}}),
    when("/schedule/misfire/polcy", "did you mean `policy`?", schedule={"cron": "@daily", "misfire": {"polcy": 1}}),
]

BOTH = [
    bad(job(callback_url="https://example.com"), "/callback_url", "`url` and `callback_url`", "give one"),
    bad(job(function="f"), "/function", "exactly one of http, function", "got `url` and `function`"),
    bad(job(command=["ls"]), "/command", "exactly one of", "got `url` and `command`"),
    bad(job(target={"shell": {"command": ["a"]}}), "/target/shell", "exactly one of", "`target.shell`"),
    bad(job(cron="@daily", schedule={"cron": "@daily"}), "/cron", "`schedule.cron` and `cron`"),
    bad(job(max_retries=1, retry={"max_retries": 1}), "/max_retries", "`retry.max_retries` and `max_retries`"),
    bad(job(maxRetries=1, max_retries=1), "/max_retries", "`maxRetries` and `max_retries`", "two spellings"),
    bad(job(timeout=1, timeout_s=1), "/timeout_s", "`timeout` and `timeout_s`"),
    bad(job(type="CRON", cron="@daily", at="2030-01-01T00:00:00Z"), "/type", "`type` is CRON", "`at`"),
    bad(job(type="INTERVAL", schedule={"cron": "@daily"}), "/type", "is INTERVAL", "`schedule.cron`"),
    when("/every", "exactly one of cron, every", "got `cron` and `every`", cron="@daily", every="5m"),
    when("/in", "exactly one of", "got `at` and `in`", at="2030-01-01T00:00:00Z", **{"in": 5}),
    when("/schedule/every", "exactly one of", schedule={"cron": "@daily", "every": 5}),
    bad({"name": "n", "target": {"http": {"url": "https://a.b"}, "function": "f"}}, "/target/function", "exactly one"),
    bad({"name": "n", "target": {}}, "/target", "exactly one of", "got none"),
    bad({"name": "n", "target": {"http": None}}, "/target", "exactly one of", "got none"),
    when("/schedule", "exactly one of", "got none", schedule={}),
    when("/timezone", "exactly one of", "got none", timezone="UTC"),
]

SCHEDULES = [
    bad(job(schedule="0 3 * * *"), "/schedule", "must be an object", '"type": "CRON"'),
    bad(job(schedule=900), "/schedule", "must be an object"),
    when("/schedule", "must be an object", "got a list of 0", schedule=[]),
    when("/schedule", "must be an object", "got true", schedule=True),
    bad(job(type="CRON"), "/type", "needs a schedule", '"0 3 * * *"'),
    bad(job(type="HOURLY", schedule="x"), "/type", "one of CRON, ONE_TIME, INTERVAL, DELAYED"),
    bad(job(type="HTTP"), "/type", "one of CRON", "give the target as"),
    bad(job(type=3), "/type", "one of CRON"),
    when("/cron", "`cron`", "minute", "0 to 59", cron="99 * * * *"),
    when("/cron", "`cron`", cron="* * *"),
    when("/cron", "`cron`", cron=""),
    when("/cron", "`cron`", cron="nonsense"),
    when("/cron", "`cron`", cron="0 0 30 2 *"),
    when("/cron", "`cron`", cron="@reboot"),
    when("/cron", "`cron`", cron="* * * * *; DROP TABLE job"),
    when("/cron", "`cron`", cron="*" * 10_000),
    when("/cron", "must be text", "got the number 5", cron=5),
    when("/cron", "must be text", "got a list of 5", cron=["*"] * 5),
    when("/cronExpression", "`cronExpression`", cronExpression="61 * * * *"),
    when("/schedule", "`schedule`", type="CRON", schedule="61 * * * *"),
    when("/schedule/cron", "`schedule.cron`", schedule={"cron": "61 * * * *"}),
    when("/timezone", "no time zone", "Europe/Berlin", cron="@daily", timezone="Europe/Berln"),
    when("/timezone", "no time zone", cron="@daily", timezone="../../etc/passwd"),
    when("/timezone", "no time zone", every="5m", timezone="Mars/Olympus"),
    when("/timezone", "must be text", cron="@daily", timezone=2),
    when("/schedule/dst/gap", '"shift" or "skip"', schedule={"cron": "@daily", "dst": {"gap": "jump"}}),
    when("/schedule/dst/fold", '"first"', schedule={"cron": "@daily", "dst": {"fold": 1}}),
    when("/schedule/dst", "must be an object", schedule={"cron": "@daily", "dst": "shift"}),
    when("/schedule/dst", "for `cron`", schedule={"every": "5m", "dst": {"gap": "skip"}}),
    when("/schedule/anchor_at", "for `every`", schedule={"cron": "@daily", "anchor_at": "2026-01-01T00:00:00Z"}),
    when("/every", "shortest interval is 1 second", every=0),
    when("/every", "shortest interval is 1 second", every="500ms"),
    when("/every", "longest interval", every="5000d"),
    when("/every", "zero or more", every=-5),
    when("/every", "a duration", 'got the text "often"', every="often"),
    when("/every", "a duration", "got true", every=True),
    when("/schedule", "a duration", type="INTERVAL", schedule="0 3 * * *"),
    when("/in", "zero or more", **{"in": -1}),
    when("/in", "at most", **{"in": 1e12}),
    when("/delay", "`delay` must be a duration", delay="-5m"),
    when("/delay", "a duration", delay={}),
    when("/timezone", "There is no time zone ''", cron="@daily", timezone=""),
    when("/timezone", "There is no time zone ''", every="5m", timezone=""),
    when(
        "/schedule/include/0/timezone",
        "no time zone",
        schedule={"cron": "@daily", "include": [{"cron": "@daily", "timezone": ""}]},
    ),
    when("/cron", "@every 90s", cron="@often"),
    when("/at", "in the past", "leave it out to run now", at="2020-01-01T00:00:00Z"),
    when("/runAt", "`runAt`", "in the past", runAt="2026-11-15T11:00:00Z"),
    when("/at", "RFC 3339", '"2030-01-31T09:00:00Z"', 'got the text "tomorrow"', at="tomorrow"),
    when("/at", "RFC 3339", "got the number 1900000000", at=1_900_000_000),
    when("/at", "RFC 3339", at="2030-01-31"),
    when("/at", "RFC 3339", at="31.01.2030 09:00"),
    when("/at", "that exist", at="2030-02-30T09:00:00Z"),
    when("/at", "that exist", at="2030-01-31T25:00:00Z"),
    when("/at", "1970 to 2200", at="9999-12-31T23:59:59Z"),
    when("/at", "1970 to 2200", at="0001-01-01T00:00:00+14:00"),
    when("/at", "offset from UTC", "`timezone`", at="2030-01-31T09:00:00"),
    when("/timezone", "no time zone", at="2030-01-31T09:00:00", timezone="Nowhere"),
    when("/schedule/start_at", "offset from UTC", schedule={"cron": "@daily", "start_at": "2030-01-31T09:00:00"}),
    when("/schedule/end_at", "RFC 3339", schedule={"cron": "@daily", "end_at": "never"}),
    when("/schedule/end_at", "no fire from now on", schedule={"cron": "@daily", "end_at": "2020-01-01T00:00:00Z"}),
    when(
        "/schedule/end_at",
        "ends before it starts",
        schedule={"cron": "@daily", "start_at": "2031-01-01T00:00:00Z", "end_at": "2030-01-01T00:00:00Z"},
    ),
    when("/schedule/max_fires", "at least 1", schedule={"cron": "@daily", "max_fires": 0}),
    when("/schedule/max_fires", "a whole number", schedule={"cron": "@daily", "max_fires": "3"}),
    when("/schedule/max_fires", "a whole number", "got true", schedule={"cron": "@daily", "max_fires": True}),
    when("/schedule/max_fires", "a whole number", schedule={"cron": "@daily", "max_fires": 1.5}),
    when("/schedule/max_fires", "at most 2147483647", schedule={"cron": "@daily", "max_fires": 2**31}),
    when("/schedule/jitter", "between 0 and one day", schedule={"cron": "@daily", "jitter": "25h"}),
    when("/schedule/jitter", "a duration", schedule={"cron": "@daily", "jitter": None}),
    when("/schedule/misfire/policy", '"skip"', '"once"', schedule={"cron": "@daily", "misfire": {"policy": "maybe"}}),
    when("/schedule/misfire/grace", "one day", schedule={"cron": "@daily", "misfire": {"grace": "25h"}}),
    when("/schedule/misfire/window", "one year", schedule={"cron": "@daily", "misfire": {"window": "400d"}}),
    when("/schedule/misfire/limit", "between 1 and", schedule={"cron": "@daily", "misfire": {"limit": 0}}),
    when("/schedule/misfire/limit", "a whole number", schedule={"cron": "@daily", "misfire": {"limit": 0.5}}),
    when("/schedule/misfire", "must be an object", schedule={"cron": "@daily", "misfire": "skip"}),
    calendar(
        "/schedule/calendar/exclude_holidays", "`schedule.calendar.exclude_holidays`", exclude_holidays="Atlantis"
    ),
    calendar("/schedule/calendar/exclude_holidays", "must be text", exclude_holidays=49),
    calendar("/schedule/calendar/exclude_dates/1", "is not a date", exclude_dates=["2030-12-24", "2030-02-30"]),
    calendar("/schedule/calendar/exclude_dates", "must be a list", exclude_dates="2030-12-24"),
    calendar("/schedule/calendar/business_days", "true or false", business_days="yes"),
    calendar("/schedule/calendar/blackouts/0/to_at", "is missing", blackouts=[{"from_at": "2030-12-24T00:00:00Z"}]),
    calendar(
        "/schedule/calendar/blackouts/0/to_at",
        "ends before it starts",
        blackouts=[{"from_at": "2030-12-24T00:00:00Z", "to_at": "2030-12-23T00:00:00Z"}],
    ),
    calendar(
        "/schedule/calendar",
        "excludes each fire",
        blackouts=[{"from_at": "2020-01-01T00:00:00Z", "to_at": "2190-01-01T00:00:00Z"}],
    ),
    when("/schedule/calendar/weekends", "no field", schedule={"cron": "@daily", "calendar": {"weekends": False}}),
]

RULES = [
    when("/schedule/rrule", "must be text", "got the number 5", schedule={"rrule": 5}),
    when("/schedule/rrule", "is not valid", "FREQ", schedule={"rrule": "nonsense"}),
    when("/schedule/rrule", "is not valid", schedule={"rrule": ""}),
    when("/schedule/rrule", "is not valid", schedule={"rrule": "FREQ=DAILY;BYHOUR=25"}),
    when("/schedule/rrule", "longer than", schedule={"rrule": "FREQ=DAILY;" * 1000}),
    when("/schedule/rrule", "never fires", schedule={"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}),
    when("/schedule/rrule", "no time zone", schedule={"rrule": f"DTSTART;TZID=Mars/Base:{BEGINS}\nRRULE:FREQ=DAILY"}),
    when("/schedule/timezone", "no time zone", schedule={"rrule": "FREQ=DAILY", "timezone": "Mars/Base"}),
    when(
        "/schedule/timezone",
        "DTSTART is in Europe/Berlin",
        "leave one of the two out",
        schedule={"rrule": f"DTSTART;TZID=Europe/Berlin:{BEGINS}\nRRULE:FREQ=DAILY", "timezone": "UTC"},
    ),
    when(
        "/schedule/timezone",
        "DTSTART is in UTC",
        schedule={"rrule": f"DTSTART:{BEGINS}Z\nRRULE:FREQ=DAILY", "timezone": "Asia/Tokyo"},
    ),
    when(
        "/schedule/anchor_at",
        "DTSTART is its anchor",
        schedule={"rrule": f"DTSTART:{BEGINS}Z\nRRULE:FREQ=DAILY", "anchor_at": "2026-01-01T00:00:00Z"},
    ),
    when("/schedule/rrule", "exactly one of", "rrule", schedule={"cron": "@daily", "rrule": "FREQ=DAILY"}),
    when("/cron", "after @every it needs a duration", cron="@every often"),
    when("/cron", "after @every it needs", cron="@every"),
    when("/cron", "`cron`", "shortest interval is 1 second", cron="@every 10ms"),
    when("/cronExpression", "longest interval", cronExpression="@every 5000d"),
    when("/schedule/dst", "for `cron`", "leave it out", schedule={"cron": "@every 5m", "dst": {"gap": "skip"}}),
    when("/schedule/dst", "for `cron`, `at` and `rrule`", schedule={"in": "5m", "dst": {"gap": "skip"}}),
    when("/cron", "cannot be parsed", "within 0 and 59", cron="H(5-99) * * * *"),
    when("/schedule/include", "must be a list", schedule={"cron": "@daily", "include": {"cron": "@hourly"}}),
    when("/schedule/include", "at most 100", schedule={"cron": "@daily", "include": [{"cron": "@hourly"}] * 101}),
    when("/schedule/exclude", "at most 100", schedule={"cron": "@daily", "exclude": [{"cron": "@hourly"}] * 101}),
    when("/schedule/include/0", "must be an object", schedule={"cron": "@daily", "include": ["@hourly"]}),
    when("/schedule/include/1", "exactly one of cron, every, at, rrule, got none", schedule=including({})),
    when("/schedule/include/1", "got `cron` and `every`", schedule=including({"cron": "@hourly", "every": "5m"})),
    when("/schedule/include/1/crn", "did you mean `cron`?", schedule=including({"crn": "@hourly"})),
    when("/schedule/include/1/in", "jobs that run once", "give `at`", schedule=including({"in": "5m"})),
    when("/schedule/include/1/jitter", "no field `jitter`", schedule=including({"cron": "@daily", "jitter": 5})),
    when(
        "/schedule/include/1/cron", "`schedule.include.1.cron`", "0 to 59", schedule=including({"cron": "99 * * * *"})
    ),
    when("/schedule/include/1/cron", "shortest interval", schedule=including({"cron": "@every 0s"})),
    when("/schedule/include/1/cron", "after @every it needs", schedule=including({"cron": "@every x"})),
    when("/schedule/include/1/every", "shortest interval", schedule=including({"every": 0})),
    when("/schedule/include/1/every", "a duration", schedule=including({"every": "x"})),
    when("/schedule/include/1/at", "RFC 3339", schedule=including({"at": "tomorrow"})),
    when("/schedule/include/1/at", "offset from UTC", schedule=including({"at": "2030-01-31T09:00:00"})),
    when("/schedule/include/1/rrule", "is not valid", schedule=including({"rrule": "FREQ=NEVER"})),
    when(
        "/schedule/include/1/rrule",
        "no time zone",
        schedule=including({"rrule": f"DTSTART;TZID=X/Y:{BEGINS}\nRRULE:FREQ=DAILY"}),
    ),
    when("/schedule/include/1/timezone", "no time zone", schedule=including({"cron": "@daily", "timezone": "X/Y"})),
    when("/schedule/include/1/timezone", "no time zone", schedule=including({"every": "5m", "timezone": "X/Y"})),
    when("/schedule/include/1/dst", "for `cron`", schedule=including({"every": "5m", "dst": {"gap": "skip"}})),
    when("/schedule/include/1/dst/gap", '"shift"', schedule=including({"cron": "@daily", "dst": {"gap": "x"}})),
    when(
        "/schedule/include/1/anchorAt",
        "for `every`",
        schedule=including({"cron": "@daily", "anchorAt": "2026-01-01T00:00:00Z"}),
    ),
    when("/schedule/exclude/0/cron", "0 to 59", schedule={"cron": "@daily", "exclude": [{"cron": "99 * * * *"}]}),
    when("/schedule/exclude", schedule={"cron": "@daily", "exclude": [{"cron": "@hourly"}]}),
    when("/timezone", "no time zone", cron="@daily", timezone="X/Y", schedule={"include": [{"rrule": "FREQ=DAILY"}]}),
    when("/schedule/include", "for recurring schedules", schedule={"in": "5m", "include": [{"cron": "@daily"}]}),
    when("/schedule/exclude", "recur", schedule={"at": "2030-01-01T00:00:00Z", "exclude": [{"cron": "@daily"}]}),
    calendar("/schedule/calendar/business_days", '"next" or "previous"', 'got the text "later"', business_days="later"),
    calendar("/schedule/calendar/business_days", "true or false", "got the number 1", business_days=1),
    calendar("/schedule/calendar/business_days", "true or false", "got null", business_days=None),
    bad(job(cron="@daily", pause_after_failures=0), "/pause_after_failures", "at least 1", "got the number 0"),
    bad(job(cron="@daily", pauseAfterFailures="3"), "/pauseAfterFailures", "a whole number"),
    bad(job(cron="@daily", pause_after_failures=True), "/pause_after_failures", "a whole number"),
    bad(job(cron="@daily", pause_after_failures=2**31), "/pause_after_failures", "at most 2147483647"),
    bad(job(pause_after_failures=3), "/pause_after_failures", "for recurring jobs", "leave it out", "`retry`"),
    bad(job(pauseAfterFailures=3, **{"in": "5m"}), "/pauseAfterFailures", "`pauseAfterFailures` is for recurring jobs"),
    bad(job(cron="@daily", pause_after_failure=3), "/pause_after_failure", "did you mean `pause_after_failures`?"),
]

TARGETS = [
    bad(job(url=""), "/url", "http:// or https://", "for example"),
    bad(job(url="example.com"), "/url", "http:// or https://", 'got the text "example.com"'),
    bad(job(url="ftp://example.com"), "/url", "http:// or https://"),
    bad(job(url="file:///etc/passwd"), "/url", "http:// or https://"),
    bad(job(url="javascript:alert(1)"), "/url", "http:// or https://"),
    bad(job(url="https://"), "/url", "a host"),
    bad(job(url="https://:443/"), "/url", "a host"),
    bad(job(url="https://[::1"), "/url", "a host"),
    bad(job(url="https://example.com:99999/"), "/url", "a host"),
    bad(job(url="https://user:hunter2@example.com"), "/url", "user name or password", "header"),
    bad(job(url="https://example.com/a b"), "/url", "without blanks"),
    bad(job(url="https://example.com/\r\nx: y"), "/url", "control characters"),
    bad(job(url="https://example.com\\@evil.example"), "/url", "backslashes"),
    bad(job(url="https://example.com/" + "a" * 2048), "/url", "2,048"),
    bad(job(url=5), "/url", "must be text"),
    bad(job(url=["https://example.com"]), "/url", "must be text"),
    bad({"name": "n", "callbackUrl": "nowhere"}, "/callbackUrl", "`callbackUrl` must be an address"),
    bad({"name": "n", "handler": "https://"}, "/handler", "`handler` must be an address"),
    bad({"name": "n", "handler": 5}, "/handler", "must be text", "a function's name"),
    bad({"name": "n", "handler": ""}, "/handler", "registered the function"),
    bad({"name": "n", "function": "a b"}, "/function", "without blanks"),
    bad({"name": "n", "function": 3}, "/function", "must be text"),
    bad({"name": "n", "target": {"pool": "X", "handler": "f"}}, "/target/pool", "a pool's name"),
    bad({"name": "n", "target": "https://example.com"}, "/target", "must be an object", '{"http"'),
    bad({"name": "n", "target": {"http": "https://example.com"}}, "/target/http", "must be an object"),
    bad({"name": "n", "target": {"http": {}}}, "/target/http/url", "is missing", "for example"),
    bad(http(method="BREW"), "/target/http/method", "one of GET, POST", 'got the text "BREW"'),
    bad(http(method=1), "/target/http/method", "must be text"),
    bad(http(headers=[]), "/target/http/headers", "must be an object"),
    bad(http(headers={"a b": "c"}), "/target/http/headers/a b", "not a header name"),
    bad(http(headers={"": "c"}), "/target/http/headers/", "not a header name"),
    bad(http(headers={"ü": "c"}), "/target/http/headers/ü", "not a header name"),
    bad(http(headers={"x": 1}), "/target/http/headers/x", "must be text"),
    bad(http(headers={"x": "a\r\nHost: b"}), "/target/http/headers/x", "line breaks"),
    bad(http(headers={"X-A": "1", "x-a": "2"}), "/target/http/headers", "upper and lower case"),
    bad(http(headers={f"x-{i}": "1" for i in range(65)}), "/target/http/headers", "at most 64"),
    *(
        bad(http(headers={name: "x"}), f"/target/http/headers/{name}", "ondot sets the header", "leave it out")
        for name in ("webhook-id", "Webhook-Signature", "ondot-job-id", "traceparent", "webhook_id", "Webhook.Id",
                     "ondot_fencing_token", "ONDOT!ATTEMPT", "TraceParent")
    ),
    *(
        bad(http(headers={name: "x"}), f"/target/http/headers/{name}", "belongs to the connection", "leave it out")
        for name in ("Host", "Content-Length", "content_length", "transfer-encoding", "Transfer_Encoding", "Connection",
                     "TE", "upgrade", "Expect", "keep-alive", "Trailer", "proxy-authorization", "Proxy_Connection")
    ),
    bad({"name": "n", "command": "echo hello"}, "/command", "a list of words", '["echo", "hello"]'),
    bad({"name": "n", "command": []}, "/command", "at least 1"),
    bad({"name": "n", "command": [""]}, "/command", "the first is a program"),
    bad({"name": "n", "command": ["a", 1]}, "/command/1", "must be text"),
    bad({"name": "n", "command": ["a"] * 257}, "/command", "at most 256"),
    bad({"name": "n", "command": {"a": 1}}, "/command", "must be a list"),
    bad({"name": "n", "target": {"shell": {"command": ["a\x00"]}}}, "/target/shell/command/0", "NUL"),
]  # fmt: skip

RETRIES = [
    bad(job(retry=None), "/retry", "must be an object", "got null"),
    bad(job(retry=3), "/retry", "must be an object", '{"max_retries": 3}'),
    bad(retry(max_retries=-1), "/retry/max_retries", "at least 0"),
    bad(retry(max_retries=101), "/retry/max_retries", "at most 100"),
    bad(retry(max_retries="3"), "/retry/max_retries", "a whole number", 'got the text "3"'),
    bad(retry(max_retries=True), "/retry/max_retries", "a whole number", "got true"),
    bad(retry(max_retries=2.5), "/retry/max_retries", "a whole number"),
    bad(retry(max_retries=10**60), "/retry/max_retries", "at most 100", "many digits"),
    bad(job(max_retries=None), "/max_retries", "a whole number", "got null"),
    bad(job(maxRetries="3"), "/maxRetries", "`maxRetries` must be a whole number"),
    bad(retry(backoff="random"), "/retry/backoff", '"exponential"', 'got the text "random"'),
    bad(retry(backoff="listed"), "/retry/delays", "Give `delays`"),
    bad(retry(delays=["1s"]), "/retry/delays", "leave them out otherwise"),
    bad(retry(backoff="listed", delays=["1s", "x"]), "/retry/delays/1", "a duration"),
    bad(retry(backoff="listed", delays=[1] * 101), "/retry/delays", "at most 100"),
    bad(retry(initial="-1s"), "/retry/initial", "a duration"),
    bad(retry(initial=1e300), "/retry/initial", "at most"),
    bad(retry(max="400d"), "/retry/max", "at most"),
    bad(retry(factor=0), "/retry/factor", "at least 1"),
    bad(retry(factor=1e6), "/retry/factor", "at most 100"),
    bad(retry(factor="2"), "/retry/factor", "a number"),
    bad(retry(jitter="yes"), "/retry/jitter", "true or false"),
    bad(retry(jitter=1), "/retry/jitter", "true or false"),
    bad(retry(max_worker_losses=101), "/retry/max_worker_losses", "at most 100"),
    bad(job(retry_policy=[]), "/retry_policy", "must be an object"),
    bad(job(retry_policy={"max_attempts": 0}), "/retry_policy/max_attempts", "1 to 101", "counts the first"),
    bad(job(retry_policy={"max_attempts": "4"}), "/retry_policy/max_attempts", "a whole number"),
    bad(job(retryPolicy={"maxAttempts": True}), "/retryPolicy/maxAttempts", "a whole number"),
    bad(job(retry_policy={"initial_delay_ms": "1s"}), "/retry_policy/initial_delay_ms", "milliseconds"),
    bad(job(retry_policy={"initial_delay_ms": -1}), "/retry_policy/initial_delay_ms", "milliseconds"),
    bad(job(retry_policy={"initial_delay_ms": 10**300}), "/retry_policy/initial_delay_ms", "milliseconds"),
    bad(job(retry_policy={"backoff": "RANDOM"}), "/retry_policy/backoff", '"exponential"', 'got the text "RANDOM"'),
]

ERRORS = [
    bad(retry(retry_on="5xx"), "/retry/retry_on", "a list", 'got the text "5xx"'),
    bad(retry(retry_on=[True]), "/retry/retry_on/0", "an HTTP status", "got true"),
    bad(retry(retry_on=[503, 200]), "/retry/retry_on/1", "300 to 599", "2xx is a success"),
    bad(retry(retry_on=["2xx"]), "/retry/retry_on/0", "an HTTP status"),
    bad(retry(never_on=["700"]), "/retry/never_on/0", "300 to 599"),
    bad(retry(never_on=["not a name"]), "/retry/never_on/0", "the type of an exception"),
    bad(retry(never_on=[""]), "/retry/never_on/0", "the type of an exception"),
    bad(retry(neverOn=["timeot"]), "/retry/neverOn/0", 'did you mean "timeout"?'),
    bad(retry(never_on=[f"E{i}" for i in range(51)]), "/retry/never_on", "at most 50"),
    bad(
        retry(retry_on=[404, "x"], never_on=["404"]),
        "/retry/never_on",
        '"404" is in both `retry_on` and',
        "leave it in one",
    ),
    bad(job(retry_on=[404]), "/retry_on", "belongs in `retry`"),
    bad(http(connect_timeout=0), "/target/http/connect_timeout", "more than 0"),
    bad(http(connectTimeout="soon"), "/target/http/connectTimeout", "a duration"),
    bad(http(first_byte_timeout="8d"), "/target/http/first_byte_timeout", "at most"),
]

RATE = {"limit": 10, "per": "1m"}
LIMITS = [
    bad(job(overlap="sometimes"), "/overlap", '"allow"', '"cancel"', 'got the text "sometimes"'),
    bad(job(overlap=None), "/overlap", '"allow"', "got null"),
    bad(job(concurrency=0), "/concurrency", "at least 1"),
    bad(job(concurrency=10_001), "/concurrency", "at most 10000"),
    bad(job(concurrency="5"), "/concurrency", "a whole number"),
    bad(job(concurrency=True), "/concurrency", "a whole number"),
    bad(job(rate=10), "/rate", "a limit and a time", "10/1m", "got the number 10"),
    bad(job(rate="10"), "/rate", "a limit and a time", 'got the text "10"'),
    bad(job(rate="10/1q"), "/rate", "a limit and a time"),
    bad(job(rate="-1/s"), "/rate", "a limit and a time"),
    bad(job(rate="0/s"), "/rate", "at least 1"),
    bad(job(rate="10/100ms"), "/rate", "1 second to 30 days"),
    bad(job(keyRate="10/31d", concurrency_key="k"), "/keyRate", "1 second to 30 days"),
    bad(job(rate=[10, "1m"]), "/rate", "a limit and a time"),
    bad(job(rate={}), "/rate/limit", "is missing"),
    bad(job(rate={"limit": 10}), "/rate/per", "is missing", "1m"),
    bad(job(rate={**RATE, "limit": 1_000_001}), "/rate/limit", "at most 1000000"),
    bad(job(rate={**RATE, "burst": 0}), "/rate/burst", "at least 1"),
    bad(job(rate={**RATE, "burst": 11}), "/rate/burst", "at most the `limit`, which is 10"),
    bad(job(rate={**RATE, "brust": 1}), "/rate/brust", "did you mean `burst`?"),
    bad(job(concurrency_key=""), "/concurrency_key", "at least 1"),
    bad(job(concurrencyKey=7), "/concurrencyKey", "must be text", "customer:17"),
    bad(job(key_concurrency=2), "/key_concurrency", "give `concurrency_key` too", "`concurrency` for this job alone"),
    bad(job(keyRate="5/s"), "/keyRate", "`keyRate` limits by a key", "`rate` for this job alone"),
    bad(job(concurrency_key="k", key_concurrency=0), "/key_concurrency", "at least 1"),
    bad(job(order_key="a\nb"), "/order_key", "control characters"),
    bad(job(order_key="k" * 201), "/order_key", "at most 200"),
    bad(job(start_deadline=0), "/start_deadline", "more than 0"),
    bad(job(startDeadline="soon"), "/startDeadline", "a duration"),
    bad(job(start_deadline="367d"), "/start_deadline", "at most"),
    bad(job(cancel_grace="2h"), "/cancel_grace", "at most 3600"),
    bad(job(cancel_grace=None), "/cancel_grace", "a duration", "got null"),
]

AT_CREATION = [
    bad(job(unique=17), "/unique", "a key", "invoice:17", "got the number 17"),
    bad(job(unique=""), "/unique", "at least 1"),
    bad(job(unique=["k"]), "/unique", "a key"),
    bad(job(unique={"within": "1h"}), "/unique/key", "is missing"),
    bad(job(unique={"key": "k", "within": 0}), "/unique/within", "more than 0"),
    bad(job(unique="k", key="mine"), "/unique", "`key` exclude each other", "leave one of them out"),
    bad(job(unique="k", cron="@daily"), "/unique", "this one recurs", "`overlap`"),
    bad(job(throttle={"key": "k", "per": 60}, every="5m"), "/throttle", "this one recurs", "use `rate`"),
    bad(job(throttle={"key": "k"}), "/throttle/per", "is missing"),
    bad(job(throttle={"key": "k", "per": 60, "limit": 0}), "/throttle/limit", "at least 1"),
    bad(job(throttle="k"), "/throttle", "must be an object", '"per"'),
    bad(job(debounce={"key": "k"}), "/debounce/wait", "is missing"),
    bad(job(debounce={"key": "k", "wait": 0}), "/debounce/wait", "more than 0"),
    bad(job(debounce={"key": "k", "wait": 60, "maxWait": 30}), "/debounce/maxWait", "at least `wait`", "60 seconds"),
    bad(job(debounce={"key": "k", "wait": 5}, cron="@daily"), "/debounce", "this one recurs", "`overlap` or `rate`"),
    bad(job(debounce={"key": "k", "wait": 5}, delay="5m"), "/debounce", "decides itself when", "leave out `delay`"),
    bad(job(debounce={"key": "k", "wait": 5}, unique="k"), "/debounce", "`unique` exclude each other"),
    bad(job(debounce={"key": "k", "wait": 5}, key="mine"), "/debounce", "`key` exclude each other"),
    bad(job(throttle={"key": "k", "per": 5}, unique="k"), "/throttle", "`throttle` and `unique` exclude each other"),
    bad(
        job(throttle={"key": "k", "per": 5}, debounce={"key": "k", "wait": 5}),
        "/throttle",
        "`throttle` and `debounce` exclude each other",
        "leave one of them out",
    ),
    bad(job(depends_on="other"), "/depends_on", "list"),
    bad(job(depends_on=[7]), "/depends_on/0", "text"),
    bad(job(depends_on=["a"], cron="@daily"), "/depends_on", "recurs", "workflow"),
    bad(job(depends_on=["a"], unique="k"), "/unique", "`depends_on` exclude each other"),
    bad(job(depends_on=[str(n) for n in range(1001)]), "/depends_on", "at most 1000 entries"),
]

OTHER_TARGETS = [
    bad({"name": "n", "target": {"grpc": {"service": "x"}}}, "/target/grpc/service", "no field"),
    bad({"name": "n", "target": {"grpc": {"address": "a:1"}}}, "/target/grpc/method", "is missing", "billing.v1"),
    bad({"name": "n", "target": {"publish": {"topic": "x"}}}, "/target/publish/topic", "known: redis, kafka"),
]

JOBS = [
    *NO_OBJECT,
    *NAMES_AND_TYPES,
    *UNKNOWN,
    *BOTH,
    *SCHEDULES,
    *RULES,
    *TARGETS,
    *RETRIES,
    *ERRORS,
    *LIMITS,
    *AT_CREATION,
    *OTHER_TARGETS,
]

BATCHES = [
    bad([], "/jobs", "a list of jobs"),
    bad({}, "/jobs", "a list of jobs", "got null"),
    bad({"jobs": {}}, "/jobs", "a list of jobs", "got an object"),
    bad({"jobs": []}, "/jobs", "1 to 10,000", "got 0"),
    bad({"jobs": [1] * 10_001}, "/jobs", "1 to 10,000", "got 10,001"),
    bad({"jobs": [job()], "dry_run": True}, "/dry_run", "no field `dry_run`"),
    bad({"jobs": [job(), None]}, "/jobs/1", "must be a JSON object"),
    bad({"jobs": [job(), job(name=1)]}, "/jobs/1/name", "must be text"),
    bad({"jobs": [job(maxRetries=1, max_retries=1)]}, "/jobs/0/max_retries", "two spellings"),
    bad({"jobs": [job(), job(retry_policy={"max_attempts": 0})]}, "/jobs/1/retry_policy/max_attempts", "1 to 101"),
    bad({"jobs": [job(cron="x")]}, "/jobs/0/cron", "`cron`", code="invalid-schedule"),
    bad({"jobs": [job(url="x"), job(cron="x")]}, "/jobs/0/url", "http://"),
]

PREVIEWS = [
    bad([], "", "must be a JSON object"),
    bad({}, "/schedule", "is missing", code="invalid-schedule"),
    bad({"schedule": None}, "/schedule", "must be an object", code="invalid-schedule"),
    bad({"cron": "x"}, "/cron", "`cron`", code="invalid-schedule"),
    bad({"cron": "@daily", "n": 0}, "/n", "at least 1"),
    bad({"cron": "@daily", "n": 1001}, "/n", "at most 1000"),
    bad({"cron": "@daily", "n": "3"}, "/n", "a whole number"),
    bad({"cron": "@daily", "after": "now"}, "/after", "RFC 3339"),
    bad({"cron": "@daily", "timezone": "X/Y"}, "/timezone", "no time zone", code="invalid-schedule"),
    bad({"cron": "@daily", "url": "https://example.com"}, "/url", "no field"),
    bad({"cron": "@daily", "count": 3}, "/count", "no field `count`"),
    bad({"cron": "H * * * *", "job_id": "me"}, "/job_id", "the id of a job", "for example", 'got the text "me"'),
    bad({"cron": "H * * * *", "jobId": 7}, "/jobId", "the id of a job"),
    bad({"schedule": {"cron": "@daily", "include": [{}]}}, "/schedule/include/0", "none", code="invalid-schedule"),
]


def error_of(act: Callable[[], object]) -> OndotError:
    with pytest.raises(OndotError) as caught:
        act()
    return caught.value


def status_after(act: Callable[[], object]) -> object:
    """The status of the error, whose problem must fit into JSON; None if there is no error."""
    try:
        act()
    except OndotError as error:
        return json.loads(json.dumps(problem(error)))["status"]
    return None


def _ids(bodies: list[Bad]) -> list[str]:
    return [f"{i}: {json.dumps(one.body, ensure_ascii=True)[:70]}" for i, one in enumerate(bodies)]


def _check(one: Bad, translate: Callable[[object, datetime], object]) -> None:
    raw = json.dumps(one.body).encode()
    error = error_of(lambda: translate(read_json(raw, max_bytes=MAX_BYTES), NOW))
    shown = json.loads(json.dumps(problem(error, "/v1/jobs")))
    assert (shown["type"], shown["status"]) == (f"urn:ondot:problem:{one.code}", one.status), shown
    found = [fault["detail"] for fault in shown["errors"] if fault["pointer"] == one.pointer]
    assert found, f"no fault at {one.pointer}: {shown['errors']}"
    assert any(all(word in message for word in one.words) for message in found), found
    assert all(len(message) < 500 for message in found)
    assert "hunter2" not in json.dumps(shown)


@pytest.mark.parametrize("one", JOBS, ids=_ids(JOBS))
def test_a_bad_job_is_rejected_with_a_pointer_and_a_helpful_message(one: Bad) -> None:
    _check(one, job_spec)


@pytest.mark.parametrize("one", BATCHES, ids=_ids(BATCHES))
def test_a_bad_batch_is_rejected_with_a_pointer_to_the_job(one: Bad) -> None:
    _check(one, job_specs)


@pytest.mark.parametrize("one", PREVIEWS, ids=_ids(PREVIEWS))
def test_a_bad_preview_is_rejected_with_a_pointer(one: Bad) -> None:
    _check(one, preview_request)


NOT_JSON: list[tuple[bytes, tuple[str, ...]]] = [
    (b"", ("empty", '{"name"')),
    (b"  \n ", ("empty",)),
    (b"{", ("ends too early",)),
    (b'{"name": "x"', ("ends too early",)),
    (b'{"name": "x', ("ends too early",)),
    (b'{"name": nul', ("ends too early",)),
    (b"name=x&url=y", ("line 1, column",)),
    (b"<job/>", ("line 1, column 1",)),
    (b'{"name": "x",}', ("trailing comma", "line 1, column 14 (byte 13)")),
    (b'{"name": "x"} {}', ("trailing characters",)),
    (b"{'name': 'x'}", ("keys must be strings", "column 2")),
    (b'{name: "x"}', ("keys must be strings",)),
    (b'{\n  "name": "\xc3\xbc",\n  "url" "x"}', ("line 3, column 9",)),
    (b'{"a": NaN}', ("line 1, column 7",)),
    (b'{"a": Infinity}', ("line 1, column 7",)),
    (b'{"a": -Infinity}', ("line 1",)),
    (b'{"a": 1e999}', ("too large to keep",)),
    (b'{"a": ' + b"9" * 5000 + b"}", ("too large to keep",)),
    (b'{"a": 01}', ("line 1",)),
    (b'{"a": .5}', ("line 1",)),
    (b'{"a": "\xff"}', ("not UTF-8", "0xff", "byte 7")),
    (b'{"a": "\xed\xa0\x80"}', ("not UTF-8",)),
    (b'{"\xc3": 1}', ("not UTF-8",)),
    (b'{"a": "\\ud800"}', ("",)),
    (b'{"a": "\\udc00 and more text"}', ("surrogate",)),
    (b'{"\\ud83d\\ud83d": 1, "b": 2}', ("surrogate",)),
    (b'{"a": "x\x01y"}', ("line 1, column 9",)),
    (b'{"a": "x\ny"}', ("line 1, column 9",)),
    (b'{"a": "x\x00y"}', ("line 1, column 9",)),
    (b'{"a": "\\x41"}', ("line 1",)),
    (b'\xef\xbb\xbf{"a": 1}', ("byte order mark",)),
    ('{"a": 1}'.encode("utf-16"), ("UTF-16",)),
    (b'{"a": 1} // why', ("trailing characters",)),
    (b"\x80\x81\x82", ("line 1, column 1",)),
]


@pytest.mark.parametrize(("raw", "words"), NOT_JSON, ids=lambda value: repr(value)[:40])
def test_a_body_that_is_not_json_is_rejected_with_the_place(raw: bytes, words: tuple[str, ...]) -> None:
    error = error_of(lambda: read_json(raw, max_bytes=MAX_BYTES))
    assert isinstance(error, NotJson)
    assert problem(error)["status"] == 400
    assert all(word in error.message for word in words), error.message


@pytest.mark.parametrize("fence", [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_is_accepted_up_to_64_levels(fence: tuple[bytes, bytes]) -> None:
    opening, closing = fence
    assert read_json(opening * 64 + b"1" + closing * 64, max_bytes=MAX_BYTES) is not None
    for depth in (65, 900, 100_000):
        error = error_of(lambda d=depth: read_json(opening * d + b"1" + closing * d, max_bytes=MAX_BYTES))  # type: ignore[misc]
        assert isinstance(error, InvalidBody)
        assert "64 levels" in error.message


def test_many_brackets_side_by_side_are_not_nesting() -> None:
    assert read_json(b"[" + b"[]," * 1000 + b"[]]", max_bytes=MAX_BYTES) == [[]] * 1001


def test_a_body_that_is_too_large_is_rejected_before_it_is_read() -> None:
    error = error_of(lambda: read_json(b"x" * 11, max_bytes=10))
    shown = problem(error)
    assert (shown["status"], shown["bytes"], shown["max_bytes"]) == (413, 11, 10)


def test_a_payload_that_is_too_large_is_rejected_with_its_pointer() -> None:
    job_spec(job(payload="x" * (1024 * 1024 - 2)), NOW)
    for translate in (
        lambda: job_spec(job(payload="x" * (1024 * 1024 - 1)), NOW),
        lambda: job_specs({"jobs": [job(), job(payload="x" * 2_000_000)]}, NOW),
    ):
        shown = problem(error_of(translate))
        assert shown["status"] == 413
        assert str(shown["pointer"]).endswith("/payload")


def test_all_faults_of_a_body_are_reported_at_once() -> None:
    body = {"nmae": "x", "url": "ftp://x", "function": "f", "cron": "99 * * * *", "maxRetries": "3", "overlap": "no"}
    limits = {"rate": "fast", "keyRate": "5/s", "unique": "k", "debounce": {"key": "k", "wait": -1}}
    error = error_of(lambda: job_spec(body | limits, NOW))
    assert isinstance(error, InvalidBody)
    pointers = {fault.pointer for fault in error.faults}
    in_the_limits = {"/overlap", "/rate", "/keyRate", "/unique", "/debounce", "/debounce/wait"}
    assert pointers == {"/nmae", "/url", "/function", "/cron", "/maxRetries", *in_the_limits}
    assert error.code == "invalid-body"


def test_there_are_more_than_a_hundred_bad_bodies() -> None:
    assert len(JOBS) + len(BATCHES) + len(PREVIEWS) + len(NOT_JSON) > 250


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
_PARTS: list[object] = [
    "@daily",
    "@every 5m",
    "H H * * *",
    "5m",
    "2030-01-01T00:00:00Z",
    "FREQ=DAILY;INTERVAL=2",
    "Europe/Berlin",
    10,
    {"gap": "skip"},
    {"limit": 5},
    {"business_days": "next"},
    [{"cron": "@hourly"}, {"every": "3h"}],
    [{"rrule": "FREQ=WEEKLY", "timezone": "Asia/Tokyo"}, {"at": "2030-01-01T00:00:00"}],
    [{}],
]
_FIELDS = st.sampled_from([*JobBody.model_fields, *sorted(SHORT_NAMES), "maxRetries", "runAt", "x"])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(_FIELDS, _JSON, max_size=6))
def test_every_body_is_read_or_rejected(body: dict[str, object]) -> None:
    assert status_after(lambda: job_spec(body, NOW)) in {None, 422}
    assert status_after(lambda: preview_request(body, NOW)) in {None, 422}


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from([field.alias or name for name, field in ScheduleBody.model_fields.items()]),
        _JSON | st.sampled_from(_PARTS),
        max_size=4,
    ),
    st.dictionaries(st.sampled_from([*TARGET_KINDS, "handler", "pool"]), _JSON, max_size=2),
)
def test_every_schedule_and_target_is_read_or_rejected(schedule: dict[str, object], target: dict[str, object]) -> None:
    body = {"name": "n", "schedule": schedule, "target": target}
    assert status_after(lambda: job_spec(body, NOW)) in {None, 422}


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40) | st.text('{}[]",:\\ud80 e19-.', max_size=40).map(str.encode))
def test_all_bytes_are_read_or_rejected(raw: bytes) -> None:
    assert status_after(lambda: read_json(raw, max_bytes=200)) in {None, 400, 422}
