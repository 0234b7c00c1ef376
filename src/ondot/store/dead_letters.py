"""Dead letters (E10): FAILED executions that wait for a person.

A letter is open until it is resolved: replayed, discarded, or handled by its workflow, with the actor and the reason.
Reading never locks; a transaction that resolves a letter locks its row first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec import Struct

from ondot.model.errors import InvalidQuery
from ondot.model.execution import Origin
from ondot.model.ids import ExecutionId, JobId, TenantNo
from ondot.model.query import Query, parse
from ondot.model.query.query import term
from ondot.store.connection import Connection, Record
from ondot.store.newest import read_kept
from ondot.store.queries import load_queries
from ondot.store.search_conditions import Parameters
from ondot.store.search_letters import letter_condition

_SQL = load_queries("dead_letters")

Resolution = Literal["replayed", "discarded", "handled"]
LetterState = Literal["open", "replayed", "discarded", "handled", "all"]


class LetterFilter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Letters that match everything given. `from_at` is included, `to_at` is not. `q`: a query, see
    `model.query`."""

    job_id: UUID | None = None
    pool: str | None = None
    fingerprint: str | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None
    q: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == LetterFilter()

    @property
    def columns(self) -> tuple[object, ...]:
        """In the order of every statement that filters letters, after the tenant."""
        return self.job_id, self.pool, self.fingerprint, self.from_at, self.to_at

    @property
    def query(self) -> Query | None:
        """A text that is no query is a part of the message: the release before stored such filters."""
        try:
            return None if self.q is None else parse(self.q, "dead_letters")
        except InvalidQuery:
            return Query("dead_letters", (term("", self.q or ""),))


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A letter as it is shown. Fields of its history are None once that is no longer kept.

    `payload` is JSON text; None if it ran with its job's own payload, or was not requested.
    """

    execution_id: ExecutionId
    job_id: JobId
    job_version: int
    failed_at: datetime
    reason: str | None
    error: dict[str, Any] | None
    resolution: Resolution | None
    resolved_at: datetime | None
    resolved_by: str | None
    resolved_reason: str | None
    replay_id: ExecutionId | None
    fire_at: datetime | None
    origin: Origin | None
    attempt_no: int | None
    pool: str | None
    payload: str | None = None
    run_id: ExecutionId | None = None
    """Of a step: its run."""
    step_no: int | None = None


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Open letters that are alike. `job_ids`: some of their jobs."""

    fingerprint: str
    count: int
    first_failed_at: datetime
    last_failed_at: datetime
    sample_id: ExecutionId
    sample_error: dict[str, Any] | None
    job_count: int
    job_ids: list[JobId]


@dataclass(frozen=True, slots=True)
class Ended:
    """An ended execution that can be replayed. `own_payload`: it ran with another payload than its job's."""

    execution_id: ExecutionId
    job_id: JobId
    job_version: int
    own_payload: bool


@dataclass(frozen=True, slots=True)
class LockedLetter:
    ended: Ended
    resolution: Resolution | None
    resolved_by: str | None
    replay_id: ExecutionId | None
    run_id: ExecutionId | None = None
    step_no: int | None = None
    """Of a step: its run, and which step."""


async def list_letters(
    connection: Connection,
    tenant_no: TenantNo,
    filter: LetterFilter,  # noqa: A002 - the API's word
    *,
    state: LetterState = "open",
    before: tuple[datetime, UUID] | None = None,
    limit: int,
) -> list[LetterRow]:
    """Newest failure first, without payloads and tracebacks."""
    if filter.query is not None and filter.query.asks_for("state"):
        state = "all"
    place = before or (None, None)
    text, arguments = await _complete(connection, "list_letters", filter, tenant_no, state, *place, limit)
    rows = await connection.fetch(text, *arguments)
    ids = [row["execution_id"] for row in rows]
    ran = await connection.fetch(_SQL["where_letters_ran"].text, tenant_no, ids) if ids else []
    unknown = {"fire_at": None, "origin": None, "attempt_no": None, "pool": None}
    history = {row["id"]: {name: row[name] for name in unknown} for row in ran}
    return [_letter(dict(row) | history.get(row["execution_id"], unknown)) for row in rows]


async def get_letter(connection: Connection, tenant_no: TenantNo, id_: ExecutionId) -> LetterRow | None:
    row = await connection.fetchrow(_SQL["get_letter"].text, tenant_no, id_)
    return _letter(dict(row)) if row else None


async def group_letters(
    connection: Connection,
    tenant_no: TenantNo,
    filter: LetterFilter,  # noqa: A002
    *,
    limit: int,
    jobs: int,
) -> list[LetterGroup]:
    """Open letters by fingerprint, with up to `jobs` of their jobs."""
    text, arguments = await _complete(connection, "group_letters", filter, tenant_no, limit, jobs)
    rows = await connection.fetch(text, *arguments)
    return [LetterGroup(**(dict(row) | {"sample_error": _decode(row["sample_error"])})) for row in rows]


async def count_letters(
    connection: Connection,
    tenant_no: TenantNo,
    filter: LetterFilter,  # noqa: A002
    *,
    bulk_id: UUID | None = None,
) -> tuple[int, datetime]:
    """How many are open, and the instant of the count; with `bulk_id`, those that this operation would reach."""
    text, arguments = await _complete(connection, "count_letters", filter, tenant_no, bulk_id)
    row = await connection.fetchrow(text, *arguments)
    assert row is not None
    return row["count"], row["now"]


async def count_open_letters(connection: Connection, tenant_no: TenantNo, ids: Sequence[ExecutionId]) -> int:
    return int(await connection.fetchval(_SQL["count_open_letters"].text, tenant_no, ids))


async def find_job_names(connection: Connection, tenant_no: TenantNo, ids: Sequence[JobId]) -> dict[JobId, str]:
    rows = await connection.fetch(_SQL["find_job_names"].text, tenant_no, ids)
    return {JobId(row["id"]): row["name"] for row in rows if row["name"] is not None}


async def lock_letters(
    connection: Connection, tenant_no: TenantNo, ids: Sequence[ExecutionId]
) -> dict[ExecutionId, LockedLetter]:
    """These letters, open or not, locked until the transaction ends."""
    rows = await connection.fetch(_SQL["lock_letters"].text, tenant_no, ids)
    return {row["execution_id"]: _read_locked(row) for row in rows}


async def take_letters(
    connection: Connection, tenant_no: TenantNo, ids: Sequence[ExecutionId]
) -> dict[ExecutionId, LockedLetter]:
    """Lock those of these letters that are open; those that others have locked are skipped."""
    rows = await connection.fetch(_SQL["take_letters"].text, tenant_no, ids)
    return {row["execution_id"]: _read_locked(row) for row in rows}


async def next_letters(
    connection: Connection,
    tenant_no: TenantNo,
    filter: LetterFilter,  # noqa: A002
    *,
    until_at: datetime,
    before: UUID,
    after: UUID | None,
    limit: int,
) -> list[UUID]:
    """Open letters that an operation reaches, in the order of their ids."""
    text, arguments = await _complete(
        connection, "next_letters", filter, tenant_no, until_at, before, after, limit, now=until_at
    )
    rows = await connection.fetch(text, *arguments)
    return [row["id"] for row in rows]


async def resolve_letters(
    connection: Connection,
    tenant_no: TenantNo,
    replays: Sequence[tuple[ExecutionId, ExecutionId | None]],
    resolution: Resolution,
    *,
    actor: str,
    reason: str | None,
) -> None:
    """Resolve locked letters, each with the execution that runs it again."""
    await connection.fetch(
        _SQL["resolve_letters"].text,
        tenant_no,
        [id_ for id_, _ in replays],
        [replay_id for _, replay_id in replays],
        resolution,
        actor,
        reason,
    )


async def find_replay_payload(connection: Connection, tenant_no: TenantNo, id_: ExecutionId) -> str | None:
    """The payload with which an execution ran instead of its job's own, as JSON text."""
    payload: str | None = await connection.fetchval(_SQL["find_replay_payload"].text, tenant_no, id_)
    return payload


async def lock_ended(connection: Connection, tenant_no: TenantNo, id_: ExecutionId) -> Ended | None:
    row = await connection.fetchrow(_SQL["lock_ended"].text, tenant_no, id_)
    return Ended(*row.values()) if row else None


async def find_live_replay(connection: Connection, tenant_no: TenantNo, ended: Ended) -> ExecutionId | None:
    """The replay of an execution that has not ended yet."""
    id_: ExecutionId | None = await connection.fetchval(
        _SQL["find_live_replay"].text, tenant_no, ended.job_id, ended.execution_id
    )
    return id_


async def _complete(
    connection: Connection,
    name: str,
    filter: LetterFilter,  # noqa: A002
    tenant_no: TenantNo,
    *more: object,
    now: datetime | None = None,
) -> tuple[str, list[object]]:
    """The text of a statement with the conditions of the filter's query, and its arguments. `now`: from which durations
    count back; default: the database's time."""
    text, arguments = _SQL[name].text, [tenant_no, *filter.columns, *more]
    if filter.query is None:
        return text, arguments
    parameters = Parameters(after=len(arguments))
    now = now or (await read_kept(connection)).now
    text = text.replace("true /* query */", letter_condition(filter.query, parameters, now))
    return text, [*arguments, *parameters]


def _letter(row: dict[str, Any]) -> LetterRow:
    return LetterRow(**(row | {"error": _decode(row["error"])}))


def _read_locked(row: Record) -> LockedLetter:
    ended = Ended(row["execution_id"], row["job_id"], row["job_version"], row["own_payload"])
    return LockedLetter(
        ended,
        row["resolution"],
        row["resolved_by"],
        row["replay_id"],
        row["run_id"],
        row["step_no"],
    )


def _decode(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
