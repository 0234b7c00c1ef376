"""Functions that fail when the test says so: `World.fail`."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ondot.sdk.handler import Handler

Failures = Mapping[str, list[Exception]]


def with_failures(handlers: Mapping[str, Handler[..., Any]], failures: Failures) -> dict[str, Handler[..., Any]]:
    """The functions of an app, each of which raises the next error that is listed for it."""
    return {
        name: Handler(
            _fails_first(handler.function, name, failures, is_async=handler.is_async),
            name=name,
            secrets=handler.secrets,
        )
        for name, handler in handlers.items()
    }


def _fails_first(function: Callable[..., Any], name: str, failures: Failures, *, is_async: bool) -> Callable[..., Any]:
    def raise_next() -> None:
        if waiting := failures.get(name):
            raise waiting.pop(0)

    if is_async:

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            raise_next()
            return await function(*args, **kwargs)

        return call

    @functools.wraps(function)
    def call_plain(*args: Any, **kwargs: Any) -> Any:
        raise_next()
        return function(*args, **kwargs)

    return call_plain
