"""Every field of a query, once: its kind, what it means, an example. The documents list this table; a test compares."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, get_args

from ondot.model.execution import Origin, State
from ondot.model.job import JobState
from ondot.model.workflow.states import RunState

Of = Literal["executions", "jobs", "dead_letters", "runs"]


class Kind(StrEnum):
    """How the value of a field is read, and which operators it has."""

    NAME = "name"
    """A whole text; `*` stands for any characters. Case does not matter."""
    PART = "part"
    """A part of a text; `*` stands for any characters. Case does not matter."""
    CHOICE = "choice"
    ID = "id"
    """A UUID, or its first four characters and more."""
    DURATION = "duration"
    NUMBER = "number"
    INSTANT = "instant"
    """RFC 3339, a date (midnight UTC), or a duration back from now."""
    LABEL = "label"
    """With a key after the dot; `*` stands for any characters. Case matters."""
    PAYLOAD = "payload"
    """With a path after the dot; a number can also be compared."""


COMPARED: Final = frozenset({Kind.DURATION, Kind.NUMBER, Kind.PAYLOAD})
"""The kinds that have `>`, `>=`, `<` and `<=`."""


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: Kind
    about: str
    example: str
    choices: tuple[str, ...] = ()
    has_comparison: bool = False

    @property
    def is_compared(self) -> bool:
        return self.kind in COMPARED or self.has_comparison


_STATES: Final = tuple(state.value.lower() for state in State)
_ORIGINS: Final = get_args(Origin)
_LABEL = Field("label", Kind.LABEL, "A label, by its key.", "label.team=bi")
_PAYLOAD = Field("payload", Kind.PAYLOAD, "A field of the payload, by its path.", "payload.customer.id=42")
_TARGETS: Final = ("http", "function", "shell", "grpc", "publish", "workflow")
_POOL = Field("pool", Kind.NAME, "The pool.", "pool:gpu")


def _table(*fields: Field) -> Mapping[str, Field]:
    return {field.name: field for field in fields}


FIELDS: Final[Mapping[Of, Mapping[str, Field]]] = {
    "executions": _table(
        Field(
            "job", Kind.NAME, "The name of the job, or its id. A word without a field is a part of it.", "job:nightly*"
        ),
        Field("state", Kind.CHOICE, "The state.", "state:failed,cancelled", _STATES),
        _LABEL,
        _POOL,
        Field(
            "worker",
            Kind.NAME,
            "The worker of the latest attempt: its id, its first characters, or its host.",
            "worker:box-7",
        ),
        Field(
            "origin",
            Kind.CHOICE,
            "What made it. Steps of runs are listed only if this, or `run`, asks for them.",
            "origin:backfill",
            _ORIGINS,
        ),
        Field(
            "error",
            Kind.PART,
            "The message or the code of the error, or the reason, if it did not succeed.",
            'error:"timed out"',
        ),
        _PAYLOAD,
        Field("took", Kind.DURATION, "How long its latest attempt ran, or has run until now.", "took>5m"),
        Field(
            "waited",
            Kind.DURATION,
            "How long its latest attempt waited for a worker after it could start.",
            "waited>10s",
        ),
        Field("attempt", Kind.NUMBER, "The number of attempts.", "attempt>1"),
        Field("since", Kind.INSTANT, "Due at this instant or later.", "since:24h"),
        Field("until", Kind.INSTANT, "Due before this instant.", "until:2026-11-15T06:00Z"),
        Field(
            "fire",
            Kind.INSTANT,
            "The instant of its fire: a backfill's is long before it was due.",
            "fire>=2026-11-01",
            has_comparison=True,
        ),
        Field("run", Kind.ID, "Steps of this run.", "run:019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"),
        Field("id", Kind.ID, "The execution's id, or its first characters.", "id:019a8453"),
    ),
    "jobs": _table(
        Field("name", Kind.NAME, "The name. A word without a field is a part of it.", "name:nightly*"),
        Field(
            "state",
            Kind.CHOICE,
            "The state. Deleted jobs are listed only if it asks for them.",
            "state:active",
            tuple(state.value.lower() for state in JobState),
        ),
        Field("paused", Kind.CHOICE, "Whether it is paused.", "paused:yes", ("yes", "no")),
        _LABEL,
        _POOL,
        Field("target", Kind.CHOICE, "What it calls.", "target:http", _TARGETS),
        Field("function", Kind.NAME, "The function that it calls.", "function:send_invoice"),
        Field("kind", Kind.CHOICE, "How it is scheduled.", "kind:cron", ("cron", "every", "rrule", "event", "once")),
        Field("key", Kind.NAME, "Its key.", "key:invoice-*"),
        Field(
            "definition",
            Kind.CHOICE,
            "Whether it is a definition: it recurs, or it has a key. The page of jobs lists these.",
            "definition:no",
            ("yes", "no"),
        ),
        _PAYLOAD,
        Field("since", Kind.INSTANT, "Created at this instant or later.", "since:7d"),
        Field("until", Kind.INSTANT, "Created before this instant.", "until:2026-11-15"),
        Field("id", Kind.ID, "The job's id, or its first characters.", "id:019a8453"),
    ),
    "dead_letters": _table(
        Field(
            "error",
            Kind.PART,
            "The message or the code of the error. A word without a field is a part of the message.",
            'error:"timed out"',
        ),
        Field("job", Kind.NAME, "The name of the job, or its id.", "job:nightly*"),
        Field(
            "state",
            Kind.CHOICE,
            "What became of it. Default: open.",
            "state:replayed",
            ("open", "replayed", "discarded", "handled", "all"),
        ),
        _LABEL,
        _POOL,
        Field("group", Kind.NAME, "The fingerprint of a group of similar errors, or `unknown`.", "group:1c0f4a7e"),
        _PAYLOAD,
        Field("since", Kind.INSTANT, "Failed at this instant or later.", "since:24h"),
        Field("until", Kind.INSTANT, "Failed before this instant.", "until:2026-11-15"),
        Field("run", Kind.ID, "Of a step of this run.", "run:019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"),
        Field("id", Kind.ID, "The execution's id, or its first characters.", "id:019a8453"),
    ),
    "runs": _table(
        Field(
            "job", Kind.NAME, "The name of the workflow, or its id. A word without a field is a part of it.", "job:etl*"
        ),
        Field(
            "state",
            Kind.CHOICE,
            "The state.",
            "state:blocked,failed",
            tuple(state.value.lower() for state in RunState),
        ),
        Field("paused", Kind.CHOICE, "Whether it is paused.", "paused:yes", ("yes", "no")),
        _LABEL,
        Field("took", Kind.DURATION, "How long it ran, or has run until now.", "took>1h"),
        Field("since", Kind.INSTANT, "Planned at this instant or later.", "since:24h"),
        Field("until", Kind.INSTANT, "Planned before this instant.", "until:2026-11-15"),
        Field("parent", Kind.ID, "Started by a step of this run.", "parent:019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"),
        Field("id", Kind.ID, "The run's id, or its first characters.", "id:019a8453"),
    ),
}

BARE: Final[Mapping[Of, str]] = {"executions": "job", "jobs": "name", "dead_letters": "error", "runs": "job"}
"""The field in which a word without a field is searched, as a part."""
