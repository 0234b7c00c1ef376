"""The journal of a run: every operation that was asked of the API, and what its client knows of it. Written, read back.

One line of JSON for each operation, flushed when its client is done with it. `acked_s` is when the 2xx had come; an
operation took effect between `asked_s` and then. `unclear` is one that may have taken effect, at any time from
`asked_s` on: an answer that never came, a 5xx, a client that gave up on purpose. `refused` has changed nothing.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

Outcome = Literal["acked", "refused", "unclear"]


@dataclass(frozen=True, slots=True)
class Operation:
    """`job` is the name that the workload gave, one for each job: the thread that leads to what the database has."""

    op: str
    job: str
    body: dict[str, Any] | None
    asked_s: float
    outcome: Outcome
    key: str | None = None
    """The Idempotency-Key it was sent with, over all its tries; members of a batch share one."""
    job_id: str | None = None
    acked_s: float | None = None
    status: int | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    tries: int = 1
    was_unclear: bool = False
    """At least one try had no clear answer: should it take effect after all, then late."""

    @property
    def is_acked(self) -> bool:
        return self.outcome == "acked"


@dataclass(slots=True)
class Journal:
    file: IO[str]

    def write(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            self.file.write(json.dumps(asdict(operation)) + "\n")
        self.file.flush()


def read_journal(path: Path) -> Sequence[Operation]:
    return [Operation(**json.loads(line)) for line in path.read_text().splitlines()]
