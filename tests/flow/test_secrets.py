"""Secrets at an attempt: filled in from the current value, checked against the target, scrubbed from what is stored."""

import base64
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ondot import Context, Ondot
from ondot.flow.secrets import set_secret
from ondot.flow.signing import Signing
from ondot.flow.vault import KEPT_S, Vault
from ondot.kms import generate_key, open_kms
from ondot.model.errors import NoSecretKey
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.target import HttpTarget
from ondot.store.audit import By
from ondot.testing import World, open_world
from tests.proves import proves
from tests.receiver import Receiver, open_receiver

VALUE = "sk_live_51Hq8canary"
OTHER = "another-value-2"
AT = "2031-03-03T12:00:00Z"

app = Ondot()


@app.job
async def echo(**arguments: Any) -> dict[str, Any]:
    print("got", arguments)  # noqa: T201
    return arguments


@app.job(secrets=["stripe"])
async def charge(ctx: Context, amount: int = 1) -> dict[str, Any]:
    value = ctx.secret("stripe")
    ctx.log("charging", key=value)
    ctx.progress(0.5, f"with {value}")
    ctx.heartbeat(checkpoint={"key": value})
    if amount == 0:
        raise ValueError(f"not with {base64.b64encode(value.encode()).decode()}")
    return {"length": len(value), "key": value}


@app.job(secrets=["stripe"])
async def settle(ctx: Context) -> None:
    async with ctx.transaction():
        ctx.set_result({"key": ctx.secret("stripe")})


@app.job
def curious(ctx: Context) -> str:
    return ctx.secret("stripe")


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        yield receiver


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world(app, at=AT, network=True, allow_shell=True) as world:
        yield world


def call(receiver: Receiver, headers: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": "call", "target": {"http": {"url": receiver.url, "headers": headers or {}}}, **more}


def error_of(world: World, job: str) -> dict[str, Any]:
    """The error of the job's last call."""
    error = world.calls(job)[-1].error
    assert error is not None
    return error


async def ended(world: World, job: str = "call") -> Any:
    await world.run_due()
    [*_, execution] = await world.executions(job)
    return execution


async def texts(world: World) -> str:
    """All that is stored, in every table."""
    async with world._database.connection() as connection:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'ondot'")
        rows = [
            row["row"]
            for [table] in tables
            for row in await connection.fetch(f'SELECT t::text AS row FROM ondot."{table}" t')
        ]
    return "\n".join(rows)


@proves("T5")
async def test_headers_and_payload_carry_the_value_and_nothing_stored_does(world: World, receiver: Receiver) -> None:
    async def reflect(request: web.Request) -> web.StreamResponse:
        return web.json_response({"auth": request.headers["authorization"], "body": await request.json()})

    receiver.answering = reflect
    await world.set_secret("stripe", VALUE)
    headers = {"authorization": {"$secret": "stripe", "prefix": "Bearer "}, "x-team": "bi"}
    await world.create(call(receiver, headers, payload={"deep": [{"$secret": "stripe"}]}))
    execution = await ended(world)
    [received] = receiver.received
    assert (received.headers["authorization"], received.headers["x-team"]) == (f"Bearer {VALUE}", "bi")
    assert received.body == f'{{"deep":["{VALUE}"]}}'.encode()
    assert execution.state == "SUCCEEDED"
    assert execution.result["body"]["body"] == {"deep": ["•••"]}
    assert VALUE not in await texts(world)


@proves("T5")
async def test_a_header_in_plain_is_opened_for_the_call(world: World, receiver: Receiver) -> None:
    await world.create(call(receiver, {"Authorization": f"Bearer {VALUE}"}))
    assert (await ended(world)).state == "SUCCEEDED"
    assert receiver.received[0].headers["authorization"] == f"Bearer {VALUE}"
    assert VALUE not in await texts(world)


@proves("T5")
async def test_each_attempt_takes_the_current_value(world: World, receiver: Receiver) -> None:
    receiver.answer(lambda: web.Response(status=503))
    await world.set_secret("stripe", VALUE)
    await world.create(call(receiver, {"x-key": {"$secret": "stripe"}}, retry={"max_retries": 1, "initial": "1m"}))
    await world.run_due()
    await world.set_secret("stripe", OTHER)
    await world.advance(minutes=5)
    assert [received.headers["x-key"] for received in receiver.received] == [VALUE, OTHER]


@proves("T5")
async def test_a_payload_that_arrives_later_is_plain_data(world: World, receiver: Receiver) -> None:
    await world.set_secret("stripe", VALUE)
    await world.create(call(receiver, payload={"key": {"$secret": "stripe"}}, every="1h"))
    await world.run_now("call", key={"$secret": "stripe"})
    await world.run_due()
    assert receiver.received[0].body == b'{"key":{"$secret":"stripe"}}'
    await world.create({"function": "echo", "name": "later", "every": "1h"})
    await world.run_now("later", key={"$secret": "stripe"})
    await world.run_due()
    assert world.calls("later")[0].result == {"key": {"$secret": "stripe"}}


@proves("T5")
async def test_a_missing_secret_fails_at_once_without_retries(world: World, receiver: Receiver) -> None:
    await world.set_secret("stripe", VALUE)
    body = call(receiver, {"x-key": {"$secret": "stripe"}}, schedule={"in": 60}, retry={"max_retries": 5})
    await world.create(body)
    await world.client.delete_secret("stripe")
    await world.advance(hours=1)
    execution = await ended(world)
    assert (execution.state, execution.error["code"], execution.attempts) == ("FAILED", "secret_missing", 1)
    assert "ondot secret set stripe" in execution.error["message"]
    assert not receiver.received


@proves("T5")
@pytest.mark.parametrize("reach", [{"hosts": ["api.stripe.com"]}, {"pools": ["billing"]}, {"functions": ["charge"]}])
async def test_a_secret_goes_nowhere_else_than_it_may(world: World, receiver: Receiver, reach: dict[str, Any]) -> None:
    await world.set_secret("stripe", VALUE)
    await world.create(call(receiver, {"x-key": {"$secret": "stripe"}}, schedule={"in": 60}))
    await world.set_secret("stripe", VALUE, **reach)
    await world.advance(minutes=5)
    execution = await ended(world)
    assert (execution.state, execution.error["code"]) == ("FAILED", "secret_not_allowed")
    assert not receiver.received
    assert VALUE not in await texts(world)


@proves("T5")
async def test_arguments_of_a_function_are_filled_in_and_scrubbed(world: World) -> None:
    await world.set_secret("stripe", VALUE, functions=["echo"])
    await world.create({"function": "echo", "name": "call", "payload": {"key": {"$secret": "stripe"}}})
    execution = await ended(world)
    assert (execution.state, execution.result) == ("SUCCEEDED", {"key": "•••"})
    assert VALUE not in await texts(world)


@proves("T5")
async def test_a_program_gets_the_value_on_standard_input_only(world: World) -> None:
    await world.set_secret("stripe", VALUE)
    command = ["sh", "-c", f"v=$(cat); echo $v; env | grep -c {VALUE}; echo $v >&2; exit 3"]
    command[2] = command[2].replace(VALUE, VALUE[:10])
    await world.create({"command": command, "name": "call", "payload": {"$secret": "stripe"}, "max_retries": 0})
    execution = await ended(world)
    assert (execution.state, execution.error["code"]) == ("FAILED", "exit_code")
    assert "•••" in execution.error["detail"]
    assert VALUE not in await texts(world)


@proves("T5")
async def test_a_function_reads_the_secrets_that_it_declares(world: World) -> None:
    await world.set_secret("stripe", VALUE)
    await charge.enqueue(amount=3)
    await world.run_due()
    [done] = world.calls("charge")
    assert done.result == {"length": len(VALUE), "key": "•••"}
    await charge.enqueue(amount=0)
    await world.run_due()
    assert "•••" in error_of(world, "charge")["message"]
    assert VALUE not in await texts(world)


@proves("T5")
async def test_a_function_gets_no_other_secrets(world: World) -> None:
    await world.set_secret("stripe", VALUE)
    await curious.enqueue()
    await world.run_due()
    assert "secrets=['stripe']" in error_of(world, "curious")["message"]
    await world.set_secret("stripe", VALUE, hosts=["api.stripe.com"])
    await charge.enqueue()
    await world.run_due()
    assert error_of(world, "charge")["code"] == "secret_not_allowed"


@proves("T5", "E11")
async def test_a_result_of_a_transaction_is_scrubbed(world: World) -> None:
    await world.set_secret("stripe", VALUE)
    await settle.enqueue()
    await world.run_due()
    assert (await ended(world, "settle")).result == {"key": "•••"}
    assert VALUE not in await texts(world)


@proves("T5")
async def test_a_value_that_was_moved_or_changed_in_the_database_does_not_open(
    world: World, receiver: Receiver
) -> None:
    await world.set_secret("stripe", VALUE)
    await world.set_secret("public", OTHER)
    await world.create(call(receiver, {"x-key": {"$secret": "public"}}, retry={"max_retries": 1, "initial": "1m"}))
    async with world._database.connection() as connection:
        await connection.execute(
            "UPDATE ondot.secret s SET sealed = o.sealed FROM ondot.secret o"
            " WHERE s.name = 'public' AND o.name = 'stripe'"
        )
    await world.advance(hours=1)
    execution = await ended(world)
    # Retried: the fault may be one of the worker.
    assert (execution.state, execution.error["code"], execution.attempts) == ("FAILED", "secret_unreadable", 2)
    assert not receiver.received


@proves("T5")
async def test_a_worker_without_the_master_key_fails_the_attempt_and_says_what_to_do(
    world: World, receiver: Receiver
) -> None:
    await world.set_secret("stripe", VALUE)
    await world.create(call(receiver, {"x-key": {"$secret": "stripe"}}, retry={"max_retries": 0}))
    world._engine._runner._vault = Vault(world._database, open_kms(generate_key()))
    execution = await ended(world)
    assert (execution.state, execution.error["code"]) == ("FAILED", "secret_unreadable")
    assert "ONDOT_SECRET_KEY" in execution.error["message"]
    assert not receiver.received


@proves("T5")
async def test_data_keys_are_kept_in_memory_for_a_bounded_time(world: World) -> None:
    await world.set_secret("stripe", VALUE)
    now_s = [0.0]
    vault = Vault(world._database, world._engine._runner._vault.kms, now_s=lambda: now_s[0])  # type: ignore[union-attr]
    key = await vault.key(DEFAULT_TENANT, 1)
    assert await vault.key(DEFAULT_TENANT, 1) is key
    now_s[0] = KEPT_S + 1
    assert await vault.key(DEFAULT_TENANT, 1) is not key
    with pytest.raises(NoSecretKey, match="data key 2"):
        await vault.key(DEFAULT_TENANT, 2)


@proves("T5", "T3")
async def test_after_the_loss_of_the_master_key_the_statements_of_the_runbook_let_secrets_be_set_again(
    world: World,
) -> None:
    target = HttpTarget(url="http://example.com/")
    await world.set_secret("stripe", VALUE)
    kept = world._engine._runner._vault
    assert kept is not None
    assert kept.kms is not None
    assert await Signing(kept).keys_for(DEFAULT_TENANT, target, "example.com")
    vault = Vault(world._database, open_kms(generate_key()))
    with pytest.raises(NoSecretKey, match=kept.kms.master):
        await set_secret(vault, DEFAULT_TENANT, "stripe", OTHER, lambda reach: reach, by=By("ana"))
    operations = (Path(__file__).parents[2] / "docs/reference/operations.md").read_text()
    [statements] = re.findall(r"```sql\n(DELETE.*?)```", operations, re.DOTALL)
    async with world._database.transaction() as connection:
        for statement in statements.strip().rstrip(";").split(";"):
            await connection.execute(statement.replace("916512bb", kept.kms.master))
    secret = await set_secret(vault, DEFAULT_TENANT, "stripe", OTHER, lambda reach: reach, by=By("ana"))
    assert secret.version == 2
    assert await Signing(vault).keys_for(DEFAULT_TENANT, target, "example.com")
