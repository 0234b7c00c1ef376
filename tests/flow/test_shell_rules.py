"""Whose shell commands a worker runs: real commands of several tenants and pools."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from ondot.flow.shell_rules import ShellRules
from ondot.model.ids import DEFAULT_TENANT, TenantNo
from ondot.model.outcome import Succeeded
from ondot.model.target import ShellTarget
from ondot.ports.target import CallReport
from ondot.targets.shell import ShellCaller
from tests.conformance.calls import a_call, failure_of
from tests.proves import proves
from tests.world import World

Run = Callable[[TenantNo, str], Awaitable[CallReport]]


def runner(world: World, *, tenants: str | None = None, pools: str | None = None) -> Run:
    settings = world.database.settings.model_copy(update={"shell_tenants": tenants, "shell_pools": pools})
    caller = ShellCaller(allow=True, why_not=ShellRules(replace(world.database, settings=settings)).why_not)

    async def run(tenant_no: TenantNo, pool: str = "default") -> CallReport:
        return await caller.call(ShellTarget(command=("true",)), a_call(tenant_no=tenant_no, pool=pool))

    return run


@proves("T4")
async def test_only_commands_of_the_first_tenant_run_unless_others_are_named(world: World) -> None:
    acme = await world.add_tenant("acme")
    run = runner(world)
    assert isinstance(await run(DEFAULT_TENANT, "default"), Succeeded)
    failed = failure_of(await run(acme, "default"), "shell_not_allowed")
    assert not failed.retryable
    assert "ONDOT_SHELL_TENANTS" in failed.error.message


@proves("T4")
@pytest.mark.parametrize(
    ("named", "runs"), [("acme", (False, True)), (" acme , default", (True, True)), ("*", (True, True))]
)
async def test_an_operator_names_the_tenants(world: World, named: str, runs: tuple[bool, bool]) -> None:
    acme = await world.add_tenant("acme")
    run = runner(world, tenants=named)
    for tenant_no, is_run in zip((DEFAULT_TENANT, acme), runs, strict=True):
        assert isinstance(await run(tenant_no, "default"), Succeeded) is is_run
    assert isinstance(await run(TenantNo(99), "default"), Succeeded) is (named == "*")


@proves("T4")
async def test_an_operator_names_the_pools(world: World) -> None:
    run = runner(world, pools="ops,night")
    assert isinstance(await run(DEFAULT_TENANT, "ops"), Succeeded)
    failed = failure_of(await run(DEFAULT_TENANT, "default"), "shell_not_allowed")
    assert "ONDOT_SHELL_POOLS" in failed.error.message
