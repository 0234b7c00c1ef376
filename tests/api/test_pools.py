"""`/v1/pools` as a client sees it: workers, waiting work and limits."""

import pytest

from tests.api.conftest import Caller
from tests.proves import proves


@proves("E1")
async def test_a_pool_shows_its_workers_and_waiting_work(api: Caller) -> None:
    await api.create({"function": "f", "pool": "mail"})
    await api.world.advance(5)
    default, mail = (await api.get("/v1/pools"))["items"]
    assert (default["name"], mail["name"], mail["workers"], mail["waiting"]) == ("default", "mail", 0, 1)
    assert mail["oldest_waiting_at"] is not None
    assert (mail["oldest_waiting_s"], default["oldest_waiting_s"], mail["gated"]) == (5, None, 0)
    await api.world.worker()
    default = await api.get("/v1/pools/default")
    assert (default["workers"], default["slots"], default["concurrency"], default["rate"]) == (1, 100, None, None)
    assert (await api.http.get("/v1/pools/none")).status_code == 404


@proves("E1", "E13")
async def test_a_pool_shows_executions_that_wait_for_a_limit_of_their_job(api: Caller) -> None:
    job = await api.create({"function": "f", "every": "1h", "concurrency": 1})
    for _ in range(3):
        await api.http.post(f"/v1/jobs/{job['id']}/run")
    worker = await api.world.worker()
    assert len(await worker.lease()) == 1
    pool = await api.get("/v1/pools/default")
    assert (pool["waiting"], pool["gated"]) == (0, 2)


@proves("E13", "T6")
async def test_limits_are_set_one_by_one_removed_by_null_and_recorded(api: Caller) -> None:
    answer = await api.http.patch("/v1/pools/default", json={"concurrency": 2, "rate": "600/1m"})
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert (shown["concurrency"], shown["rate"]) == (2, {"limit": 600, "per": 60, "burst": 1})
    await api.world.advance(1)
    shown = (await api.http.patch("/v1/pools/default", json={"rate": {"limit": 500, "per": 1}})).json()
    assert (shown["concurrency"], shown["rate"]["burst"]) == (2, 50)
    await api.world.advance(1)
    shown = (await api.http.patch("/v1/pools/default", json={"concurrency": None})).json()
    assert (shown["concurrency"], shown["rate"]["limit"]) == (None, 500)
    nothing = (await api.http.patch("/v1/pools/default", json={"concurrency": None, "rate": "500/1s"})).json()
    assert nothing == shown
    first, rate = {"limit": 600, "per_s": 60}, {"limit": 500, "per_s": 1, "burst": 50}
    audit = (await api.get("/v1/audit", action="pool.limits"))["items"]
    assert all(entry["detail"] == {"pool": "default"} for entry in audit)
    assert [(entry["before"], entry["after"]) for entry in reversed(audit)] == [
        ({"concurrency": None, "rate": None}, {"concurrency": 2, "rate": first}),
        ({"rate": first}, {"rate": rate}),
        ({"concurrency": 2}, {"concurrency": None}),
    ]


@proves("C4", "T6")
async def test_the_transport_of_a_pool_is_set_shown_recorded_and_refused_without_its_server(api: Caller) -> None:
    shown = (await api.http.patch("/v1/pools/default", json={"transport": "local"})).json()
    assert (shown["transport"], shown["concurrency"]) == ("local", None)
    assert (await api.get("/v1/pools/default"))["transport"] == "local"
    await api.http.patch("/v1/pools/default", json={"transport": "local", "concurrency": 3})
    await api.world.advance(1)
    assert (await api.http.patch("/v1/pools/default", json={"transport": None})).json()["transport"] is None
    audit = (await api.get("/v1/audit", action="pool.transport"))["items"]
    assert [(entry["before"], entry["after"]) for entry in reversed(audit)] == [
        ({"transport": None}, {"transport": "local"}),
        ({"transport": "local"}, {"transport": None}),
    ]
    for transport, fault in (("redis", "set ONDOT_REDIS_URL=redis://host:6379/0 for every process"), ("dove", "redis")):
        answer = await api.http.patch("/v1/pools/default", json={"transport": transport})
        assert answer.status_code == 422
        [error] = answer.json()["errors"]
        assert error["pointer"] == "/transport"
        assert fault in error["detail"]


@proves("E13", "P11")
async def test_a_new_limit_counts_running_attempts(api: Caller) -> None:
    for _ in range(5):
        await api.create({"function": "f"})
    worker = await api.world.worker()
    running = await worker.lease(3)
    await api.http.patch("/v1/pools/default", json={"concurrency": 3})
    assert await worker.lease() == []
    await worker.complete(running[0])
    assert len(await worker.lease()) == 1


@proves("E13")
@pytest.mark.parametrize(
    ("body", "pointer"),
    [({"concurrency": 0}, "/concurrency"), ({"rate": "many"}, "/rate"), ({"limit": 1}, "/limit"), ([], "")],
)
async def test_an_invalid_limit_is_rejected_with_its_pointer(api: Caller, body: object, pointer: str) -> None:
    answer = await api.http.patch("/v1/pools/default", json=body)
    assert answer.status_code == 422
    assert [fault["pointer"] for fault in answer.json()["errors"]] == [pointer]
