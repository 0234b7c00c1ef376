"""Reads that many callers need at the same moment: the first one reads, and the others wait for the same result.

For caches that expire while hundreds of attempts run: without it each of them would take a connection. The read is a
task of its own, so that a caller that is cancelled does not cancel it for the others. If it fails, all of them get its
error at once, rather than one after the other.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class SharedReads(Generic[Key, Value]):
    def __init__(self) -> None:
        self._reading: dict[Key, asyncio.Task[Value]] = {}

    async def read(self, key: Key, start: Callable[[Key], Coroutine[Any, Any, Value]]) -> Value:
        """The result of the read of this key that runs; `start` starts one if none does."""
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(start(key), name="shared read")
            reading.add_done_callback(lambda ended: self._forget(key, ended))
        return await asyncio.shield(reading)

    def _forget(self, key: Key, ended: asyncio.Task[Value]) -> None:
        del self._reading[key]
        if not ended.cancelled():
            ended.exception()  # asked for, so that asyncio does not log it if every caller is gone
