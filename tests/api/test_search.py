"""`q` of the lists as a client sees it: what is found, how an answer that stopped early looks, errors, limited keys."""

from pathlib import Path
from typing import Any

import pytest

from ondot.flow.bulk.turns import bulk_pass
from ondot.flow.workflows.begin import begin
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


@proves("O1", "O8", "E10")
async def test_dead_letters_are_searched_and_changed_by_the_same_language(filled: Caller) -> None:
    await filled.create({"name": "mail", "function": "f", "labels": {"team": "ops"}, "max_retries": 0})
    worker = await filled.world.worker()
    for assignment in await worker.lease():
        await worker.complete(assignment, failed("connection: refused by 10.0.0.1"))
    letters = "/v1/dead-letters"
    queries = {
        "": ["mail", "report"],
        "TIMED": ["report"],
        '"connection: refused"': ["mail"],
        "error:refused -timed": ["mail"],
        "job:r*": ["report"],
        "label.team=bi,ops": ["mail", "report"],
        "label.team=bi": ["report"],
        "pool:default payload.n=6": ["report"],
        "since:1h -label.team=bi": ["mail"],
        "until:1h": [],
        "state:replayed": [],
        "state:all group:*": ["mail", "report"],
        "group:unknown": [],
    }
    for q, expected in queries.items():
        assert await jobs_of(filled, letters, q=q) == expected, q
        groups = (await filled.get(f"{letters}/groups", q=q))["items"]
        assert len(groups) == len(expected), q
    assert (await filled.http.get(letters, params={"q": "stat:open"})).status_code == 422
    counted = await filled.http.post(
        f"{letters}/replay", json={"filter": {"q": "label.team=bi timed"}, "dry_run": True}
    )
    assert counted.json()["count"] == 1
    body = {"of": "dead_letters", "action": "discard", "q": "job:mail since:1h", "reason": "gone"}
    started = await filled.http.post("/v1/bulk", json=body)
    assert (started.status_code, started.json()["total"], started.json()["q"]) == (202, 1, body["q"])
    await bulk_pass(filled.world.database, filled.world.dispatcher)
    assert await jobs_of(filled, letters) == ["report"]
    assert await jobs_of(filled, letters, q="state:discarded") == ["mail"]


@proves("O1", "O8", "W8")
async def test_runs_are_searched_and_changed_by_the_same_language(api: Caller) -> None:
    for name, team in (("etl", "bi"), ("mail", "ops")):
        workflow = {"name": name, "steps": {"a": {"function": "f"}}, "labels": {"team": team}}
        assert (await api.http.post("/v1/workflows", json=workflow)).status_code == 201
    worker = await api.world.worker()
    for assignment in await worker.lease(2):
        assert await begin(api.world.database, api.world.dispatcher, worker.id, assignment.leased)

    async def found(q: str, **parameters: Any) -> list[str]:
        return [run["job_name"] for run in (await api.get("/v1/runs", q=q, **parameters))["items"]]

    mail, etl = (await api.get("/v1/runs", q=""))["items"]
    queries = {
        "": ["mail", "etl"],
        "et": ["etl"],
        f"job:{etl['job_id']}": ["etl"],
        "label.team=bi": ["etl"],
        "state:running paused:no took<1h": ["mail", "etl"],
        "state:failed": [],
        "since:1h -label.team=bi": ["mail"],
        "until:1h": [],
        f"id:{mail['id']}": ["mail"],
        f"parent:{mail['id']}": [],
    }
    for q, expected in queries.items():
        assert await found(q) == expected, q
    assert await found("", job_id=etl["job_id"], state="RUNNING") == ["etl"]
    first = await api.get("/v1/runs", q="", limit=1)
    assert await found("", cursor=first["next_cursor"]) == ["etl"]
    started = await api.http.post("/v1/bulk", json={"of": "runs", "action": "pause", "q": "label.team=bi"})
    assert (started.status_code, started.json()["total"]) == (202, 1)
    await bulk_pass(api.world.database, api.world.dispatcher)
    assert await found("paused:yes") == ["etl"]
