"""What each option of a registered function may be (E4, E12, E13, E16), told as its module is imported.

The bounds are those of the API, which a program would otherwise meet at its first enqueue, maybe at night. A check
gives the value as it goes into a body, or raises an error that names the option: ValueError for what it cannot be,
TypeError for a field that is unknown or missing. A test holds them together with `document.parse`.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final, get_args

from ondot.model.duration import as_written, seconds
from ondot.model.gates import MAX_AT_ONCE, MAX_IN_A_TIME, Overlap, rate_of
from ondot.model.job import Priority
from ondot.model.retry import Backoff

Check = Callable[[str, Any], Any]
"""Takes the option's name and what was given."""

DAY_S: Final = 86_400
YEAR_S: Final = 366 * DAY_S
LARGEST_INTEGER: Final = 2**31 - 1

_POOL: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
_ERROR_NAME: Final = re.compile(r"[3-5][xX]{2}|[^\W\d][\w.<>]{0,199}")
_ERRORS: Final = 'a list of types of exceptions, statuses and error codes, such as [ValueError, 404, "timeout"]'


def checked(checks: Mapping[str, Check], given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as they go into a body; what is None is left out."""
    return {name: checks[name](name, value) for name, value in given.items() if value is not None}


def unknown(name: str, known: Iterable[str]) -> str:
    """What to say of a name that is none of those."""
    known = list(known)
    close = get_close_matches(name, known, n=1)
    return f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(known)}."


def duration_of(name: str, value: Any) -> int | float:
    """Seconds, from a timedelta, a number of them, or text."""
    try:
        return as_written(seconds(value.total_seconds() if isinstance(value, timedelta) else value))
    except ValueError as error:
        raise _must(name, str(error), value) from None


def _must(name: str, expected: str, came: object) -> ValueError:
    return ValueError(f"`{name}` must be {expected}; {came!r:.80} came.")


def _duration(most_s: float, words: str, *, may_be_zero: bool = False) -> Check:
    def check(name: str, value: Any) -> int | float:
        given_s = duration_of(name, value)
        if given_s > most_s or (given_s == 0 and not may_be_zero):
            raise _must(name, f"a duration of {'at most' if may_be_zero else 'more than 0 and at most'} {words}", value)
        return given_s

    return check


def _whole(least: int, most: int) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _must(name, f"a whole number from {least} to {most:,}", value)
        return value

    return check


def _one_of(words: Collection[str]) -> Check:
    def check(name: str, value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise _must(name, f"one of {', '.join(words)}", value)
        return str(value)

    return check


def _text(name: str, value: Any) -> str:
    """A key: what it is when its template is filled, the API sees."""
    if not isinstance(value, str) or not value.strip():
        raise _must(name, "text that is not blank", value)
    return value


def _pool(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _POOL.fullmatch(value):
        words = "a pool's name: lower-case letters, digits, _ . and -, at most 63, a letter or digit first"
        raise _must(name, words, value)
    return value


def _labels(name: str, value: Any) -> dict[str, str]:
    if (
        not isinstance(value, Mapping)
        or len(value) > 64
        or not all(isinstance(label, str) and 1 <= len(label) <= 63 for label in value)
        or not all(isinstance(text, str) and len(text) <= 255 for text in value.values())
    ):
        raise _must(name, 'at most 64 texts of up to 255 characters by name, such as {"team": "bi"}', value)
    return dict(value)


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _must(name, "True or False", value)
    return value


def _factor(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value <= 100:
        raise _must(name, "a number from 1 to 100", value)
    return value


def _rate(name: str, value: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(value.get("per"), timedelta):
        value = {**value, "per": duration_of(f"{name}.per", value["per"])}
    try:
        rate_of(value)
    except ValueError as error:
        raise _must(name, str(error), value) from None
    return value


def _errors(name: str, value: Any) -> list[str | int]:
    if not isinstance(value, (list, tuple, set, frozenset)) or len(value) > 50:
        raise _must(name, _ERRORS, value)
    return [_error(name, entry) for entry in value]


def _error(name: str, entry: Any) -> str | int:
    """An exception by the name of its type, as an attempt's error has it."""
    match entry:
        case type() if issubclass(entry, BaseException):
            return entry.__qualname__
        case BaseException():
            kind = type(entry).__name__
            raise ValueError(
                f"`{name}` takes types of exceptions, and {entry!r:.80} is an instance of one: write {kind}."
            )
        case bool():
            pass
        case int() if 300 <= entry <= 599:
            return entry
        case str() if _ERROR_NAME.fullmatch(entry) or (entry.isdecimal() and 300 <= int(entry) <= 599):
            return entry
    raise _must(name, _ERRORS, entry)


def _delays(name: str, value: Any) -> list[int | float]:
    if not isinstance(value, (list, tuple)) or len(value) > 100:
        raise _must(name, 'a list of at most 100 durations, such as ["1s", "1m"]', value)
    return [_RETRY_DURATION(name, delay) for delay in value]


def _fields(example: str, checks: Mapping[str, Check], needed: Collection[str] = ()) -> Check:
    """A mapping with these fields and no others."""

    def check(name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise _must(name, f"a mapping such as {example}", value)
        for field in value:
            if field not in checks:
                raise TypeError(f"`{name}` has no `{field}`; {unknown(str(field), checks)}")
        for field in needed:
            if value.get(field) is None:
                raise TypeError(f"`{name}` needs `{field}`, as in {example}.")
        return {field: checks[field](f"{name}.{field}", inner) for field, inner in value.items() if inner is not None}

    return check


def _retry(name: str, value: Any) -> dict[str, Any]:
    fields: dict[str, Any] = _RETRY(name, value)
    if both := [entry for entry in fields.get("never_on", ()) if entry in fields.get("retry_on", ())]:
        raise TypeError(f"{both[0]} stands in `retry_on` and in `never_on`; leave it in one of them.")
    return fields


def _unique(name: str, value: Any) -> Any:
    return _text(name, value) if isinstance(value, str) else _UNIQUE(name, value)


def _debounce(name: str, value: Any) -> dict[str, Any]:
    fields: dict[str, Any] = _DEBOUNCE(name, value)
    if "max_wait" in fields and fields["max_wait"] < fields["wait"]:
        raise _must(f"{name}.max_wait", f"at least `wait`, which is {fields['wait']:g} seconds", value["max_wait"])
    return fields


_RETRY_DURATION: Final = _duration(YEAR_S, "366 days", may_be_zero=True)
_WAIT: Final = _duration(YEAR_S, "366 days")
_RETRY: Final = _fields(
    '{"initial": "2s", "never_on": [ValueError]}',
    {
        "max_retries": _whole(0, 100),
        "backoff": _one_of(get_args(Backoff)),
        "initial": _RETRY_DURATION,
        "factor": _factor,
        "max": _RETRY_DURATION,
        "jitter": _truth,
        "delays": _delays,
        "max_worker_losses": _whole(0, 100),
        "retry_on": _errors,
        "never_on": _errors,
    },
)
_UNIQUE: Final = _fields('{"key": "bill:{account}", "within": "1h"}', {"key": _text, "within": _WAIT}, ("key",))
_DEBOUNCE: Final = _fields(
    '{"key": "index:{document}", "wait": "5s", "max_wait": "1m"}',
    {"key": _text, "wait": _WAIT, "max_wait": _WAIT},
    ("key", "wait"),
)
_THROTTLE: Final = _fields(
    '{"key": "mail:{customer}", "per": "1h", "limit": 1}',
    {"key": _text, "per": _WAIT, "limit": _whole(1, MAX_IN_A_TIME)},
    ("key", "per"),
)

OPTIONS: Final[Mapping[str, Check]] = {
    "retry": _retry,
    "retries": _whole(0, 100),
    "timeout": _duration(7 * DAY_S, "7 days"),
    "priority": _one_of(get_args(Priority)),
    "pool": _pool,
    "labels": _labels,
    "pause_after_failures": _whole(1, LARGEST_INTEGER),
    "key": _text,
    "overlap": _one_of(get_args(Overlap)),
    "concurrency": _whole(1, MAX_AT_ONCE),
    "rate": _rate,
    "concurrency_key": _text,
    "key_concurrency": _whole(1, MAX_AT_ONCE),
    "key_rate": _rate,
    "order_key": _text,
    "start_deadline": _duration(YEAR_S, "366 days"),
    "cancel_grace": _duration(3600, "1 hour", may_be_zero=True),
    "unique": _unique,
    "debounce": _debounce,
    "throttle": _THROTTLE,
}
