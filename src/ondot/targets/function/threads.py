"""The threads in which plain functions run, up to a limit (E3, E7).

A thread cannot be ended from outside. A thread whose attempt is over (timeout, stop) is left behind: it no longer
counts, so that later work finds a free thread, and it ends when its function does. As many may be left behind as the
limit; beyond that they keep their places, so that the pool fills up and not the machine. The threads are daemons:
unlike those of `concurrent.futures`, a function that never returns does not keep a stopping worker alive.
"""

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")

IDLE_S = 60.0
"""An idle thread ends after this long."""


class _Task(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self.loop.create_future()
        self.running = False
        self.left_behind = False
        self._work = work
        self._context = contextvars.copy_context()

    def perform(self) -> None:
        """Runs in the thread. If it was left behind, the loop may be closed by now."""
        try:
            value = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001 - raised in `run`
            deliver, what = self._fail, error
        else:
            deliver, what = self._succeed, value  # type: ignore[assignment]
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(deliver, what)

    def _succeed(self, value: T) -> None:
        if not self.result.done():
            self.result.set_result(value)

    def _fail(self, error: BaseException) -> None:
        if not self.result.done():
            self.result.set_exception(error)


class Threads:
    def __init__(self, size: int) -> None:
        self.size = size
        self._changed = threading.Condition()
        self._waiting: deque[_Task[object]] = deque()
        self._counted = 0
        """Threads at work or idle, without those left behind."""
        self._idle = 0
        self._left_behind = 0
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, with a copy of the caller's context. On cancellation the thread is left behind."""
        task = _Task(work)
        with self._changed:
            self._waiting.append(task)  # type: ignore[arg-type]
            self._wake_or_start()
        try:
            return await task.result
        except asyncio.CancelledError:
            self._leave(task)  # type: ignore[arg-type]
            raise

    def close(self) -> None:
        """Idle threads end now, the others when their work does."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _wake_or_start(self) -> None:
        """Find a thread for the waiting work; under the lock."""
        if len(self._waiting) > self._idle and self._counted < self.size:
            self._counted += 1
            threading.Thread(target=self._work, name="ondot-function", daemon=True).start()
        else:
            self._changed.notify()

    def _work(self) -> None:
        while (task := self._take()) is not None:
            task.perform()
            with self._changed:
                task.running = False
                if task.left_behind:
                    self._left_behind -= 1
                    return
            del task  # an idle thread must not keep a result alive

    def _take(self) -> _Task[object] | None:
        with self._changed:
            while not self._waiting:
                self._idle += 1
                woken = not self._closed and self._changed.wait(IDLE_S)
                self._idle -= 1
                if not woken and not self._waiting:
                    self._counted -= 1
                    return None
            task = self._waiting.popleft()
            task.running = True
            return task

    def _leave(self, task: _Task[object]) -> None:
        with self._changed:
            if not task.running:
                with suppress(ValueError):
                    self._waiting.remove(task)
            elif not task.left_behind and self._left_behind < self.size:
                task.left_behind = True
                self._left_behind += 1
                self._counted -= 1
                self._wake_or_start()
