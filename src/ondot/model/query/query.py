"""A query as data: terms that must all hold."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from itertools import product
from math import prod
from typing import Final
from uuid import UUID

from ondot.model.duration import seconds
from ondot.model.query.fields import Of


class Op(StrEnum):
    """`:` and `=` mean the same; `!=` is a negated `:`."""

    IS = ":"
    OVER = ">"
    AT_LEAST = ">="
    UNDER = "<"
    AT_MOST = "<="


MOST_FORMS: Final = 64
"""Of one value: six letters beyond ASCII, each in both cases."""


def _cases(letter: str) -> list[str]:
    """A letter in both cases; of ASCII, of letters without case, and of ß, as it is."""
    if letter.isascii():
        return [letter]
    return sorted({letter, *(case for case in (letter.lower(), letter.upper()) if len(case) == 1)})


@dataclass(frozen=True, slots=True)
class Value:
    """A value as it was written. `parts`: the texts between its stars; one part if it has none."""

    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return "*".join(self.parts)

    @property
    def has_stars(self) -> bool:
        return len(self.parts) > 1

    def as_like(self, *, part: bool = False) -> str:
        """A pattern for LIKE, whose escape is the backslash: characters that mean something there are escaped."""
        escaped = "%".join(text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for text in self.parts)
        return f"%{escaped}%" if part else escaped

    def as_ilikes(self, *, part: bool = False, most: int = MOST_FORMS) -> list[str]:
        """Patterns for ILIKE ANY that ignore the case of every letter. By itself ILIKE does that only for ASCII if the
        server's locale is C, so each other letter is written in both cases. A text with more than `most` such forms
        is searched as it is written, in lower case, in upper case, and with capitals."""
        like = self.as_like(part=part)
        if like.isascii():
            return [like]
        cases = [_cases(letter) for letter in like]
        if prod(map(len, cases)) <= most:
            return ["".join(letters) for letters in product(*cases)]
        lower = like.lower()
        capital = re.sub(r"\w", lambda first: first[0].upper(), lower, count=1)
        return list(dict.fromkeys((like, lower, like.upper(), like.title(), capital)))


@dataclass(frozen=True, slots=True)
class Term:
    """One condition: any of the values holds, or with `is_negated` none. `name` "": a word without a field.

    `path`: what follows the name after a dot, for labels and payloads.
    """

    name: str
    values: tuple[Value, ...]
    op: Op = Op.IS
    path: tuple[str, ...] = ()
    is_negated: bool = False
    position: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Query:
    of: Of
    terms: tuple[Term, ...] = ()

    def named(self, *names: str) -> Iterator[Term]:
        """The terms with these fields."""
        return (term for term in self.terms if term.name in names)

    def asks_for(self, name: str, *values: str) -> bool:
        """Whether a term that is not negated has the field and, if given, one of these values."""
        return any(
            not term.is_negated and (not values or any(value.text.lower() in values for value in term.values))
            for term in self.named(name)
        )


def merge(query: Query, terms: Iterable[Term]) -> Query:
    """The query with more terms: the parameters of a list besides `q`."""
    return replace(query, terms=(*query.terms, *terms))


def term(name: str, *texts: str, op: Op = Op.IS) -> Term:
    """A term of a parameter: its texts have no stars."""
    return Term(name, tuple(Value((text,)) for text in texts), op)


def duration_s(value: Value) -> float:
    """A duration; a number alone is seconds. Raises ValueError with the expected form."""
    return seconds(f"{value.text}s" if value.text.isascii() and value.text.isdigit() else value.text)


def number(value: Value) -> int:
    """Raises ValueError with the expected form."""
    text = value.text
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError("a whole number below 1,000,000,000")
    return int(text)


LONGEST_S = 100 * 366 * 86_400.0
FIRST_AT, LAST_AT = datetime(1970, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
INSTANTS = "a duration back from now such as 24h, a date such as 2026-11-15, or an instant such as 2026-11-15T06:00Z"


def instant(value: Value, now: datetime) -> datetime:
    """An instant, or that long before `now`; today and yesterday begin at midnight UTC. Raises ValueError."""
    text = value.text
    midnight = datetime(now.year, now.month, now.day, tzinfo=UTC)
    match text.lower():
        case "now":
            return now
        case "today":
            return midnight
        case "yesterday":
            return midnight - timedelta(days=1)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        pass
    else:
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        try:
            at = at.astimezone(UTC)
        except OverflowError:
            raise ValueError(f"an instant between {FIRST_AT.year} and {LAST_AT.year}") from None
        if not FIRST_AT <= at <= LAST_AT:
            raise ValueError(f"an instant between {FIRST_AT.year} and {LAST_AT.year}")
        return at
    if text.isascii() and text.isdigit():
        # As everywhere, a number alone may be seconds only where a duration is asked for.
        raise ValueError(
            f"{text[:9]}h, {text[:9]}m or {text[:9]}s to count back from now, or a date such as 2026-11-15"
        )
    try:
        back_s = duration_s(value)
    except ValueError:
        raise ValueError(INSTANTS) from None
    return max(now - timedelta(seconds=min(back_s, LONGEST_S)), FIRST_AT)


def span(value: Value, now: datetime) -> tuple[datetime, datetime] | None:
    """The day that a value names, from midnight to midnight UTC; None: it names an instant."""
    if value.text.lower() not in {"today", "yesterday"}:
        try:
            date.fromisoformat(value.text)
        except ValueError:
            return None
    at = instant(value, now)
    return at, at + timedelta(days=1)


def whole_id(value: Value) -> UUID | None:
    """The id, if the value is a whole one."""
    try:
        return UUID(value.text) if len(value.text) in {32, 36} else None
    except ValueError:
        return None


def id_range(value: Value) -> tuple[UUID, UUID]:
    """The first and the last id that begin with these characters. Raises ValueError."""
    digits = value.text.replace("-", "").lower()
    if not 4 <= len(digits) <= 32 or digits.strip("0123456789abcdef"):
        raise ValueError("an id, or its first 4 characters and more")
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))
