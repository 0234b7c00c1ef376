"""A function as a worker registers it (D1): what others must know to make a job that calls it."""

import hashlib
from typing import Any, Final

import msgspec
from msgspec import Struct

MAX_DESCRIPTION: Final = 200


class DeclaredFunction(Struct, frozen=True, kw_only=True):
    name: str
    description: str | None
    """The first line of its docstring."""
    options: dict[str, Any]
    """Fields of its jobs, as in a body; keys may be templates that name arguments."""
    argument_defaults: dict[str, Any]
    """As JSON."""
    schema: dict[str, Any] | None
    """Of its arguments; None: nothing is checked."""
    enqueued: dict[str, Any]
    """The options as fields of a spec, for jobs that are enqueued by SQL."""

    @property
    def digest(self) -> str:
        """Two that are equal have the same one."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]
