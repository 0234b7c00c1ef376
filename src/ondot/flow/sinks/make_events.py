"""From rows of the outbox to events (E3). A row has ids alone; the rest is read when it is sent, so that writing it
costs the end of an execution nearly nothing."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from ondot.model.ids import ExecutionId, JobId
from ondot.model.sink import TEST_TYPE
from ondot.model.sink_event import SinkEvent, make_event, shorten_error
from ondot.store.connection import Connection
from ondot.store.sinks import OutboxRow, SinkRow, find_attempt_facts, find_ended_facts, find_facts_of_jobs

LONGEST_RESULT: Final = 64 * 1024
OF_ATTEMPTS: Final = frozenset({"ondot.execution.started", "ondot.execution.retrying"})


async def make_events(connection: Connection, sink: SinkRow, tenant: str, rows: Sequence[OutboxRow]) -> list[SinkEvent]:
    """The events of these rows that a sink wants, in their order."""
    tenant_no, spec, types = sink.tenant_no, sink.spec, sink.spec.all_types
    wanted = [row for row in rows if row.type in types or (row.type == TEST_TYPE and row.job_ids[0] == sink.id)]
    of_attempts = [row for row in wanted if row.type in OF_ATTEMPTS]
    ended_ids = [id_ for row in wanted if row.type not in OF_ATTEMPTS for id_ in row.execution_ids or ()]
    attempts = {
        pair for row in of_attempts for pair in zip(row.execution_ids or (), row.attempt_nos or (), strict=True)
    }
    longest = LONGEST_RESULT if spec.with_results else 0
    ended = await find_ended_facts(connection, tenant_no, ended_ids, longest)
    tried = await find_attempt_facts(connection, tenant_no, attempts)
    job_ids = {id_ for row in wanted if row.execution_ids is not None for id_ in row.job_ids}
    jobs = await find_facts_of_jobs(connection, tenant_no, job_ids)
    made = []
    for row in wanted:
        for job_id, execution_id, data, pool in _read(row, ended, tried):
            name, labels = jobs.get(job_id, (None, {}))
            full = {"job_id": str(job_id), "job": name, "labels": labels, **data}
            if row.type == TEST_TYPE or spec.wants(pool, full["labels"]):
                made.append(make_event(row.no, row.type, row.at, job_id, execution_id, tenant, full))
    return made


def _read(
    row: OutboxRow, ended: dict[ExecutionId, dict[str, Any]], tried: dict[tuple[ExecutionId, int], dict[str, Any]]
) -> Iterator[tuple[JobId, ExecutionId | None, dict[str, Any], str | None]]:
    """The job, the execution, the data and the pool of each event of a row."""
    if row.execution_ids is None:
        detail = msgspec.json.decode(row.detail or "{}")
        yield row.job_ids[0], None, detail, detail.get("pool")
        return
    for n, (job_id, id_) in enumerate(zip(row.job_ids, row.execution_ids, strict=True)):
        attempt_no = (row.attempt_nos or ())[n]
        data: dict[str, Any] = {"execution_id": str(id_), "attempt": attempt_no}
        if row.type in OF_ATTEMPTS:
            facts = tried.get((id_, attempt_no), {})
            data["state"] = "RUNNING" if row.retry_ats is None else "RETRYING"
            data["started_at"] = _text(row.at) if row.retry_ats is None else None
            data["retry_at"] = None if row.retry_ats is None else _text(row.retry_ats[n])
        else:
            facts = ended.get(id_, {})
            data["state"] = row.type.rpartition(".")[2].upper()
            data["started_at"], data["ended_at"] = _text(facts.get("started_at")), _text(row.at)
            data["reason"] = facts.get("reason")
            if facts.get("labels") is not None:
                data["labels"] = msgspec.json.decode(facts["labels"])
            if facts.get("result") is not None:
                data["result"] = msgspec.json.decode(facts["result"])
            if facts.get("is_cut"):
                data["result_left_out"] = True
        data["pool"], data["job_version"] = facts.get("pool"), facts.get("job_version")
        data["origin"], data["fire_at"] = facts.get("origin"), _text(facts.get("fire_at"))
        if facts.get("error") is not None:
            data["error"] = shorten_error(msgspec.json.decode(facts["error"]))
        yield job_id, id_, data, data["pool"]


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")
