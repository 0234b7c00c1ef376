"""Secrets as a job refers to them (T5): references, sealed headers, and where a secret may go.

A reference `{"$secret": "stripe"}` may be the value of a header, or any value inside the payload of a spec. A header
that is known to carry credentials and was given in plain is stored sealed. Outputs show it as `•••`, and `•••` sent
back means: unchanged. Nothing here knows a value; `flow.secrets` fills them in at each attempt.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from msgspec import Struct, field

MASK: Final = "•••"
_MARK: Final = b'"$secret"'
REFERENCE: Final = "$secret"
MAX_NAME: Final = 63
MIN_CHARACTERS: Final = 8
"""A shorter value would be scrubbed out of innocent text, and could be guessed."""
MAX_BYTES: Final = 64 * 1024
MAX_PREFIX: Final = 100
A_REFERENCE: Final = '{"$secret": "stripe"}'

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]*")
_HOST: Final = re.compile(r"(\*\.)?[a-z0-9_.:-]+|\[[0-9a-f:.]+\]")


class Hidden(Struct, frozen=True, omit_defaults=True):
    """The value of a header that no output shows: a reference, a sealed value, or, with neither, `•••` (unchanged)."""

    secret: str | None = field(default=None, name="$secret")
    prefix: str = ""
    sealed: str | None = field(default=None, name="$sealed")
    mark: str | None = None
    """A keyed hash of a sealed value: two values are equal if their marks are."""

    @property
    def is_unchanged(self) -> bool:
        return self.secret is None and self.sealed is None

    def render(self) -> str | dict[str, str]:
        return MASK if self.secret is None else as_written(self.secret, self.prefix)


class Destinations(Struct, frozen=True):
    """Where a secret may go. With neither hosts nor functions listed: to any target; else only to the listed ones."""

    hosts: tuple[str, ...] | None = None
    functions: tuple[str, ...] | None = None
    pools: tuple[str, ...] | None = None

    def allows_host(self, host: str) -> bool:
        if self.hosts is None:
            return self.functions is None
        return any(_matches(listed, host.lower()) for listed in self.hosts)

    def allows_function(self, name: str) -> bool:
        return self.hosts is None if self.functions is None else name in self.functions

    @property
    def allows_programs(self) -> bool:
        return self.hosts is None and self.functions is None

    def allows_pool(self, name: str) -> bool:
        return self.pools is None or name in self.pools


def is_secret_name(name: str) -> bool:
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None


def is_host(text: str) -> bool:
    """A host's name or address, or `*.` and a domain, in lower case."""
    return len(text) <= 253 and _HOST.fullmatch(text) is not None


def as_written(name: str, prefix: str = "") -> dict[str, str]:
    return {REFERENCE: name, "prefix": prefix} if prefix else {REFERENCE: name}


def read_reference(value: Mapping[str, Any]) -> Hidden | str:
    """The reference in an object that has `$secret`; or what is wrong with it, as a sentence."""
    name, prefix = value.get(REFERENCE), value.get("prefix", "")
    if unknown := value.keys() - {REFERENCE, "prefix"}:
        return f"A reference to a secret takes `$secret` and `prefix` only, got `{min(unknown)[:60]}`."
    if not isinstance(name, str) or not is_secret_name(name):
        return (
            f"`$secret` takes the name of a secret, for example {A_REFERENCE}: at most {MAX_NAME} lower-case letters,"
            " digits, _ . and -, a letter or digit first."
        )
    if not isinstance(prefix, str) or len(prefix) > MAX_PREFIX:
        return f'`prefix` is text of at most {MAX_PREFIX} characters before the value, for example "Bearer ".'
    return Hidden(secret=name, prefix=prefix)


def may_refer(payload: bytes) -> bool:
    """Whether the text of a payload may have a reference; one without is not searched.

    The first test takes 2 µs for 200 kB, and the second one, which few payloads need, 110.
    """
    return b"$" in payload and _MARK in payload


def find_references(value: object, pointer: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The objects with `$secret` in a payload, each with its JSON pointer."""
    nodes = [(pointer, value)]
    while nodes:
        place, node = nodes.pop()
        if isinstance(node, dict):
            if REFERENCE in node:
                yield place, node
            else:
                nodes += [(f"{place}/{_escaped(key)}", item) for key, item in node.items()]
        elif isinstance(node, list):
            nodes += [(f"{place}/{i}", item) for i, item in enumerate(node)]


def fill_in(value: object, value_of: Callable[[str], str]) -> object:
    """A payload with its references replaced by values. Objects that are no valid reference stay as they are."""
    if isinstance(value, dict):
        if REFERENCE in value:
            found = read_reference(value)
            return value if isinstance(found, str) else found.prefix + value_of(found.secret or "")
        return {key: fill_in(item, value_of) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_in(item, value_of) for item in value]
    return value


def fill_in_written(template: object, value: object, value_of: Callable[[str], str]) -> object:
    """The same for a payload that was made of a template: references are filled in only where the template has the
    same one. Others are data, which a result or a run brought."""
    if isinstance(template, dict) and isinstance(value, dict):
        if REFERENCE in template:
            return fill_in(value, value_of) if template == value else value
        return {
            key: fill_in_written(template[key], item, value_of) if key in template else item
            for key, item in value.items()
        }
    if isinstance(template, list) and isinstance(value, list) and len(template) == len(value):
        return [fill_in_written(part, item, value_of) for part, item in zip(template, value, strict=True)]
    return value


def _escaped(segment: str) -> str:
    return segment.replace("~", "~0").replace("/", "~1")


def _matches(listed: str, host: str) -> bool:
    return host.endswith(listed[1:]) and len(host) >= len(listed) if listed.startswith("*.") else host == listed
