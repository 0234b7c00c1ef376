"""Which jobs events start, and the lock and generation that senders and changes of subscriptions agree by (S11)."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from ondot.model.ids import JobId, TenantNo
from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("subscriptions")


@dataclass(frozen=True, slots=True)
class NewSubscription:
    job_id: JobId
    version: int
    type: str
    is_indexed: bool


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    job_id: JobId
    version: int
    paused_at: datetime | None


async def share_subscriptions(connection: Connection, tenant_no: TenantNo) -> None:
    """The first statement of a sender: none of the tenant's subscriptions changes until it has committed."""
    await connection.execute(_SQL["share_subscriptions"].text, tenant_no)


async def lock_subscriptions(connection: Connection, tenant_no: TenantNo) -> None:
    """Before a change: senders that are under way have committed, and are seen by the next statement."""
    await connection.execute(_SQL["lock_subscriptions"].text, tenant_no)


async def raise_generation(connection: Connection, tenant_no: TenantNo) -> int:
    """The subscriptions are locked. Returns the new generation."""
    return int(await connection.fetchval(_SQL["raise_generation"].text, tenant_no))


async def read_generation(connection: Connection, tenant_no: TenantNo) -> int:
    return int(await connection.fetchval(_SQL["read_generation"].text, tenant_no))


async def count_unindexed(
    connection: Connection, tenant_no: TenantNo, types: Collection[str], *, without: Collection[JobId]
) -> dict[str, int]:
    """How many subscriptions of each type no equality indexes."""
    rows = await connection.fetch(_SQL["count_unindexed"].text, tenant_no, list(types), list(without))
    return {row["type"]: row["count"] for row in rows}


async def put_subscriptions(
    connection: Connection, tenant_no: TenantNo, new: Sequence[NewSubscription], generation: int, *, are_paused: bool
) -> None:
    await connection.execute(
        _SQL["put_subscriptions"].text,
        tenant_no,
        [one.job_id for one in new],
        [one.version for one in new],
        [one.type for one in new],
        [one.is_indexed for one in new],
        generation,
        are_paused,
    )


async def remove_subscription(connection: Connection, tenant_no: TenantNo, job_id: JobId) -> None:
    await connection.execute(_SQL["remove_subscription"].text, tenant_no, job_id)


async def list_generations(connection: Connection, tenant_no: TenantNo) -> dict[UUID, int]:
    """Every subscription of a tenant, with the generation in which it changed last."""
    rows = await connection.fetch(_SQL["list_generations"].text, tenant_no)
    return {row["id"]: row["generation"] for row in rows}


async def find_subscriptions(
    connection: Connection, tenant_no: TenantNo, ids: Collection[UUID]
) -> list[SubscriptionRow]:
    rows = await connection.fetch(_SQL["find_subscriptions"].text, tenant_no, list(ids))
    return [SubscriptionRow(JobId(row["id"]), row["version"], row["paused_at"]) for row in rows]
