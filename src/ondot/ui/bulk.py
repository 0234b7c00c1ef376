"""`/bulk` and `/bulk/{id}`: operations on many, with their progress, and the results of one by item (O8, O5).

This module only reads; the buttons that stop and undo call `/v1/bulk`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final, get_args
from urllib.parse import urlencode
from uuid import UUID

from ondot.flow.bulk.start import missing
from ondot.model.access import Right
from ondot.model.bulk import KEPT_REFUSALS, KINDS, MOST_UNDOABLE, NOUNS, RIGHTS, STARTS, UNDO, BulkState, Kind
from ondot.model.ids import TenantNo
from ondot.store.bulk import BulkRow, ItemRow, list_bulk_items, list_bulks, see_items
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.executions import find_origins

PAGE_SIZE: Final = 50
STATES: Final[tuple[BulkState, ...]] = get_args(BulkState)
STATE_WORDS: Final[Mapping[BulkState, str]] = {"RUNNING": "running", "DONE": "done", "CANCELLED": "stopped"}
PAGES: Final[Mapping[Kind, str]] = {
    "executions": "/executions/",
    "jobs": "/jobs/",
    "dead_letters": "/executions/",
    "runs": "/runs/",
}
"""Where an item of each kind is shown."""
RESULTS: Final = ("refused", "done")
DATE: Final = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Query:
    """`cursor`: the last operation of the page before."""

    of: Kind | None = None
    state: BulkState | None = None
    cursor: UUID | None = None

    def address(self, path: str = "/bulk", **changes: object) -> str:
        return _add_query(path, {"of": self.of, "state": self.state} | changes)

    @property
    def is_filtered(self) -> bool:
        return self != Query()


@dataclass(frozen=True, slots=True)
class Line:
    """An operation in words. `reached`: items that are done, refused or were as they should be."""

    row: BulkRow
    title: str
    which: str
    state: str
    progress: str
    right: Right

    @property
    def reached(self) -> int:
        return self.row.done + self.row.refused + self.row.unchanged

    @property
    def most(self) -> int:
        return max(self.row.total, self.reached, 1)


@dataclass(frozen=True, slots=True)
class BulksView:
    now: datetime
    query: Query
    rows: tuple[Line, ...]
    older: str | None
    """The address of the next page."""

    @property
    def mark(self) -> str:
        """A hash of the view, which stays the same while only the time changes."""
        return sha256(repr(replace(self, now=DATE)).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class ItemLine:
    """`name`: None if the item is gone, or has none."""

    id: UUID
    address: str
    name: str | None
    is_done: bool
    detail: str | None
    made: UUID | None


@dataclass(frozen=True, slots=True)
class BulkView:
    now: datetime
    line: Line
    result: str
    """Which items are shown: `refused`, `done`, or both if empty."""
    items: tuple[ItemLine, ...]
    more: str | None
    cursor: UUID | None
    kept: str
    """What of its results is kept."""

    @property
    def mark(self) -> str:
        """A hash of the view, which stays the same while only the time changes."""
        return sha256(repr(replace(self, now=DATE)).encode()).hexdigest()[:12]

    def address(self, result: str, cursor: UUID | None = None) -> str:
        return _add_query(f"/bulk/{self.line.row.id}", {"result": result, "cursor": cursor})


def parse_query(parameters: Mapping[str, str]) -> Query:
    return Query(
        of=next((kind for kind in KINDS if kind == parameters.get("of")), None),
        state=next((state for state in STATES if state == parameters.get("state", "").upper()), None),
        cursor=_uuid(parameters.get("cursor", "")),
    )


async def read_bulks(database: Database, tenant_no: TenantNo, query: Query) -> BulksView:
    async with database.reading(tenant_no) as connection:
        rows = await list_bulks(
            connection, tenant_no, kind=query.of, state=query.state, before=query.cursor, limit=PAGE_SIZE + 1
        )
    page = rows[:PAGE_SIZE]
    older = query.address(cursor=page[-1].id) if len(rows) > PAGE_SIZE else None
    return BulksView(database.clock.now(), query, tuple(_line(row) for row in page), older)


async def read_bulk(database: Database, tenant_no: TenantNo, id_: UUID, parameters: Mapping[str, str]) -> BulkView:
    """Raises NotFound."""
    result = next((name for name in RESULTS if name == parameters.get("result")), "")
    cursor = _uuid(parameters.get("cursor", ""))
    is_done = result == "done" if result else None
    async with database.reading(tenant_no) as connection:
        rows = await list_bulks(connection, tenant_no, id_=id_)
        if not rows:
            raise missing(id_)
        [row] = rows
        items = await list_bulk_items(connection, tenant_no, id_, is_done=is_done, after=cursor, limit=PAGE_SIZE + 1)
        page = items[:PAGE_SIZE]
        names = await _find_names(database, connection, tenant_no, row.kind, [item.id for item in page])
    view = BulkView(
        now=database.clock.now(),
        line=_line(row),
        result=result,
        items=tuple(_item(row.kind, item, names.get(item.id)) for item in page),
        more=None,
        cursor=cursor,
        kept=_kept(row),
    )
    return replace(view, more=view.address(result, page[-1].id)) if len(items) > PAGE_SIZE else view


async def _find_names(
    database: Database, connection: Connection, tenant_no: TenantNo, kind: Kind, ids: Sequence[UUID]
) -> dict[UUID, str | None]:
    """The names of jobs: of the items themselves, or of the executions that they are."""
    if kind == "jobs":
        return {id_: seen.name for id_, seen in (await see_items(connection, tenant_no, kind, ids)).items()}
    found = await find_origins(connection, tenant_no, ids)
    specs = await database.specs.find(connection, {(row.job_id, row.job_version) for row in found.values()})
    jobs = {id_: specs.get((row.job_id, row.job_version)) for id_, row in found.items()}
    return {id_: spec.name for id_, spec in jobs.items() if spec is not None}


def _line(row: BulkRow) -> Line:
    noun = NOUNS[row.kind] + ("" if row.total == 1 and not row.total_is_least else "s")
    verb = "Change" if row.action == "update" else row.action.capitalize()
    counts = ((row.refused, "refused"), (row.unchanged, "unchanged"))
    progress = [f"{row.done:,} of {row.total:,} done", *(f"{count:,} {word}" for count, word in counts if count)]
    return Line(
        row=row,
        title=f"{verb} {'at least ' if row.total_is_least else ''}{row.total:,} {noun}",
        which=_which(row),
        state=STATE_WORDS[row.state],
        progress=", ".join(progress),
        right=RIGHTS[row.kind][row.action],
    )


def _which(row: BulkRow) -> str:
    """Which items it was started for, in words."""
    if row.undo_of is not None:
        return "what another operation changed"
    if row.selected is not None:
        return "a selection"
    filters = [
        row.q or row.filter.q or "",
        f"job:{row.filter.job_id}" if row.filter.job_id else "",
        f"group:{row.filter.fingerprint}" if row.filter.fingerprint else "",
    ]
    return " ".join(filter(None, filters)) or "all"


def _kept(row: BulkRow) -> str:
    refused = f"The first {KEPT_REFUSALS:,} refused items are kept with the reason"
    starts = row.action in STARTS and row.kind != "runs"
    if row.action in UNDO or starts:
        return f"{refused}, and the first {MOST_UNDOABLE:,} changed ones."
    return f"{refused}. Changed ones are only counted: this action cannot be undone."


def _item(kind: Kind, item: ItemRow, name: str | None) -> ItemLine:
    return ItemLine(item.id, f"{PAGES[kind]}{item.id}", name, item.is_done, item.detail, item.made)


def _add_query(path: str, fields: Mapping[str, object]) -> str:
    query = urlencode({name: str(value) for name, value in fields.items() if value})
    return f"{path}?{query}" if query else path


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
