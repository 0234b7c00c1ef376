"""`/sinks`: where ondot's own events are sent, how far each sink is, and why it fails (E3). Its buttons call
`/v1/sinks`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ondot.document.sinks import render_place
from ondot.flow.sinks.manage import read_sink_rows
from ondot.model.ids import TenantNo
from ondot.model.sink import PATTERNS, TYPES, kind_of
from ondot.store.database import Database
from ondot.store.sinks import Lag, SinkRow
from ondot.ui.channels import ROWS, name_after, page_after


@dataclass(frozen=True, slots=True)
class ShownSink:
    row: SinkRow
    lag: Lag
    kind: str
    to: str

    @property
    def state(self) -> str:
        return "PAUSED" if self.row.is_paused else "FAILING" if self.row.failing_since is not None else "SENDING"


@dataclass(frozen=True, slots=True)
class SinksView:
    now: datetime
    rows: tuple[ShownSink, ...]
    more: str | None
    types: tuple[str, ...] = (*PATTERNS, *TYPES)


async def read_sinks(database: Database, tenant_no: TenantNo, parameters: Mapping[str, str]) -> SinksView:
    found = await read_sink_rows(database, tenant_no, after=name_after(parameters), limit=ROWS + 1)
    shown = tuple(ShownSink(row, lag, kind_of(row.spec.place), render_place(row.spec)) for row, lag in found[:ROWS])
    return SinksView(database.clock.now(), shown, page_after("/sinks", [row.name for row, _ in found]))
