"""The SDK without asyncio (D3): for Django, Flask and scripts.

    send_invoice.sync.enqueue(order, day=today).result(timeout=30)
    send_invoice.sync.options(in_="10m").enqueue(order, day=today)
    app.client.sync.list_jobs()

`.sync` of a handler, a handle, a workflow or the client is a proxy: it calls the same methods, and blocks until they
are done. There is no second set of methods; `sync_types` describes them to type checkers and is generated.

One bridge serves all threads of a process: an event loop in a daemon thread, with connections of its own. After a fork
the child starts another one, and shares no connection with its parent. In a block of a blocking transaction
(`with app.transaction(connection)`) the call runs in the caller's own thread, because the connection belongs to it.
Programs that are patched by gevent or eventlet are not supported: they patch the threads that the bridge needs.
"""

import asyncio
import atexit
import functools
import inspect
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ondot.sdk.requests import Requests

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal  # loaded with the bridge: a program without `.sync` does not need it

T = TypeVar("T")

STOPS_WITHIN_S: Final = 5.0


class Bridge:
    """An event loop in a thread, that runs coroutines for other threads."""

    def __init__(self) -> None:
        self._ready: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=self._run, name="ondot sync", daemon=True)
        self._thread.start()
        self._portal = self._ready.result()

    def call(self, start: Callable[[], Awaitable[T]]) -> T:
        future = self._portal.start_task_soon(start)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # Ctrl-C while it waits: nobody needs the answer. After an answer this does nothing
            raise

    def stop(self) -> None:
        """Close the connections, and end the thread. At the end of the process it is not waited for forever."""
        self._portal.start_task_soon(self._portal.stop, True)
        self._thread.join(STOPS_WITHIN_S)

    def _run(self) -> None:
        import anyio

        anyio.run(self._serve)

    async def _serve(self) -> None:
        from anyio.from_thread import BlockingPortal

        async with BlockingPortal() as portal:
            self._ready.set_result(portal)
            await portal.sleep_until_stopped()
        await Requests.close_all()


class _Process:
    """The bridge of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bridge: Bridge | None = None
        self._inherited: list[Bridge] = []

    def bridge(self) -> Bridge:
        with self._lock:
            if self._bridge is None:
                self._bridge = Bridge()
            return self._bridge

    def stop(self) -> None:
        with self._lock:
            bridge, self._bridge = self._bridge, None
        if bridge is not None:
            bridge.stop()

    def forget(self) -> None:
        """In the child after a fork: the thread is not there. What it had is kept and never touched, because the loop
        and its sockets are the parent's: even to free them would take them off the parent's list of events."""
        self._lock = threading.Lock()
        if self._bridge is not None:
            self._inherited.append(self._bridge)
            self._bridge = None


_PROCESS: Final = _Process()
atexit.register(_PROCESS.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_PROCESS.forget)


class Blocking:
    """The same object, whose coroutine methods block until they are done."""

    __slots__ = ("_target",)

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self._target, name)
        return _blocking(self._target, value) if inspect.ismethod(value) else _as_blocking(value)

    def __repr__(self) -> str:
        return f"{self._target!r}.sync"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocking) and self._target == other._target

    def __hash__(self) -> int:
        return hash(self._target)

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._target) if not name.startswith("_")]

    def __reduce__(self) -> tuple[Any, ...]:
        return Blocking, (self._target,)


def _blocking(target: Any, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = method(*args, **kwargs)
        if inspect.iscoroutine(given):
            return _as_blocking(_finish(target, method.__name__, given))
        return _each(given) if isinstance(given, AsyncIterator) else _as_blocking(given)

    return call


def _as_blocking(value: Any) -> Any:
    """What a method returned: handles and handlers as their `.sync`."""
    if isinstance(value, list):
        return [_as_blocking(item) for item in value]
    return value.sync if isinstance(getattr(type(value), "sync", None), property) else value


def _finish(target: Any, name: str, coroutine: Coroutine[Any, Any, T]) -> T:
    if _has_blocking_transaction(target):
        return _drive(coroutine)
    if not _runs_a_loop():
        return _PROCESS.bridge().call(lambda: coroutine)
    coroutine.close()
    raise RuntimeError(
        f"`.sync` blocks, and this thread runs an event loop, which would stand still. Write `await {_shown(target)}"
        f".{name}(…)` without `.sync`; in a plain function that async code calls, use `asyncio.to_thread`."
    )


def _runs_a_loop() -> bool:
    """Apart from the call, so that no traceback of a failed call begins with "no running event loop"."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _shown(target: Any) -> str:
    return str(getattr(target, "name", None) or type(target).__name__.lower())


def _has_blocking_transaction(target: Any) -> bool:
    """Whether the target enqueues through a blocking connection of the caller, which only this thread may use."""
    submit = getattr(getattr(target, "_handler", getattr(target, "_workflow", target)), "_submit", None)
    if submit is None:
        return False
    from ondot.sdk.transaction import open_transaction

    transaction = open_transaction(submit.__self__)
    return transaction is not None and transaction.is_blocking


def _drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that awaits nothing in this thread."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("A call in a blocking transaction has waited for something: this is a bug in ondot.")


def _each(pieces: AsyncIterator[T]) -> Iterator[T]:
    """An iterator that blocks for each piece. It is closed with the one behind it."""
    bridge = _PROCESS.bridge()
    end = object()

    async def next_piece() -> T | object:
        return await anext(pieces, end)

    try:
        while (piece := bridge.call(next_piece)) is not end:
            yield piece  # type: ignore[misc]
    finally:
        if inspect.isasyncgen(pieces):
            bridge.call(pieces.aclose)
