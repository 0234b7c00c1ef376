"""Waiting for a server: for an execution's end, for a job's first execution, for more log lines.

Lines are waited for by the server, all else by polling with a growing pause, up to a second. Ctrl-C ends the waiting
and nothing else. Somebody at a terminal sees how far it is, and a program sees none of it.
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
"""For lines: shorter than what proxies on the way put up with."""

Json = dict[str, Any]


def has_ended(execution: Mapping[str, Any]) -> bool:
    return execution["state"] in TERMINAL


async def until_ended(client: "Client", execution_id: str) -> Json:
    """The execution, once it has ended; a bar shows its progress meanwhile."""
    with progress_bar() as tell:
        async for _ in pauses():
            execution = await client.get_execution(execution_id)
            if has_ended(execution):
                return execution
            tell(*far_in_words(execution))
    raise AssertionError("the pauses do not end")


def far_in_words(execution: Mapping[str, Any]) -> tuple[str, float, float | None]:
    """What it is about, and how far it is of how much; None: nobody knows."""
    progress = execution.get("progress") or {}
    words = [execution["state"]]
    if execution["attempt"] > 1:
        words.append(f"attempt {execution['attempt']}")
    if execution.get("cancel_requested_at"):
        words.append("asked to end")
    if progress.get("message"):
        words.append(progress["message"])
    fraction = progress.get("fraction")
    return ", ".join(words), (fraction or 0) * 100, None if fraction is None else 100


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float, float | None], None]]:
    """Gives what tells the bar its words, how much is done, and of how much; None: nobody knows."""
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

        def tell(words: str, done: float, of: float | None) -> None:
            bar.update(task, description=harmless(words), completed=done, total=of)

        yield tell


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


async def log_pages(
    client: "Client", execution_id: str, *, follow: bool, attempt: int | None = None, q: str | None = None
) -> AsyncIterator[list[Json]]:
    """The lines there are, page by page; to follow, also those still to come until the execution has ended."""
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
    import asyncio  # 30 ms that `ondot --help` need not wait for

    await asyncio.sleep(pause_s)
