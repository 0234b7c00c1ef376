"""What is asked about dead letters and retries, as it stands in a request (E10): which letters, what to do with them.

Letters are named by `ids`, or by a `filter`; every one of them by `"all": true` and nothing else, so that a filter with
a forgotten value does not become all. Read like every body: camelCase is taken too, all faults are told at once, each
with a pointer.
"""

from typing import Annotated, Any, Final, Literal, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from ondot.document.errors import refuse
from ondot.document.fields import Body, Instant, JobIdText, PoolName, seen_text
from ondot.document.reading import read_form
from ondot.document.requests import run_payload
from ondot.flow.dead_letters import DEFAULT_PER_S
from ondot.flow.replay import Replay
from ondot.model.errors import Fault
from ondot.model.ids import ExecutionId
from ondot.store.dead_letters import LetterFilter

MOST_IDS: Final = 1_000
MOST_PER_S: Final = 1_000


def _execution_id(written: object) -> UUID:
    try:
        return UUID(written) if isinstance(written, str) else UUID("")
    except ValueError:
        raise ValueError('the id of an execution, for example "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"') from None


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("text that is not blank")
    return text.strip()


ExecutionIdText = Annotated[UUID, BeforeValidator(_execution_id), WithJsonSchema({"type": "string", "format": "uuid"})]
Reason = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(seen_text), AfterValidator(_not_blank)]
Version = Literal["same", "current"]


class FilterBody(Body):
    """Which open dead letters: all that is given must hold."""

    job_id: JobIdText | None = Field(default=None, description="Only letters of this job.")
    pool: PoolName | None = Field(default=None, description="Only letters of this pool.", examples=["default"])
    fingerprint: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None, description="Only errors that are alike: the `fingerprint` of a group.", examples=["906da43d173b"]
    )
    from_at: Instant | None = Field(default=None, description="Only what failed at or after this instant.")
    to_at: Instant | None = Field(default=None, description="Only what failed before this instant.")
    q: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="Part of the error's message, in any case.", examples=["connection refused"]
    )

    def as_filter(self) -> LetterFilter:
        return LetterFilter(**self.model_dump())


class _LettersBody(Body):
    ids: Annotated[list[ExecutionIdText], Field(min_length=1, max_length=MOST_IDS)] | None = Field(
        default=None, description="These letters, by the ids of their executions; done at once."
    )
    filter: FilterBody | None = Field(default=None, description="All open letters that match; done in the background.")
    all: bool = Field(default=False, description="Every open letter there is.")
    rate: Annotated[int, Field(ge=1, le=MOST_PER_S)] | None = Field(
        default=None, description=f"By filter: how many a second, {DEFAULT_PER_S} if left out.", examples=[50]
    )
    dry_run: bool = Field(default=False, description="Only count the letters.")

    @property
    def execution_ids(self) -> list[ExecutionId]:
        return [ExecutionId(id_) for id_ in dict.fromkeys(self.ids or ())]

    @property
    def letter_filter(self) -> LetterFilter:
        return self.filter.as_filter() if self.filter else LetterFilter()

    @property
    def per_s(self) -> int:
        return self.rate or DEFAULT_PER_S


class ReplayBody(_LettersBody):
    """Dead letters to run again."""

    payload: Any = Field(
        default=None, description="Run with this payload instead of the old ones.", examples=[{"region": "us"}]
    )
    version: Version = Field(
        default="same", description="By which version of the job: that which failed, or its current one."
    )
    reason: Reason | None = Field(default=None, description="Why; it is kept.", examples=["the database is back"])


class DiscardBody(_LettersBody):
    """Dead letters that nobody wants to run again."""

    reason: Reason = Field(description="Why; it is kept.", examples=["the orders were cancelled"])


class RetryExecutionBody(Body):
    """How an execution is run again."""

    payload: Any = Field(
        default=None, description="Of one that has ended: run with this payload.", examples=[{"region": "us"}]
    )
    version: Version = Field(default="same", description="Of one that has ended: by which version of its job.")
    reason: Reason | None = Field(default=None, description="Why; it is kept.")


def replay_request(raw: object) -> ReplayBody:
    return _which(read_form(ReplayBody, raw, 'for example {"ids": ["019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"]}'))


def discard_request(raw: object) -> DiscardBody:
    example = 'for example {"ids": ["019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"], "reason": "not needed any more"}'
    return _which(read_form(DiscardBody, raw, example))


def retry_request(raw: object) -> RetryExecutionBody:
    return (
        RetryExecutionBody() if raw is None else read_form(RetryExecutionBody, raw, 'for example {"payload": {"n": 1}}')
    )


def replay_of(body: ReplayBody | RetryExecutionBody) -> Replay:
    """How to run again; a payload of null is one, too."""
    payload = run_payload({"payload": body.payload}) if "payload" in body.model_fields_set else None
    return Replay(None if payload is None else bytes(payload).decode(), body.version == "current")


Letters = TypeVar("Letters", bound=_LettersBody)


def _which(body: Letters) -> Letters:
    """Exactly one way to say which letters."""
    is_filtered = body.filter is not None and not body.letter_filter.is_empty
    faults = []
    if body.ids is None and not is_filtered and not body.all:
        pointer, message = "", 'Say which letters: give `ids`, a `filter`, or `"all": true` for every open one.'
        if body.filter is not None:
            pointer, message = "/filter", f"`filter` is empty, which would be every letter. {message}"
        faults.append(Fault(pointer, message))
    if body.ids is not None and body.filter is not None:
        faults.append(Fault("/filter", "`filter` and `ids` are two ways to say which letters; give one of them."))
    if body.all and (body.ids is not None or is_filtered):
        other = "ids" if body.ids is not None else "filter"
        faults.append(Fault("/all", f"`all` means every open letter, and `{other}` only some; give one of them."))
    if body.ids is not None and body.rate is not None:
        faults.append(Fault("/rate", "`rate` is for a `filter`; letters by `ids` are done at once. Leave it out."))
    if faults:
        raise refuse(faults, all_of_schedule=False)
    return body
