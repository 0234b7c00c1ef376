"""`q` of the lists as a client sees it: what is found, how an answer that stopped early looks, errors, limited keys."""

from pathlib import Path
from typing import Any

import pytest

from ondot.model.access import Role
from ondot.model.query import FIELDS
from ondot.store import search, search_jobs
from tests.api.conftest import Caller
from tests.api.test_rights import headers_of
from tests.proves import proves
from tests.world import failed

SEARCH = Path(__file__).parents[2] / "docs/reference/search.md"


async def jobs_of(api: Caller, path: str, **parameters: Any) -> list[str]:
    items = (await api.get(path, **parameters))["items"]
    return [item.get("job_name") or item["name"] for item in items]


@pytest.fixture
async def filled(api: Caller) -> Caller:
    """Four one-time jobs of which one failed, and two that recur."""
    for name, pool, labels in (
        ("import", "gpu", {"team": "bi"}),
        ("export", "default", {}),
        ("report", "default", {"team": "bi"}),
    ):
        await api.create(
            {
                "name": name,
                "function": "f",
                "pool": pool,
                "labels": labels,
                "payload": {"n": len(name)},
                "max_retries": 0,
            }
        )
    worker = await api.world.worker()
    for assignment in await worker.lease():
        assert assignment.spec is not None
        await worker.complete(assignment, failed("it timed out") if assignment.spec.name == "report" else None)
    await api.create(
        {"name": "nightly", "cron": "0 3 * * *", "url": "https://example.com", "key": "n-1", "labels": {"team": "bi"}}
    )
    paused = await api.create({"name": "hourly", "every": "1h", "function": "tidy"})
    assert (await api.http.post(f"/v1/jobs/{paused['id']}/pause")).status_code == 200
    return api


@proves("O1")
async def test_lists_are_searched_by_one_language_beside_their_parameters(filled: Caller) -> None:
    executions = "/v1/executions"
    assert await jobs_of(filled, executions, q="") == ["report", "export", "import"]
    assert await jobs_of(filled, executions, q="label.team=bi") == ["report", "import"]
    assert await jobs_of(filled, executions, q="label.team=bi", state="FAILED") == ["report"]
    assert await jobs_of(filled, executions, q="-error:timed", pool="default") == ["export"]
    assert await jobs_of(
        filled, executions, q="payload.n>=6 port", from_at="2020-01-01T00:00:00Z", to_at="2100-01-01T00:00:00Z"
    ) == ["report", "export", "import"]
    assert await jobs_of(filled, executions, q="port", to_at="2020-01-01T00:00:00Z") == []
    first = await filled.get(executions, q="port", limit=1)
    assert await jobs_of(filled, executions, q="port", cursor=first["next_cursor"]) == ["export", "import"]
    assert first["searched_through"] is None
    jobs = {
        "": ["hourly", "nightly", "report", "export", "import"],
        "LY": ["hourly", "nightly"],
        "name:night*": ["nightly"],
        "label.team=bi -kind:once": ["nightly"],
        "paused:yes": ["hourly"],
        "paused:no kind:cron,every": ["nightly"],
        "state:active": ["nightly", "import"],
        "state:ended": ["report", "export"],
        "state:deleted": [],
        "target:http": ["nightly"],
        "function:TID*": ["hourly"],
        "key:n-*": ["nightly"],
        "-key:* kind:every": ["hourly"],
        "pool:gpu": ["import"],
        "payload.n=6 report": ["report"],
        "since:1h until:now name:nothing": [],
    }
    assert {q: await jobs_of(filled, "/v1/jobs", q=q) for q in jobs} == jobs
    assert await jobs_of(filled, "/v1/jobs", q="label.team=bi", state="ACTIVE", label="team:bi") == [
        "nightly",
        "import",
    ]
    newest = await filled.get("/v1/jobs", q="", limit=2)
    assert await jobs_of(filled, "/v1/jobs", q="", cursor=newest["next_cursor"]) == ["report", "export", "import"]


@proves("O1")
async def test_an_answer_that_stopped_early_never_looks_complete(
    filled: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((search, "search_executions"), (search_jobs, "search_jobs")):
        monkeypatch.setattr(getattr(module, name), "__defaults__", (None, 50, 1e-9))
    for path in ("executions", "jobs"):
        found = await filled.get(f"/v1/{path}", q="nothing-like-this")
        assert (found["items"], bool(found["next_cursor"]), bool(found["searched_through"])) == ([], True, True)


@proves("O1", "O6")
async def test_a_query_that_cannot_be_parsed_says_where(filled: Caller) -> None:
    for path, word in (("executions", "stat:failed"), ("jobs", "stat:active")):
        answer = await filled.http.get(f"/v1/{path}", params={"q": f"x {word}"})
        problem = answer.json()
        assert (answer.status_code, problem["type"]) == (422, "urn:ondot:problem:invalid-query")
        assert (problem["position"], problem["near"]) == (3, "state")
        assert (await filled.http.get(f"/v1/{path}", params={"q": "a " * 2_000})).status_code == 422


@proves("P12", "T1")
async def test_a_key_that_is_limited_to_pools_finds_only_what_is_in_them(filled: Caller) -> None:
    headers = await headers_of(filled.world, Role.VIEWER, pools=["gpu"])
    for path, q, expected in (("executions", "", 1), ("executions", "pool:default", 0), ("jobs", "", 1)):
        answer = await filled.http.get(f"/v1/{path}", params={"q": q}, headers=headers)
        assert len(answer.json()["items"]) == expected, answer.text


@proves("O1")
def test_the_documents_list_every_field_as_the_table_does() -> None:
    rows = [line for line in SEARCH.read_text().splitlines() if line.startswith("| `")]
    written = []
    for fields in FIELDS.values():
        for field in fields.values():
            choices = f" Values: {', '.join(f'`{choice}`' for choice in field.choices)}." if field.choices else ""
            written.append(f"| `{field.example}` | {field.about}{choices} |")
    assert rows == written
