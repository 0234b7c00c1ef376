"""Saved views as people write them (O1): a name, what is listed, and a query."""

from typing import Annotated, Final

from pydantic import Field

from ondot.document.errors import invalid_body
from ondot.document.fields import Body, PlainText
from ondot.document.reading import read_form
from ondot.model.errors import Fault
from ondot.model.query import Of
from ondot.model.query.parse import LONGEST

EXAMPLE: Final = 'for example {"name": "failed tonight", "of": "executions", "q": "state:failed since:12h"}'

QueryText = Annotated[str, Field(min_length=1, max_length=LONGEST)]


class ViewBody(Body):
    """A new view: a query with a name."""

    name: PlainText = Field(description="For people.", examples=["failed tonight"])
    of: Of = Field(description="What it lists.", examples=["executions"])
    q: QueryText = Field(description="The query.", examples=["state:failed since:12h"])
    shared: bool = Field(
        default=False, description="Of the whole tenant; needs the right `jobs:write`. Default: the caller's own."
    )


class ViewPatchBody(Body):
    """What changes of a view."""

    name: PlainText | None = Field(default=None, description="Another name.", examples=["failed last night"])
    q: QueryText | None = Field(default=None, description="Another query.", examples=["state:failed since:24h"])
    shared: bool | None = Field(
        default=None, description="Share it with the whole tenant, or make it the caller's own again."
    )


def read_view(raw: object) -> ViewBody:
    """Raises InvalidBody."""
    return read_form(ViewBody, raw, EXAMPLE)


def read_view_patch(raw: object) -> ViewPatchBody:
    """Raises InvalidBody."""
    body = read_form(ViewPatchBody, raw, 'for example {"q": "state:failed since:24h"}')
    if body == ViewPatchBody():
        raise invalid_body([Fault("", "Nothing changes: give `name`, `q` or `shared`.")], all_of_schedule=False)
    return body
