"""`H` in cron: a value that spreads jobs over a field, each job its own and always the same (S2).

`H` is one value of the field's range, `H(0-29)` one of these values, `H/15` starts somewhere in the first 15 and
continues in steps of 15, `H(0-29)/10` the same within these; in any field, and in lists. Days of the month are spread
over 1 to 28, so that every month has them. The value comes from a hash of the job's seed, the field, and the term's
place in it: evenly distributed, and the minute does not depend on the hour.

Resolving returns text without `H`, which is parsed and cached like any other: 100,000 jobs with `H H * * *` share 1,440
expressions. A resolved `H` is a number or a range, not a wildcard, so `H/2` names fixed hours of the day.
"""

import re
from collections.abc import Callable
from functools import lru_cache, partial
from hashlib import blake2b
from typing import Final, NoReturn
from uuid import UUID

from ondot.model.errors import Fault, InvalidSchedule

# Second, minute, hour, day of month, month, day of week: the range of H alone, and the last value of the field.
_RANGES: Final = ((0, 59), (0, 59), (0, 23), (1, 28), (1, 12), (0, 6))
_LAST: Final = (59, 59, 23, 31, 12, 7)
_NAMES: Final = {
    4: ("", "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
    5: ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"),
}
_TERM: Final = re.compile(r"H(?:\((\w+)-(\w+)\))?(?:/(\d{1,3}))?", re.ASCII)
_BEGINS: Final = re.compile(r"(?:^|[\s,])H(?![A-Z])", re.IGNORECASE)

# Which of `size` values: of a field, of a term in it.
Choose = Callable[[int, int, int], int]


def spread_of(job_id: UUID) -> int:
    """The job's seed: never 0, and small enough to be exact in the JSON of every language."""
    return int.from_bytes(blake2b(job_id.bytes, digest_size=6, person=b"ondot-spread").digest(), "big") or 1


@lru_cache(maxsize=2048)
def is_spread(text: str) -> bool:
    """Whether a cron text has an H."""
    return not text.lstrip().startswith("@") and _BEGINS.search(text) is not None


def resolve(text: str, spread: int) -> str:
    """The expression with a job's values in place of each H."""
    seed = spread.to_bytes(8, "big")

    def choose(field: int, place: int, size: int) -> int:
        hashed = blake2b(seed + bytes((field, place & 0xFF)), digest_size=8, person=b"ondot-spread").digest()
        return int.from_bytes(hashed, "big") * size >> 64

    return resolve_by(text, choose)


def resolve_by(text: str, choose: Choose) -> str:
    """The expression with each H resolved by `choose`; raises InvalidSchedule for an H that cannot be parsed."""
    fields = text.upper().split()
    if len(fields) not in {5, 6} or not is_spread(text):
        return text  # `expression` checks the number of fields
    skip = 6 - len(fields)
    return " ".join(
        _field(text, number + skip, field, choose) if "H" in field else field for number, field in enumerate(fields)
    )


def _field(text: str, number: int, field: str, choose: Choose) -> str:
    terms = enumerate(field.split(","))
    return ",".join(
        _term(text, number, term, partial(choose, number, place)) if term.startswith("H") else term
        for place, term in terms
    )


def _term(text: str, number: int, term: str, choose: Callable[[int], int]) -> str:
    match = _TERM.fullmatch(term)
    if match is None:
        _refuse(text, term, "write H, H/15, H(0-29) or H(0-29)/10")
    low, high = _RANGES[number]
    if match[1] is not None:
        first, last = (_number(number, name) for name in match.group(1, 2))
        if first is None or last is None or not low <= first <= last <= _LAST[number]:
            _refuse(text, term, f"its range must be within {low} and {_LAST[number]}, and not run backwards")
        low, high = first, last
    size = high - low + 1
    if match[3] is None:
        return str(low + choose(size))
    step = int(match[3])
    if not 1 <= step <= size:
        _refuse(text, term, f"its step must be between 1 and {size}, the number of values")
    return f"{low + choose(step)}-{high}/{step}"


def _number(field: int, name: str) -> int | None:
    if name.isdigit():
        return int(name) if len(name) <= 2 else None
    names = _NAMES.get(field, ())
    return names.index(name) if name in names else None


def _refuse(text: str, term: str, advice: str) -> NoReturn:
    message = f'The cron expression "{text[:80]}" is not valid: {term[:40]!r} cannot be parsed; {advice}.'
    raise InvalidSchedule(message, faults=(Fault("/cron", message),), cron=text[:255])
