"""What is expected of a job, as people write it (O11)."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from ondot.document.fields import Body, Duration
from ondot.document.rules import DAY_S
from ondot.model.expect import WHICH, parse_wall_time

LONGEST_S = 366 * DAY_S


def _wall_time(text: str) -> str:
    return f"{parse_wall_time(text.strip()):%H:%M}"


Within = Annotated[Duration, Field(ge=1, le=7 * DAY_S)]
"""Up to the week that is looked back."""


class ExpectBody(Body):
    """What is expected of a job. A miss is recorded whatever its reason."""

    start_within: Within | None = Field(
        default=None, description="Its first attempt starts this long after it was due.", examples=["1m"]
    )
    end_within: Within | None = Field(
        default=None, description="It has succeeded this long after it was due.", examples=["30m"]
    )
    end_by: Annotated[str, Field(max_length=10), AfterValidator(_wall_time)] | None = Field(
        default=None,
        description="It has succeeded by this time of day in the schedule's zone: the first such time after the fire.",
        examples=["06:00"],
    )
    success_every: Annotated[Duration, Field(ge=60, le=LONGEST_S)] | None = Field(
        default=None, description="No two successes are further apart than this.", examples=["26h"]
    )

    @model_validator(mode="after")
    def _expects_something(self) -> Self:
        if all(getattr(self, name) is None for name in WHICH):
            raise ValueError(
                'at least one of start_within, end_within, end_by and success_every, for example {"end_by": "06:00"}'
            )
        return self
