"""Requests about dead letters and retries (E10): which letters, and what to do with them.

Letters are named by `ids` or by a `filter`. All of them are named only by `"all": true`, so that a filter with a
forgotten value does not mean all. As in every body, camelCase is accepted, and all faults are reported at once, each
with a pointer.
"""

from typing import Annotated, Any, Final, Literal, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from ondot.document.errors import invalid_body
from ondot.document.fields import Body, Instant, JobIdText, PoolName, check_visible
from ondot.document.reading import read_form
from ondot.document.requests import run_payload
from ondot.flow.replay import Replay
from ondot.model.bulk import DEFAULT_PER_S, MOST_PER_S
from ondot.model.errors import Fault
from ondot.model.ids import ExecutionId
from ondot.model.query import parse
from ondot.model.query.parse import LONGEST
from ondot.store.dead_letters import LetterFilter

MOST_IDS: Final = 1_000


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
Reason = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(check_visible), AfterValidator(_not_blank)]
Version = Literal["same", "current"]


class FilterBody(Body):
    """Which open dead letters: a letter matches if all given fields match."""

    job_id: JobIdText | None = Field(default=None, description="Only letters of this job.")
    pool: PoolName | None = Field(default=None, description="Only letters of this pool.", examples=["default"])
    fingerprint: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None, description="Only similar errors: the `fingerprint` of a group.", examples=["906da43d173b"]
    )
    from_at: Instant | None = Field(default=None, description="Only letters that failed at or after this instant.")
    to_at: Instant | None = Field(default=None, description="Only letters that failed before this instant.")
    q: Annotated[str, Field(min_length=1, max_length=LONGEST)] | None = Field(
        default=None,
        description="Only letters that match this query; a word is a part of the error's message.",
        examples=['"connection refused" since:24h'],
    )

    def as_filter(self) -> LetterFilter:
        """Raises InvalidQuery."""
        if self.q is not None:
            parse(self.q, "dead_letters")
        return LetterFilter(**self.model_dump())


class _LettersBody(Body):
    ids: Annotated[list[ExecutionIdText], Field(min_length=1, max_length=MOST_IDS)] | None = Field(
        default=None, description="These letters, by the ids of their executions; they are changed at once."
    )
    filter: FilterBody | None = Field(
        default=None, description="All open letters that match; they are changed in the background."
    )
    all: bool = Field(default=False, description="Every open letter.")
    rate: Annotated[int, Field(ge=1, le=MOST_PER_S)] | None = Field(
        default=None, description=f"With a filter: how many a second. Default: {DEFAULT_PER_S}.", examples=[50]
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
        default="same", description="The version of the job to run: the one that failed, or the current one."
    )
    reason: Reason | None = Field(default=None, description="Why; it is stored.", examples=["the database is back"])


class DiscardBody(_LettersBody):
    """Dead letters that are not run again."""

    reason: Reason = Field(description="Why; it is stored.", examples=["the orders were cancelled"])


class RetryExecutionBody(Body):
    """How an execution is run again."""

    payload: Any = Field(
        default=None, description="For an execution that has ended: run with this payload.", examples=[{"region": "us"}]
    )
    version: Version = Field(
        default="same", description="For an execution that has ended: the version of its job to run."
    )
    reason: Reason | None = Field(default=None, description="Why; it is stored.")


def replay_request(raw: object) -> ReplayBody:
    return _check_letters(read_form(ReplayBody, raw, 'for example {"ids": ["019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"]}'))


def discard_request(raw: object) -> DiscardBody:
    example = 'for example {"ids": ["019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"], "reason": "not needed any more"}'
    return _check_letters(read_form(DiscardBody, raw, example))


def retry_request(raw: object) -> RetryExecutionBody:
    return (
        RetryExecutionBody() if raw is None else read_form(RetryExecutionBody, raw, 'for example {"payload": {"n": 1}}')
    )


def replay_of(body: ReplayBody | RetryExecutionBody) -> Replay:
    """How to run again; null is a payload too."""
    payload = run_payload({"payload": body.payload}) if "payload" in body.model_fields_set else None
    return Replay(None if payload is None else bytes(payload).decode(), body.version == "current")


Letters = TypeVar("Letters", bound=_LettersBody)


def _check_letters(body: Letters) -> Letters:
    """The body, if it names the letters in exactly one way."""
    is_filtered = body.filter is not None and not body.letter_filter.is_empty
    faults = []
    if body.ids is None and not is_filtered and not body.all:
        pointer, message = "", 'No letters are named: give `ids`, a `filter`, or `"all": true` for every open one.'
        if body.filter is not None:
            pointer, message = "/filter", f"`filter` is empty, which would mean every letter. {message}"
        faults.append(Fault(pointer, message))
    if body.ids is not None and body.filter is not None:
        faults.append(Fault("/filter", "`filter` and `ids` exclude each other; give one of them."))
    if body.all and (body.ids is not None or is_filtered):
        other = "ids" if body.ids is not None else "filter"
        faults.append(Fault("/all", f"`all` means every open letter, `{other}` only some; give one of them."))
    if body.ids is not None and body.rate is not None:
        faults.append(Fault("/rate", "`rate` is for a `filter`; letters by `ids` are changed at once. Leave it out."))
    if faults:
        raise invalid_body(faults, all_of_schedule=False)
    return body
