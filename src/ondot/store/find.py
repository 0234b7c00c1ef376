"""Candidates for what people type (D5): rows whose name, key or id fits, a few of each kind.

Names are read in one statement for each kind. Ids lead to their days: executions, one-time jobs and events of a range
of ids are walked back from the newest (`store.search_walk`). Every read has a deadline, because the user waits for the
answer while typing.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from ondot.model.find import Kind, Sought
from ondot.model.ids import JobId, PoolNo, TenantNo
from ondot.model.query import Query
from ondot.model.query.query import Term, Value, term
from ondot.store.connection import TOO_LATE, Connection, Record
from ondot.store.day_bounds import LAST_ID, with_day_bounds
from ondot.store.newest import NO_ID, read_kept
from ondot.store.once_names import find_by_index
from ondot.store.queries import load_queries
from ondot.store.search_jobs import search_jobs
from ondot.store.search_walk import Walk, of_others

_SQL = load_queries("find")

WITHIN_S: Final = 0.3
"""The deadline of one statement, and of one walk."""
ONCE_WITHIN_S: Final = 0.15
LAST_LETTER: Final = "\U0010ffff"
FIRST: Final = timedelta(minutes=10)
"""The first chunk of a walk."""
_BY_NAME: Final = {
    Kind.ALERT: "seek_alerts",
    Kind.INCIDENT: "seek_incidents",
    Kind.CHANNEL: "seek_channels",
    Kind.PING: "seek_pings",
    Kind.HOOK: "seek_hooks",
    Kind.KEY: "seek_keys",
    Kind.USER: "seek_users",
}
_BY_ID: Final = {Kind.RUN: "seek_runs", Kind.DEAD_LETTER: "seek_letters", Kind.BULK: "seek_bulks"}


@dataclass(slots=True)
class Finding:
    """One search of one caller. `is_exact`: only what the text names. `is_cut`: there may be more than was found."""

    connection: Connection
    tenant_no: TenantNo
    sought: Sought
    limit: int
    is_exact: bool = False
    pool_nos: Collection[PoolNo] | None = None
    is_cut: bool = False

    @property
    def prefixes(self) -> list[str]:
        return [] if self.is_exact else self.sought.prefixes

    @property
    def parts(self) -> list[str]:
        return [] if self.is_exact else self.sought.parts

    @property
    def ids(self) -> tuple[UUID, UUID] | None:
        """The range of ids to look in: all of them for an empty text."""
        return (NO_ID, LAST_ID) if not self.sought.text else self.sought.ids

    @property
    def pools(self) -> list[PoolNo] | None:
        return None if self.pool_nos is None else list(self.pool_nos)

    async def read(self, block: str, *arguments: object) -> list[Record]:
        """The rows of a statement; none, if it takes too long. One more than wanted shows that there are more."""
        is_inside = self.connection.is_in_transaction()
        if is_inside:
            await self.connection.execute("SAVEPOINT finding")
        try:
            rows: list[Record] = await self.connection.fetch(_SQL[block].text, *arguments, timeout=WITHIN_S)
        except TOO_LATE:
            # Until the server has cancelled it: asyncpg closes a connection that is not free by the next deadline.
            await self.connection.execute("ROLLBACK TO finding" if is_inside else "SELECT")
            self.is_cut = True
            return []
        return self.keep(rows)

    def keep(self, rows: list[Any]) -> list[Any]:
        self.is_cut = self.is_cut or len(rows) > self.limit
        return rows[: self.limit]


async def find_named(finding: Finding, kind: Kind, owners: Sequence[str] = ()) -> list[Record]:
    """Things that have a name of their own and an id, of the tenant."""
    block = "seek_views" if kind is Kind.VIEW else _BY_NAME[kind]
    more = [list(owners)] if kind is Kind.VIEW else []
    first, last = finding.sought.ids or (None, None)
    names = (finding.sought.text, finding.prefixes, finding.parts)
    return await finding.read(block, finding.tenant_no, finding.limit + 1, *names, first, last, *more)


async def find_secrets(finding: Finding) -> list[Record]:
    return await _find_by_name_alone(finding, "seek_secrets")


async def find_functions(finding: Finding) -> list[Record]:
    return await _find_by_name_alone(finding, "seek_functions")


async def _find_by_name_alone(finding: Finding, block: str) -> list[Record]:
    names = (finding.sought.text, finding.prefixes, finding.parts)
    return await finding.read(block, finding.tenant_no, finding.limit + 1, *names)


async def find_pools(finding: Finding) -> list[Record]:
    """Of the installation: the caller may not know all of them."""
    return await finding.read("seek_pools", finding.limit + 1, finding.sought.text, finding.prefixes, finding.parts)


async def find_by_id(finding: Finding, kind: Kind) -> list[Record]:
    """Runs, dead letters, operations and backfills, newest first. They are known by their ids alone."""
    if finding.ids is None:
        return []
    if kind is Kind.BACKFILL:
        return await finding.read("seek_backfills", finding.tenant_no, finding.limit + 1, *finding.ids, finding.pools)
    return await finding.read(_BY_ID[kind], finding.tenant_no, finding.limit + 1, *finding.ids)


async def find_execution_ids(finding: Finding) -> list[UUID]:
    return await _walk(finding, "seek_execution_ids", finding.pools)


async def find_event_ids(finding: Finding) -> list[UUID]:
    return await _walk(finding, "seek_event_ids")


async def name_events(finding: Finding, ids: Sequence[UUID]) -> list[Record]:
    if not ids:
        return []
    text = with_day_bounds(_SQL["name_events"], ids, from_id="$3", before_id="$4")
    rows: list[Record] = await finding.connection.fetch(text, finding.tenant_no, ids)
    return rows


async def find_job_ids(finding: Finding) -> list[UUID]:
    """Jobs by the beginning of their id, one-time ones too; nothing for an empty text, whose jobs have names."""
    return await _walk(finding, "seek_job_ids", finding.pools) if finding.sought.text else []


async def find_jobs(finding: Finding, *, only_workflows: bool) -> list[UUID]:
    """Jobs with versions, by name or key."""
    about = (only_workflows, finding.pools)
    most, text = finding.limit + 1, finding.sought.text
    rows = await finding.read("seek_jobs_named", finding.tenant_no, most, text, *about)
    if not finding.is_exact:
        rows = rows + await finding.read("seek_jobs_from", finding.tenant_no, most, *_range_of(text), *about)
        if len(rows) < finding.limit and text:
            parts = [_lower(pattern) for pattern in finding.parts]
            rows = rows + await finding.read("seek_jobs_like", finding.tenant_no, most, parts, *about)
    return list(dict.fromkeys(row["id"] for row in rows))


async def find_similar_jobs(finding: Finding, most: int, *, only_workflows: bool) -> list[UUID]:
    """Jobs among whose names a misspelt one may be: the same beginning, or the same end."""
    text, about = finding.sought.text, (only_workflows, finding.pools)
    rows: list[Record] = []
    for beginning in (text[: len(text) // 2], text[:2]):
        rows += await finding.read("seek_jobs_from", finding.tenant_no, most, *_range_of(beginning), *about)
    if len(rows) < most:
        ends = [_lower(f"%{pattern}") for pattern in Value((text[-3:],)).as_ilikes()]
        rows += await finding.read("seek_jobs_like", finding.tenant_no, most, ends, *about)
    return list(dict.fromkeys(row["id"] for row in rows))


def _range_of(beginning: str) -> tuple[str, str]:
    """The first name with this beginning, and one after the last, by their bytes."""
    first = _lower(beginning)
    return first, first + LAST_LETTER


def _lower(text: str) -> str:
    """As PostgreSQL does it in the collation C: letters of ASCII only."""
    return "".join(letter.lower() if letter.isascii() else letter for letter in text)


async def find_once_jobs(finding: Finding) -> list[JobId]:
    """One-time jobs by name, newest first: of the newest days as far as the time allows, of older ones by the index of
    names that closed days have."""
    word = Value((finding.sought.text,))
    name = Term("name" if finding.is_exact else "", (word,))
    once = term("kind", "once")
    found = await search_jobs(
        finding.connection,
        finding.tenant_no,
        Query("jobs", (name, once)),
        limit=finding.limit + 1,
        budget_s=ONCE_WITHIN_S,
        pool_nos=finding.pool_nos,
    )
    ids = [row.id for row in found.rows]
    if found.next is not None and len(ids) <= finding.limit:
        kept = await read_kept(finding.connection)
        older = await find_by_index(finding.connection, finding.tenant_no, Term("name", (word,)), kept, found.next)
        if older is None or not finding.is_exact:
            finding.is_cut = True
        ids += [JobId(id_) for id_ in sorted(older or (), reverse=True)]
    return finding.keep(ids)


async def _walk(finding: Finding, block: str, *parameters: object) -> list[UUID]:
    if finding.ids is None:
        return []
    first, last = finding.ids
    text = _SQL[block].text
    for branch, alias in (("recurring", "j"), ("once", "j"), ("live", "e"), ("ended", "e")):
        text = text.replace(f"true /* {branch} */", of_others(alias, finding.tenant_no))
    walk = Walk(
        finding.connection,
        await read_kept(finding.connection),
        text,
        lambda from_id, before, limit: [finding.tenant_no, from_id, before, limit],
        parameters,
        first=FIRST,
        before=UUID(int=min(last.int + 1, LAST_ID.int)),
        down_to=first,
    )
    page = await walk.find_page(finding.limit, time.monotonic() + WITHIN_S)
    finding.is_cut = finding.is_cut or page.next is not None
    return page.ids
