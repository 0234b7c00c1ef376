"""Requests that are strange before anybody looks at what is in them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from ondot.api import services
from tests.api.conftest import Caller


async def test_a_body_that_never_ends_is_refused_in_bounded_time(api: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "BODY_WITHIN_S", 0.05)

    async def endless() -> AsyncIterator[bytes]:
        yield b'{"name": '
        await asyncio.Event().wait()

    answer = await api.http.post("/v1/jobs", content=endless())
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:ondot:problem:invalid-request")
    assert "did not end" in answer.json()["detail"]


async def test_a_body_that_claims_to_be_huge_is_refused_before_it_is_read(api: Caller) -> None:
    read = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal read
        read += 1
        yield b"{}"

    answer = await api.http.post("/v1/jobs", content=counted(), headers={"content-length": "999999999999"})
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:ondot:problem:too-large")
    assert read == 0


async def test_a_body_that_grows_past_the_limit_is_refused(api: Caller) -> None:
    async def growing() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 2**20

    answer = await api.http.post("/v1/jobs", content=growing())
    assert answer.status_code == 413


async def test_an_empty_body_is_told_to_be_empty(api: Caller) -> None:
    answer = await api.http.post("/v1/jobs")
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:ondot:problem:not-json")
    assert "empty" in answer.json()["detail"]


async def test_a_misspelt_filter_does_not_list_everything(api: Caller) -> None:
    answer = await api.http.get("/v1/jobs", params={"stat": "ACTIVE"})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-parameters")
    assert "did you mean state?" in answer.json()["detail"]


async def test_a_parameter_that_is_not_valid_is_told_as_one(api: Caller) -> None:
    answer = await api.http.get("/v1/jobs", params={"limit": "many"})
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-parameters")
    assert "limit" in answer.json()["detail"]
