"""The clock that a test turns: `ondot.clock()` reads a row that only the test writes.

The process's estimate of the database's time is frozen at the same instant, so nothing is due until the test turns the
clock, and no test waits. A year needs thousands of strides, so `stride` is one statement: it finds the next instant
with something to do and turns the clock to it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from ondot.model.execution import PriorityClass
from ondot.model.ids import PoolNo
from ondot.store.connection import Connection
from ondot.store.database import Database

HAND_CLOCK = """
CREATE TABLE ondot.hand_clock (at timestamptz NOT NULL) WITH (fillfactor = 10);
INSERT INTO ondot.hand_clock VALUES (date_trunc('day', statement_timestamp(), 'UTC') + interval '1 day 12 hours');
CREATE OR REPLACE FUNCTION ondot.clock() RETURNS timestamptz LANGUAGE plpgsql STABLE PARALLEL SAFE
    AS 'BEGIN RETURN (SELECT at FROM ondot.hand_clock); END';
"""
"""Noon of tomorrow: its ids have a day partition, whatever day the tests run on."""

_TURN = "UPDATE ondot.hand_clock SET at = $1"

# $1 not beyond this instant, $2 how long before its fire a timer is planned, in seconds, $3 the class of catch-up
# An owed range counts only if its turn will plan something: not while its job is paused or its concurrency is used up.
_STRIDE = """
WITH coming AS (
    SELECT (SELECT nullif(min(next_fire_at), 'infinity') FROM ondot.timer) AS timer_at,
           least((SELECT min(ready_at) FROM ondot.ready),
                 (SELECT min(look_at) FROM ondot.line WHERE look_at < 'infinity')) AS ready_at,
           (SELECT min(start_by) + interval '1 microsecond' FROM ondot.execution
            WHERE start_by IS NOT NULL AND state = 'PENDING') AS expires_at,
           (SELECT min(o.turn_at) FROM ondot.owed o JOIN ondot.job j ON j.id = o.job_id AND j.state = 'ACTIVE'
            CROSS JOIN LATERAL (
                SELECT count(*) AS live FROM ondot.execution e
                WHERE e.job_id = o.job_id AND e.origin IN ('fire', 'backfill') AND e.origin = o.origin
                  AND (o.origin = 'backfill' OR e.class = $3::smallint)
            ) e
            WHERE CASE WHEN o.from_at <= o.to_at THEN e.live < o.concurrency ELSE e.live = 0 END) AS owed_at,
           least((SELECT min(look_at) FROM ondot.run WHERE look_at IS NOT NULL),
                 (SELECT min(due_at) FROM ondot.step_wait WHERE ended_at IS NULL AND due_at IS NOT NULL),
                 (SELECT min(look_at) FROM ondot.dependency WHERE state <> 'SUCCEEDED'),
                 (SELECT at FROM ondot.arrival ORDER BY at LIMIT 1)) AS run_at
), turned AS (
    UPDATE ondot.hand_clock
    SET at = least($1::timestamptz, greatest(at, least(timer_at, ready_at, owed_at, expires_at, run_at)))
    FROM coming RETURNING at, timer_at, ready_at, owed_at, expires_at, run_at
)
SELECT at,
       coalesce(timer_at <= at + make_interval(secs => $2::double precision), false) OR coalesce(owed_at <= at, false)
           OR coalesce(expires_at <= at, false) OR coalesce(run_at <= at, false)
           OR EXISTS (SELECT FROM ondot.streak WHERE failures >= pause_after) AS to_plan,
       coalesce(ready_at <= at, false) AS to_lease,
       ARRAY(SELECT pool_no FROM ondot.pool ORDER BY pool_no) AS pool_nos
FROM turned
"""


@dataclass(frozen=True, slots=True)
class Instant:
    """Where a stride ended, and what is to do there: for schedulers (`to_plan`), and for workers (`to_lease`)."""

    at: datetime
    to_plan: bool
    to_lease: bool
    pool_nos: tuple[PoolNo, ...]


async def turn_clock(database: Database, at: datetime) -> None:
    """Turn the clocks of the database and of this process to an instant."""
    async with database.connection() as connection:
        await connection.execute(_TURN, at)
    database.clock.freeze(at)


async def stride(connection: Connection, database: Database, *, until: datetime, horizon_s: float) -> Instant:
    """Turn the clock to the next instant with something to do, `until` at the latest. It may be now."""
    row = await connection.fetchrow(_STRIDE, until, horizon_s, int(PriorityClass.CATCH_UP))
    assert row is not None, "the clock has one row"
    database.clock.freeze(row["at"])
    return Instant(row["at"], row["to_plan"], row["to_lease"], tuple(row["pool_nos"]))


def parse_instant(given: datetime | str) -> datetime:
    """An instant as a test writes it: an aware datetime, or RFC 3339 with an offset. Raises ValueError."""
    try:
        at = datetime.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        raise ValueError(f'{given!r} is not an instant: write RFC 3339, such as "2026-01-01T00:00:00Z".') from None
    if at.tzinfo is None:
        raise ValueError(
            f'{given!r} has no time zone: write "2026-01-01T00:00:00Z", or give the datetime a tzinfo such as UTC.'
        )
    at = at.astimezone(UTC)
    if not 1970 <= at.year < 9000:
        raise ValueError(f"{given!r} is not between the years 1970 and 9000, the only ones that ids can contain.")
    return at
