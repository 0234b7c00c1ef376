"""SQL as text one can paste into psql: named blocks in `store/sql/<noun>.sql`, one for each statement.

    -- name: lease_executions :many
    -- transition: start        locks: ready rows, SKIP LOCKED        index: ready_pkey
    -- $1 lease_id, $2 worker_id …

`:many`, `:one` and `:none` say what comes back. Tests PREPARE every block on a real database.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Literal, cast

Returns = Literal["many", "one", "none"]

_NAME = re.compile(r"^-- name: (?P<name>\w+) :(?P<returns>many|one|none)$", re.MULTILINE)
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
    source = files("ondot.store").joinpath("sql", f"{noun}.sql").read_text()
    parts = list(_NAME.finditer(source))
    queries = {}
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        text = source[part.start() : following.start() if following else len(source)].strip()
        header = {key: value.strip() for line in _HEADER.findall(text) for key, value in _ENTRY.findall(line)}
        name = part["name"]
        queries[name] = Query(name, cast("Returns", part["returns"]), text.rstrip(";"), header)
    return queries


def nouns() -> list[str]:
    """Every file of blocks there is."""
    return sorted(entry.name.removesuffix(".sql") for entry in files("ondot.store").joinpath("sql").iterdir())
