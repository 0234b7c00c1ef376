"""A query as text again: parsing that text yields the same query."""

import re
from typing import Final

from ondot.model.query.query import Query, Term, Value

_PLAIN: Final = re.compile(r"[\w./@+][\w./@+-]*")


def render(query: Query) -> str:
    return " ".join(map(_render_term, query.terms))


def _render_term(term: Term) -> str:
    minus = "-" if term.is_negated else ""
    values = ",".join(map(_render_value, term.values))
    if not term.name:
        return minus + values
    path = "".join(f".{_render_text(segment, _SEGMENT)}" for segment in term.path)
    return f"{minus}{term.name}{path}{term.op.value}{values}"


_SEGMENT: Final = re.compile(r"[\w/@+-]+")


def _render_value(value: Value) -> str:
    if value.parts == ("",):
        return '""'
    return "*".join(_render_text(part, _PLAIN) if part else "" for part in value.parts)


def _render_text(text: str, plain: re.Pattern[str]) -> str:
    if plain.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
