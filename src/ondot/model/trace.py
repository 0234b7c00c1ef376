"""Trace context (O3): `traceparent` and `tracestate` as W3C Trace Context defines them, and ids made from ondot's own.

An execution that no caller traces has a trace of its own, whose id is the id of the execution, or of its run if it is a
step. The ids of its spans follow from that id and the attempt's number. So every worker knows the trace of an execution
and the spans of its earlier attempts, and nothing is stored for them.
"""

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final
from uuid import UUID

from msgspec import Struct

_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_MEMBER: Final = re.compile(
    # The key, of a vendor or of a tenant of one, and a value that does not end with a blank.
    r"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})"
    r"=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
MAX_STATE: Final = 512
"""The most characters of a `tracestate` that are passed on."""
MAX_MEMBERS: Final = 32
_LONG_MEMBER: Final = 128
_MOST_READ: Final = 20_000
"""More than 32 members of the longest key and value have."""
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
    """A span of a trace. Ids are lower-case hexadecimal. `state`: its `tracestate`, which is passed on as it came."""

    trace_id: str
    span_id: str
    is_sampled: bool
    state: str | None = None

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.is_sampled else '00'}"


def parse_traceparent(text: str, state: str | None = None) -> TraceContext | None:
    """None if it is not valid: the standard asks to ignore such a header. `state`: its `tracestate`, parsed already."""
    found = _TRACEPARENT.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None) or trace_id == _NO_TRACE or span_id == _NO_SPAN:
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED), state)


def parse_tracestate(headers: Sequence[str]) -> str | None:
    """The `tracestate` of one or several headers, in their order; None if there is none, or it is not valid.

    Of one that is too long, members over 128 characters go first, then the last ones: the newest member is the first.
    """
    if sum(map(len, headers)) > _MOST_READ:
        return None
    members = [member for header in headers for part in header.split(",") if (member := part.strip(" \t"))]
    keys = {member.partition("=")[0] for member in members}
    if len(members) > MAX_MEMBERS or len(keys) < len(members) or not all(map(_MEMBER.fullmatch, members)):
        return None
    if len(",".join(members)) > MAX_STATE:
        members = [member for member in members if len(member) <= _LONG_MEMBER]
    while len(text := ",".join(members)) > MAX_STATE:
        members.pop()
    return text or None


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
