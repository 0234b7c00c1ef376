"""The app's functions as a world runs them: the same, but for `RetryAt`, which names an instant of the world's clock.

A worker subtracts the time of its own clock from that instant. Here the function's decision is turned into `RetryIn`
by the world's clock before anybody subtracts.
"""

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from inspect import isawaitable
from typing import Any

from ondot.sdk.decisions import RetryAt, RetryIn
from ondot.sdk.handler import Handler


def by_the_clock(
    handlers: Mapping[str, Handler[..., Any]], now: Callable[[], datetime]
) -> dict[str, Handler[..., Any]]:
    return {
        name: Handler(_decides_by(handler, now), name=name, options=handler.options, timing=handler.timing)
        for name, handler in handlers.items()
    }


def _decides_by(handler: Handler[..., Any], now: Callable[[], datetime]) -> Callable[..., Any]:
    function = handler.function

    @contextmanager
    def deciding() -> Iterator[None]:
        try:
            yield
        except RetryAt as decision:
            delay_s = max((decision.when - now()).total_seconds(), 0.0)
            raise RetryIn(delay_s, decision.reason) from decision.__cause__

    async def awaited(value: Awaitable[Any]) -> Any:
        with deciding():
            return await value

    @functools.wraps(function)
    async def in_loop(*args: Any, **kwargs: Any) -> Any:
        with deciding():
            return await function(*args, **kwargs)

    @functools.wraps(function)
    def in_thread(*args: Any, **kwargs: Any) -> Any:
        with deciding():
            value = function(*args, **kwargs)
        return awaited(value) if isawaitable(value) else value

    return in_loop if handler.is_async else in_thread
