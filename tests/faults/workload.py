"""The users of a fault run: they create and change jobs of all kinds through the HTTP API, spread over its time.

They are careful (`tests.faults.client`), but on purpose they also do what hasty users do: they send a create twice at
once, repeat an acknowledged one, and hang up before the answer. Every request and its result go to the journal: see
`tests.faults.journal`.

After an operation with an unclear try a job is only deleted, not changed: a request that was stuck in a frozen process
may still take effect, and must not undo a later one.
"""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from tests.faults.client import Client, Reply
from tests.faults.journal import Journal, Operation
from tests.faults.mix import Body, Life, Mix

BATCH = (5, 15)
CANCELLED_OF_100 = 6
KEPT = ("id", "version", "state", "next_fire_at", "execution_id", "deleted")


@dataclass(slots=True)
class Known:
    """A job as its client knows it."""

    life: Life
    id: str
    is_open: bool
    """It fires for ever unless it is deleted."""
    was_unclear: bool


@dataclass(slots=True)
class Workload:
    urls: Sequence[str]
    receiver_url: str
    jobs: int
    seed: int
    seconds: float
    acks: Path
    focus: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    known: dict[str, Known] = field(default_factory=dict)
    _mix: Mix = field(init=False)
    _chance: random.Random = field(init=False)
    _journal: Journal = field(init=False)
    _client: Client = field(init=False)
    _serial: defaultdict[str, asyncio.Lock] = field(init=False)
    _doubtful: set[str] = field(default_factory=set)
    """Order and unique keys with a last request that had no clear answer: their order is unknown."""
    _unanswered: list[Life] = field(default_factory=list)
    """Jobs that fire for ever, if they were created: no answer arrived before the client gave up."""
    _ends_s: float = 0.0

    def __post_init__(self) -> None:
        self._mix = Mix(self.receiver_url, self.jobs, self.seconds, random.Random(self.seed), self.focus)
        self._chance = random.Random(self.seed + 1)
        self._client = Client(self.urls, self._chance, self.happened, self.headers)
        self._serial = defaultdict(asyncio.Lock)

    async def run(self) -> None:
        """Create all jobs, and make every change that is due before the time is over."""
        # A separate generator: the draws of tasks depend on their order, the jobs must not.
        spread = random.Random(self.seed + 2)
        async with self._open(), asyncio.TaskGroup() as group:
            began_s = time.monotonic()
            self._ends_s = began_s + self.seconds
            group.create_task(self._cancel_some())
            while (left := self.jobs - self._mix.made) > 0:
                count = min(left, spread.randint(*BATCH))
                lives = list(self._mix.lives(count, self.seconds * (1 - self._mix.made / self.jobs)))
                self._begin(group, lives, in_batches=spread.random() < 0.5)
                due_s = began_s + self.seconds * self._mix.made / self.jobs
                await asyncio.sleep(max(due_s - time.monotonic(), 0.0))

    async def settle(self, within_s: float) -> None:
        """After the faults, delete jobs that would fire for ever. Raises TimeoutError if the API does not come back."""
        async with self._open(), asyncio.timeout(within_s), asyncio.TaskGroup() as group:
            for life in self._unanswered:
                group.create_task(self._create_and_delete(life))
            for number, known in enumerate(self.known.values()):
                if known.is_open:
                    op = "delete" if known.was_unclear or number % 2 else "pause"
                    group.create_task(self._change(known, op, None))
                    known.is_open = False

    # Requests --------------------------------------------------------------------------------------------------------

    def _begin(self, group: asyncio.TaskGroup, lives: list[Life], *, in_batches: bool) -> None:
        """Create the simplest in one batch, every other job by itself."""
        together = [life for life in lives if in_batches and life.ends and not life.steps and life.serial is None]
        if together:
            group.create_task(self._create_batch(together))
        for life in lives:
            if life not in together:
                group.create_task(self._live(life))

    async def _live(self, life: Life) -> None:
        async with AsyncExitStack() as stack:
            if life.serial is not None:
                await stack.enter_async_context(self._serial[life.serial])
                if life.serial in self._doubtful:
                    return
            known = await self._create(life)
            if known is None:
                if life.serial is not None:
                    self._doubtful.add(life.serial)
                return
        began_s = time.monotonic()
        for step in life.steps:
            due_s = began_s + step.after_s
            if due_s > self._ends_s or (known.was_unclear and step.op not in {"delete", "run"}):
                continue
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
            await self._change(known, step.op, step.body, give_up=step.is_unclear)

    async def _create(self, life: Life) -> Known | None:
        chance = self._chance.random()
        key = _key_of(life, self.seed)
        give_up = chance < 0.03 and life.ends and not life.steps and life.serial is None
        hasty = chance > 0.97
        if 0.94 < chance <= 0.97:
            replies = await asyncio.gather(
                *(self._client.ask("POST", "/v1/jobs", life.body, key=key) for _ in range(2))
            )
            replies.sort(key=lambda reply: reply.outcome != "acked")
            self.happened["twins"] += 1
        else:
            replies = [await self._client.ask("POST", "/v1/jobs", life.body, key=key, give_up=give_up, hasty=hasty)]
        first, *others = replies
        self._write("create", life.body, first, key)
        for other in others:
            self._write("repeat", life.body, other, key)
        if first.outcome == "acked" and chance < 0.08:
            again = await self._client.ask("POST", "/v1/jobs", life.body, key=key)
            self._write("repeat", life.body, again, key)
        return self._keep(life, first)

    async def _create_and_delete(self, life: Life) -> None:
        """Create it again with the same key, to get the answer of the first time, and delete it."""
        key = _key_of(life, self.seed)
        reply = await self._client.ask("POST", "/v1/jobs", life.body, key=key)
        self._write("create", life.body, reply, key)
        if reply.outcome == "acked":
            await self._change(Known(life, reply.answer["id"], is_open=True, was_unclear=True), "delete", None)

    async def _create_batch(self, lives: list[Life]) -> None:
        key = f"batch {lives[0].body['name']} {self.seed}"
        body = {"jobs": [life.body for life in lives]}
        reply = await self._client.ask("POST", "/v1/jobs/batch", body, key=key, hasty=self._chance.random() < 0.05)
        items = reply.answer.get("items") or [{} for _ in lives]
        self.happened["batches"] += 1
        for life, item in zip(lives, items, strict=True):
            member = replace(reply, answer=item)
            self._write("create", life.body, member, key)
            self._keep(life, member)

    def _keep(self, life: Life, reply: Reply) -> Known | None:
        if reply.outcome != "acked":
            if reply.outcome == "unclear" and not life.ends:
                self._unanswered.append(life)
            return None
        known = Known(life, reply.answer["id"], not life.ends, was_unclear=False)
        self.known[life.body["name"]] = known
        return known

    async def _change(self, known: Known, op: str, body: Body | None, *, give_up: bool = False) -> None:
        path = f"/v1/jobs/{known.id}"
        name = known.life.body["name"]
        key = None
        match op:
            case "update":
                reply = await self._client.ask("PUT", path, body, give_up=give_up)
            case "delete":
                reply = await self._client.ask("DELETE", path, None, give_up=give_up)
            case "upsert":
                key = f"upsert {name} {self._chance.getrandbits(40)}"
                reply = await self._client.ask("POST", "/v1/jobs", body, key=key)
            case "run":
                key = f"run {name} {self._chance.getrandbits(40)}"
                reply = await self._client.ask("POST", f"{path}/run", body, key=key, hasty=self._chance.random() < 0.2)
            case _:
                reply = await self._client.ask("POST", f"{path}/{op}", body, give_up=give_up)
        self._write(op, body, reply, key, known)
        known.was_unclear = known.was_unclear or (reply.was_unclear and op != "run")
        if op == "delete" and reply.outcome == "acked":
            known.is_open = False

    async def _cancel_some(self) -> None:
        """Cancel live executions of some jobs, running or waiting, at random moments."""
        pause_s = 100 / CANCELLED_OF_100 * self.seconds / self.jobs
        while (left_s := self._ends_s - time.monotonic()) > 0:
            await asyncio.sleep(min(self._chance.expovariate(1 / pause_s), left_s))
            lasting = [known for known in self.known.values() if known.life.steps or known.is_open][-60:]
            newest = list(self.known.values())[-10:]
            if not newest:
                continue
            known = self._chance.choice(lasting or newest) if self._chance.random() < 0.7 else newest[-1]
            listed = await self._client.ask("GET", f"/v1/jobs/{known.id}/executions?limit=5", None)
            live = [
                item["id"]
                for item in listed.answer.get("items", [])
                if item["state"] in {"PENDING", "RUNNING", "RETRYING"}
            ]
            if live:
                id_ = self._chance.choice(live)
                reply = await self._client.ask("POST", f"/v1/executions/{quote(id_)}/cancel", None)
                self._write("cancel", {"execution_id": id_}, reply, None, known)

    # What is kept ----------------------------------------------------------------------------------------------------

    def _open(self) -> "_Opened":
        return _Opened(self)

    def _write(self, op: str, body: Body | None, reply: Reply, key: str | None, known: Known | None = None) -> None:
        answer = {name: reply.answer[name] for name in KEPT if name in reply.answer}
        name = known.life.body["name"] if known is not None else (body or {})["name"]
        job_id = known.id if known is not None else answer.get("id")
        operation = Operation(
            op, name, body, reply.asked_s, reply.outcome, key, job_id, reply.acked_s, reply.status, answer,
            reply.tries, reply.was_unclear,
        )  # fmt: skip
        self._journal.write([operation])
        self.happened[f"{op} {reply.outcome}"] += 1


def _key_of(life: Life, seed: int) -> str:
    return f"create {life.body['name']} {seed}"


@dataclass(slots=True)
class _Opened:
    """The journal and the connections of a workload, while it works."""

    workload: Workload
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> None:
        self.workload._journal = Journal(self.stack.enter_context(self.workload.acks.open("a")))
        await self.stack.enter_async_context(self.workload._client.open())

    async def __aexit__(self, *_: object) -> None:
        await self.stack.aclose()
