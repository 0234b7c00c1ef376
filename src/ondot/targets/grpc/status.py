"""How a gRPC call failed (E4): the server's status, or no answer at all, as a report with rules for its retry.

A status comes with `google.rpc` details: how long to wait (RetryInfo), which fields were wrong (BadRequest), why
(ErrorInfo). They are shown with the attempt, up to 2 KiB. grpcio reports a connection that failed as a status too, with
its own words; those get the codes that HTTP calls use.
"""

import json
import re
from typing import Any, Final

from ondot.model.execution import Outcome
from ondot.model.grpc import is_retried
from ondot.model.outcome import AttemptError, Failed
from ondot.targets.text import one_line, storable

LONGEST_RETRY_AFTER_S: Final = 86_400.0
MAX_DETAIL: Final = 2 * 1024
MAX_DETAILS: Final = 20

_DETAILS: Final = "grpc-status-details-bin"
_NO_CONNECTION: Final = "failed to connect to all addresses"
_TOO_LARGE: Final = "CLIENT: Received message larger than max"
_BROKEN: Final = re.compile(r"socket closed|connection reset|broken pipe|recvmsg|transport closed|goaway|eof", re.I)
_PLACE: Final = re.compile(r".*ipv[46]:\S+: (?:Failed to connect to remote host: )?")
_TLS: Final = re.compile(r"handshake|ssl|tls|verification", re.I)
_PLAINTEXT: Final = "WRONG_VERSION_NUMBER"


def report_error(error: Any, address: str) -> Failed:
    """The report of a grpc.aio.AioRpcError."""
    status, details = error.code().name, error.details() or ""
    if status == "UNAVAILABLE" and details.startswith(_NO_CONNECTION):
        return _report_no_connection(details, address)
    trailing = error.trailing_metadata()
    found = next((value for name, value in trailing or () if name == _DETAILS), None)
    if found is None and status in {"UNAVAILABLE", "INTERNAL"} and _BROKEN.search(details):
        message = f"The connection broke before the reply was complete: {details}"
        return Failed(AttemptError("disconnected", one_line(message)))
    if status == "RESOURCE_EXHAUSTED" and _TOO_LARGE in details:
        message = "The reply is larger than 4 MiB, which is the limit. Let the method return less, or a reference."
        return Failed(AttemptError("bad_response", message), retryable=False)
    shown, retry_after_s = _read_details(found)
    text = one_line(details)
    message = f"The server answered {status}{f': {text}' if text else '.'}"
    return Failed(
        AttemptError("grpc_status", message, detail=shown or _rest_of(details, text), facts={"status": status}),
        retryable=is_retried(status),
        retry_after_s=retry_after_s,
    )


def connect_timed_out(address: str, timeout_s: float) -> Failed:
    message = f"No connection to {address} within the timeout of {timeout_s:g} s."
    return Failed(AttemptError("connect_timeout", message, facts={"timeout_s": timeout_s}), outcome=Outcome.TIMED_OUT)


def _report_no_connection(details: str, address: str) -> Failed:
    reason = _PLACE.sub("", one_line(details), count=1)
    if not _TLS.search(reason):
        return Failed(AttemptError("connect", one_line(f"No connection to {address}: {reason}")))
    advice = ". The server does not speak TLS: set `tls` to false." if _PLAINTEXT in reason else ""
    return Failed(AttemptError("tls", one_line(f"No secure connection to {address}: {reason}{advice}")))


def _rest_of(details: str, shown: str) -> str | None:
    text = storable(details).strip()
    return text[:MAX_DETAIL] if text != shown else None


def _read_details(found: object) -> tuple[str | None, float | None]:
    """The details as text, and how long the server asks to wait."""
    from google.protobuf.message import DecodeError
    from google.rpc import error_details_pb2
    from google.rpc.status_pb2 import Status

    if not isinstance(found, bytes):
        return None, None
    try:
        entries = Status.FromString(found).details
    except DecodeError:
        return None, None
    lines: list[str] = []
    retry_after_s = None
    for entry in entries[:MAX_DETAILS]:
        name = entry.type_url.rpartition("/")[2]
        kind = getattr(error_details_pb2, name.removeprefix("google.rpc."), None)
        if not name.startswith("google.rpc.") or kind is None or not hasattr(kind, "FromString"):
            lines.append(f"{name[:200]} ({len(entry.value):,} bytes)")
            continue
        try:
            detail = kind.FromString(entry.value)
        except DecodeError:
            continue
        if name == "google.rpc.RetryInfo" and detail.HasField("retry_delay"):
            delay = detail.retry_delay
            retry_after_s = min(max(delay.seconds + delay.nanos / 1e9, 0.0), LONGEST_RETRY_AFTER_S)
        lines.append(f"{name.removeprefix('google.rpc.')} {_show(detail)}")
    text = storable("\n".join(lines))
    return text[:MAX_DETAIL] or None, retry_after_s


def _show(detail: Any) -> str:
    from google.protobuf.json_format import MessageToDict

    try:
        return json.dumps(MessageToDict(detail), ensure_ascii=False)
    except ValueError:  # a duration beyond what JSON can say
        return str(detail)
