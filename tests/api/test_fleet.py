"""`/v1/nodes` and `/v1/workers` as a client sees them: which owns what, which is silent, which has ended."""

from datetime import timedelta

from ondot.model.app_release import AppRelease
from ondot.model.ids import NodeId, WorkerId
from ondot.store.nodes import beat_node, note_coordinator_away, report_stalled_node, take_partitions
from ondot.store.workers import leave_worker, lose_worker, read_beats, register_worker, report_stalled_worker
from tests.api.conftest import Caller
from tests.holding import WHY, hold
from tests.proves import proves
from tests.world import DEFAULT_POOL, World, job


async def node(world: World, partitions: int, host: str = "here") -> NodeId:
    node_id = NodeId(world.database.clock.new_id())
    async with world.database.connection() as connection:
        await beat_node(connection, node_id, host=host, pid=7, release="1.2", lease_s=5)
        await take_partitions(connection, node_id, partitions)
    return node_id


@proves("C1")
async def test_nodes_show_what_they_own_with_epochs_and_since_when(api: Caller) -> None:
    first = await node(api.world, 22)
    began_at = api.world.now
    await api.world.advance(1)
    second = await node(api.world, 40, host="there")
    nodes = await api.get("/v1/nodes")
    assert (nodes["partitions"], nodes["unowned"]) == (64, [62, 63])
    one, other = nodes["items"]
    assert (one["id"], one["state"], one["host"], one["pid"], one["release"]) == (str(first), "ALIVE", "here", 7, "1.2")
    assert [owned["partition"] for owned in one["partitions"]] == list(range(22))
    assert one["partitions"][0] == {
        "partition": 0,
        "epoch": 1,
        "owned_since": began_at.isoformat().replace("+00:00", "Z"),
    }
    assert (other["id"], one["silent_s"], other["silent_s"]) == (str(second), 1, 0)
    assert [owned["partition"] for owned in other["partitions"]] == list(range(22, 62))


@proves("C1", "C2")
async def test_a_node_whose_lease_is_over_owns_nothing_until_its_partitions_are_taken(api: Caller) -> None:
    gone = await node(api.world, 64)
    await api.world.advance(6)
    nodes = await api.get("/v1/nodes")
    assert nodes["unowned"] == list(range(64))
    assert [(entry["id"], entry["state"], len(entry["partitions"])) for entry in nodes["items"]] == [
        (str(gone), "EXPIRED", 64)
    ]
    heir = await node(api.world, 64)
    nodes = await api.get("/v1/nodes")
    assert nodes["unowned"] == []
    states = {entry["id"]: (entry["state"], len(entry["partitions"])) for entry in nodes["items"]}
    assert states == {str(gone): ("EXPIRED", 0), str(heir): ("ALIVE", 64)}
    assert {owned["epoch"] for entry in nodes["items"] for owned in entry["partitions"]} == {2}


@proves("C6")
async def test_a_node_that_cannot_renew_its_lease_is_shown_with_the_reason(api: Caller) -> None:
    node_id = await node(api.world, 64)
    [one] = (await api.get("/v1/nodes"))["items"]
    assert (one["coordination"], one["away_since"], one["away_why"]) == ("postgres", None, None)
    since = api.world.now
    for _ in range(2):
        async with api.world.database.connection() as connection:
            await note_coordinator_away(
                connection, node_id, host="here", pid=7, release="1.2", coordination="etcd", why="No lease from etcd: x"
            )
        await api.world.advance(6)
    [one] = (await api.get("/v1/nodes"))["items"]
    assert (one["state"], one["away_why"]) == ("EXPIRED", "No lease from etcd: x")
    assert one["away_since"] == since.isoformat().replace("+00:00", "Z")
    await api.world.advance(60)
    [one] = (await api.get("/v1/nodes"))["items"]
    assert (one["state"], one["away_why"]) == ("EXPIRED", None), "it has ended meanwhile"


@proves("C1", "C3")
async def test_a_heartbeat_from_before_the_clock_was_set_back_makes_no_node_alive(api: Caller) -> None:
    await node(api.world, 64)
    await api.world.set_clock(api.world.now - timedelta(hours=1))
    nodes = await api.get("/v1/nodes")
    assert (nodes["items"][0]["state"], nodes["items"][0]["silent_s"], len(nodes["unowned"])) == ("EXPIRED", 0, 64)


@proves("C1")
async def test_without_nodes_every_partition_is_unowned(api: Caller) -> None:
    empty = {"partitions": 64, "unowned": list(range(64)), "items": []}
    assert await api.get("/v1/nodes") == empty | {"held_at": None, "held_why": None}


@proves("C1", "P3")
async def test_a_hold_of_everything_is_shown_with_the_nodes(api: Caller) -> None:
    await node(api.world, 64)
    await hold(api.world)
    nodes = await api.get("/v1/nodes")
    assert (nodes["held_at"], nodes["held_why"]) == (api.world.now.isoformat().replace("+00:00", "Z"), WHY)
    assert (nodes["unowned"], len(nodes["items"])) == ([], 1)


@proves("E1", "E6")
async def test_workers_show_pools_slots_and_how_long_they_are_silent(api: Caller) -> None:
    await api.create({"function": "f"})
    quiet, lost, left = [await api.world.worker() for _ in range(3)]
    await quiet.lease()
    await api.world.advance(4)
    async with api.world.database.connection() as connection:
        beats, _ = await read_beats(connection)
        assert await lose_worker(connection, next(beat for beat in beats if beat.worker_id == lost.id))
        await leave_worker(connection, left.id)
    workers = await api.get("/v1/workers")
    assert workers["heartbeat_s"] == 10
    found = {entry["id"]: entry for entry in workers["items"]}
    assert [found[str(worker.id)]["state"] for worker in (quiet, lost, left)] == ["ALIVE", "LOST", "GONE"]
    one = found[str(quiet.id)]
    assert (one["pools"], one["slots"], one["silent_s"], one["ended_at"]) == (["default"], 100, 4, None)
    assert found[str(left.id)]["ended_at"] is not None
    await api.world.advance(601)
    assert [entry["state"] for entry in (await api.get("/v1/workers"))["items"]] == ["ALIVE"]


@proves("E1")
async def test_workers_are_listed_in_pages_and_by_state(api: Caller) -> None:
    ids = [str((await api.world.worker()).id) for _ in range(3)]
    page = await api.get("/v1/workers", limit=2)
    assert [entry["id"] for entry in page["items"]] == [ids[2], ids[1]]
    rest = await api.get("/v1/workers", limit=2, cursor=page["next_cursor"])
    assert ([entry["id"] for entry in rest["items"]], rest["next_cursor"]) == ([ids[0]], None)
    assert len((await api.get("/v1/workers", state="ALIVE"))["items"]) == 3
    assert (await api.get("/v1/workers", state="DRAINING"))["items"] == []
    assert (await api.http.get("/v1/workers", params={"state": "SLEEPY"})).status_code == 422


@proves("D4")
async def test_a_worker_shows_its_app_and_the_release_of_it(api: Caller) -> None:
    plain = await api.world.worker()
    id_ = WorkerId(api.world.database.clock.new_id())
    async with api.world.database.connection() as connection:
        await register_worker(
            connection,
            id_,
            host="here",
            pid=1,
            release="0",
            pool_nos=[DEFAULT_POOL],
            slots=1,
            app=AppRelease("billing", "v7"),
        )
    found = {entry["id"]: (entry["app"], entry["app_release"]) for entry in (await api.get("/v1/workers"))["items"]}
    assert found == {str(plain.id): ("world", "1"), str(id_): ("billing", "v7")}


@proves("P12", "T1")
async def test_tenants_share_the_workers_of_a_pool_and_see_only_their_own_work_in_it(owned: Caller) -> None:
    await owned.world.worker()
    await owned.world.submit_all([job(), job()], await owned.world.add_tenant())
    await owned.create({"function": "f"})
    [worker] = (await owned.get("/v1/workers"))["items"]
    assert worker["pools"] == ["default"]
    pool = await owned.get("/v1/pools/default")
    assert (pool["workers"], pool["waiting"]) == (1, 1)


@proves("P13", "O2", "O5")
async def test_a_stalled_loop_is_shown_until_the_next_heartbeat_and_after_its_worker_is_lost(api: Caller) -> None:
    worker = await api.world.worker()
    node_id = NodeId(api.world.database.clock.new_id())

    async def report(*, of_node: bool) -> None:
        async with api.world.database.connection() as connection:
            await report_stalled_worker(
                connection, worker.id, stalled_s=6, where="tasks.py:12 in crawl", execution_id=None, function="crawl"
            )
            if of_node:
                await beat_node(connection, node_id, host="h", pid=2, release="0", lease_s=5)
                await report_stalled_node(connection, node_id, stalled_s=3, where="plan.py:1 in plan")

    await report(of_node=True)
    [worker_out] = (await api.get("/v1/workers"))["items"]
    assert (worker_out["state"], worker_out["stalled_in"]) == ("ALIVE", "tasks.py:12 in crawl")
    assert worker_out["beat_at"] > worker_out["stalled_at"], "it is six seconds, by the database"
    [node] = (await api.get("/v1/nodes"))["items"]
    assert (node["state"], node["stalled_in"]) == ("ALIVE", "plan.py:1 in plan")
    metrics = (await api.http.get("/metrics")).text
    assert 'ondot_workers{state="stalled"} 1.0' in metrics
    assert 'ondot_workers{state="alive"} 0.0' in metrics
    assert "ondot_scheduler_nodes_stalled 1.0" in metrics
    heard = await worker.beat()
    assert heard is not None
    assert heard.blocking == {"crawl"}, "the function that blocked is remembered"
    [worker_out] = (await api.get("/v1/workers"))["items"]
    assert (worker_out["stalled_at"], worker_out["stalled_in"]) == (None, None)
    assert 'ondot_workers{state="stalled"} 0.0' in (await api.http.get("/metrics")).text
    await report(of_node=False)
    async with api.world.database.connection() as connection:
        await connection.execute("UPDATE ondot.worker SET state = 'LOST', ended_at = ondot.clock()")
    [worker_out] = (await api.get("/v1/workers"))["items"]
    assert (worker_out["state"], worker_out["stalled_in"]) == ("LOST", "tasks.py:12 in crawl")
