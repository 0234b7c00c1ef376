"""The prints of a function become lines of its attempt (E14), also when many functions run at once in one process.

`capture_prints` replaces `sys.stdout` and `sys.stderr`. Prints of a function, its tasks and the threads that carry its
context (`asyncio.to_thread`, those of ondot) go to its attempt; all others, such as those of a library's own threads,
go where they went before.
"""

import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal, TextIO, cast

from ondot.targets.output import MAX_LINE_CHARACTERS, Output

Printing = Callable[[Literal["stdout", "stderr"], str], None]

PRINTING: ContextVar[Printing | None] = ContextVar("ondot_printing", default=None)
"""Receives the prints of the running function; None: no function runs here."""


class Printed:
    """The prints of one attempt, split into lines; from any thread, in bounded memory."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._writing = threading.RLock()
        self._partial: dict[Literal["stdout", "stderr"], tuple[str, int]] = {}

    def write(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        with self._writing:
            partial, beyond = self._partial.pop(stream, ("", 0))
            start = 0
            while not self._output.full and (end := text.find("\n", start)) >= 0:
                room = MAX_LINE_CHARACTERS - len(partial)
                beyond += max(end - start - room, 0)
                self._output.add(stream, partial + text[start : min(end, start + room)], beyond)
                partial, beyond, start = "", 0, end + 1
            if self._output.full:
                self._output.skip(text.count("\n", start), len(text) - start + len(partial))
            elif start < len(text) or partial or beyond:
                room = MAX_LINE_CHARACTERS - len(partial)
                beyond += max(len(text) - start - room, 0)
                self._partial[stream] = partial + text[start : start + room], beyond

    def close(self) -> None:
        """Keep the last line though it has no line end."""
        with self._writing:
            for stream, (partial, beyond) in self._partial.items():
                self._output.add(stream, partial, beyond)
            self._partial.clear()


class _Writer:
    """A text stream that passes everything but writing to the stream it replaces."""

    def __init__(self, stream: Literal["stdout", "stderr"], original: TextIO) -> None:
        self._stream: Literal["stdout", "stderr"] = stream
        self._original = original

    def write(self, text: str) -> int:
        printing = PRINTING.get()
        if printing is None:
            return self._original.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        printing(self._stream, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def capture_prints() -> None:
    """For the rest of this process's life. A second call changes nothing."""
    if not isinstance(sys.stdout, _Writer):
        sys.stdout = cast("TextIO", _Writer("stdout", sys.stdout))
    if not isinstance(sys.stderr, _Writer):
        sys.stderr = cast("TextIO", _Writer("stderr", sys.stderr))
