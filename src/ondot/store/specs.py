"""Specs by (job, version), read in one statement for a batch.

Versions never change, so those of recurring jobs and of workflows are kept in memory; the spec of another one-time job
is used once and not kept. A spec includes its payload, a megabyte and more: the cache is bounded by bytes and by count,
and a very large spec is read each time. A batch that does not fit into a deadline is read in parts, and the parts that
arrived are kept.
"""

from collections import OrderedDict
from collections.abc import Iterable
from uuid import UUID

import msgspec

from ondot.model.job import JobSpec, decode_spec
from ondot.model.workflow.spec import WorkflowTarget
from ondot.store.adaptive_batch import AdaptiveBatch
from ondot.store.connection import Connection
from ondot.store.day_bounds import with_day_bounds
from ondot.store.queries import load_queries
from ondot.telemetry.log import get_logger

_SQL = load_queries("jobs")

log = get_logger()

Version = tuple[UUID, int]

AT_ONCE = 1_000
YOUNG_MS = 12 * 3600 * 1000
"""An id has the milliseconds of its creation above its lowest 80 bits."""


KEPT = 20_000
KEPT_BYTES = 64 * 1024 * 1024
LARGE = 32
"""A spec that takes more than 1/32 of all bytes is not kept: a few of them would drive out all others."""
LARGE_WORKFLOW = 8
"""A workflow of 10,000 steps is read for each of them."""
AROUND_BYTES = 2_000
"""Memory of a spec beside its text, at most: one without a payload took 600 bytes in all."""


class Specs:
    def __init__(self, kept: int = KEPT, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept = kept
        self._kept_bytes = kept_bytes
        self._specs: OrderedDict[Version, tuple[JobSpec, int]] = OrderedDict()
        self.bytes = 0
        self._at_once = AdaptiveBatch(AT_ONCE)

    async def find(self, connection: Connection, versions: Iterable[Version]) -> dict[Version, JobSpec]:
        """The specs of these versions, without those that are gone or cannot be read."""
        found: dict[Version, JobSpec] = {}
        missing: list[Version] = []
        for version in dict.fromkeys(versions):
            if (kept := self._specs.get(version)) is not None:
                self._specs.move_to_end(version)
                found[version], _ = kept
            else:
                missing.append(version)
        while missing:
            portion = missing[: self._at_once.size]
            with self._at_once.adapt(len(portion)):
                await self._read(connection, portion, found)
            missing = missing[len(portion) :]
        return found

    async def _read(self, connection: Connection, missing: list[Version], found: dict[Version, JobSpec]) -> None:
        # Most jobs run once; a range of ids reads them in half the time of a probe for each.
        young = _young([job_id for job_id, number in missing if number == 1])
        await self._read_once(connection, young, found)
        missing = [version for version in missing if version not in found]
        if not missing:
            return
        rows = await connection.fetch(
            _SQL["find_specs"].text, [job_id for job_id, _ in missing], [number for _, number in missing]
        )
        for job_id, number, text in rows:
            if (spec := _decode(job_id, number, text)) is not None:
                found[job_id, number] = spec
                self._keep((job_id, number), spec, text)
        looked_for = {*young, *(row["job_id"] for row in rows)}
        older = [job_id for job_id, number in missing if number == 1 and job_id not in looked_for]
        while older:
            young = _young(older)
            await self._read_once(connection, young, found)
            older = [job_id for job_id in older if job_id not in young]

    async def _read_once(self, connection: Connection, job_ids: list[UUID], found: dict[Version, JobSpec]) -> None:
        """Read one-time jobs of a day or two that were never changed."""
        if not job_ids:
            return
        rows = await connection.fetch(
            with_day_bounds(_SQL["find_once_specs"], job_ids, from_id="$2", before_id="$3"), job_ids
        )
        for job_id, text in rows:
            if (spec := _decode(job_id, 1, text)) is not None:
                found[job_id, 1] = spec
                if type(spec.target) is WorkflowTarget:
                    self._keep((job_id, 1), spec, text)

    def _keep(self, version: Version, spec: JobSpec, text: str) -> None:
        size = len(text) * (1 if text.isascii() else 4) + AROUND_BYTES
        is_workflow = isinstance(spec.target, WorkflowTarget)
        largest = self._kept_bytes / (LARGE_WORKFLOW if is_workflow else LARGE)
        if not (spec.recurs or is_workflow) or version in self._specs or size > largest:
            return
        self._specs[version] = spec, size
        self.bytes += size
        while len(self._specs) > self._kept or self.bytes > self._kept_bytes:
            _, (_, left) = self._specs.popitem(last=False)
            self.bytes -= left

    def __len__(self) -> int:
        """How many specs are kept."""
        return len(self._specs)


def _young(job_ids: list[UUID]) -> list[UUID]:
    """Those not much older than the youngest: they are in the partitions of two days, and few of them recur."""
    if not job_ids:
        return []
    oldest = max(job_ids).int - (YOUNG_MS << 80)
    return [job_id for job_id in job_ids if job_id.int >= oldest]


def _decode(job_id: UUID, number: int, text: str) -> JobSpec | None:
    try:
        return decode_spec(text)
    except msgspec.MsgspecError as error:
        # It is of a newer release: one spec that cannot be read must not stop the others of its batch.
        log.warning("spec.unreadable", job_id=str(job_id), version=number, error=str(error))
        return None
