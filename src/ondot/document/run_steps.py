"""Bodies of requests about a step of a run: decide it, make a link to it, change its map (W7, W8)."""

from typing import Annotated, Final

from pydantic import Field

from ondot.document.fields import Body, Duration, PlainText
from ondot.document.limits import AtOnce
from ondot.document.step_body import TolerateBody

A_DECISION: Final = 'for example {"reason": "checked by hand"}'
A_LINK: Final = 'for example {"expires_in": "24h"}'
A_MAP: Final = 'for example {"concurrency": 100, "tolerate": {"percent": 1}}'
DAY_S: Final = 86_400.0


class DecisionBody(Body):
    """Why a step is approved or rejected."""

    reason: PlainText | None = Field(default=None, description="Why; kept in the audit log.", examples=["checked"])


class LinkBody(Body):
    """How long a link works."""

    expires_in: Annotated[Duration, Field(gt=0, le=30 * DAY_S)] = Field(
        default=DAY_S, description="30 days at most.", examples=["24h"]
    )


class MapPatchBody(Body):
    """New limits of a map that runs. Fields that are left out stay as they are."""

    concurrency: AtOnce | None = Field(default=None, description="How many items run at once.", examples=[100])
    tolerate: TolerateBody | None = Field(
        default=None, description="How many items may fail before the step fails.", examples=[{"percent": 1}]
    )
