"""Which errors are alike (E10): a short fingerprint of why an attempt failed, by which dead letters are grouped.

Alike are errors of one code, exception type, HTTP status, exit code and signal whose messages differ only in what
changes from run to run: instants, ids, numbers, hex, quoted text, what varies in a path or a query. Tracebacks do not
count: their line numbers move with every release of the user's code. The fingerprint is stored with the error and
searched for, so a change of these rules splits the groups of before from those after.
"""

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

UNKNOWN: Final = "unknown"
"""Under which errors without a fingerprint are grouped."""

_TOLD_BY: Final = ("code", "type", "status", "exit_code", "signal")
_LONGEST: Final = 2_000
_BYTES: Final = 6

# In this order: what comes first would be torn apart by what follows.
_RULES: Final = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"(?<![0-9a-zA-Z])[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}(?![0-9a-zA-Z])", "#"),
        (r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?", "#"),
        # Quoted text; the apostrophe of "can't" opens none.
        (r"(?<!\w)'[^']*'(?!\w)|\"[^\"]*\"|`[^`]*`|“[^”]*”|«[^»]*»", "'…'"),
        (r"\?[^\s'\"]*=[^\s'\"]*", "?…"),
        (r"(?<=/tmp/)[^\s/:,]+", "#"),
        (r"(?<=/)[^\s/:,]*\d[^\s/:,]*", "#"),
        (r"0[xX][0-9a-fA-F]+", "#"),
        (r"(?<![\w-])(?=[\w-]*\d)[\w-]{16,}", "#"),
        (r"(?<![0-9a-zA-Z])(?=[a-fA-F]*\d)[0-9a-fA-F]{6,}(?![0-9a-zA-Z])", "#"),
        (r"\d+(?:[.,:]\d+)*", "#"),
        (r"(?<![\w#])[+-]#", "#"),
        (r"\s+", " "),
    )
)


def fingerprint(error: Mapping[str, Any]) -> str:
    """The fingerprint of an error as it is stored (`AttemptError.as_dict`): twelve hex digits."""
    told = [str(error.get(name, "")) for name in _TOLD_BY]
    text = "\n".join([*told, normalised(str(error.get("message", "")))])
    return blake2b(text.encode(errors="replace"), digest_size=_BYTES).hexdigest()


def normalised(message: str) -> str:
    """A message without what changes from run to run."""
    message = message[:_LONGEST]
    for rule, instead in _RULES:
        message = rule.sub(instead, message)
    return message.strip()
