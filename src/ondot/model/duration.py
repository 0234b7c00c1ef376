"""Durations as people write them: seconds, `"90s"`, `"15m"`, `"1h30m"`, `"2d"`, or ISO 8601 `"PT15M"`,
`"P1DT2H"`.

Inside ondot a duration is a number of seconds, so that stored specs and responses are the same in every language.
Months and years have no fixed length and are rejected. Text without a unit is rejected too: "15" is ambiguous.
"""

import re
from math import isfinite
from typing import Final

EXPECTED: Final = 'a duration: a number of seconds, or text such as "90s", "15m", "1h30m", "2d" or "PT15M"'

_LONGEST_TEXT: Final = 64
_NUMBER: Final = r"(\d+(?:\.\d+)?)"
# `m(?!s)`: minutes must not match the m of milliseconds.
_SHORT: Final = re.compile(
    rf"(?:{_NUMBER}w)?\s*(?:{_NUMBER}d)?\s*(?:{_NUMBER}h)?\s*(?:{_NUMBER}m(?!s))?\s*(?:{_NUMBER}s)?\s*(?:{_NUMBER}ms)?",
    re.ASCII,
)
_ISO: Final = re.compile(
    rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?=\d)(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.ASCII
)
_ISO_CALENDAR: Final = re.compile(r"P(?=[\d.]*[YM]|[^T]*\dM)", re.ASCII)
_UNITS_S: Final = (604_800.0, 86_400.0, 3_600.0, 60.0, 1.0, 0.001)


def seconds(written: object) -> float:
    """The duration in seconds, never negative. Raises ValueError with the expected form as its text."""
    if isinstance(written, (int, float)) and not isinstance(written, bool):
        return _check(written)
    if not isinstance(written, str) or len(written) > _LONGEST_TEXT:
        raise ValueError(EXPECTED)
    text = written.strip()
    match = _SHORT.fullmatch(text) or _ISO.fullmatch(text)
    if match is None or not any(match.groups()):
        if _ISO_CALENDAR.match(text):
            raise ValueError('a duration of fixed length, which months and years do not have: use days, such as "P30D"')
        raise ValueError(EXPECTED)
    return _check(sum(float(n) * unit for n, unit in zip(match.groups(), _UNITS_S, strict=False) if n))


def as_written(duration_s: float) -> int | float:
    """Seconds for a response: 90 rather than 90.0."""
    return int(duration_s) if duration_s.is_integer() else duration_s


def _check(value: float) -> float:
    try:
        duration_s = float(value)
    except OverflowError:
        raise ValueError(EXPECTED) from None
    if duration_s < 0:
        raise ValueError("a duration of zero or more")
    if not isfinite(duration_s):
        raise ValueError(EXPECTED)
    return duration_s + 0.0  # -0.0 becomes 0.0
