"""What a registered function may ask for besides its schedule (E4, E12, E13, E16), and the keys in it.

The options are the fields of a job's body, by the same names; what each may be is in `checks`. `concurrency` and `rate`
are of the function: each enqueue makes a job of its own, so they become limits by a key that all its jobs share, or
that of `concurrency_key` if there is one. Jobs that are made without the handler know nothing of any of it.
Three say what becomes of a job as it is created, and go with what is enqueued only; `overlap` is between the fires of
one job, and goes with the one that recurs.
A key may be a template that is filled from the arguments: `"customer:{customer_id}"`.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from string import Formatter
from typing import Any, Final, TypedDict

import msgspec

from ondot.model.gates import Overlap
from ondot.sdk.checks import OPTIONS, checked, unknown

Duration = timedelta | float | str
"""A timedelta, seconds, or text such as "90s", "15m", "1h30m"."""

OF_SCHEDULE: Final = ("overlap",)
"""Of the job that recurs alone."""

OF_RECURRING: Final = ("key", "pause_after_failures")
"""Of its body beside the options."""

BY_KEY: Final = {"concurrency": "key_concurrency", "rate": "key_rate"}
"""Limits of the function, and how they stand in the bodies of its jobs."""

MAX_KEY: Final = 200

AT_CREATION: Final = ("unique", "debounce", "throttle")
"""Of what is enqueued alone."""

KEYS: Final = ("concurrency_key", "order_key")


class JobOptions(TypedDict, total=False):
    retry: Mapping[str, Any] | None
    overlap: Overlap | None
    concurrency: int | None
    rate: str | Mapping[str, Any] | None
    concurrency_key: str | None
    key_concurrency: int | None
    key_rate: str | Mapping[str, Any] | None
    order_key: str | None
    start_deadline: Duration | None
    cancel_grace: Duration | None
    unique: str | Mapping[str, Any] | None
    debounce: Mapping[str, Any] | None
    throttle: Mapping[str, Any] | None


def checked_options(options: Mapping[str, Any], *, recurs: bool) -> dict[str, Any]:
    """The options as they go into a body, None left out. Raises TypeError for a company that makes no sense."""
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"A job has no option `{name}`; {unknown(name, OPTIONS)}")
    given = checked(OPTIONS, options)
    if "overlap" in given and not recurs:
        raise TypeError(
            "`overlap` says what a fire does that finds the one before it live, and each enqueue makes a job of its "
            "own: use `concurrency` or `throttle`, or give it with `cron`, `every` or `rrule`."
        )
    for name in OF_RECURRING:
        if name in given and not recurs:
            raise TypeError(f"`{name}` is of a job that recurs; give it with `cron`, `every` or `rrule`.")
    for name, by_key in BY_KEY.items():
        if by_key in given and "concurrency_key" not in given:
            raise TypeError(f"`{by_key}` limits by a key; give `concurrency_key` too, or `{name}` for all of it.")
        if by_key in given and name in given:
            raise TypeError(f"With a `concurrency_key`, `{name}` is that of each key, as is `{by_key}`; leave one out.")
    claims = [name for name in AT_CREATION if name in given]
    if len(claims) > 1:
        raise TypeError(
            f"`{claims[0]}` and `{claims[1]}` do not go together: a job takes one of `unique`, which keeps the first "
            "of several, `debounce`, the last, and `throttle`, so many in a time."
        )
    if "retries" in given and "max_retries" in given.get("retry", ()):
        raise TypeError("`retries` is given twice, alone and as `max_retries` in `retry`; leave one out.")
    if "retries" in given:
        given["retry"] = given.get("retry", {}) | {"max_retries": given.pop("retries")}
    return {name: value for name, value in given.items() if value != {}}


def of_function(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The options with the limits of the function as those of a key: its own, or one that all its jobs share."""
    done = {BY_KEY.get(option, option): value for option, value in options.items()}
    if "concurrency_key" not in done and not done.keys().isdisjoint(BY_KEY.values()):
        key = f"function:{name}"
        if len(key) > MAX_KEY:
            raise ValueError(f"{name}: this name is too long to limit it by; give it another, or a `concurrency_key`.")
        # A name is no template.
        done["concurrency_key"] = key.replace("{", "{{").replace("}", "}}")
    return done


def templates(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of these options, each with the option that it is of."""
    for name in (*KEYS, *AT_CREATION):
        key = _key_of(options.get(name))
        if isinstance(key, str):
            yield name, key


def with_keys_filled(options: Mapping[str, Any], filled: Callable[[str, str], str]) -> dict[str, Any]:
    """The options with each template (told with the option that it is of) in its filled form."""
    done = dict(options)
    for name, template in templates(options):
        value = options[name]
        done[name] = {**value, "key": filled(name, template)} if isinstance(value, Mapping) else filled(name, template)
    return done


def names_in(template: str) -> list[str]:
    """The arguments that a template names. Raises ValueError if it is none."""
    names = []
    for _, name, form, conversion in Formatter().parse(template):
        if name is None:
            continue
        if not name.isidentifier() or form or conversion:
            raise ValueError(f"{template!r}: name arguments alone, such as {{customer_id}}; {{{{ is a brace.")
        names.append(name)
    return names


def fill(template: str, arguments: Mapping[str, Any]) -> str:
    """The template with the arguments as they travel in it: text as it is, all else as JSON."""
    parts = []
    for literal, name, _, _ in Formatter().parse(template):
        parts.append(literal)
        if name is not None:
            value = msgspec.to_builtins(arguments[name], str_keys=True)
            parts.append(value if isinstance(value, str) else msgspec.json.encode(value).decode())
    return "".join(parts)


def _key_of(option: object) -> object:
    return option.get("key") if isinstance(option, Mapping) else option
