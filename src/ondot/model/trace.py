"""Trace context (O3): `traceparent` as W3C Trace Context defines it, and ids that follow from ondot's own.

An execution that no caller traces has a trace of its own, whose id is the id of the execution, or of its run if it is a
step. The ids of its spans follow from that id and the attempt's number. So every worker knows the trace of an execution
and the spans of its earlier attempts, and nothing is stored for them.
"""

import re
from enum import IntEnum
from typing import Final
from uuid import UUID

from msgspec import Struct

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16
_SAMPLED: Final = 1
_64_BITS: Final = 2**64 - 1


class Part(IntEnum):
    """The spans of an execution. All but the first two exist once for each attempt."""

    SUBMIT = 0
    PLAN = 1
    QUEUE = 2
    ATTEMPT = 3
    HANDLER = 4


class TraceContext(Struct, frozen=True):
    """A span of a trace. Ids are lower-case hexadecimal."""

    trace_id: str
    span_id: str
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


def parse_traceparent(text: str) -> TraceContext | None:
    """None if it is not valid: the standard asks to ignore such a header."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def mix_bits(id_: UUID, number: int = 0) -> int:
    """64 bits that look random, from the random half of an id and a number (the finalizer of SplitMix64). The bits of
    the id itself do not: its variant is constant, and samplers compare the highest bits."""
    bits = (id_.int ^ number * 0x9E3779B97F4A7C15) & _64_BITS
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & _64_BITS
    return bits ^ bits >> 31


def derive_span_id(id_: UUID, part: Part, attempt_no: int = 0) -> str:
    return f"{mix_bits(id_, 8 * attempt_no + part + 1) or 1:016x}"


def find_trace_id(caller: str | None, own_id: UUID) -> str:
    """The trace of an execution. `caller`: the traceparent stored with a one-time job. `own_id`: the id of the
    execution, or of its run."""
    context = None if caller is None else parse_traceparent(caller)
    return own_id.hex if context is None else context.trace_id
