"""Text that can be stored, for all targets.

The output of a receiver, a program or an exception may contain anything. PostgreSQL rejects NUL in text, and UTF-8 has
no lone surrogates: both are replaced here, before a line or a message leaves its target.
"""

MAX_MESSAGE = 1_000


def storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")


def storable_bytes(data: bytes) -> str:
    return data.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")


def one_line(text: str) -> str:
    """The first line that is not blank, cut if it is long."""
    line = next((line.strip() for line in storable(text).splitlines() if line.strip()), "")
    return line if len(line) <= MAX_MESSAGE else f"{line[:MAX_MESSAGE]}…"
