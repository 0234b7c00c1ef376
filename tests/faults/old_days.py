"""Days past their retention in a fault run, made before it begins: with rows that must go, and rows that must stay.

The clock of the database is set back some days. What is live is submitted then, by ondot itself: jobs that are due
during the run, executions and runs of workflows with old ids that end during the run, jobs that are due in a year. What
has ended is written by SQL: ended executions with attempts, lines and objects, with and without open dead letters,
and those that ended an hour ago.

During the run schedulers rewrite these days, under kills, again and again: what is on record about rewritings is
forgotten each second. A line of the list is a row or an object, and whether it must stay; `retention_checks` reads it.
"""

import asyncio
import json
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
from past_days import make_past_days

from ondot.document.parse import job_spec
from ondot.flow.dispatch import Dispatcher
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT
from ondot.store.database import open_database
from ondot.transports.polling import PollingTransport
from tests.faults.audit import Violation
from tests.faults.postgres import Postgres
from tests.faults.retention_checks import judge_retention
from tests.faults.weather import CUT_OFF
from tests.servers import settings_for

KEPT_DAYS = 2
AGES = (4, 5, 6)
"""In days. Younger ones may not be over yet, if the run is at midnight and the clock is set."""
ENDED = 20
"""Executions that have ended, of each kind and day."""
AGAIN_EVERY_S = 1.0
YEAR = timedelta(days=365)
EXECUTION = ("history", "attempt", "log", "object")


@dataclass(slots=True)
class OldDays:
    postgres: Postgres
    objects: Path
    receiver_url: str
    books: Path
    """Of the receiver."""
    seconds: float
    seed: int
    list_of_rows: Path
    _lines: list[dict[str, Any]] = field(default_factory=list)
    _chance: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed + 14)

    async def make(self) -> None:
        """Before any role starts: they would read the wrong clock."""
        connection = await self.postgres.connect()
        try:
            await make_past_days(connection, max(AGES) + 2)
            for age in AGES:
                await self.postgres.step_clock(-age * 86_400)
                await self._submit(timedelta(days=age))
            await self.postgres.step_clock(0)
            for age in AGES:
                await self._write_ended(connection, datetime.now(UTC) - timedelta(days=age))
            jobs = [(line["id"],) for line in self._lines if line["table"] == "job_once"]
            await connection.executemany("INSERT INTO public.past VALUES ($1)", jobs)
        finally:
            await connection.close()
        self.list_of_rows.write_text("".join(json.dumps(line) + "\n" for line in self._lines))

    # What is live ----------------------------------------------------------------------------------------------------

    async def _submit(self, age: timedelta) -> None:
        database = await open_database(settings_for(self.postgres.url))
        try:
            await database.read_clock()
            now = database.clock.now()
            for why, bodies in self._bodies(now + age).items():
                text = await submit(
                    database,
                    Dispatcher(PollingTransport()),
                    DEFAULT_TENANT,
                    [job_spec(body, now) for body in bodies],
                    render=lambda stored: " ".join(str(job.id) for job in stored),
                )
                for id_ in text.split():
                    self._enter("job_once", id_, why, stays=True)
        finally:
            await database.close()

    def _bodies(self, today: datetime) -> dict[str, list[dict[str, Any]]]:
        """Jobs by why they stay."""
        due = [today + timedelta(seconds=self._chance.uniform(1, self.seconds)) for _ in range(8)]
        call = {"url": f"{self.receiver_url}?percent=0", "retry": {"max_retries": 3, "max_worker_losses": 100}}
        one_by_one = {"concurrency_key": "past", "key_concurrency": 2}
        slow = {"url": f"{self.receiver_url}?percent=0&slow_s=0.4"}
        steps = {"a": call, "b": {**slow, "depends_on": ["a"]}, "c": {**slow, "depends_on": ["b"]}}
        return {
            "due": [{"name": "past due", **call, "schedule": {"at": at.isoformat()}} for at in due],
            "live": [{"name": "past live", **call, **slow, **one_by_one} for _ in range(12)],
            "run": [{"name": "past run", "steps": steps} for _ in range(2)],
            "far": [{"name": "past far", **call, "schedule": {"at": (today + YEAR).isoformat()}} for _ in range(2)],
        }

    # What has ended --------------------------------------------------------------------------------------------------

    async def _write_ended(self, connection: asyncpg.Connection, day: datetime) -> None:
        jobs, history, attempts, lines, objects, letters = [], [], [], [], [], []
        for number in range(3 * ENDED):
            why = ("over", "letter", "recent")[number % 3]
            at = day.replace(hour=12) + timedelta(seconds=number)
            job_id, id_ = self._new_id(at), self._new_id(at)
            ended_at = datetime.now(UTC) - timedelta(hours=1) if why == "recent" else at
            state = "FAILED" if why == "letter" else "SUCCEEDED"
            key = f"{DEFAULT_TENANT}/{at:%Y/%m/%d}/{id_}/1/result.json"
            jobs.append((job_id, at))
            history.append((id_, job_id, at, ended_at, state))
            attempts.append((id_, at))
            lines.append((id_, at))
            objects.append((id_, key))
            if why == "letter":
                letters.append((id_, job_id, at))
            file = self.objects / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("{}")
            stays = why != "over"
            self._enter("job_once", job_id, why, stays=stays)
            for table in EXECUTION:
                self._enter(table, id_, why, stays=stays, key=key if table == "object" else None)
        # Rows of the past were never submitted: a guard that follows states would refuse them.
        async with connection.transaction():
            await connection.execute("SET LOCAL session_replication_role = replica")
            for sql, rows in (
                (_JOB, jobs), (_HISTORY, history), (_ATTEMPT, attempts), (_LOG, lines), (_OBJECT, objects),
                (_LETTER, letters),
            ):  # fmt: skip
                await connection.executemany(sql, rows)

    def _new_id(self, at: datetime) -> UUID:
        """A UUIDv7 of this instant."""
        ms, rest = int(at.timestamp() * 1000), self._chance.getrandbits(74)
        return UUID(int=ms << 80 | 7 << 76 | (rest >> 62) << 64 | 2 << 62 | rest & (1 << 62) - 1)

    def _enter(self, table: str, id_: object, why: str, *, stays: bool, key: str | None = None) -> None:
        self._lines.append({"table": table, "id": str(id_), "why": why, "stays": stays, "key": key})

    # During the run --------------------------------------------------------------------------------------------------

    async def run(self, seconds: float) -> None:
        """Let the days be rewritten again and again."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            await asyncio.sleep(AGAIN_EVERY_S)
            with suppress(*CUT_OFF, TimeoutError):
                connection = await self.postgres.connect()
                try:
                    await connection.execute("UPDATE ondot.day_rewritten SET days = 0", timeout=5)
                finally:
                    await connection.close(timeout=5)

    async def settle(self, within_s: float) -> None:
        """Wait until everything that must go is gone."""
        until_s = time.monotonic() + within_s
        connection = await self.postgres.connect()
        try:
            while await self.judge(connection) and time.monotonic() < until_s:
                await asyncio.sleep(AGAIN_EVERY_S)
        finally:
            await connection.close()

    async def judge(self, connection: asyncpg.Connection, counts: dict[str, int] | None = None) -> list[Violation]:
        counts = {} if counts is None else counts
        return await judge_retention(connection, self.list_of_rows, self.objects, self.books, counts)


_JOB = """
INSERT INTO ondot.job_once (id, tenant_no, name, pool_no, fire_at, labels, spec)
VALUES ($1, 1, 'past ended', 1, $2, '{}', '{"name": "past ended", "target": {"kind": "function", "name": "nothing"}}')
"""
_HISTORY = """
INSERT INTO ondot.history (id, job_id, fire_at, ready_at, started_at, ended_at, tenant_no, job_version, pool_no,
                           attempt_no, failures, losses, class, state, origin)
VALUES ($1, $2, $3, $3, $3, $4, 1, 1, 1, 1, 0, 0, 2, $5, 'fire')
"""
_ATTEMPT = """
INSERT INTO ondot.attempt (execution_id, attempt_no, tenant_no, outcome, started_at, ended_at)
VALUES ($1, 1, 1, 'FAILED', $2, $2)
"""
_LOG = "INSERT INTO ondot.log VALUES ($1, 1, 1, 1, $2, 'stdout', 'hello')"
_OBJECT = """
INSERT INTO ondot.object (execution_id, attempt_no, kind, tenant_no, key, bytes) VALUES ($1, 1, 'result', 1, $2, 2)
"""
_LETTER = """
INSERT INTO ondot.dead_letter (execution_id, tenant_no, job_id, job_version, failed_at, reason)
VALUES ($1, 1, $2, 1, $3, 'it broke')
"""
