"""Requests for operations on many executions, jobs, dead letters or runs (O8): on what, which action, how fast.

The items are named by `ids` or by a query `q`. All of them are named only by `"all": true`, so that a query with a
forgotten value does not mean all.
"""

from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from ondot.document.errors import invalid_body
from ondot.document.fields import Body, check_visible
from ondot.document.reading import read_form
from ondot.document.rules import MAX_LABEL_NAME, MAX_LABEL_VALUE, MAX_LABELS
from ondot.model.bulk import DEFAULT_PER_S, MOST_IDS, MOST_PER_S, RIGHTS, BulkAction, Kind
from ondot.model.errors import Fault
from ondot.model.job import Priority

MAX_QUERY: Final = 2_000
_EXAMPLE: Final = 'for example {"of": "jobs", "action": "pause", "ids": ["019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"]}'


def _read_id(written: object) -> UUID:
    try:
        return UUID(written) if isinstance(written, str) else UUID("")
    except ValueError:
        raise ValueError('an id, for example "019a8453-5d2e-7c11-a0b3-6f1e2d3c4b5a"') from None


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("text that is not blank")
    return text.strip()


ItemId = Annotated[UUID, BeforeValidator(_read_id), WithJsonSchema({"type": "string", "format": "uuid"})]
Text = Annotated[str, AfterValidator(check_visible), AfterValidator(_not_blank)]
LabelChanges = Annotated[
    dict[
        Annotated[str, Field(min_length=1, max_length=MAX_LABEL_NAME), AfterValidator(check_visible)],
        Annotated[str, Field(max_length=MAX_LABEL_VALUE), AfterValidator(check_visible)] | None,
    ],
    Field(min_length=1, max_length=MAX_LABELS),
]


class SetBody(Body):
    """What an update changes of each job."""

    labels: LabelChanges | None = Field(
        default=None,
        description="Labels to set; null removes one. Other labels stay.",
        examples=[{"team": "bi", "old": None}],
    )
    priority: Priority | None = Field(default=None, description="The new priority.", examples=["high"])


class BulkBody(Body):
    """An operation on many at once."""

    of: Kind = Field(description="What it changes.", examples=["jobs"])
    action: BulkAction = Field(
        description="; ".join(f"{kind}: {', '.join(actions)}" for kind, actions in RIGHTS.items()) + ".",
        examples=["pause"],
    )
    ids: Annotated[list[ItemId], Field(min_length=1, max_length=MOST_IDS)] | None = Field(
        default=None, description="These items."
    )
    q: Annotated[str, Field(min_length=1, max_length=MAX_QUERY)] | None = Field(
        default=None, description="All items that match this query now.", examples=["label.team=bi"]
    )
    all: bool = Field(default=False, description="Every item.")
    set: SetBody | None = Field(default=None, description="For `update`: what to change.")
    per_s: Annotated[float, Field(ge=0.01, le=MOST_PER_S)] | None = Field(
        default=None, description=f"How many items a second. Default: {DEFAULT_PER_S}.", examples=[50]
    )
    dry_run: bool = Field(
        default=False, description="Only count the items, and list what would be refused. Nothing changes."
    )
    reason: Annotated[Text, Field(max_length=500)] | None = Field(
        default=None, description="Why; kept in the audit log. `discard` needs one.", examples=["wrong region"]
    )

    @property
    def unique_ids(self) -> list[UUID] | None:
        return None if self.ids is None else list(dict.fromkeys(self.ids))

    @property
    def change(self) -> dict[str, Any] | None:
        return None if self.set is None else self.set.model_dump(exclude_unset=True)


class UndoBody(Body):
    """Why an operation is undone."""

    reason: Annotated[Text, Field(max_length=500)] | None = Field(
        default=None, description="Why; kept in the audit log.", examples=["the release is over"]
    )


def undo_request(raw: object) -> UndoBody:
    return UndoBody() if raw is None else read_form(UndoBody, raw, 'for example {"reason": "the release is over"}')


def bulk_request(raw: object) -> BulkBody:
    """The body, if it names the items in exactly one way and the action fits them."""
    body = read_form(BulkBody, raw, _EXAMPLE)
    faults = []
    actions = RIGHTS[body.of]
    if body.action not in actions:
        message = f"`action` {body.action!r} is not possible for {body.of}. Use one of: {', '.join(actions)}."
        faults.append(Fault("/action", message))
    named = [name for name, is_given in (("ids", body.ids), ("q", body.q), ("all", body.all)) if is_given]
    if not named:
        faults.append(Fault("", 'No items are named: give `ids`, a query `q`, or `"all": true` for every one.'))
    elif len(named) > 1:
        faults.append(Fault(f"/{named[1]}", f"`{named[0]}` and `{named[1]}` exclude each other; give one of them."))
    if body.action == "update" and not body.change:
        faults.append(Fault("/set", '`set` is missing: write what to change, for example {"priority": "high"}.'))
    if body.action != "update" and body.set is not None:
        faults.append(Fault("/set", f"`set` is for the action `update`, not for {body.action!r}. Leave it out."))
    if body.action == "discard" and body.reason is None:
        faults.append(Fault("/reason", "`reason` is missing: state why the letters are discarded."))
    if faults:
        raise invalid_body(faults, all_of_schedule=False)
    return body
