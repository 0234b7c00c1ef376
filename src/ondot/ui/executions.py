"""`/executions`: all executions, by state, pool and time of their fire, page by page (O5). Read through the store.

Like `/jobs`: what cannot be read in the address is passed over, and a page is cut where the API cuts it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlencode
from uuid import UUID

from ondot.model.execution import State
from ondot.model.ids import TenantNo
from ondot.model.job import JobSpec
from ondot.store.database import Database
from ondot.store.executions import ExecutionRow, list_executions
from ondot.store.pools import find_pools
from ondot.words.job import ORIGINS, one_line, took, zone_of_job

SHOWN: Final = 50
LONGEST_POOL: Final = 63
WITHIN: Final = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
"""The times that can be asked for, from now back."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks for; `cursor` is the last execution of the page before."""

    state: State | None = None
    pool: str = ""
    within: str = ""
    cursor: UUID | None = None

    def address(self, cursor: UUID | None = None) -> str:
        given = {"state": self.state and self.state.value, "pool": self.pool, "within": self.within, "cursor": cursor}
        return _with_query("/executions", given)

    def as_json(self, now: datetime) -> str:
        from_at = now - WITHIN[self.within] if self.within else None
        instant = from_at and f"{from_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
        given = {"state": self.state and self.state.value, "pool": self.pool, "from_at": instant, "cursor": self.cursor}
        return _with_query("/v1/executions", given)

    @property
    def is_narrowed(self) -> bool:
        return self != Asked()


@dataclass(frozen=True, slots=True)
class ExecutionLine:
    id: UUID
    name: str
    state: State
    origin: str
    pool: str
    fire_at: datetime
    took: str | None
    attempts: int
    message: str
    zone: str | None


@dataclass(frozen=True, slots=True)
class ExecutionsView:
    now: datetime
    asked: Asked
    rows: tuple[ExecutionLine, ...]
    older: str | None
    """The address of the page that follows."""


def asked_of(query: Mapping[str, str]) -> Asked:
    within = query.get("within", "")
    return Asked(
        state=next((state for state in State if state.value == query.get("state", "").upper()), None),
        pool=query.get("pool", "").replace("\0", "").strip()[:LONGEST_POOL],
        within=within if within in WITHIN else "",
        cursor=_uuid(query.get("cursor", "")),
    )


async def read_executions(database: Database, tenant_no: TenantNo, asked: Asked) -> ExecutionsView:
    now = database.clock.now()
    async with database.connection() as connection:
        pools = await find_pools(connection, [asked.pool]) if asked.pool else {}
        rows: list[ExecutionRow] = []
        if not asked.pool or asked.pool in pools:
            rows = await list_executions(
                connection,
                tenant_no,
                before=asked.cursor,
                limit=SHOWN + 1,
                horizon_s=database.settings.horizon_s,
                state=asked.state.value if asked.state else None,
                from_at=now - WITHIN[asked.within] if asked.within else None,
                pool_no=pools.get(asked.pool),
            )
        shown = rows[:SHOWN]
        specs = await database.specs.find(connection, {(row.job_id, row.job_version) for row in shown})
    return ExecutionsView(
        now=now,
        asked=asked,
        rows=tuple(_line(row, specs.get((row.job_id, row.job_version))) for row in shown),
        older=asked.address(shown[-1].id) if len(rows) > SHOWN else None,
    )


def _line(row: ExecutionRow, spec: JobSpec | None) -> ExecutionLine:
    ran_s = (row.ended_at - row.started_at).total_seconds() if row.ended_at and row.started_at else None
    message = str((row.error or {}).get("message") or row.reason or "")
    return ExecutionLine(
        id=row.id,
        name=spec.name if spec else f"job {row.job_id}",
        state=row.state,
        origin="" if row.origin == "fire" else ORIGINS.get(row.origin, row.origin),
        pool=row.pool,
        fire_at=row.fire_at,
        took=None if ran_s is None else took(ran_s),
        attempts=row.attempt_no,
        message="" if row.state is State.SUCCEEDED else one_line(message)[:300],
        zone=zone_of_job(spec),
    )


def _with_query(path: str, given: Mapping[str, object]) -> str:
    query = urlencode({name: str(value) for name, value in given.items() if value})
    return f"{path}?{query}" if query else path


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
