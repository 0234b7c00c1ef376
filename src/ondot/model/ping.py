"""Pings (O4): watch jobs that ondot does not run, such as a cron job or a backup. Such a job calls a URL when it
starts, succeeds or fails; a call that does not come is late. Everything is pure.

A token is `ondp_`, 160 random bits and a checksum, as that of a hook, and is stored as a hash.
"""

import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal

from ondot.model.keys import ALPHABET, CHECKSUM_LENGTH, RANDOM_LENGTH, checksum_of
from ondot.model.schedule import Schedule, next_fire

PREFIX: Final = "ondp_"
LONGEST_BODY: Final = 10_000
"""Bytes of a call that are kept."""
MOST_EXIT_CODE: Final = 255

_TOKEN: Final = re.compile(rf"{PREFIX}[0-9A-Za-z]{{{RANDOM_LENGTH + CHECKSUM_LENGTH}}}", re.ASCII)
_EXIT_CODE: Final = re.compile(r"[0-9]{1,3}", re.ASCII)

CallKind = Literal["start", "success", "fail", "log"]


class PingState(StrEnum):
    NEW = "NEW"
    """It was never called: it cannot be late."""
    UP = "UP"
    LATE = "LATE"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Expected:
    """When calls are expected: by a schedule, or a period after the last. A call is late after the grace."""

    schedule: Schedule | None
    period_s: float | None
    grace_s: float

    def due_after(self, at: datetime) -> datetime | None:
        """When the call after one at this instant is late; None: no further call is expected."""
        if self.schedule is not None:
            fire_at = next_fire(self.schedule, at)
            return None if fire_at is None else fire_at + timedelta(seconds=self.grace_s)
        return at + timedelta(seconds=(self.period_s or 0.0) + self.grace_s)


@dataclass(frozen=True, slots=True)
class Standing:
    """How a ping stands. `started_at`: a run has started and not ended. `took_s`: how long the last run took."""

    state: PingState
    due_at: datetime | None
    started_at: datetime | None
    took_s: float | None


def after_call(standing: Standing, kind: CallKind, expected: Expected, at: datetime) -> Standing:
    """How it stands after a call. A run that has started must end within the grace; a log line changes nothing."""
    match kind:
        case "log":
            return standing
        case "start":
            return Standing(standing.state, at + timedelta(seconds=expected.grace_s), at, standing.took_s)
        case "success" | "fail":
            started_at = standing.started_at
            took_s = None if started_at is None else max((at - started_at).total_seconds(), 0.0)
            state = PingState.UP if kind == "success" else PingState.FAILED
            return Standing(state, expected.due_after(at), None, took_s)


def read_kind(what: str) -> tuple[CallKind, int | None] | None:
    """The end of a URL: nothing, `start`, `fail`, `log` or an exit code; None: it is none of them."""
    match what:
        case "":
            return "success", None
        case "start":
            return "start", None
        case "fail":
            return "fail", None
        case "log":
            return "log", None
        case _ if _EXIT_CODE.fullmatch(what) and int(what) <= MOST_EXIT_CODE:
            return ("success" if int(what) == 0 else "fail"), int(what)
        case _:
            return None


def new_token() -> str:
    unchecked = PREFIX + "".join(secrets.choice(ALPHABET) for _ in range(RANDOM_LENGTH))
    return unchecked + checksum_of(unchecked)


def is_token(text: str) -> bool:
    """Whether it is worth a look at the database: its form and its checksum are right."""
    return _TOKEN.fullmatch(text) is not None and checksum_of(text[:-CHECKSUM_LENGTH]) == text[-CHECKSUM_LENGTH:]
