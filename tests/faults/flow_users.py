"""The users of workflows in a fault run: small random graphs, started, retried while they are BLOCKED, cancelled.

Each step is a call to the receiver, which fails by the id of its execution, so that a later generation of the step may
succeed. Requests are those of a careful client (`tests.faults.client`); each and its result are lines of the journal,
which `flow_checks` judges. Names begin with `flow `: the audit of the other jobs leaves them out.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.client import Body, Client, Reply
from tests.faults.flow_checks import AT_REST, NAMED, runs_once
from tests.faults.journal import Journal, Operation

STEPS = (1, 7)
RETRY = {"max_retries": 0, "max_worker_losses": 30}
"""One answer decides a step; the faults alone do not use up its budget."""
PERCENTS = (0, 0, 0, 10, 35)
ITEMS = (0, 1, 4, 12, 30)
LOOK_EVERY_S = (0.2, 0.8)
MOST_RETRIES = 3
NEVER = {"cron": "0 0 1 1 *"}


def random_workflow(chance: random.Random, name: str, url: str) -> Body:
    """A graph of some steps, each after some of those before it."""
    steps: dict[str, Body] = {}
    for number in range(chance.randint(*STEPS)):
        parents = chance.sample(list(steps), min(len(steps), chance.choice((0, 1, 1, 2, 3))))
        steps[f"s{number}"] = _random_step(chance, parents, url)
    if chance.random() < 0.35:
        after = chance.sample(list(steps), 1)
        steps["last"] = {"depends_on": after, "when": "ended", "finally": True, "url": f"{url}?percent=5"}
    body: Body = {"name": name, "steps": steps, "retry": RETRY, "payload": {"mark": name}}
    if chance.random() < 0.08:
        body["on_failure"] = "fail"
    if chance.random() < 0.3:
        body["schedule"] = NEVER
    return body


def _random_step(chance: random.Random, parents: list[str], url: str) -> Body:
    kind, percent = chance.random(), chance.choice(PERCENTS)
    step: Body = {"depends_on": parents} if parents else {}
    if parents:
        step["when"] = chance.choices(("success", "no_failure", "failure", "ended"), (55, 15, 18, 12))[0]
        if step["when"] == "failure" and chance.random() < 0.5:
            step["handles"] = True
        if kind < 0.12:
            return step
    if kind > 0.88:
        step["map"] = {"over": list(range(chance.choice(ITEMS)))}
        percent = chance.choice((0, 0, 3))
    slow = f"&slow_s={chance.uniform(0.3, 1.5):.1f}" if chance.random() < 0.3 and "map" not in step else ""
    return step | {"url": f"{url}?percent={percent}{slow}", "timeout": "20s"}


@dataclass(slots=True)
class FlowUsers:
    urls: Sequence[str]
    receiver_url: str
    flows: int
    seed: int
    journal: Path
    headers: Mapping[str, str] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    _chance: random.Random = field(init=False)
    _client: Client = field(init=False)
    _log: Journal = field(init=False)
    _recurring: dict[str, str] = field(default_factory=dict)
    _unanswered: list[Body] = field(default_factory=list)
    _ends_s: float = 0.0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed + 7)
        self._client = Client(self.urls, random.Random(self.seed + 8), self.happened, self.headers)

    async def run(self, seconds: float) -> None:
        """Create all workflows over this time, and look after their runs."""
        bodies = [random_workflow(self._chance, f"{NAMED}{number}", self.receiver_url) for number in range(self.flows)]
        began_s = time.monotonic()
        self._ends_s = began_s + seconds
        with self.journal.open("a") as file:
            self._log = Journal(file)
            async with self._client.open(), asyncio.TaskGroup() as group:
                for number, body in enumerate(bodies):
                    await asyncio.sleep(max(began_s + seconds * number / len(bodies) - time.monotonic(), 0.0))
                    group.create_task(self._live(body, random.Random(self.seed * 1_000 + number)))

    async def settle(self, within_s: float) -> None:
        """Delete what would fire for ever: that leaves its runs alone."""
        with self.journal.open("a") as file:
            self._log = Journal(file)
            async with self._client.open(), asyncio.timeout(within_s), asyncio.TaskGroup() as group:
                for body in self._unanswered:
                    group.create_task(self._create_and_delete(body))
                for name, id_ in self._recurring.items():
                    group.create_task(self._delete(name, id_))

    async def _live(self, body: Body, chance: random.Random) -> None:
        id_ = await self._create(body, hasty=chance.random() < 0.1)
        if id_ is None:
            return
        if runs_once(body):
            await self._look_after(body, await self._find_run(id_), chance)
            return
        async with asyncio.TaskGroup() as group:
            for number in range(chance.randint(1, 3)):
                run_body = {"payload": {"mark": f"{body['name']} run {number}"}}
                key = f"run {run_body['payload']['mark']} {self.seed}"
                path = f"/v1/jobs/{id_}/run"
                reply = await self._client.ask("POST", path, run_body, key=key, hasty=chance.random() < 0.2)
                self._write("run", body["name"], run_body, reply, id_, key)
                if reply.outcome == "acked":
                    each = random.Random(chance.random())
                    group.create_task(self._look_after(body, reply.answer["execution_id"], each))

    async def _create(self, body: Body, *, hasty: bool = False) -> str | None:
        key = f"create {body['name']} {self.seed}"
        reply = await self._client.ask("POST", "/v1/workflows", body, key=key, hasty=hasty)
        self._write("create", body["name"], body, reply, reply.answer.get("id"), key)
        if reply.outcome == "acked":
            id_ = str(reply.answer["id"])
            if not runs_once(body):
                self._recurring[body["name"]] = id_
            return id_
        if reply.outcome == "unclear" and not runs_once(body):
            self._unanswered.append(body)
        return None

    async def _create_and_delete(self, body: Body) -> None:
        if (id_ := await self._create(body)) is not None:
            await self._delete(body["name"], id_)

    async def _delete(self, name: str, id_: str) -> None:
        self._write("delete", name, None, await self._client.ask("DELETE", f"/v1/jobs/{id_}"), id_)

    async def _find_run(self, job_id: str) -> str | None:
        while time.monotonic() < self._ends_s:
            reply = await self._client.ask("GET", f"/v1/workflows/{job_id}/runs?limit=1")
            if items := reply.answer.get("items"):
                return str(items[0]["id"])
            await asyncio.sleep(LOOK_EVERY_S[1])
        return None

    async def _look_after(self, body: Body, run_id: str | None, chance: random.Random) -> None:
        """Retry it while it is BLOCKED, or give it up, or leave it; cancel some, and run some steps again."""
        retries = 0
        while run_id is not None and time.monotonic() < self._ends_s:
            await asyncio.sleep(chance.uniform(*LOOK_EVERY_S))
            run = (await self._client.ask("GET", f"/v1/runs/{run_id}")).answer
            state, whim = run.get("state"), chance.random()
            if state == "BLOCKED" and retries < MOST_RETRIES and whim < 0.85:
                retries += 1
                await self._change(body, run_id, "retry", None, chance)
            elif state == "BLOCKED":
                if whim > 0.92:
                    await self._change(body, run_id, "give-up", None, chance)
                return
            elif state in AT_REST:
                return
            elif state == "RUNNING" and whim < 0.04:
                await self._change(body, run_id, "cancel", None, chance)
            elif state == "RUNNING" and whim < 0.25 and retries < MOST_RETRIES and (names := _running(run)):
                retries += 1
                await self._change(body, run_id, "retry", {"steps": [chance.choice(names)]}, chance)

    async def _change(self, body: Body, run_id: str, op: str, more: Body | None, chance: random.Random) -> None:
        key = f"{op} {run_id} {chance.getrandbits(40)}"
        path = f"/v1/runs/{run_id}/{op}"
        reply = await self._client.ask("POST", path, more, key=key, hasty=chance.random() < 0.15)
        self._write(op, body["name"], {"run_id": run_id, **(more or {})}, reply, None, key)

    def _write(
        self, op: str, name: str, body: Body | None, reply: Reply, job_id: str | None, key: str | None = None
    ) -> None:
        answer: Body = {name: reply.answer[name] for name in ("id", "execution_id", "state") if name in reply.answer}
        operation = Operation(
            op, name, body, reply.asked_s, reply.outcome, key, job_id, reply.acked_s, reply.status, answer,
            reply.tries, reply.was_unclear,
        )  # fmt: skip
        self._log.write([operation])
        self.happened[f"workflow {op} {reply.outcome}"] += 1


def _running(run: Mapping[str, Any]) -> list[str]:
    """The steps that run now, without `finally` ones: those cannot be retried."""
    return [step["name"] for step in run.get("steps", ()) if step.get("state") == "RELEASED" and step["name"] != "last"]
