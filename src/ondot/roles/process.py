"""One role as an operating system process: its event loop, its signals, its end, and its restart when it hangs.

SIGTERM and Ctrl-C set the role's `stop`. A process whose loop hangs starts again in place: other processes have taken
its work over by then, and the fence refuses the outcomes it still writes.
"""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import NoReturn

import uvloop

from ondot import __version__
from ondot.environment import execute_again
from ondot.roles.pulse import OnHung
from ondot.settings import Settings
from ondot.telemetry.log import configure_logs, get_logger
from ondot.telemetry.outlet import drain_output, unblock_output
from ondot.telemetry.trace import close_tracer, open_tracer

TASKS_END_WITHIN_S = 1.0
FAILED = 1
"""The exit code of a process that hung and could not end or start again in order."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
COLLECT_AFTER = 20_000, 20, 20
"""Objects created and not freed before the garbage collector runs, for its three generations; Python's own thresholds
are 700, 10, 10."""

log = get_logger()

Role = Callable[[asyncio.Event, OnHung], Awaitable[None]]
"""Runs until its event is set. Its second argument is called from another thread when the role's loop hangs."""


def run_role(name: str, settings: Settings, role: Role) -> None:
    """Run a role in a new event loop until it ends; SIGTERM and Ctrl-C set its `stop`."""
    unblock_output()
    configure_logs(settings.log_format, settings.log_level, role=name)
    open_tracer(name, __version__)
    collect_rarely()

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        stop_requested = threading.Event()
        """The same as `stop`, readable while the loop hangs."""

        def request_stop(_number: int, _frame: object) -> None:
            stop_requested.set()
            loop.call_soon_threadsafe(stop.set)

        def on_hung(stalled_s: float) -> None:
            is_stopping = stop_requested.is_set()
            then = "the process ends by force" if is_stopping else "the process starts again"
            log.error("process.hung", stalled_s=round(stalled_s, 1), then=then)
            if is_stopping:
                drain_output()
                os._exit(FAILED)
            start_again()

        for number in STOP_SIGNALS:
            signal.signal(number, request_stop)
        await role(stop, on_hung)
        await _end_remaining_tasks()
        # Ctrl-C reaches the whole process group, and the supervisor sends its own signal after it. The second signal
        # must not kill a role that has done its work and is about to exit.
        for number in STOP_SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    uvloop.run(main())
    close_tracer()


def recycle() -> NoReturn:
    """Start again after the role has ended, in the main thread. A stop that arrives from here on ends the process."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    log.info("worker.recycled")
    start_again()


def start_again() -> NoReturn:
    """Execute the same command in the same process, from any thread. Threads that would not end are gone, and no
    supervisor notices. Connections and pipes close, so that child processes and guards end what they run.
    """
    drain_output()
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        execute_again()
    except OSError:
        # The interpreter is gone. A supervisor notices a process that has ended, but not one that hangs.
        log.exception("process.not_started_again")
        drain_output()
        os._exit(FAILED)


def collect_rarely() -> None:
    """Imported objects stay, and nearly all others are freed by reference counting, thousands a second. With Python's
    own thresholds the collector took a third of a worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


async def _end_remaining_tasks() -> None:
    """Without this, a handler that swallows its cancellation would keep the loop, and so the process, alive."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    _, unfinished = await asyncio.wait(tasks, timeout=TASKS_END_WITHIN_S)
    if unfinished:
        log.warning("process.ends_by_force", tasks=sorted(task.get_name() for task in unfinished))
        drain_output()
        os._exit(0)
