"""A path into JSON, one part at a time: keys of objects, and positions in lists.

Paths are written by users and followed while a run advances or an event is received, so no part may raise.
"""

from collections.abc import Mapping
from typing import Any, Final

MISSING: Final = object()
MOST_DIGITS: Final = 9
"""Of a position. Python refuses to read numbers of thousands of digits, and no list is that long."""


def look_into(value: Any, part: str) -> Any:
    """The value under a key, or at a position of a list; MISSING if there is none."""
    if isinstance(value, Mapping):
        return value.get(part, MISSING)
    if isinstance(value, list) and len(part) <= MOST_DIGITS and part.isascii() and part.isdigit():
        position = int(part)
        return value[position] if position < len(value) else MISSING
    return MISSING
