"""`/alerts`: a tenant's alerts (O4). Its buttons call `/v1/alerts`; the form follows from the table of kinds."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from ondot.model.alerts.kinds import KINDS, About, Kind
from ondot.model.errors import NotFound
from ondot.model.ids import TenantNo
from ondot.store.alerts import AlertRow, list_alerts
from ondot.store.channels import list_channels
from ondot.store.database import Database

ROWS: Final = 100
CHANNELS: Final = 200
LONGEST: Final = 200


@dataclass(frozen=True, slots=True)
class AlertsView:
    now: datetime
    rows: tuple[AlertRow, ...]
    kinds: tuple[Kind, ...]
    channels: tuple[str, ...]
    more: str | None
    """The address of the next page."""

    def is_muted(self, row: AlertRow) -> bool:
        return row.muted_until is not None and row.muted_until > self.now

    def is_for_owners(self, kind: Kind) -> bool:
        return kind.about is About.INSTALLATION


async def read_alerts(database: Database, tenant_no: TenantNo, parameters: Mapping[str, str]) -> AlertsView:
    after = parameters.get("after", "")
    if len(after) > LONGEST or "\0" in after:
        raise NotFound("There is no such page of alerts.")
    async with database.connection() as connection:
        rows = await list_alerts(connection, tenant_no, after=after, limit=ROWS + 1)
        channels = [channel.name for channel in await list_channels(connection, tenant_no, limit=CHANNELS)]
    more = f"/alerts?after={quote(rows[ROWS - 1].name, safe='')}" if len(rows) > ROWS else None
    return AlertsView(database.clock.now(), tuple(rows[:ROWS]), tuple(KINDS.values()), tuple(channels), more)


def scope_in_words(row: AlertRow) -> str:
    scope = row.scope
    parts = [f"{name}={' or '.join(values)}" for name, values in scope.labels.items()]
    parts += list(scope.jobs)
    parts += [f"pool {pool}" for pool in scope.pools]
    parts += ["all tenants"] if scope.is_of_all_tenants else []
    everything = {About.JOB: "all jobs", About.POOL: "", About.TENANT: "", About.INSTALLATION: "the installation"}
    return ", ".join(parts) or everything[row.kind.about]


def when_in_words(row: AlertRow) -> str:
    values = [f"{name.replace('_', ' ')} {_shown(value)}" for name, value in row.thresholds.items()]
    return ", ".join([row.kind.name.replace("_", " "), *values])


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return duration_in_words(value) if isinstance(value, float) else f"{value}"


def duration_in_words(seconds: float) -> str:
    """The largest units without a rest: "4 h", "90 s", "1 d 2 h"."""
    parts, rest = [], seconds
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        whole, rest = divmod(rest, length_s)
        parts += [f"{whole:g} {unit}"] if whole else []
    return " ".join([*parts, *([f"{rest:g} s"] if rest or not parts else [])])
