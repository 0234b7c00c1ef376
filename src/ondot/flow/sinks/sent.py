"""How a batch of events for a sink went (E3)."""

from dataclasses import dataclass, field

from ondot.model.sink_event import SinkEvent


@dataclass(slots=True)
class Sent:
    """How a batch went. `failed`: the events that are to be sent again, in their order."""

    sent: int = 0
    shortened: int = 0
    refused: int = 0
    failed: list[SinkEvent] = field(default_factory=list)
    error: str | None = None
    refusal: str | None = None
    retry_after_s: float | None = None
