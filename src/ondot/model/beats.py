"""When a worker may trust a transport (C4, C5, L5): while numbered beats arrive through it without a gap.

The scheduler that owns partition 0 sends a beat twice a second through every transport that a pool uses, on the same
way as the hints. A worker that trusts the transports of all its pools asks PostgreSQL each 15 s while it has nothing to
do, else each second. Trust is lost at a gap in the numbers, after 0.9 s of silence, and when another node sends; it is
gained by three beats in a row. So a transport that is away delays work by less than a second.
"""

from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

BEAT_EVERY_S: Final = 0.5
SILENT_S: Final = 0.9
IN_A_ROW: Final = 3
POLL_S: Final = 1.0
RARE_POLL_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Beat:
    """`number` grows by 1 with each beat of a sender, a scheduler node."""

    sender: UUID
    number: int


@dataclass(frozen=True, slots=True)
class Heard:
    """What one listener has heard of a transport, for one pool: the last beat, when it came (monotonic), and how many
    came in a row."""

    last: Beat
    at_s: float
    in_a_row: int = 1
    gaps: int = 0
    """How often trust was lost that had been gained, by a gap, by silence or by another sender."""

    @property
    def trusted_until_s(self) -> float | None:
        """None: it is not trusted."""
        return self.at_s + SILENT_S if self.in_a_row >= IN_A_ROW else None

    def is_trusted(self, now_s: float) -> bool:
        return self.trusted_until_s is not None and now_s < self.trusted_until_s


def hear(heard: Heard | None, beat: Beat, now_s: float) -> Heard:
    """A beat has arrived. One that came before, or is older than the last, changes nothing: brokers repeat messages."""
    if heard is None:
        return Heard(beat, now_s)
    if beat.sender == heard.last.sender and beat.number <= heard.last.number:
        return heard
    follows = beat == replace(heard.last, number=heard.last.number + 1)
    if follows and now_s - heard.at_s < SILENT_S:
        return replace(heard, last=beat, at_s=now_s, in_a_row=heard.in_a_row + 1)
    return Heard(beat, now_s, gaps=heard.gaps + (heard.in_a_row >= IN_A_ROW))


def poll_at_s(asked_s: float, now_s: float, trusted_until_s: float | None) -> float:
    """When a worker with nothing to do decides again, if it last asked PostgreSQL at `asked_s`; all monotonic.

    While it trusts, that is when trust would end without another beat: it asks then only if trust has ended.
    """
    if trusted_until_s is None or trusted_until_s <= now_s:
        return asked_s + POLL_S
    return min(max(trusted_until_s, asked_s + POLL_S), asked_s + RARE_POLL_S)
