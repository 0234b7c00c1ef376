"""The weather: faults from a seed, one after the other with pauses between them, each written to a flushed log.

The kind, time, target and length of each fault are a pure function of the seed and of the sizes of the fleet. A log can
be replayed, each fault at its offset. Several sequences may run at once; a fault whose target is busy with another one
is left out. Processes that die are restarted, as a supervisor would. At the end every fault is repaired and every role
is up.

A line of the log: `kind`, `target` (a member's name, `postgres`, or two names), `began_s` and `ended_s` (seconds of the
epoch; a fault ends when its targets are up again), and `detail`: the values that repeat it, and what it did.
`role.exited` is not an injected fault: a role ended though the harness did not kill it.
"""

import asyncio
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import asyncpg

from brokers import Broker, Etcd
from tests.faults.fleet import Fleet, Member
from tests.faults.kinds import KINDS, Fault, Kind
from tests.faults.netns import Namespace
from tests.faults.postgres import Postgres
from tests.faults.proxy import Proxy
from tests.faults.scene import Scene, Sizes
from tests.faults.tenant_users import TenantUsers

EXITED = "role.exited"
CUT_OFF = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError)


class Weather:
    def __init__(
        self,
        fleet: Fleet,
        postgres: Postgres | None,
        proxies: Mapping[str, Proxy],
        seed: int,
        kinds: Sequence[str] | None = None,
        calm_s: tuple[float, float] = (1.0, 4.0),
        *,
        log: Path,
        namespaces: Mapping[str, Namespace] | None = None,
        tenants: TenantUsers | None = None,
        etcd: Etcd | None = None,
        broker: Broker | None = None,
        at_once: int = 1,
    ) -> None:
        """`proxies` and `namespaces` by the names of members; `kinds`: only these, by name or prefix.

        `at_once`: how many sequences of faults run at the same time, never two on the same target.
        """
        self._scene = Scene(fleet, postgres, proxies, namespaces or {}, self._report_exit, tenants, etcd, broker)
        self._seed = seed
        self._kinds = kinds
        self._calm_s = calm_s
        self._at_once = at_once
        self._log = log
        self._script: list[tuple[float, Fault]] | None = None
        self._began_s = 0.0
        self.lines: list[dict[str, Any]] = []
        self.exited: list[str] = []

    @classmethod
    def from_log(
        cls,
        path: Path,
        fleet: Fleet,
        postgres: Postgres | None,
        proxies: Mapping[str, Proxy],
        *,
        log: Path,
        namespaces: Mapping[str, Namespace] | None = None,
        etcd: Etcd | None = None,
    ) -> Self:
        """Replay the faults of a log, at their offsets, on a fleet of the same sizes."""
        weather = cls(fleet, postgres, proxies, 0, log=log, namespaces=namespaces, etcd=etcd)
        weather._script = read_script(path)
        return weather

    def forecast(self, seconds: float, number: int = 0) -> Iterator[Fault]:
        """The faults of a run of that length, in order and without an end. `number`: of the sequence."""
        seed = self._seed + 1_000_003 * number
        # Faults that happen once in a run belong to the first sequence, or each would inject them.
        return forecast(
            seed, self._scene.sizes(), seconds, kinds=self._kinds, calm_s=self._calm_s, once_too=number == 0
        )

    async def blow(self, seconds: float) -> list[dict[str, Any]]:
        """Inject faults for this long (a log: all of it, if that is longer); return the lines of its own log."""
        self._began_s = time.time()
        try:
            async with asyncio.TaskGroup() as group:
                if self._script is None:
                    for number in range(self._at_once):
                        group.create_task(self._blow_by_seed(seconds, number))
                else:
                    for at_s, fault in self._script:
                        group.create_task(self._blow_by_script(at_s, fault))
            await asyncio.sleep(max(seconds - self._since_s(), 0.0))
        finally:
            await self._scene.repair()
        return self.lines

    async def _blow_by_seed(self, seconds: float, number: int) -> None:
        for fault in self.forecast(seconds, number):
            if self._since_s() + fault.pause_s >= seconds:
                return
            await asyncio.sleep(fault.pause_s)
            # Near the end a fault lasts no longer than the run; the sequence stays the same.
            await self._inject(replace(fault, lasts_s=round(min(fault.lasts_s, seconds - self._since_s()), 3)))

    async def _blow_by_script(self, at_s: float, fault: Fault) -> None:
        await asyncio.sleep(max(at_s - self._since_s(), 0.0))
        await self._inject(fault)

    async def _inject(self, fault: Fault) -> None:
        targets = set(fault.target.split())
        if targets & self._scene.busy:
            return
        self._scene.supervise()
        self._scene.busy |= targets
        began_s = time.time()
        detail: dict[str, Any] = {
            "at_s": round(self._since_s(), 3),
            "pause_s": fault.pause_s,
            "lasts_s": fault.lasts_s,
            "dice": fault.dice,
        }
        try:
            detail |= await KINDS[fault.kind].inject(self._scene, fault)
        except CUT_OFF as error:
            # The fault needed a server that another fault has stopped.
            detail["failed"] = repr(error)
        except BaseException as error:
            detail["failed"] = repr(error)
            raise
        finally:
            self._scene.busy -= targets
            self._write(fault.kind, fault.target, began_s, detail)

    def _report_exit(self, member: Member, why: str) -> None:
        self.exited.append(member.name)
        self._write(EXITED, member.name, time.time(), {"at_s": round(self._since_s(), 3), "why": why})

    def _write(self, kind: str, target: str, began_s: float, detail: dict[str, Any]) -> None:
        line = {"kind": kind, "target": target, "began_s": began_s, "ended_s": time.time(), "detail": detail}
        self.lines.append(line)
        with self._log.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _since_s(self) -> float:
        return time.time() - self._began_s


def forecast(
    seed: int,
    sizes: Sizes,
    seconds: float,
    *,
    kinds: Sequence[str] | None = None,
    calm_s: tuple[float, float] = (1.0, 4.0),
    once_too: bool = True,
) -> Iterator[Fault]:
    """The faults of this seed for a fleet of these sizes. Pure, and without an end."""
    chance = random.Random(seed)
    able = {name: kind for name, kind in KINDS.items() if _is_asked(name, kinds) and seconds >= kind.least_run_s}
    able = {name: kind for name, kind in able.items() if targets_of(kind, sizes) and (once_too or not kind.once)}
    if not able and once_too:
        raise ValueError(
            f"This fleet can have none of the faults {list(kinds or KINDS)}. Name others, or add what they need."
        )
    while able:
        pause_s = round(chance.uniform(*calm_s), 3)
        [name] = chance.choices(list(able), [kind.weight for kind in able.values()])
        kind = able[name]
        target = chance.choice(targets_of(kind, sizes))
        unit_s = {"seconds": 1.0, "leases": sizes.lease_s, "heartbeats": sizes.heartbeat_s}[kind.unit]
        lasts_s = round(chance.uniform(*kind.lasts) * unit_s, 3)
        yield Fault(name, target, pause_s, lasts_s, chance.getrandbits(32))
        if kind.once:
            del able[name]


def targets_of(kind: Kind, sizes: Sizes) -> list[str]:
    """The possible targets of a kind of fault; empty: it cannot happen here."""
    if not kind.needs <= sizes.has:
        return []
    match kind.target:
        case "two schedulers":
            others = [(one, other) for one in sizes.schedulers for other in sizes.schedulers if one != other]
            return [" ".join(pair) for pair in others] or [f"{one} {one}" for one in sizes.schedulers]
        case "postgres" | "etcd" | "broker":
            return [kind.target]
        case "proxied":
            return list(sizes.proxied)
        case "in a namespace":
            return list(sizes.in_namespaces)
        case "tenant":
            return list(sizes.tenants)
        case "scheduler" | "worker" | "api":
            names = {"scheduler": sizes.schedulers, "worker": sizes.workers, "api": sizes.apis}[kind.target]
            return [name for name in names if name in sizes.proxied or not kind.behind_proxy]


def _is_asked(name: str, kinds: Sequence[str] | None) -> bool:
    """By its name or prefix: `postgres.reply_lost`, `worker`."""
    return kinds is None or any(name == kind or name.startswith(f"{kind}.") for kind in kinds)


def read_script(path: Path) -> list[tuple[float, Fault]]:
    """The faults of a log, each with its offset."""
    script = []
    for line in map(json.loads, path.read_text().splitlines()):
        if line["kind"] != EXITED:
            detail = line["detail"]
            fault = Fault(line["kind"], line["target"], detail["pause_s"], detail["lasts_s"], detail["dice"])
            script.append((float(detail["at_s"]), fault))
    return script
