"""From a problem (RFC 9457) back to the error that the server raised: the counterpart of `api.problems`."""

from typing import Any, Final

from ondot.model.errors import (
    Conflict,
    Fault,
    Forbidden,
    InvalidBody,
    NotFound,
    OndotError,
    PreconditionFailed,
    TooLarge,
    Unauthorized,
    Unavailable,
)

TYPE: Final = "urn:ondot:problem:"
_OWN_MEMBERS: Final = frozenset({"type", "title", "detail", "instance", "errors"})


def _tree(root: type[OndotError]) -> dict[str, type[OndotError]]:
    """The errors by their codes; the base class, if several share a code."""
    found: dict[str, type[OndotError]] = {}
    for branch in root.__subclasses__():
        found |= _tree(branch)
    return found | {root.code: root}


BY_CODE: Final = _tree(OndotError)

_BY_STATUS: Final[dict[int, type[OndotError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: PreconditionFailed,
    413: TooLarge,
    422: InvalidBody,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def error_of(status: int, answer: Any, url: str) -> OndotError:
    """The error of an answer. `facts` has the status and the other members of the problem."""
    kind = str(answer.get("type", "")) if isinstance(answer, dict) else ""
    if not kind.startswith(TYPE):
        return _foreign_error(status, url)
    assert isinstance(answer, dict)
    code = kind.removeprefix(TYPE)
    error = BY_CODE.get(code, _BY_STATUS.get(status, OndotError))(str(answer.get("detail") or answer.get("title")))
    error.facts = {name: value for name, value in answer.items() if name not in _OWN_MEMBERS} | {"status": status}
    if type(error).code != code:
        error.facts["code"] = code
    if isinstance(error, InvalidBody):
        error.faults = tuple(
            Fault(str(fault.get("pointer", "")), str(fault.get("detail", "")))
            for fault in answer.get("errors", [])
            if isinstance(fault, dict)
        )
    return error


def _foreign_error(status: int, url: str) -> OndotError:
    """The answer of a proxy, or of some other server."""
    message = f"{url} answered {status}, but not as an ondot server does. Is the address right?"
    return _BY_STATUS.get(status, OndotError)(message, status=status)
