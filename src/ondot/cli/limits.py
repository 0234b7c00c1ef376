"""The flags of `ondot job create` and `update` that hold a job back (E12, E13, E16), and their part of a body."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer


class OverlapPolicy(StrEnum):
    """What a fire does that finds an execution of its job live."""

    ALLOW = "allow"
    SKIP = "skip"
    QUEUE = "queue"
    CANCEL = "cancel"


Overlap = Annotated[
    OverlapPolicy | None,
    typer.Option(help="A fire that finds one running: start (if not said), skip it, queue, or cancel the running one."),
]
Concurrency = Annotated[int | None, typer.Option(metavar="N", help="So many of its executions at once.")]
Rate = Annotated[str | None, typer.Option(metavar="N/DURATION", help="10/1m: so many starts in that time.")]
ConcurrencyKey = Annotated[str | None, typer.Option(metavar="KEY", help="Limits all jobs with this key together.")]
KeyConcurrency = Annotated[
    int | None, typer.Option(metavar="N", help="With the key: so many at once; 1 if no --key-rate is given either.")
]
KeyRate = Annotated[
    str | None,
    typer.Option(metavar="N/DURATION", help="With the key: so many starts in that time; alone, any number at once."),
]
OrderKey = Annotated[str | None, typer.Option(metavar="KEY", help="All jobs with this key strictly in their order.")]
StartDeadline = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Skipped, if not started so long after it was due.")
]
CancelGrace = Annotated[str | None, typer.Option(metavar="DURATION", help="Time to end by itself when cancelled; 10s.")]
Unique = Annotated[
    str | None, typer.Option(metavar="KEY", help="For what runs once: no second with this key beside it.")
]

LIMITS: Final = (
    "overlap",
    "concurrency",
    "rate",
    "concurrency_key",
    "key_concurrency",
    "key_rate",
    "order_key",
    "start_deadline",
    "cancel_grace",
    "unique",
)
FLAGS: Final = {f"/{field}": f"--{field.replace('_', '-')}" for field in LIMITS}
"""Which flag a part of a body came from."""


def limits_of_flags(given: Mapping[str, Any]) -> dict[str, Any]:
    """Of all that a command was given, what holds its job back, as it stands in a body."""
    said = {field: given.get(field) for field in LIMITS}
    return {
        field: str(value) if isinstance(value, StrEnum) else value for field, value in said.items() if value is not None
    }
