"""`ondot tenant`, against the API as it is served, with the key of an owner."""

import asyncio
import json

from ondot.model.access import Role
from tests.api.conftest import key_of
from tests.cli.running import Ran, ondot
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, job


async def run(page: Served, key: str, *words: str, tenant: str = "") -> Ran:
    return await asyncio.to_thread(lambda: ondot(*words, url=page.url, api_key=key, tenant=tenant))


@proves("T1", "T2")
async def test_a_tenant_lives_from_create_to_delete_on_the_command_line(world: World) -> None:
    key = (await key_of(world, 1, Role.OWNER))["authorization"].removeprefix("Bearer ")
    async with served(world.database, auth="on") as page:
        made = await run(page, key, "tenant", "create", "acme", "--weight", "2", "--jobs", "100", "--creates", "10/1s")
        assert (made.code, "Created tenant acme" in made.out) == (0, True), made.err
        shown = await run(page, key, "tenant", "list")
        assert "acme" in shown.out
        assert "creates 10 in 1 s" in " ".join(shown.out.split())
        changed = await run(page, key, "tenant", "update", "acme", "--jobs", "none", "--weight", "3", "-o", "json")
        assert (json.loads(changed.out)["weight"], "jobs" in json.loads(changed.out)["quotas"]) == (3, False)
        wrong = await run(page, key, "tenant", "update", "acme", "--creates", "often")
        assert (wrong.code, "--creates" in wrong.err) == (2, True)
        nothing = await run(page, key, "tenant", "update", "acme")
        assert (nothing.code, "--weight" in nothing.err) == (2, True)
        twice = await run(page, key, "tenant", "create", "acme")
        assert twice.code == 4
        assert (await run(page, key, "tenant", "get", "nobody")).code == 3
        await run(page, key, "tenant", "update", "acme", "--concurrent", "5000")
        card = " ".join((await run(page, key, "tenant", "get", "acme")).out.split())
        assert "quota concurrent 5,000, 0 running quota creates 10 in 1 s" in card, card
        assert "state ACTIVE weight 3 pools default" in card
        assert "waiting 0" in card
        suspended = await run(page, key, "tenant", "suspend", "acme")
        assert "Suspended acme" in suspended.out
        refused = await run(page, key, "--tenant", "acme", "job", "create", "--function", "f", "--every", "1h")
        assert (refused.code, "suspended" in refused.err) == (4, True)
        assert (await run(page, key, "tenant", "resume", "acme")).code == 0
        created = await run(page, key, "job", "create", "--function", "f", "--every", "1h", tenant="acme")
        assert created.code == 0, created.err
        dry = await run(page, key, "tenant", "delete", "acme", "--dry-run")
        assert "Would delete acme: 1 job, 0 executions, 0 dead letters" in " ".join(dry.out.split())
        unsure = await run(page, key, "tenant", "delete", "acme")
        assert (unsure.code, "--yes" in unsure.err) == (2, True)
        deleted = await run(page, key, "tenant", "delete", "acme", "--yes")
        assert (deleted.code, "Deleted acme" in deleted.out) == (0, True)
        deleted_card = " ".join((await run(page, key, "tenant", "get", "acme")).out.split())
        assert "state DELETED removal 0 rows removed" in deleted_card
        gone = await run(page, key, "tenant", "list", "--deleted", "-o", "json")
        assert [item["state"] for item in json.loads(gone.out)["items"]] == ["DELETED"]


@proves("T1", "T7")
async def test_the_key_of_an_admin_manages_no_tenants(world: World) -> None:
    acme = await world.add_tenant("acme")
    await world.submit(job(), acme)
    key = (await key_of(world, acme, Role.ADMIN))["authorization"].removeprefix("Bearer ")
    async with served(world.database, auth="on") as page:
        refused = await run(page, key, "tenant", "list")
        assert (refused.code != 0, "owner" in refused.err) == (True, True)
        acting = await run(page, key, "--tenant", "default", "job", "list")
        assert (acting.code != 0, "Only an owner" in acting.err) == (True, True)


@proves("T3")
async def test_where_a_tenant_may_call_is_set_on_the_command_line(world: World) -> None:
    key = (await key_of(world, 1, Role.OWNER))["authorization"].removeprefix("Bearer ")
    async with served(world.database, auth="on") as page:
        networks = [
            "--private-network",
            "10.1.0.0/16",
            "--private-network",
            "fd12::/48",
            "--deny-host",
            "*.bad.org",
        ]
        made = await run(page, key, "tenant", "create", "acme", *networks, "-o", "json")
        targets = {"private_networks": ["10.1.0.0/16", "fd12::/48"], "allow": [], "deny": ["*.bad.org"]}
        assert json.loads(made.out)["targets"] == targets
        changed = await run(page, key, "tenant", "update", "acme", "--private-network", "none", "-o", "json")
        assert json.loads(changed.out)["targets"] == targets | {"private_networks": []}
        wrong = await run(page, key, "tenant", "update", "acme", "--private-network", "169.254.0.0/16")
        assert (wrong.code, "--private-network" in wrong.err) == (2, True), wrong.err


@proves("T2")
async def test_usage_shows_what_a_tenant_runs_and_waits_for(world: World) -> None:
    acme = await world.add_tenant("acme")
    await world.submit_all([job()] * 3, acme)
    worker = await world.worker()
    assert len(await worker.lease(1)) == 1
    key = (await key_of(world, 1, Role.OWNER))["authorization"].removeprefix("Bearer ")
    async with served(world.database, auth="on") as page:
        shown = await run(page, key, "tenant", "usage", "acme")
        assert "Tenant acme, weight 1: 1 running." in shown.out, shown.err
        assert "2 of 2" in " ".join(shown.out.split())
        found = json.loads((await run(page, key, "tenant", "usage", "acme", "-o", "json")).out)
        assert [(pool["running"], pool["waiting"]) for pool in found["pools"] if pool["name"] == "default"] == [(1, 2)]
        assert (await run(page, key, "tenant", "usage", "nobody")).code == 3


@proves("T1", "O5")
async def test_the_second_tenant_of_a_server_without_keys_is_created_only_with_a_warning(world: World) -> None:
    async with served(world.database) as page:
        asked = await run(page, "", "tenant", "create", "acme")
        assert (asked.code, "ondot key create me --role owner" in " ".join(asked.err.split())) == (2, True), asked
        assert await world.fetch("SELECT FROM ondot.tenant WHERE name = 'acme'") == []
        made = await run(page, "", "tenant", "create", "acme", "--yes")
        assert (made.code, "Created tenant acme" in made.out) == (0, True), made
        said = " ".join(made.err.split())
        assert "every request needs a key" in said
        assert "ondot key create me --role owner" in said
