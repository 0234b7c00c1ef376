"""What a suspended tenant means for planning (T2): nothing of it is planned, and nothing is lost.

A plan that meets a timer or an owed range of a tenant that is not active parks it (`store.parking`), so that it costs
nothing while the suspension lasts and delays no other tenant. When the tenant is resumed, the housekeeper brings all of
them back. Their next fires are in the past then, so each job's misfire policy decides about the fires of the
suspension, as after an outage (P4).
"""

from collections.abc import Collection, Sequence

from ondot.model.ids import PARTITIONS, TenantNo
from ondot.model.planning import Timer
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.owed import Owed
from ondot.store.parking import (
    Parked,
    call_lines_of_tenant,
    end_parking,
    find_resumed,
    park_owed,
    park_timers,
    unpark,
)
from ondot.telemetry.log import get_logger

log = get_logger()


async def leave_out_timers(
    connection: Connection, timers: Sequence[Timer], stopped: Collection[TenantNo]
) -> list[Timer]:
    """The timers of active tenants; the others are parked."""
    others = [timer.job_id for timer in timers if timer.tenant_no in stopped]
    if others:
        parked = await park_timers(connection, stopped, others)
        log.info("timers.parked", count=parked, because="their tenant is not active")
    return [timer for timer in timers if timer.tenant_no not in stopped]


async def leave_out_owed(connection: Connection, owed: Sequence[Owed], stopped: Collection[TenantNo]) -> list[Owed]:
    """The ranges of active tenants; the others are parked."""
    if others := [entry.id for entry in owed if entry.tenant_no in stopped]:
        await park_owed(connection, stopped, others)
    return [entry for entry in owed if entry.tenant_no not in stopped]


async def unpark_pass(database: Database) -> int:
    """Bring back what was parked of tenants that were resumed; returns how many tenants."""
    async with database.connection() as connection:
        resumed = await find_resumed(connection)
        for tenant_no in resumed:
            count = 0
            kinds: tuple[Parked, ...] = ("timers", "owed")
            for kind in kinds:
                for partition_no in range(PARTITIONS):
                    count += await unpark(connection, tenant_no, kind, partition_no)
            await call_lines_of_tenant(connection, tenant_no)
            await end_parking(connection, tenant_no)
            log.info("tenant.unparked", tenant_no=tenant_no, count=count)
    return len(resumed)
