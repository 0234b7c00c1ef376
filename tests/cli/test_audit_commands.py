"""`ondot audit verify` on a database: what it prints, and how it exits (T6)."""

import json

from ondot.flow.audit_seal import Sealer
from ondot.model.audit_chain import SealKey
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.store.audit import By, record
from tests.cli.running import Ran, ondot
from tests.proves import proves
from tests.world import World

KEY = "0123456789abcdef0123456789abcdef"


def verify(world: World, *words: str, key: str = KEY) -> Ran:
    return ondot("audit", "verify", *words, database_url=world.url, audit_key=key, allow_unsafe_database="1")


async def fill(world: World, tenant_no: TenantNo = DEFAULT_TENANT) -> None:
    async with world.database.connection() as connection:
        for number in range(3):
            await record(connection, tenant_no, By("ann"), "job.run", None, {"number": number})
    await Sealer(world.database, SealKey(KEY.encode())).one_pass()


@proves("T6")
async def test_verify_exits_with_1_and_names_what_does_not_fit(world: World) -> None:
    await fill(world)
    ran = verify(world)
    assert (ran.code, "Intact." in ran.out) == (0, True), ran.err
    assert "installation" not in ran.out, "one tenant: its log is the only one"
    found = json.loads(verify(world, "-o", "json").out)
    [own] = [item for item in found["items"] if item["entries"]]
    assert (found["intact"], own["entries"], own["seals"], own["signed"]) == (True, 3, 1, 1)
    assert verify(world, "--head", own["head"], "--tenant", own["tenant"]).code == 0
    cut = verify(world, "--head", "ab" * 32, "--tenant", own["tenant"])
    assert (cut.code, "No seal has the hash" in cut.out) == (1, True)
    [id_] = [row["id"] for row in await world.fetch("SELECT id FROM ondot.audit WHERE detail->>'number' = '1'")]
    await world.fetch("UPDATE ondot.audit SET actor = 'eve' WHERE id = $1", id_)
    ran = verify(world)
    assert ran.code == 1
    assert f"Entry {id_}" in ran.out.replace("\n", " ")
    assert verify(world, key="f" * 32).code == 1


@proves("T6")
async def test_verify_checks_every_tenant_and_rejects_bad_options(world: World) -> None:
    acme = await world.add_tenant("acme")
    await fill(world)
    await fill(world, acme)
    items = json.loads(verify(world, "-o", "json").out)["items"]
    assert {item["tenant"]: item["entries"] for item in items if item["entries"]}.keys() >= {"acme"}
    await world.fetch("DELETE FROM ondot.audit_seal WHERE tenant_no = $1", acme)
    ran = verify(world)
    assert (ran.code, "acme" in ran.out) == (1, True)
    assert verify(world, "--tenant", "default").code == 0
    for words, message in (
        (("--tenant", "nobody"), "nobody"),
        (("--head", "x", "--tenant", "acme"), "64"),
        (("--head", "ab" * 32), "--tenant"),
        (("--from", "yesterday"), "instant"),
    ):
        ran = verify(world, *words)
        assert ran.code not in {0, 1}, words
        assert message in ran.err
    assert "32 characters" in verify(world, key="short").err
