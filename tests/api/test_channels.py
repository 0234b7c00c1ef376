"""`/v1/channels`: credentials are never shown; messages arrive once in effect, in the forms that receivers read."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web

from ondot.flow.signing import Signing
from ondot.flow.vault import Vault
from ondot.kms import open_kms
from ondot.model.channel import Message, MessageCause, MessageKind
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.signature import find_fault
from ondot.model.target import HttpTarget
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
    asking = asyncio.create_task(channels.api.http.post("/v1/channels/ops/test"))
    while not await channels.world.value("SELECT count(*) FROM ondot.delivery"):
        await asyncio.sleep(0)
    await channels.deliver()
    answer = (await asking).json()
    assert answer["state"] == "FAILED", answer
    assert "404" in answer["error"]
    assert "no_service" in answer["answer"]
    assert not await channels.world.value("SELECT count(*) FROM ondot.condition")
