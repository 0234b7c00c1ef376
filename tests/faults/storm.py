"""A storm over real processes: a mix of jobs, cancels at random, workers killed and frozen by a seeded schedule.

All jobs go through the API of a real `ondot api`, and a real scheduler recovers. Every few seconds until the last job
was submitted, one of two real workers is killed with -9 and restarted, or frozen past its heartbeat and woken. Then the
storm is over, and the remaining work may end. `tests.faults.audit` judges the result.
"""

import asyncio
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any

import asyncpg
from started import free_port

from ondot.model.errors import OndotError
from ondot.sdk.client import Client
from tests.faults.fleet import Fleet, Member

BATCH = 20
WORKERS = 2
SLOTS = 40
HEARTBEAT_S = 1.0
FROZEN_S = 2.5 * HEARTBEAT_S
LONG_S = 60.0
PATIENT = {"max_retries": 2, "initial": "0.2s", "max": "1s", "max_worker_losses": 30}
"""A retry budget that the storm alone does not use up."""


@dataclass(slots=True)
class Storm:
    fleet: Fleet
    receiver_url: str
    executions: int
    seed: int
    seconds: float
    """How long the submits take; during that time workers are killed and frozen."""
    workers: list[Member] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    asked_at: dict[str, datetime] = field(default_factory=dict)
    frozen: list[tuple[str, datetime, datetime]] = field(default_factory=list)
    """Which worker was frozen, from when to when."""
    accepted: list[str] = field(default_factory=list)
    took_s: float = 0.0

    async def blow(self) -> None:
        """Until every job was submitted and the workers are up again; executions may still run then."""
        port = free_port()
        api = self.fleet.start("api", "--port", str(port))
        self.fleet.scheduler()
        self.workers = [self.fleet.worker(slots=SLOTS) for _ in range(WORKERS)]
        await self.fleet.logged(api, "api.started", within_s=30)
        began_s = time.monotonic()
        async with Client(f"http://127.0.0.1:{port}") as client, asyncio.TaskGroup() as group:
            disturbers = [group.create_task(self._disturb()), group.create_task(self._cancel(client))]
            await self._submit(client, began_s)
            for disturber in disturbers:
                disturber.cancel()
        for worker in self.workers:
            worker.signal(signal.SIGCONT)
        self.took_s = time.monotonic() - began_s

    async def calm(self, *, within_s: float) -> None:
        """Wait until nothing runs, waits or is held."""
        began_s = time.monotonic()
        await self.fleet.until(self._is_calm, within_s=within_s, what="everything has ended, and nothing is held")
        self.took_s += time.monotonic() - began_s

    async def _is_calm(self) -> bool | None:
        self._restart_dead_workers()
        left = await self.fleet.connection.fetchval(
            "SELECT (SELECT count(*) FROM ondot.execution) + (SELECT count(*) FROM ondot.lease)"
            " + (SELECT count(*) FROM ondot.timer WHERE next_fire_at < 'infinity')"
        )
        return None if left else True

    # Submit ----------------------------------------------------------------------------------------------------------

    async def _submit(self, client: Client, began_s: float) -> None:
        bodies = list(self._recurring()) + list(self._once())
        for first in range(0, len(bodies), BATCH):
            answer = await client.create_jobs(bodies[first : first + BATCH])
            self.accepted += [item["id"] for item in answer["items"]]
            due_s = began_s + self.seconds * (first + BATCH) / len(bodies)
            await asyncio.sleep(max(due_s - time.monotonic(), 0.0))

    def _recurring(self) -> Iterator[dict[str, Any]]:
        """Jobs with overlapping fires: each takes longer than its interval."""
        fires = max(6, round(self.seconds / 2))
        slow = {"function": "naps", "payload": {"seconds": 1.4}, "retry": PATIENT}
        schedule = {"every": "1s", "max_fires": fires}
        for overlap in ("skip", "queue", "cancel"):
            fewer = {"every": "1s", "max_fires": fires // 2} if overlap == "queue" else schedule
            yield {"name": f"overlap {overlap}", **slow, "schedule": fewer, "overlap": overlap, "cancel_grace": "0.5s"}
        yield {"name": "two at once", **slow, "schedule": schedule, "concurrency": 2}
        yield {"name": "rate", "url": self.receiver_url, "schedule": schedule, "rate": "2/3s", "retry": PATIENT}

    def _once(self) -> Iterator[dict[str, Any]]:
        mix = random.Random(self.seed)
        kinds = {
            self._plain_http: 26,
            self._once_at_most: 7,
            self._ordered: 8,
            self._by_key: 8,
            self._in_time: 5,
            self._at_a_rate: 3,
            self._unique: 4,
            self._function: 22,
            self._transaction: 11,
            self._program: 6,
        }
        chosen = mix.choices(list(kinds), list(kinds.values()), k=self.executions - len(list(self._recurring())))
        for number, kind in enumerate(chosen):
            if number % 400 == 150:
                yield {"name": "hangs", "function": "hangs", "timeout": "1s", "retry": {"max_retries": 0}}
            elif number % 400 == 300:
                yield {"name": "poison", "function": "kills_its_worker", "retry": {"max_worker_losses": 2}}
            else:
                yield {"retry": PATIENT, "timeout": "20s", "cancel_grace": "0.5s", **kind(mix)}

    def _plain_http(self, mix: random.Random) -> dict[str, Any]:
        return {"name": "http", "url": self.receiver_url, "priority": mix.choice(["high", "normal", "low"])}

    def _once_at_most(self, mix: random.Random) -> dict[str, Any]:
        return {"name": "once", "url": self.receiver_url, "retry": {"max_retries": 0, "max_worker_losses": 0}}

    def _ordered(self, mix: random.Random) -> dict[str, Any]:
        return {"name": "ordered", "url": self.receiver_url, "order_key": f"order {mix.randrange(self._keys(16))}"}

    def _by_key(self, mix: random.Random) -> dict[str, Any]:
        key = mix.randrange(self._keys(10))
        limited = {"concurrency_key": f"limit {key}", "key_concurrency": 1 + key % 3}
        if mix.random() < 0.5:
            return {"name": "by key", "url": self.receiver_url, **limited}
        return {"name": "by key", "function": "naps", "payload": {"seconds": mix.random()}, **limited}

    def _in_time(self, mix: random.Random) -> dict[str, Any]:
        # Behind a key that is never free for long: many miss their deadline.
        key = f"crowd {mix.randrange(self._keys(3))}"
        return {"name": "in time", "url": self.receiver_url, "start_deadline": "2s", "concurrency_key": key}

    def _at_a_rate(self, mix: random.Random) -> dict[str, Any]:
        key = f"rate {mix.randrange(self._keys(2))}"
        return {"name": "at a rate", "url": self.receiver_url, "concurrency_key": key, "key_rate": "3/s"}

    def _unique(self, mix: random.Random) -> dict[str, Any]:
        return {"name": "unique", "url": self.receiver_url, "unique": f"one {mix.randrange(3)}"}

    def _function(self, mix: random.Random) -> dict[str, Any]:
        name, payload = mix.choice(
            [
                ("fails_at_random", {"percent": 40}),
                ("naps", {"seconds": mix.random()}),
                ("naps_in_a_thread", {"seconds": mix.random()}),
                ("goes_on", {"steps": 5}),
                ("leaks", {"megabytes": 1, "files": 1}),
                ("forks", {}),
            ]
        )
        return {"name": name, "function": name, "payload": payload}

    def _transaction(self, mix: random.Random) -> dict[str, Any]:
        payload = {"before_s": mix.random() * 0.3, "inside_s": mix.random() * 0.3, "after_s": mix.random() * 0.3}
        return {"name": "transacts", "function": "transacts", "payload": payload}

    def _program(self, mix: random.Random) -> dict[str, Any]:
        script = mix.choice(["sleep 0.3", "cat >/dev/null; echo read", "exit 3", "kill -9 $$", "yes | head -n 50000"])
        return {"name": "program", "target": {"shell": {"command": ["sh", "-c", script]}}}

    def _keys(self, of_400: int) -> int:
        """More keys for more executions in the same time: each is as busy as in the small storm."""
        return max(1, round(of_400 * self.executions / 400 * 15 / self.seconds))

    # Faults ----------------------------------------------------------------------------------------------------------

    async def _disturb(self) -> None:
        """Every few seconds one of the workers is killed, or frozen and woken."""
        chance = random.Random(self.seed + 1)
        for number in count():
            # A worker needs seconds to start: a long storm that kills workers sooner gets nothing done.
            await asyncio.sleep(chance.uniform(1.0, 3.0) if self.seconds < LONG_S else chance.uniform(3.0, 8.0))
            self._restart_dead_workers()
            worker = chance.choice(self.workers)
            if number % 3 != 1:
                await worker.kill()
                self.happened["kills"] += 1
                self._restart_dead_workers()
            else:
                began_at = datetime.now(UTC)
                worker.signal(signal.SIGSTOP)
                self.happened["freezes"] += 1
                await asyncio.sleep(FROZEN_S)
                worker.signal(signal.SIGCONT)
                self.frozen.append((worker.name, began_at, datetime.now(UTC)))

    def _restart_dead_workers(self) -> None:
        """Restart workers that have died, as a supervisor would."""
        for number, worker in enumerate(self.workers):
            if not worker.runs:
                self.happened["restarts"] += 1
                self.workers[number] = self.fleet.worker(slots=SLOTS)

    async def _cancel(self, client: Client) -> None:
        """Cancel live executions at random moments, running or waiting; about one in ten."""
        chance = random.Random(self.seed + 2)
        while True:
            await asyncio.sleep(chance.expovariate(self.executions / 10 / self.seconds))
            row = await self._anyone(chance)
            if row is None:
                continue
            with suppress(OndotError):  # it has ended in this moment
                cancelled = await client.cancel_execution(row["id"])
                self.happened["cancels"] += 1
                if (at := cancelled.get("cancel_requested_at")) is not None and cancelled["state"] == "RUNNING":
                    self.asked_at[cancelled["id"]] = datetime.fromisoformat(at)

    async def _anyone(self, chance: random.Random) -> asyncpg.Record | None:
        state = chance.choice(["RUNNING", "RUNNING", "RUNNING", "RETRYING", "PENDING"])
        rows = await self.fleet.connection.fetch("SELECT id FROM ondot.execution WHERE state = $1", state)
        return chance.choice(rows) if rows else None

    # Figures -------------------------------------------------------------------------------------------------------

    def reached_after_s(self) -> list[tuple[float, str]]:
        """How long each cancel took to reach a worker that was not frozen; and which execution it was."""
        reached = []
        for member in self.fleet.members:
            frozen = [(began_at, ended_at) for name, began_at, ended_at in self.frozen if name == member.name]
            for event in member.events("attempt.cancelled"):
                reached_at = datetime.fromisoformat(event["timestamp"])
                asked_at = self.asked_at.get(event["execution_id"])
                if asked_at is not None and not any(began < reached_at and asked_at < end for began, end in frozen):
                    which = f"{event['execution_id']} in {member.name} at {event['timestamp']}"
                    reached.append(((reached_at - asked_at).total_seconds(), which))
        return sorted(reached)

    def refused(self) -> int:
        return sum(len(member.events("completion.refused")) for member in self.fleet.members)

    async def figures(self, calls: int) -> str:
        connection = self.fleet.connection
        states = await connection.fetch("SELECT state, count(*) FROM ondot.history GROUP BY 1 ORDER BY 2 DESC")
        outcomes = await connection.fetch("SELECT outcome, count(*) FROM ondot.attempt GROUP BY 1 ORDER BY 2 DESC")
        failed = await connection.fetch(
            "SELECT coalesce(error->>'type', error->>'code') AS why, count(*) FROM ondot.history"
            " WHERE state = 'FAILED' GROUP BY 1 ORDER BY 2 DESC"
        )
        reached = self.reached_after_s()
        latency = "no cancel of running work"
        if reached:
            p50_s = statistics.median(after_s for after_s, _ in reached)
            latency = f"p50 {p50_s:.2f} s of {len(reached)}, longest {reached[-1][0]:.2f} s: {reached[-1][1]}"
        return "\n".join(
            [
                f"seed {self.seed}, {len(self.accepted)} jobs in {self.took_s:.0f} s",
                "executions: " + ", ".join(f"{row['state']} {row['count']}" for row in states),
                "FAILED by error: " + ", ".join(f"{row['why']} {row['count']}" for row in failed),
                "attempts that did not succeed: " + ", ".join(f"{row['outcome']} {row['count']}" for row in outcomes),
                f"calls received: {calls}; completions refused: {self.refused()}",
                ", ".join(f"{name} {count}" for name, count in sorted(self.happened.items())),
                f"cancels of running work reached their worker after: {latency}",
            ]
        )
