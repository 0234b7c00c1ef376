"""Pings as people write them (O4): a name, and a `period` or a `schedule`, with a `grace`."""

from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field

from ondot.document.channels import ChannelName
from ondot.document.fields import Body, Duration
from ondot.document.reading import read_form
from ondot.document.requests import preview_request
from ondot.model.errors import Fault, InvalidBody
from ondot.model.ping import Expected
from ondot.model.schedule import OnEvent

EXAMPLE: Final = 'for example {"name": "backup", "period": "1d", "grace": "1h"}'
LONGEST_S: Final = 366 * 86_400.0


def _period(seconds: float) -> float:
    if not 1 <= seconds <= LONGEST_S:
        raise ValueError('a duration from 1 second to a year, for example "1d"')
    return seconds


class PingBody(Body):
    """A new ping."""

    name: ChannelName = Field(description="For people and alerts.", examples=["backup"])
    period: Annotated[Duration, AfterValidator(_period)] | None = Field(
        default=None, description="A call is expected this long after the one before.", examples=["1d"]
    )
    schedule: Any = Field(
        default=None,
        description="Or: when calls are expected, as the schedule of a job.",
        examples=[{"cron": "0 3 * * *", "timezone": "Europe/Berlin"}],
    )
    grace: Annotated[Duration, AfterValidator(_period)] = Field(
        default=300.0,
        description="How much later a call may come; and how long a run may take after its `start`.",
        examples=["1h"],
    )


def read_ping(raw: object, now: datetime) -> tuple[str, Expected]:
    """The name of a new ping, and when it expects calls. Raises InvalidBody."""
    body = read_form(PingBody, raw, EXAMPLE)
    if (body.period is None) == (body.schedule is None):
        message = f"A ping has either a `period` or a `schedule`, {EXAMPLE}."
        raise InvalidBody(message, (Fault("", message),))
    schedule = None
    if body.schedule is not None:
        schedule, _, _ = preview_request({"schedule": body.schedule}, now)
        if isinstance(schedule.when, OnEvent):
            message = "A ping cannot wait for an event: use `cron`, `every` or `rrule`."
            raise InvalidBody(message, (Fault("/schedule/event", message),))
    return body.name, Expected(schedule, body.period, body.grace)
