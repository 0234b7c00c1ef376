"""Turns an exception of a handler into a report: one line, the traceback without ondot's own frames, and the decisions
(`GiveUp`, `RetryIn`, `RetryAt`) that a handler may raise.
"""

import traceback
from pathlib import Path
from typing import Final

import ondot
from ondot.model.outcome import AttemptError, Failed
from ondot.sdk.arguments import BadArguments
from ondot.sdk.decisions import GiveUp, RetryAt, RetryIn
from ondot.targets.text import one_line, storable

MAX_TRACEBACK_LINES: Final = 50
MAX_TRACEBACK_CHARACTERS: Final = 16 * 1024

MAX_TYPES: Final = 20

LONGEST_DELAY_S: Final = 366 * 86_400.0

_OWN: Final = str(Path(ondot.__file__).parent) + "/"


def report_exception(error: BaseException) -> Failed:
    match error:
        case BadArguments():
            return Failed(AttemptError("bad-arguments", one_line(str(error))), retryable=False)
        case GiveUp():
            return Failed(AttemptError("gave_up", one_line(_text(error)) or "The function gave up."), retryable=False)
        case RetryIn():
            delay_s = min(error.delay_s, LONGEST_DELAY_S)
            return Failed(_retry_error(error, f"in {delay_s:,.0f} s"), retry_after_s=delay_s)
        case RetryAt():
            return Failed(_retry_error(error, f"at {error.when.isoformat()}"), retry_at=error.when)
    name = type(error).__qualname__
    message = one_line(f"{name}: {_text(error)}".removesuffix(": "))
    return Failed(
        AttemptError("exception", message, detail=_traceback(error), facts={"type": name, "types": types(error)})
    )


def types(error: BaseException) -> list[str]:
    """Its class and base classes, with their modules: the names by which a job's `retry` may refer to it (E4)."""
    return [
        one_line(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")
        for kind in type(error).__mro__[:MAX_TYPES]
        if kind not in {object, BaseException}
    ]


def _retry_error(error: RetryIn | RetryAt, when: str) -> AttemptError:
    reason = one_line(error.reason) or "no reason given"
    detail = _traceback(error.__cause__) if error.__cause__ else None
    return AttemptError("retry_asked", f"The function asked for a retry {when}: {reason}", detail=detail)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's class; its text is not worth losing the report
        return "(its text cannot be read)"


def _traceback(error: BaseException) -> str:
    formatted = traceback.TracebackException.from_exception(error, compact=True)
    _drop_own_frames(formatted)
    lines = "".join(formatted.format()).splitlines()
    text = "\n".join(lines if len(lines) <= MAX_TRACEBACK_LINES else ["…", *lines[-MAX_TRACEBACK_LINES:]])
    return storable(text[-MAX_TRACEBACK_CHARACTERS:])


def _drop_own_frames(exception: traceback.TracebackException) -> None:
    """In the whole chain of causes. It may be long, but TracebackException leaves no cycles in it."""
    pending = [exception]
    while pending:
        one = pending.pop()
        one.stack = traceback.StackSummary.from_list(
            [frame for frame in one.stack if not frame.filename.startswith(_OWN)]
        )
        pending.extend(
            other for other in (one.__cause__, one.__context__, *(one.exceptions or ())) if other is not None
        )
