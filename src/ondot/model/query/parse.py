"""From a text to a query, in one pass from left to right.

    query   = term*                          all must hold
    term    = ["-"] (values | name ["." path] op values)
    op      = ":" | "=" | "!=" | ">" | ">=" | "<" | "<="
    values  = value ("," value)*             any of them
    value   = (text without spaces, commas and quotes | "*" | a text in double quotes, where \\ escapes)+

Every error names its position, what was expected and, for a name, the nearest one. Values become parameters of
statements, and `*` a wildcard of LIKE. There are no regular expressions.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final, NoReturn

from ondot.model.errors import InvalidQuery
from ondot.model.query.fields import BARE, FIELDS, Field, Kind, Of
from ondot.model.query.query import Op, Query, Term, Value, duration_s, id_range, instant, number

LONGEST: Final = 2_000
MOST_TERMS: Final = 40
MOST_VALUES: Final = 100
MOST_STARS: Final = 10
LONGEST_S: Final = 1e9

_NAME: Final = re.compile(r"[A-Za-z_]+")
_KEY: Final = re.compile(r'[^\s:=<>!,"]+')
_SEGMENT: Final = re.compile(r'[^\s:=<>!,".]+')
_OP: Final = re.compile(r"!=|>=|<=|[:=<>]")
_SOME_DAY: Final = datetime(2026, 1, 1, tzinfo=UTC)
"""To check an instant: whether it can be parsed does not depend on the time."""


def parse(text: str, of: Of = "executions") -> Query:
    """Raises InvalidQuery."""
    return _Parser(text, of).parse()


class _Parser:
    def __init__(self, text: str, of: Of) -> None:
        self.text, self.of, self.at = text, of, 0
        self.fields = FIELDS[of]

    def parse(self) -> Query:
        if len(self.text) > LONGEST:
            raise InvalidQuery(f"The query has {len(self.text):,} characters; {LONGEST:,} are allowed. Shorten it.")
        if (at := self.text.find("\0")) >= 0:
            self.fail(at, "A query must not contain NUL.", "text without NUL")
        terms: list[Term] = []
        while self.skip_space():
            if len(terms) == MOST_TERMS:
                self.fail(self.at, f"A query has at most {MOST_TERMS} terms.", "the end of the query")
            terms.append(self.parse_term())
        return Query(self.of, tuple(terms))

    def skip_space(self) -> bool:
        """Whether something follows."""
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at < len(self.text)

    def parse_term(self) -> Term:
        start = self.at
        is_negated = self.text[start] == "-"
        self.at += is_negated
        name_at = self.at
        name, path, op = self.parse_field()
        if op is None:
            self.at = name_at
            return Term("", self.parse_values(None), is_negated=is_negated, position=start)
        field = self.check_name(name, path, name_at)
        op_at = self.at - len(op)
        if op == "!=":
            op, is_negated = ":", not is_negated
        if op not in {":", "="} and not field.is_compared:
            self.fail(op_at, f"{field.name} cannot be compared with {op}.", ":")
        values = self.parse_values(field)
        operator = Op.IS if op == "=" else Op(op)
        if len(values) > 1 and (operator is not Op.IS or field.kind is Kind.INSTANT):
            self.fail(op_at, f"{field.name}{op} takes one value, got {len(values)}.", "one value")
        self.check_values(field, values, operator, op_at + len(op))
        return Term(field.name, values, operator, path, is_negated, start)

    def parse_field(self) -> tuple[str, tuple[str, ...], str | None]:
        """A name with its path and operator; without an operator it is a word."""
        found = _NAME.match(self.text, self.at)
        if found is None:
            return "", (), None
        self.at = found.end()
        # A key of a label may have dots.
        part = _KEY if found[0].lower() == "label" else _SEGMENT
        path: list[str] = []
        while self.text.startswith(".", self.at):
            self.at += 1
            if self.text.startswith('"', self.at):
                path.append(self.parse_quoted())
            elif segment := part.match(self.text, self.at):
                self.at = segment.end()
                path.append(segment[0])
            else:
                break
        if (op := _OP.match(self.text, self.at)) is None:
            return found[0], tuple(path), None
        self.at = op.end()
        return found[0].lower(), tuple(path), op[0]

    def check_name(self, name: str, path: tuple[str, ...], at: int) -> Field:
        if (field := self.fields.get(name)) is None:
            near = get_close_matches(name[:64], self.fields, n=1)
            known = ", ".join(self.fields)
            advice = f"Did you mean {near[0]}?" if near else f"Use one of: {known}."
            message = f"Unknown field {name[:64]!r}. {advice} To search for a text with a colon, put it in quotes."
            self.fail(at, message, f"one of {known}", near[0] if near else None)
        if field.kind in {Kind.LABEL, Kind.PAYLOAD}:
            if not path or (field.kind is Kind.LABEL and len(path) > 1):
                self.fail(at, f"{name} needs a key after a dot, for example {field.example}.", field.example)
        elif path:
            self.fail(at, f"{name} has no parts: write {field.example}.", field.example)
        return field

    def parse_values(self, field: Field | None) -> tuple[Value, ...]:
        values = [self.parse_value(field)]
        while self.text.startswith(",", self.at):
            self.at += 1
            values.append(self.parse_value(field))
            if len(values) > MOST_VALUES:
                self.fail(self.at, f"A term has at most {MOST_VALUES} values.", "the end of the term")
        return tuple(values)

    def parse_value(self, field: Field | None) -> Value:
        start = self.at
        parts = [""]
        while self.at < len(self.text):
            character = self.text[self.at]
            if character.isspace() or character == ",":
                break
            if character == '"':
                parts[-1] += self.parse_quoted()
                continue
            if character == "*":
                parts.append("")
            else:
                parts[-1] += character
            self.at += 1
        if self.at == start:
            example = f", for example {field.example}" if field else ""
            self.fail(start, f"A value is missing{example}.", field.example if field else "a value")
        if len(parts) > MOST_STARS + 1:
            self.fail(start, f"A value has at most {MOST_STARS} stars.", "fewer stars")
        return Value(tuple(parts))

    def parse_quoted(self) -> str:
        start = self.at
        self.at += 1
        pieces: list[str] = []
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == '"':
                self.at += 1
                return "".join(pieces)
            if character == "\\" and self.text[self.at + 1 : self.at + 2] in {'"', "\\"}:
                self.at += 1
                character = self.text[self.at]
            pieces.append(character)
            self.at += 1
        return self.fail(start, 'A quote is not closed: add ".', '"')

    def check_values(self, field: Field, values: tuple[Value, ...], op: Op, at: int) -> None:
        for value in values:
            if value.has_stars and field.kind not in {Kind.NAME, Kind.PART, Kind.LABEL, Kind.PAYLOAD}:
                self.fail(at, f"{field.name} has no wildcards.", f"a value such as {field.example}")
            if check := _CHECKS.get(field.kind):
                try:
                    check(value)
                except ValueError as error:
                    self.fail(at, f"{field.name} must be {error}, got {value.text[:64]!r}.", str(error))
            elif field.kind is Kind.CHOICE and value.text.lower() not in field.choices:
                near = get_close_matches(value.text[:64].lower(), field.choices, n=1)
                known = ", ".join(field.choices)
                advice = f"Did you mean {near[0]}?" if near else f"Use one of: {known}."
                message = f"Unknown {field.name} {value.text[:64]!r}. {advice}"
                self.fail(at, message, f"one of {known}", near[0] if near else None)
            elif field.kind is Kind.PAYLOAD and op is not Op.IS:
                try:
                    payload_number(value)
                except ValueError as error:
                    self.fail(at, f"{field.name} can be compared with {error}, got {value.text[:64]!r}.", str(error))

    def fail(self, at: int, message: str, expected: str, near: str | None = None) -> NoReturn:
        facts = {"near": near} if near else {}
        raise InvalidQuery(f"{message} (position {at + 1})", position=at + 1, expected=expected, **facts)


def payload_number(value: Value) -> str:
    """A number as PostgreSQL reads it. Raises ValueError with the expected form."""
    text = value.text
    if not re.fullmatch(r"-?[0-9]{1,30}(\.[0-9]{1,30})?", text, re.ASCII):
        raise ValueError("a number such as 42 or -0.5")
    return text


def _check_duration(value: Value) -> None:
    if duration_s(value) > LONGEST_S:
        raise ValueError("a duration of at most 30 years")


_CHECKS: Final[dict[Kind, Callable[[Value], object]]] = {
    Kind.DURATION: _check_duration,
    Kind.NUMBER: number,
    Kind.INSTANT: lambda value: instant(value, _SOME_DAY),
    Kind.ID: id_range,
}

assert all(name in FIELDS[of] for of, name in BARE.items())
