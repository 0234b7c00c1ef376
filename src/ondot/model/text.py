"""Text that people read: which characters a name may not contain, and how stored ones are shown.

A name, key, label or reason is one line of visible characters. Control characters can steer a terminal, a right-to-left
override shows `gpj.exe` as `exe.jpg`, and characters without width make two names look the same. Such characters are
rejected on input. Where older text is written to a terminal, a page or a message, they are shown by their numbers.
"""

import unicodedata
from typing import Final

MAX_NAME: Final = 200
"""Characters of a name or key."""

_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_BLANK_LETTERS: Final = frozenset("\u115f\u1160\u3164\uffa0")
"""Letters without a shape: Hangul fillers."""


def hidden_in(text: str) -> str | None:
    """The number and name of the first invisible character of a text; None if all are visible."""
    if text.isprintable() and _BLANK_LETTERS.isdisjoint(text):
        return None
    for place, char in enumerate(text, start=1):
        if _is_hidden(char):
            name = unicodedata.name(char, "a control character" if unicodedata.category(char) == "Cc" else "")
            return f"U+{ord(char):04X}{', ' if name else ''}{name.lower()}, at character {place}"
    return None


def is_function_name(name: str) -> bool:
    """Whether a function may have this name: what can be seen, without blanks and backslashes."""
    return 0 < len(name) <= MAX_NAME and not hidden_in(name) and not any(c.isspace() or c == "\\" for c in name)


def visible(text: str) -> str:
    """The text with invisible characters shown by their numbers; line breaks and tabs stay."""
    if text.isprintable() and _BLANK_LETTERS.isdisjoint(text):
        return text
    return "".join(_escape(char) if char not in "\n\t" and _is_hidden(char) else char for char in text)


def _escape(char: str) -> str:
    """As JSON writes it, so that text in JSON means the same."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))


def _is_hidden(char: str) -> bool:
    return char in _BLANK_LETTERS or (not char.isprintable() and unicodedata.category(char) in _HIDDEN)
