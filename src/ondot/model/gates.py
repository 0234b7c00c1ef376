"""Which gates an execution passes before it may start (E12, E13, E16): overlap, order, concurrency and rates.

An execution of a limited job passes its gates one after another, in the same order for all, so that two never wait for
each other: overlap of its job, order by key, concurrency of its job, concurrency by key, rate of its job, rate by key.
Each gate except a rate gives it a slot: until its end for order and overlap, otherwise for the attempt. A rate takes a
token for each attempt. The id of a gate is derived from its purpose, so it needs no look-up. Each distinct rate of a
job or key has its own gate and bucket: an execution takes no token of another rate and does not wait behind it.
"""

import hashlib
import re
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


def split_rate(text: str) -> tuple[int, str] | None:
    """The limit and the time of `10/1m`, `5/s`, `100/hour`, without a check of bounds. None: this is no rate."""
    found = _RATE.fullmatch(text)
    if found is None:
        return None
    per = _UNITS.get(found[2].lower(), found[2])
    try:
        seconds(per)
    except ValueError:
        return None
    return int(found[1]), per


class Limits(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits of a job's executions. Those by key hold for all jobs that name the key."""

    overlap: Overlap = "allow"
    order_key: str | None = None
    concurrency: int | None = None
    rate: Rate | None = None
    key: str | None = None
    key_concurrency: int | None = None
    key_rate: Rate | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One gate of an execution, and how it passes there."""

    gate: UUID
    kind: GateKind
    name: str
    limit: int | None = None
    until_end: bool = False
    overlap: Overlap | None = None
    rate: Rate | None = None
    of: UUID | None = None
    """For a rate: the id of the job or key that it limits. Older releases had one gate of this id for all rates."""

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
    """The same id as `ondot.rate_gate` returns."""
    name = f"{of}/{round(rate.every_s * 1e9)}/{rate.burst}"
    return UUID(bytes=hashlib.md5(name.encode(), usedforsecurity=False).digest())


def list_stages(limits: Limits, tenant_no: TenantNo, job_id: JobId | str) -> list[Stage]:
    """The gates of an execution of this job, in the order in which it passes them. Of a step: `<job>/<step>`."""
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
    """The rates of a job, or of a key that it keeps, that an update changes: each before and after."""
    if old is None or new is None:
        return []
    was = {stage.of: stage for stage in list_stages(old, tenant_no, job_id) if stage.of is not None}
    now = list_stages(new, tenant_no, job_id)
    return [(was[stage.of], stage) for stage in now if stage.of in was and was[stage.of].gate != stage.gate]


def encode_stages(limits: Limits | None, tenant_no: TenantNo, job_id: JobId | str) -> str | None:
    """The gates of an execution, as JSON that is stored with it and never changes. None: it passes none."""
    if limits is None:
        return None
    passed = list_stages(limits, tenant_no, job_id)
    return msgspec.json.encode([stage.as_dict() for stage in passed]).decode() if passed else None
