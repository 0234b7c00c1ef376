"""The other tenants of a fault run: their users, and the owner who changes them under load (T1, T2).

Each tenant has a key of its own, a few jobs a second and one that recurs, all of them calls to the receiver. The first
tenant's owner gets its key while it is alone: with several tenants nobody is served without one. `tenant.*` of the
weather (`tests.faults.kinds`) asks the owner for floods, suspensions, deletions, other quotas and other keys. The first
of the others is left alone: it shows what the others cost it. A deleted tenant is replaced by another of the same name.
Every request and its result are lines of a flushed journal, which `tenant_checks` judges.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import asyncpg

from tests.faults.client import PAUSE_S, TRY_S, Body, Client, Reply
from tests.faults.journal import Outcome
from tests.faults.mix import PATIENT

JOBS_A_SECOND = 3.0
SLOW_S = (0.1, 0.5)
QUOTAS = (2, 8)
"""How many attempts of a tenant may run at once: with its usual load it has one or two."""
FLOOD = (3, 120)
"""Batches, and jobs in each."""
EVERY_S = 2.0
PROBES_S = (3.0, 0.2)
"""How long, and how often, a key is tried that no longer works."""
PROBE_PATIENCE_S = 2.0
LET_IT_CALL = """
UPDATE ondot.tenant SET targets = '{"private_networks": ["127.0.0.0/8"]}' WHERE tenant_no = $1
"""
ALONE = 2
"""The first tenants have no quota: one is left alone, one floods."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a tenant's user or of its owner; `sent_s`: when the try that was answered was sent."""

    op: str
    tenant_no: int
    asked_s: float
    outcome: Outcome
    sent_s: float | None = None
    acked_s: float | None = None
    status: int | None = None
    job: str | None = None
    job_id: str | None = None
    key_id: str | None = None
    concurrent: int | None = None
    """The quota that it set; None: none."""

    @property
    def is_acked(self) -> bool:
        return self.outcome == "acked"


def read_asked(path: Path) -> list[Asked]:
    return [Asked(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(slots=True)
class Guest:
    """A tenant as its users know it."""

    name: str
    no: int
    key: str = ""
    key_id: str = ""
    recurring_id: str | None = None
    has_gone: bool = False


@dataclass(slots=True)
class TenantUsers:
    urls: Sequence[str]
    receiver_url: str
    seed: int
    count: int
    journal: Path
    connect: Callable[[], Awaitable[asyncpg.Connection]]
    guests: dict[str, Guest] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    _chance: random.Random = field(init=False)
    _owner: Client = field(init=False)
    _users: Client = field(init=False)
    _file: IO[str] = field(init=False)
    _made: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed + 3)
        self._owner = Client(self.urls, random.Random(self.seed + 4), self.happened)
        self._users = Client(self.urls, random.Random(self.seed + 5), self.happened)

    @property
    def names(self) -> tuple[str, ...]:
        """The tenants that faults may hit: all but the first."""
        return tuple(f"guest-{number}" for number in range(1, self.count))

    @property
    def owner_headers(self) -> Mapping[str, str]:
        """Of the first tenant, which is open once the others are."""
        return self._owner.headers

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Create the tenants and their keys."""
        with self.journal.open("a") as self._file:
            async with self._owner.open(), self._users.open():
                reply = await self._owner.ask("POST", "/v1/keys", {"name": "owner", "role": "owner"})
                self._owner.headers = {"authorization": f"Bearer {reply.answer['key']}"}
                for number in range(self.count):
                    await self._invite(f"guest-{number}", None if number < ALONE else self._chance.randint(*QUOTAS))
                yield

    async def run(self, seconds: float) -> None:
        """Submit jobs of every tenant for this long."""
        until_s = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for name in list(self.guests):
                group.create_task(self._live(name, until_s))

    async def settle(self, within_s: float) -> None:
        """After the faults: no job recurs any more, no tenant is suspended, and none waits for its quota."""
        async with asyncio.timeout(within_s):
            for guest in list(self.guests.values()):
                await self._manage("tenant.resume", guest, "POST", f"/v1/tenants/{guest.name}/resume")
                path, body = f"/v1/tenants/{guest.name}", {"quotas": {"concurrent": None}}
                await self._manage("tenant.quota", guest, "PATCH", path, body)
                if guest.recurring_id is not None:
                    reply = await self._ask(guest, "DELETE", f"/v1/jobs/{guest.recurring_id}")
                    self._write("delete", guest, reply, job_id=guest.recurring_id)

    # What the owner does ---------------------------------------------------------------------------------------------

    async def flood(self, name: str) -> dict[str, Any]:
        """Many jobs at once: a backlog of seconds for the whole fleet."""
        guest = self.guests[name]
        batches, jobs = FLOOD
        replies = [await self._flood(guest, number, jobs) for number in range(batches)]
        return {"jobs": jobs * sum(reply.outcome == "acked" for reply in replies)}

    async def _flood(self, guest: Guest, number: int, jobs: int) -> Reply:
        self._made += 1
        name = f"flood {self._made}.{number}"
        body = {"jobs": [self._job(guest, f"{name}.{one}", slow_s=0.25) for one in range(jobs)]}
        reply = await self._ask(guest, "POST", "/v1/jobs/batch", body, key=f"{name} {self.seed}")
        items = reply.answer.get("items") or [{} for _ in range(jobs)]
        for one, item in enumerate(items):
            self._write("flood", guest, reply, job=f"{name}.{one}", job_id=item.get("id"))
        return reply

    async def suspend(self, name: str, seconds: float) -> dict[str, Any]:
        guest = self.guests[name]
        done = await self._manage("tenant.suspend", guest, "POST", f"/v1/tenants/{name}/suspend")
        try:
            await asyncio.sleep(seconds)
        finally:
            await self._manage("tenant.resume", guest, "POST", f"/v1/tenants/{name}/resume")
        return {"outcome": done.outcome}

    async def delete(self, name: str) -> dict[str, Any]:
        """Delete it under load, try its key, and let another tenant have its name."""
        guest = self.guests[name]
        done = await self._manage("tenant.delete", guest, "DELETE", f"/v1/tenants/{name}")
        if done.outcome != "acked":
            return {"outcome": done.outcome}
        guest.has_gone = True
        await self._probe(guest, guest.key, guest.key_id)
        await self._invite(name, self._chance.randint(*QUOTAS))
        return {"outcome": done.outcome}

    async def change_quota(self, name: str, dice: int) -> dict[str, Any]:
        concurrent = random.Random(dice).choice([None, *range(QUOTAS[0], QUOTAS[1] + 1)])
        body = {"quotas": {"concurrent": concurrent}}
        path = f"/v1/tenants/{name}"
        done = await self._manage("tenant.quota", self.guests[name], "PATCH", path, body, concurrent=concurrent)
        return {"outcome": done.outcome, "concurrent": concurrent}

    async def change_key(self, name: str) -> dict[str, Any]:
        """Another key takes over, and the old one is revoked while work that it asked for runs."""
        guest = self.guests[name]
        key, key_id = guest.key, guest.key_id
        await self._new_key(guest)
        path, headers = f"/v1/keys/{key_id}", {"ondot-tenant": name}
        done = await self._manage("key.revoke", guest, "DELETE", path, headers=headers, key_id=key_id)
        if done.outcome == "acked":
            await self._probe(guest, key, key_id)
        return {"outcome": done.outcome}

    async def _invite(self, name: str, concurrent: int | None) -> None:
        self._made += 1
        quotas = {} if concurrent is None else {"concurrent": concurrent}
        body = {"name": name, "quotas": quotas}
        reply = await self._owner.ask("POST", "/v1/tenants", body, key=f"{name} {self._made} {self.seed}")
        if reply.outcome != "acked":
            raise RuntimeError(f"The tenant {name} could not be created: {reply}")
        guest = Guest(name, int(reply.answer["tenant_no"]))
        self._write("tenant.create", guest, reply, concurrent=concurrent)
        await self._let_it_call(guest)
        await self._new_key(guest)
        self.guests[name] = guest

    async def _let_it_call(self, guest: Guest) -> None:
        """Other tenants than the first may not call a receiver on loopback, unless their row says so."""
        while True:
            with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                async with asyncio.timeout(TRY_S):
                    connection = await self.connect()
                    try:
                        await connection.execute(LET_IT_CALL, guest.no)
                    finally:
                        connection.terminate()
                return
            await asyncio.sleep(PAUSE_S)

    async def _new_key(self, guest: Guest) -> None:
        # A repeated answer does not show the key again, so each try makes another one.
        headers = {"ondot-tenant": guest.name}
        while True:
            reply = await self._owner.ask("POST", "/v1/keys", {"name": "user", "role": "admin"}, headers=headers)
            if reply.outcome == "acked":
                break
            if reply.status is not None and reply.status < 500 and reply.outcome == "refused":
                raise RuntimeError(f"No key for the tenant {guest.name}: {reply}")
        guest.key, guest.key_id = reply.answer["key"], reply.answer["id"]
        self._write("key.create", guest, reply, key_id=guest.key_id)

    async def _manage(
        self,
        op: str,
        guest: Guest,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        key_id: str | None = None,
        concurrent: int | None = None,
    ) -> Reply:
        reply = await self._owner.ask(method, path, body, headers=headers)
        self._write(op, guest, reply, key_id=key_id, concurrent=concurrent)
        return reply

    # What its users do -----------------------------------------------------------------------------------------------

    async def _live(self, name: str, until_s: float) -> None:
        chance = random.Random(f"{self.seed} {name}")
        async with asyncio.TaskGroup() as group:
            while time.monotonic() < until_s:
                guest = self.guests[name]
                if not guest.has_gone:
                    recurs = guest.recurring_id is None
                    await self._recur(guest) if recurs else group.create_task(self._create(guest, chance))
                await asyncio.sleep(chance.expovariate(JOBS_A_SECOND))

    async def _recur(self, guest: Guest) -> None:
        self._made += 1
        name = f"recurring {self._made}"
        anchor_at = datetime.now(UTC) - timedelta(seconds=1)
        schedule = {"every": f"{EVERY_S:g}s", "anchor_at": anchor_at.isoformat(), "misfire": {"policy": "once"}}
        body = self._job(guest, name, slow_s=0.2) | {"schedule": schedule}
        reply = await self._ask(guest, "POST", "/v1/jobs", body, key=f"{name} {self.seed}")
        guest.recurring_id = reply.answer.get("id")
        self._write("recur", guest, reply, job=name, job_id=guest.recurring_id)

    async def _create(self, guest: Guest, chance: random.Random) -> None:
        self._made += 1
        name = f"once {self._made}"
        body = self._job(guest, name, slow_s=chance.uniform(*SLOW_S))
        reply = await self._ask(guest, "POST", "/v1/jobs", body, key=f"{name} {self.seed}")
        self._write("create", guest, reply, job=name, job_id=reply.answer.get("id"), key_id=guest.key_id)

    async def _probe(self, guest: Guest, key: str, key_id: str) -> None:
        """Try a key that no longer works."""
        lasts_s, every_s = PROBES_S
        until_s = time.monotonic() + lasts_s
        headers = {"authorization": f"Bearer {key}"}
        while time.monotonic() < until_s:
            reply = await self._users.ask("GET", "/v1/jobs?limit=1", headers=headers, patience_s=PROBE_PATIENCE_S)
            self._write("probe", guest, reply, key_id=key_id)
            await asyncio.sleep(every_s)

    def _job(self, guest: Guest, name: str, slow_s: float) -> Body:
        url = f"{self.receiver_url}?slow_s={slow_s:.2f}&tenant={guest.no}"
        return {"name": name, "url": url, "retry": PATIENT, "timeout": "20s"}

    async def _ask(self, guest: Guest, method: str, path: str, body: Body | None = None, *, key: str = "") -> Reply:
        """With the key that the tenant has at each try. One that was refused meanwhile is tried again with its next."""
        while True:
            sent = guest.key
            headers = {"authorization": f"Bearer {sent}"}
            reply = await self._users.ask(method, path, body, key=key or None, headers=headers)
            if reply.status != 401 or guest.has_gone or sent == guest.key:
                return reply

    def _write(
        self,
        op: str,
        guest: Guest,
        reply: Reply,
        *,
        job: str | None = None,
        job_id: str | None = None,
        key_id: str | None = None,
        concurrent: int | None = None,
    ) -> None:
        asked = Asked(
            op, guest.no, reply.asked_s, reply.outcome, reply.sent_s, reply.acked_s, reply.status, job, job_id, key_id,
            concurrent,
        )  # fmt: skip
        self._file.write(json.dumps(asdict(asked)) + "\n")
        self._file.flush()
        self.happened[f"{op} {reply.outcome}"] += 1
