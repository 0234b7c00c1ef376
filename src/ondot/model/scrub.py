"""Removes the values of secrets from text that is stored or shown: results, errors, output, progress (T5).

A value is found as it is, and in the forms that programs commonly print: escaped as JSON, percent-encoded, as hex, and
in base64, also in the middle of a longer text that was encoded as a whole (a `Basic` header). Of a value with several
lines, each long line is found too, because output is stored line by line. A value that a program changes in another
way, or splits, is not found.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, quote_plus

import msgspec

from ondot.model.outcome import AttemptError, Cancelled, Failed, Interrupted, NoFunction, NotBegun, Report, Succeeded
from ondot.model.secret import MASK, MIN_CHARACTERS

CUT_CHARACTERS: Final = 4_096
"""A text at least this long may have been cut in the middle of a value."""
LONGEST_REST: Final = 1_024
"""Of a value at a cut: a longer one is not looked for."""


class Scrubber:
    def __init__(self, values: Iterable[str]) -> None:
        self._values = [value for value in dict.fromkeys(values) if len(value) >= MIN_CHARACTERS]
        forms = {form for value in self._values for form in _forms(value) if len(form) >= MIN_CHARACTERS}
        # The longest first: of two forms that begin alike, the shorter one would leave the rest of the longer.
        # Not one pattern: to compile that of a value of 64 KiB and its forms took 2.7 s.
        self._forms = sorted(forms, key=lambda form: (-len(form), form))

    def text(self, text: str) -> str:
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return self._without_cut(text) if len(text) >= CUT_CHARACTERS else text

    def json(self, text: str) -> str:
        """JSON text, decoded and encoded again: a value of digits may be a number, and `•••` is none."""
        if not self._forms:
            return text
        try:
            return msgspec.json.encode(self._value(msgspec.json.decode(text))).decode()
        except (msgspec.MsgspecError, RecursionError):
            return msgspec.json.encode(self.text(text)).decode()

    def report(self, report: Report) -> Report:
        match report:
            case Succeeded(result=result):
                return Succeeded(self._optional_json(result))
            case Failed(error=error, result=result):
                return replace(report, error=self._error(error), result=self._optional_json(result))
            case Cancelled(message=message, result=result):
                return replace(report, message=self.text(message), result=self._optional_json(result))
            case Interrupted(reason=reason, detail=detail):
                return replace(report, reason=self.text(reason), detail=self._optional(detail))
            case NotBegun() | NoFunction():
                return report

    def _error(self, error: AttemptError) -> AttemptError:
        return AttemptError(
            error.code,
            self.text(error.message),
            self._optional(error.detail),
            {name: self._value(fact) for name, fact in error.facts.items()},
        )

    def _value(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self._value(key): self._value(item) for key, item in value.items()}
            case list() | tuple():
                return [self._value(item) for item in value]
            case bool() | None:
                return value
            case int() | float():
                return MASK if self.text(str(value)) != str(value) else value
            case _:
                return value

    def _optional(self, text: str | None) -> str | None:
        return None if text is None else self.text(text)

    def _optional_json(self, text: str | None) -> str | None:
        return None if text is None else self.json(text)

    def _without_cut(self, text: str) -> str:
        """Without the end of a value at the start of a text, and its beginning at the end."""
        for value in self._values:
            for size in range(min(len(value) - 1, LONGEST_REST), MIN_CHARACTERS - 1, -1):
                if text.startswith(value[-size:]):
                    text = MASK + text[size:]
                if text.endswith(value[:size]):
                    text = text[:-size] + MASK
        return text


def _forms(value: str) -> Iterator[str]:
    yield from _forms_of(value)
    yield from _forms_of(value.strip())
    yield from (line.strip() for line in value.splitlines())


def _forms_of(text: str) -> Iterator[str]:
    raw = text.encode(errors="surrogatepass")
    yield text
    for ascii_only in (True, False):
        escaped = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
        yield escaped
        yield escaped.replace("/", "\\/")
    for encoded in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield encoded
        yield re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), encoded)
    yield raw.hex()
    yield raw.hex().upper()
    for offset in range(3):
        # The characters at the edges also depend on the neighbours of the value.
        padded = b64encode(bytes(offset) + raw).decode()
        spare = 3 - (len(raw) + offset) % 3 if (len(raw) + offset) % 3 else 0
        inner = padded[(offset * 8 + 5) // 6 : len(padded) - (spare + 1 if spare else 0)]
        yield inner
        yield inner.replace("+", "-").replace("/", "_")


class SecretValues:
    """The values of the secrets of one attempt: those that its function may read, and all that are scrubbed."""

    __slots__ = ("_by_name", "_others", "scrubber")

    def __init__(self, by_name: Mapping[str, str], others: Iterable[str] = ()) -> None:
        self._by_name = dict(by_name)
        self._others = tuple(others)
        self.scrubber: Final = Scrubber([*self._by_name.values(), *self._others])

    def __repr__(self) -> str:
        return f"<SecretValues {', '.join(self._by_name)}>"

    @property
    def names(self) -> list[str]:
        return sorted(self._by_name)

    def get(self, name: str) -> str | None:
        return self._by_name.get(name)

    def pass_on(self) -> dict[str, str]:
        """The values by name, for the pipe to a child process and nothing else."""
        return dict(self._by_name)
