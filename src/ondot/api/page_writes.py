"""What pages call to create and edit jobs: the same checks, quotas and records as the API's own routes (S8, T7)."""

from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

import msgspec
from fastapi import Request

from ondot.api.dependencies import Services, by_of, caller_of, check_active
from ondot.api.routes.create import read_specs, submit_specs
from ondot.api.routes.jobs import replace_job
from ondot.api.views import created_job_text
from ondot.document.parse import MAX_JOB_BYTES, new_job_spec
from ondot.model.access import Right
from ondot.model.errors import Fault, InvalidBody
from ondot.model.ids import JobId
from ondot.model.job import JobSpec
from ondot.model.schedule import Schedule
from ondot.model.target import FunctionTarget
from ondot.store.clock import Moment
from ondot.store.jobs import find_pools_of_keys

FORM_BYTES: Final = 4 * MAX_JOB_BYTES
"""A form writes many characters as three."""


@dataclass(frozen=True, slots=True)
class PageWrites:
    services: Services

    async def read(self, request: Request) -> bytes:
        """The bytes of a form, within the bounds of large bodies."""
        return await self.services.intake.raw(request, FORM_BYTES)

    async def create(self, request: Request, document: object, reason: str | None) -> tuple[JobId, tuple[str, ...]]:
        services, caller = self.services, await caller_of(request)
        caller.require(Right.JOBS_WRITE)
        await check_active(request, caller)

        async def create(moment: Moment) -> str:
            specs, warnings = await read_specs(
                services,
                caller,
                lambda functions: [new_job_spec(document, moment.at, functions=functions)],
                partial(services.intake.parse, is_slow=True),
            )
            await self._refuse_known_key(request, specs[0])
            return await submit_specs(
                request, services, caller, specs, moment, created_job_text, None, reason=reason, warnings=warnings
            )

        made = msgspec.json.decode(await services.database.by_clock(create))
        return JobId(UUID(made["id"])), _said(made)

    async def replace(
        self, request: Request, job_id: JobId, document: object, version: int, reason: str | None
    ) -> tuple[JobId, tuple[str, ...]]:
        services, caller = self.services, await caller_of(request)
        caller.require(Right.JOBS_WRITE)
        await check_active(request, caller)
        by = await by_of(request, reason)
        row = await replace_job(services, caller, job_id, document, by, if_version=version, is_edit=True)
        return row.id, ()

    async def warn(self, schedule: Schedule, pool: str) -> tuple[str, ...]:
        """What the creator of a job with this schedule should know."""
        spec = JobSpec(name="", target=FunctionTarget(name=""), schedule=schedule, pool=pool or "default")
        _, warnings = await self.services.crowds.place([spec])
        return tuple(warning.detail for warning in warnings.get(0, ()))

    async def _refuse_known_key(self, request: Request, spec: JobSpec) -> None:
        """The API replaces the job that has the key. On a page that creates one, that would be a surprise."""
        if spec.key is None:
            return
        caller = await caller_of(request)
        async with self.services.database.connection() as connection:
            known = await find_pools_of_keys(connection, caller.tenant_no, [spec.key])
        if known:
            message = f"A job has the key {spec.key!r} already. Edit that job, or choose another key."
            raise InvalidBody(message, faults=(Fault("/key", message),))


def _said(made: dict[str, object]) -> tuple[str, ...]:
    warnings = made.get("warnings")
    return tuple(str(warning["detail"]) for warning in warnings) if isinstance(warnings, list) else ()
