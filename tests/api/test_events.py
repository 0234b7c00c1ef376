"""`/v1/events` as a sender sees it, and jobs that events start."""

import base64
import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.api.conftest import Caller
from tests.proves import proves

PAID = "com.acme.order.paid"


def event(id_: str = "1", **fields: Any) -> dict[str, Any]:
    return {"specversion": "1.0", "id": id_, "source": "/shop", "type": PAID, **fields}


async def send(api: Caller, sent: Any, status: int = 202) -> dict[str, Any]:
    kind = "application/cloudevents-batch+json" if isinstance(sent, list) else "application/cloudevents+json"
    answer = await api.http.post("/v1/events", content=json.dumps(sent), headers={"content-type": kind})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def on_event(api: Caller, *, name: str = "ship", **fields: Any) -> dict[str, Any]:
    rule = {"type": PAID, **fields.pop("event", {})}
    schedule = {"event": rule, **fields.pop("schedule", {})}
    return await api.create({"name": name, "function": "hello", "schedule": schedule, **fields})


async def payload_of(api: Caller, execution: str) -> Any:
    return (await api.get(f"/v1/executions/{execution}"))["payload"]


@proves("S11")
async def test_an_event_starts_the_jobs_that_it_matches_before_the_answer(api: Caller) -> None:
    ship = await on_event(
        api, event={"source": {"prefix": "/sh"}, "filter": {"data": {"amount": [{"numeric": [">=", 100]}]}}}
    )
    await on_event(api, name="other", event={"source": "/warehouse"})
    assert (ship["state"], ship["next_fire_at"]) == ("ACTIVE", None)
    assert ship["schedule_in_words"] == f"At each event {PAID} from /sh… that matches its filter"
    answer = await send(api, event(data={"amount": 150}))
    assert answer["matched"] == 1
    [execution] = answer["executions"]
    shown = await api.get(f"/v1/executions/{execution}")
    assert (shown["job_id"], shown["origin"], shown["state"]) == (ship["id"], "event", "PENDING")
    assert shown["payload"] == event(data={"amount": 150})
    assert shown["event_id"] == answer["id"]
    assert await send(api, event("2", data={"amount": 50})) | {"id": 0} == {"id": 0, "matched": 0, "executions": []}
    assert await api.run_all() == [UUID(execution)]
    assert (await api.get(f"/v1/jobs/{ship['id']}"))["state"] == "ACTIVE"


@proves("S11")
async def test_the_same_event_again_gets_the_same_answer_and_starts_nothing(api: Caller) -> None:
    await on_event(api)
    first = await send(api, event(data=1))
    assert await send(api, event(data=2)) == first
    batch = await send(api, [event(), event("2"), event("2"), event(source="/other")])
    assert batch["events"][0] == first
    assert batch["events"][1] == batch["events"][2]
    assert len({answer["id"] for answer in batch["events"]}) == 3
    assert len(await api.run_all()) == 3
    await api.world.advance(7 * 86_400 + 10)
    await api.world.retain()
    again = await send(api, event(data=1))
    assert again["id"] != first["id"]


@proves("S11")
async def test_a_batch_is_all_or_none(api: Caller) -> None:
    await on_event(api)
    refusal = await send(api, [event(), event("", time="x"), {}], 422)
    assert [fault["pointer"] for fault in refusal["errors"]] == [
        "/1/id",
        "/1/time",
        "/2/specversion",
        "/2/id",
        "/2/source",
        "/2/type",
    ]
    assert (await api.get("/v1/events"))["items"] == []
    assert await api.run_all() == []


@proves("S11")
async def test_events_in_binary_form_have_their_attributes_in_headers(api: Caller) -> None:
    await on_event(api)
    headers = {"ce-specversion": "1.0", "ce-source": "/shop", "ce-type": PAID, "ce-traceparent": "00-1-2-01"}

    async def send_data(id_: str, data: bytes, content_type: str) -> Any:
        answer = await api.http.post(
            "/v1/events", content=data, headers={**headers, "ce-id": id_, "content-type": content_type}
        )
        assert answer.status_code == 202, answer.text
        return await payload_of(api, answer.json()["executions"][0])

    as_json = await send_data("1", b'{"amount": 1}', "application/json")
    assert as_json == event(data={"amount": 1}, traceparent="00-1-2-01", datacontenttype="application/json")
    assert (await send_data("2", "<ä/>".encode(), "application/xml"))["data"] == "<ä/>"
    assert (await send_data("3", b"\xff\x00", "image/png"))["data_base64"] == base64.b64encode(b"\xff\x00").decode()
    assert "data" not in await send_data("%C3%A4", b"", "application/json")
    assert (await api.get("/v1/events"))["items"][0]["event"]["id"] == "ä"


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"specversion": "0.3"}, "/specversion", '"1.0"'),
    ({"id": 1}, "/id", "text"),
    ({"id": "x" * 300}, "/id", "255"),
    ({"source": ""}, "/source", "1,024"),
    ({"type": None}, "/type", "missing"),
    ({"type": "ondot.execution.failed"}, "/type", "ondot's own"),
    ({"type": "a\u202eb"}, "/type", "visible"),
    ({"time": "2026-02-30T00:00:00Z"}, "/time", "instant"),
    ({"time": "0001-01-01T00:00:00+23:00"}, "/time", "instant"),
    ({"subject": {}}, "/subject", "text"),
    ({"Order_Id": "1"}, "/Order_Id", "lower-case"),
    ({"order": {"id": 1}}, "/order", "text, number or boolean"),
    ({"data": 1, "data_base64": "AA=="}, "/data_base64", "exclude"),
    ({"data_base64": "!"}, "/data_base64", "base64"),
    ({"data": "x" * 300_000}, "", "262,144"),
    ({f"x{n}": 1 for n in range(60)}, "/", "50"),
]


@pytest.mark.parametrize(("fields", "pointer", "words"), WRONG, ids=[str(case[0])[:30] for case in WRONG])
@proves("S11")
async def test_a_wrong_event_is_refused_with_a_pointer(
    api: Caller, fields: dict[str, Any], pointer: str, words: str
) -> None:
    refusal = await send(api, {**event(), **fields}, 422)
    [fault] = refusal["errors"]
    assert fault["pointer"] == pointer
    assert words in fault["detail"]


@proves("S11")
async def test_hostile_bodies_are_refused(api: Caller) -> None:
    async def status(body: bytes, kind: str, **headers: str) -> int:
        answer = await api.http.post("/v1/events", content=body, headers={"content-type": kind, **headers})
        return answer.status_code

    one, many = "application/cloudevents+json", "application/cloudevents-batch+json"
    assert await status(b"", one) == 400
    assert await status(b"[" * 100_000, many) in {400, 422}
    assert await status(b"[]", many) == 422
    assert await status(json.dumps([event(str(n)) for n in range(1_001)]).encode(), many) == 422
    assert await status(b" " * 9_000_000, many) == 413
    assert await status(b" " * 600_000, one) == 413
    assert await status(b"hello", "text/plain") == 422
    assert await status(b'{"id": "\\u0000"}', one) == 422
    binary = {"ce-specversion": "1.0", "ce-source": "/s", "ce-type": "t", "ce-id": "1"}
    assert await status(b"{", "application/json", **binary) == 400
    assert await status(b"{}", "application/json", **binary, **{"ce-data": "1"}) == 422
    assert (await api.get("/v1/events"))["items"] == []


@proves("S11")
async def test_a_payload_is_made_of_parts_of_the_event(api: Caller) -> None:
    payload = {
        "n": {"$from": "event.data.lines.0.n"},
        "all": {"$from": "event.data"},
        "none": {"$from": "event.data.x"},
        "k": 1,
    }
    await on_event(api, payload=payload)
    await on_event(api, name="own", payload={"k": 2}, event={"filter": {"subject": ["s"]}})
    data = {"lines": [{"n": 7}], "$from": "event.id"}
    first = await send(api, event(data=data))
    assert await payload_of(api, first["executions"][0]) == {"n": 7, "all": data, "none": None, "k": 1}
    second = await send(api, event("2", subject="s"))
    assert {"k": 2} in [await payload_of(api, id_) or {"k": 2} for id_ in second["executions"]]


WRONG_RULES: list[tuple[dict[str, Any], str, str]] = [
    ({"event": {}}, "/schedule/event/type", "missing"),
    ({"event": {"type": ""}}, "/schedule/event/type", "1"),
    ({"event": {"type": "x", "source": {"prefix": ""}}}, "/schedule/event/source", ""),
    ({"event": {"type": "x", "filter": {"data": "x"}}}, "/schedule/event/filter/data", 'write ["x"]'),
    (
        {"event": {"type": "x", "filter": {"camelCase": {"a/b": [{"numeric": []}]}}}},
        "/schedule/event/filter/camelCase/a~1b/0/numeric",
        "comparisons",
    ),
    ({"event": {"type": "x", "filter": {"type": ["x"]}}}, "/schedule/event/filter/type", "beside"),
    ({"event": {"type": "x", "source": "/s", "filter": {"source": ["x"]}}}, "/schedule/event/filter/source", "beside"),
    ({"event": {"type": "x", "fliter": {}}}, "/schedule/event/fliter", "filter"),
    ({"event": {"type": "x"}, "cron": "* * * * *"}, "/schedule/event", "exactly one"),
    ({"event": {"type": "x"}, "timezone": "Europe/Berlin"}, "/schedule/timezone", "instants"),
    ({"event": {"type": "x"}, "max_fires": 3}, "/schedule/max_fires", "instants"),
    ({"event": {"type": "x"}, "misfire": {"limit": 0}}, "/schedule/misfire/limit", "limit"),
]


@pytest.mark.parametrize(("schedule", "pointer", "words"), WRONG_RULES, ids=[case[1] for case in WRONG_RULES])
@proves("S11")
async def test_a_wrong_schedule_by_events_is_refused_with_a_pointer(
    api: Caller, schedule: dict[str, Any], pointer: str, words: str
) -> None:
    answer = await api.http.post("/v1/jobs", json={"function": "hello", "schedule": schedule})
    assert answer.status_code == 422, answer.text
    fault = answer.json()["errors"][0]
    assert fault["pointer"].startswith(pointer)
    assert words in fault["detail"]


@proves("S11")
async def test_a_payload_that_refers_to_something_else_is_refused(api: Caller) -> None:
    body = {"function": "hello", "schedule": {"event": {"type": "x"}}, "payload": {"a": [{"$from": "list.result"}]}}
    answer = await api.http.post("/v1/jobs", json=body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/payload/a/0"


@proves("S11", "S8")
async def test_a_job_is_read_changed_and_sent_back_as_it_is(api: Caller) -> None:
    rule = {"type": PAID, "source": {"prefix": "/s"}, "filter": {"data": {"camelCase": ["x"]}}}
    created = await on_event(api, key="ship", event=rule)
    assert created["schedule"]["event"] == rule
    sent = {name: created[name] for name in ("name", "key", "schedule", "target", "labels")}
    assert (await api.create(sent))["version"] == 1
    path = f"/v1/jobs/{created['id']}"
    patched = await api.http.patch(path, json={"schedule": {"event": {"filter": {"data": {"camelCase": ["y"]}}}}})
    assert patched.status_code == 200, patched.text
    assert patched.json()["schedule"]["event"]["filter"] == {"data": {"camelCase": ["y"]}}
    assert (await send(api, event(data={"camelCase": "x"})))["matched"] == 0
    assert (await send(api, event("2", data={"camelCase": "y"})))["matched"] == 1
    assert (await api.http.patch(path, json={"schedule": {"cron": "0 3 * * *"}})).status_code == 200
    assert (await send(api, event("3", data={"camelCase": "y"})))["matched"] == 0
    assert (await api.http.patch(path, json={"schedule": {"event": {"type": PAID}}})).status_code == 200
    assert (await send(api, event("4")))["matched"] == 1
    assert (await api.http.delete(path)).status_code in {200, 204}
    assert (await send(api, event("5")))["matched"] == 0


@pytest.mark.parametrize(
    ("policy", "asked", "expected"),
    [("skip", None, []), ("once", None, [4]), ("all", None, [3, 4]), ("all", "skip", []), ("once", "all", [3, 4])],
)
@proves("S11", "S6")
async def test_events_of_a_pause_follow_the_misfire_policy(
    api: Caller, policy: str, asked: str | None, expected: list[int]
) -> None:
    job = await on_event(api, schedule={"misfire": {"policy": policy, "limit": 2, "window": "1h"}})
    path = f"/v1/jobs/{job['id']}"
    assert (await api.http.post(f"{path}/pause")).status_code == 200
    await send(api, event("1", data=1))
    await api.world.advance(2 * 3600)
    answers = [await send(api, event(str(n), data=n)) for n in (2, 3, 4)]
    assert [(answer["matched"], answer["executions"]) for answer in answers] == [(1, [])] * 3
    assert await api.run_all() == []
    body = None if asked is None else {"missed": asked}
    assert (await api.http.post(f"{path}/resume", json=body)).status_code == 200
    started = [await payload_of(api, str(id_)) for id_ in await api.run_all()]
    assert sorted(payload["data"] for payload in started) == expected
    detail = await api.get(f"/v1/events/{answers[-1]['id']}")
    [match] = detail["matches"]
    assert match["outcome"] == ("started" if 4 in expected else "skipped")
    assert len((await send(api, event("5", data=5)))["executions"]) == 1


@proves("S11", "S5")
async def test_overlap_limits_and_labels_hold_for_executions_of_events(api: Caller) -> None:
    job = await on_event(api, overlap="skip", labels={"team": "a"})
    worker = await api.world.worker()
    await send(api, event("1"))
    [assignment] = await worker.lease()
    await send(api, event("2"))
    assert await worker.lease() == []
    await worker.complete(assignment)
    states = [row.state for row in await api.world.executions(job["id"])]
    assert sorted(states) == ["SKIPPED", "SUCCEEDED"]


@proves("S11")
async def test_events_are_listed_by_type_source_subject_time_and_match(api: Caller) -> None:
    await on_event(api, event={"source": "/shop"})
    await send(api, event("1", subject="a"))
    before = api.world.now
    await api.world.advance(60)
    await send(api, event("2", source="/x"))
    await send(api, event("3", type="other"))

    async def ids(**parameters: Any) -> list[str]:
        return [item["event"]["id"] for item in (await api.get("/v1/events", **parameters))["items"]]

    assert await ids() == ["3", "2", "1"]
    assert await ids(type=PAID) == ["2", "1"]
    assert await ids(source="/x") == ["2"]
    assert await ids(subject="a") == ["1"]
    assert await ids(matched="true") == ["1"]
    assert await ids(matched="false") == ["3", "2"]
    assert await ids(from_at=before.isoformat().replace("+00:00", "Z"), to_at="2100-01-01T00:00:00Z") == ["3", "2", "1"]
    page = await api.get("/v1/events", limit=2)
    assert await ids(cursor=page["next_cursor"]) == ["1"]
    assert (await api.http.get("/v1/events", params={"typ": "x"})).status_code == 422
    assert (await api.http.get(f"/v1/events/{uuid4()}")).status_code == 404
    assert (await api.http.get("/v1/events/x")).status_code == 404


@proves("S11", "T2")
async def test_the_quota_of_events_is_enforced(api: Caller) -> None:
    answer = await api.http.patch("/v1/tenants/default", json={"quotas": {"events": "2/1m"}})
    assert answer.status_code == 200, answer.text
    await send(api, event("1"))
    await send(api, event("2"))
    answer = await api.http.post("/v1/events", json=event("3"))
    assert (answer.status_code, answer.json()["quota"]) == (429, "events")
    assert int(answer.headers["retry-after"]) > 0
    assert (await api.http.post("/v1/events", json=event("3"))).status_code == 429
    await send(api, [event(str(n)) for n in range(10)], 413)


@proves("S11")
async def test_a_thousand_jobs_of_a_type_may_have_no_exact_value(api: Caller) -> None:
    jobs = [
        {"function": "hello", "schedule": {"event": {"type": PAID, "filter": {"data": {"n": [{"numeric": [">", n]}]}}}}}
        for n in range(1_000)
    ]
    answer = await api.http.post("/v1/jobs/batch", json={"jobs": jobs})
    assert answer.status_code == 201, answer.text
    refusal = await api.http.post("/v1/jobs", json={"function": "hello", "schedule": {"event": {"type": PAID}}})
    assert refusal.status_code == 422
    assert "1,000 jobs" in refusal.json()["errors"][0]["detail"]
    await on_event(api, name="indexed", event={"source": "/shop"})
    await on_event(api, name="other", event={"type": "other"})
    assert (await send(api, event(data={"n": 10})))["matched"] == 11
    ids = [job["id"] for job in answer.json()["items"]]
    assert (await api.http.delete(f"/v1/jobs/{ids[0]}")).status_code in {200, 204}
    await on_event(api, name="room")
    assert (await send(api, event("2", data={"n": 10})))["matched"] == 11


@proves("S11", "S9")
async def test_a_preview_says_that_events_start_it(api: Caller) -> None:
    answer = await api.http.post("/v1/schedules/preview", json={"schedule": {"event": {"type": PAID}}})
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"in_words": f"At each event {PAID}", "fires": [], "skipped": []}
    job = await on_event(api)
    assert (await api.get(f"/v1/jobs/{job['id']}/next"))["fires"] == []


@proves("S11", "E17")
async def test_explain_says_why_the_last_event_did_not_match(api: Caller) -> None:
    job = await on_event(api, event={"filter": {"data": {"amount": [{"numeric": [">=", 100]}]}}})

    async def reason() -> dict[str, Any]:
        found = await api.get(f"/v1/jobs/{job['id']}/explain")
        first: dict[str, Any] = found["reasons"][0]
        return first

    nothing = await reason()
    assert nothing["code"] == "waiting_for_event"
    assert "No event of this type was received" in nothing["message"]
    answer = await send(api, event(data={"amount": 50}))
    unmatched = await reason()
    assert "data.amount was 50, wanted >= 100" in unmatched["message"]
    assert answer["id"] in unmatched["what_to_do"]
    await send(api, event("2", data={"amount": 150}))
    await api.run_all()
    assert "matches" in (await reason())["message"]


@proves("S11", "S7")
async def test_a_job_that_events_start_has_nothing_to_backfill(api: Caller) -> None:
    job = await on_event(api)
    body = {"from_at": "2026-11-01T00:00:00Z", "to_at": "2026-11-02T00:00:00Z"}
    answer = await api.http.post(f"/v1/jobs/{job['id']}/backfill", json=body)
    assert answer.status_code == 409
    assert "Events start this job" in answer.json()["detail"]
