"""What a function prints, as lines of its attempt (E14): also when many run at once in one process.

`capture_prints` puts a writer in the place of `sys.stdout` and `sys.stderr`. What is printed by a function, its tasks
and the threads that carry its context (`asyncio.to_thread`, those of ondot) goes to its attempt; all else, such as a
library's own threads, goes where it went before.
"""

import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Literal, TextIO, cast

from ondot.targets.output import MAX_LINE_CHARACTERS, Output

Printing = Callable[[Literal["stdout", "stderr"], str], None]

PRINTING: ContextVar[Printing | None] = ContextVar("ondot_printing", default=None)
"""Where the prints of the running function go; None: nowhere of ondot's."""


class Printed:
    """The prints of one attempt, cut into lines; from any thread, in bounded memory."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._writing = threading.RLock()
        self._begun: dict[Literal["stdout", "stderr"], tuple[str, int]] = {}

    def write(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        with self._writing:
            begun, beyond = self._begun.pop(stream, ("", 0))
            start = 0
            while not self._output.full and (end := text.find("\n", start)) >= 0:
                room = MAX_LINE_CHARACTERS - len(begun)
                beyond += max(end - start - room, 0)
                self._output.add(stream, begun + text[start : min(end, start + room)], beyond)
                begun, beyond, start = "", 0, end + 1
            if self._output.full:
                self._output.skip(text.count("\n", start), len(text) - start + len(begun))
            elif start < len(text) or begun or beyond:
                room = MAX_LINE_CHARACTERS - len(begun)
                beyond += max(len(text) - start - room, 0)
                self._begun[stream] = begun + text[start : start + room], beyond

    def close(self) -> None:
        """Keep the last line, though no line end came."""
        with self._writing:
            for stream, (begun, beyond) in self._begun.items():
                self._output.add(stream, begun, beyond)
            self._begun.clear()


class _Writer:
    """As much of a text stream as anybody uses; the rest is asked of the one it stands for."""

    def __init__(self, stream: Literal["stdout", "stderr"], beneath: TextIO) -> None:
        self._stream: Literal["stdout", "stderr"] = stream
        self._beneath = beneath

    def write(self, text: str) -> int:
        printing = PRINTING.get()
        if printing is None:
            return self._beneath.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        printing(self._stream, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


def capture_prints() -> None:
    """For the rest of this process's life. A second call changes nothing."""
    if not isinstance(sys.stdout, _Writer):
        sys.stdout = cast("TextIO", _Writer("stdout", sys.stdout))
    if not isinstance(sys.stderr, _Writer):
        sys.stderr = cast("TextIO", _Writer("stderr", sys.stderr))
