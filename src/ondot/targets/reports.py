"""The words that all targets share: a report of a timeout, and text that can be stored.

What a receiver, a program or an exception says may hold anything. PostgreSQL takes no NUL in text, and UTF-8 no lone
surrogates; both are replaced here, before a line or a message leaves its target.
"""

from ondot.model.execution import Outcome
from ondot.model.outcome import AttemptError, Failed

MAX_MESSAGE = 1_000


def timed_out(timeout_s: float, remark: str = "") -> Failed:
    message = f"It did not end within its timeout of {timeout_s:g} s.{remark and f' {remark}'}"
    return Failed(AttemptError("timeout", message, facts={"timeout_s": timeout_s}), outcome=Outcome.TIMED_OUT)


def storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")


def storable_bytes(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def one_line(text: str) -> str:
    """The first line that says something, never long."""
    line = next((line.strip() for line in storable(text).splitlines() if line.strip()), "")
    return line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]}…"
