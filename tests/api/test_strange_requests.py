"""A request with any content in any place succeeds or is rejected: it is never a 500 (L7)."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI

from tests.api.conftest import Caller
from tests.proves import proves
from tests.ui.serving import Served, build, served
from tests.world import World, job

STRANGE: tuple[bytes, ...] = (
    b"",
    b"\x00",
    b"a\x00b",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    "\u202e".encode(),
    "\U0001f600".encode() * 30,
    b"../../etc/passwd",
    b"%00",
    b"'; DROP TABLE job; --",
    b"{}",
    b"[",
    b"-1",
    b"0",
    b"99999999999999999999999999",
    b"9" * 5000,
    b"00000000000999999999999.1",
    b"1." + b"9" * 5000,
    b"NaN",
    b"1e309",
    b"true",
    b"2026-11-16T00:00:00Z",
    b"9999-12-31T23:59:59.999999999Z",
    b"0001-01-01T00:00:00+23:59",
    "\u0664\u0665".encode(),
    b"a" * 3000,
    b"00000000-0000-0000-0000-000000000000",
    b"ffffffff-ffff-ffff-ffff-ffffffffffff",
)
HEADERS = ("origin", "idempotency-key", "if-match", "authorization", "cookie", "accept", "content-type", "range", "x-y")
PAGES = ("/jobs", "/executions", "/dead-letters", "/schedules", "/fleet", "/", "/docs", "/ui/static/{name}")
PAGE_PARAMETERS = (
    "q",
    "state",
    "pool",
    "name",
    "label",
    "cursor",
    "from_at",
    "to_at",
    "kind",
    "expression",
    "n",
    "zone",
)
AN_ID = "019a1de9-4d8d-7d9d-8dd7-1801991e16d7"


@pytest.fixture
async def page(world: World) -> AsyncIterator[Served]:
    async with served(world.database) as page:
        yield page


@pytest.fixture
def app(world: World) -> FastAPI:
    return build(world.database, world.database.settings)[0]


def routes(app: FastAPI) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in app.openapi()["paths"].items():
        for method, described in methods.items():
            yield method.upper(), path, described
    for path in (*PAGES, "/jobs/{id}", "/executions/{id}"):
        yield "GET", path, {}


def some(values: Sequence[bytes], number: int, step: int) -> Sequence[bytes]:
    """Each place gets some of the values, each value is in many places: all of them everywhere would take minutes."""
    return values[number % step :: step]


def fill_path(path: str, value: str) -> str:
    begin, _, rest = path.partition("{")
    return path if not rest else fill_path(begin + value + rest.partition("}")[2], value)


async def never_500(page: Served, method: str, path: str, headers: dict[str, bytes] | None = None) -> None:
    sent = [(name.encode(), value) for name, value in (headers or {}).items()]
    answer = await page.client.request(method, page.url + path, headers=sent, timeout=60)
    assert answer.status_code < 500, f"{method} {path[:200]} {headers}: {answer.status_code} {answer.text[:500]}"


@proves("L7")
@pytest.mark.timeout(180)
async def test_no_path_causes_a_server_error(page: Served, app: FastAPI) -> None:
    for number, (method, path, _) in enumerate(route for route in routes(app) if "{" in route[1]):
        for value in some(STRANGE, number, 3):
            await never_500(page, method, fill_path(path, quote(value, safe="")))
        await never_500(page, method, fill_path(path, "ffffffff-ffff-ffff-ffff-ffffffffffff"))


@proves("L7")
@pytest.mark.timeout(180)
async def test_no_parameter_causes_a_server_error(page: Served, app: FastAPI, world: World) -> None:
    accepted = await world.submit(job("there"))
    [execution] = await world.executions(accepted.id)
    for number, (method, path, described) in enumerate(routes(app)):
        ids = str(execution.id) if "/executions/" in path else str(accepted.id) if "/jobs/" in path else AN_ID
        names = [found["name"] for found in described.get("parameters", ()) if found["in"] == "query"]
        for at, name in enumerate(names or (PAGE_PARAMETERS if path in PAGES[:4] else ("unknown",))):
            for value in some(STRANGE, number + at, 5 if names else len(STRANGE)):
                await never_500(page, method, f"{fill_path(path, ids)}?{name}={quote(value, safe='')}")
        await never_500(page, method, f"{fill_path(path, ids)}?%00=%ff&=&&=&{'a=b&' * 500}")


@proves("L7")
@pytest.mark.timeout(180)
async def test_no_header_causes_a_server_error(page: Served, app: FastAPI) -> None:
    sendable = [value for value in STRANGE if value and b"\x00" not in value]
    for number, (method, path, described) in enumerate(routes(app)):
        for at, name in enumerate(HEADERS if described else HEADERS[:2]):
            for value in some(sendable, number + at, len(sendable)):
                await never_500(page, method, fill_path(path, AN_ID), {name: value})


@proves("L7")
async def test_a_cursor_of_a_log_that_is_too_long_or_too_large_is_422(api: Caller) -> None:
    created = await api.create({"name": "x", "function": "f"})
    execution = await api.execution_of(created)
    for cursor in ("1." + "9" * 5000, "00000000000999999999999.1", "2147483648.0", "1.-1", "1", "\u0661.1", "1.1.1"):
        answer = await api.http.get(f"/v1/executions/{execution}/logs", params={"cursor": cursor})
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:ondot:problem:invalid-parameters")
    assert (await api.get(f"/v1/executions/{execution}/logs", cursor="2147483647.0"))["items"] == []
