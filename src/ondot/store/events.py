"""Events that were sent, and what each of them started (S11). Kept by day, like history."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from ondot.model.event import Event
from ondot.model.ids import ExecutionId, JobId, PoolNo, TenantNo
from ondot.store.connection import Connection, Record
from ondot.store.newest import NO_ID, newest_first
from ondot.store.queries import load_queries

_SQL = load_queries("events")


class NewEvent(Struct, frozen=True, gc=False):
    """An event to be stored, under an id of ondot's own."""

    id: UUID
    event: Event
    matched: int


class Match(Struct, frozen=True, gc=False):
    """What an event does to a job. `execution_id` None: nothing starts, as the outcome says."""

    event_id: UUID
    job_id: JobId
    execution_id: ExecutionId | None
    outcome: str
    job_version: int
    pool_no: PoolNo
    priority_class: int
    stages: str | None
    start_within_s: float | None
    payload: str | None


class Received(Struct, frozen=True):
    """Which events are new, when they were stored, and whether a step of a workflow waits for one of their types."""

    fresh: frozenset[UUID]
    now: datetime
    has_waits: bool


class Answer(Struct, frozen=True):
    """What the sender of an event gets, also if it sends it again."""

    id: UUID
    matched: int
    executions: list[ExecutionId]


@dataclass(frozen=True, slots=True)
class EventRow:
    id: UUID
    received_at: datetime
    matched: int
    type: str
    source: str
    event_id: str
    subject: str | None
    time: datetime | None
    body: str


@dataclass(frozen=True, slots=True)
class MatchRow:
    job_id: JobId
    execution_id: ExecutionId | None
    outcome: str
    job_name: str | None


@dataclass(frozen=True, slots=True)
class EventFilter:
    type: str | None = None
    source: str | None = None
    subject: str | None = None
    matched: bool | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None


async def receive_events(
    connection: Connection, tenant_no: TenantNo, generation: int, events: Sequence[NewEvent], matches: Sequence[Match]
) -> Received | None:
    """Store events and start executions.

    None: the subscriptions are not those of this generation, and nothing was stored.
    """
    rows = await connection.fetch(
        _SQL["receive_events"].text,
        tenant_no,
        generation,
        [new.id for new in events],
        [new.event.key for new in events],
        [new.event.type for new in events],
        [new.event.source for new in events],
        [new.event.id for new in events],
        [new.event.subject for new in events],
        [new.event.time for new in events],
        [new.event.text for new in events],
        [new.matched for new in events],
        [match.event_id for match in matches],
        [match.job_id for match in matches],
        [match.execution_id for match in matches],
        [match.outcome for match in matches],
        [match.job_version for match in matches],
        [match.pool_no for match in matches],
        [match.priority_class for match in matches],
        [match.stages for match in matches],
        [match.start_within_s for match in matches],
        [match.payload for match in matches],
    )
    if not rows[0]["is_current"]:
        return None
    fresh = frozenset(row["id"] for row in rows if row["id"] is not None)
    return Received(fresh, rows[0]["now"], rows[0]["has_waits"])


async def find_answers(connection: Connection, tenant_no: TenantNo, keys: Collection[UUID]) -> dict[UUID, Answer]:
    """By their keys: what was answered to events when they were sent first."""
    ids = {row["key"]: row["id"] for row in await connection.fetch(_SQL["find_event_keys"].text, tenant_no, list(keys))}
    if not ids:
        return {}
    found = list(ids.values())
    rows = await connection.fetch(_SQL["find_answers"].text, tenant_no, found, min(found), max(found))
    answers = {row["id"]: Answer(row["id"], row["matched"], list(row["execution_ids"])) for row in rows}
    return {key: answers.get(id_, Answer(id_, 0, [])) for key, id_ in ids.items()}


async def get_event(connection: Connection, tenant_no: TenantNo, id_: UUID) -> EventRow | None:
    row = await connection.fetchrow(_SQL["get_event"].text, tenant_no, id_)
    return None if row is None else EventRow(*row.values())


async def list_matches(connection: Connection, tenant_no: TenantNo, id_: UUID) -> list[MatchRow]:
    return [MatchRow(*row.values()) for row in await connection.fetch(_SQL["list_matches"].text, tenant_no, id_)]


async def list_events(
    connection: Connection,
    tenant_no: TenantNo,
    wanted: EventFilter,
    *,
    limit: int,
    before: UUID | None = None,
    down_to: UUID = NO_ID,
) -> list[EventRow]:
    """Newest first. `down_to`: no wanted event has a smaller id."""

    async def read(from_id: UUID, to_id: UUID, most: int) -> list[Record]:
        return await connection.fetch(
            _SQL["list_events"].text,
            tenant_no,
            from_id,
            to_id,
            most,
            wanted.type,
            wanted.source,
            wanted.subject,
            wanted.matched,
            wanted.from_at,
            wanted.to_at,
        )

    rows = await newest_first(connection, read, limit=limit, before=before, down_to=down_to)
    return [EventRow(*row.values()) for row in rows]


async def find_event_of(connection: Connection, tenant_no: TenantNo, execution_id: UUID) -> UUID | None:
    """The event that started an execution. It was sent before the execution was made."""

    async def read(from_id: UUID, to_id: UUID, _: int) -> list[Record]:
        return await connection.fetch(_SQL["find_event_of"].text, tenant_no, execution_id, from_id, to_id)

    rows = await newest_first(connection, read, limit=1, before=execution_id)
    return rows[0]["event_id"] if rows else None


async def list_held(
    connection: Connection, tenant_no: TenantNo, job_id: JobId, *, limit: int, from_id: UUID
) -> list[tuple[UUID, str]]:
    """Events that a paused job has not taken, newest first, with their bodies."""
    rows = await connection.fetch(_SQL["list_held"].text, tenant_no, job_id, limit, from_id)
    return [(row["id"], row["body"]) for row in rows]


async def release_held(
    connection: Connection,
    tenant_no: TenantNo,
    job_id: JobId,
    started: Sequence[tuple[UUID, ExecutionId, str | None]],
    *,
    job_version: int,
    pool_no: PoolNo,
    priority_class: int,
    stages: str | None,
    from_id: UUID,
) -> list[tuple[PoolNo, datetime]]:
    """Start executions for these held events, with their payloads, and skip the other held ones of the job."""
    rows = await connection.fetch(
        _SQL["release_held"].text,
        tenant_no,
        job_id,
        [event_id for event_id, _, _ in started],
        [execution_id for _, execution_id, _ in started],
        [payload for _, _, payload in started],
        job_version,
        pool_no,
        priority_class,
        stages,
        from_id,
    )
    return [(PoolNo(row["pool_no"]), row["ready_at"]) for row in rows]


async def drop_held(connection: Connection, tenant_no: TenantNo, job_id: JobId, *, from_id: UUID) -> None:
    await connection.execute(_SQL["drop_held"].text, tenant_no, job_id, from_id)


async def forget_event_keys(connection: Connection, limit: int) -> int:
    return int(await connection.fetchval(_SQL["forget_event_keys"].text, limit))
