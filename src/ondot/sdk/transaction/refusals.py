"""Errors of a driver as those of the API (E11). By SQLSTATE, because the SDK imports no driver."""

from typing import Any, Final

from ondot.model.errors import InvalidBody, Misconfigured

_REFUSED: Final = frozenset({"22023", "0A000"})
_NO_ONDOT: Final = frozenset({"3F000", "42883", "42P01"})
_READ_ONLY: Final = "25006"
_NO_RIGHT: Final = "42501"
_FAILED: Final = "25P02"


def translate(error: Exception) -> Exception:
    """An error of the database as the API's error. Any other is the driver's own, which a caller's retry loop knows."""
    cause = _of_the_driver(error)
    state, message = _state(cause), _message(cause)
    if state in _REFUSED:
        return InvalidBody(" ".join(part for part in (message, _hint(cause)) if part))
    if state in _NO_ONDOT:
        return Misconfigured(
            "The database of this connection has no ondot schema, or an older one. Use a connection to the database of "
            f"ONDOT_DATABASE_URL, and run `ondot migrate up` there. PostgreSQL reported: {message}"
        )
    if state == _READ_ONLY:
        return Misconfigured(
            "This transaction is read-only, so no job can be stored in it. Use a transaction that may write, on the "
            f"primary. PostgreSQL reported: {message}"
        )
    if state == _NO_RIGHT:
        return Misconfigured(
            "This connection's role may not enqueue jobs. Grant it the rights that the guide about transactions "
            f"lists. PostgreSQL reported: {message}"
        )
    if state == _FAILED:
        return RuntimeError(
            "The transaction has failed: a statement before this one raised an error, and PostgreSQL ignores what "
            "follows. Roll back, and run the whole transaction again."
        )
    return error


def _of_the_driver(error: BaseException) -> BaseException:
    """SQLAlchemy keeps the driver's error as `orig`, Django as the cause. The innermost one has the hint."""
    found = error
    inner: Any = error
    for _ in range(5):
        inner = getattr(inner, "orig", None) or inner.__cause__
        if inner is None:
            break
        if _state(inner):
            found = inner
    return found


def _state(error: BaseException) -> str | None:
    """psycopg2 calls it pgcode."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def _message(error: BaseException) -> str:
    """Its first line: the text of an error also repeats the hint."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    return str(primary or next(iter(error.args), ""))


def _hint(error: BaseException) -> str | None:
    return getattr(error, "hint", None) or getattr(getattr(error, "diag", None), "message_hint", None)
