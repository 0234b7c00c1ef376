"""Every change by a person is on the audit log, in the transaction of the change (T6)."""

from typing import Any

from ondot.flow.change.change import pause
from ondot.model.ids import DEFAULT_TENANT, JobId
from tests.api.conftest import Caller
from tests.proves import proves

RECURS = {"name": "report", "function": "f", "cron": "0 9 * * *"}


async def log_of(api: Caller, **filters: Any) -> list[tuple[str, dict[str, Any]]]:
    items = (await api.get("/v1/audit", **filters))["items"]
    assert all(item["actor"] == "local" for item in items)
    # The clock does not move between two entries, so that their ids have no order.
    return sorted(((item["action"], item["detail"] or {}) for item in items), key=str)


@proves("T6")
async def test_the_whole_life_of_a_job_is_on_the_audit_log_with_its_reasons(api: Caller) -> None:
    job = await api.create(RECURS)
    path = f"/v1/jobs/{job['id']}"
    await api.http.patch(path, params={"reason": "too slow"}, json={"timeout": "1m"})
    await api.http.put(path, json=RECURS | {"pool": "other"})
    await api.http.post(f"{path}/pause", params={"reason": "night"})
    await api.http.post(f"{path}/pause")
    started = await api.http.post(f"{path}/run", params={"reason": "look"})
    assert started.status_code == 201, started.text
    await api.http.post(f"{path}/resume", json={"missed": "once"})
    past = {"from_at": "2020-01-01T00:00:00Z", "to_at": "2020-01-03T00:00:00Z"}
    made = await api.http.post(f"{path}/backfill", json=past)
    await api.http.post(f"{path}/backfills/{made.json()['id']}/cancel")
    await api.http.delete(path, params={"reason": "done"})
    await api.http.delete(path)
    expected: list[tuple[str, dict[str, Any]]] = [
        ("job.create", {"name": "report"}),
        (
            "job.update",
            {"name": "report", "from_version": 1, "version": 2, "changed": ["timeout_s"], "reason": "too slow"},
        ),
        ("job.update", {"name": "report", "from_version": 2, "version": 3, "changed": ["pool", "timeout_s"]}),
        ("job.pause", {"name": "report", "reason": "night"}),
        ("job.run", {"name": "report", "execution_id": started.json()["execution_id"], "reason": "look"}),
        ("job.resume", {"name": "report", "missed": "once"}),
        ("job.backfill", {"backfill_id": made.json()["id"], "fires": 2, **past}),
        ("job.backfill_cancel", {"backfill_id": made.json()["id"]}),
        ("job.delete", {"name": "report", "state": "ACTIVE", "version": 3, "reason": "done"}),
    ]
    found = await log_of(api, subject=job["id"])
    assert [entry for entry in expected if entry not in found] == []
    assert len(found) == len(expected)
    assert all(entry in found for entry in expected), found


@proves("T6")
async def test_a_change_that_is_refused_or_changes_nothing_leaves_no_entry(api: Caller) -> None:
    job = await api.create(RECURS | {"key": "report"})
    path = f"/v1/jobs/{job['id']}"
    await api.create(RECURS | {"key": "report"})
    await api.http.patch(path, json={"name": "report"})
    assert (await api.http.patch(path, json={"timeout": "1m"}, headers={"if-match": '"7"'})).status_code == 412
    assert [action for action, _ in await log_of(api)] == ["job.create"]
    await api.create(RECURS | {"key": "report", "timeout": "1m"})
    assert [action for action, _ in await log_of(api)] == ["job.create", "job.update"]


@proves("T6")
async def test_a_batch_is_one_entry_and_one_time_jobs_are_none(api: Caller) -> None:
    await api.create({"name": "once", "function": "f"})
    jobs = [RECURS | {"name": f"job {n}"} for n in range(3)] + [{"name": "once", "function": "f"}]
    made = (await api.http.post("/v1/jobs/batch", json={"jobs": jobs})).json()["items"]
    assert await log_of(api) == [("job.create", {"jobs": 3, "ids": [job["id"] for job in made[:3]]})]


@proves("T6")
async def test_actions_of_ondot_itself_are_not_on_the_audit_log(api: Caller) -> None:
    job = await api.create(RECURS)
    await pause(api.world.database, DEFAULT_TENANT, JobId(job["id"]), because="5 failures in a row")
    assert [action for action, _ in await log_of(api)] == ["job.create"]
