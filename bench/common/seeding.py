"""Jobs at rest, by the million: rows of `job`, `job_version` and `timer` as `submit` writes them, made by the server.

Through `submit` ten million would take ten minutes. The rows are first compared with those that `submit` writes for the
same specs. A job at rest fires at a minute of one day of the month, in hours or weeks. `wake` gives some of them,
evenly spread over all, a new schedule, in the form that a change leaves behind.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
from question import say
from structlog.testing import capture_logs

from ondot.flow.dispatch import Dispatcher
from ondot.flow.new_jobs import Accepted
from ondot.flow.submit import submit
from ondot.model.ids import DEFAULT_TENANT, ticks_at, uuid7
from ondot.model.job import JobSpec, decode_spec, encode_spec
from ondot.model.schedule import Cron, Schedule, next_fire
from ondot.model.target import FunctionTarget
from ondot.settings import load_settings
from ondot.store.database import open_database
from ondot.transports.polling import PollingTransport

EXPRESSIONS = 10_000
A_STATEMENT = 250_000
QUIET = timedelta(hours=2)
"""No job at rest fires sooner."""
NAME = "rest"
JOBS_A_BLOCK = 60

SEED = """
WITH new AS MATERIALIZED (
    SELECT (lpad(to_hex(tick / 4096), 12, '0') || '7' || lpad(to_hex(tick % 4096), 3, '0')
            || right(replace(gen_random_uuid()::text, '-', ''), 16))::uuid AS id,
           timestamptz 'epoch' + tick / 4096 * interval '1 millisecond' AS at,
           s.spec::json, s.next_fire_at
    FROM generate_series($1::bigint, $2::bigint) AS n
    CROSS JOIN LATERAL (SELECT $5::bigint + n * $6::bigint AS tick) t
    JOIN unnest($3::text[], $4::timestamptz[]) WITH ORDINALITY AS s(spec, next_fire_at, nth)
      ON s.nth = n % cardinality($3) + 1
), stored AS (
    INSERT INTO ondot.job (id, tenant_no, key, name, state, version, pool_no, labels, created_at, updated_at)
    SELECT id, 1, NULL, 'rest', 'ACTIVE', 1, 1, '{}', at, at FROM new
), versioned AS (
    INSERT INTO ondot.job_version (job_id, version, tenant_no, spec, created_at)
    SELECT id, 1, 1, spec, at FROM new
)
INSERT INTO ondot.timer (job_id, next_fire_at, fired_through, version, job_version, fires_left, tenant_no, partition_no)
SELECT id, next_fire_at, at, 1, 1, NULL, 1, ondot.partition_of(id) FROM new
"""
# Ids are in the order of creation: the first id at or after a tick is the job of that tick.
CHOOSE = """
SELECT near.job_id FROM unnest($1::uuid[]) AS p(id) CROSS JOIN LATERAL (
    SELECT job_id FROM ondot.timer WHERE job_id >= p.id ORDER BY job_id LIMIT 1
) near
"""
FORGET = """
SELECT count(near.labels) FROM unnest($1::uuid[]) AS p(id) CROSS JOIN LATERAL (
    SELECT labels FROM ondot.job WHERE id >= p.id ORDER BY id LIMIT 1
) near
"""
WAKE = """
WITH chosen AS (
    SELECT * FROM unnest($1::uuid[], $2::text[], $3::timestamptz[]) AS c(job_id, spec, next_fire_at)
), versioned AS (
    INSERT INTO ondot.job_version (job_id, version, tenant_no, spec, created_at)
    SELECT c.job_id, j.version + 1, 1, c.spec::json, now() FROM chosen c JOIN ondot.job j ON j.id = c.job_id
), stored AS (
    UPDATE ondot.job j SET version = j.version + 1, updated_at = now() FROM chosen c WHERE j.id = c.job_id
)
UPDATE ondot.timer t
SET next_fire_at = c.next_fire_at, version = t.version + 1, job_version = t.job_version + 1, fired_through = now()
FROM chosen c WHERE t.job_id = c.job_id
"""


class Rest:
    """The jobs at rest of one database; their ids are spread over the time before `now`."""

    def __init__(self, connection: asyncpg.Connection, now: datetime, at_most: int) -> None:
        self._connection = connection
        self._per_job = 200  # ticks: twenty thousand per second, as submit would accept them
        self._first = ticks_at(now) - at_most * self._per_job
        self._specs, self._next_fire_ats = _schedules(now)
        self.jobs = 0

    async def grow(self, url: str, jobs: int) -> float:
        """Grow to this many jobs; return how many seconds it took, vacuum and checkpoint included."""
        began_s = time.monotonic()
        while self.jobs < jobs:
            upto = min(self.jobs + A_STATEMENT, jobs)
            await self._connection.execute(
                SEED, self.jobs, upto - 1, self._specs, self._next_fire_ats, self._first, self._per_job, timeout=600
            )
            self.jobs = upto
            if upto % 1_000_000 == 0:
                say(f"  {upto:,} jobs at rest after {time.monotonic() - began_s:.0f} s")
        # As autovacuum would later: not during a measurement.
        await self._connection.execute("VACUUM (ANALYZE) ondot.job, ondot.job_version, ondot.timer", timeout=1200)
        await self._connection.execute("CHECKPOINT", timeout=600)
        await self._check(url)
        return time.monotonic() - began_s

    async def wake(
        self,
        schedules: Sequence[Schedule],
        fire_ats: Sequence[datetime],
        name: str,
        connection: asyncpg.Connection | None = None,
    ) -> None:
        """Give these schedules and first fires to as many of the jobs, evenly spread."""
        connection = connection or self._connection
        rows = await connection.fetch(CHOOSE, self._spread(len(schedules)))
        specs = [encode_spec(_spec(schedule, name)) for schedule in schedules]
        await connection.execute(WAKE, [row["job_id"] for row in rows], specs, fire_ats, timeout=600)

    async def forget(self, connection: asyncpg.Connection, blocks: int) -> None:
        """Fill shared buffers of this many blocks with rows that no fire needs, as far as such rows exist."""
        # Clock sweep: it passes over a block that was used often up to five times.
        count = min(5 * blocks, self.jobs // JOBS_A_BLOCK)
        await connection.fetch(FORGET, self._spread(count), timeout=600)

    def _spread(self, count: int) -> list[UUID]:
        return [self._id_of(n * self.jobs // count) for n in range(count)]

    def _id_of(self, n: int) -> UUID:
        """The smallest id that the n-th job may have."""
        return UUID(bytes=uuid7(self._first + n * self._per_job, 0))

    async def _check(self, url: str) -> None:
        """Compare with what `submit` writes for the same spec: every column but ids and the instants of creation."""
        n = self.jobs // 2
        seeded = await self._row("j.id >= $1", self._id_of(n))
        database = await open_database(load_settings(database_url=url), connections=2)
        try:
            await database.read_clock()
            made: list[Accepted] = []

            def keep(accepted: list[Accepted]) -> str:
                made.extend(accepted)
                return ""

            with capture_logs():
                await submit(
                    database,
                    Dispatcher(PollingTransport()),
                    DEFAULT_TENANT,
                    [decode_spec(self._specs[n % EXPRESSIONS])],
                    render=keep,
                )
        finally:
            await database.close()
        submitted = await self._row("j.id = $1", made[0].id)
        await self._connection.execute(
            "WITH t AS (DELETE FROM ondot.timer WHERE job_id = $1),"
            " v AS (DELETE FROM ondot.job_version WHERE job_id = $1) DELETE FROM ondot.job WHERE id = $1",
            made[0].id,
        )
        if seeded != submitted:
            raise RuntimeError(f"jobs at rest differ from what submit writes:\n{seeded}\n{submitted}")

    async def _row(self, which: str, job_id: UUID) -> dict[str, Any]:
        row = await self._connection.fetchrow(
            "SELECT j.*, v.*, t.*, t.partition_no = ondot.partition_of(j.id) AS is_placed, v.spec::text AS spec,"
            " j.created_at = j.updated_at AND v.created_at = j.created_at AS is_new,"
            " abs(extract(epoch FROM t.fired_through - j.created_at)) < 1 AS is_at_its_start,"
            " j.id BETWEEN ondot.first_id_at(j.created_at - interval '1 s')"
            " AND ondot.first_id_at(j.created_at + interval '1 s') AS is_id_of_its_time"
            " FROM ondot.job j JOIN ondot.job_version v ON v.job_id = j.id AND v.version = j.version"
            f" JOIN ondot.timer t ON t.job_id = j.id WHERE {which} ORDER BY j.id LIMIT 1",
            job_id,
        )
        assert row is not None
        own = {"id", "job_id", "created_at", "updated_at", "fired_through", "partition_no"}
        return {name: value for name, value in row.items() if name not in own}


def _spec(schedule: Schedule, name: str) -> JobSpec:
    return JobSpec(name=name, target=FunctionTarget(name="now"), schedule=schedule)


def _schedules(now: datetime) -> tuple[list[str], list[datetime]]:
    """Specs and next fires: a minute of one day of the month, later than the end of the measurement."""
    specs: list[str] = []
    next_fire_ats: list[datetime] = []
    n = 0
    while len(specs) < EXPRESSIONS:
        # Steps without a common factor with a month of 28 days spread them evenly over it.
        minute = n * 4_051 % (28 * 1440)
        schedule = Schedule(when=Cron(expression=f"{minute % 60} {minute // 60 % 24} {minute // 1440 + 1} * *"))
        fire_at = next_fire(schedule, now.astimezone(UTC))
        if fire_at is not None and fire_at > now + QUIET:
            specs.append(encode_spec(_spec(schedule, NAME)))
            next_fire_ats.append(fire_at)
        n += 1
    return specs, next_fire_ats
