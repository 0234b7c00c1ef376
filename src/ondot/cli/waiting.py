"""Waiting for a server: for an execution's end, for a job's first execution, for more log lines.

By polling with a growing pause, up to a second: the API has no push for programs yet. Ctrl-C ends the waiting and
nothing else.
"""

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ondot.cli.output import show_progress
from ondot.model.errors import Conflict
from ondot.model.execution import TERMINAL

if TYPE_CHECKING:
    from ondot.sdk.client import Client

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
LINES: Final = 1000

Json = dict[str, Any]


def has_ended(execution: Mapping[str, Any]) -> bool:
    return execution["state"] in TERMINAL


async def until_ended(client: "Client", execution_id: str) -> Json:
    """The execution, once it has ended."""
    said = ""
    async for _ in pauses():
        execution = await client.get_execution(execution_id)
        if has_ended(execution):
            return execution
        if execution["state"] != said:
            said = execution["state"]
            show_progress(f"{execution_id} is {said}; Ctrl-C stops the waiting, not the execution.")
    raise AssertionError("the pauses do not end")


async def first_execution(client: "Client", job: Mapping[str, Any]) -> Json:
    """The job's first execution, once there is one."""
    if job["next_fire_at"] is not None:
        show_progress(f"Waiting for the fire at {job['next_fire_at']}.")
    async for _ in pauses():
        # In this order: a job whose end was seen has its execution on record, if it had one.
        state = (await client.get_job(job["id"]))["state"]
        executions = (await client.job_executions(job["id"], limit=1000))["items"]
        if executions:
            oldest: Json = executions[-1]
            return oldest
        if state not in {"ACTIVE", "PAUSED"}:
            raise Conflict(f"The job is {state} and has no execution to wait for.")
    raise AssertionError("the pauses do not end")


async def log_pages(client: "Client", execution_id: str, *, follow: bool) -> AsyncIterator[list[Json]]:
    """The lines there are, page by page; to follow, also those still to come until the execution has ended."""
    cursor = None
    pause_s = FIRST_PAUSE_S
    while True:
        page = await client.execution_logs(execution_id, cursor=cursor, limit=LINES)
        if page["items"]:
            yield page["items"]
            pause_s = FIRST_PAUSE_S
        cursor = page["next_cursor"]
        if page["ended"] or (not follow and len(page["items"]) < LINES):
            return
        if not page["items"]:
            await _sleep(pause_s)
            pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)


async def pauses() -> AsyncIterator[None]:
    pause_s = FIRST_PAUSE_S
    while True:
        yield
        await _sleep(pause_s)
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)


async def _sleep(pause_s: float) -> None:
    import asyncio  # 30 ms that `ondot --help` need not wait for

    await asyncio.sleep(pause_s)
