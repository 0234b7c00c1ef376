"""`ondot secret` on a real server: values come in by standard input and never out; master keys are rotated."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ondot.flow.secrets import rotate_master, set_secret
from ondot.flow.vault import Vault
from ondot.kms import generate_key, open_kms
from ondot.model.errors import NoSecretKey
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.secret import Destinations
from ondot.settings import load_settings
from ondot.store.audit import By
from ondot.store.secrets import count_masters
from tests.cli.running import ondot
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World

VALUE = "sk_live_51Hq8canary"
OLD, NEW = generate_key(), generate_key()


def same(destinations: Destinations) -> Destinations:
    return destinations


@pytest.fixture
async def api(world: World) -> AsyncIterator[Served]:
    world.database.settings = world.database.settings.model_copy(update={"secret_key": OLD})
    async with served(world.database) as api:
        yield api


@proves("T5")
async def test_a_value_is_read_from_standard_input_and_never_printed(api: Served) -> None:
    settings: dict[str, Any] = {"url": api.url}
    ran = await asyncio.to_thread(ondot, "secret", "set", "stripe", "--host", "a.org", stdin=f"{VALUE}\n", **settings)
    assert ran.code == 0, ran.err
    assert "Secret stripe, version 1." in ran.out
    again = await asyncio.to_thread(ondot, "secret", "set", "stripe", stdin=VALUE, **settings)
    assert "version 1" in again.out
    listed = await asyncio.to_thread(ondot, "secret", "list", "-o", "json", **settings)
    [secret] = json.loads(listed.out)["items"]
    assert (secret["name"], secret["version"], secret["hosts"]) == ("stripe", 1, ["a.org"])
    kept = await asyncio.to_thread(
        ondot, "secret", "set", "stripe", "--keep-value", "--host", "none", "--pool", "default", **settings
    )
    assert kept.code == 0, kept.err
    shown = await asyncio.to_thread(ondot, "secret", "list", **settings)
    assert "stripe" in shown.out
    assert "any" in shown.out
    short = await asyncio.to_thread(ondot, "secret", "set", "stripe", stdin="short", **settings)
    assert short.code != 0
    assert "at least 8 characters" in short.err
    gone = await asyncio.to_thread(ondot, "secret", "delete", "stripe", "--yes", **settings)
    assert "Deleted stripe." in gone.out
    assert VALUE not in "".join(each.out + each.err for each in (ran, again, listed, kept, shown, gone))


@proves("T5")
async def test_the_master_key_is_rotated_while_everything_runs(world: World) -> None:
    tenants = [DEFAULT_TENANT, await world.add_tenant("a"), await world.add_tenant("b")]
    old = Vault(world.database, open_kms(OLD))
    for tenant_no in tenants:
        await set_value(old, tenant_no)
    both = open_kms(f"{NEW},{OLD}")
    new = open_kms(NEW)
    assert both is not None
    assert new is not None
    with pytest.raises(NoSecretKey, match="need the master key"):
        await Vault(world.database, new).writing_key(DEFAULT_TENANT)
    assert await rotate_master(world.database, both, actor="test") == 3
    assert await rotate_master(world.database, both, actor="test") == 0
    async with world.database.connection() as connection:
        assert await count_masters(connection) == {both.master: 3}
    # Processes with the old key cached go on, those with the new one read the same values.
    for vault in (old, Vault(world.database, new), Vault(world.database, both)):
        for tenant_no in tenants:
            assert (await set_value(vault, tenant_no)).version == 1
    rotated = await world.fetch(
        "SELECT detail FROM ondot.audit WHERE action = 'secret.rotate_master' AND tenant_no = 0"
    )
    assert len(rotated) == 2


async def set_value(vault: Vault, tenant_no: TenantNo) -> Any:
    return await set_secret(vault, tenant_no, "stripe", VALUE, same, by=By("test"))


@proves("T5")
async def test_the_command_rotates_and_doctor_reports_what_is_left(world: World) -> None:
    await set_value(Vault(world.database, open_kms(OLD)), DEFAULT_TENANT)
    settings: dict[str, Any] = {"database_url": world.url, "allow_unsafe_database": "1"}

    def finding(secret_key: str | None) -> dict[str, str]:
        more: dict[str, Any] = {} if secret_key is None else {"secret_key": secret_key}
        findings = json.loads(ondot("doctor", "-o", "json", **settings, **more).out)["findings"]
        found: dict[str, str] = next(each for each in findings if each["check"] == "secrets")
        return found

    assert finding(OLD)["level"] == "ok"
    assert finding(NEW)["level"] == "problem"
    assert finding(None)["level"] == "warning"
    assert "rotate-master" in finding(f"{NEW},{OLD}")["advice"]
    refused = ondot("secret", "rotate-master", **settings)
    assert refused.code != 0
    assert "ondot secret generate-key" in refused.err
    rotated = ondot("secret", "rotate-master", secret_key=f"{NEW},{OLD}", **settings)
    assert "1 data key is now encrypted" in rotated.out, rotated.err
    assert finding(NEW)["level"] == "ok"


@proves("T5")
def test_a_generated_key_is_valid_and_a_wrong_one_is_refused_without_showing_it() -> None:
    key = ondot("secret", "generate-key").out.strip()
    assert load_settings(secret_key=f"{key},{generate_key()}").secret_key
    wrong = ondot("secret", "rotate-master", secret_key="not-a-key-but-secret")
    assert wrong.code != 0
    assert "base64 of 32 bytes" in wrong.err
    assert "not-a-key" not in wrong.err
