"""What the quotas of a tenant are counted by (T1): tokens of rates, and the number of its live jobs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ondot.model.gates import Rate
from ondot.model.ids import TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("quotas")


@dataclass(frozen=True, slots=True)
class Tokens:
    """What a process got of a bucket. None of them: `wait_s` is the time until there are enough."""

    count: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class JobCount:
    jobs: int
    counted_at: datetime


async def take_tokens(
    connection: Connection, tenant_no: TenantNo, quota: str, rate: Rate, *, least: int, wanted: int
) -> Tokens:
    """Up to `wanted` tokens of a tenant's bucket; none if it has fewer than `least`."""
    row = await connection.fetchrow(
        _SQL["take_quota_tokens"].text, tenant_no, quota, rate.every_s, rate.burst, least, wanted
    )
    assert row is not None
    return Tokens(row["count"], row["wait_s"])


async def count_jobs(connection: Connection, quotas: Mapping[TenantNo, int]) -> None:
    """Count the live jobs of tenants with a quota, each up to one more than its quota, and store the counts."""
    await connection.execute(_SQL["count_live_jobs"].text, list(quotas), [quota + 1 for quota in quotas.values()])


async def read_job_count(connection: Connection, tenant_no: TenantNo) -> JobCount | None:
    row = await connection.fetchrow(_SQL["read_job_count"].text, tenant_no)
    return JobCount(row["jobs"], row["counted_at"]) if row else None
