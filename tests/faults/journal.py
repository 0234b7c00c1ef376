"""The journal of a run: every request to the API, and what its client knows about the result. Written, and read back.

One line of JSON for each operation, flushed when its client is done with it. `acked_s` is when the 2xx arrived; the
operation took effect between `asked_s` and then. An `unclear` operation may have taken effect at any time from
`asked_s` on: no answer arrived, or a 5xx, or the client gave up on purpose. A `refused` one has changed nothing.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

Outcome = Literal["acked", "refused", "unclear"]


@dataclass(frozen=True, slots=True)
class Operation:
    """`job` is the name that the workload chose, unique for each job: it leads to the rows in the database."""

    op: str
    job: str
    body: dict[str, Any] | None
    asked_s: float
    outcome: Outcome
    key: str | None = None
    """The Idempotency-Key of all its tries; members of a batch share one."""
    job_id: str | None = None
    acked_s: float | None = None
    status: int | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    tries: int = 1
    was_unclear: bool = False
    """At least one try had no clear answer: it may take effect late."""

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
