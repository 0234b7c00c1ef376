"""The messages between a worker and the child process of its suspects: one JSON object a line, over two pipes.

The pipes carry nothing else: the prints of a function, and whatever it writes to standard output, cannot get in
between. A side that receives an invalid message gives the other up.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final, Generic, Literal, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct

from ondot.model.outcome import Cancelled, Failed, Succeeded
from ondot.model.workflow.step_results import StepResults
from ondot.targets.output import MAX_RESULT_BYTES

MAX_MESSAGE_BYTES: Final = 4 * MAX_RESULT_BYTES


class Begin(Struct, frozen=True, tag="begin"):
    call_no: int
    function: str
    execution_id: UUID
    job_id: UUID
    job_name: str
    attempt_no: int
    fire_at: datetime
    payload: bytes
    timeout_s: float | None
    grace_s: float
    checkpoint: str | None
    losses: int
    transaction: str | None
    """What opens the attempt's transaction (`OpenTransaction.elsewhere`); None: there is none."""
    secrets: dict[str, str] | None = None
    results: StepResults | None = None
    run_id: UUID | None = None
    step: str | None = None
    item_no: int | None = None
    hops: int | None = None
    traceparent: str | None = None
    tracestate: str | None = None


class Ask(Struct, frozen=True, tag="cancel"):
    """The call was cancelled: it has its grace."""

    call_no: int


class Drop(Struct, frozen=True, tag="drop"):
    """The worker is stopping: the report of this call is no longer wanted."""

    call_no: int


class Ready(Struct, frozen=True, tag="ready"):
    """The app is imported."""


class Said(Struct, frozen=True, tag="said"):
    call_no: int
    stream: Literal["log", "stdout", "stderr"]
    line: str


class Progressed(Struct, frozen=True, tag="progress"):
    call_no: int
    fraction: float | None
    message: str | None
    checkpoint: str | None


class Done(Struct, frozen=True, tag="done", omit_defaults=True):
    """The report; none of the three if the call was dropped. `left_behind`: functions that do not end."""

    call_no: int
    succeeded: Succeeded | None = None
    failed: Failed | None = None
    cancelled: Cancelled | None = None
    left_behind: int = 0


Down = Begin | Ask | Drop
Up = Ready | Said | Progressed | Done

DOWN: Final[msgspec.json.Decoder[Down]] = msgspec.json.Decoder(Down)
UP: Final[msgspec.json.Decoder[Up]] = msgspec.json.Decoder(Up)

_ENCODER: Final = msgspec.json.Encoder()

M = TypeVar("M")


def encode(message: Down | Up) -> bytes:
    return _ENCODER.encode(message) + b"\n"


class Messages(Generic[M]):
    """Splits a stream into messages. Raises ValueError for an invalid one."""

    def __init__(self, decoder: msgspec.json.Decoder[M], receive: Callable[[M], None]) -> None:
        self._decoder = decoder
        self._receive = receive
        self._partial = bytearray()

    def feed(self, data: bytes) -> None:
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            line = bytes(self._partial) + data[start:end] if self._partial else data[start:end]
            self._partial.clear()
            start = end + 1
            try:
                message = self._decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise ValueError(f"it sent an invalid message: {error}") from None
            self._receive(message)
        self._partial += data[start:]
        if len(self._partial) > MAX_MESSAGE_BYTES:
            raise ValueError(f"it sent a message of more than {MAX_MESSAGE_BYTES:,} bytes")
