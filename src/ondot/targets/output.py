"""Limits the output of one attempt (E14), so that a flood of lines does not slow down other attempts.

A line that is too long is cut. Lines beyond the limit are counted, and one line at the end reports how many. Lines may
come from any thread and are counted there: of a flood only the count goes further.
"""

import threading
from collections.abc import Callable
from typing import Literal

from ondot.targets.text import storable

MAX_LINE_CHARACTERS = 8 * 1024
MAX_LINES = 50_000
MAX_CHARACTERS = 64 * 1024 * 1024
"""The most that is passed on; `flow.attempt_log` decides what is kept where. Lines are limited because each costs time
of the loop that all attempts share.
"""
MAX_RESULT_BYTES = 64 * 1024 * 1024
"""Of a function's result; `flow.output` puts results that are too large for the database into object storage."""

Stream = Literal["log", "stdout", "stderr"]


class Output:
    """Passes lines to `say` until the limit is reached or it is closed."""

    def __init__(self, say: Callable[[str, str], None]) -> None:
        self._say = say
        self._counting = threading.Lock()
        self._lines = 0
        self._characters = 0
        self._cut_lines = 0
        self._cut_characters = 0
        self._closed = False

    @property
    def full(self) -> bool:
        return self._lines >= MAX_LINES or self._characters >= MAX_CHARACTERS

    def skip(self, lines: int, characters: int) -> None:
        """Count lines that the caller leaves out because it is full."""
        with self._counting:
            self._cut_lines += lines
            self._cut_characters += characters

    def add(self, stream: Stream, line: str, beyond: int = 0) -> None:
        """Keep a line; `beyond` is how many of its characters the caller has already left out."""
        if self.full:
            self.skip(1, len(line) + beyond)
            return
        beyond += max(len(line) - MAX_LINE_CHARACTERS, 0)
        kept = storable(line[:MAX_LINE_CHARACTERS])
        with self._counting:
            if self._closed:
                return
            self._lines += 1
            self._characters += len(kept)
        self._say(stream, f"{kept} … ({beyond:,} more were cut)" if beyond else kept)

    def close(self) -> None:
        """Report what was cut. Lines that arrive later, from a thread left behind, no longer belong to this attempt."""
        with self._counting:
            if self._closed:
                return
            self._closed = True
        if self._cut_characters:
            self._say(
                "log",
                f"ondot: {self._cut_lines:,} more lines ({self._cut_characters:,} characters) were cut: at most "
                f"{MAX_LINES:,} lines and {MAX_CHARACTERS:,} characters of an attempt are kept.",
            )
