"""From a problem (RFC 9457) back to the error that the server meant: the other end of `api.problems`."""

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
    """The errors by their codes; of those that share one, the root."""
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
    """The error of an answer. `facts` has what the problem carried besides its sentence, and the status."""
    kind = str(answer.get("type", "")) if isinstance(answer, dict) else ""
    if not kind.startswith(TYPE):
        return _not_ondots(status, url)
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


def _not_ondots(status: int, url: str) -> OndotError:
    """A proxy on the way, or some other server."""
    message = f"{url} answered {status}, and not as ondot does; is that the address of an ondot server?"
    return _BY_STATUS.get(status, OndotError)(message, status=status)
