"""The targets of faults: the members of a fleet, their proxies and namespaces, and their PostgreSQL.

It is also their supervisor: it restarts processes that have died, and reports those that the harness did not kill,
because no role may end by itself, whatever happens to it (L4).
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import asyncpg
import psutil

from brokers import Broker, Etcd
from tests.faults.fleet import LOOK_AGAIN_S, Fleet, Member, clocks_available
from tests.faults.netns import Namespace
from tests.faults.postgres import Postgres
from tests.faults.proxy import Proxy
from tests.faults.tenant_users import TenantUsers

UP_WITHIN_S = 60.0
ENDS_WITHIN_S = 45.0
"""A worker's grace is 25 s; then it writes its outcomes."""
LAST_WORDS = 500


@dataclass(frozen=True, slots=True)
class Sizes:
    """Everything about a scene that a forecast depends on."""

    schedulers: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    apis: tuple[str, ...] = ()
    proxied: tuple[str, ...] = ()
    in_namespaces: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    lease_s: float = 5.0
    heartbeat_s: float = 10.0
    has: frozenset[str] = frozenset()
    """Which of `postgres`, `standby`, `disk`, `clocks`, `pipes` (of their logs), `etcd`, `broker` exist."""


@dataclass(slots=True)
class Scene:
    fleet: Fleet
    postgres: Postgres | None
    proxies: Mapping[str, Proxy]
    namespaces: Mapping[str, Namespace]
    report_exit: Callable[[Member, str], None]
    """Called for a role that ended though the harness did not kill it."""
    tenants: TenantUsers | None = None
    etcd: Etcd | None = None
    """Where the schedulers hold their leases; None: in PostgreSQL."""
    broker: Broker | None = None
    """What carries hints; None: PostgreSQL."""
    members: dict[str, Member] = field(default_factory=dict)
    """The members that must be up at the end, by name: all those of the start."""
    busy: set[str] = field(default_factory=set)
    """Targets of a fault in progress: faults at the same time have different targets."""

    def __post_init__(self) -> None:
        self.members = {member.name: member for member in self.fleet.members if member.runs}

    def sizes(self) -> Sizes:
        names: dict[str, list[str]] = {"scheduler": [], "worker": [], "api": []}
        for member in self.members.values():
            names[member.role].append(member.name)
        there = {
            "postgres": self.postgres is not None,
            "standby": self.postgres is not None and self.postgres.has_standby,
            "disk": self.postgres is not None and self.postgres.can_fill_disk,
            "clocks": clocks_available(),
            "etcd": self.etcd is not None,
            "broker": self.broker is not None,
            "pipes": all(member.launch.pipe is not None for member in self.members.values()),
        }
        return Sizes(
            tuple(names["scheduler"]),
            tuple(names["worker"]),
            tuple(names["api"]),
            tuple(name for name in self.members if name in self.proxies),
            tuple(name for name in self.members if name in self.namespaces),
            () if self.tenants is None else self.tenants.names,
            float(self.fleet.settings["ONDOT_LEASE_S"]),
            float(self.fleet.settings["ONDOT_HEARTBEAT_S"]),
            frozenset(name for name, is_there in there.items() if is_there),
        )

    @property
    def users(self) -> TenantUsers:
        assert self.tenants is not None, "this fault needs other tenants"
        return self.tenants

    @property
    def server(self) -> Postgres:
        assert self.postgres is not None, "this fault needs the run's own PostgreSQL"
        return self.postgres

    @property
    def carrier(self) -> Broker:
        assert self.broker is not None, "this fault needs a transport with a broker"
        return self.broker

    @property
    def coordinator(self) -> Etcd:
        assert self.etcd is not None, "this fault needs schedulers that coordinate by etcd"
        return self.etcd

    async def connect(self) -> asyncpg.Connection:
        return await (self.postgres.connect() if self.postgres else asyncpg.connect(self.fleet.url))

    async def end(self, member: Member) -> bool:
        """Stop it gracefully; False: it did not end in time and was killed."""
        with suppress(psutil.TimeoutExpired):
            await member.stop(ENDS_WITHIN_S)
            return True
        await member.kill()
        return False

    async def revive(self, *members: Member, clock: str | None = None) -> None:
        """Restart these members, which have ended, and wait until they are up."""
        for member in members:
            member.restart(clock=clock)
        await self.wait_until_up(*members)

    async def wait_until_up(self, *members: Member) -> None:
        """Wait until all of these are up. One that ends by itself meanwhile is restarted, as a supervisor would."""
        deadline_s = time.monotonic() + UP_WITHIN_S
        while not all(member.is_up for member in members):
            self.supervise()
            if time.monotonic() > deadline_s:
                down = [f"{each.name}: {last_words(each)}" for each in members if not each.is_up]
                raise TimeoutError("\n".join([f"not up within {UP_WITHIN_S:g} s:", *down]))
            await asyncio.sleep(LOOK_AGAIN_S)

    def supervise(self) -> None:
        """Restart members that have ended. Faults restart their targets, so a member found here ended by itself."""
        for member in self.members.values():
            if member.name not in self.busy and not member.runs:
                self.report_exit(member, f"exit code {member.process.poll()}: {last_words(member)}")
                member.restart()

    async def repair(self) -> None:
        """End every fault, and wait until every role is up."""
        for proxy in self.proxies.values():
            proxy.repair()
        for namespace in self.namespaces.values():
            namespace.repair()
        if self.postgres is not None:
            await self.postgres.repair()
        for server in (self.etcd, self.broker):
            if server is not None:
                server.thaw()
                if server.process is None:
                    await asyncio.to_thread(server.start)
        for member in self.members.values():
            member.thaw()
            member.move()
            if member.launch.pipe is not None:
                member.launch.pipe.read_again()
        self.supervise()
        await self.wait_until_up(*self.members.values())


def last_words(member: Member) -> str:
    return member.log.read_text(errors="replace")[-LAST_WORDS:]
