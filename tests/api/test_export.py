"""Every list as CSV or JSON lines (O2): `?format=csv|jsonl`."""

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute

from ondot.api import export
from ondot.api.export import columns_of, csv_cell
from ondot.api.server import PARTS
from tests.api.conftest import Caller
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, job

HOSTILE = ["=1+1", "+1", "-1", "@SUM(A1)", "\ttab", 'quote " and, comma', "line\nbreak"]


def lists() -> Iterator[str]:
    for part in PARTS:
        for route in part.router.routes:
            if isinstance(route, APIRoute) and columns_of(route) and "{" not in route.path:
                yield f"/v1{route.path}"


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


@proves("O2")
async def test_every_list_is_a_file_with_the_items_of_its_pages(api: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PAGE", 2)
    for n in range(55):
        body = {"name": f"job {n}", "function": "f", "labels": {"n": str(n)}, "max_retries": 0}
        answer = await api.http.post("/v1/jobs", json=body)
        assert answer.status_code == 201
    await api.run_all()
    full = 0
    for path in lists():
        page = await api.http.get(path)
        if page.status_code != 200:
            continue
        items = page.json()["items"]
        lines = await api.http.get(path, params={"format": "jsonl"})
        assert lines.status_code == 200, (path, lines.text)
        assert lines.headers["content-type"] == "application/x-ndjson"
        exported = [json.loads(line) for line in lines.text.splitlines()]
        text = (await api.http.get(path, params={"format": "csv"})).text
        header = next(csv.reader(io.StringIO(text, newline="")))
        rows = rows_of(text)
        if path not in {"/v1/audit", "/v1/nodes", "/v1/workers", "/v1/sessions", "/v1/pools"}:
            assert exported[: len(items)] == items, path
            assert [set(item) - set(header) for item in items] == [set() for _ in items], path
        assert len(rows) == len(exported), path
        full += len(exported) > 50
    assert full >= 2, "at least jobs and executions have several pages"
    some = await api.http.get("/v1/jobs", params={"format": "csv", "limit": 3})
    assert len(rows_of(some.text)) == 3
    assert some.headers["content-disposition"] == 'attachment; filename="jobs.csv"'


@proves("O2")
async def test_cells_that_a_spreadsheet_would_run_are_escaped(api: Caller) -> None:
    for text in HOSTILE:
        name = text.replace("\t", " ").replace("\n", " ").strip()
        answer = await api.http.post("/v1/jobs", json={"name": name, "function": "f", "payload": {"text": text}})
        assert answer.status_code == 201, answer.text
    exported = (await api.http.get("/v1/jobs", params={"format": "csv"})).text
    names = {row["name"] for row in rows_of(exported)}
    assert {"'=1+1", "'+1", "'-1", "'@SUM(A1)", 'quote " and, comma'} <= names
    assert all(json.loads(row["payload"])["text"] in HOSTILE for row in rows_of(exported)), "nested values are JSON"
    assert [csv_cell(value) for value in ("\tx", "\rx", "x", "", None, -5, True, ["=1"])] == [
        *("'\tx", "'\rx", "x", "", "", "-5", "true", '["=1"]')
    ]


@proves("O2", "P9")
async def test_a_bad_request_is_an_answer_and_not_a_file(api: Caller) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"format": "xml"}, "`format` must be csv or jsonl, got 'xml'"),
        ({"format": "csv", "limit": "0"}, "`limit` must be a number above 0"),
        ({"format": "csv", "stat": "x"}, "Unknown parameter 'stat'"),
        ({"format": "csv", "state": "BROKEN"}, "state"),
        ({"format": "csv", "cursor": "x"}, "The cursor is not valid"),
    ]
    for parameters, message in bad:
        answer = await api.http.get("/v1/executions", params=parameters)
        assert answer.status_code == 422, parameters
        assert answer.headers["content-type"] == "application/problem+json"
        assert message in answer.json()["detail"]


@proves("O2", "L1")
async def test_a_file_that_cannot_be_finished_ends_with_a_cut_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "PAGE", 2)
    await world.submit_all([job() for _ in range(5)])
    ask, pages = export.Exports._ask, 0

    async def fails(self: Any, *arguments: Any) -> Any:
        nonlocal pages
        pages += 1
        answer = await ask(self, *arguments)
        return replace(answer, status=503) if pages == 2 else answer

    async def read(http: httpx2.AsyncClient) -> list[str]:
        async with http.stream("GET", "/v1/jobs", params={"format": "jsonl"}) as answer:
            assert answer.status_code == 200
            return [line async for line in answer.aiter_lines()]

    monkeypatch.setattr(export.Exports, "_ask", fails)
    await world.submit_all([job() for _ in range(55)])
    async with served(world.database) as page:
        with pytest.raises(httpx2.RemoteProtocolError):
            await read(page.client)
        assert len(await read(page.client)) == 60
