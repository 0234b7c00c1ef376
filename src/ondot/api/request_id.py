"""The id of a request (T6): in its response, in every log line that it causes, and in the audit log.

A client or proxy may send its own as `X-Request-Id`; text that is not a plain id is replaced, because it would end up
in logs. An id that is made here is a random prefix of the process and a count.
"""

import re
import secrets
from contextvars import ContextVar
from itertools import count
from typing import Final

from starlette.types import Scope

HEADER: Final = b"x-request-id"

_PLAIN: Final = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")
_PREFIX: Final = secrets.token_hex(6)
_numbers: Final = count(1)
_in_logs: Final[ContextVar[str]] = ContextVar("structlog_request_id")
"""structlog adds variables with this prefix to each line (`merge_contextvars`)."""


def take_request_id(scope: Scope) -> bytes:
    """The id that the request brings, or a new one; kept with the request, and in its logs."""
    id_ = next((value for name, value in scope["headers"] if name == HEADER), None)
    if id_ is None or not _PLAIN.fullmatch(id_):
        id_ = b"%s-%x" % (_PREFIX.encode(), next(_numbers))
    text = id_.decode()
    scope.setdefault("state", {})["request_id"] = text
    _in_logs.set(text)
    return bytes(id_)


def request_id_of(scope: Scope) -> str | None:
    state = scope.get("state")
    return None if state is None else state.get("request_id")
