"""The whole log of one attempt, from its first line up to a bound, on disk once it is long (E14).

It uses `IN_MEMORY` bytes of memory at most. Lines beyond the bound are counted. A full disk ends the spool and nothing
else.
"""

import tempfile
from contextlib import suppress
from datetime import datetime
from typing import IO

IN_MEMORY = 64 * 1024


class Spool:
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._file = tempfile.SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 - closed with its attempt
        self.bytes = 0
        self.lines = 0
        self.cut_lines = 0
        self.cut_bytes = 0
        self.trouble: str | None = None
        """Why the rest could not be kept, if the reason is not the bound."""

    def add(self, text: str) -> None:
        data = text.encode()
        if self.cut_lines or self.bytes + len(data) > self._max_bytes:
            self._cut(data)
            return
        try:
            self._file.write(data)
        except OSError as error:
            self.trouble = f"the temporary file cannot be written: {error.strerror or error}"
            self._cut(data)
            return
        self.bytes += len(data)
        self.lines += 1

    @property
    def cut_message(self) -> str:
        why = self.trouble or f"at most {self._max_bytes:,} bytes of an attempt are kept (ONDOT_LOG_BYTES)"
        return f"{self.cut_lines:,} more lines ({self.cut_bytes:,} bytes) were cut: {why}"

    def content(self) -> IO[bytes]:
        """All that was kept, from its start, without a line that a full disk cut short."""
        self._file.truncate(self.bytes)
        self._file.seek(0)
        return self._file

    def close(self) -> None:
        # On a full disk, closing fails to write the last bytes: they are not needed any more.
        with suppress(OSError):
            self._file.close()

    def _cut(self, data: bytes) -> None:
        self.cut_lines += 1
        self.cut_bytes += len(data)


def as_text(at: datetime, stream: str, line: str) -> str:
    """A line of the whole log: time, stream, text."""
    return f"{at.isoformat(timespec='milliseconds')[:23]}Z {stream} {line}\n"
