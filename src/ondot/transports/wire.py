"""How a hint and a beat look on the wire, for every transport between processes (C4): one line of text each.

A message that cannot be parsed is of another release, or of another program: it is counted and ignored, and polling
finds its work.
"""

from datetime import datetime
from uuid import UUID

from ondot.model.beats import Beat
from ondot.model.ids import PoolNo
from ondot.ports.transport import OnBeat, OnWake, Wake
from ondot.telemetry.metrics import HINTS_RECEIVED, HINTS_UNREADABLE

LONGEST: int = 200
"""Bytes of a message: anything longer is none of ours."""
LARGEST_POOL_NO: int = 2**31 - 1


def encode_wake(wake: Wake) -> bytes:
    return f"wake {wake.pool_no} {wake.ready_at.isoformat()}".encode()


def encode_beat(beat: Beat, pool_no: PoolNo) -> bytes:
    return f"beat {pool_no} {beat.sender} {beat.number}".encode()


def receive(transport: str, message: bytes, on_wake: OnWake, on_beat: OnBeat) -> None:
    """Hand on what a message says."""
    match decode(message):
        case Wake() as wake:
            HINTS_RECEIVED.labels(transport).inc()
            on_wake(wake)
        case (Beat() as beat, pool_no):
            on_beat(beat, pool_no)
        case None:
            HINTS_UNREADABLE.labels(transport).inc()


def decode(message: bytes) -> Wake | tuple[Beat, PoolNo] | None:
    """None: it is no message of ours."""
    if len(message) > LONGEST:
        return None
    try:
        match message.decode("ascii").split(" "):
            case ["wake", pool_no, ready_at]:
                return Wake(parse_pool_no(pool_no), parse_instant(ready_at))
            case ["beat", pool_no, sender, number]:
                return Beat(UUID(sender), int(number)), parse_pool_no(pool_no)
            case _:
                return None
    except ValueError:
        return None


def parse_pool_no(written: str) -> PoolNo:
    number = int(written)
    if not 0 < number <= LARGEST_POOL_NO:
        raise ValueError(f"{number} is no number of a pool")
    return PoolNo(number)


def parse_instant(written: str) -> datetime:
    instant = datetime.fromisoformat(written)
    if instant.tzinfo is None:
        raise ValueError(f"{written} lacks its zone")
    return instant
