"""Packages that only some installations need: each stands in an extra of its own, and a missing one is named with the
command that installs it (C4, E3)."""

from collections.abc import Iterator
from contextlib import contextmanager

from ondot.model.errors import Misconfigured


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Around the imports of an optional package. Raises `Misconfigured` if it is not installed.

    `purpose` starts the message: "The transport redis".
    """
    try:
        yield
    except ImportError as error:
        missing = error.name or extra
        raise Misconfigured(
            f"{purpose} needs the package {missing}, which is not installed: pip install 'ondot[{extra}]'"
        ) from error
