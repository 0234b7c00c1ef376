"""Ids and numbers in the address of a page. One that is none of this page's is not found."""

from typing import Final
from uuid import UUID

from fastapi import Request

from ondot.model.errors import NotFound

MOST_DIGITS: Final = 9


def uuid_in(request: Request, what: str) -> UUID:
    text = request.path_params["id"]
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"There is no {what} {text[:60]!r}.") from None


def number_in(request: Request, name: str) -> int:
    text = request.path_params[name]
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS):
        raise NotFound(f"The {name} {text[:60]!r} is no number of this page.")
    return int(text)
