"""A deliberate delay, so that many jobs do not start at the same instant (S5).

The offset comes from the job's id alone: the same at every fire, on every node, after every restart; never early. It is
a hash and not the id's bits, so it is evenly distributed even for ids created in one millisecond.
"""

from datetime import datetime, timedelta
from hashlib import blake2b
from uuid import UUID


def jitter_offset(job_id: UUID, jitter_s: float, fire_at: datetime | None = None) -> timedelta:
    """Between zero and `jitter_s`, both included. With `fire_at`: a different one for each fire, repeatable."""
    window_us = round(jitter_s * 1_000_000)
    if window_us <= 0:
        return timedelta(0)
    seed = job_id.bytes if fire_at is None else job_id.bytes + fire_at.timestamp().hex().encode()
    hashed = int.from_bytes(blake2b(seed, digest_size=8, person=b"ondot-jitter").digest(), "big")
    return timedelta(microseconds=hashed * (window_us + 1) >> 64)
