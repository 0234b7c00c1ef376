"""How other parts report a fact that alerts may watch (O4): the archive is away, a quota is reached, a miss.

A condition holds from the first report until it is cleared, or until it was not reported for `holds_s`. To report it
again keeps its start, and replaces its text. It costs one statement and no alert has to exist; what alerts make of it
is decided elsewhere, within a second or two.
"""

from datetime import datetime
from typing import Any

from ondot.model.ids import INSTALLATION, JobId, TenantNo
from ondot.store.conditions import put_condition, remove_condition
from ondot.store.connection import Connection

LONGEST_MESSAGE = 1_000
LONGEST_SUBJECT = 300


async def report_condition(
    connection: Connection,
    kind: str,
    tenant_no: TenantNo = INSTALLATION,
    subject: str = "",
    message: str = "",
    details: dict[str, Any] | None = None,
    *,
    job_id: JobId | None = None,
    since: datetime | None = None,
    holds_s: float | None = None,
) -> None:
    """`subject`: what it is about, unique among the tenant's conditions of this kind: a quota, a channel, a job's id.
    `since`: if it began before now. `details["sent_to"]`: channels that know it already (names), so that the incident
    sends them its recovery and not its opening."""
    await put_condition(
        connection,
        tenant_no,
        kind,
        subject[:LONGEST_SUBJECT],
        job_id=job_id,
        since=since,
        holds_s=holds_s,
        message=message[:LONGEST_MESSAGE],
        details=details or {},
    )


async def clear_condition(
    connection: Connection, kind: str, tenant_no: TenantNo = INSTALLATION, subject: str = ""
) -> None:
    """Nothing happens if it does not hold."""
    await remove_condition(connection, tenant_no, kind, subject[:LONGEST_SUBJECT])
