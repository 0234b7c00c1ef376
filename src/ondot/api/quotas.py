"""Quotas of a tenant that are checked when it sends something (T1): live jobs, payloads, creates and events by rate.

A request over a quota is refused whole, and says which quota and when to send it again. A repeated request (its
Idempotency-Key is known) gets its answer all the same. A tenant without quotas costs nothing here, not even a
statement.

Rates have one bucket in the database for all API processes. A process takes tokens from it in portions of what the rate
allows in a tenth of a second, and drops what it has not used after a second. So a tenant gets at most one such portion
more than its rate for each API process. After a refusal a process refuses the next requests by itself, until there are
tokens again. Jobs that were not created (they existed) give their tokens back to the portion.

Live jobs are counted by the housekeeper each second (`flow.job_counts`), and here, if it has not done so for 10 s. A
process adds what it has accepted since. So the quota may be exceeded by what other processes accept in a second.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Final

from ondot.flow.alerts.conditions import report_condition
from ondot.flow.idempotency import Idempotency
from ondot.flow.submit import OnCreated
from ondot.model.errors import QuotaExceeded, TooLarge, Unavailable
from ondot.model.gates import Rate
from ondot.model.ids import TenantNo
from ondot.model.job import JobSpec
from ondot.model.tenant import NO_QUOTAS, TENANTS_SHOWN, Tenant
from ondot.model.workflow.spec import WorkflowTarget
from ondot.store.database import Database
from ondot.store.idempotency import find_keys_in_use, has_key
from ondot.store.quotas import count_jobs, read_job_count, take_tokens
from ondot.telemetry.metrics import QUOTA_REFUSALS, TENANT_QUOTA_REFUSALS

PORTION_S: Final = 0.1
KEPT_S: Final = 1.0
READ_EVERY_S: Final = 1.0
COUNTED_BY_OTHERS: Final = timedelta(seconds=10)
JOBS_AGAIN_S: Final = 5
REPORT_EVERY_S: Final = 15.0
REACHED_S: Final = 60.0
TENANTS_KEPT: Final = 10_000


@dataclass(slots=True)
class _Portion:
    """Tokens of a bucket that this process has taken."""

    rate: Rate
    tokens: int = 0
    taken_s: float = -math.inf
    empty_until_s: float = -math.inf
    refused: int = 0
    """The smallest request that was refused while it was empty."""
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _Count:
    """The live jobs of a tenant as they were counted, and those that this process has accepted since."""

    jobs: int = 0
    counted_at: datetime | None = None
    read_s: float = -math.inf
    under_way: int = 0
    accepted: list[tuple[datetime, int]] = field(default_factory=list)
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def live(self) -> int:
        return self.jobs + self.under_way + sum(count for _, count in self.accepted)


class QuotaGuard:
    """The quotas of all tenants, as one API process counts them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._shown: set[str] = set()
        """Tenants with series of their own, if any may have them."""
        self._portions: dict[tuple[TenantNo, str], _Portion] = {}
        self._counts: dict[TenantNo, _Count] = {}
        self._reported: dict[tuple[TenantNo, str], float] = {}
        """When a refusal was reported to alerts last."""

    def with_quotas(self, tenant_no: TenantNo) -> Tenant | None:
        """The tenant, if it has quotas. It was read when the request was authorized."""
        tenant = self._database.tenants.known.get(tenant_no)
        return None if tenant is None or tenant.quotas == NO_QUOTAS else tenant

    @asynccontextmanager
    async def room_for_jobs(
        self, tenant: Tenant, specs: Sequence[JobSpec], idempotency: Idempotency | None, *, is_batch: bool = False
    ) -> AsyncIterator[OnCreated]:
        """Enter while these jobs are stored. Raises if a quota does not allow it. Yields the function to call with the
        jobs that were created."""
        for number, spec in enumerate(specs):
            self._check_payloads(tenant, spec, f"/jobs/{number}" if is_batch else "")
        count = len(specs)
        is_known = False
        try:
            adding = await self._check_jobs(tenant, specs)
            await self._take(tenant, "creates", tenant.quotas.creates, count)
        except QuotaExceeded:
            if not await self._is_repeated(tenant.tenant_no, idempotency):
                raise
            is_known, adding = True, 0
        # None without a quota of jobs: what is accepted would be kept and never counted.
        counted = None if tenant.quotas.jobs is None else self._counts.get(tenant.tenant_no)
        if counted is not None:
            counted.under_way += adding
        made: list[object] = []
        try:
            yield made.extend
        finally:
            if counted is not None:
                counted.under_way -= adding
                counted.accepted.append((self._database.clock.now(), len(made)))
            if not is_known:
                self._give_back(tenant, "creates", count - len(made))

    async def room_for_run(self, tenant: Tenant, payload: bytes | None, idempotency: Idempotency | None) -> None:
        """Raises if a quota does not allow one more run now."""
        self.check_payload(tenant, len(payload or b""), "/payload")
        try:
            await self._take(tenant, "creates", tenant.quotas.creates, 1)
        except QuotaExceeded:
            if not await self._is_repeated(tenant.tenant_no, idempotency):
                raise

    async def room_for_events(self, tenant: Tenant, sizes: Sequence[int]) -> None:
        """Raises if a quota does not allow events of these sizes now."""
        for number, size in enumerate(sizes):
            self.check_payload(tenant, size, f"/{number}" if len(sizes) > 1 else "")
        await self._take(tenant, "events", tenant.quotas.events, len(sizes))

    def check_version(self, tenant_no: TenantNo, spec: JobSpec) -> None:
        """Raises if a quota does not allow a new version of a job."""
        if (tenant := self.with_quotas(tenant_no)) is not None:
            self._check_payloads(tenant, spec, "")

    def _check_payloads(self, tenant: Tenant, spec: JobSpec, pointer: str) -> None:
        self.check_payload(tenant, len(bytes(spec.payload)), f"{pointer}/payload")
        if isinstance(spec.target, WorkflowTarget):
            for name, step in spec.target.steps.items():
                at = f"{pointer}/target/workflow/steps/{name}/payload"
                self.check_payload(tenant, len(bytes(step.payload or b"")), at)

    def check_replay(self, tenant_no: TenantNo, payload: str | None) -> None:
        """Raises if a quota does not allow running again with this payload. None: with the old one, which it has."""
        if payload is not None and (tenant := self.with_quotas(tenant_no)) is not None:
            self.check_payload(tenant, len(payload.encode()), "/payload")

    def check_payload(self, tenant: Tenant, size: int, pointer: str) -> None:
        most = tenant.quotas.payload_bytes
        if most is not None and size > most:
            raise TooLarge(
                f"The payload has {size:,} bytes, and the quota payload_bytes of this tenant is {most:,}. Store large"
                " data elsewhere and send its address, or ask an owner of the installation for more.",
                quota="payload_bytes",
                limit=most,
                bytes=size,
                pointer=pointer,
            )

    async def _is_repeated(self, tenant_no: TenantNo, idempotency: Idempotency | None) -> bool:
        if idempotency is None:
            return False
        async with self._database.connection() as connection:
            return await has_key(connection, tenant_no, idempotency.key)

    async def _check_jobs(self, tenant: Tenant, specs: Sequence[JobSpec]) -> int:
        """Returns how many live jobs the request adds; 0 if there is no quota of them."""
        most = tenant.quotas.jobs
        if most is None:
            return 0
        counted = await self._read_count(tenant.tenant_no, most)
        adding = len(specs)
        if counted.live + adding > most and (keys := [spec.key for spec in specs if spec.key is not None]):
            async with self._database.connection() as connection:
                adding -= len(await find_keys_in_use(connection, tenant.tenant_no, keys))
        if adding and counted.live + adding > most:
            raise await self._refusal(
                tenant,
                "jobs",
                most,
                JOBS_AGAIN_S,
                f"The quota jobs of this tenant does not allow it (live: {min(counted.live, most):,} of {most:,}):"
                " nothing of this request was stored. Delete jobs, wait until some have ended, or ask an owner of"
                " the installation for more.",
            )
        return adding

    async def _read_count(self, tenant_no: TenantNo, most: int) -> _Count:
        if len(self._counts) > TENANTS_KEPT:
            self._counts = {no: count for no, count in self._counts.items() if count.under_way}
        counted = self._counts.setdefault(tenant_no, _Count())
        if monotonic() - counted.read_s < READ_EVERY_S:
            return counted
        async with counted.reading:
            if monotonic() - counted.read_s < READ_EVERY_S:
                return counted
            async with self._database.connection() as connection:
                row = await read_job_count(connection, tenant_no)
                if row is None or self._database.clock.now() - row.counted_at > COUNTED_BY_OTHERS:
                    await count_jobs(connection, {tenant_no: most})
                    row = await read_job_count(connection, tenant_no)
            assert row is not None
            counted.jobs, counted.counted_at, counted.read_s = row.jobs, row.counted_at, monotonic()
            counted.accepted = [entry for entry in counted.accepted if entry[0] >= row.counted_at]
        return counted

    async def _take(self, tenant: Tenant, quota: str, rate: Rate | None, count: int) -> None:
        """Take tokens for this many. Raises `QuotaExceeded` if there are none, `TooLarge` if there never are enough."""
        if rate is None:
            return
        if count > rate.burst:
            raise TooLarge(
                f"{count:,} at once are more than the quota {quota} of this tenant lets through: {_in_words(rate)}."
                f" Send them in parts of at most {rate.burst:,}.",
                quota=quota,
                limit=rate.burst,
            )
        if len(self._portions) > TENANTS_KEPT:
            self._portions = {key: known for key, known in self._portions.items() if known.taking.locked()}
        portion = self._portions.setdefault((tenant.tenant_no, quota), _Portion(rate))
        if portion.rate != rate:
            portion = self._portions[tenant.tenant_no, quota] = _Portion(rate)
        if self._use(portion, count):
            return
        async with portion.taking:
            if self._use(portion, count):
                return
            now_s = monotonic()
            wait_s = portion.empty_until_s - now_s
            if wait_s <= 0 or count < portion.refused:
                least = count - portion.tokens
                wanted = max(least, math.floor(rate.limit / rate.per_s * PORTION_S))
                async with self._database.connection() as connection:
                    taken = await take_tokens(
                        connection, tenant.tenant_no, quota, rate, least=least, wanted=min(wanted, rate.burst)
                    )
                if taken.count:
                    portion.tokens += taken.count - count
                    portion.taken_s = now_s
                    return
                wait_s, portion.refused = taken.wait_s, count
                portion.empty_until_s = now_s + wait_s
        raise await self._refusal(
            tenant,
            quota,
            rate.limit,
            max(math.ceil(wait_s), 1),
            f"The quota {quota} of this tenant is used up: {_in_words(rate)}. Nothing of this request was stored. Send"
            f" it again in {max(math.ceil(wait_s), 1)} s, or ask an owner of the installation for more.",
            per_s=rate.per_s,
        )

    def _use(self, portion: _Portion, count: int) -> bool:
        if monotonic() - portion.taken_s > KEPT_S:
            portion.tokens = 0
        if portion.tokens < count:
            return False
        portion.tokens -= count
        return True

    def _give_back(self, tenant: Tenant, quota: str, count: int) -> None:
        portion = self._portions.get((tenant.tenant_no, quota))
        if portion is not None and count > 0:
            portion.tokens = min(portion.tokens + count, portion.rate.burst)

    async def _refusal(
        self, tenant: Tenant, quota: str, limit: int, wait_s: int, message: str, **facts: object
    ) -> QuotaExceeded:
        QUOTA_REFUSALS.labels(quota).inc()
        if self._is_shown(tenant.name):
            TENANT_QUOTA_REFUSALS.labels(tenant.name, quota).inc()
        await self._report(tenant.tenant_no, quota, message)
        return QuotaExceeded(message, quota=quota, limit=limit, retry_after_s=wait_s, **facts)

    async def _report(self, tenant_no: TenantNo, quota: str, message: str) -> None:
        """For alerts: the condition ends when the quota was not reached for a minute."""
        now_s = monotonic()
        if now_s - self._reported.get((tenant_no, quota), -math.inf) < REPORT_EVERY_S:
            return
        self._reported[tenant_no, quota] = now_s
        with suppress(Unavailable):  # a refusal needs no database
            async with self._database.connection() as connection:
                await report_condition(
                    connection,
                    "quota",
                    tenant_no,
                    quota,
                    f"The quota of {quota} is reached: {message}",
                    {"command": "ondot tenant get", "path": "/usage"},
                    holds_s=REACHED_S,
                )

    def _is_shown(self, name: str) -> bool:
        """Whether this tenant has series of its own; with `*` the first that are refused have."""
        names = self._database.settings.shown_tenants
        if name in names or name in self._shown:
            return True
        if "*" not in names or len(self._shown) >= TENANTS_SHOWN:
            return False
        self._shown.add(name)
        return True


def quota_headers(refusal: QuotaExceeded) -> dict[str, str]:
    """When to retry, and the quota in the form of the IETF's RateLimit fields."""
    quota, limit, wait_s = (refusal.facts[name] for name in ("quota", "limit", "retry_after_s"))
    window = f";w={math.ceil(per_s)}" if isinstance(per_s := refusal.facts.get("per_s"), float) else ""
    return {
        "Retry-After": str(wait_s),
        "RateLimit-Policy": f'"{quota}";q={limit}{window}',
        "RateLimit": f'"{quota}";r=0;t={wait_s}',
    }


def _in_words(rate: Rate) -> str:
    return f"{rate.limit:,} in {rate.per_s:g} s, {rate.burst:,} at once"
