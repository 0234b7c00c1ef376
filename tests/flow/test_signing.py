"""Signatures of real calls, as the receivers' library sees them: by host, by job, while a secret is rotated."""

import asyncio
import json
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError

from ondot.flow.signing import Signing
from ondot.flow.vault import Vault
from ondot.kms import generate_key, open_kms
from ondot.model.errors import Conflict, NoSecretKey
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.secret import MASK
from ondot.model.signature import derive_key, find_fault, parse_secret, write_secret
from ondot.model.target import HttpTarget
from ondot.store.audit import By
from ondot.testing import World, open_world
from tests.proves import proves
from tests.receiver import Received, Receiver, open_receiver
from tests.world import World as HandWorld

AT = "2031-03-03T12:00:00Z"
OWN = write_secret(b"own secret of one job, 32 bytes!")
HOST = "127.0.0.1"
TARGET = HttpTarget(url="http://127.0.0.1")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        yield receiver


def is_authentic(received: Received, secret: str) -> bool:
    try:
        Webhook(secret).verify(received.body or b"null", received.headers)
    except WebhookVerificationError:
        return False
    return True


async def secrets_of(world: World, host: str = HOST) -> list[str]:
    answer = await world.client.get_signing_secret(host)
    return [each["secret"] for each in answer["secrets"]]


async def create(world: World, receiver: Receiver, **http: Any) -> dict[str, Any]:
    body = {"name": "call", "payload": {"n": "ü"}, "target": {"http": {"url": f"{receiver.url}/hook", **http}}}
    return await world.client.create_job(body)


@proves("T3")
async def test_a_call_is_signed_with_the_secret_of_its_host_alone(receiver: Receiver) -> None:
    async with open_world(at=AT, network=True) as world:
        await create(world, receiver)
        await world.run_due()
        [received] = receiver.received
        [secret] = await secrets_of(world)
        [other] = await secrets_of(world, "localhost")
    assert is_authentic(received, secret)
    assert not is_authentic(received, other)
    assert received.headers["webhook-timestamp"].isdecimal()


@proves("T3")
async def test_a_call_without_a_body_is_signed_too(receiver: Receiver) -> None:
    async with open_world(at=AT, network=True) as world:
        await create(world, receiver, method="GET")
        await world.run_due()
        [received] = receiver.received
        [secret] = await secrets_of(world)
    assert received.body == b""
    sent = received.headers
    fault = find_fault(
        [parse_secret(secret)],
        message_id=sent["webhook-id"],
        timestamp=sent["webhook-timestamp"],
        signatures=sent["webhook-signature"],
        body=b"",
        now_s=float(sent["webhook-timestamp"]),
    )
    assert fault is None


@proves("T3")
async def test_calls_are_signed_with_both_secrets_until_the_old_one_ends(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ondot.flow.signing.READ_EVERY_S", 0.0)
    async with open_world(at=AT, network=True) as world:
        await create(world, receiver)
        await world.run_due()
        [old] = await secrets_of(world)
        rotated = await world.client.rotate_signing_secret()
        assert [each["version"] for each in rotated["versions"]] == [2, 1]
        assert rotated["versions"][1]["ends_at"] == "2031-03-04T12:00:00Z"
        new, still = await secrets_of(world)
        assert still == old != new
        await create(world, receiver)
        await world.run_due()
        assert len(receiver.received[1].headers["webhook-signature"].split()) == 2
        assert is_authentic(receiver.received[1], new)
        assert is_authentic(receiver.received[1], old)
        await world.advance(hours=24)
        assert await secrets_of(world) == [new]
        await create(world, receiver)
        await world.run_due()
    assert is_authentic(receiver.received[2], new)
    assert not is_authentic(receiver.received[2], old)


@proves("T3", "T5")
async def test_a_job_may_have_a_secret_of_its_own_which_is_not_shown(receiver: Receiver) -> None:
    async with open_world(at=AT, network=True) as world:
        job = await create(world, receiver, signing_secret=OWN)
        assert job["target"]["http"]["signing_secret"] == MASK
        assert job["target"]["http"]["headers"] == {}
        await world.client.put_secret("hook", {"value": OWN})
        other = await create(world, receiver, signing_secret={"$secret": "hook"})
        assert other["target"]["http"]["signing_secret"] == {"$secret": "hook"}
        await world.run_due()
        [secret] = await secrets_of(world)
    for received in receiver.received:
        assert is_authentic(received, OWN)
        assert not is_authentic(received, secret)
        assert "whsec_" not in str(received.headers)
    assert len(receiver.received) == 2


@proves("T3", "T5")
async def test_the_secret_of_a_job_is_kept_by_a_patch_removed_by_null_and_not_moved_to_another_host(
    receiver: Receiver,
) -> None:
    async with open_world(at=AT, network=True) as world:
        body = {"key": "k", "every": "1h", "target": {"http": {"url": receiver.url, "signing_secret": OWN}}}
        job = await world.client.create_job(body)
        changed = await world.client.patch_job(job["id"], {"labels": {"a": "b"}})
        assert changed["target"]["http"]["signing_secret"] == MASK
        again = await world.client.create_job(body | {"labels": {"a": "b"}})
        assert again["version"] == changed["version"], "the same secret again is no change"
        with pytest.raises(Exception, match="kept only for the address"):
            await world.client.patch_job(job["id"], {"target": {"http": {"url": "https://evil.example/"}}})
        removed = await world.client.patch_job(job["id"], {"target": {"http": {"signing_secret": None}}})
        assert removed["target"]["http"]["signing_secret"] is None


@proves("T3", "P12")
@pytest.mark.parametrize("value", ["whsec_short", "hunter2hunter2hunter2", "", 7])
async def test_a_secret_of_another_form_is_rejected_and_not_repeated(receiver: Receiver, value: object) -> None:
    async with open_world(at=AT, network=True) as world:
        with pytest.raises(Exception, match="signing_secret") as refusal:
            await create(world, receiver, signing_secret=value)
        assert not isinstance(value, str) or not value or value not in str(refusal.value)


@proves("T3")
async def test_a_referenced_secret_of_another_form_fails_the_attempt_without_the_secret(receiver: Receiver) -> None:
    async with open_world(at=AT, network=True) as world:
        await world.client.put_secret("hook", {"value": "not-a-webhook-secret"})
        await create(world, receiver, signing_secret={"$secret": "hook"})
        await world.run_due()
        error = world.calls("call")[-1].error
        assert error is not None
        assert error["code"] == "bad_request"
        assert "not-a-webhook-secret" not in json.dumps(error)
    assert receiver.received == []


# The keys themselves -------------------------------------------------------------------------------------------------


@proves("T3")
async def test_two_processes_agree_on_the_first_key_and_tenants_have_their_own(world: HandWorld) -> None:
    kms = open_kms(generate_key())
    one, two = (Signing(Vault(world.database, kms)) for _ in range(2))
    assert await one.keys_for(DEFAULT_TENANT, TARGET, HOST) == await two.keys_for(DEFAULT_TENANT, TARGET, HOST)
    assert await one.keys_for(TenantNo(2), TARGET, HOST) != await one.keys_for(DEFAULT_TENANT, TARGET, HOST)
    assert await one.keys_for(DEFAULT_TENANT, TARGET, "API.Example.com.") == await one.keys_for(
        DEFAULT_TENANT, TARGET, "api.example.com"
    )


@proves("T3", "T5")
async def test_the_root_key_is_not_in_the_database(world: HandWorld) -> None:
    signing = Signing(Vault(world.database, open_kms(generate_key())))
    [key] = await signing.keys_for(DEFAULT_TENANT, TARGET, HOST)
    [(_, [root])] = signing._roots.values()
    assert derive_key(root.key, HOST) == key
    [row] = await world.fetch("SELECT sealed FROM ondot.signing_key")
    assert root.key not in row["sealed"]
    assert key not in row["sealed"]


@proves("T3", "T5")
async def test_without_a_master_key_calls_are_not_signed_and_with_a_wrong_one_they_fail(world: HandWorld) -> None:
    without = Signing(Vault(world.database, None))
    assert await without.keys_for(DEFAULT_TENANT, TARGET, HOST) == []
    for refused in (without.rotate(DEFAULT_TENANT, by=None), without.read_host_keys(DEFAULT_TENANT, HOST, by=None)):
        with pytest.raises(NoSecretKey, match="ONDOT_SECRET_KEY"):
            await refused
    await Signing(Vault(world.database, open_kms(generate_key()))).keys_for(DEFAULT_TENANT, TARGET, HOST)
    for kms in (None, open_kms(generate_key())):
        # The receivers have a secret by now, and would refuse an unsigned call.
        with pytest.raises(NoSecretKey):
            await Signing(Vault(world.database, kms)).keys_for(DEFAULT_TENANT, TARGET, HOST)


@proves("T3")
async def test_rotations_are_bounded_and_one_without_overlap_ends_the_others(world: HandWorld) -> None:
    signing = Signing(Vault(world.database, open_kms(generate_key())))
    for _ in range(3):
        await signing.rotate(DEFAULT_TENANT, by=By("ana"))
    assert len(await signing.keys_for(DEFAULT_TENANT, TARGET, HOST)) == 4
    with pytest.raises(Conflict, match="overlap of 0"):
        await signing.rotate(DEFAULT_TENANT, by=None)
    [row] = await signing.rotate(DEFAULT_TENANT, 0.0, by=None)
    assert (row.version, row.ends_at) == (5, None)
    assert len(await signing.keys_for(DEFAULT_TENANT, TARGET, HOST)) == 1
    await signing.rotate(DEFAULT_TENANT, by=None)
    assert await world.count("signing_key") == 2, "keys that have ended are removed"
    assert await world.value("SELECT count(*) FROM ondot.audit WHERE action = 'webhook.rotate'") == 3


@proves("T3")
async def test_of_two_rotations_at_once_one_wins(world: HandWorld) -> None:
    kms = open_kms(generate_key())
    one, two = (Signing(Vault(world.database, kms)) for _ in range(2))
    await one.keys_for(DEFAULT_TENANT, TARGET, HOST)
    real = two._vault.writing_key

    async def slow(tenant_no: TenantNo) -> Any:
        key = await real(tenant_no)
        await one.rotate(DEFAULT_TENANT, by=None)
        return key

    two._vault.writing_key = slow  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="another request"):
        await two.rotate(DEFAULT_TENANT, by=None)
    assert await world.count("signing_key") == 2


@proves("T3", "L4")
async def test_calls_are_signed_with_the_last_known_keys_while_the_database_is_away(
    world: HandWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    signing = Signing(Vault(world.database, open_kms(generate_key())))
    keys = await signing.keys_for(DEFAULT_TENANT, TARGET, HOST)
    monkeypatch.setattr("ondot.flow.signing.READ_EVERY_S", 0.0)
    await world.database.pool.close()
    assert await signing.keys_for(DEFAULT_TENANT, TARGET, HOST) == keys


@proves("T3", "S1")
async def test_calls_that_start_at_once_read_the_keys_together(
    world: HandWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    kms = open_kms(generate_key())
    await Signing(Vault(world.database, kms)).keys_for(DEFAULT_TENANT, TARGET, HOST)
    reads: list[str] = []

    def count(place: str, name: str) -> None:
        real = getattr(import_module(place), name)

        async def counting(*arguments: Any) -> Any:
            reads.append(name)
            return await real(*arguments)

        monkeypatch.setattr(f"{place}.{name}", counting)

    count("ondot.flow.signing", "list_signing_keys")
    count("ondot.flow.vault", "find_data_keys")
    signing = Signing(Vault(world.database, kms))
    calls = [asyncio.create_task(signing.keys_for(DEFAULT_TENANT, TARGET, HOST)) for _ in range(50)]
    await asyncio.sleep(0)
    calls[0].cancel()
    first, *keys = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(first, asyncio.CancelledError)
    assert all(each == keys[0] and len(each) == 1 for each in keys)  # type: ignore[arg-type]
    assert reads == ["list_signing_keys", "find_data_keys"]
