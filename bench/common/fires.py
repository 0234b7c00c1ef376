"""Fires of a benchmark: submitted ahead, awaited, compared with their instants. None may be early, lost or doubled."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import asyncpg
from question import quantile
from structlog.testing import capture_logs

from ondot.flow.dispatch import Dispatcher
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.job import JobSpec
from ondot.settings import load_settings
from ondot.store.database import open_database
from ondot.transports.polling import PollingTransport

A_SUBMIT = 1_000
LOOK_EVERY_S = 0.25
CLOCK_S = 1e-6
"""The precision of an instant as a float of seconds."""

ENDED = """
SELECT job_id, attempt_no, state, extract(epoch FROM started_at - fire_at)::float8 AS started_s,
       CASE WHEN json_typeof(result) = 'number' THEN result::text::float8 - extract(epoch FROM fire_at)::float8 END
           AS called_s,
       extract(epoch FROM fire_at)::float8
           - ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0::float8 AS ahead_s,
       extract(epoch FROM ended_at - fire_at)::float8 AS ended_s
FROM ondot.history WHERE fire_at BETWEEN $1 AND $2 AND origin = 'fire'
"""


@dataclass(frozen=True, slots=True)
class Fires:
    """Seconds from the instant to the recorded start, and to the instant that the function saw; sorted.

    `ahead_s`: how long before its instant the last execution was planned. `ended_s`: of the last outcome.
    """

    started_s: list[float]
    called_s: list[float]
    ahead_s: float
    ended_s: float

    def as_result(self) -> dict[str, object]:
        return {"started_ms": spread_ms(self.started_s), "called_ms": spread_ms(self.called_s)}


def spread_ms(sorted_s: list[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
    return {name: round(quantile(sorted_s, share) * 1000, 2) for name, share in shares.items()} | {
        "max": round(sorted_s[-1] * 1000, 2)
    }


async def submit_all(url: str, specs: Sequence[JobSpec]) -> float:
    """Submit in batches; return how many seconds it took."""
    database = await open_database(load_settings(database_url=url), connections=2)
    try:
        await database.read_clock()
        dispatcher = Dispatcher(PollingTransport())
        began_s = time.monotonic()
        with capture_logs():
            for start in range(0, len(specs), A_SUBMIT):
                batch = specs[start : start + A_SUBMIT]
                await submit(database, dispatcher, DEFAULT_TENANT, batch, render=lambda _accepted: "")
        return time.monotonic() - began_s
    finally:
        await database.close()


async def until_ended(connection: asyncpg.Connection, until_at: datetime, *, within_s: float) -> None:
    """Wait until no execution of a fire up to this instant is left."""
    deadline_s = time.monotonic() + within_s
    while await connection.fetchval("SELECT EXISTS (SELECT FROM ondot.execution WHERE fire_at <= $1)", until_at):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"executions were left after {within_s:g} s")
        await asyncio.sleep(LOOK_EVERY_S)


async def read_fires(connection: asyncpg.Connection, from_at: datetime, to_at: datetime, jobs: int) -> Fires:
    """Read the fires between two instants, of this many jobs with one each; raise if one is early, lost or doubled."""
    rows = await connection.fetch(ENDED, from_at, to_at)
    bad = [row for row in rows if row["state"] != "SUCCEEDED" or row["attempt_no"] != 1]
    if len(rows) != jobs or len({row["job_id"] for row in rows}) != jobs or bad:
        raise RuntimeError(f"invalid run: {len(rows)} executions of {jobs} fires, {len(bad)} not at the first attempt")
    started_s = sorted(row["started_s"] for row in rows)
    called_s = sorted(row["called_s"] for row in rows if row["called_s"] is not None)
    if started_s[0] < 0 or (called_s and called_s[0] < -CLOCK_S):
        raise RuntimeError(
            f"invalid run: a start {-started_s[0]:.6f} s and a call {-called_s[0]:.6f} s before their instant"
        )
    ahead_s, ended_s = min(row["ahead_s"] for row in rows), max(row["ended_s"] for row in rows)
    return Fires(started_s, called_s, ahead_s, ended_s)
