"""The stage of a fault run: schedulers, workers and APIs as real processes, each behind its own proxy.

Some schedulers may run in network namespaces, if the machine has them. Workers and APIs do not: from inside they could
not reach the receiver, and clients could not reach them.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from started import free_port

from tests.faults.fleet import Fleet, Member, a_fleet
from tests.faults.netns import Namespace, a_namespace
from tests.faults.postgres import Postgres
from tests.faults.proxy import Proxy, a_proxy

SLOTS = 40


@dataclass(slots=True)
class Stage:
    fleet: Fleet
    postgres: Postgres
    proxies: dict[str, Proxy] = field(default_factory=dict)
    """By the names of the members."""
    namespaces: dict[str, Namespace] = field(default_factory=dict)
    api_urls: list[str] = field(default_factory=list)


@asynccontextmanager
async def a_stage(
    postgres: Postgres,
    directory: Path,
    *,
    schedulers: int = 2,
    workers: int = 2,
    apis: int = 2,
    bug: str | None = None,
    in_namespaces: int = 0,
    **settings: str,
) -> AsyncIterator[Stage]:
    """All roles, once every one is up. `in_namespaces`: how many of the schedulers. Settings as for `a_fleet`."""
    async with AsyncExitStack() as stack:
        # Before the fleet: its members are ended before their proxies and namespaces go.
        names: list[Namespace] = [stack.enter_context(a_namespace()) for _ in range(in_namespaces)]
        hosts = [namespace.outside for namespace in names] + ["127.0.0.1"] * (
            schedulers - in_namespaces + workers + apis
        )
        proxies = [await stack.enter_async_context(a_proxy(postgres.url, host=host)) for host in hosts]
        fleet = await stack.enter_async_context(a_fleet(postgres.url, directory, **settings))
        stage = Stage(fleet, postgres)

        def put(member: Member) -> None:
            stage.proxies[member.name] = proxies[len(stage.proxies)]

        for number in range(schedulers):
            netns = names[number] if number < in_namespaces else None
            put(fleet.scheduler(url=proxies[len(stage.proxies)].url, bug=bug, netns=netns, piped=True))
            if netns is not None:
                stage.namespaces[fleet.members[-1].name] = netns
        for _ in range(workers):
            put(fleet.worker(slots=SLOTS, url=proxies[len(stage.proxies)].url, bug=bug, piped=True))
        for _ in range(apis):
            port = free_port()
            put(fleet.api(port, url=proxies[len(stage.proxies)].url, bug=bug, piped=True))
            stage.api_urls.append(f"http://127.0.0.1:{port}")
        await fleet.wait_until_up(*fleet.members, within_s=60)
        yield stage
