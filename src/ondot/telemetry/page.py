"""The memory in which one process counts (O2): series by name, each a row of numbers.

A process on its own has a page of its own. A supervisor (`ondot up`, `ondot worker --processes`) makes a page for each
of its children and passes it on as a file descriptor, to the first process and to each that replaces it: a process that
was killed has lost nothing that it counted, the next one goes on counting in the same page, and so no sum ever falls.
There is no file to tidy up, because the page has no name, and nothing to ask a child for, which may hang.

Layout: a header (magic number, bytes used, when gauges were written), then one entry for each series: its length, its
key as JSON, its numbers, and room for exemplars. An entry is complete before the header counts it, and a number is
written as one aligned word, so another process may read at any time.
"""

import json
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Self

SIZE: Final = 16 * 1024 * 1024
"""Of address space. Only what is written takes memory: some 100 KB."""
EXEMPLAR: Final = struct.Struct("=16s16sdd")
"""The id of an execution, the id of a trace (zero: none), the value, and when."""
_MAGIC: Final = 0x6F6E646F740001
_HEADER: Final = 64
_LENGTHS: Final = struct.Struct("=II")
_USED, _GAUGES_AT = 1, 2
"""Words of the header."""


@dataclass(frozen=True, slots=True)
class Key:
    """Which series it is. `bounds`: of a histogram. `has_exemplars`: one for each of its buckets."""

    kind: str
    name: str
    labels: tuple[tuple[str, str], ...] = ()
    bounds: tuple[float, ...] = ()
    has_exemplars: bool = False
    merge: str = "sum"

    @property
    def width(self) -> int:
        """Numbers: one; of a histogram one for each bucket, and the sum."""
        return len(self.bounds) + 2 if self.kind == "histogram" else 1

    @property
    def exemplars(self) -> int:
        return len(self.bounds) + 1 if self.has_exemplars else 0

    def encode(self) -> bytes:
        return json.dumps([self.kind, self.name, self.labels, self.bounds, self.has_exemplars, self.merge]).encode()

    @classmethod
    def decode(cls, written: bytes) -> Self:
        kind, name, labels, bounds, has_exemplars, merge = json.loads(written)
        pairs = tuple((str(label), str(value)) for label, value in labels)
        return cls(kind, name, pairs, tuple(bounds), has_exemplars, merge)


class Page:
    """Series are only ever added. One process writes; any number read."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._bytes = memoryview(memory)
        self.values = self._bytes.cast("d")
        self._words = self._bytes.cast("Q")
        self._lock = threading.RLock()
        if self._words[0] != _MAGIC:
            # New, or of a release that counted differently.
            self._words[_USED] = _HEADER
            self._words[0] = _MAGIC
        self._found = dict(self.entries())

    @classmethod
    def private(cls) -> Self:
        """For a process on its own. A forked copy counts for itself."""
        return cls(mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    @classmethod
    def shared(cls, descriptor: int) -> Self:
        return cls(mmap.mmap(descriptor, SIZE))

    def entries(self) -> Iterator[tuple[Key, int]]:
        """Every series, and the index of its first number."""
        at, used = _HEADER, self._words[_USED]
        while at < used:
            length, key_length = _LENGTHS.unpack_from(self._bytes, at)
            key = bytes(self._bytes[at + _LENGTHS.size : at + _LENGTHS.size + key_length])
            yield Key.decode(key), (at + _LENGTHS.size + _aligned(key_length)) // 8
            at += length

    def find_or_add(self, key: Key) -> int | None:
        """The index of its first number; None if the page is full."""
        with self._lock:
            if (found := self._found.get(key)) is not None:
                return found
            written = key.encode()
            at = self._words[_USED]
            numbers_at = at + _LENGTHS.size + _aligned(len(written))
            end = numbers_at + key.width * 8 + key.exemplars * EXEMPLAR.size
            if end > SIZE:
                return None
            _LENGTHS.pack_into(self._bytes, at, end - at, len(written))
            self._bytes[at + _LENGTHS.size : at + _LENGTHS.size + len(written)] = written
            self._words[_USED] = end
            self._found[key] = numbers_at // 8
            return numbers_at // 8

    @property
    def gauges_at(self) -> float:
        """When its process last wrote its gauges, by the clock of the machine (monotonic)."""
        return self.values[_GAUGES_AT]

    @gauges_at.setter
    def gauges_at(self, now_s: float) -> None:
        self.values[_GAUGES_AT] = now_s

    def write_exemplar(self, key: Key, index: int, bucket: int, packed: bytes) -> None:
        at = (index + key.width) * 8 + bucket * EXEMPLAR.size
        self._bytes[at : at + EXEMPLAR.size] = packed

    def read_exemplar(self, key: Key, index: int, bucket: int) -> bytes | None:
        """None: there is none, or it is being written."""
        at = (index + key.width) * 8 + bucket * EXEMPLAR.size
        first = bytes(self._bytes[at : at + EXEMPLAR.size])
        return first if any(first[:16]) and first == bytes(self._bytes[at : at + EXEMPLAR.size]) else None


def make_page() -> int:
    """A descriptor of memory for a child's page; it ends with the last process that has it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ondot-metrics")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, SIZE)
    return descriptor


def _aligned(length: int) -> int:
    return (length + 7) // 8 * 8
