"""SQL as text: named blocks in `store/sql/<noun>.sql`, one for each statement.

    -- name: lease_executions :many
    -- transition: start        locks: ready rows, SKIP LOCKED        index: ready_pkey
    -- $1 lease_id, $2 worker_id …

`:many`, `:one` and `:none` state how many rows it returns. Tests PREPARE every block on a real database. `{{plan}}`
includes a fragment: of `transitions.sql`, which has the text of state changes that several blocks share, or of the same
file, where fragments come before the first block.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from textwrap import indent
from typing import Literal, cast

Returns = Literal["many", "one", "none"]

_NAME = re.compile(r"^-- name: (?P<name>\w+) :(?P<returns>many|one|none)$", re.MULTILINE)
_FRAGMENT = re.compile(r"^-- fragment: (\w+)\n(?:--.*\n)*", re.MULTILINE)
_INCLUDE = re.compile(r"(?P<indent>^ *)?\{\{(?P<name>\w+)\}\}", re.MULTILINE)
_HEADER = re.compile(r"^-- +(?P<header>(?:transition|locks|index):.*)$", re.MULTILINE)
_ENTRY = re.compile(r"(transition|locks|index): (.*?)(?= {2,}\w+:|$)")


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    returns: Returns
    text: str
    header: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


def load_queries(noun: str) -> dict[str, Query]:
    """All blocks of one file, by name."""
    source = _read(noun)
    parts = list(_NAME.finditer(source))
    texts = _read_fragments(source[: parts[0].start()], fragments()) if parts else {}
    queries = {}
    for part, following in zip(parts, [*parts[1:], None], strict=False):
        text = _include(source[part.start() : following.start() if following else len(source)].strip(), texts)
        header = {key: value.strip() for line in _HEADER.findall(text) for key, value in _ENTRY.findall(line)}
        name = part["name"]
        queries[name] = Query(name, cast("Returns", part["returns"]), text.rstrip(";"), header)
    return queries


@cache
def fragments() -> Mapping[str, str]:
    """The texts of `transitions.sql` by name."""
    return _read_fragments(_read("transitions"), {})


def _read_fragments(source: str, known: Mapping[str, str]) -> dict[str, str]:
    """The fragments of a text, with those that are known. A fragment may include those before it."""
    _, *parts = _FRAGMENT.split(source)
    found = dict(known)
    for name, text in zip(parts[::2], parts[1::2], strict=True):
        found[name] = _include(text.strip(), found)
    return found


def _include(text: str, texts: Mapping[str, str]) -> str:
    return _INCLUDE.sub(lambda found: indent(texts[found["name"]], found["indent"] or ""), text)


def _read(noun: str) -> str:
    return files("ondot.store").joinpath("sql", f"{noun}.sql").read_text()


def nouns() -> list[str]:
    """The names of all files of blocks."""
    return sorted(entry.name.removesuffix(".sql") for entry in files("ondot.store").joinpath("sql").iterdir())
