"""`/v1/channels`: credentials are never shown; messages arrive once in effect, in the forms that receivers read."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web
from aiosmtpd.smtp import SMTP, AuthResult
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from ondot.app import open_channel_caller
from ondot.flow.alerts.evaluate import Evaluator
from ondot.flow.channels import deliver
from ondot.flow.channels.away import DatabaseAway
from ondot.flow.channels.send import queue_message
from ondot.flow.retain import Retention
from ondot.flow.signing import Signing
from ondot.flow.vault import Vault
from ondot.kms import open_kms
from ondot.model.channel import POOL, Message, MessageCause, MessageKind
from ondot.model.ids import DEFAULT_TENANT, NodeId
from ondot.model.outcome import Interrupted
from ondot.model.signature import find_fault
from ondot.model.target import HttpTarget
from ondot.store.channels import start_delivery
from ondot.store.database import open_database
from ondot.store.nodes import beat_node
from ondot.store.pools import find_pools
from tests.channels import Channels, open_channels
from tests.proves import proves
from tests.receiver import Receiver, open_receiver
from tests.world import World

INCIDENT = UUID("019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        yield receiver


@pytest.fixture
async def channels(world: World) -> AsyncIterator[Channels]:
    async with open_channels(world) as channels:
        yield channels


def message(world: World, kind: MessageKind = "opened", **fields: Any) -> Message:
    values: dict[str, Any] = {
        "kind": kind,
        "title": "nightly fails",
        "text": "3 failures in a row",
        "at": world.now,
        "incident_id": INCIDENT,
        "causes": (MessageCause(kind="failing", message="nightly failed 3 times", job="nightly"),),
    }
    return Message(**values | fields)


def bodies(receiver: Receiver) -> list[dict[str, Any]]:
    return [json.loads(each.body) for each in receiver.received]


def hung(receiver: Receiver) -> int:
    return sum(each.path == "/hung" for each in receiver.received)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0)


async def until_delivered(channels: Channels, name: str, count: int, state: str) -> None:
    async with asyncio.timeout(30):
        while sum(each["state"] == state for each in await channels.deliveries(name)) < count:
            pass


@proves("O4", "T3", "E3")
async def test_a_webhook_gets_a_signed_message_once_and_the_same_id_when_it_is_sent_again(
    channels: Channels, receiver: Receiver
) -> None:
    world = channels.world
    made = await channels.create(
        webhook={"url": f"{receiver.url}/hook", "headers": {"authorization": "Bearer 12345678"}}
    )
    assert made["webhook"]["headers"]["authorization"] == "•••"
    receiver.answer(lambda: web.Response(status=503, text="busy"))
    [id_] = await channels.send(message(world))
    assert await channels.deliver() == 1
    [delivery] = await channels.deliveries()
    assert (delivery["state"], delivery["attempts"]) == ("RETRYING", 1)
    assert "503" in delivery["error"]
    explained = await channels.api.get(f"/v1/channels/ops/deliveries/{id_}")
    assert "503" in explained["failed_attempts"][0]["error"]["message"]
    assert explained["next_attempt_at"] is not None
    assert "sent again" in explained["explanation"]
    receiver.answer(lambda: web.Response(text="thanks"))
    await world.advance(60)
    assert await channels.deliver() == 1
    await world.advance(3600)
    assert await channels.deliver() == 0
    [delivery] = await channels.deliveries()
    assert (delivery["state"], delivery["attempts"], delivery["error"]) == ("DELIVERED", 2, None)
    assert "thanks" in delivery["answer"]
    first, second = receiver.received
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == str(id_)
    assert first.headers["authorization"] == "Bearer 12345678"
    assert json.loads(first.body) == json.loads(second.body)
    body = json.loads(second.body)
    assert (body["id"], body["type"], body["incident_id"]) == (str(id_), "incident.opened", str(INCIDENT))
    assert body["causes"][0]["message"] == "nightly failed 3 times"
    keys = await Signing(Vault(world.database, open_kms(world.database.settings.secret_key))).keys_for(
        DEFAULT_TENANT, HttpTarget(url=receiver.url), "127.0.0.1"
    )
    fault = find_fault(
        keys,
        message_id=second.headers["webhook-id"],
        timestamp=second.headers["webhook-timestamp"],
        signatures=second.headers["webhook-signature"],
        body=second.body,
        now_s=float(second.headers["webhook-timestamp"]),
    )
    assert fault is None
    stored = str(
        [
            await world.fetch(f"SELECT * FROM ondot.{table}")
            for table in ("channel", "delivery", "history", "attempt", "log", "audit")
        ]
    )
    assert "12345678" not in stored


@proves("O4", "T1")
async def test_deliveries_are_hidden_from_the_tenant_and_outside_of_its_counts(
    channels: Channels, receiver: Receiver
) -> None:
    await channels.create(webhook={"url": receiver.url})
    await channels.send(message(channels.world))
    await channels.deliver()
    http = channels.api.http
    for path in ("/v1/jobs", "/v1/executions", "/v1/dead-letters", "/v1/pools"):
        text = (await http.get(path)).text
        assert "deliver" not in text, path
    answer = await http.post("/v1/jobs", json={"url": receiver.url, "pool": ":deliveries"})
    assert answer.status_code == 422


@proves("O4", "T5")
async def test_credentials_are_sealed_referred_to_or_kept_and_never_shown(
    channels: Channels, receiver: Receiver
) -> None:
    http, world = channels.api.http, channels.world
    url = f"{receiver.url}/services/T0/B0/very-secret-part"
    assert (await http.put("/v1/secrets/slack", json={"value": url})).status_code == 200
    made = await channels.create("by-name", slack={"url": {"$secret": "slack"}})
    assert made["slack"]["url"] == {"$secret": "slack"}
    made = await channels.create("sealed", slack={"url": url})
    assert made["slack"]["url"] == "•••"
    assert made["warnings"] == []
    # The shown form may be sent back as it is.
    kept = await http.patch("/v1/channels/sealed", json={"slack": made["slack"]})
    assert kept.status_code == 200, kept.text
    for name in ("by-name", "sealed"):
        await channels.send(message(world), name)
    assert await channels.deliver() == 2
    assert {each.path for each in receiver.received} == {"/services/T0/B0/very-secret-part"}
    for sent in bodies(receiver):
        assert sent["text"].startswith("Open: nightly fails")
        assert all(block["type"] in {"section", "context"} for block in sent["blocks"])
    shown = str([(await http.get(f"/v1/channels/{name}")).text for name in ("by-name", "sealed")])
    assert "very-secret-part" not in shown + str(await world.fetch("SELECT * FROM ondot.channel"))
    for body, why in (
        ({"name": "x", "slack": {"url": {"$secret": "nothing"}}}, "Unknown secret"),
        ({"name": "x", "slack": {"url": "•••"}}, "unchanged"),
        ({"name": "x"}, "exactly one"),
        ({"name": "x", "email": {"to": ["a@b.c\r\nBcc: x@y.z"]}}, "e-mail address"),
        ({"name": "x", "slack": {"url": "ftp://very-secret"}}, "begins with http"),
        ({"name": "X Y", "email": {"to": ["a@b.c"]}}, "name"),
    ):
        answer = await http.post("/v1/channels", json=body)
        assert answer.status_code == 422, answer.text
        assert why in answer.text
        assert "very-secret" not in answer.text


@proves("O4")
async def test_a_test_message_shows_what_came_back(channels: Channels, receiver: Receiver) -> None:
    receiver.answer(lambda: web.Response(status=404, text="no_service"))
    await channels.create(slack={"url": receiver.url})
    waiting = (await channels.api.http.post("/v1/channels/ops/test")).json()
    assert waiting["state"] == "QUEUED"  # no scheduler runs
    await channels.deliver()
    await channels.world.advance(1)
    async with channels.world.database.connection() as connection:
        id_ = NodeId(channels.world.database.clock.new_id())
        await beat_node(connection, id_, host="here", pid=1, release="0", lease_s=60.0)
    asking = asyncio.create_task(channels.api.http.post("/v1/channels/ops/test"))
    while await channels.world.value("SELECT count(*) FROM ondot.delivery") < 2:
        await asyncio.sleep(0)
    await channels.deliver()
    answer = (await asking).json()
    assert answer["state"] == "FAILED", answer
    assert "404" in answer["error"]
    assert "no_service" in answer["answer"]
    assert not await channels.world.value("SELECT count(*) FROM ondot.condition")


@dataclass
class Mailbox:
    """A real SMTP server; `answers` are given to DATA, one for each e-mail, then 250."""

    port: int = 0
    received: list[EmailMessage] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    hangs: bool = False

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:
        if self.hangs:
            await asyncio.Event().wait()
        if self.answers:
            return self.answers.pop(0)
        self.received.append(message_from_bytes(envelope.content, policy=policy.default))
        return "250 OK"


@pytest.fixture
async def mailbox() -> AsyncIterator[Mailbox]:
    box = Mailbox()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: SMTP(box, hostname="mail.test"), "127.0.0.1", 0)
    box.port = server.sockets[0].getsockname()[1]
    yield box
    server.close()


@proves("O4")
async def test_emails_of_an_incident_are_one_thread_and_no_text_becomes_a_header(
    world: World, mailbox: Mailbox
) -> None:
    smtp: dict[str, Any] = {"smtp_url": f"smtp://127.0.0.1:{mailbox.port}", "smtp_from": "ondot@example.com"}
    async with open_channels(world, **smtp) as channels:
        await channels.create(email={"to": ["ops@example.com", "night@example.com"]})
        mailbox.answers = ["451 try later", "554 no"]
        evil = "nightly\r\nBcc: thief@example.com\r\n\r\n<script>alert(1)</script>"
        await channels.send(message(world, title=evil))
        for _ in range(3):
            # Also after a 5xx: a mailbox that was full has room an hour later.
            assert await channels.deliver() == 1
            await world.advance(600)
        await channels.send(message(world, "recovered", title=evil))
        assert await channels.deliver() == 1
        opened, recovered = mailbox.received
        assert opened["message-id"] == recovered["in-reply-to"] == recovered["references"]
        assert opened["in-reply-to"] is None
        assert opened["message-id"] != recovered["message-id"]
        assert opened["to"] == "ops@example.com, night@example.com"
        for mail in mailbox.received:
            assert mail["bcc"] is None
            assert "Bcc: thief" in mail["subject"]
            text, html = mail.iter_parts()
            assert (text.get_content_type(), html.get_content_type()) == ("text/plain", "text/html")
            assert "<script>" not in html.get_content()
        states = [each["state"] for each in await channels.deliveries()]
        assert states == ["DELIVERED", "DELIVERED"]


@proves("O4", "T5")
async def test_emails_go_over_tls_with_a_password_and_to_no_server_whose_certificate_is_unknown(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_certificate(tmp_path)
    encrypted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    encrypted.load_cert_chain(authority, tmp_path / "key.pem")
    box, seen = Mailbox(), []

    def authenticate(_server: Any, session: Any, _envelope: Any, _mechanism: str, found: Any) -> AuthResult:
        seen.append((session.ssl is not None, found.login, found.password))
        return AuthResult(success=found.password == b"right?", handled=found.password == b"right?")

    async def listen(accept: Callable[[], SMTP], **options: Any) -> asyncio.Server:
        server = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0, **options)
        servers.push_async_callback(server.wait_closed)
        servers.callback(server.close)
        return server

    async def deliver_by(scheme: str, server: asyncio.Server, password: str) -> dict[str, Any]:
        url = f"{scheme}://ann:{password}@localhost:{server.sockets[0].getsockname()[1]}"
        async with open_channels(world, smtp_url=url, smtp_from="ondot@example.com") as channels:
            await world.advance(61)
            await channels.send(message(world, "test"))
            assert await channels.deliver() == 1
            found = (await channels.deliveries())[0]
            assert "right?" not in str(found)
            return found

    options: dict[str, Any] = {"hostname": "mail.test", "authenticator": authenticate}
    async with AsyncExitStack() as servers, open_channels(world) as channels:
        await channels.create(email={"to": ["ops@example.com"]})
        upgraded = await listen(lambda: SMTP(box, tls_context=encrypted, require_starttls=True, **options))
        implicit = await listen(lambda: SMTP(box, auth_require_tls=False, **options), ssl=encrypted)
        for scheme, server in (("smtp", upgraded), ("smtps", implicit)):
            refused = await deliver_by(scheme, server, "right%3F")
            assert (refused["state"], "certificate" in refused["error"].lower()) == ("FAILED", True), (
                scheme,
                refused["error"],
            )
        assert seen == [], "a server that may be another one gets no password"
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        for scheme, server in (("smtp", upgraded), ("smtps", implicit)):
            assert (await deliver_by(scheme, server, "right%3F"))["state"] == "DELIVERED"
        assert [each[1:] for each in seen] == [(b"ann", b"right?")] * 2
        assert len(box.received) == 2
        wrong = await deliver_by("smtps", implicit, "wrong")
        assert (wrong["state"], "535" in wrong["error"]) == ("FAILED", True), wrong


def make_certificate(directory: Path) -> Path:
    """A certificate of `localhost`, signed by itself, so that no client trusts it by default; its key is beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (directory / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    path = directory / "certificate.pem"
    path.write_bytes(certificate.public_bytes(Encoding.PEM))
    return path


@proves("O4")
async def test_a_mail_server_that_is_dead_or_hangs_fails_the_attempt_and_at_last_the_delivery(
    world: World, mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "ATTEMPT_S", 0.2)
    smtp: dict[str, Any] = {"smtp_url": f"smtp://127.0.0.1:{mailbox.port}", "smtp_from": "ondot@example.com"}
    async with open_channels(world, **smtp) as channels:
        await channels.create(email={"to": ["ops@example.com"]})
        mailbox.hangs = True
        await channels.send(message(world))
        await channels.deliver()
        [delivery] = await channels.deliveries()
        assert (delivery["state"], "timeout" in delivery["error"]) == ("RETRYING", True), delivery
        await world.advance(6 * 3600 + 1)
        await channels.deliver()
        [delivery] = await channels.deliveries()
        assert delivery["state"] == "FAILED"
        [condition] = await world.fetch("SELECT * FROM ondot.condition")
        assert (condition["kind"], condition["subject"], condition["tenant_no"]) == ("delivery", "ops", 1)
        # The message about it does not go through the same channel, and the next success ends the condition.
        cause = MessageCause(kind="delivery", message="ops fails", subject="ops")
        assert await channels.send(message(world, causes=(cause,)), "ops") == []
        mailbox.hangs = False
        await channels.send(message(world, "reminder"))
        await channels.deliver()
        assert await world.count("condition") == 0
    async with open_channels(world, smtp_url="smtp://127.0.0.1:1", smtp_from="ondot@example.com") as channels:
        await world.advance(1)
        await channels.send(message(world, "reminder"))
        await channels.deliver()
        assert "127.0.0.1:1" in (await channels.deliveries())[0]["error"]


@proves("O4")
async def test_pagerduty_gets_one_key_for_an_incident(channels: Channels, receiver: Receiver) -> None:
    world = channels.world
    receiver.answer(lambda: web.Response(status=202, text="{}"))
    await channels.create(pagerduty={"routing_key": "R" * 32, "url": receiver.url})
    for kind in ("opened", "reminder", "acknowledged", "recovered"):
        await channels.send(message(world, kind, links={"Incident": "https://ondot.example.com/i"}))
        await channels.deliver()
    events = bodies(receiver)
    assert [each["event_action"] for each in events] == ["trigger", "trigger", "acknowledge", "resolve"]
    assert {each["dedup_key"] for each in events} == {f"ondot-{INCIDENT}"}
    for event in events:
        # As the Events API v2 documents it.
        assert set(event) <= {
            "routing_key",
            "event_action",
            "dedup_key",
            "payload",
            "images",
            "links",
            "client",
            "client_url",
        }
        assert len(event["dedup_key"]) <= 255
        if event["event_action"] == "trigger":
            payload = event["payload"]
            assert {"summary", "source", "severity"} <= set(payload)
            assert set(payload) <= {
                "summary",
                "source",
                "severity",
                "timestamp",
                "component",
                "group",
                "class",
                "custom_details",
            }
            assert payload["severity"] in {"critical", "error", "warning", "info"}
            assert len(payload["summary"]) <= 1024
            assert all(set(link) <= {"href", "text"} for link in event["links"])
    assert "R" * 32 not in str(await world.fetch("SELECT * FROM ondot.delivery"))


@proves("O4", "O10")
async def test_an_incident_is_acknowledged_and_resolved_at_pagerduty_and_shown_in_the_report_until_then(
    channels: Channels, receiver: Receiver
) -> None:
    world, http = channels.world, channels.api.http
    receiver.answer(lambda: web.Response(status=202, text="{}"))
    await channels.create("duty", pagerduty={"routing_key": "R" * 32, "url": receiver.url})
    await channels.create("people", slack={"url": f"{receiver.url}/slack"})
    alert = {"name": "workers", "when": {"workers": {"below": 1}}, "notify": ["duty", "people"]}
    assert (await http.post("/v1/alerts", json=alert)).status_code == 201
    evaluator = Evaluator(world.database, queue_message, rests=0)
    assert await evaluator.one_pass() == 1
    assert await channels.deliver() == 2
    [incident] = (await channels.api.get("/v1/incidents"))["items"]
    [found] = [each for each in (await channels.api.get("/v1/report"))["findings"] if each["kind"] == "incident"]
    assert found["is_open"]
    assert found["reason"].startswith("The pool default has no worker, 1 must be alive")
    assert [each["command"] for each in found["repair"]] == [
        "ondot worker --pool default",
        f"ondot incident ack {incident['id']}",
    ]
    [acknowledge] = [each for each in found["repair"] if each["path"]]
    before = len(receiver.received)
    await world.advance(1)
    for _ in range(2):  # the second time changes nothing
        answer = await http.request(acknowledge["method"], acknowledge["path"], json={"note": "on it"})
        assert answer.status_code == 200, answer.text
    assert await channels.deliver() == 1, "people are not sent what one of them did"
    [event] = bodies(receiver)[before:]
    assert (event["event_action"], event["dedup_key"]) == ("acknowledge", f"ondot-{incident['id']}")
    [found] = [each for each in (await channels.api.get("/v1/report"))["findings"] if each["kind"] == "incident"]
    assert not found["is_open"]
    detail = await channels.api.get(f"/v1/incidents/{incident['id']}")
    assert detail["messages"] == 2
    assert [each["kind"] for each in detail["deliveries"]] == ["acknowledged", "opened", "opened"]
    assert (await http.post(f"/v1/incidents/{incident['id']}/resolve", json={})).status_code == 200
    await world.advance(10)
    assert await channels.deliver() == 2
    assert {each.get("event_action") for each in bodies(receiver)[before + 1 :]} == {"resolve", None}

    # More than a channel gets in a minute: an incident shows the delivery that its message was joined into.
    for number in range(12):
        when = {"workers": {"below": 1, "pool": f"pool-{number}"}}
        await http.post("/v1/alerts", json={"name": f"a{number}", "when": when, "notify": ["people"]})
    assert await evaluator.one_pass() == 12
    await world.advance(61)
    await channels.deliver()
    for each in (await channels.api.get("/v1/incidents", state="open"))["items"]:
        detail = await channels.api.get(f"/v1/incidents/{each['id']}")
        assert [one["state"] for one in detail["deliveries"]] == ["DELIVERED"], detail


@proves("O4", "L6")
async def test_a_channel_that_hangs_holds_a_few_slots_and_others_do_not_wait_for_it(
    world: World, channels: Channels, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "ROOM_WITHIN_S", 0.1)
    over = asyncio.Event()
    others_arrived = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        if request.path == "/ops":
            others_arrived.set()
        else:
            await over.wait()
        return web.Response()

    receiver.answering = hang
    await channels.create("hung", webhook={"url": f"{receiver.url}/hung"})
    await channels.create(webhook={"url": f"{receiver.url}/ops"})
    messages = deliver.MOST_OF_CHANNEL + 5
    for number in range(messages):
        if number % 9 == 8:
            await world.advance(61)  # so that none is joined
        await channels.send(message(world, incident_id=UUID(int=number)), "hung")
    async with asyncio.TaskGroup() as group:
        group.create_task(channels.deliver(messages))
        await until(lambda: hung(receiver) == deliver.MOST_OF_CHANNEL)
        # All but a few of the slots are free again, and the next message is sent at once.
        await until_delivered(channels, "hung", 5, "RETRYING")
        await channels.send(message(world), "ops")
        assert await channels.deliver(messages) == 1
        assert others_arrived.is_set()
        over.set()
    receiver.answer(web.Response)
    await world.advance(deliver.CROWDED_S)
    await channels.deliver()
    assert {each["state"] for each in await channels.deliveries("hung")} == {"DELIVERED"}


@proves("O4")
async def test_a_storm_is_joined_and_a_message_that_is_over_is_dropped(channels: Channels, receiver: Receiver) -> None:
    world = channels.world
    await channels.create(webhook={"url": receiver.url})
    for number in range(50):
        await channels.send(message(world, title=f"job {number}", incident_id=UUID(int=number)))
    assert await channels.deliver() == 10
    await world.advance(61)
    assert await channels.deliver() == 1
    joined = bodies(receiver)[-1]
    assert (joined["type"], joined["title"], len(joined["joined"])) == ("incidents.joined", "job 10, and 39 more", 40)
    await world.advance(61)
    # It fails, and the incident recovers before the next try.
    receiver.answer(lambda: web.Response(status=500))
    await channels.send(message(world))
    await channels.deliver()
    receiver.answer(web.Response)
    await world.advance(1)
    await channels.send(message(world, "recovered"))
    await world.advance(600)
    before = len(receiver.received)
    assert await channels.deliver() == 2
    # Where the first one was looked at before, the recovery waits for it.
    await world.advance(10)
    await channels.deliver()
    [only] = receiver.received[before:]
    assert json.loads(only.body)["type"] == "incident.recovered"
    assert [each["state"] for each in (await channels.deliveries())[:2]] == ["DELIVERED", "DROPPED"]


@proves("O4", "T2")
async def test_messages_of_a_suspended_tenant_or_a_deleted_channel_are_not_sent(
    channels: Channels, receiver: Receiver
) -> None:
    world = channels.world
    await channels.create(webhook={"url": receiver.url})
    await channels.create("gone", webhook={"url": receiver.url})
    await channels.send(message(world), "gone")
    await world.fetch(
        'INSERT INTO ondot.alert (id, created_at, updated_at, for_s, tenant_no, name, "when", scope, notify,'
        " created_by) VALUES ($1, $2, $2, 0, 1, 'bi', '{}', '{}', '{gone}', 'me')",
        world.database.clock.new_id(),
        world.now,
    )
    answer = await channels.api.http.delete("/v1/channels/gone")
    assert (answer.status_code, "bi" in answer.text) == (409, True)
    await world.fetch("DELETE FROM ondot.alert")
    assert (await channels.api.http.delete("/v1/channels/gone")).status_code == 200
    await world.fetch("UPDATE ondot.tenant SET state = 'SUSPENDED', version = version + 1 WHERE tenant_no = 1")
    world.database.tenants.forget()
    await channels.send(message(world))
    assert await channels.deliver() == 2
    assert receiver.received == []
    assert await world.value("SELECT state FROM ondot.delivery") == "DROPPED"


@proves("O4", "L4")
async def test_that_the_database_is_away_is_sent_from_memory_and_recorded_later(
    world: World, receiver: Receiver
) -> None:
    async with open_channels(world) as channels:
        await channels.create(webhook={"url": receiver.url})
        await channels.create("unused", webhook={"url": receiver.url})
        await world.fetch(
            'INSERT INTO ondot.alert (id, created_at, updated_at, for_s, tenant_no, name, "when", scope, notify,'
            " created_by) VALUES ($1, $2, $2, 0, 1, 'db', '{\"database\": {}}', '{}', '{ops}', 'me')",
            world.database.clock.new_id(),
            world.now,
        )
        # A database of its own, so that it can be closed: nothing is read from then on.
        database = await open_database(world.database.settings)
        database.clock.freeze(world.now)
        caller = open_channel_caller(database)
        vault = Vault(database, open_kms(world.database.settings.secret_key))
        away, other = DatabaseAway(database, vault, caller), DatabaseAway(database, vault, caller)
        for each in (away, other):
            await each.refresh_pass()
        await database.close()
        await away.watch_pass(lambda: 29.0, lambda: True)
        assert receiver.received == []
        for silent_s in (31.0, 45.0, 200.0):
            await away.watch_pass(partial(float, silent_s), lambda: True)
        [sent] = bodies(receiver)
        assert (sent["type"], sent["title"], sent["channel"]) == ("incident.opened", "PostgreSQL is away", "ops")
        # Another scheduler, in case the first one is gone too: later, and with the same id.
        await other.watch_pass(lambda: 45.0, lambda: False)
        assert len(receiver.received) == 1
        await other.watch_pass(lambda: 95.0, lambda: False, lambda: "etcd")
        assert bodies(receiver)[1]["title"] == "etcd is away"
        assert receiver.received[1].headers["webhook-id"] == receiver.received[0].headers["webhook-id"]
        away._database = world.database  # it is back
        away._vault = channels.api.services.vault
        await away.watch_pass(lambda: 0.5, lambda: True)
        await away.watch_pass(lambda: 0.5, lambda: True)
        [delivery] = await channels.deliveries()
        assert (delivery["state"], delivery["title"]) == ("DELIVERED", "PostgreSQL is away")
        [condition] = await world.fetch("SELECT * FROM ondot.condition")
        assert (condition["kind"], json.loads(condition["details"])["sent_to"]) == ("database", ["ops"])
        assert (world.now - condition["since"]).total_seconds() == 31
        await caller.close()


@proves("O4", "T3")
async def test_a_channel_reaches_no_private_address_unless_it_is_allowed(world: World, receiver: Receiver) -> None:
    async with open_channels(world, allow_private_targets=False) as channels:
        await channels.create(webhook={"url": receiver.url})
        await channels.send(message(world))
        await channels.deliver()
        [delivery] = await channels.deliveries()
        assert delivery["state"] == "FAILED"
        assert "127.0.0.1" in delivery["error"]
        assert receiver.received == []
        assert (await channels.api.http.delete("/v1/channels/ops")).status_code == 200
        # Its job goes with it, and nobody has to replay what was not delivered.
        await world.retain()
        assert await world.value("SELECT state FROM ondot.job WHERE tenant_no = 0") == "DELETED"
        assert await world.value("SELECT count(*) FROM ondot.dead_letter WHERE resolved_at IS NULL") == 0


@proves("O4", "E6")
async def test_a_delivery_whose_schedulers_were_lost_too_often_has_failed_and_is_reported(
    channels: Channels, receiver: Receiver
) -> None:
    world = channels.world
    await channels.create(webhook={"url": f"{receiver.url}/ops"})
    [id_] = await channels.send(message(world))
    async with world.database.connection() as connection:
        pool_nos = list((await find_pools(connection, [POOL])).values())
        assert await start_delivery(connection, id_, 1, deliver.ATTEMPT_S) is not None
    # Ninety-nine losses later.
    await world.fetch("UPDATE ondot.execution SET losses = 100 WHERE id = $1", id_)
    worker = await world.worker(pool_nos=pool_nos)
    [assignment] = await worker.lease()
    await worker.complete(assignment, Interrupted("The scheduler was killed."))
    retention = Retention(world.database)
    while await retention.one_pass():
        pass
    [delivery] = await channels.deliveries()
    assert delivery["state"] == "FAILED"
    assert "lost too often" in delivery["error"]
    assert await world.value("SELECT count(*) FROM ondot.condition WHERE kind = 'delivery'") == 1
