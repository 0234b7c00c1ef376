"""One event for sinks as a CloudEvent 1.0 (E3).

Its id is the same each time it is sent, so that a receiver can drop a repetition. `sequence` grows with each event of
one execution or job. `partitionkey` is the execution or the job: what has the same key is sent in order.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from ondot.model.ids import ExecutionId, JobId

LONGEST_ERROR: Final = 2_000
SHORT_ERROR: Final = 200
SHORT_FIELDS: Final = (
    *(
        "job_id",
        "job",
        "job_version",
        "execution_id",
        "state",
        "origin",
        "attempt",
        "fire_at",
        "started_at",
        "ended_at",
    ),
    *("retry_at", "version", "error"),
)
_ENCODER: Final = msgspec.json.Encoder()


class SinkEvent(Struct, frozen=True):
    """`key`: the execution or the job. `value`: the whole event."""

    id: str
    job_id: JobId
    key: str
    type: str
    at: datetime
    value: dict[str, Any]

    @property
    def body(self) -> bytes:
        return _ENCODER.encode(self.value)

    @property
    def short(self) -> "SinkEvent":
        """With ids, times and the beginning of an error only, for a receiver that finds it too large."""
        data = {name: self.value["data"][name] for name in SHORT_FIELDS if name in self.value["data"]}
        if isinstance(data.get("error"), dict):
            data["error"] = shorten_error(data["error"], SHORT_ERROR)
        data["shortened"] = True
        return SinkEvent(self.id, self.job_id, self.key, self.type, self.at, self.value | {"data": data})


def make_event(
    no: int,
    type_: str,
    at: datetime,
    job_id: JobId,
    execution_id: ExecutionId | None,
    tenant: str,
    data: Mapping[str, Any],
) -> SinkEvent:
    """`no`: of its row in the outbox."""
    event = type_.rpartition(".")[2]
    key = str(execution_id or job_id)
    id_ = f"{key}:{no}" if execution_id is None else f"{key}:{data.get('attempt', 0)}:{event}"
    value = {
        "specversion": "1.0",
        "id": id_,
        "source": f"/jobs/{job_id}",
        "type": type_,
        "subject": key,
        "time": at.isoformat().replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "sequence": f"{no:020}",
        "partitionkey": key,
        "ondottenant": tenant,
        "data": {name: content for name, content in data.items() if content is not None},
    }
    return SinkEvent(id_, job_id, key, type_, at, value)


def shorten_error(error: Any, longest: int = LONGEST_ERROR) -> Any:
    """An error without its traceback, which may be long."""
    if not isinstance(error, dict):
        return error
    return {
        name: value[:longest] if isinstance(value, str) else value
        for name, value in error.items()
        if name in {"code", "message"}
    }
