"""Where plain functions run: threads of ondot's own, at most so many at work (E3, E7).

A thread cannot be ended from outside. One whose attempt is over (timeout, stop) is left behind: it counts no more, so
that the work after it finds a free thread, and it ends when its function does. As many may be left behind as there
are threads; beyond that they keep their places, and the pool runs full instead of the machine. The threads are
daemons: a function that never returns does not keep a stopping worker alive, as those of `concurrent.futures` would.
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


class _Errand(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[T] = self.loop.create_future()
        self.running = False
        self.left_behind = False
        self._work = work
        self._context = contextvars.copy_context()

    def perform(self) -> None:
        """In the thread. The loop may be closed by now, if the errand was left behind."""
        try:
            value = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it
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
        self._waiting: deque[_Errand[object]] = deque()
        self._at_work_or_idle = 0
        self._idle = 0
        self._left_behind = 0
        self._closed = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, with a copy of the caller's context. Cancelled: the thread is left behind."""
        errand = _Errand(work)
        with self._changed:
            self._waiting.append(errand)  # type: ignore[arg-type]
            self._serve()
        try:
            return await errand.result
        except asyncio.CancelledError:
            self._leave(errand)  # type: ignore[arg-type]
            raise

    def close(self) -> None:
        """Idle threads end, and those at work when their work does."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _serve(self) -> None:
        """See that somebody takes what waits; under the lock."""
        if len(self._waiting) > self._idle and self._at_work_or_idle < self.size:
            self._at_work_or_idle += 1
            threading.Thread(target=self._work, name="ondot-function", daemon=True).start()
        else:
            self._changed.notify()

    def _work(self) -> None:
        while (errand := self._take()) is not None:
            errand.perform()
            with self._changed:
                errand.running = False
                if errand.left_behind:
                    self._left_behind -= 1
                    return
            del errand  # an idle thread must not keep a result alive

    def _take(self) -> _Errand[object] | None:
        with self._changed:
            while not self._waiting:
                self._idle += 1
                woken = not self._closed and self._changed.wait(IDLE_S)
                self._idle -= 1
                if not woken and not self._waiting:
                    self._at_work_or_idle -= 1
                    return None
            errand = self._waiting.popleft()
            errand.running = True
            return errand

    def _leave(self, errand: _Errand[object]) -> None:
        with self._changed:
            if not errand.running:
                with suppress(ValueError):
                    self._waiting.remove(errand)
            elif not errand.left_behind and self._left_behind < self.size:
                errand.left_behind = True
                self._left_behind += 1
                self._at_work_or_idle -= 1
                self._serve()
