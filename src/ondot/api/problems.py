"""Errors as HTTP responses: one list of codes and statuses, and RFC 9457 problem+json.

The codes are those of `model.errors`; a test compares the two. A problem says what is wrong (`title`), what to do
(`detail`), and for bodies where (`errors`, with JSON pointers into the body). The facts of an error are members of
their own, so that a program does not need to parse the sentence.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ondot.model.errors import InvalidBody, OndotError
from ondot.model.hook import mask_tokens

CONTENT_TYPE: Final = "application/problem+json"
TYPE: Final = "urn:ondot:problem:"

CODES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "error": 500,
        "invalid-request": 400,
        "not-json": 400,
        "invalid-body": 422,
        "invalid-schedule": 422,
        "invalid-graph": 400,
        "invalid-parameters": 422,
        "invalid-query": 422,
        "idempotency-key-reused": 422,
        "too-large": 413,
        "unauthorized": 401,
        "too-many-wrong-keys": 429,
        "too-many-sign-ins": 429,
        "wrong-password": 401,
        "forbidden": 403,
        "not-found": 404,
        "conflict": 409,
        "tenant-suspended": 409,
        "no-secret-key": 409,
        "precondition-failed": 412,
        "queue-full": 429,
        "quota-exceeded": 429,
        "unavailable": 503,
        "held": 503,
        "busy": 503,
        "misconfigured": 500,
    }
)

LONGEST_TEXT: Final = 4_000
_OWN_MEMBERS: Final = frozenset({"type", "title", "status", "detail", "instance", "errors"})


def status_of(error: OndotError) -> int:
    return CODES[error.code]


def problem(error: OndotError, instance: str | None = None) -> dict[str, object]:
    """The body of the response, ready for any JSON encoder: facts that JSON has no type for become text."""
    body: dict[str, object] = {
        "type": f"{TYPE}{error.code}",
        "title": error.title,
        "status": status_of(error),
        "detail": _shorten(error.message),
    }
    if instance is not None:
        body["instance"] = instance
    if isinstance(error, InvalidBody) and error.faults:
        body["errors"] = [
            {"pointer": _shorten(fault.pointer), "detail": _shorten(fault.message)} for fault in error.faults
        ]
    body.update({name: _plain(fact) for name, fact in error.facts.items() if name not in _OWN_MEMBERS})
    return body


def _shorten(text: str) -> str:
    """The text may quote the request: a name of a megabyte is not sent back, and no token of a hook."""
    text = mask_tokens(text)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}…"


def _plain(fact: object) -> object:
    match fact:
        case None | bool() | int() | float():
            return fact
        case str():
            # A plain str: some encoders write a member of an enum by its name.
            return str(fact)
        case list() | tuple() | set() | frozenset():
            return [_plain(item) for item in fact]
        case Mapping():
            return {str(name): _plain(item) for name, item in fact.items()}
        case _:
            return str(fact)
