"""What the code declares of a job, as API, command line and page show it; reset and adopt."""

import asyncio
from typing import Any

from ondot.flow.change.change import pause
from ondot.flow.declare import Declarer
from ondot.model.app_release import AppRelease
from ondot.model.ids import DEFAULT_TENANT, JobId
from tests.api.conftest import Caller
from tests.cli.running import ondot
from tests.proves import proves
from tests.ui.serving import served
from tests.world import World

KEY = "function:nightly"


def body(key: str = KEY, **fields: Any) -> dict[str, Any]:
    return {
        "name": "nightly",
        "key": key,
        "target": {"function": "nightly"},
        "schedule": {"cron": "0 2 * * *"},
    } | fields


async def declare(world: World, *bodies: dict[str, Any], app: str = "billing", release: str = "v1") -> None:
    await Declarer(world.database, bodies, AppRelease(app, release)).declare_for(DEFAULT_TENANT)


async def declared_job(world: World, **fields: Any) -> JobId:
    await declare(world, body(**fields))
    return JobId(await world.value("SELECT id FROM ondot.job WHERE key = $1", KEY))


@proves("D4")
async def test_a_job_shows_the_code_what_was_changed_by_hand_and_what_is_in_force(api: Caller) -> None:
    id_ = await declared_job(api.world, retry={"max_retries": 2}, timeout="5m")
    plain = await api.create({"name": "plain", "function": "f"})
    shown = await api.get(f"/v1/jobs/{id_}/declared")
    assert (shown["app"], shown["release"], shown["in_words"]) == (
        "billing",
        "v1",
        "As declared by billing, release v1.",
    )
    assert {one["field"] for one in shown["fields"]} == {
        "name",
        "target",
        "schedule.rule",
        "retry.max_retries",
        "timeout",
    }
    await api.http.patch(f"/v1/jobs/{id_}", json={"retry": {"max_retries": 9}, "labels": {"by": "hand"}})
    shown = await api.get(f"/v1/jobs/{id_}/declared")
    differing = {
        one["field"]: (one["code"], one["by_hand"], one["in_force"]) for one in shown["fields"] if one["differs"]
    }
    assert differing == {"retry.max_retries": (2, 9, 9), "labels.by": (None, "hand", "hand")}
    assert shown["in_words"] == "Differs from the code of billing, release v1: retry.max_retries, labels.by."
    declared = {
        "app": "billing",
        "release": "v1",
        "differs": ["retry.max_retries", "labels.by"],
        "dropped_release": None,
    }
    listed = {item["name"]: item.get("declared") for item in (await api.get("/v1/jobs"))["items"]}
    assert listed == {"nightly": declared, "plain": None}
    assert (await api.get("/v1/jobs", q="nightly"))["items"][0]["declared"] == declared
    read = await api.get(f"/v1/jobs/{id_}")
    assert read["declared"] == declared
    assert (await api.http.put(f"/v1/jobs/{id_}", json=read)).status_code == 200, "a job may be sent as it was read"
    assert (await api.http.get(f"/v1/jobs/{plain['id']}/declared")).status_code == 404


@proves("D4", "T6")
async def test_a_reset_goes_back_to_the_code_with_a_reason_and_keeps_a_pause(api: Caller) -> None:
    id_ = await declared_job(api.world, retry={"max_retries": 2})
    await api.http.patch(f"/v1/jobs/{id_}", json={"retry": {"max_retries": 9}, "labels": {"by": "hand"}})
    await pause(api.world.database, DEFAULT_TENANT, id_)
    dry = (await api.http.post(f"/v1/jobs/{id_}/reset", params={"dry_run": True})).json()
    assert (dry["changed"], dry["dry_run"], dry["version"]) == (["retry.max_retries", "labels.by"], True, 2)
    done = (await api.http.post(f"/v1/jobs/{id_}/reset", params={"reason": "quick again"})).json()
    assert (done["changed"], done["version"]) == (["retry.max_retries", "labels.by"], 3)
    job = await api.get(f"/v1/jobs/{id_}")
    assert (job["retry"]["max_retries"], job["labels"], job["state"]) == (2, {}, "PAUSED")
    reasons = {entry["reason"] for entry in (await api.get("/v1/audit", subject=str(id_)))["items"]}
    assert "Reset to what billing declares, release v1: quick again" in reasons
    again = (await api.http.post(f"/v1/jobs/{id_}/reset")).json()
    assert (again["changed"], again["version"]) == ([], 3)


@proves("D4", "T6")
async def test_an_operator_hands_a_job_over_to_another_app(api: Caller) -> None:
    id_ = await declared_job(api.world)
    thief = Declarer(api.world.database, [body(timeout="9m")], AppRelease("crm", "v1"))
    await thief.declare_for(DEFAULT_TENANT)
    [refused] = (await api.get(f"/v1/jobs/{id_}/declared"))["refused"]
    assert (refused["app"], refused["why"]) == (
        "crm",
        "The job belongs to the app billing. Hand it over: ondot job adopt function:nightly crm",
    )
    for wrong in ("", " x"):
        assert (await api.http.post(f"/v1/jobs/{id_}/adopt", params={"app": wrong})).status_code == 422
    adopted = await api.http.post(f"/v1/jobs/{id_}/adopt", params={"app": "crm"})
    assert adopted.json()["app"] == "crm"
    await thief.declare_for(DEFAULT_TENANT)
    assert (await api.get(f"/v1/jobs/{id_}"))["timeout"] == 540
    assert (await api.get(f"/v1/jobs/{id_}/declared"))["refused"] == []
    actions = {entry["action"] for entry in (await api.get("/v1/audit", subject=str(id_)))["items"]}
    assert "job.adopt" in actions


@proves("D4")
async def test_a_rename_is_visible_as_such(api: Caller) -> None:
    id_ = await declared_job(api.world)
    await declare(api.world, body("function:export", name="export"), release="v2")
    shown = await api.get(f"/v1/jobs/{id_}/declared")
    assert (shown["dropped_release"], shown["renamed_to"]) == ("v2", ["function:export"])
    assert (
        shown["in_words"] == "No longer declared by billing since release v2, which declares function:export instead."
    )


@proves("D4")
async def test_commands_and_pages_show_what_differs_from_the_code(world: World) -> None:
    id_ = await declared_job(world, retry={"max_retries": 2})
    async with served(world.database) as page:

        async def run(*words: str) -> Any:
            return await asyncio.to_thread(ondot, *words, url=page.url)

        same = await run("job", "diff", str(id_))
        assert (same.code, same.out) == (0, "As declared by billing, release v1.\n")
        await page.client.patch(f"/v1/jobs/{id_}", json={"retry": {"max_retries": 9}})
        diff = await run("job", "diff", str(id_))
        assert diff.code == 1
        assert diff.out.splitlines()[-1].split() == ["retry.max_retries", "2", "9", "9"]
        await page.client.patch(f"/v1/jobs/{id_}", json={"schedule": {"timezone": "Europe/Paris"}})
        rule = next(line for line in (await run("job", "diff", str(id_))).out.splitlines() if line[:8] == "schedule")
        assert rule.endswith("  timezone: Europe/Paris")
        whole = await run("job", "diff", str(id_), "-o", "wide")
        assert '"Europe/Paris", "dst"' in whole.out
        await run("job", "reset", str(id_))
        await page.client.patch(f"/v1/jobs/{id_}", json={"retry": {"max_retries": 9}})
        heads, row = (await run("job", "list")).out.splitlines()
        assert (heads.split()[:3], row.split()[:3]) == (["NAME", "STATE", "CODE"], ["nightly", "ACTIVE", "differs"])
        html = (await page.client.get(f"/jobs/{id_}")).text
        assert "differs from code" in html
        assert 'data-act="reset"' in html
        assert "differs from code" in (await page.client.get("/jobs")).text
        dry = await run("job", "reset", str(id_), "--dry-run")
        assert (dry.code, dry.out) == (0, "Would reset: retry.max_retries.\n")
        done = await run("job", "reset", str(id_), "--reason", "quick again")
        assert done.out == "Reset: retry.max_retries. Version 6.\n"
        adopted = await run("job", "adopt", str(id_), "crm")
        assert adopted.out == "nightly belongs to crm from now on.\n"
        html = (await page.client.get(f"/jobs/{id_}")).text
        assert ("differs from code" in html, "As declared by crm" in html) == (False, True)
