"""Every kind of fault that the weather can inject: what it does, its target, its weight and how long it lasts.

Each is a function that starts the fault, waits, ends it, and restarts the processes that died. It undoes the fault also
when it is interrupted. The detail that it returns goes to the log. Statements are recognised by the name of their
block, which is sent with them.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from brokers import Redis
from tests.faults.proxy import Proxy, Way
from tests.faults.scene import Scene

SUBMIT = ("-- name: insert_due_jobs ", "-- name: insert_once_jobs ", "-- name: insert_jobs ")
PLAN = ("-- name: plan_fires ",)
LEASE = ("-- name: lease_executions ",)
COMPLETE = ("-- name: complete_executions ", "-- name: succeed_executions ", "-- name: succeed_labelled ")

WRONG_CLOCKS = ("+3600s", "-3600s", "+0 x1.02", "+0 x0.98")
TERMINATED_SHARE = 0.3
RESTARTS = 3
FIRST_WAIT_S = 5.0
"""How long to wait for the statement inside which a process is frozen."""
REGISTERS_WITHIN_S = 30.0
LONG_RUN_S = 300.0
LONGER_RUN_S = 120.0

Detail = dict[str, Any]
Target = Literal[
    "scheduler", "two schedulers", "worker", "api", "proxied", "in a namespace", "postgres", "tenant", "etcd", "broker"
]
Unit = Literal["seconds", "leases", "heartbeats"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its pause before, its target, how long it lasts, and the seed of its own random choices."""

    kind: str
    target: str
    pause_s: float
    lasts_s: float
    dice: int


@dataclass(frozen=True, slots=True)
class Kind:
    inject: Callable[[Scene, Fault], Awaitable[Detail]]
    target: Target
    weight: float = 1.0
    lasts: tuple[float, float] = (0.0, 0.0)
    unit: Unit = "seconds"
    needs: frozenset[str] = frozenset()
    behind_proxy: bool = False
    least_run_s: float = 0.0
    """Runs shorter than this leave it out."""
    once: bool = False


# Processes -----------------------------------------------------------------------------------------------------------


async def kill(scene: Scene, fault: Fault) -> Detail:
    member = scene.members[fault.target]
    await member.kill()
    await scene.revive(member)
    return {}


async def kill_twice(scene: Scene, fault: Fault) -> Detail:
    """Two kills within one horizon; of the same node if there is only one."""
    first, second = (scene.members[name] for name in fault.target.split())
    await first.kill()
    first.restart()
    await asyncio.sleep(fault.lasts_s)
    await second.kill()
    second.restart()
    await scene.wait_until_up(first, second)
    return {}


async def freeze(scene: Scene, fault: Fault) -> Detail:
    member = scene.members[fault.target]
    member.freeze()
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        member.thaw()
    return {}


async def hang(scene: Scene, fault: Fault) -> Detail:
    """Block the main loop; other threads go on. Ends when the loop moves, or when the process has restarted itself."""
    member = scene.members[fault.target]
    before = len(member.events("process.hung"))
    member.hang()
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        member.move()
    return {"started_again": len(member.events("process.hung")) > before}


async def leave_unread(scene: Scene, fault: Fault) -> Detail:
    """Stop reading the log: its pipe is full."""
    pipe = scene.members[fault.target].launch.pipe
    assert pipe is not None
    await asyncio.to_thread(pipe.stop_reading)
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        pipe.read_again()
    return {}


def freeze_inside(*words: str) -> Callable[[Scene, Fault], Awaitable[Detail]]:
    async def inject(scene: Scene, fault: Fault) -> Detail:
        """Freeze the process after it has sent a statement and before it has read the answer."""
        proxy, member = scene.proxies[fault.target], scene.members[fault.target]
        sent = False
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WAIT_S):
                    await proxy.sent(*words, hold_replies=True)
                    sent = True
            member.freeze()
            proxy.repair()
            await asyncio.sleep(fault.lasts_s)
        finally:
            proxy.repair()
            member.thaw()
        return {"inside_a_statement": sent}

    return inject


async def restart(scene: Scene, fault: Fault) -> Detail:
    member = scene.members[fault.target]
    ended = await scene.end(member)
    await scene.revive(member)
    return {"ended_by_itself": ended}


async def storm(scene: Scene, fault: Fault) -> Detail:
    """Nodes join and leave again: some are stopped, some are killed."""
    chance = random.Random(fault.dice)
    like = scene.members[fault.target].launch
    count = chance.randint(2, 4)
    url = scene.postgres.url if scene.postgres else scene.fleet.url
    joined = []
    try:
        for _ in range(count):
            joined.append(scene.fleet.start("scheduler", name="joiner", url=url, bug=like.bug))
            await asyncio.sleep(fault.lasts_s / count)
    finally:
        for member in joined:
            if chance.random() < 0.5:
                await member.kill()
            else:
                await scene.end(member)
    return {"joined": count}


async def wrong_clock(scene: Scene, fault: Fault) -> Detail:
    """Restart a node with a clock that is wrong, too fast or too slow."""
    clock = random.Random(fault.dice).choice(WRONG_CLOCKS)
    member = scene.members[fault.target]
    await scene.end(member)
    try:
        await scene.revive(member, clock=clock)
        await asyncio.sleep(fault.lasts_s)
    finally:
        await scene.end(member)
        await scene.revive(member)
    return {"clock": clock}


async def prune(scene: Scene, fault: Fault) -> Detail:
    """Delete the worker's row while it runs. The fault ends when the process has registered again."""
    pid = scene.members[fault.target].process.pid
    connection = await scene.connect()
    try:
        gone = await connection.execute("DELETE FROM ondot.worker WHERE pid = $1 AND ended_at IS NULL", pid)
        async with asyncio.timeout(REGISTERS_WITHIN_S):
            while not await connection.fetchval(
                "SELECT count(*) FROM ondot.worker WHERE pid = $1 AND ended_at IS NULL", pid
            ):
                await asyncio.sleep(0.05)
    finally:
        await connection.close()
    return {"rows": int(gone.split()[-1])}


# PostgreSQL ----------------------------------------------------------------------------------------------------------


async def restart_server(scene: Scene, fault: Fault) -> Detail:
    await scene.server.restart("immediate")
    return {}


async def restart_server_again(scene: Scene, fault: Fault) -> Detail:
    for _ in range(RESTARTS):
        await scene.server.restart("immediate")
        await asyncio.sleep(fault.lasts_s / RESTARTS)
    return {"restarts": RESTARTS}


async def terminate(scene: Scene, fault: Fault) -> Detail:
    """Terminate backends, again and again."""
    chance = random.Random(fault.dice)
    terminated = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(fault.lasts_s):
            while True:
                terminated += await scene.server.terminate_backends(chance, share=TERMINATED_SHARE)
                await asyncio.sleep(chance.uniform(0.1, 0.5))
    return {"terminated": terminated}


def reply_lost(*words: str) -> Callable[[Scene, Fault], Awaitable[Detail]]:
    async def inject(scene: Scene, fault: Fault) -> Detail:
        """Commit a statement and drop its reply; the fault waits for such a statement for as long as it lasts."""
        proxy = scene.proxies[fault.target]
        proxy.drop_reply_after(*words)
        return await _wait_for_strike(proxy, fault.lasts_s)

    return inject


async def away(scene: Scene, fault: Fault) -> Detail:
    await scene.server.away(fault.lasts_s)
    return {}


async def freeze_server(scene: Scene, fault: Fault) -> Detail:
    scene.server.freeze()
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        scene.server.thaw()
    return {}


async def old_snapshot(scene: Scene, fault: Fault) -> Detail:
    async with scene.server.hold_snapshot():
        await asyncio.sleep(fault.lasts_s)
    return {}


async def slow_commits(scene: Scene, fault: Fault) -> Detail:
    ms = random.Random(fault.dice).randint(20, 100)
    await scene.server.slow_commits(ms)
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        await scene.server.slow_commits(0)
    return {"ms": ms}


async def crowd(scene: Scene, fault: Fault) -> Detail:
    return {"taken": await scene.server.crowd(fault.lasts_s, random.Random(fault.dice))}


def step_clock(sign: int) -> Callable[[Scene, Fault], Awaitable[Detail]]:
    async def inject(scene: Scene, fault: Fault) -> Detail:
        """Step the database's clock, and set it right again."""
        seconds = sign * random.Random(fault.dice).randint(2, 20)
        await scene.server.step_clock(seconds)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            await scene.server.step_clock(0)
        return {"seconds": seconds}

    return inject


async def disk_full(scene: Scene, fault: Fault) -> Detail:
    """Fill the disk: no table can grow, or worse, the WAL cannot, and the server goes down."""
    worse = random.Random(fault.dice).random() < 0.5
    try:
        await scene.server.fill_disk(up_to_the_log=worse)
        await asyncio.sleep(fault.lasts_s)
    finally:
        await scene.server.free_disk()
    return {"up_to_the_log": worse}


async def fail_over(scene: Scene, fault: Fault) -> Detail:
    await scene.server.fail_over()
    scene.fleet.url = scene.server.url
    for proxy in scene.proxies.values():
        proxy.point_at(scene.server.url)
        proxy.reset_all()
    return {}


# Network -------------------------------------------------------------------------------------------------------------


def broken(how: Callable[[Proxy], None]) -> Callable[[Scene, Fault], Awaitable[Detail]]:
    async def inject(scene: Scene, fault: Fault) -> Detail:
        proxy = scene.proxies[fault.target]
        how(proxy)
        try:
            await asyncio.sleep(fault.lasts_s)
        finally:
            proxy.repair()
        return {}

    return inject


def cut_one_way(way: Way) -> Callable[[Scene, Fault], Awaitable[Detail]]:
    return broken(lambda proxy: proxy.cut_one_way(way))


async def latency(scene: Scene, fault: Fault) -> Detail:
    seconds = round(random.Random(fault.dice).uniform(0.02, 0.3), 3)
    await broken(lambda proxy: proxy.latency(seconds))(scene, fault)
    return {"seconds": seconds}


async def reset(scene: Scene, fault: Fault) -> Detail:
    proxy = scene.proxies[fault.target]
    proxy.reset_in_the_middle()
    return await _wait_for_strike(proxy, fault.lasts_s)


async def _wait_for_strike(proxy: Proxy, seconds: float) -> Detail:
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await proxy.struck()
        return {"struck": proxy.was_struck}
    finally:
        proxy.repair()


async def namespace_cut(scene: Scene, fault: Fault) -> Detail:
    namespace = scene.namespaces[fault.target]
    namespace.cut()
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        namespace.repair()
    return {}


# Tenants -------------------------------------------------------------------------------------------------------------


async def flood(scene: Scene, fault: Fault) -> Detail:
    return await scene.users.flood(fault.target)


async def suspend_tenant(scene: Scene, fault: Fault) -> Detail:
    return await scene.users.suspend(fault.target, fault.lasts_s)


async def delete_tenant(scene: Scene, fault: Fault) -> Detail:
    return await scene.users.delete(fault.target)


async def change_quota(scene: Scene, fault: Fault) -> Detail:
    return await scene.users.change_quota(fault.target, fault.dice)


async def change_key(scene: Scene, fault: Fault) -> Detail:
    return await scene.users.change_key(fault.target)


# All of them ---------------------------------------------------------------------------------------------------------

# etcd ----------------------------------------------------------------------------------------------------------------


async def restart_etcd(scene: Scene, fault: Fault) -> Detail:
    """As a service manager does, after a while."""
    await asyncio.to_thread(scene.coordinator.stop)
    await asyncio.sleep(fault.lasts_s)
    await asyncio.to_thread(scene.coordinator.start)
    return {}


async def kill_etcd(scene: Scene, fault: Fault) -> Detail:
    """It may come back without its data, as a cluster that lost its quorum and was created again."""
    is_wiped = random.Random(fault.dice).random() < WIPED_SHARE
    await asyncio.to_thread(scene.coordinator.kill)
    if is_wiped:
        scene.coordinator.wipe()
    await asyncio.sleep(fault.lasts_s)
    await asyncio.to_thread(scene.coordinator.start)
    return {"wiped": is_wiped}


async def freeze_etcd(scene: Scene, fault: Fault) -> Detail:
    scene.coordinator.freeze()
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        scene.coordinator.thaw()
    return {}


async def revoke_lease(scene: Scene, fault: Fault) -> Detail:
    """Of a node that lives, as an operator may."""
    leases = await asyncio.to_thread(scene.coordinator.call, "lease/leases")
    found = sorted(int(lease["ID"]) for lease in leases.get("leases", ()))
    if found:
        await asyncio.to_thread(scene.coordinator.call, "lease/revoke", ID=str(random.Random(fault.dice).choice(found)))
    return {"leases": len(found)}


# The broker of a transport --------------------------------------------------------------------------------------------


async def kill_broker(scene: Scene, fault: Fault) -> Detail:
    await asyncio.to_thread(scene.carrier.kill)
    await asyncio.sleep(fault.lasts_s)
    await asyncio.to_thread(scene.carrier.start)
    return {}


async def freeze_broker(scene: Scene, fault: Fault) -> Detail:
    scene.carrier.freeze()
    try:
        await asyncio.sleep(fault.lasts_s)
    finally:
        scene.carrier.thaw()
    return {}


async def empty_broker(scene: Scene, fault: Fault) -> Detail:
    """FLUSHALL of Redis; the others keep nothing that could be emptied so."""
    if not isinstance(scene.carrier, Redis):
        return {"left_out": scene.carrier.program}
    _, writer = await asyncio.open_connection("127.0.0.1", scene.carrier.port)
    writer.write(b"FLUSHALL\r\n")
    await writer.drain()
    writer.close()
    return {}


SERVER = frozenset({"postgres"})
BROKER = frozenset({"broker"})
ETCD = frozenset({"etcd"})
WIPED_SHARE = 0.3
PIPES = frozenset({"pipes"})

KINDS: dict[str, Kind] = {
    "scheduler.kill": Kind(kill, "scheduler", 3),
    "scheduler.kill_twice": Kind(kill_twice, "two schedulers", 2, (0.5, 3)),
    "scheduler.freeze_long": Kind(freeze, "scheduler", 2, (3, 3.5), "leases"),
    "scheduler.freeze_brief": Kind(freeze, "scheduler", 1, (0.2, 0.8), "leases"),
    "scheduler.freeze_inside": Kind(freeze_inside(*PLAN), "scheduler", 1, (1, 2), "leases", behind_proxy=True),
    "scheduler.restart": Kind(restart, "scheduler", 2),
    "scheduler.storm": Kind(storm, "scheduler", 1, (2, 6)),
    "scheduler.clock": Kind(wrong_clock, "scheduler", 1, (3, 8), needs=frozenset({"clocks"})),
    "scheduler.hung": Kind(hang, "scheduler", 2, (1, 20)),
    "scheduler.unread": Kind(leave_unread, "scheduler", 1, (3, 12), needs=PIPES),
    "worker.kill": Kind(kill, "worker", 3),
    "worker.freeze": Kind(freeze, "worker", 2, (1.5, 2.5), "heartbeats"),
    "worker.freeze_inside": Kind(freeze_inside(*LEASE), "worker", 1, (0.5, 2), "heartbeats", behind_proxy=True),
    "worker.restart": Kind(restart, "worker", 2),
    "worker.pruned": Kind(prune, "worker", 1),
    "worker.hung": Kind(hang, "worker", 2, (2, 25)),
    "worker.unread": Kind(leave_unread, "worker", 1, (3, 12), needs=PIPES),
    "api.kill": Kind(kill, "api", 2),
    "api.restart": Kind(restart, "api", 1),
    "api.hung": Kind(hang, "api", 1, (1, 5)),
    "api.unread": Kind(leave_unread, "api", 1, (3, 12), needs=PIPES),
    "postgres.restart": Kind(restart_server, "postgres", 2, needs=SERVER),
    "postgres.restart_again": Kind(restart_server_again, "postgres", 1, (1, 6), needs=SERVER),
    "postgres.terminate": Kind(terminate, "postgres", 2, (1, 5), needs=SERVER),
    "postgres.reply_lost.submit": Kind(reply_lost(*SUBMIT), "api", 2, (3, 5), behind_proxy=True),
    "postgres.reply_lost.plan": Kind(reply_lost(*PLAN), "scheduler", 2, (3, 5), behind_proxy=True),
    "postgres.reply_lost.lease": Kind(reply_lost(*LEASE), "worker", 2, (3, 5), behind_proxy=True),
    "postgres.reply_lost.complete": Kind(reply_lost(*COMPLETE), "worker", 2, (3, 5), behind_proxy=True),
    "postgres.away": Kind(away, "postgres", 1, (2, 8), needs=SERVER),
    "postgres.away_long": Kind(away, "postgres", 0.5, (30, 40), needs=SERVER, least_run_s=LONG_RUN_S),
    "postgres.freeze": Kind(freeze_server, "postgres", 1, (1, 6), needs=SERVER),
    "postgres.snapshot": Kind(old_snapshot, "postgres", 1, (5, 15), needs=SERVER),
    "postgres.slow_commits": Kind(slow_commits, "postgres", 1, (3, 8), needs=SERVER),
    "postgres.crowd": Kind(crowd, "postgres", 1, (2, 6), needs=SERVER),
    "postgres.clock_forward": Kind(step_clock(1), "postgres", 0.5, (5, 20), needs=SERVER, least_run_s=LONG_RUN_S),
    "postgres.clock_back": Kind(step_clock(-1), "postgres", 0.5, (5, 20), needs=SERVER, least_run_s=LONG_RUN_S),
    "postgres.disk_full": Kind(
        disk_full, "postgres", 1, (2, 6), needs=frozenset({"postgres", "disk"}), least_run_s=LONGER_RUN_S
    ),
    "postgres.fail_over": Kind(
        fail_over, "postgres", 1, needs=frozenset({"postgres", "standby"}), least_run_s=LONGER_RUN_S, once=True
    ),
    "network.cut": Kind(broken(Proxy.cut), "proxied", 2, (1, 8)),
    "network.one_way_in": Kind(cut_one_way("in"), "proxied", 1, (1, 8)),
    "network.one_way_out": Kind(cut_one_way("out"), "proxied", 1, (1, 8)),
    "network.half_open": Kind(broken(Proxy.half_open), "proxied", 2, (2, 12)),
    "network.latency": Kind(latency, "proxied", 1, (2, 6)),
    "network.reset": Kind(reset, "proxied", 1, (2, 4)),
    "network.namespace": Kind(namespace_cut, "in a namespace", 2, (2, 12)),
    "etcd.restart": Kind(restart_etcd, "etcd", 2, (0, 1), "leases", needs=ETCD),
    "etcd.kill": Kind(kill_etcd, "etcd", 2, (0, 2), "leases", needs=ETCD),
    "etcd.freeze": Kind(freeze_etcd, "etcd", 3, (0.5, 2.5), "leases", needs=ETCD),
    "etcd.revoke": Kind(revoke_lease, "etcd", 3, needs=ETCD),
    "broker.kill": Kind(kill_broker, "broker", 2, (0, 4), needs=BROKER),
    "broker.freeze": Kind(freeze_broker, "broker", 3, (0.3, 6), needs=BROKER),
    "broker.emptied": Kind(empty_broker, "broker", 2, needs=BROKER),
    "tenant.flood": Kind(flood, "tenant", 2),
    "tenant.suspended": Kind(suspend_tenant, "tenant", 3, (2, 8)),
    "tenant.deleted": Kind(delete_tenant, "tenant", 2),
    "tenant.quota": Kind(change_quota, "tenant", 4),
    "tenant.key": Kind(change_key, "tenant", 2),
}
