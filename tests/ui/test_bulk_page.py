"""`/bulk` and `/bulk/{id}`: operations on many, their progress and their results by item (O8, O5)."""

import re
from uuid import UUID

import pytest

from ondot.flow.bulk.turns import bulk_pass
from ondot.model.access import Role
from ondot.ui import bulk as bulk_page
from tests.api.conftest import key_of
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, every, failed, job

HOSTILE = '<img src=x onerror=alert(1)>"'


async def begin(page: Served, of: str, action: str, **more: object) -> UUID:
    answer = await page.client.post("/v1/bulk", json={"of": of, "action": action, **more})
    assert answer.status_code == 202, answer.text
    return UUID(answer.json()["id"])


def listed(html: str) -> list[str]:
    return re.findall(r'id="bulk-([0-9a-f-]{36})"', html)


async def work(world: World) -> None:
    await world.advance(1)
    await bulk_pass(world.database, world.dispatcher)


@proves("O8", "O5")
async def test_operations_are_listed_with_progress_and_shown_with_results_by_item(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await world.submit_all([job(HOSTILE, schedule=every(3600, world.now)), job("second")])
    async with served(world.database) as page:

        async def read(path: str) -> str:
            answer = await page.client.get(path)
            assert answer.status_code == 200, path
            return str(answer.text)

        assert "No operation on many was started yet." in await read("/bulk")
        ids = [str(made[0].id), str(UUID(int=7))]
        pause = await begin(page, "jobs", "pause", ids=ids, reason=HOSTILE)
        html = await read("/bulk")
        assert "Pause 2 jobs" in html
        assert "0 of 2 done" in html
        assert ">Stop</button>" in html
        assert "<img" not in html
        await work(world)
        html = await read("/bulk")
        assert "1 of 2 done, 1 refused" in html
        assert ">Undo</button>" in html
        one = await read(f"/bulk/{pause}")
        assert f'href="/jobs/{made[0].id}">&lt;img src=x' in one
        assert f"There is no job {UUID(int=7)}." in one
        refused = (await read(f"/bulk/{pause}?result=refused&cursor=x")).partition(">Results<")[2]
        assert f"There is no job {UUID(int=7)}." in refused
        assert str(made[0].id) not in refused
        run = await begin(page, "executions", "cancel", q="job:second")
        assert listed(await read("/bulk")) == [str(run), str(pause)]
        assert listed(await read("/bulk?of=jobs")) == listed(await read("/bulk?state=done")) == [str(pause)]
        assert "No operation matches." in await read("/bulk?of=runs")
        assert listed(await read("/bulk?of=x&state=y&cursor=z")) == [str(run), str(pause)]
        monkeypatch.setattr(bulk_page, "PAGE_SIZE", 1)
        [older] = re.findall(r'href="(/bulk\?cursor=[^"]+)"', await read("/bulk"))
        assert listed(await read(older)) == [str(pause)]
        [more] = re.findall(rf'href="(/bulk/{pause}\?cursor=[^"]+)"', await read(f"/bulk/{pause}"))
        assert "no job" in (await read(f"/bulk/{pause}") + await read(more))
        for path in (f"/bulk/{UUID(int=9)}", "/bulk/nonsense"):
            assert (await page.client.get(path)).status_code == 404
        undo = UUID((await page.client.post(f"/v1/bulk/{pause}/undo")).json()["id"])
        assert f'href="/bulk/{undo}"' in await read(f"/bulk/{pause}")
        assert f'href="/bulk/{pause}"' in await read(f"/bulk/{undo}")
        assert ">Undo</button>" not in await read(f"/bulk/{pause}")


@proves("O8", "E10", "O5")
async def test_replays_of_dead_letters_are_among_the_operations_with_the_executions_they_started(world: World) -> None:
    await world.submit(job("nightly"))
    worker = await world.worker()
    [leased] = await worker.lease()
    await worker.complete(leased, failed("no answer", retryable=False))
    async with served(world.database) as page:
        answer = await page.client.post("/v1/dead-letters/replay", json={"all": True})
        assert answer.status_code == 202
        await work(world)
        html = (await page.client.get(f"/bulk/{answer.json()['id']}")).text
        assert "Replay 1 dead letter" in html
        assert f'href="/executions/{leased.leased.id}">nightly' in html
        assert html.count("the new execution") == 2  # the second one for phones
        audit = (await page.client.get("/audit")).text
        assert f'href="/bulk/{answer.json()["id"]}"' in audit


@proves("T1", "O5")
async def test_buttons_need_the_right_of_the_action_and_another_tenant_sees_nothing(world: World) -> None:
    acme = await world.add_tenant("acme")
    await world.submit(job("one", schedule=every(3600, world.now)))
    async with served(world.database, auth="on") as page:
        admin = await key_of(world, 1, Role.ADMIN)
        page.client.headers.update(admin)
        id_ = await begin(page, "jobs", "delete", all=True)
        assert ">Stop</button>" in (await page.client.get("/bulk")).text
        for role in (Role.VIEWER, Role.OPERATOR):  # deletes need jobs:write
            html = (await page.client.get("/bulk", headers=await key_of(world, 1, role))).text
            assert listed(html) == [str(id_)]
            assert ">Stop</button>" not in html
        other = await key_of(world, acme, Role.ADMIN)
        assert listed((await page.client.get("/bulk", headers=other)).text) == []
        assert (await page.client.get(f"/bulk/{id_}", headers=other)).status_code == 404
