"""The users of events in a fault run: they send events while jobs that wait for them are created, paused and deleted.

Events go one by one and in batches; some are sent again, with the same id, at once or later. Each job is changed by one
task, one request after another, so that its state is known between them. Every request and its result are lines of the
journal, which `event_checks` judges. Names begin with `event `: the audit of the other jobs leaves them out.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.client import Body, Client, Reply
from tests.faults.event_checks import NAMED
from tests.faults.journal import Journal, Operation

TYPES = 4
SUBSCRIBERS = 6
"""How many jobs wait for events at any time; one that is deleted is followed by another."""
BATCH = (2, 8)
LIVES_S = (0.3, 2.0)
AGAIN_OF_100 = 15


@dataclass(slots=True)
class EventUsers:
    urls: Sequence[str]
    receiver_url: str
    sends: int
    """How many requests send events."""
    seed: int
    journal: Path
    headers: Mapping[str, str] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    _chance: random.Random = field(init=False)
    _client: Client = field(init=False)
    _log: Journal = field(init=False)
    _live: dict[str, str] = field(default_factory=dict)
    _unanswered: list[Body] = field(default_factory=list)
    _made: int = 0
    _ends_s: float = 0.0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed + 9)
        self._client = Client(self.urls, random.Random(self.seed + 10), self.happened, self.headers)

    async def run(self, seconds: float) -> None:
        """Send events over this time, while the jobs change."""
        began_s = time.monotonic()
        self._ends_s = began_s + seconds
        with self.journal.open("a") as file:
            self._log = Journal(file)
            async with self._client.open(), asyncio.TaskGroup() as group:
                for number in range(SUBSCRIBERS if self.sends else 0):
                    group.create_task(self._change_jobs(random.Random(self.seed * 100 + number)))
                for number in range(self.sends):
                    await asyncio.sleep(max(began_s + seconds * number / self.sends - time.monotonic(), 0.0))
                    group.create_task(self._send_some(number, random.Random(self.seed * 10_000 + number)))

    async def settle(self, within_s: float) -> None:
        with self.journal.open("a") as file:
            self._log = Journal(file)
            async with self._client.open(), asyncio.timeout(within_s):
                for body in self._unanswered:
                    await self._create(body, hasty=False)
                for name, id_ in list(self._live.items()):
                    await self._change(name, id_, "delete")

    # Jobs ------------------------------------------------------------------------------------------------------------

    async def _change_jobs(self, chance: random.Random) -> None:
        while time.monotonic() < self._ends_s:
            self._made += 1
            body: Body = {
                "name": f"{NAMED}{self._made}",
                "url": f"{self.receiver_url}?percent=0",
                "retry": {"max_retries": 2, "max_worker_losses": 30},
                "schedule": {"event": {"type": f"type.{chance.randrange(TYPES)}"}, "misfire": {"policy": "skip"}},
            }
            id_ = await self._create(body, hasty=chance.random() < 0.1)
            if id_ is None:
                continue
            await asyncio.sleep(chance.uniform(*LIVES_S))
            if chance.random() < 0.5:
                await self._change(body["name"], id_, "pause")
                await asyncio.sleep(chance.uniform(*LIVES_S))
                if chance.random() < 0.7:
                    await self._change(body["name"], id_, "resume")
                    await asyncio.sleep(chance.uniform(*LIVES_S))
            await self._change(body["name"], id_, "delete", hasty=chance.random() < 0.2)

    async def _create(self, body: Body, *, hasty: bool) -> str | None:
        key = f"create {body['name']} {self.seed}"
        reply = await self._client.ask("POST", "/v1/jobs", body, key=key, hasty=hasty)
        self._write("create", body["name"], body, reply, key)
        if reply.outcome == "acked":
            self._live[body["name"]] = str(reply.answer["id"])
            return self._live[body["name"]]
        if reply.outcome == "unclear" and body not in self._unanswered:
            self._unanswered.append(body)
        return None

    async def _change(self, name: str, id_: str, op: str, *, hasty: bool = False) -> None:
        method, path = ("DELETE", f"/v1/jobs/{id_}") if op == "delete" else ("POST", f"/v1/jobs/{id_}/{op}")
        reply = await self._client.ask(method, path, None, hasty=hasty)
        self._write(op, name, None, reply)
        if op == "delete" and reply.outcome == "acked":
            self._live.pop(name, None)

    # Events ----------------------------------------------------------------------------------------------------------

    async def _send_some(self, number: int, chance: random.Random) -> None:
        count = chance.randint(*BATCH) if chance.random() < 0.3 else 1
        events = [
            {
                "specversion": "1.0",
                "id": f"{number}.{place}",
                "source": "/faults",
                "type": f"type.{chance.randrange(TYPES)}",
            }
            for place in range(count)
        ]
        twins = 2 if chance.random() < 0.1 else 1
        await asyncio.gather(*(self._send(events, hasty=chance.random() < 0.15) for _ in range(twins)))
        if chance.randrange(100) < AGAIN_OF_100:
            await asyncio.sleep(chance.uniform(*LIVES_S))
            await self._send(events, hasty=False)

    async def _send(self, events: list[Body], *, hasty: bool) -> None:
        # Without a key: its id alone makes an event known.
        if len(events) == 1:
            headers = {"content-type": "application/cloudevents+json"}
            reply = await self._client.ask("POST", "/v1/events", events[0], headers=headers, hasty=hasty)
            answer = {"events": [reply.answer]}
        else:
            headers = {"content-type": "application/cloudevents-batch+json"}
            reply = await self._client.ask("POST", "/v1/events", events, headers=headers, hasty=hasty)  # type: ignore[arg-type]
            answer = reply.answer
        self._write("send", "events", {"events": events}, reply, answer=answer if reply.outcome == "acked" else {})

    def _write(
        self,
        op: str,
        name: str,
        body: Body | None,
        reply: Reply,
        key: str | None = None,
        answer: Body | None = None,
    ) -> None:
        kept: Body = {name: reply.answer[name] for name in ("id", "state") if name in reply.answer}
        operation = Operation(
            op, name, body, reply.asked_s, reply.outcome, key, reply.answer.get("id"), reply.acked_s, reply.status,
            kept if answer is None else answer, reply.tries, reply.was_unclear,
        )  # fmt: skip
        self._log.write([operation])
        self.happened[f"event {op} {reply.outcome}"] += 1
