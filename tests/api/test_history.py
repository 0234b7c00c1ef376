"""`GET /v1/history` and the page: an owner sees what there is, what stays and why, and what goes next."""

from datetime import timedelta

from ondot.model.access import Role
from ondot.model.retry import Retry
from tests.api.conftest import key_of
from tests.flow.test_history import KEPT_DAYS, age, keep_for, rewrite, run_one
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, failed, job


@proves("O1", "O11")
async def test_an_owner_sees_history_its_days_and_what_stays(world: World) -> None:
    keep_for(world)
    await run_one(world)
    await world.submit(job(retry=Retry(max_retries=0)))
    await (await world.worker()).run_one(failed())
    first_day = world.now.date()
    await age(world, KEPT_DAYS + 2)
    await rewrite(world)
    await run_one(world)
    tenant = await world.add_tenant("ledger")
    await world.fetch("UPDATE ondot.tenant SET retention_days = 90 WHERE tenant_no = $1", tenant)
    world.database.tenants.forget()
    world.database.settings = world.database.settings.model_copy(update={"disk_limit": 10**9})
    async with served(world.database, auth="on") as page:
        owner = await key_of(world, 1, Role.OWNER)
        refused = await page.client.get("/v1/history", headers=await key_of(world, 1, Role.ADMIN))
        found = (await page.client.get("/v1/history", headers=owner)).json()
        html = (await page.client.get("/history", headers=owner)).text
    assert refused.status_code == 403
    assert found["retention_days"] == KEPT_DAYS
    assert found["tenants"] == {"ledger": 90}
    assert found["bytes"] > found["history_bytes"] > 0
    assert found["disk_used"] == round(found["bytes"] / 10**9, 4)
    assert {(entry["table"], entry["reason"]): entry["rows"] for entry in found["stays"]} == {
        ("history", "dead_letter"): 1,
        ("attempt", "execution"): 1,
        ("job_once", "dead_letter"): 1,
    }
    assert found["next"]["day"] == world.now.date().isoformat()
    assert found["next"]["at"].startswith((world.now.date() + timedelta(days=KEPT_DAYS + 1)).isoformat())
    assert found["last"]["day"] == first_day.isoformat()
    assert found["last"]["removed"] >= 2
    assert found["days"][0]["day"] == world.now.date().isoformat()
    assert "an open dead letter names it" in html
    assert "% full." in html
    assert first_day.isoformat() in html
