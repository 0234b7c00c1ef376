"""`/livez`, `/readyz` and `/metrics`: for monitoring.

Readiness depends on the oldest due fire that is not served yet (L7), not on "the process is up": alive but not
scheduling is the classic outage.
"""

from collections.abc import Iterator
from typing import Final

from fastapi import APIRouter, Request, Response
from prometheus_client.core import Metric

from ondot import __version__
from ondot.api.dependencies import RequestServices, Services
from ondot.api.shared_metrics import read_shared_metrics
from ondot.flow.readiness import read_readiness
from ondot.model.access import Right
from ondot.model.errors import OndotError, Unavailable
from ondot.model.held_back import HeldBack
from ondot.store.overview import read_held_back
from ondot.telemetry.serve import encode

LIMITS_SHOWN: Final = 5

router = APIRouter(include_in_schema=False)


@router.get("/livez")
async def live() -> dict[str, str]:
    return {"status": "alive", "version": __version__}


@router.get("/readyz")
async def ready(request: Request, services: RequestServices, response: Response) -> dict[str, object]:
    try:
        async with services.database.connection() as connection:
            readiness = await read_readiness(services.database, connection)
            held_back = await read_held_back(connection, services.database.specs, None, lines=LIMITS_SHOWN)
    except Unavailable as error:
        response.status_code = 503
        response.headers["Retry-After"] = "5"
        return {"status": "unavailable", "why": error.message}
    if readiness.held is not None:
        response.status_code = 503
        response.headers["Retry-After"] = "60"
        return {"status": "held", "why": readiness.held}
    due, limit_s = readiness.due, readiness.limit_s
    has_names = await _may_read_names(services, request)
    limited = _held_back_out(held_back, with_lines=has_names)
    if readiness.is_ready:
        return {"status": "ready", "lag_s": round(due.lag_s, 3), **limited}
    response.status_code = 503
    response.headers["Retry-After"] = "5"
    is_unplanned = (due.unplanned_s or 0.0) >= (due.waiting_s or 0.0)
    if is_unplanned:
        why = (
            "a fire is due and not planned. Check that a scheduler runs (`ondot scheduler`) and is alive"
            " (`ondot fleet`)."
        )
    elif has_names:
        why = (
            f"a due execution waits in pool {due.pool!r}. Check that the pool has a worker with free slots"
            f" (`ondot worker --pool {due.pool}`)."
        )
    else:
        why = "a due execution waits. Check that its pool has a worker with free slots (`ondot fleet`)."
    return {"status": "late", "lag_s": round(due.lag_s, 3), "limit_s": limit_s, "why": why, **limited}


async def _may_read_names(services: Services, request: Request) -> bool:
    """Everyone may call `/readyz` and gets numbers. Names of jobs and pools are for callers who may read all of them:
    an owner, the account that runs ondot without keys, and, as long as there is one tenant, each of its readers."""
    try:
        caller = await services.auth.caller(request)
        if caller.pools is not None or not caller.may(Right.JOBS_READ):
            return False
        return caller.may(Right.FLEET_MANAGE) or not await services.database.tenants.are_several()
    except OndotError:
        return False


def _held_back_out(held: HeldBack, *, with_lines: bool) -> dict[str, object]:
    """Executions that wait for limits. They are shown, but ondot is still ready: the jobs set these limits.

    `with_lines`: also the longest lines, with the names of jobs and keys.
    """
    counts: dict[str, object] = {"held_back": held.count, "held_back_s": round(held.oldest_s, 3)}
    if with_lines:
        counts["limits"] = [
            {"job": line.job_name, "job_id": str(line.job_id), "limit": line.limit, "count": line.count}
            for line in held.lines
        ]
    return counts


@router.get("/metrics")
async def metrics(request: Request, services: RequestServices) -> Response:
    """The metrics of this process, of those that it adds up, and gauges of all processes, read from the database."""
    if services.database.settings.metrics_auth == "on":
        (await services.auth.caller(request)).require(Right.FLEET_MANAGE)
    shared = await read_shared_metrics(services.database)

    def collect() -> Iterator[Metric]:
        yield from services.process_metrics.collect()
        yield from shared.collect()

    body, media_type = encode(collect, request.headers.get("accept", ""))
    return Response(body, media_type=media_type)
