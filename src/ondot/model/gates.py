"""Which gates an execution passes before it may start (E12, E13, E16): overlap, order, concurrency and rates.

A limited job's execution passes its gates one after another, in one order for all, so that two never wait for each
other's: overlap of its job, order by key, concurrency of its job, concurrency by key, rate of its job, rate by key.
Behind each gate but a rate it holds a slot: to its end for order and overlap, for the attempt otherwise. A rate takes a
token for each attempt. The ids are made of what the gate is for, so nobody has to look one up. Each distinct rate of a
job or key has a gate and a bucket of its own: what starts by one rate takes no token from another, nor waits behind it.
What people write for a limit, `"10/1m"`, is read here too, for the API, the SDK and the command line alike.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal
from uuid import UUID, uuid5

import msgspec
from msgspec import Struct

from ondot.model.duration import seconds
from ondot.model.ids import JobId, TenantNo

MAX_AT_ONCE: Final = 10_000
MAX_IN_A_TIME: Final = 1_000_000
LONGEST_PER_S: Final = 30 * 86_400

RATE_EXPECTED: Final = 'a limit in a time of 1 second to 30 days: "10/1m", or {"limit": 10, "per": "1m", "burst": 1}'

_RATE: Final = re.compile(r"\s*(\d{1,9})\s*/\s*(.+?)\s*", re.ASCII)
_UNITS: Final = {"s": "1s", "second": "1s", "m": "1m", "minute": "1m", "h": "1h", "hour": "1h", "d": "1d", "day": "1d"}

GateKind = Literal["order", "overlap", "concurrency", "rate"]
Overlap = Literal["allow", "skip", "queue", "cancel"]

_NAMESPACE = UUID("6f6e646f-7400-5000-8000-676174650000")


class Rate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token bucket: `limit` tokens in `per_s` seconds, at most `burst` of them at once."""

    limit: int
    per_s: float
    burst: int = 1

    @property
    def every_s(self) -> float:
        return self.per_s / self.limit


def parts_of_rate(text: str) -> tuple[int, str] | None:
    """The limit and the time of `10/1m`, `5/s`, `100/hour`; None if it is none. Bounds are not looked at."""
    found = _RATE.fullmatch(text)
    if found is None:
        return None
    per = _UNITS.get(found[2].lower(), found[2])
    try:
        seconds(per)
    except ValueError:
        return None
    return int(found[1]), per


def rate_of(written: object) -> Rate:
    """A rate as people write it, as text or in full. Raises ValueError, with what was expected as its text."""
    if isinstance(written, str) and (parts := parts_of_rate(written)) is not None:
        written = {"limit": parts[0], "per": parts[1]}
    if not isinstance(written, Mapping) or not {"limit", "per"} <= written.keys() <= {"limit", "per", "burst"}:
        raise ValueError(RATE_EXPECTED)
    limit, burst = written["limit"], written.get("burst", 1)
    try:
        per_s = seconds(written["per"])
    except ValueError:
        raise ValueError(RATE_EXPECTED) from None
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in (limit, burst))
    if not whole or not 1 <= burst <= limit <= MAX_IN_A_TIME or not 1 <= per_s <= LONGEST_PER_S:
        raise ValueError(RATE_EXPECTED)
    return Rate(limit=limit, per_s=per_s, burst=burst)


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What limits the executions of a job. Those by key hold for all jobs that name the key."""

    overlap: Overlap = "allow"
    order_key: str | None = None
    concurrency: int | None = None
    rate: Rate | None = None
    key: str | None = None
    key_concurrency: int | None = None
    key_rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One gate of an execution, and how it is passed there."""

    gate: UUID
    kind: GateKind
    name: str
    limit: int | None = None
    until_end: bool = False
    overlap: Overlap | None = None
    rate: Rate | None = None
    of: UUID | None = None
    """Of a rate: what it limits, its job or key. The releases before had one gate under this id for all its rates."""

    def as_dict(self) -> dict[str, Any]:
        stage: dict[str, Any] = {"gate": str(self.gate), "kind": self.kind, "name": self.name}
        if self.limit is not None:
            stage |= {"limit": self.limit, "until_end": self.until_end}
        if self.overlap is not None:
            stage["overlap"] = self.overlap
        if self.rate is not None:
            stage |= {"every_s": self.rate.every_s, "burst": self.rate.burst, "of": str(self.of)}
        return stage


def gate_id(tenant_no: TenantNo, kind: GateKind, name: str) -> UUID:
    return uuid5(_NAMESPACE, f"{tenant_no}/{kind}/{name}")


def rate_gate(of: UUID, rate: Rate) -> UUID:
    """As `ondot.rate_gate` makes it."""
    name = f"{of}/{round(rate.every_s * 1e9)}/{rate.burst}"
    return UUID(bytes=hashlib.md5(name.encode(), usedforsecurity=False).digest())


def stages(limits: Limits, tenant_no: TenantNo, job_id: JobId) -> list[Stage]:
    """The gates of an execution of this job, in the order in which it passes them."""
    job = f"job:{job_id}"
    passed: list[Stage] = []
    if limits.overlap != "allow":
        gate = gate_id(tenant_no, "overlap", job)
        limit = limits.concurrency or 1
        passed.append(Stage(gate, "overlap", job, limit=limit, until_end=True, overlap=limits.overlap))
    if limits.order_key is not None:
        name = f"key:{limits.order_key}"
        passed.append(Stage(gate_id(tenant_no, "order", name), "order", name, limit=1, until_end=True))
    if limits.overlap == "allow" and limits.concurrency is not None:
        passed.append(Stage(gate_id(tenant_no, "concurrency", job), "concurrency", job, limit=limits.concurrency))
    name = f"key:{limits.key}"
    if limits.key_concurrency is not None:
        passed.append(Stage(gate_id(tenant_no, "concurrency", name), "concurrency", name, limit=limits.key_concurrency))
    if limits.rate is not None:
        passed.append(_rate_stage(tenant_no, job, limits.rate))
    if limits.key_rate is not None:
        passed.append(_rate_stage(tenant_no, name, limits.key_rate))
    return passed


def _rate_stage(tenant_no: TenantNo, name: str, rate: Rate) -> Stage:
    of = gate_id(tenant_no, "rate", name)
    return Stage(rate_gate(of, rate), "rate", name, rate=rate, of=of)


def changed_rates(
    old: Limits | None, new: Limits | None, tenant_no: TenantNo, job_id: JobId
) -> list[tuple[Stage, Stage]]:
    """The rates of a job, or of a key that it keeps, that an update changes: each as it was, and as it is."""
    if old is None or new is None:
        return []
    was = {stage.of: stage for stage in stages(old, tenant_no, job_id) if stage.of is not None}
    now = stages(new, tenant_no, job_id)
    return [(was[stage.of], stage) for stage in now if stage.of in was and was[stage.of].gate != stage.gate]


def encoded_stages(limits: Limits | None, tenant_no: TenantNo, job_id: JobId) -> str | None:
    """As they are stored with an execution; None: it passes none."""
    if limits is None:
        return None
    passed = stages(limits, tenant_no, job_id)
    return msgspec.json.encode([stage.as_dict() for stage in passed]).decode() if passed else None
