"""Bodies made to exhaust a server: large, deep, of very many values, or many at once. All are handled cheaply."""

import asyncio
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ondot.api import intake, request_body
from ondot.api.intake import LARGE, MOST_BATCHES
from ondot.api.routes.pools import PoolBody
from ondot.document.errors import MAX_FAULTS
from ondot.document.json_text import MAX_DEPTH, MAX_FIELDS, read_batch, read_json
from ondot.document.parse import job_spec, job_specs
from ondot.document.reading import read_form
from ondot.document.requests import preview_request, run_payload
from ondot.document.rules import MAX_BATCH
from ondot.model.errors import InvalidBody, NotJson, OndotError, TooLarge
from tests.api.conftest import Caller
from tests.proves import proves

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
MB = 1024 * 1024
JOB_BYTES, BATCH_BYTES = 2 * MB, 16 * MB
LIMITS = {"/v1/jobs/batch": BATCH_BYTES, "/v1/workflows": BATCH_BYTES, "/v1/events": MB // 2}
HELLO = {"name": "hello", "function": "hello"}

BOMBS: dict[str, bytes] = {
    "lists": b'{"function": "f", "zzz": [' + b"[]," * 690_000 + b"[]]}",
    "objects": b'{"function": "f", "zzz": [' + b"{}," * 690_000 + b"{}]}",
    "unknown fields": b'{"function": "f", ' + b",".join(b'"k%d":1' % n for n in range(180_000)) + b"}",
    "repeated fields": b'{"function": "f", ' + b",".join([b'"a":1'] * 300_000) + b"}",
    "a payload of lists": b'{"function": "f", "payload": [' + b"[]," * 690_000 + b"[]]}",
    "numbers": b'{"function": "f", "payload": [' + b"1," * 1_000_000 + b"1]}",
    "labels": b'{"function": "f", "labels": {' + b",".join(b'"k%d":1' % n for n in range(60_000)) + b"}}",
    "rules": b'{"function": "f", "schedule": {"cron": "@daily", "exclude": [' + b"{}," * 60_000 + b"{}]}}",
    "words": b'{"command": [' + b"1," * 120_000 + b"1]}",
    "deep in a payload": b'{"function": "f", "payload": ' + b"[" * 500_000 + b"]" * 500_000 + b"}",
    "wide and deep": b'{"function": "f", "payload": [' + b",".join([b"[" * 70 + b"]" * 70] * 10_000) + b"]}",
    "a number of many digits": b'{"function": "f", "payload": ' + b"9" * MB + b"}",
    "an endless fraction": b'{"function": "f", "zzz": 0.' + b"9" * MB + b"}",
    "a long name": b'{"function": "f", "' + b"n" * MB + b'": 1}',
    "escapes": b'{"function": "f", "zzz": "' + rb"\"," * 600_000 + b'"}',
    "NULs": b'{"function": "f", "payload": [' + b",".join([rb'"\u0000"'] * 60_000) + b"]}",
    "no end": b'{"function": "f", "zzz": "' + rb"\\" * 900_000,
}


def error_of(act: Callable[[], object]) -> OndotError:
    with pytest.raises(OndotError) as found:
        act()
    return found.value


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_body_made_to_exhaust_is_rejected_in_little_memory(bomb: str) -> None:
    raw = BOMBS[bomb]
    assert LARGE < len(raw) <= JOB_BYTES
    tracemalloc.start()
    try:
        error = error_of(lambda: job_spec(read_json(raw, max_bytes=JOB_BYTES), NOW))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 32 * MB
    assert isinstance(error, (InvalidBody, NotJson))
    faults = error.faults if isinstance(error, InvalidBody) else ()
    assert len(faults) <= MAX_FAULTS
    assert len(error.message) < 3000
    assert sum(len(fault.message) for fault in faults) < 20_000


FORMS: dict[str, Callable[[object], object]] = {
    "job": lambda body: job_spec(body, NOW),
    "preview": lambda body: preview_request(body, NOW),
    "run": run_payload,
    "pool": lambda body: read_form(PoolBody, body, "for example {}"),
}


@pytest.mark.parametrize("form", FORMS)
def test_no_form_looks_at_more_fields_than_a_job_can_use(form: str) -> None:
    body = {"zzz": [[{"a": n}] for n in range(MAX_FIELDS)]}
    error = error_of(lambda: FORMS[form](body))
    assert isinstance(error, InvalidBody)
    assert [fault.pointer for fault in error.faults] == ["/zzz"] or error.faults[0].pointer.startswith("/zzz/")
    assert f"{MAX_FIELDS:,} values" in error.message


def test_a_payload_may_have_more_values_than_the_rest_of_a_job() -> None:
    body = {**HELLO, "payload": list(range(100_000))}
    raw = json.dumps(body).encode()
    assert msgspec.json.decode(job_spec(read_json(raw, max_bytes=JOB_BYTES), NOW).payload) == body["payload"]


def test_commas_and_brackets_in_texts_are_not_counted_as_values() -> None:
    text = '[{,"\\' * 200_000
    raw = json.dumps({**HELLO, "payload": [text, {text[:200]: text[:50]}]}).encode()
    assert read_json(raw, max_bytes=JOB_BYTES) == {**HELLO, "payload": [text, {text[:200]: text[:50]}]}


def _depth(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(_depth, value.values()), default=0)
        case list():
            return 1 + max(map(_depth, value), default=0)
        case _:
            return 0


_TEXT = st.text('[]{},:"\\a\n\u00fc', max_size=12)


@settings(max_examples=150, deadline=None)
@given(st.lists(_TEXT, max_size=80), st.integers(0, MAX_DEPTH + 4), _TEXT)
def test_depth_is_counted_outside_of_texts(texts: list[str], depth: int, key: str) -> None:
    inner: Any = [*texts, *([] for _ in range(MAX_DEPTH))]
    for level in range(depth):
        inner = {key: inner, "z": texts} if level % 2 else [texts, inner]
    raw = json.dumps(inner, ensure_ascii=False).encode()
    if _depth(inner) <= MAX_DEPTH:
        assert read_json(raw, max_bytes=MB) == inner
    else:
        assert "64 levels" in error_of(lambda: read_json(raw, max_bytes=MB)).message


BAD_BATCHES: list[tuple[bytes, type[OndotError], str, str]] = [
    (b"[]", InvalidBody, "/jobs", "must be a list of jobs"),
    (b'{"jobs": {"a": 1}}', InvalidBody, "/jobs", "must be a list of jobs"),
    (b'{"jobs": 3, "b": 1}', InvalidBody, "/jobs", "must be a list of jobs"),
    (b'{"jobs": [], "b": 1}', InvalidBody, "/b", "no field `b`"),
    (b'{"jobs": [' + b"1," * MAX_BATCH + b"1]}", InvalidBody, "/jobs", "several batches"),
    (b'{"jobs": [' + b"[]," * 3_000_000 + b"[]]}", InvalidBody, "", "1,048,576 values"),
    (b'{"jobs": [[' + b'{"a": [' * 70 + b"]}" * 70 + b"]]}", InvalidBody, "/jobs/0", "64 levels"),
    (b'{"jobs": [{"name": "\xff"}]}', NotJson, "", "The job at /jobs/0 is not UTF-8"),
    (b'{"jobs": [1, 1e999]}', NotJson, "", "The job at /jobs/1 has a number"),
    (b'{"jobs": [{"name": "x",}]}', NotJson, "", "byte 23"),
    (b'{"jobs": [', NotJson, "", "ends too early"),
    (b"[" * 100_000, InvalidBody, "", "64 levels"),
    (b'{"' + b"n" * MB + b'": 1, "jobs": []}', InvalidBody, "/" + "n" * 64, "no field"),
]


@pytest.mark.parametrize(("raw", "kind", "pointer", "words"), BAD_BATCHES, ids=lambda value: repr(value)[:40])
def test_a_bad_batch_is_rejected_before_its_jobs_are_decoded(
    raw: bytes, kind: type[OndotError], pointer: str, words: str
) -> None:
    error = error_of(lambda: job_specs(read_batch(raw, max_bytes=BATCH_BYTES, items="jobs"), NOW))
    assert type(error) is kind
    assert words in error.message
    if isinstance(error, InvalidBody):
        assert error.faults[0].pointer == pointer


def test_a_job_of_a_batch_may_be_as_large_as_a_job_alone_and_no_larger() -> None:
    def batch(length: int) -> object:
        raw = json.dumps({"jobs": [HELLO, {**HELLO, "zzz": "x" * length}]}).encode()
        return read_batch(raw, max_bytes=BATCH_BYTES, items="jobs")

    assert isinstance(error_of(lambda: job_specs(batch(JOB_BYTES - 100), NOW)), InvalidBody)
    error = error_of(lambda: job_specs(batch(JOB_BYTES), NOW))
    assert isinstance(error, TooLarge)
    assert error.facts["pointer"] == "/jobs/1"


def _with_bodies(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (method, path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]


async def test_every_route_with_a_body_rejects_one_that_is_too_large_or_too_full(api: Caller) -> None:
    found = _with_bodies((await api.http.get("/openapi.json")).json())
    assert len(found) >= 12
    job = await api.create(HELLO)
    for method, path in found:
        url = path.replace("{id}", job["id"]).replace("{name}", "default")
        claimed = {"content-length": "999999999999"}
        answer = await api.http.request(method, url, content=b"{}", headers=claimed)
        assert (answer.status_code, answer.json()["type"]) == (413, "urn:ondot:problem:too-large"), (method, path)
        limit = LIMITS.get(path, JOB_BYTES)
        assert answer.json()["max_bytes"] == limit, (method, path)

        async def endless() -> AsyncIterator[bytes]:
            while True:
                yield b" " * MB

        answer = await api.http.request(method, url, content=endless())
        assert (answer.status_code, answer.json()["max_bytes"]) == (413, limit), (method, path)
        answer = await api.http.request(method, url, content=b"[" + b"[]," * (limit // 4) + b"[]]")
        assert answer.status_code == 422, (method, path)
        assert "values" in answer.json()["detail"], (method, path)


@proves("S1")
async def test_others_are_answered_while_a_large_body_is_decoded(api: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    begun = asyncio.Event()
    real = read_json

    def slow(raw: bytes, **options: Any) -> object:
        if len(raw) > LARGE:
            loop.call_soon_threadsafe(begun.set)
            assert go_on.wait(10), "a large body blocks the loop for all other requests"
        return real(raw, **options)

    monkeypatch.setattr(request_body, "read_json", slow)
    large = asyncio.create_task(api.http.post("/v1/jobs", json={**HELLO, "payload": "x" * 2 * LARGE}))
    await asyncio.wait_for(begun.wait(), 20)
    await api.create(HELLO)
    go_on.set()
    assert (await large).status_code == 201


async def test_large_bodies_at_once_are_bounded_and_small_ones_always_pass(api: Caller) -> None:
    room = MOST_BATCHES * BATCH_BYTES
    held, more, arrived = asyncio.Event(), asyncio.Event(), asyncio.Semaphore(0)

    async def filling() -> AsyncIterator[bytes]:
        yield b'{"jobs": ['
        yield b" " * (BATCH_BYTES - 100)
        arrived.release()
        await held.wait()
        yield b"]}"

    async def waiting() -> AsyncIterator[bytes]:
        yield b" " * LARGE
        more.set()
        yield b" " * 200

    batches = [asyncio.create_task(api.http.post("/v1/jobs/batch", content=filling())) for _ in range(MOST_BATCHES)]
    for _ in batches:
        await arrived.acquire()
    answer = await api.http.post("/v1/jobs", content=waiting())
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:ondot:problem:busy")
    assert int(answer.headers["retry-after"]) > 0
    assert more.is_set()
    assert f"{room - MOST_BATCHES * 90:,}"[:4] in answer.json()["detail"]
    await api.create(HELLO)
    held.set()
    assert {(await batch).status_code for batch in batches} == {422}
    await api.create({**HELLO, "payload": "x" * 2 * LARGE})


async def test_a_body_that_never_ends_releases_its_room(api: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "WITHIN_S", 0.05)

    async def endless() -> AsyncIterator[bytes]:
        yield b" " * (BATCH_BYTES - 1)
        await asyncio.Event().wait()

    for _ in range(2 * MOST_BATCHES):
        assert (await api.http.post("/v1/jobs/batch", content=endless())).status_code == 400
    monkeypatch.undo()
    assert (await api.http.post("/v1/jobs/batch", json={"jobs": [HELLO]})).status_code == 201


async def test_a_long_query_is_rejected_and_not_repeated_in_the_answer(api: Caller) -> None:
    for path in ("jobs?" + "n" * 9000 + "=1", "jobs?name=" + "n" * 9000, "jobs?" + "label=a:b&" * 1000):
        answer = await api.http.get(f"/v1/{path}")
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-parameters")
        assert len(answer.content) < 1000
    for path in ("jobs?" + "n" * 5000 + "=1", "jobs?label=" + "n" * 5000, "jobs/" + "n" * 5000, "n" * 5000):
        answer = await api.http.get(f"/v1/{path}")
        assert answer.status_code in {404, 422}
        assert len(answer.content) < 1000, path


@proves("P12")
@pytest.mark.parametrize("place", ["name", "labels", "schedule", "retry"])
async def test_a_name_of_a_megabyte_is_not_sent_back(api: Caller, place: str) -> None:
    long = "x" * 1_000_000
    body = {"function": "f", long: 1} if place == "name" else {"function": "f", place: {long: "1" * 500}}
    answer = await api.http.post("/v1/jobs", json=body)
    assert answer.status_code == 422
    assert len(answer.content) < 100_000
