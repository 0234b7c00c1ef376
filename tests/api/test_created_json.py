"""The answer to a create: the fast text equals the text that FastAPI renders of the same job."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import httpx2
import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from ondot.api.auth import Auth
from ondot.api.dependencies import Services
from ondot.api.server import build_api
from ondot.api.views import created_batch_text, created_job_text
from ondot.document.json_text import read_json
from ondot.document.parse import job_spec, new_job_spec
from ondot.document.render import JobOut, render_job
from ondot.flow.new_jobs import Accepted
from ondot.model.errors import InvalidBody
from ondot.model.ids import JobId
from ondot.model.job import JobSpec, JobState, encode_spec, fill_in_schedule
from tests.api.conftest import Caller
from tests.proves import proves
from tests.world import World

NOW = datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=UTC)
ID = JobId(UUID("019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"))
_ID = re.compile(r'"id":"[0-9a-f-]{36}"')

_ANSWER = TypeAdapter(JobOut)
_PAYLOADS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("aB_\u2028", max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
_WRITTEN = (
    st.integers(-1, 2**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.none()
    | st.sampled_from(["10m", "2026-11-15T12:00:00.123456Z", "2026-11-15T12:00:00", "2026-11-15t13:00:00.5+01:00"])
    | st.timedeltas(timedelta(minutes=-2), timedelta(days=300 * 366)).map(lambda later: (NOW + later).isoformat())
)
_BODIES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text('aü "\\', min_size=1, max_size=5) | st.sampled_from(["", " ", "a\n", 7, None]),
        "function": st.sampled_from(["f", "a.b:c", "no good", None, 7]),
        "url": st.sampled_from(["https://example.com/ü", "ftp://x"]),
        "callbackUrl": st.just("http://[::1]:8000/"),
        "target": st.sampled_from(
            [
                {"function": "f"},
                {"function": {"name": "f"}},
                {"http": {"url": "http://x", "method": "put", "headers": {"X-A": "1\t2"}, "connectTimeout": "1.5s"}},
                {"shell": {"command": ["echo", "ü"]}},
                {"function": "f", "pool": "p"},
                {},
                None,
            ]
        ),
        "payload": _PAYLOADS,
        "pool": st.sampled_from(["default", "a-b", "No"]),
        "priority": st.sampled_from(["HIGH", "medium", "low", "urgent"]),
        "labels": st.dictionaries(st.text("ab", max_size=2), st.text("xyz", max_size=2), max_size=2),
        "retry": st.sampled_from([{}, {"max_retries": 3}, {"backoff": "listed", "delays": [1, 2.5]}, {"jitter": 1}]),
        "maxRetries": st.sampled_from([0, 3, 101]),
        "timeout": st.sampled_from([None, 300, 300.0, "5m", "1.5s", 0]),
        "key": st.sampled_from(["k", ""]),
        "overlap": st.sampled_from(["allow", "SKIP"]),
        "concurrency": st.none() | st.integers(0, 2),
        "rate": st.sampled_from([None, "5/s", {"limit": 10, "per": "1h", "burst": 10}]),
        "concurrency_key": st.none() | st.just("c"),
        "key_rate": st.sampled_from([None, "5/s"]),
        "order_key": st.none() | st.just("o"),
        "start_deadline": st.none() | st.just(2.5),
        "cancelGrace": st.just("10s"),
        "unique": st.sampled_from(["u", {"key": "u", "within": "1h"}]),
        "debounce": st.just({"key": "d", "wait": 5}),
        "throttle": st.just({"key": "t", "per": "1h", "limit": 2}),
        "type": st.sampled_from(["ONE_TIME", "CRON"]),
        "schedule": st.sampled_from([None, {}, {"cron": "0 9 * * *"}, {"in": "10m"}, {"every": 60, "jitter": 5}])
        | st.sampled_from(["in", "at", "In"]).flatmap(lambda kind: st.fixed_dictionaries({kind: _WRITTEN})),
        "runAt": st.sampled_from(["2026-11-15T13:00:00Z", "2020-01-01T00:00:00Z"]),
        "in": st.just("3s"),
        "colour": st.just("red"),
    },
)


def result_of(body: dict[str, Any], read: Any) -> object:
    """The result of reading a body: its spec as it is stored, or its faults."""
    try:
        return encode_spec(read(body, NOW, pointer="/jobs/3"))
    except InvalidBody as refusal:
        return type(refusal), refusal.message, refusal.faults


@settings(deadline=None, max_examples=300)
@given(_BODIES)
@example({"function": "f", "schedule": {"in": 90}})
@example({"function": "f", "schedule": {"in": 0.000_000_4}})
@example({"function": "f", "schedule": {"at": "2026-11-15T13:00:00Z"}, "unique": "u"})
@example({"function": "f", "schedule": {"in": 90}, "debounce": {"key": "d", "wait": 5}})
@example({"function": "f", "schedule": {"in": 90}, "key": "k", "pause_after_failures": 3})
def test_a_body_means_the_same_whether_or_not_a_similar_one_was_read_before(body: dict[str, Any]) -> None:
    # As a request has it: by way of JSON, which 2**63 does not pass unchanged.
    read = read_json(msgspec.json.encode(body), max_bytes=10**6)
    assert isinstance(read, dict)
    slow = result_of(read, job_spec)
    assert result_of(read, new_job_spec) == slow
    assert result_of({**read, "payload": {"another": 1}}, new_job_spec) == result_of(
        {**read, "payload": {"another": 1}}, job_spec
    )
    assert result_of(read, new_job_spec) == slow


def test_the_instant_of_a_relative_schedule_is_never_remembered() -> None:
    body = {"function": "f", "in": "10s"}
    later = NOW + timedelta(hours=1)
    assert encode_spec(new_job_spec(body, later)) == encode_spec(job_spec(body, later))
    assert new_job_spec(body, NOW) != new_job_spec(body, later)


def render_slowly(
    spec: JobSpec, state: JobState, reason: str | None, next_fire_at: datetime | None
) -> tuple[Accepted, Any]:
    job = Accepted(ID, fill_in_schedule(spec, ID, NOW), state, 1, next_fire_at, NOW, reason)
    out = _ANSWER.dump_python(_ANSWER.validate_python(render_job(job, NOW), extra="forbid"), mode="json")
    return job, out


@settings(deadline=None, max_examples=300)
@given(
    _BODIES, st.sampled_from(JobState), st.none() | st.just("throttled"), st.none() | st.just(NOW.replace(year=2030))
)
def test_the_fast_text_of_a_job_is_that_of_the_slow_way(
    body: dict[str, Any], state: JobState, reason: str | None, next_fire_at: datetime | None
) -> None:
    body = {"function": "f", **body}
    try:
        spec = job_spec(read_json(msgspec.json.encode(body), max_bytes=10**6), NOW)
    except InvalidBody:
        return
    job, out = render_slowly(spec, state, reason, next_fire_at)
    assert created_job_text([job]) == msgspec.json.encode(out).decode()
    assert created_batch_text([job, job]) == msgspec.json.encode({"items": [out, out]}).decode()


@proves("S1")
async def test_the_fast_path_to_a_create_answers_like_the_route(api: Caller, world: World) -> None:
    services = Services(
        world.database, world.dispatcher, Auth(world.database, world.database.settings, in_process=True)
    )
    by_route = build_api(services)
    assert [getattr(each.cls, "__name__", "") for each in by_route.user_middleware].count("FastPath") == 1
    by_route.user_middleware = [
        each for each in by_route.user_middleware if getattr(each.cls, "__name__", "") != "FastPath"
    ]
    transport = httpx2.ASGITransport(app=by_route, raise_app_exceptions=False)
    good = {"name": "n", "function": "f", "payload": [1]}
    bad = {"name": "", "cron": "61 * * * *", "colour": "red"}
    one: list[object] = [good, bad, [], {**good, "in": "10s", "limits": 1}]
    many: list[object] = [{"jobs": [good, good]}, {"jobs": [good, bad]}, {"jobs": []}, 7]
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:1200") as long:
        for path in ("/v1/jobs", "/api/v1/jobs", "/v1/jobs?limit=1"):
            for body in one:
                assert_same(*[await http.post(path, json=body) for http in (api.http, long)])
        for body in many:
            assert_same(*[await http.post("/v1/jobs/batch", json=body) for http in (api.http, long)])
        for headers in ({"host": "example.com"}, {"origin": "https://example.com"}, {"idempotency-key": ""}):
            assert_same(*[await http.post("/v1/jobs", json=good, headers=headers) for http in (api.http, long)])
        assert_same(*[await http.post("/v1/jobs", content=b'{"name": nope}') for http in (api.http, long)])
        assert_same(*[await http.put("/v1/jobs", json=good) for http in (api.http, long)])


def assert_same(short: httpx2.Response, long: httpx2.Response) -> None:
    assert (short.status_code, sorted(short.headers)) == (long.status_code, sorted(long.headers))
    assert _ID.sub("", short.text) == _ID.sub("", long.text)
