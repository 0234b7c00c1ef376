"""Valid bodies: how they are read, and how they are written again."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

import ondot
from ondot.api.responses import preview_out
from ondot.document.body import JobBody
from ondot.document.json_text import read_json
from ondot.document.parse import job_spec, job_specs
from ondot.document.render import SPEC_FIELDS, JobOut, render_job, render_spec
from ondot.document.requests import preview_request, run_payload
from ondot.document.rules import POOL_NAME
from ondot.document.shorthand import SHORT_NAMES
from ondot.model.errors import InvalidBody, InvalidSchedule
from ondot.model.gates import Limits
from ondot.model.ids import JobId
from ondot.model.job import JobSpec, JobState, decode_spec, encode_spec
from ondot.model.misfire import Misfire
from ondot.model.retry import Retry
from ondot.model.schedule import Blackout, Calendar, Cron, Dst, Interval, Once, Schedule, preview
from ondot.model.target import FunctionTarget, HttpTarget, ShellTarget
from ondot.store.jobs import JobRow
from ondot.store.sql_functions import functions
from tests.proves import proves

SOURCE = Path(ondot.__file__).parent
NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)

CONTRACT = b"""
{"name": "daily-report",
 "schedule": {"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin", "dst": {"gap": "shift", "fold": "first"},
              "jitter": "30s", "start_at": null, "end_at": null, "max_fires": null,
              "misfire": {"policy": "once", "grace": "60s", "window": "1h", "limit": 100},
              "calendar": {"exclude_holidays": "DE", "exclude_dates": [], "business_days": false, "blackouts": []}},
 "target": {"http": {"url": "https://example.com/report", "method": "POST", "headers": {}}},
 "payload": {"region": "eu"}, "pool": "default", "priority": "normal", "labels": {"team": "bi"},
 "retry": {"max_retries": 3, "backoff": "exponential", "initial": "1s", "factor": 2, "max": "1h", "jitter": true,
           "max_worker_losses": 3},
 "timeout": "5m", "overlap": "allow", "concurrency_key": null, "depends_on": [], "key": null}
"""


def spec(**fields: Any) -> JobSpec:
    return job_spec({"name": "n", "url": "https://example.com", **fields}, NOW)


def schedule(**fields: Any) -> Schedule:
    found = spec(**fields).schedule
    assert found is not None
    return found


def plain(job: JobSpec) -> object:
    """A spec that can be compared: two payloads of equal bytes are not equal as `Raw`."""
    return msgspec.structs.asdict(job) | {"payload": bytes(job.payload)}


def test_the_job_of_the_contract_becomes_its_spec() -> None:
    job = job_spec(read_json(CONTRACT, max_bytes=10_000), NOW)
    assert job.name == "daily-report"
    assert job.schedule == Schedule(
        when=Cron(expression="0 9 * * 1-5", timezone="Europe/Berlin", dst=Dst(gap="shift", fold="first")),
        jitter_s=30.0,
        misfire=Misfire(policy="once", grace_s=60.0, window_s=3600.0, limit=100),
        calendar=Calendar(exclude_holidays="DE"),
    )
    assert job.target == HttpTarget(url="https://example.com/report", method="POST", headers={})
    assert bytes(job.payload) == b'{"region":"eu"}'
    assert job.retry == Retry()
    assert (job.pool, job.priority, job.labels, job.timeout_s, job.key) == (
        "default",
        "normal",
        {"team": "bi"},
        300,
        None,
    )


def test_the_shortest_body_takes_every_default_of_the_model() -> None:
    job = job_spec({"name": "n", "function": "f"}, NOW)
    assert plain(job) == plain(JobSpec(name="n", target=FunctionTarget(name="f")))
    assert encode_spec(job) == '{"name":"n","target":{"kind":"function","name":"f"}}'


@proves("S1")
def test_a_job_without_a_schedule_has_none_until_it_is_accepted() -> None:
    assert spec().schedule is None
    assert spec(schedule=None).schedule is None


@proves("S1")
def test_a_delay_counts_from_the_clock_of_the_database() -> None:
    assert schedule(**{"in": "10m"}).when == Once(at=NOW + timedelta(minutes=10))
    assert schedule(**{"in": 0}).when == Once(at=NOW)


@proves("S1")
@pytest.mark.parametrize(
    ("written", "instant"),
    [
        ("2026-12-01T09:00:00Z", datetime(2026, 12, 1, 9, tzinfo=UTC)),
        ("2026-12-01T09:00:00+01:00", datetime(2026, 12, 1, 8, tzinfo=UTC)),
        ("2026-12-01 09:00:00z", datetime(2026, 12, 1, 9, tzinfo=UTC)),
        ("2026-12-01T09:00:00.123456789Z", datetime(2026, 12, 1, 9, 0, 0, 123456, tzinfo=UTC)),
    ],
)
def test_an_instant_may_have_any_offset_and_is_stored_in_utc(written: str, instant: datetime) -> None:
    when = schedule(at=written).when
    assert when == Once(at=instant)
    assert isinstance(when, Once)
    assert when.at.tzinfo is UTC


@proves("S1", "S4")
@pytest.mark.parametrize(
    ("local", "instant"),
    [
        ("2026-12-01T09:00:00", datetime(2026, 12, 1, 8, tzinfo=UTC)),
        ("2027-03-28T02:30:00", datetime(2027, 3, 28, 1, tzinfo=UTC)),  # in the gap: right after it
        ("2027-10-31T02:30:00", datetime(2027, 10, 31, 0, 30, tzinfo=UTC)),  # comes twice: the first
    ],
)
def test_an_instant_without_an_offset_is_local_time_of_the_timezone(local: str, instant: datetime) -> None:
    expected = Once(at=instant, timezone="Europe/Berlin", wall=datetime.fromisoformat(local))
    assert schedule(type="ONE_TIME", schedule=local, timezone="Europe/Berlin").when == expected


def test_an_instant_a_moment_ago_is_accepted_and_one_long_ago_is_not() -> None:
    assert schedule(at="2026-11-15T11:59:00Z").when == Once(at=NOW - timedelta(seconds=60))
    with pytest.raises(InvalidSchedule, match=r"in the past.*leave it out to run now"):
        spec(at="2026-11-15T11:58:59Z")


@proves("S3")
def test_an_interval_is_anchored_at_its_anchor_or_start_or_now() -> None:
    anchor_at, start_at = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)
    every = {"every": "15m"}
    assert schedule(schedule=every).when == Interval(every_s=900, anchor_at=NOW)
    started = schedule(schedule={**every, "start_at": "2027-01-01T00:00:00Z"})
    assert started.when == Interval(every_s=900, anchor_at=start_at)
    anchored = {**every, "start_at": "2027-01-01T00:00:00Z", "anchor_at": "2026-01-01T00:00:00Z"}
    assert schedule(schedule=anchored).when == Interval(every_s=900, anchor_at=anchor_at, is_anchored=True)


def test_targets_become_those_of_the_model() -> None:
    assert job_spec({"name": "n", "handler": "f"}, NOW).target == FunctionTarget(name="f")
    assert job_spec({"name": "n", "command": ["ls", ""]}, NOW).target == ShellTarget(command=("ls", ""))
    http = {"url": "http://localhost:8080/x?y=z", "method": "get", "headers": {"Authorization": "Bearer x"}}
    assert job_spec({"name": "n", "target": {"http": http}}, NOW).target == HttpTarget(
        url="http://localhost:8080/x?y=z", method="GET", headers={"Authorization": "Bearer x"}
    )


def test_the_job_of_another_tool_is_read() -> None:
    body = {
        "name": "cleanup",
        "type": "CRON",
        "schedule": "0 3 * * *",
        "timezone": "UTC",
        "callbackUrl": "https://example.com/cleanup",
        "priority": "HIGH",
        "retryPolicy": {"maxAttempts": 5, "backoff": "EXPONENTIAL", "initialDelayMs": 1000},
        "timeoutSeconds": 30,
    }
    job = job_spec(body, NOW)
    assert job.schedule == Schedule(when=Cron(expression="0 3 * * *"))
    assert job.target == HttpTarget(url="https://example.com/cleanup")
    assert (job.priority, job.retry, job.timeout_s) == ("high", Retry(max_retries=4, initial_s=1.0), 30.0)


def test_listed_delays_keep_their_order() -> None:
    retry = spec(retry={"backoff": "listed", "delays": ["1s", 60, "1h"]}).retry
    assert retry.delays_s == (1.0, 60.0, 3600.0)


@proves("S10")
def test_a_calendar_becomes_that_of_the_model() -> None:
    window = {"from_at": "2030-12-24T00:00:00+01:00", "to_at": "2030-12-27T00:00:00Z"}
    body = {"exclude_holidays": "DE", "exclude_dates": ["2030-05-02"], "businessDays": True, "blackouts": [window]}
    assert schedule(schedule={"cron": "@daily", "calendar": body}).calendar == Calendar(
        exclude_holidays="DE",
        exclude_dates=("2030-05-02",),
        business_days=True,
        blackouts=(
            Blackout(
                from_at=datetime(2030, 12, 23, 23, tzinfo=UTC),
                to_at=datetime(2030, 12, 27, tzinfo=UTC),
            ),
        ),
    )


def test_a_calendar_that_excludes_nothing_is_none() -> None:
    empty: dict[str, object] = {"exclude_holidays": None, "exclude_dates": [], "business_days": False, "blackouts": []}
    assert schedule(schedule={"cron": "@daily", "calendar": empty}) == Schedule(when=Cron(expression="@daily"))


@pytest.mark.parametrize("payload", [None, 0, False, "", [], {}, {"b": 1, "a": [1.5, "ü", None]}, 2**70, "😀"])
def test_a_payload_is_stored_as_it_was_sent(payload: object) -> None:
    job = decode_spec(encode_spec(spec(payload=payload)))
    assert msgspec.json.decode(job.payload) == payload
    assert list(msgspec.json.decode(job.payload)) == list(payload) if isinstance(payload, dict) else True


def test_a_batch_becomes_its_jobs_in_order() -> None:
    jobs = [{"name": f"job {i}", "function": "f"} for i in range(1000)]
    assert [job.name for job in job_specs({"jobs": jobs}, NOW)] == [f"job {i}" for i in range(1000)]


def test_faults_of_a_batch_point_at_their_job() -> None:
    jobs = [{"name": "n", "function": "f"} for _ in range(20)]
    jobs[17] = {"name": "n", "function": "f", "cronExpression": "nonsense"}
    with pytest.raises(InvalidSchedule) as rejected:
        job_specs({"jobs": jobs}, NOW)
    assert [fault.pointer for fault in rejected.value.faults] == ["/jobs/17/cronExpression"]


def test_no_answer_has_more_than_twenty_faults() -> None:
    with pytest.raises(InvalidBody) as rejected:
        job_specs({"jobs": [{} for _ in range(10_000)]}, NOW)
    assert len(rejected.value.faults) == 20
    with pytest.raises(InvalidBody) as rejected:
        spec(**{f"unknown_{i}": 1 for i in range(1000)})
    assert len(rejected.value.faults) == 20


@proves("S9")
def test_a_preview_accepts_long_and_short_forms() -> None:
    cron = Schedule(when=Cron(expression="0 9 * * *", timezone="Asia/Tokyo"))
    long = {"schedule": {"cron": "0 9 * * *", "timezone": "Asia/Tokyo"}}
    assert preview_request(long, NOW) == (cron, NOW, 10)
    short = {"cron": "0 9 * * *", "timezone": "Asia/Tokyo", "after": "2030-01-01T00:00:00Z", "n": 3}
    assert preview_request(short, NOW) == (cron, datetime(2030, 1, 1, tzinfo=UTC), 3)
    assert preview_request({"every": 60}, NOW)[0].when == Interval(every_s=60, anchor_at=NOW)


@proves("S9")
def test_a_preview_shows_words_and_fires() -> None:
    out = preview_out(preview(*preview_request({"cron": "0 9 * * *", "n": 2}, NOW)))
    shown = json.loads(out.model_dump_json())
    assert [fire["fire_at"] for fire in shown["fires"]] == ["2026-11-16T09:00:00Z", "2026-11-17T09:00:00Z"]
    assert "09:00" in shown["in_words"]


def test_a_run_uses_the_payload_of_the_job_unless_it_has_its_own() -> None:
    assert run_payload(None) is None
    assert run_payload({}) is None
    with_null, with_object = run_payload({"payload": None}), run_payload({"payload": {"aB": 1}})
    assert with_null is not None
    assert bytes(with_null) == b"null"
    assert with_object is not None
    assert bytes(with_object) == b'{"aB":1}'
    with pytest.raises(InvalidBody, match="did you mean `payload`"):
        run_payload({"payloads": 1})


def test_a_spec_is_written_in_the_long_form_with_seconds_and_utc() -> None:
    out = render_spec(spec(at="2026-12-01T10:00:00+01:00", timeout="1h30m", max_retries=1, payload={"a": 1}))
    assert out["schedule"] is not None
    assert out["schedule"]["at"] == "2026-12-01T09:00:00Z"
    assert out["timeout"] == 5400
    assert out["target"]["http"]["url"] == "https://example.com"
    assert out["retry"]["max_retries"] == 1
    assert out["payload"] == {"a": 1}
    assert out.keys() == SPEC_FIELDS


_KINDS = st.sampled_from(
    [
        {},
        {"schedule": {"cron": "*/5 * * * *", "timezone": "America/New_York", "dst": {"gap": "skip", "fold": "both"}}},
        {"schedule": {"every": "1.5s", "jitter": "2s", "end_at": "2031-01-01T00:00:00Z", "max_fires": 3}},
        {"at": "2026-12-01T09:00:00.5+05:30"},
        {
            "cron": "0 9 * * *",
            "schedule": {
                "calendar": {
                    "exclude_holidays": "DE-BY",
                    "exclude_dates": ["2030-05-02"],
                    "business_days": True,
                    "blackouts": [{"from_at": "2030-12-24T00:00:00Z", "to_at": "2030-12-27T00:00:00+02:00"}],
                }
            },
        },
        {"in": "P1DT2H"},
        {"cron": "@every 90s"},
        {"cron": "H H(0-7) * * *", "timezone": "Asia/Tokyo"},
        {"schedule": {"every": "15m", "anchor_at": "2026-01-01T00:07:00Z"}},
        {"schedule": {"every": "15m", "start_at": "2027-01-01T00:00:00.5Z"}},
        {"schedule": {"rrule": "FREQ=DAILY;INTERVAL=3", "timezone": "America/New_York", "dst": {"fold": "last"}}},
        {"schedule": {"rrule": "FREQ=DAILY", "start_at": "2027-01-01T00:00:00.5Z", "timezone": "Asia/Kathmandu"}},
        {"schedule": {"rrule": "DTSTART;TZID=Europe/Berlin:20260101T090000\nRRULE:FREQ=MONTHLY;BYDAY=-1FR"}},
        {"schedule": {"rrule": "DTSTART:20260101T090000Z\nRRULE:FREQ=WEEKLY;BYDAY=MO,TH"}},
        {"cron": "0 9 * * *", "schedule": {"calendar": {"business_days": "previous", "exclude_holidays": "US"}}},
        {
            "schedule": {
                "cron": "0 9 * * *",
                "timezone": "Europe/Berlin",
                "include": [{"every": "7h"}, {"at": "2027-03-28T02:30:00"}, {"rrule": "FREQ=DAILY;BYHOUR=3"}],
                "exclude": [{"cron": "0 9 1 * *", "timezone": "UTC"}, {"at": "2020-01-01T00:00:00Z"}],
            }
        },
        {"cron": "@daily", "schedule": {"misfire": {"policy": "all", "grace": 5, "window": "2h", "limit": 7}}},
    ]
)
_TARGETS = st.sampled_from(
    [
        {"url": "https://example.com/ü"},
        {"target": {"http": {"url": "http://[::1]:8000/", "method": "DELETE", "headers": {"X-A": "1\t2"}}}},
        {"target": {"http": {"url": "http://x", "connect_timeout": "1.5s", "firstByteTimeout": 30}}},
        {"function": "a.b:c"},
        {"command": ["python3", "-c", "print('\n')"]},
    ]
)
_OTHERS = st.fixed_dictionaries(
    {},
    optional={
        "payload": st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aB_", max_size=4), inner, max_size=3),
            max_leaves=8,
        ),
        "pool": st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,62}", fullmatch=True),
        "priority": st.sampled_from(["HIGH", "MEDIUM", "low"]),
        "labels": st.dictionaries(st.text("ab/~", min_size=1, max_size=63), st.text("xyz", max_size=20), max_size=5),
        "retry": st.sampled_from(
            [{}, {"backoff": "listed", "delays": [1, 2.5]}, {"jitter": False, "retry_on": [404], "never_on": ["5XX"]}]
        ),
        "timeout": st.floats(0.001, 604_800) | st.integers(1, 604_800),
        "key": st.text("kéy-", min_size=1, max_size=200),
        "pause_after_failures": st.none(),
        "overlap": st.sampled_from(["allow", "SKIP", "queue", "Replace"]),
        "concurrency": st.none() | st.integers(1, 10_000),
        "rate": st.sampled_from([None, "5/s", "10/1m", {"limit": 10, "per": "1h", "burst": 10}]),
        "order_key": st.none() | st.text("kéy-", min_size=1, max_size=200),
        "start_deadline": st.none() | st.floats(0.001, 604_800),
        "cancel_grace": st.floats(0, 3600) | st.just("10s"),
    },
)  # fmt: skip


# The first calendar with a country imports its holidays, which takes longer than a deadline allows.
@settings(deadline=None)
@given(_KINDS, _TARGETS, _OTHERS)
def test_a_spec_that_was_read_can_be_sent_again_and_means_the_same(
    when: dict[str, Any], target: dict[str, Any], others: dict[str, Any]
) -> None:
    job = job_spec({"name": "n", **when, **target, **others}, NOW)
    read = read_json(json.dumps(render_spec(job)).encode(), max_bytes=10**6)
    later = NOW + timedelta(minutes=17)
    assert render_spec(job_spec(read, later)) == render_spec(job)
    again = job_spec(read, later, current=job)
    assert plain(again) == plain(job)
    assert encode_spec(again) == encode_spec(job)
    assert plain(decode_spec(encode_spec(job))) == plain(job)


def test_a_job_is_written_whole_and_in_json() -> None:
    row = JobRow(JobId(UUID(int=7)), JobState.ACTIVE, None, 1, spec(cron="0 9 * * *"), NOW, NOW, NOW)
    out = render_job(row, row.updated_at)
    answer = TypeAdapter(JobOut)
    shown = json.loads(answer.dump_json(answer.validate_python(out, strict=True, extra="forbid")))
    assert shown["next_fire_at"] == "2026-11-15T12:00:00Z"
    assert shown["state"] == "ACTIVE"
    assert shown["timeout"] is None
    assert list(shown) == [name for name in JobOut.__annotations__ if name not in {"warnings", "declared"}]


def test_the_schema_describes_every_field_and_knows_the_short_forms() -> None:
    schema = JobBody.model_json_schema()
    assert schema["properties"].keys() >= SHORT_NAMES
    assert "required" not in schema
    assert schema["additionalProperties"] is False
    for model in (schema, *schema["$defs"].values()):
        for name, described in model["properties"].items():
            assert described.keys() & {"description", "$ref"}, name
    json.dumps(schema)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"function": "reports.daily"}, "reports.daily"),
        ({"url": "https://example.com:8443/report?token=secret"}, "example.com/report"),
        ({"command": ["backup", "--all"]}, "backup"),
    ],
)
def test_a_job_without_a_name_is_named_after_its_target(body: dict[str, object], name: str) -> None:
    assert job_spec(body, NOW).name == name


def test_a_fault_names_a_field_as_the_user_spelled_it() -> None:
    body = {"function": "report", "retry": {"max_retries": -1}, "timeout": "8d"}
    with pytest.raises(InvalidBody) as rejected:
        job_spec(body, NOW, origins={("retry", "max_retries"): ("retries",)})
    assert [(fault.pointer, fault.message.split()[0]) for fault in rejected.value.faults] == [
        ("/retries", "`retries`"),
        ("/timeout", "`timeout`"),
    ]


def test_every_field_of_a_spec_is_read_from_the_field_of_a_body_with_its_name() -> None:
    of_specs = {name.removesuffix("_s") for name in (*JobSpec.__struct_fields__, *Limits.__struct_fields__)}
    assert of_specs - {"limits", "secrets", "trace", "tracestate"} <= JobBody.model_fields.keys()
    assert JobBody.model_fields.keys() - of_specs == {"concurrency_key"}


def test_the_pattern_of_a_pool_name_is_written_once_and_sql_gets_it_from_there() -> None:
    sources = [*SOURCE.rglob("*.py"), *SOURCE.glob("store/functions/*.sql"), *SOURCE.glob("store/sql/*.sql")]
    assert [path.name for path in sources if POOL_NAME in path.read_text()] == ["rules.py"]
    [check_spec] = [each.sql for each in functions() if each.name == "check_spec"]
    assert f"'^{POOL_NAME}$'" in check_spec
