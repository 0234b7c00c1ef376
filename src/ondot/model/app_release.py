"""Which app a worker runs, and which release of it (D4): what its jobs and functions are recorded under.

The name of an app is that of its code, not of a process: all workers that run the code share it, over all its releases.
"""

from typing import Final

from msgspec import Struct

from ondot.model.text import hidden_in

MAX_APP: Final = 100
MAX_RELEASE: Final = 100


class AppRelease(Struct, frozen=True):
    app: str
    release: str

    def __str__(self) -> str:
        return f"{self.app} {self.release}"


def check_app(name: str) -> str:
    """Raises ValueError if this cannot be the name of an app."""
    return _check("The name of an app", name, MAX_APP)


def check_release(release: str) -> str:
    """Raises ValueError if this cannot name a release."""
    return _check("A release", release, MAX_RELEASE)


def _check(what: str, text: str, longest: int) -> str:
    if not isinstance(text, str):
        raise TypeError(f"{what} is text, got {text!r:.60}.")
    if not 0 < len(text) <= longest or text != text.strip() or hidden_in(text):
        raise ValueError(
            f"{what} is one line of 1 to {longest} visible characters, without blanks around it, got {text[:60]!r}."
        )
    return text
