"""The target grpc on real servers: types, statuses, metadata, TLS, addresses, and servers that misbehave."""

import asyncio
import signal
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from ondot.descriptors import BadTypes, Misfit, Types, read_set
from ondot.model.addresses import EVERYWHERE, PUBLIC
from ondot.model.execution import Outcome
from ondot.model.grpc import CA, CERTIFICATE, KEY
from ondot.model.ids import TenantNo
from ondot.model.outcome import Cancelled, Failed, Succeeded
from ondot.model.retry import Retry
from ondot.model.retryable import retryable
from ondot.model.secret import Hidden
from ondot.model.target import GrpcTarget
from ondot.ports.target import Cancel
from ondot.targets.grpc import reflection
from ondot.targets.grpc.target import GrpcCaller
from tests.conformance.calls import EXECUTION, JOB, PATIENCE_S, Recorder, a_call, failure_of, result_of
from tests.grpc_shop.certificates import Authority
from tests.grpc_shop.server import SERVICE, Shop, descriptor_text, ignore_late_ends, open_shop
from tests.proves import proves

PLACE = f"{SERVICE}/Place"


@pytest.fixture
async def caller() -> AsyncIterator[GrpcCaller]:
    ignore_late_ends()
    caller = GrpcCaller(reach=EVERYWHERE)
    yield caller
    await caller.close()


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with open_shop() as shop:
        yield shop


def of(shop: Shop, method: str = "Place", **fields: Any) -> GrpcTarget:
    name = method if "/" in method else f"{SERVICE}/{method}"
    return GrpcTarget(**{"address": shop.url, "method": name, "tls": False, **fields})


# Types and payloads --------------------------------------------------------------------------------------------------


@proves("E3")
async def test_a_payload_becomes_the_request_and_the_reply_the_result(caller: GrpcCaller, shop: Shop) -> None:
    payload = {
        "region": "eu",
        "items": [{"sku": "ü", "bigNumber": str(2**60), "raw": "/w==", "kind": "KIND_BOOK", "price": 1.5}],
        "due_at": "2030-01-31T09:00:00Z",
        "stock": {"a b": 3},
    }
    result = result_of(await caller.call(of(shop), a_call(payload=payload)))
    due_at = payload.pop("due_at")
    assert msgspec.json.decode(result["request"]) == {**payload, "dueAt": due_at}
    assert (result["bigNumber"], result["raw"]) == (str(2**60), "/w==")
    assert result["total"] == 0, "a field with its default is there: a step may refer to it"


@proves("E3")
@pytest.mark.parametrize("versions", [("v1",), ("v1alpha",), ("v1", "v1alpha")])
async def test_reflection_is_asked_once_in_the_version_that_the_server_has(
    caller: GrpcCaller, versions: tuple[str, ...]
) -> None:
    async with open_shop(reflection=versions) as shop:
        for _ in range(3):
            result_of(await caller.call(of(shop), a_call(payload={})))
        assert shop.reflections == [versions[0]] * 3, "one request for each of three files"


@proves("E3")
async def test_without_reflection_the_job_has_the_types_or_fails_with_advice(caller: GrpcCaller) -> None:
    async with open_shop(reflection=()) as shop:
        failed = failure_of(await caller.call(of(shop), a_call(payload={})), "grpc_types")
        assert not failed.retryable
        assert "`descriptor_set`" in failed.error.message
        spec = of(shop, descriptor_set=descriptor_text())
        assert result_of(await caller.call(spec, a_call(payload={"n": 1})))["request"] == '{"n":1}'


@proves("E3")
async def test_types_are_read_again_when_the_server_is_newer_than_they_are(caller: GrpcCaller, shop: Shop) -> None:
    shop.hides = {"region", "Large"}
    result_of(await caller.call(of(shop), a_call(payload={"n": 1})))
    asked = len(shop.reflections)
    shop.hides = set()
    assert result_of(await caller.call(of(shop), a_call(payload={"region": "eu"})))["request"] == '{"region":"eu"}'
    assert len(shop.reflections) == 2 * asked
    shop.hides = {"Large"}
    failure_of(await caller.call(of(shop), a_call(payload={"regin": "eu"})), "bad_request")
    shop.hides = set()
    result_of(await caller.call(of(shop, "Large"), a_call(payload={"n": 1})))


@proves("E3")
@pytest.mark.parametrize(
    ("method", "words"),
    [
        (f"{SERVICE}/Plase", "no method Plase. Did you mean Place?"),
        (f"{SERVICE}/Watch", "streaming method"),
        (f"{SERVICE}/Gather", "streaming method"),
        ("shop.v2.Orders/Place", "does not have a service shop.v2.Orders"),
    ],
)
async def test_a_method_that_cannot_be_called_is_named_and_not_retried(
    caller: GrpcCaller, shop: Shop, method: str, words: str
) -> None:
    failed = failure_of(await caller.call(of(shop, method), a_call(payload={})), "grpc_types")
    assert not failed.retryable
    assert words in failed.error.message
    assert not shop.seen


def of_part(value: Any, depth: int) -> Any:
    for _ in range(depth):
        value = {"part": value}
    return value


@proves("E3")
@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"regoin": 1}, 'payload: shop.v1.Order has no field "regoin"; did you mean region?'),
        ({"region": 1}, "payload.region must be text, got 1."),
        ({"items": [{}, {"count": "x"}]}, "payload.items[1].count must be a whole number from -2,147,483,648"),
        ({"items": [{"count": 2**31}]}, "payload.items[0].count must be a whole number"),
        ({"items": [{"count": True}]}, "payload.items[0].count must be a whole number"),
        ({"items": [{"size": -1}]}, "payload.items[0].size must be a whole number from 0 to 4,294,967,295"),
        ({"items": [{"bigNumber": "9223372036854775808"}]}, "payload.items[0].bigNumber must be a whole number"),
        ({"items": [{"raw": "%%"}]}, "payload.items[0].raw must be bytes as base64"),
        ({"items": [{"kind": "KIND_SHOE"}]}, "payload.items[0].kind must be one of KIND_UNSPECIFIED, KIND_BOOK"),
        ({"items": [{"isGift": "yes"}]}, "payload.items[0].isGift must be true or false"),
        ({"items": [{"price": "much"}]}, "payload.items[0].price must be a number"),
        ({"items": {}}, "payload.items must be a list"),
        ({"items": [None]}, "payload.items"),
        ({"stock": []}, "payload.stock must be an object, because the field is a map"),
        ({"stock": {"a": "b"}}, 'payload.stock["a"] must be a whole number'),
        ({"dueAt": "tomorrow"}, "payload.dueAt"),
        ({"items": [{"part": 5}]}, "payload.items[0].part must be an object with the fields of shop.v1.Item, got 5."),
        ({"items": [of_part({}, 200)]}, "too deep"),
        ([1], "payload must be an object with the fields of shop.v1.Order, got a list of 1."),
        ("a" * 100, "got a text of 100 characters"),
    ],
)
def test_a_payload_that_does_not_fit_is_rejected_with_the_path_of_its_value(payload: Any, words: str) -> None:
    method = read_set(descriptor_text()).find(PLACE)
    with pytest.raises(Misfit) as refused:
        method.encode(msgspec.json.encode(payload))
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_payload_in_any_allowed_notation_fits() -> None:
    method = read_set(descriptor_text()).find(PLACE)
    items = [{"big_number": 5, "raw": "_-8", "count": 3.0, "kind": 1, "price": "NaN", "part": None}]
    assert method.encode(msgspec.json.encode({"items": items, "region": None}))
    assert method.encode(b"null") == method.encode(b"{}") == b""


@proves("E3")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("%", "not the base64 of a FileDescriptorSet"),
        (b64encode(b"hello").decode(), "not the base64 of a FileDescriptorSet"),
        ("", "It has no files"),
    ],
)
def test_a_descriptor_set_that_is_none_is_rejected_with_the_command_that_makes_one(text: str, words: str) -> None:
    with pytest.raises(BadTypes, match=words) as refused:
        read_set(text)
    assert "protoc --include_imports" in str(refused.value)


def test_types_that_contradict_each_other_are_rejected() -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    def file(name: str, *imports: str) -> bytes:
        text: bytes = FileDescriptorProto(name=name, dependency=imports).SerializeToString()
        return text

    for files, words in (
        ([file("a", "b"), file("b", "a")], "in a circle"),
        ([file("a", "gone.proto")], "gone.proto is missing"),
        ([b"\xff"], "cannot be read"),
    ):
        with pytest.raises(BadTypes, match=words):
            Types(files)


@proves("E14")
async def test_a_server_whose_types_have_no_end_is_given_up(
    caller: GrpcCaller, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflection, "MAX_FILES", 20)
    shop.is_endless = True
    failed = failure_of(await caller.call(of(shop), a_call(payload={})), "grpc_types")
    assert "more than 20 files" in failed.error.message
    assert len(shop.reflections) == 21


@proves("E3")
async def test_a_reply_without_a_form_in_json_is_a_success_all_the_same(caller: GrpcCaller, shop: Shop) -> None:
    recorder = Recorder()
    result = result_of(await caller.call(of(shop, "Strange"), a_call(recorder, payload={})))
    assert "other.Unknown" in result["unreadable"]
    assert result["base64"]
    assert recorder.of("log")


@proves("E3")
async def test_a_long_reply_is_cut_and_a_longer_one_is_an_error_that_is_not_retried(
    caller: GrpcCaller, shop: Shop
) -> None:
    cut = result_of(await caller.call(of(shop, "Large"), a_call(payload={"n": 40_000})))
    assert cut.keys() == {"cut", "body"}
    assert len(cut["body"].encode()) <= 64 * 1024
    whole = msgspec.structs.replace(a_call(payload={"n": 40_000}), result_bytes=16 * 1024 * 1024)
    assert result_of(await caller.call(of(shop, "Large"), whole))["text"] == "ü" * 40_000
    failed = failure_of(await caller.call(of(shop, "Large"), a_call(payload={"n": 3_000_000})), "bad_response")
    assert not failed.retryable


# Metadata and statuses -----------------------------------------------------------------------------------------------


@proves("E3", "E11")
async def test_metadata_of_the_job_and_the_facts_arrive_and_the_deadline_too(caller: GrpcCaller, shop: Shop) -> None:
    # `webhook-id` and `Upper` are of a job that is older than the rules for names.
    own = {"x-team": "bi", "x-key-bin": "/w==", "webhook-id": "forged", "Upper": "x", "grpc-timeout": "1n"}
    result = result_of(await caller.call(of(shop, headers=own), a_call(payload={}, timeout_s=50)))
    [seen] = shop.seen
    assert seen["x-team"] == "bi"
    assert seen["x-key-bin"] == "/w=="
    assert seen["webhook-id"] == seen["ondot-execution-id"] == str(EXECUTION)
    assert seen["ondot-job-id"] == str(JOB)
    assert seen["traceparent"].startswith("00-")
    assert seen["user-agent"].startswith("ondot/")
    assert 20 < float(result["metadata"]["deadline"]) <= 50


@proves("E3")
@pytest.mark.parametrize("headers", [{"x-team": "ü"}, {"x-key-bin": "%"}, {"authorization": Hidden(sealed="x")}])
async def test_metadata_that_cannot_be_sent_are_an_error_that_is_not_retried(
    caller: GrpcCaller, shop: Shop, headers: dict[str, Any]
) -> None:
    failed = failure_of(await caller.call(of(shop, headers=headers), a_call(payload={})), "bad_request")
    assert not failed.retryable
    assert next(iter(headers)) in failed.error.message
    assert not shop.seen


RETRIED = {"CANCELLED", "UNKNOWN", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED", "INTERNAL", "UNAVAILABLE"}


@proves("E3", "E4")
async def test_each_status_is_retried_or_not_unless_the_job_says_otherwise(caller: GrpcCaller, shop: Shop) -> None:
    for status in grpc.StatusCode:
        if status is grpc.StatusCode.OK:
            continue
        report = await caller.call(of(shop, "Fail", headers={"x-status": status.name}), a_call(payload={}))
        failed = failure_of(report, "grpc_status")
        assert failed.outcome is Outcome.FAILED
        assert failed.error.facts["status"] == status.name
        assert failed.error.message == f"The server answered {status.name}: the disk is full"
        assert failed.retryable == (status.name in RETRIED), status
        assert retryable(Retry(retry_on=(status.name,)), failed)
        assert not retryable(Retry(never_on=(status.name,)), failed)


def details(*messages: Any) -> str:
    status = Status(code=14, message="the disk is full")
    for message in messages:
        packed = AnyMessage()
        packed.Pack(message)
        status.details.append(packed)
    return b64encode(status.SerializeToString()).decode()


@proves("E3", "E4")
async def test_details_of_a_status_are_shown_and_its_retry_delay_is_kept(caller: GrpcCaller, shop: Shop) -> None:
    violation = BadRequest.FieldViolation(field="items[0].sku", description="no such sku")
    rich = details(
        RetryInfo(retry_delay=Duration(seconds=7, nanos=500_000_000)),
        ErrorInfo(reason="QUOTA", domain="shop.example.com", metadata={"limit": "5"}),
        BadRequest(field_violations=[violation]),
        Duration(seconds=1),
    )
    report = await caller.call(of(shop, "Fail", headers={"x-details-bin": rich}), a_call(payload={}))
    failed = failure_of(report, "grpc_status")
    assert failed.retry_after_s == 7.5
    lines = (failed.error.detail or "").splitlines()
    assert len(lines) == 4
    assert '"reason": "QUOTA"' in lines[1]
    assert '"description": "no such sku"' in lines[2]
    assert lines[3].startswith("google.protobuf.Duration")


@proves("E4", "E14")
@pytest.mark.parametrize(
    "bad",
    [
        b64encode(b"\xff\xff").decode(),
        details(RetryInfo(retry_delay=Duration(seconds=10**11))),
        details(RetryInfo(retry_delay=Duration(seconds=-5))),
        details(*[ErrorInfo(reason="x" * 100)] * 40),
    ],
)
async def test_hostile_details_are_bounded(caller: GrpcCaller, shop: Shop, bad: str) -> None:
    report = await caller.call(of(shop, "Fail", headers={"x-details-bin": bad}), a_call(payload={}))
    failed = failure_of(report, "grpc_status")
    assert failed.retry_after_s is None or 0 <= failed.retry_after_s <= 86_400
    assert len(failed.error.detail or "") <= 2_048


# Addresses -----------------------------------------------------------------------------------------------------------


@proves("T3")
@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "localhost:{port}", "2130706433:{port}", "[::1]:{port}"])
async def test_private_addresses_are_refused_in_any_notation(shop: Shop, address: str) -> None:
    caller = GrpcCaller(reach=PUBLIC)
    spec = of(shop, address=address.format(port=shop.url.rpartition(":")[2]))
    failed = failure_of(await caller.call(spec, a_call(payload={})), "private_address")
    assert not failed.retryable
    everywhere = GrpcCaller(reach=EVERYWHERE)
    by_caller = msgspec.structs.replace(spec, only_public=True)
    failed = failure_of(await everywhere.call(by_caller, a_call(payload={})), "private_address")
    assert "private-targets" in failed.error.message
    assert not shop.reflections
    for each in (caller, everywhere):
        await each.close()


@proves("T3")
async def test_a_name_with_addresses_of_both_families_is_called_without_a_proxy(
    caller: GrpcCaller, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server listens on IPv4 only, and a name such as localhost may have the IPv6 address first."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def both(*_: Any, **__: Any) -> list[Any]:
        return [(0, 0, 0, "", ("::1", 0)), (0, 0, 0, "", ("127.0.0.1", 0))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both, raising=False)
    spec = of(shop, address=f"shop.test:{shop.url.rpartition(':')[2]}")
    result_of(await caller.call(spec, a_call(payload={})))


@proves("E3", "T2")
async def test_a_channel_is_shared_by_calls_closed_when_idle_and_never_shared_between_tenants(shop: Shop) -> None:
    caller = GrpcCaller(reach=EVERYWHERE, idle_s=0.0)
    hanging = asyncio.ensure_future(caller.call(of(shop, "Hang"), a_call(payload={}, timeout_s=100)))
    await shop.begun.wait()
    assert caller.channels is not None
    await caller.call(of(shop), a_call(payload={}))
    assert len(caller.channels) == 1
    other = msgspec.structs.replace(a_call(payload={}, timeout_s=100), tenant_no=TenantNo(7))
    shop.begun.clear()
    beside = asyncio.ensure_future(caller.call(of(shop, "Hang"), other))
    await shop.begun.wait()
    assert len(caller.channels) == 2
    for each in (hanging, beside):
        each.cancel()
    await asyncio.wait([hanging, beside])
    async with asyncio.timeout(PATIENCE_S):
        while len(caller.channels):
            await asyncio.sleep(0)
    await caller.close()


# TLS -----------------------------------------------------------------------------------------------------------------


@proves("E3", "T3")
async def test_tls_trusts_the_given_authority_and_checks_the_name(caller: GrpcCaller) -> None:
    authority = Authority()
    certificate, key = authority.issue("shop.internal")
    credentials = grpc.ssl_server_credentials([(key.encode(), certificate.encode())])
    async with open_shop(credentials=credentials) as shop:
        right = of(shop, tls=True, headers={CA: authority.pem}, server_name="shop.internal")
        result_of(await caller.call(right, a_call(payload={})))
        assert not {name for name in shop.seen[0] if "tls" in name}, "certificates are not sent as metadata"
        for wrong in (
            msgspec.structs.replace(right, server_name="other.internal"),
            msgspec.structs.replace(right, server_name=None),
            msgspec.structs.replace(right, headers={CA: Authority().pem}),
            msgspec.structs.replace(right, headers={}),
            msgspec.structs.replace(right, headers={CA: "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"}),
        ):
            failed = failure_of(await caller.call(wrong, a_call(payload={}, timeout_s=30)), "tls")
            assert "secure" in failed.error.message
        assert len(shop.seen) == 1
        plain = await caller.call(msgspec.structs.replace(right, tls=False), a_call(payload={}, timeout_s=30))
        assert isinstance(plain, Failed), plain


@proves("E3")
async def test_a_server_that_wants_a_certificate_gets_that_of_the_job(caller: GrpcCaller) -> None:
    authority = Authority()
    certificate, key = authority.issue("127.0.0.1")
    pair = [(key.encode(), certificate.encode())]
    credentials = grpc.ssl_server_credentials(pair, authority.pem.encode(), require_client_auth=True)
    async with open_shop(credentials=credentials) as shop:
        own, own_key = authority.issue("worker.internal")
        spec = of(shop, tls=True, headers={CA: authority.pem, CERTIFICATE: own, KEY: own_key})
        result_of(await caller.call(spec, a_call(payload={})))
        without = msgspec.structs.replace(spec, headers={CA: authority.pem})
        assert isinstance(await caller.call(without, a_call(payload={}, timeout_s=30)), Failed)
        assert len(shop.seen) == 1


@proves("E3")
async def test_a_server_without_tls_is_named_with_what_to_do(caller: GrpcCaller, shop: Shop) -> None:
    failed = failure_of(await caller.call(of(shop, tls=True), a_call(payload={})), "tls")
    assert "set `tls` to false" in failed.error.message


@proves("E3")
@pytest.mark.parametrize("package", ["grpc.aio", "google.rpc.status_pb2", "grpc_reflection.v1alpha.reflection_pb2"])
async def test_a_worker_without_the_extra_says_how_to_install_it_and_another_may_try(
    caller: GrpcCaller, shop: Shop, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    failed = failure_of(await caller.call(of(shop), a_call(payload={})), "not_started")
    assert "pip install 'ondot[grpc]'" in failed.error.message
    assert failed.retryable


# Servers that misbehave ----------------------------------------------------------------------------------------------


@proves("E7")
async def test_a_server_that_comes_back_is_called_again_at_once(caller: GrpcCaller) -> None:
    async with open_shop() as shop:
        result_of(await caller.call(of(shop), a_call(payload={})))
        port = int(shop.url.rpartition(":")[2])
    for _ in range(3):
        failed = await caller.call(of(shop), a_call(payload={}))
        assert isinstance(failed, Failed)
        # The first call may meet the end of the connection.
        assert failed.error.code in {"connect", "disconnected"}, failed.error
        assert failed.retryable
    async with open_shop(port=port) as again:
        result_of(await caller.call(of(again), a_call(payload={})))


@asynccontextmanager
async def broken_server(answer: bytes | None) -> AsyncIterator[str]:
    """Accepts connections, reads a little, and closes them after an answer; None: it says nothing at all."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        if answer is not None:
            await reader.read(24)
            writer.write(answer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        for writer in writers:
            writer.close()
        for writer in writers:
            with suppress(OSError):
                await writer.wait_closed()


@proves("E3", "E14")
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 9, b"\0\0\0\4\0\0\0\0\0garbage"])
async def test_a_server_that_is_no_grpc_server_is_a_failure_that_may_pass(caller: GrpcCaller, answer: bytes) -> None:
    async with broken_server(answer) as address:
        spec = GrpcTarget(address=address, method=PLACE, tls=False, descriptor_set=descriptor_text())
        report = await caller.call(spec, a_call(payload={}, timeout_s=30))
        assert isinstance(report, Failed), report
        assert report.retryable
        assert report.outcome is Outcome.FAILED


@proves("E7")
async def test_a_server_that_accepts_and_says_nothing_ends_with_the_timeout(caller: GrpcCaller) -> None:
    async with broken_server(None) as address:
        spec = GrpcTarget(address=address, method=PLACE, tls=False)
        failed = failure_of(await caller.call(spec, a_call(payload={}, timeout_s=0.5)), "connect_timeout")
        assert failed.outcome is Outcome.TIMED_OUT
        assert failed.retryable


@proves("E7", "E8")
async def test_a_frozen_server_ends_with_the_timeout_or_the_cancel_and_is_called_again_when_it_goes_on(
    caller: GrpcCaller,
) -> None:
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.grpc_shop.server", stdout=asyncio.subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            address = (await server.stdout.readline()).decode().strip()
        spec = GrpcTarget(address=address, method=PLACE, tls=False)
        result_of(await caller.call(spec, a_call(payload={}, timeout_s=PATIENCE_S)))
        server.send_signal(signal.SIGSTOP)
        began_s = asyncio.get_running_loop().time()
        failed = failure_of(await caller.call(spec, a_call(payload={}, timeout_s=0.5)), "timeout")
        assert failed.outcome is Outcome.TIMED_OUT
        assert asyncio.get_running_loop().time() - began_s < 10
        cancel = Cancel()
        calling = asyncio.ensure_future(caller.call(spec, a_call(payload={}, timeout_s=100, cancel=cancel)))
        await asyncio.sleep(0)
        cancel.request()
        assert isinstance(await calling, Cancelled)
        server.send_signal(signal.SIGCONT)
        report = await caller.call(spec, a_call(payload={}, timeout_s=PATIENCE_S))
        assert isinstance(report, Succeeded)
    finally:
        server.send_signal(signal.SIGCONT)
        server.kill()
        await server.wait()
