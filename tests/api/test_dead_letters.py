"""`/v1/dead-letters` and `/v1/executions/{id}/retry` as a client sees them."""

from typing import Any
from uuid import uuid4

import pytest

from ondot.flow.bulk.turns import bulk_pass
from ondot.model.fingerprint import fingerprint
from tests.api.conftest import Caller
from tests.proves import proves
from tests.world import failed

LETTERS = "/v1/dead-letters"


async def fail(api: Caller, message: str = "it broke", **fields: Any) -> str:
    """A job that fails for good; returns its execution."""
    await api.create({"name": "broken", "function": "f", "max_retries": 0, **fields})
    worker = await api.world.worker()
    [attempt] = await worker.lease()
    await worker.complete(attempt, failed(message))
    await api.world.advance(1)
    return str(attempt.leased.id)


async def post(
    api: Caller, path: str, body: object, status: int = 200, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    answer = await api.http.post(path, json=body, headers=headers or {})
    assert answer.status_code == status, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def ids(api: Caller, **parameters: Any) -> list[str]:
    return [item["execution_id"] for item in (await api.get(LETTERS, **parameters))["items"]]


@proves("E10")
async def test_letters_are_listed_latest_failure_first_page_by_page(api: Caller) -> None:
    made = [await fail(api, f"order {n} is gone") for n in range(5)][::-1]
    assert await ids(api) == made
    first = await api.get(LETTERS, limit=2)
    second = await api.get(LETTERS, limit=2, cursor=first["next_cursor"])
    third = await api.get(LETTERS, limit=2, cursor=second["next_cursor"])
    listed = [item["execution_id"] for page in (first, second, third) for item in page["items"]]
    assert (listed, third["next_cursor"]) == (made, None)
    letter = first["items"][0]
    assert (letter["job_name"], letter["state"], letter["pool"], letter["origin"]) == (
        "broken",
        "open",
        "default",
        "fire",
    )
    assert (letter["error"]["message"], letter["attempts_made"]) == ("order 4 is gone", 1)
    assert "no retries" in letter["reason"]
    for cursor in ("x", "1", f"1.{uuid4()}x", f"-1.{uuid4()}", f"99999999999999999.{uuid4()}"):
        assert (await api.http.get(LETTERS, params={"cursor": cursor})).status_code == 422


@proves("E10")
async def test_letters_that_failed_at_the_same_instant_are_paged_without_loss(api: Caller) -> None:
    for _ in range(5):
        await api.create({"name": "broken", "function": "f", "max_retries": 0})
    worker = await api.world.worker()
    attempts = await worker.lease()
    await worker.complete_all(attempts, failed())
    listed, cursor = [], None
    for _ in range(3):
        page = await api.get(LETTERS, limit=2, **({"cursor": cursor} if cursor else {}))
        listed += [item["execution_id"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert sorted(listed) == sorted(str(attempt.leased.id) for attempt in attempts)


@proves("E10")
async def test_letters_are_found_by_each_filter(api: Caller) -> None:
    one = await fail(api, "Alpha is down")
    middle = api.world.now.isoformat()
    two = await fail(api, "beta is down")
    job_id = (await api.get(f"/v1/executions/{two}"))["job_id"]
    alike = fingerprint({"code": "broken", "message": "beta is down"})
    assert await ids(api, job_id=job_id) == [two]
    assert await ids(api, q="alpha") == [one]
    assert await ids(api, fingerprint=alike) == [two]
    assert await ids(api, from_at=middle) == [two]
    assert await ids(api, to_at=middle) == [one]
    assert await ids(api, pool="default") == [two, one]
    assert await ids(api, pool="other") == []
    await post(api, f"{LETTERS}/discard", {"ids": [one], "reason": "old"})
    await post(api, f"{LETTERS}/replay", {"ids": [two]})
    assert await ids(api) == []
    assert await ids(api, state="discarded") == [one]
    assert await ids(api, state="replayed") == [two]
    assert await ids(api, state="all") == [two, one]
    for bad in ({"state": "closed"}, {"jobid": job_id}, {"job_id": "x"}, {"from_at": "2026-01-01T00:00:00"}):
        assert (await api.http.get(LETTERS, params=bad)).status_code == 422, bad


@proves("E10")
async def test_letters_with_similar_errors_are_one_group(api: Caller) -> None:
    first_at = api.world.now
    for n in range(3):
        await fail(api, f"order {n} is gone", name=f"job {n}")
    last = await fail(api, "order 17 is gone", name="job 3")
    other = await fail(api, "timed out")
    old = await fail(api, "of an old release")
    await api.world.value("UPDATE ondot.dead_letter SET error = error - 'fingerprint' WHERE execution_id = $1", old)
    unknown, timed_out, gone = (await api.get(f"{LETTERS}/groups"))["items"]
    assert (unknown["fingerprint"], unknown["count"], unknown["sample_execution_id"]) == ("unknown", 1, old)
    assert (timed_out["count"], timed_out["sample_execution_id"]) == (1, other)
    assert gone["fingerprint"] == fingerprint({"code": "broken", "message": "order 5 is gone"})
    assert (gone["count"], gone["sample_execution_id"], gone["job_count"]) == (4, last, 4)
    assert gone["sample_error"]["message"] == "order 17 is gone"
    assert {entry["name"] for entry in gone["jobs"]} == {f"job {n}" for n in range(4)}
    assert gone["first_failed_at"] == first_at.isoformat().replace("+00:00", "Z")
    assert await ids(api, fingerprint="unknown") == [old]
    [found] = (await api.get(f"{LETTERS}/groups", q="timed"))["items"]
    assert found["fingerprint"] == timed_out["fingerprint"]
    [found] = (await api.get(f"{LETTERS}/groups", fingerprint="unknown"))["items"]
    assert found["count"] == 1
    assert len((await api.get(f"{LETTERS}/groups", limit=2))["items"]) == 2
    assert (await api.get(f"{LETTERS}/groups", pool="other"))["items"] == []


@proves("E10")
async def test_a_letter_shows_its_payload_its_attempts_and_its_replay(api: Caller) -> None:
    id_ = await fail(api, payload={"n": 1})
    letter = await api.get(f"{LETTERS}/{id_}")
    assert (letter["payload"], letter["state"], letter["replay_id"], letter["replay_state"]) == (
        {"n": 1},
        "open",
        None,
        None,
    )
    assert [attempt["outcome"] for attempt in letter["attempts"]] == ["FAILED"]
    done = await post(api, f"{LETTERS}/replay", {"ids": [id_], "payload": {"n": 2}, "reason": "fixed"})
    replay_id = done["items"][0]["replay_id"]
    await api.run_all()
    letter = await api.get(f"{LETTERS}/{id_}")
    assert (letter["state"], letter["resolved_by"], letter["resolved_reason"]) == ("replayed", "local", "fixed")
    assert (letter["replay_id"], letter["replay_state"]) == (replay_id, "SUCCEEDED")
    again = await api.get(f"/v1/executions/{replay_id}")
    assert (again["origin"], again["payload"]) == ("replay", {"n": 2})


@proves("E10", "T1")
async def test_an_unknown_id_is_not_found(api: Caller) -> None:
    for path in (f"{LETTERS}/{uuid4()}", f"{LETTERS}/nonsense", f"{LETTERS}/operations/{uuid4()}"):
        assert (await api.http.get(path)).status_code == 404
    for path in (f"{LETTERS}/operations/{uuid4()}/cancel", f"/v1/executions/{uuid4()}/retry", "/v1/executions/x/retry"):
        assert (await api.http.post(path)).status_code == 404


@proves("E10")
async def test_each_id_has_a_result(api: Caller) -> None:
    one, two = await fail(api), await fail(api)
    unknown = str(uuid4())
    assert await post(api, f"{LETTERS}/replay", {"ids": [one, unknown], "dryRun": True}) == {
        "dry_run": True,
        "count": 1,
    }
    await post(api, f"{LETTERS}/discard", {"ids": [one], "reason": "old"})
    done = await post(api, f"{LETTERS}/replay", {"ids": [two, one, unknown, two]})
    assert (done["done"], done["refused"]) == (1, 2)
    assert [item["result"] for item in done["items"]] == ["replayed", "already_resolved", "not_found"]
    assert "discarded by local" in done["items"][1]["detail"]


@proves("E10", "O8")
async def test_an_operation_by_filter_is_accepted_run_and_shown_with_its_progress(api: Caller) -> None:
    for n in range(3):
        await fail(api, f"order {n} is gone")
    await fail(api, "timed out")
    body = {"filter": {"q": "gone", "fromAt": "2020-01-01T00:00:00Z"}, "rate": 8, "payload": None, "version": "current"}
    assert (await post(api, f"{LETTERS}/replay", body | {"dry_run": True}))["count"] == 3
    bulk = await post(api, f"{LETTERS}/replay", body, 202)
    assert (bulk["action"], bulk["state"], bulk["total"], bulk["done"]) == ("replay", "RUNNING", 3, 0)
    assert (bulk["rate"], bulk["version"], bulk["edited_payload"], bulk["actor"]) == (
        8,
        "current",
        True,
        "local",
    )
    assert bulk["filter"] == {"q": "gone", "from_at": "2020-01-01T00:00:00Z"}
    await bulk_pass(api.world.database, api.world.dispatcher)
    assert (await api.get(f"{LETTERS}/operations/{bulk['id']}"))["done"] == 2
    answer = await api.http.post(f"{LETTERS}/operations/{bulk['id']}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (200, "CANCELLED")
    everything = await post(api, f"{LETTERS}/discard", {"all": True, "reason": "clean up"}, 202)
    assert everything["total"] == 2
    listed = (await api.get(f"{LETTERS}/operations", limit=1))["items"]
    assert [item["id"] for item in listed] == [everything["id"]]
    page = await api.get(f"{LETTERS}/operations", limit=1)
    rest = await api.get(f"{LETTERS}/operations", cursor=page["next_cursor"])
    assert [item["id"] for item in rest["items"]] == [bulk["id"]]


@proves("E10")
@pytest.mark.parametrize(
    ("path", "body", "pointer", "words"),
    [
        ("replay", {}, "", "`ids`, a `filter`"),
        ("replay", {"filter": {}}, "/filter", "every letter"),
        ("replay", {"filter": {"q": None}}, "/filter", "every letter"),
        ("replay", {"ids": [str(uuid4())], "filter": {"q": "x"}}, "/filter", "one of them"),
        ("replay", {"all": True, "filter": {"q": "x"}}, "/all", "only some"),
        ("replay", {"ids": []}, "/ids", "at least 1"),
        ("replay", {"ids": ["x"]}, "/ids/0", "the id of an execution"),
        ("replay", {"ids": [str(uuid4())] * 1001}, "/ids", "at most 1000"),
        ("replay", {"ids": [str(uuid4())], "rate": 5}, "/rate", "at once"),
        ("replay", {"all": True, "rate": 0}, "/rate", "at least 1"),
        ("replay", {"all": True, "rate": 1001}, "/rate", "at most 1000"),
        ("replay", {"all": "yes"}, "/all", "true or false"),
        ("replay", {"filter": {"jobId": 7}}, "/filter/jobId", "the id of a job"),
        ("replay", {"filter": {"fingerprnt": "x"}}, "/filter/fingerprnt", "did you mean `fingerprint`?"),
        ("replay", {"filter": {"state": "open"}}, "/filter/state", "There is no field"),
        ("replay", {"fingerprint": "x"}, "/fingerprint", "belongs in `filter`"),
        ("replay", {"all": True, "version": 3}, "/version", '"current"'),
        ("replay", {"all": True, "reason": " "}, "/reason", "not blank"),
        ("discard", {"all": True}, "/reason", "is missing"),
        ("discard", {"all": True, "reason": "x", "payload": {}}, "/payload", "There is no field"),
        ("replay", [], "", "a JSON object"),
    ],
)
async def test_a_bad_request_names_the_field_and_what_to_do(
    api: Caller, path: str, body: object, pointer: str, words: str
) -> None:
    answer = await api.http.post(f"{LETTERS}/{path}", json=body)
    assert answer.status_code == 422, answer.text
    [fault] = answer.json()["errors"]
    assert fault["pointer"] == pointer
    assert words in fault["detail"]


@proves("E10")
async def test_a_payload_that_is_too_large_is_rejected(api: Caller) -> None:
    answer = await api.http.post(f"{LETTERS}/replay", json={"all": True, "payload": "x" * 1_048_576})
    assert answer.status_code == 413


@proves("E10", "P2")
async def test_the_same_key_returns_the_same_replay(api: Caller) -> None:
    id_ = await fail(api)
    key = {"Idempotency-Key": "once"}
    first, second = [await post(api, f"{LETTERS}/replay", {"ids": [id_]}, headers=key) for _ in range(2)]
    assert first == second
    assert first["items"][0]["result"] == "replayed"
    again = {"Idempotency-Key": "operation"}
    started = [await post(api, f"{LETTERS}/discard", {"all": True, "reason": "x"}, 202, again) for _ in range(2)]
    assert started[0] == started[1]
    reused = await api.http.post(f"{LETTERS}/replay", json={"all": True}, headers=key)
    assert reused.status_code == 422


@proves("E10")
async def test_a_retry_returns_the_execution_that_runs(api: Caller) -> None:
    await api.create({"name": "flaky", "function": "f", "retry": {"jitter": False, "initial": "10m"}})
    worker = await api.world.worker()
    [attempt] = await worker.lease()
    path = f"/v1/executions/{attempt.leased.id}/retry"
    refused = await api.http.post(path)
    assert refused.status_code == 409
    assert "cancel it first" in refused.json()["detail"]
    assert refused.json()["state"] == "RUNNING"
    await worker.complete(attempt, failed())
    waiting = await post(api, path, {"reason": "the database is back"}, 202)
    assert (waiting["id"], waiting["state"], waiting["job_name"]) == (str(attempt.leased.id), "RETRYING", "flaky")
    await api.run_all()
    headers = {"Idempotency-Key": "click"}
    made = [await post(api, path, {"payload": {"n": 2}}, 201, headers) for _ in range(2)]
    assert made[0] == made[1]
    assert (made[0]["origin"], made[0]["state"], made[0]["payload"]) == ("replay", "PENDING", {"n": 2})
    assert made[0]["id"] != waiting["id"]
    bad = await api.http.post(path, json={"payloud": 1})
    assert bad.status_code == 422
