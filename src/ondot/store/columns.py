"""Columns as arguments: what is the same for all rows is sent once.

asyncpg takes 0.3 µs for each entry of an array, whatever it is, and of most columns all entries are alike. A statement
that takes such a column unnests it beside the others and fills up from its first entry: `coalesce(n.name, ($3)[1])`.
"""

from typing import TypeVar

T = TypeVar("T")


def collapse_equal(values: list[T]) -> list[T]:
    """The first alone if all are equal, none if all are None."""
    first = values[0] if values else None
    if values.count(first) < len(values):  # type: ignore[arg-type]
        return values
    return [] if first is None else [first]
