"""The kinds of alerts (O4): one table for checks, the API's schema, the command's help, the form and the reference.

A *state* holds until it is over: letters are open, a worker is missing. An *event* happened at an instant, such as a
missed fire: it counts as holding for `EVENT_S` after the last one, so that a row of them is one incident.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

EVENT_S: Final = 900.0
LONGEST_S: Final = 30 * 86_400.0


class About(StrEnum):
    """What one cause is about, and so which scopes an alert may have."""

    JOB = "job"
    POOL = "pool"
    TENANT = "tenant"
    INSTALLATION = "installation"
    """Only owners define such an alert: other tenants could see it too."""


class Form(StrEnum):
    """How a threshold is written."""

    COUNT = "count"
    DURATION = "duration"
    POOL = "pool"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Threshold:
    name: str
    form: Form
    says: str
    example: object
    least: float = 0
    default: object = None
    """None: it must be given."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    about: About
    says: str
    thresholds: tuple[Threshold, ...] = ()
    is_event: bool = False
    condition: bool = False
    """Its causes are rows of `condition` of the same kind."""

    @property
    def example(self) -> dict[str, Any]:
        return {self.name: {threshold.name: threshold.example for threshold in self.thresholds}}


_KINDS: Final = (
    Kind(
        "dead_letters",
        About.JOB,
        "More dead letters of the jobs in scope are open than the threshold.",
        (Threshold("over", Form.COUNT, "How many may be open.", 10),),
    ),
    Kind(
        "failing",
        About.JOB,
        "A job's last executions have all failed.",
        (Threshold("in_a_row", Form.COUNT, "How many.", 3, least=1),),
    ),
    Kind(
        "failures",
        About.JOB,
        "More executions of the jobs in scope failed within a time than the threshold, handled since or not.",
        (
            Threshold("over", Form.COUNT, "How many may fail.", 20),
            Threshold("within", Form.DURATION, "In which time.", "1h", least=10),
        ),
    ),
    Kind(
        "lateness",
        About.JOB,
        "A fire of a job has not started though it is due, whatever holds it back.",
        (Threshold("over", Form.DURATION, "How late it may be.", "1m", least=1),),
    ),
    Kind(
        "oldest_wait",
        About.POOL,
        "An execution that may start waits for a worker of its pool.",
        (
            Threshold("over", Form.DURATION, "How long it may wait.", "5m", least=1),
            Threshold("held_back", Form.FLAG, "Also executions behind a limit.", True, default=False),
        ),
    ),
    Kind(
        "workers",
        About.POOL,
        "Fewer workers serve a pool than the threshold.",
        (
            Threshold("below", Form.COUNT, "How many must be alive.", 1, least=1),
            Threshold("pool", Form.POOL, "Which pool.", "default", default="default"),
        ),
    ),
    Kind(
        "missed_schedule",
        About.JOB,
        "Fires of a job were missed: no scheduler planned them in time.",
        is_event=True,
    ),
    Kind("expectation", About.JOB, "A job missed what its `expect` states, or will.", condition=True),
    Kind("blocked_run", About.JOB, "A run of a workflow, or a job that depends on others, waits for a person."),
    Kind("ping", About.TENANT, "A ping did not arrive in time, or reported a failure.", condition=True),
    Kind(
        "quota",
        About.TENANT,
        "A quota of the tenant is reached: requests are refused, or work waits for it.",
        condition=True,
    ),
    Kind("delivery", About.TENANT, "A channel fails: its messages are not delivered.", condition=True),
    Kind("sink", About.TENANT, "A sink fails: its events are not delivered, and wait.", condition=True),
    Kind("database", About.INSTALLATION, "A scheduler could not reach the database.", condition=True),
    Kind(
        "transport",
        About.INSTALLATION,
        "A worker gets no wake-ups, and finds its work by polling only.",
        condition=True,
    ),
    Kind("disk", About.INSTALLATION, "The disk of the database is nearly full.", condition=True),
    Kind("archive", About.INSTALLATION, "Old days cannot be archived, so they are kept.", condition=True),
    Kind(
        "self_check",
        About.INSTALLATION,
        "The self-check found and repaired a row that nothing would have moved on.",
        is_event=True,
    ),
)

KINDS: Final[Mapping[str, Kind]] = MappingProxyType({kind.name: kind for kind in _KINDS})
