"""A short fingerprint of an attempt's error (E10). Dead letters with the same fingerprint form a group.

Two errors have the same fingerprint if they have the same code, exception type, HTTP status, exit code and signal, and
their messages differ only in parts that change from run to run: instants, ids, numbers, hex, quoted text, variable
parts of a path or query. Tracebacks do not count: their line numbers change with every release of the user's code. The
fingerprint is stored with the error and searched for, so a change of these rules splits existing groups.
"""

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

UNKNOWN: Final = "unknown"
"""The group of errors without a fingerprint."""

_FIELDS: Final = ("code", "type", "status", "exit_code", "signal")
_LONGEST: Final = 2_000
_BYTES: Final = 6

# The order matters: a later rule would break up the matches of an earlier one.
_RULES: Final = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"(?<![0-9a-zA-Z])[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}(?![0-9a-zA-Z])", "#"),
        (r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?", "#"),
        # Quoted text. The apostrophe of "can't" does not open a quotation.
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
    """The fingerprint of an error as stored (`AttemptError.as_dict`): twelve hex digits."""
    fields = [str(error.get(name, "")) for name in _FIELDS]
    text = "\n".join([*fields, normalise(str(error.get("message", "")))])
    return blake2b(text.encode(errors="replace"), digest_size=_BYTES).hexdigest()


def normalise(message: str) -> str:
    """The message without the parts that change from run to run."""
    message = message[:_LONGEST]
    for rule, instead in _RULES:
        message = rule.sub(instead, message)
    return message.strip()
