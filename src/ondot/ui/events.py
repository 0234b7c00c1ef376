"""`/events` and `/events/{id}`: what was sent, what each event started, and a filter tried on them (S11, O5).

Values of the query that cannot be parsed are ignored, and pages have the same cursor as the API's list; only a filter
to be tried is checked, and its faults are shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import urlencode
from uuid import UUID

import msgspec

from ondot.model.errors import InvalidBody, NotFound
from ondot.model.event import MAX_SOURCE, MAX_TYPE
from ondot.model.ids import TenantNo
from ondot.model.patterns import Pattern, compile_pattern
from ondot.store.database import Database
from ondot.store.event_matches import find_matches
from ondot.store.events import EventFilter, EventRow, MatchRow, get_event, list_events, list_matches

PAGE_SIZE: Final = 50
MATCHES_SHOWN: Final = 3
LONGEST_FILTER: Final = 8_192
LONGEST_BODY: Final = 64 * 1024
WITHIN: Final = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
MATCHED: Final = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class Query:
    """`tried`: the text of a filter that is tried on the events. `cursor`: the last event of the page before."""

    type: str = ""
    source: str = ""
    matched: str = ""
    within: str = ""
    tried: str = ""
    cursor: UUID | None = None

    def address(self, cursor: UUID | None = None, path: str = "/events") -> str:
        fields = {"type": self.type, "source": self.source, "matched": self.matched, "within": self.within}
        query = urlencode(
            {name: str(value) for name, value in (fields | {"try": self.tried, "cursor": cursor}).items() if value}
        )
        return f"{path}?{query}" if query else path

    @property
    def is_filtered(self) -> bool:
        return bool(self.type or self.source or self.matched or self.within)


@dataclass(frozen=True, slots=True)
class EventLine:
    id: UUID
    received_at: datetime
    type: str
    source: str
    subject: str | None
    event_id: str
    matched: int
    matches: tuple[MatchRow, ...]
    """The first few."""
    why_not: str | None
    """The condition of the tried filter that it fails."""


@dataclass(frozen=True, slots=True)
class EventsView:
    now: datetime
    query: Query
    rows: tuple[EventLine, ...]
    older: str | None
    is_trying: bool
    fault: str | None
    """What is wrong with the filter that is to be tried."""

    @property
    def mark(self) -> str:
        """Changes when the page does."""
        return f"{self.rows[0].id if self.rows else ''}{len(self.rows)}"


@dataclass(frozen=True, slots=True)
class EventView:
    now: datetime
    row: EventRow
    body: str
    is_cut: bool
    matches: tuple[MatchRow, ...]


def parse_query(parameters: Mapping[str, str]) -> Query:
    def text(name: str, longest: int) -> str:
        return parameters.get(name, "").replace("\0", "").strip()[:longest]

    within, matched = parameters.get("within", ""), parameters.get("matched", "")
    try:
        cursor = UUID(parameters["cursor"])
    except (KeyError, ValueError):
        cursor = None
    return Query(
        text("type", MAX_TYPE),
        text("source", MAX_SOURCE),
        matched if matched in MATCHED else "",
        within if within in WITHIN else "",
        text("try", LONGEST_FILTER),
        cursor,
    )


async def read_events(database: Database, tenant_no: TenantNo, query: Query) -> EventsView:
    now = database.clock.now()
    wanted = EventFilter(
        type=query.type or None,
        source=query.source or None,
        matched=MATCHED.get(query.matched),
        from_at=now - WITHIN[query.within] if query.within else None,
    )
    pattern, fault = _parse_filter(query.tried)
    async with database.reading(tenant_no) as connection:
        rows = await list_events(connection, tenant_no, wanted, limit=PAGE_SIZE + 1, before=query.cursor)
        page = rows[:PAGE_SIZE]
        matches = await find_matches(connection, tenant_no, [row.id for row in page], MATCHES_SHOWN)
    return EventsView(
        now,
        query,
        tuple(_line(row, matches.get(row.id, []), pattern) for row in page),
        query.address(page[-1].id) if len(rows) > PAGE_SIZE else None,
        pattern is not None,
        fault,
    )


async def read_event(database: Database, tenant_no: TenantNo, id_: UUID) -> EventView:
    async with database.reading(tenant_no) as connection:
        row = await get_event(connection, tenant_no, id_)
        if row is None:
            raise NotFound(f"There is no event {id_}. Events are kept as long as history is.")
        matches = await list_matches(connection, tenant_no, id_)
    body = msgspec.json.format(row.body, indent=2)
    return EventView(database.clock.now(), row, body[:LONGEST_BODY], len(body) > LONGEST_BODY, tuple(matches))


def _parse_filter(text: str) -> tuple[Pattern | None, str | None]:
    if not text:
        return None, None
    try:
        return compile_pattern(msgspec.json.decode(text)), None
    except msgspec.DecodeError as error:
        return None, f"The filter is not JSON: {error}."
    except RecursionError:
        return None, "The filter is nested too deeply."
    except InvalidBody as refusal:
        return None, " ".join(f"{fault.pointer or '/'}: {fault.message}" for fault in refusal.faults) or refusal.message


def _line(row: EventRow, matches: list[MatchRow], pattern: Pattern | None) -> EventLine:
    why = None
    if pattern is not None:
        value: Any = msgspec.json.decode(row.body)
        mismatch = pattern.why_not(value)
        why = None if mismatch is None else str(mismatch)
    return EventLine(
        row.id,
        row.received_at,
        row.type,
        row.source,
        row.subject,
        row.event_id,
        row.matched,
        tuple(matches),
        why,
    )
