"""The pages of workflows and runs: what they show, who may act, and that hostile names stay text (W9)."""

import re
from uuid import UUID

import pytest

from ondot.model.access import Role
from ondot.model.ids import ExecutionId
from ondot.model.workflow.spec import Approve
from tests.api.conftest import key_of
from tests.flow.workflows import advance, run_steps, start, step, step_of, workflow
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World, failed, job

HOSTILE = "<img src=x onerror=alert(1)> عربى 🚀 " + "x" * 100
NIGHTLY = {
    "list": step(),
    "check": step("list"),
    HOSTILE: step("list"),
    "upload": step("check", HOSTILE),
    "page": step("check", when="failure"),
    "cleanup": step("upload", when="ended", is_final=True),
}


async def blocked_run(world: World) -> ExecutionId:
    """A run in which `check` failed, so that `upload` is blocked."""
    worker = await world.worker()
    run = await start(world, worker, NIGHTLY)
    await run_steps(world, worker, run, {"check": failed("no <b>answer</b>", retryable=False)})
    return run


@proves("W9")
async def test_a_run_is_shown_with_its_counts_and_what_needs_a_person(world: World) -> None:
    run = await blocked_run(world)
    async with served(world.database) as page:
        html = (await page.client.get(f"/runs/{run}")).text
        assert "Blocked" in html
        assert "Needs a person" in html
        assert "no &lt;b&gt;answer&lt;/b&gt;" in html
        for name in ("Retry failed", "Give up", "Cancel", "Pause"):
            assert f">{name}</button>" in html
        assert ">Rerun</button>" not in html


@proves("W9")
async def test_the_table_finds_steps_by_state_and_by_part_of_the_name(world: World) -> None:
    run = await blocked_run(world)

    def names(html: str) -> list[str]:
        return re.findall(r'id="step-(\d+)"', html)

    async with served(world.database) as page:
        get = page.client.get
        whole = (await get(f"/runs/{run}", params={"view": "table"})).text
        assert names(whole) == ["0", "1", "2", "3", "4", "5"]
        assert "&lt;img src=x onerror=alert(1)&gt;" in whole
        assert "<img" not in whole
        assert "parent check failed" in whole
        assert names((await get(f"/runs/{run}?view=table&state=FAILED")).text) == ["1"]
        assert names((await get(f"/runs/{run}?view=table&q=UPL")).text) == ["3"]
        assert names((await get(f"/runs/{run}?view=table&state=nonsense&page=x&q=")).text) == names(whole)
        none = (await get(f"/runs/{run}?view=table&q=zzz&page=999999999999")).text
        assert "No step matches" in none


@proves("W9")
async def test_a_step_shows_its_reason_its_parents_and_its_executions(world: World) -> None:
    run = await blocked_run(world)
    async with served(world.database) as page:
        html = (await page.client.get(f"/runs/{run}/steps/1")).text
        assert "no &lt;b&gt;answer&lt;/b&gt;" in html
        for name in ("Retry", "Skip", "Set result", "Retry from here"):
            assert f">{name}</button>" in html
        [execution] = re.findall(r'href="/executions/([0-9a-f-]{36})" title', html)
        shown = (await page.client.get(f"/executions/{execution}")).text
        assert f'id="its-run" href="/runs/{run}"' in shown
        assert f'href="/runs/{run}/steps/1"><bdi>check</bdi>' in shown
        blocked = (await page.client.get(f"/runs/{run}/steps/3")).text
        assert "parent check failed" in blocked
        assert f'href="/runs/{run}/steps/1" data-step="1"' in blocked
        assert ">Retry</button>" not in blocked
        for path in (f"/runs/{run}/steps/6", f"/runs/{run}/steps/x", f"/runs/{UUID(int=7)}", "/runs/nonsense"):
            assert (await page.client.get(path)).status_code == 404, path


@proves("W9")
async def test_the_execution_of_a_run_leads_to_the_page_of_the_run(world: World) -> None:
    run = await blocked_run(world)
    async with served(world.database) as page:
        answer = await page.client.get(f"/executions/{run}", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{run}")


@proves("W9")
async def test_a_run_that_has_not_started_shows_all_its_steps_as_waiting(world: World) -> None:
    accepted = await world.submit(job("nightly", target=workflow(NIGHTLY)))
    async with served(world.database) as page:
        [found] = (await page.client.get(f"/v1/jobs/{accepted.id}/executions")).json()["items"]
        run = found["id"]
        html = (await page.client.get(f"/runs/{run}?view=table")).text
        assert html.count(">Waiting</span>") == len(NIGHTLY)
        steps = (await page.client.get(f"/ui/runs/{run}/steps")).json()
        assert (steps["states"], steps["start_ms"], steps["is_live"]) == ("WWWWWW", None, True)
        assert (await page.client.get(f"/runs/{run}/steps/0")).status_code == 200


@proves("W9")
async def test_the_picture_has_shape_states_times_and_critical_path(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"a": step(), "b": step("a"), "c": step("a"), "d": step("b", "c")})
    [first] = await worker.lease()
    await world.advance(2)
    await worker.complete(first)
    await advance(world, run)
    second, third = await worker.lease()
    for assignment in (second, third):
        await world.advance(1)
        await worker.complete(assignment)
        await advance(world, run)
    [fourth] = await worker.lease()
    await world.advance(1)
    await worker.complete(fourth)
    await advance(world, run)
    async with served(world.database) as page:
        html = (await page.client.get(f"/runs/{run}")).text
        [address] = re.findall(r'data-shape="([^"]+)"', html)
        shape = (await page.client.get(address)).json()
        assert shape["names"] == ["a", "b", "c", "d"]
        assert shape["parents"] == [[], [0], [0], [1, 2]]
        steps = (await page.client.get(f"/ui/runs/{run}/steps")).json()
        assert steps["states"] == "SSSS"
        assert (steps["started"][0], steps["ended"][0], steps["released"][1]) == (0, 2000, 2000)
        last = ["a", "b", "c", "d"].index(step_of(third))
        assert steps["path"] == [0, last, 3]
        assert (steps["released"][last], steps["ended"][last]) == (2000, 4000)


@proves("W9")
async def test_the_matrix_has_a_row_for_each_step_and_a_column_for_each_run(world: World) -> None:
    run = await blocked_run(world)
    job_id = await world.value("SELECT job_id FROM ondot.run WHERE id = $1", run)
    async with served(world.database) as page:
        html = (await page.client.get(f"/jobs/{job_id}/runs")).text
        assert html.count('<th scope="row"') == len(NIGHTLY)
        cell = f'<a class="cell {{}}" href="/runs/{run}/steps/{{}}"'
        assert cell.format("failed", 1) in html
        assert cell.format("blocked", 3) in html
        assert "<img" not in html
        html = (await page.client.get(f"/jobs/{job_id}")).text
        assert f'href="/runs/{run}"' in html
        assert f'href="/jobs/{job_id}/runs"' in html


@proves("W9", "T3")
@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
async def test_buttons_are_for_those_who_may_press_them(world: World, role: Role) -> None:
    run = await blocked_run(world)
    async with served(world.database, auth="on") as page:
        key = await key_of(world, 1, role)
        for path in (f"/runs/{run}", f"/runs/{run}/steps/1"):
            html = (await page.client.get(path, headers=key)).text
            assert ("data-act=" in html) == (role is Role.OPERATOR)
            assert ("run-dialog" in html) == (role is Role.OPERATOR)


@proves("W9", "T1")
async def test_a_tenant_sees_nothing_of_runs_of_others(world: World) -> None:
    run = await blocked_run(world)
    job_id = await world.value("SELECT job_id FROM ondot.run WHERE id = $1", run)
    acme = await world.add_tenant("acme")
    async with served(world.database, auth="on") as page:
        other, own = await key_of(world, acme, Role.ADMIN), await key_of(world, 1, Role.VIEWER)
        paths = (
            f"/runs/{run}",
            f"/runs/{run}?view=table",
            f"/runs/{run}/steps/1",
            f"/jobs/{job_id}/runs",
            f"/ui/runs/{run}/steps",
            f"/ui/jobs/{job_id}/shape/1",
        )
        for path in paths:
            assert (await page.client.get(path, headers=other)).status_code == 404, path
            assert (await page.client.get(path, headers=own)).status_code == 200, path
            assert (await page.client.get(path)).status_code in {401, 303}, path


@proves("W9")
async def test_an_approval_has_its_buttons(world: World) -> None:
    worker = await world.worker()
    run = await start(world, worker, {"ask": step(target=Approve(by="operator")), "go": step("ask")})
    async with served(world.database) as page:
        html = (await page.client.get(f"/runs/{run}/steps/0")).text
        assert "Needs approval" in html
        assert ">Approve</button>" in html
        assert ">Reject</button>" in html
        assert "Needs a person" in (await page.client.get(f"/runs/{run}")).text


@proves("W9", "E10")
async def test_the_dead_letter_of_a_step_leads_to_its_run(world: World) -> None:
    run = await blocked_run(world)
    async with served(world.database) as page:
        group = re.findall(r'id="group-[^"]*" href="([^"]+)"', (await page.client.get("/dead-letters")).text)[0]
        html = (await page.client.get(group.replace("&amp;", "&"))).text
        assert f'href="/runs/{run}"' in html
        assert f'href="/runs/{run}/steps/1"' in html
        assert "Edit and replay" not in html


@proves("W9", "O5")
async def test_the_first_page_shows_blocked_runs_and_no_steps_among_the_latest(world: World) -> None:
    run = await blocked_run(world)
    worker = await world.worker()
    await start(world, worker, {"slow": step()})
    await worker.lease()
    async with served(world.database) as page:
        html = (await page.client.get("/")).text
        assert "Blocked runs" in html
        assert f'id="blocked-{run}" href="/runs/{run}"' in html
        assert "step check failed" in html
        assert "flow: slow" in html
        latest = html[html.index('id="latest"') :]
        steps = await world.fetch("SELECT execution_id FROM ondot.step WHERE execution_id IS NOT NULL")
        assert not [row for row in steps if str(row["execution_id"]) in latest]
        assert str(run) in latest


@proves("W9", "T1")
async def test_blocked_runs_of_other_tenants_are_not_shown(world: World) -> None:
    run = await blocked_run(world)
    acme = await world.add_tenant("acme")
    async with served(world.database, auth="on") as page:
        html = (await page.client.get("/", headers=await key_of(world, acme, Role.ADMIN))).text
        assert "Blocked runs" not in html
        assert str(run) not in html


@proves("W9")
async def test_the_list_of_executions_leaves_steps_out_unless_they_are_asked_for(world: World) -> None:
    run = await blocked_run(world)
    async with served(world.database) as page:
        runs = (await page.client.get("/executions")).text
        assert re.findall(r'href="/executions/([^"]+)"', runs) == [str(run)]
        steps = (await page.client.get("/executions?steps=yes")).text
        assert "flow: check" in steps
        assert str(run) not in steps
        assert "origin=step" in steps
