"""Waiting for the end of an execution, for a job's first execution, and for more log lines.

For log lines the server waits; for all else this side polls, with a pause that grows to one second. Ctrl-C ends only
the waiting. A terminal shows the progress; a program sees none of it.
"""

import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ondot.cli.output import harmless, show_progress
from ondot.model.errors import Conflict
from ondot.model.execution import TERMINAL

if TYPE_CHECKING:
    from ondot.sdk.client import Client

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0
LINES: Final = 1000
WAIT_S: Final = 20
"""For log lines: shorter than the timeouts of common proxies."""

Json = dict[str, Any]


def has_ended(execution: Mapping[str, Any]) -> bool:
    return execution["state"] in TERMINAL


def needs_a_person(execution: Mapping[str, Any]) -> bool:
    """A run that is BLOCKED. A job that waits for others is BLOCKED before it has started."""
    return execution["state"] == "BLOCKED" and execution["started_at"] is not None


async def until_ended(client: "Client", execution_id: str) -> Json:
    """The execution, once it has ended, or is a run that waits for a person; a bar shows its progress meanwhile."""
    with progress_bar() as show_bar:
        async for _ in pauses():
            execution = await client.get_execution(execution_id)
            if has_ended(execution):
                return execution
            if needs_a_person(execution):
                return execution | {"reason": (await client.get_run(execution_id))["reason"]}
            show_bar(*progress_of(execution))
    raise AssertionError("the pauses do not end")


def progress_of(execution: Mapping[str, Any]) -> tuple[str, float, float | None]:
    """A description, the amount done, and the total; None: unknown."""
    progress = execution.get("progress") or {}
    words = [execution["state"]]
    if execution["attempt"] > 1:
        words.append(f"attempt {execution['attempt']}")
    if execution.get("cancel_requested_at"):
        words.append("asked to stop")
    if progress.get("message"):
        words.append(progress["message"])
    fraction = progress.get("fraction")
    return ", ".join(words), (fraction or 0) * 100, None if fraction is None else 100


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float, float | None], None]]:
    """Yields a function that sets the bar's description, the amount done, and the total (None: unknown)."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from ondot.cli.output import console

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("", total=None)

        def show_bar(words: str, done: float, total: float | None) -> None:
            bar.update(task, description=harmless(words), completed=done, total=total)

        yield show_bar


async def first_execution(client: "Client", job: Mapping[str, Any]) -> Json:
    """The job's first execution, once there is one."""
    if job["next_fire_at"] is not None:
        show_progress(f"Waiting for the fire at {job['next_fire_at']}.")
    async for _ in pauses():
        # In this order: once the job has ended, its execution, if any, can be read.
        state = (await client.get_job(job["id"]))["state"]
        executions = (await client.job_executions(job["id"], limit=1000))["items"]
        if executions:
            oldest: Json = executions[-1]
            return oldest
        if state not in {"ACTIVE", "PAUSED"}:
            raise Conflict(f"The job is {state} and has no execution to wait for.")
    raise AssertionError("the pauses do not end")


async def log_pages(
    client: "Client", execution_id: str, *, follow: bool, attempt: int | None = None, q: str | None = None
) -> AsyncIterator[list[Json]]:
    """The existing lines, page by page; with `follow`, also new lines until the execution has ended."""
    cursor = None
    wait_s = WAIT_S if follow else 0
    while True:
        page = await client.execution_logs(execution_id, cursor, limit=LINES, attempt=attempt, q=q, wait=wait_s)
        if page["items"]:
            yield page["items"]
        cursor = page["next_cursor"]
        if page["ended"] or (not follow and len(page["items"]) < LINES):
            return


async def pauses() -> AsyncIterator[None]:
    pause_s = FIRST_PAUSE_S
    while True:
        yield
        await _sleep(pause_s)
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)


async def _sleep(pause_s: float) -> None:
    import asyncio  # takes 30 ms, which `ondot --help` should not pay for

    await asyncio.sleep(pause_s)
