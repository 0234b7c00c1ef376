"""What an alert found (O4)."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that holds now. `key`: unique in its alert, and the same as long as it is the same thing. `reason`:
    causes of an alert with the same reason are one incident. `subject`: what it is about, for people."""

    kind: str
    key: str
    reason: str
    subject: str
    message: str
    since: datetime
    job_id: UUID | None = None
    pool: str | None = None
    details: dict[str, Any] = field(default_factory=dict)
    many: str = ""
    """What several jobs with this reason have in common, after "12 jobs"."""
    sent_to: tuple[str, ...] = ()
    """Channels that know it already."""
