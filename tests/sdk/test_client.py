"""The client, against a real server that answers as the contract requires."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web

from ondot.api.problems import CODES, CONTENT_TYPE, problem
from ondot.model.errors import (
    Fault,
    InvalidSchedule,
    NotFound,
    OndotError,
    QueueFull,
    Unauthorized,
    Unavailable,
)
from ondot.sdk import Client
from ondot.sdk.problems import BY_CODE
from tests.proves import proves
from tests.receiver import Receiver, open_receiver

JOB = UUID("0192f3a1-0000-7000-8000-000000000001")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        receiver.answer(lambda: web.json_response({"id": str(JOB)}))
        yield receiver


@pytest.fixture
async def client(receiver: Receiver) -> AsyncIterator[Client]:
    async with Client(receiver.url, "ondot_key") as client:
        yield client


def problem_response(error: OndotError, **headers: str) -> web.Response:
    body = problem(error)
    return web.json_response(body, status=int(str(body["status"])), content_type=CONTENT_TYPE, headers=headers)


@proves("O5")
@pytest.mark.parametrize(
    ("name", "arguments", "method", "path", "body"),
    [
        ("create_job", ({"name": "a"},), "POST", "/v1/jobs", {"name": "a"}),
        ("create_jobs", ([{"name": "a"}],), "POST", "/v1/jobs/batch", {"jobs": [{"name": "a"}]}),
        ("list_jobs", (), "GET", "/v1/jobs", None),
        ("get_job", (JOB,), "GET", f"/v1/jobs/{JOB}", None),
        ("get_job", ("../keys?x",), "GET", "/v1/jobs/..%2Fkeys%3Fx", None),
        ("delete_job", (JOB,), "DELETE", f"/v1/jobs/{JOB}", None),
        ("run_job", (JOB,), "POST", f"/v1/jobs/{JOB}/run", {}),
        ("run_job", (JOB, None), "POST", f"/v1/jobs/{JOB}/run", {"payload": None}),
        ("pause_job", (JOB,), "POST", f"/v1/jobs/{JOB}/pause", None),
        ("patch_job", (JOB, {"timeout": None}), "PATCH", f"/v1/jobs/{JOB}", {"timeout": None}),
        ("resume_job", (JOB,), "POST", f"/v1/jobs/{JOB}/resume", None),
        ("resume_job", (JOB, "once"), "POST", f"/v1/jobs/{JOB}/resume", {"missed": "once"}),
        (
            "backfill_job",
            (JOB, datetime(2026, 1, 1, tzinfo=UTC), "2026-02-01T00:00:00Z"),
            "POST",
            f"/v1/jobs/{JOB}/backfill",
            {
                "from_at": "2026-01-01T00:00:00+00:00",
                "to_at": "2026-02-01T00:00:00Z",
                "order": "oldest",
                "concurrency": 1,
                "dry_run": False,
            },
        ),
        ("explain_job", (JOB,), "GET", f"/v1/jobs/{JOB}/explain", None),
        ("explain_execution", (JOB,), "GET", f"/v1/executions/{JOB}/explain", None),
        ("cancel_execution", (JOB,), "POST", f"/v1/executions/{JOB}/cancel", {}),
        ("cancel_execution", (JOB, "why"), "POST", f"/v1/executions/{JOB}/cancel", {"reason": "why"}),
        ("retry_execution", (JOB,), "POST", f"/v1/executions/{JOB}/retry", {}),
        ("retry_execution", (JOB, None), "POST", f"/v1/executions/{JOB}/retry", {"payload": None}),
        ("list_dead_letters", (), "GET", "/v1/dead-letters", None),
        ("dead_letter_groups", (), "GET", "/v1/dead-letters/groups", None),
        ("get_dead_letter", ("../x",), "GET", "/v1/dead-letters/..%2Fx", None),
        ("replay_dead_letters", ([JOB],), "POST", "/v1/dead-letters/replay", {"ids": [str(JOB)]}),
        ("dead_letter_operations", (), "GET", "/v1/dead-letters/operations", None),
        ("get_dead_letter_operation", (JOB,), "GET", f"/v1/dead-letters/operations/{JOB}", None),
        ("cancel_dead_letter_operation", (JOB,), "POST", f"/v1/dead-letters/operations/{JOB}/cancel", None),
        ("start_bulk", ({"of": "jobs"},), "POST", "/v1/bulk", {"of": "jobs"}),
        ("list_bulks", (), "GET", "/v1/bulk", None),
        ("get_bulk", (JOB,), "GET", f"/v1/bulk/{JOB}", None),
        ("list_bulk_items", (JOB,), "GET", f"/v1/bulk/{JOB}/items", None),
        ("stop_bulk", (JOB,), "POST", f"/v1/bulk/{JOB}/stop", None),
        ("undo_bulk", (JOB,), "POST", f"/v1/bulk/{JOB}/undo", {}),
        ("list_pools", (), "GET", "/v1/pools", None),
        ("get_pool", ("../x",), "GET", "/v1/pools/..%2Fx", None),
        ("patch_pool", ("mail", {"rate": None}), "PATCH", "/v1/pools/mail", {"rate": None}),
        ("list_audit", (), "GET", "/v1/audit", None),
        ("list_backfills", (JOB,), "GET", f"/v1/jobs/{JOB}/backfills", None),
        ("get_backfill", (JOB, "../x"), "GET", f"/v1/jobs/{JOB}/backfills/..%2Fx", None),
        ("cancel_backfill", (JOB, JOB), "POST", f"/v1/jobs/{JOB}/backfills/{JOB}/cancel", None),
        ("job_status", (JOB,), "GET", f"/v1/jobs/{JOB}/status", None),
        ("next_fires", (JOB, 3), "GET", f"/v1/jobs/{JOB}/next?n=3", None),
        ("job_executions", (JOB,), "GET", f"/v1/jobs/{JOB}/executions", None),
        ("list_executions", (), "GET", "/v1/executions", None),
        ("get_execution", (JOB,), "GET", f"/v1/executions/{JOB}", None),
        ("execution_logs", (JOB, "1.20"), "GET", f"/v1/executions/{JOB}/logs?cursor=1.20", None),
        ("preview", ({"cron": "@daily"},), "POST", "/v1/schedules/preview", {"cron": "@daily"}),
    ],
)
async def test_every_method_is_one_call_of_the_contract(
    client: Client, receiver: Receiver, name: str, arguments: tuple[Any, ...], method: str, path: str, body: Any
) -> None:
    assert await getattr(client, name)(*arguments) == {"id": str(JOB)}
    [received] = receiver.received
    assert (received.method, received.path) == (method, path)
    assert (json.loads(received.body) if received.body else None) == body
    assert received.headers["authorization"] == "Bearer ondot_key"


@proves("S8")
@pytest.mark.parametrize(("version", "sent"), [(None, None), (3, '"3"')])
async def test_a_patch_names_the_version_it_was_made_for(
    client: Client, receiver: Receiver, version: int | None, sent: str | None
) -> None:
    await client.patch_job(JOB, {"name": "b"}, version)
    assert receiver.received[0].headers.get("if-match") == sent


@proves("O5")
async def test_filters_that_were_not_given_are_left_out(client: Client, receiver: Receiver) -> None:
    await client.list_jobs(state="ACTIVE", name=None, limit=5, after=datetime(2030, 1, 1, tzinfo=UTC))
    assert receiver.received[0].path == "/v1/jobs?state=ACTIVE&limit=5&after=2030-01-01T00%3A00%3A00%2B00%3A00"


@proves("O5")
@pytest.mark.parametrize("code", sorted(CODES))
async def test_a_problem_is_raised_as_the_error_of_its_code(client: Client, receiver: Receiver, code: str) -> None:
    receiver.answer(lambda: problem_response(BY_CODE[code]("What to do.", limit=3)))
    with pytest.raises(BY_CODE[code], match="What to do") as raised:
        await client.get_job(JOB)
    assert type(raised.value) is BY_CODE[code]
    assert raised.value.facts == {"limit": 3, "status": CODES[code]}


@proves("O5")
async def test_the_faults_of_a_body_have_their_pointers(client: Client, receiver: Receiver) -> None:
    faults = (Fault("/cron", "Give five fields."), Fault("/timezone", "There is no such zone."))
    receiver.answer(lambda: problem_response(InvalidSchedule("Two faults.", faults=faults)))
    with pytest.raises(InvalidSchedule) as raised:
        await client.create_job({})
    assert raised.value.faults == faults


@proves("O5")
async def test_a_problem_of_a_later_release_is_raised_by_its_status(client: Client, receiver: Receiver) -> None:
    later = {"type": "urn:ondot:problem:no-such-workflow", "title": "T", "detail": "D", "status": 404}
    receiver.answer(lambda: web.json_response(later, status=404, content_type=CONTENT_TYPE))
    with pytest.raises(NotFound, match="D") as raised:
        await client.get_job(JOB)
    assert raised.value.facts["code"] == "no-such-workflow"


@proves("O5")
@pytest.mark.parametrize(
    ("status", "kind"), [(401, Unauthorized), (404, NotFound), (502, Unavailable), (500, OndotError), (200, OndotError)]
)
async def test_an_answer_of_another_server_is_reported_as_such(
    client: Client, receiver: Receiver, status: int, kind: type[OndotError]
) -> None:
    receiver.answer(lambda: web.Response(status=status, text="<html>", content_type="text/html"))
    with pytest.raises(kind, match="not as an ondot server does") as raised:
        await client.get_job(JOB)
    assert receiver.url in raised.value.message


@proves("P2")
async def test_a_request_that_creates_something_carries_its_own_key(client: Client, receiver: Receiver) -> None:
    await client.create_job({})
    await client.create_job({})
    await client.create_job({}, idempotency_key="mine")
    first, second, third = (received.headers["idempotency-key"] for received in receiver.received)
    assert first != second
    assert UUID(first).version == 4
    assert third == "mine"


@proves("P2", "C7")
@pytest.mark.parametrize("refusal", [Unavailable("The database is away."), QueueFull("The queue is full.")])
async def test_a_create_is_tried_again_with_the_same_key_while_the_server_asks_for_it(
    client: Client, receiver: Receiver, refusal: OndotError
) -> None:
    async def busy_twice(_: web.Request) -> web.StreamResponse:
        if len(receiver.received) <= 2:
            return problem_response(refusal, **{"Retry-After": "0"})
        return web.json_response({"id": str(JOB)}, status=201)

    receiver.answering = busy_twice
    assert await client.create_job({"name": "a"}) == {"id": str(JOB)}
    assert len(receiver.received) == 3
    assert len({received.headers["idempotency-key"] for received in receiver.received}) == 1


@proves("P2", "C7")
@pytest.mark.parametrize("refusal", [Unavailable("The database is away."), QueueFull("The queue is full.")])
async def test_a_create_is_given_up_after_three_retries(
    client: Client, receiver: Receiver, refusal: OndotError
) -> None:
    receiver.answer(lambda: problem_response(refusal, **{"Retry-After": "0"}))
    with pytest.raises(type(refusal), match=refusal.message):
        await client.create_job({})
    assert len(receiver.received) == 4


@proves("P2")
async def test_a_create_whose_connection_breaks_is_retried(client: Client, receiver: Receiver) -> None:
    async def break_first(request: web.Request) -> web.StreamResponse:
        if len(receiver.received) == 1:
            assert request.transport is not None
            request.transport.abort()
            await asyncio.Event().wait()
        return web.json_response({"id": str(JOB)}, status=201)

    receiver.answering = break_first
    assert await client.create_job({}) == {"id": str(JOB)}
    assert len({received.headers["idempotency-key"] for received in receiver.received}) == 1


@proves("O5")
async def test_an_unreachable_server_is_reported_with_its_address_and_how_to_start_one() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with Client(url, "key") as client:
            with pytest.raises(Unavailable, match="ondot up") as raised:
                await client.get_job(JOB)
    assert url in raised.value.message


@proves("O5")
async def test_a_server_that_does_not_answer_is_given_up(receiver: Receiver) -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    receiver.answering = hang
    async with Client(receiver.url, "key", timeout_s=0.1) as client:
        with pytest.raises(Unavailable, match=r"within 0\.1 s"):
            await client.get_job(JOB)


@proves("O5")
async def test_address_and_key_are_read_from_the_settings_at_the_first_request(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client()
    monkeypatch.setenv("ONDOT_URL", receiver.url)
    monkeypatch.setenv("ONDOT_API_KEY", "from the environment")
    async with client:
        await client.get_job(JOB)
    assert receiver.received[0].headers["authorization"] == "Bearer from the environment"


@proves("O5")
async def test_a_proxy_of_the_environment_is_not_used_for_a_server_on_this_machine(
    client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    await client.get_job(JOB)


@proves("L7")
@pytest.mark.parametrize("status", [200, 503])
async def test_readiness_is_returned_and_not_raised(client: Client, receiver: Receiver, status: int) -> None:
    receiver.answer(lambda: web.json_response({"lag_s": 2}, status=status))
    assert await client.ready() == {"ready": status == 200, "lag_s": 2}


@proves("O5")
def test_one_client_can_be_used_in_one_event_loop_after_another() -> None:
    async def use(client: Client) -> Any:
        async with open_receiver() as receiver:
            receiver.answer(lambda: web.json_response({"fine": True}))
            client._given_url = receiver.url
            answer = await client.get_job(JOB)
            await client.close()
            return answer

    client = Client("http://127.0.0.1:1", "key")
    assert asyncio.run(use(client)) == {"fine": True}
    assert asyncio.run(use(client)) == {"fine": True}


@proves("E10", "O8")
async def test_letters_are_named_by_ids_by_a_filter_or_all_of_them(client: Client, receiver: Receiver) -> None:
    since = datetime(2026, 1, 1, tzinfo=UTC)
    await client.replay_dead_letters(
        filter={"from_at": since, "q": "gone", "pool": None}, payload=None, version="current", rate=5, dry_run=True
    )
    await client.discard_dead_letters(all=True, reason="not needed")
    replayed, discarded = (json.loads(received.body) for received in receiver.received)
    assert replayed == {
        "filter": {"from_at": "2026-01-01T00:00:00+00:00", "q": "gone"},
        "payload": None,
        "version": "current",
        "rate": 5,
        "dry_run": True,
    }
    assert discarded == {"all": True, "reason": "not needed"}
    assert all("idempotency-key" in received.headers for received in receiver.received)


@proves("E14")
async def test_a_result_of_any_kind_is_read_whole_and_a_problem_is_an_error(client: Client, receiver: Receiver) -> None:
    for result in ([1, {"a": "ü"}], None, "text", "x" * 300_000):
        text = json.dumps(result)
        receiver.answer(lambda text=text: web.json_response(text=text))  # type: ignore[misc]
        assert await client.execution_result(JOB) == result
    receiver.answer(lambda: problem_response(NotFound("It has not ended.")))
    with pytest.raises(NotFound, match="It has not ended"):
        await client.execution_result(JOB)


@proves("E14")
async def test_lines_are_waited_for_longer_than_other_answers(receiver: Receiver) -> None:
    said = asyncio.Event()

    async def answering(_: web.Request) -> web.StreamResponse:
        await said.wait()
        return web.json_response({"items": []})

    receiver.answering = answering
    async with Client(receiver.url, "key", timeout_s=0.05) as client:
        waiting = asyncio.create_task(client.execution_logs(JOB, "1.7", wait=20, attempt=1))
        while not receiver.received:
            await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="did not answer"):
            await client.get_execution(JOB)
        said.set()
        assert await waiting == {"items": []}
    assert receiver.received[0].path == f"/v1/executions/{JOB}/logs?cursor=1.7&wait=20&attempt=1"
