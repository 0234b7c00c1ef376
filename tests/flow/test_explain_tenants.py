"""Explain names the quota of a tenant, and its turn, without naming other tenants to anyone but an owner."""

from ondot.flow.explain import explain_execution, explain_job
from ondot.model.explain_facts import Explanation
from ondot.model.gates import Rate
from ondot.model.ids import ExecutionId, TenantNo
from ondot.store.workers import beat_worker
from tests.flow.test_quotas import lease_all, set_quotas
from tests.proves import proves
from tests.world import Worker, World, every, job


async def waiting_one(world: World, tenant_no: TenantNo) -> ExecutionId:
    rows = await world.fetch(
        "SELECT id FROM ondot.execution WHERE tenant_no = $1 AND state = 'PENDING' ORDER BY id LIMIT 1", tenant_no
    )
    return ExecutionId(rows[0]["id"])


async def explained(world: World, tenant_no: TenantNo, *, is_owner: bool = False) -> Explanation:
    id_ = await waiting_one(world, tenant_no)
    return await explain_execution(world.database, tenant_no, id_, names_others=is_owner)


async def beat(world: World, worker: Worker, held: dict[TenantNo, int]) -> None:
    async with world.database.connection() as connection:
        running = sum(held.values())
        await beat_worker(connection, worker.id, state="ALIVE", running=running, lease_ids=(), bounds=(), held=held)


@proves("E17", "E13", "T2")
async def test_the_ceiling_of_a_tenant_is_named_with_what_runs(world: World) -> None:
    acme = await world.add_tenant("acme")
    await set_quotas(world, acme, concurrent=3)
    await world.submit_all([job()] * 5, acme)
    await lease_all(await world.worker())
    explanation = await explained(world, acme)
    assert explanation.summary.startswith("Waiting for tenant acme's quota `concurrent`: 3 of 3 run")
    assert [reason.code for reason in explanation.reasons] == ["tenant_concurrent"]
    assert explanation.may_start_at is None


@proves("E17", "E13", "T2")
async def test_the_rate_of_a_tenant_is_named_with_the_next_token(world: World) -> None:
    acme = await world.add_tenant("acme")
    await set_quotas(world, acme, starts=Rate(limit=1, per_s=60.0))
    await world.submit_all([job()] * 3, acme)
    assert len(await lease_all(await world.worker())) == 1
    explanation = await explained(world, acme)
    assert [reason.code for reason in explanation.reasons] == ["tenant_starts"]
    assert "quota `starts`, one every 1 minute" in explanation.summary
    assert explanation.may_start_at == world.after(60)


@proves("E17", "T2")
async def test_a_suspended_tenant_is_named(world: World) -> None:
    acme = await world.add_tenant("acme")
    await world.submit(job(), acme)
    await world.worker()
    await world.fetch("UPDATE ondot.tenant SET state = 'SUSPENDED' WHERE tenant_no = $1", acme)
    assert [reason.code for reason in (await explained(world, acme)).reasons] == ["tenant_suspended"]


@proves("E17", "T2")
async def test_a_job_of_a_suspended_tenant_waits_for_it_and_is_not_late(world: World) -> None:
    acme = await world.add_tenant("acme")
    made = await world.submit(job(schedule=every(60, world.now)), acme)
    await world.fetch("UPDATE ondot.tenant SET state = 'SUSPENDED' WHERE tenant_no = $1", acme)
    for seconds in (0, 3600):
        await world.advance(seconds)
        found = (await explain_job(world.database, acme, made.id)).job
        assert found.reasons[0].code == "tenant_suspended"
        assert found.summary == "Tenant acme is suspended: nothing of it starts."
        assert not {"late_plan", "no_scheduler"} & {reason.code for reason in found.reasons}
        assert found.may_start_at is None


@proves("E17", "T1")
async def test_a_pool_that_was_taken_off_the_list_of_a_tenant_is_named_last(world: World) -> None:
    acme = await world.add_tenant("acme")
    made = await world.submit(job(schedule=every(60, world.now), pool="gpu"), acme)
    before = (await explain_job(world.database, acme, made.id)).job
    await world.fetch("UPDATE ondot.tenant SET pools = '{default}' WHERE tenant_no = $1", acme)
    found = (await explain_job(world.database, acme, made.id)).job
    assert found.reasons[:-1] == before.reasons
    assert found.reasons[-1].code == "pool_not_granted"
    assert found.reasons[-1].facts == {"tenant": "acme", "pool": "gpu"}
    assert found.may_start_at == before.may_start_at is not None


@proves("E17", "T1", "T2")
async def test_other_tenants_are_counted_and_named_only_to_an_owner(world: World) -> None:
    acme, other = await world.add_tenant("acme"), await world.add_tenant("verysecret")
    await world.submit_all([job()] * 200, other)
    await world.submit(job(), acme)
    worker = await world.worker()
    await beat(world, worker, {other: 100})
    mine = await explained(world, acme)
    assert [reason.code for reason in mine.reasons] == ["pool_full"]
    assert "Other tenants hold 100 of the slots and have more work" in mine.summary
    assert "verysecret" not in str(mine)
    assert "(verysecret 100)" in (await explained(world, acme, is_owner=True)).summary


@proves("E17", "T1")
async def test_an_installation_with_one_tenant_does_not_hear_of_tenants(world: World) -> None:
    await world.submit_all([job()] * 5)
    worker = await world.worker()
    await beat(world, worker, {TenantNo(1): 100})
    explanation = await explained(world, TenantNo(1))
    assert [reason.code for reason in explanation.reasons] == ["pool_full"]
    assert "tenant" not in str(explanation)
