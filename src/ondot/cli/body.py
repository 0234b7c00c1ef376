"""From the flags of `ondot job create` and `update`, or a file, to the body that the API takes.

Flags become the long form of the contract, so that pointers of faults read the same for flags and files. Only what the
flags alone can get wrong is refused here; everything else is the server's to judge.
"""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import typer

from ondot.cli.errors import named_once
from ondot.cli.limits import FLAGS as LIMIT_FLAGS
from ondot.model.errors import Fault, InvalidBody

Json = dict[str, Any]

DURATIONS: Final = frozenset({"every", "in", "start_deadline", "cancel_grace"})
FLAGS: Final = {
    "/schedule/cron": "--cron",
    "/schedule/every": "--every",
    "/schedule/rrule": "--rrule",
    "/schedule/at": "--at",
    "/schedule/in": "--in",
    "/schedule/timezone": "--timezone",
    "/schedule/dst/gap": "--gap",
    "/schedule/dst/fold": "--fold",
    "/schedule/dst": "--gap, --fold",
    "/schedule/jitter": "--jitter",
    "/schedule/calendar/exclude_holidays": "--calendar",
    "/schedule/calendar/business_days": "--business-days",
    "/schedule/calendar": "--calendar, --business-days",
    "/target/http/url": "--url",
    "/target/http/method": "--method",
    "/target/http/headers": "--header",
    "/target/function": "--function",
    "/target/shell": "--command",
    "/retry/max_retries": "--retries",
    "/name": "--name",
    "/payload": "--payload",
    "/pool": "--pool",
    "/priority": "--priority",
    "/timeout": "--timeout",
    "/key": "--key",
    "/labels": "--label",
    **LIMIT_FLAGS,
}
"""Which flag a part of a body came from."""


def text_of_file(name: str, flag: str = "-f") -> str:
    """The text of a file; `-` is standard input."""
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{name} is not UTF-8 text.", param_hint=flag) from error
    except OSError as error:
        raise typer.BadParameter(f"{name} cannot be read: {error.strerror}.", param_hint=flag) from error


def payload_of(written: str | None) -> Json:
    """`--payload`, as JSON or `@FILE`, by its field; nothing if it was not given: null is a payload, too."""
    if written is None:
        return {}
    text = text_of_file(written[1:], "--payload") if written.startswith("@") else written
    given = {"payload": json_of(text, "--payload")}
    refuse_no_text(given)
    return given


def body_of_file(name: str) -> Json:
    """A job in a JSON file."""
    body = json_of(text_of_file(name), "-f")
    if not isinstance(body, dict):
        raise typer.BadParameter("A job is a JSON object, in braces.", param_hint="-f")
    return body


def schedule_of_flags(
    kinds: Mapping[str, str | None],
    *,
    timezone: str | None = None,
    jitter: str | None = None,
    gap: str | None = None,
    fold: str | None = None,
    calendar: str | None = None,
    business_days: str | None = None,
) -> Json:
    """A schedule in the long form, of `cron`, `every`, `rrule`, `at` or `in` and what goes with it."""
    given = {kind: written for kind, written in kinds.items() if written is not None}
    if len(given) > 1:
        raise typer.BadParameter(f"Give one of {_flags(given)}: a job has one schedule.")
    schedule = {kind: _duration(written) if kind in DURATIONS else written for kind, written in given.items()}
    around = {
        "timezone": timezone,
        "dst": _said({"gap": gap and str(gap), "fold": fold and str(fold)}),
        "jitter": _duration(jitter),
        "calendar": _said(
            {
                "exclude_holidays": calendar,
                "business_days": True if business_days == "true" else business_days and str(business_days),
            }
        ),
    }
    return schedule | _said(around)


def body_of_flags(
    *,
    name: str | None,
    schedule: Json,
    url: str | None,
    method: str | None,
    headers: Sequence[str],
    function: str | None,
    command: str | None,
    payload: str | None,
    pool: str | None,
    priority: str | None,
    retries: int | None,
    timeout: str | None,
    key: str | None,
    labels: Sequence[str],
    limits: Json | None = None,
    changes: bool = False,
) -> Json:
    """The body of a job; with `changes` only what is to change of one that exists, where nothing has to be said."""
    body: Json = {
        "name": name,
        "schedule": schedule,
        "target": _target(url, method, headers, function, command, needed=not changes),
        "payload": payload_of(payload).get("payload"),
        "pool": pool,
        "priority": priority,
        "retry": None if retries is None else {"max_retries": retries},
        "timeout": _duration(timeout),
        "key": key,
        "labels": _pairs(labels, "--label", "team:bi"),
        **{field: _duration(value) if field in DURATIONS else value for field, value in (limits or {}).items()},
    }
    return _said(body)


def in_flags(refusal: InvalidBody, flags: Mapping[str, str] = FLAGS) -> InvalidBody:
    """The same words, at the flags they are about; a fault that is of no flag keeps its pointer."""
    faults = tuple(Fault(_flag_of(fault.pointer, flags), named_once(fault)) for fault in refusal.faults)
    return type(refusal)(refusal.message, faults=faults)


def _flag_of(pointer: str, flags: Mapping[str, str]) -> str:
    outer = pointer
    while outer:
        if outer in flags:
            return flags[outer]
        outer = outer.rpartition("/")[0]
    return pointer


def json_of(text: str, flag: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"This is not JSON: {error}.", param_hint=flag) from error


def refuse_no_text(body: Json) -> None:
    """Bytes of an argument that are no UTF-8, and lone surrogates in JSON, cannot be sent."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(
            f"This holds text that is no Unicode: {error.object[error.start :][:20]!r}."
        ) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no value of JSON")


def _target(
    url: str | None,
    method: str | None,
    headers: Sequence[str],
    function: str | None,
    command: str | None,
    *,
    needed: bool,
) -> Json:
    given = {"url": url, "function": function, "command": command}
    chosen = {flag: value for flag, value in given.items() if value is not None}
    if not chosen and not needed and method is None and not headers:
        return {}
    if len(chosen) != 1:
        said = f"Give one of {_flags(chosen)}" if chosen else f"Say what to call: {_flags(given)}, or a file with -f"
        raise typer.BadParameter(f"{said}.")
    if url is None and (method is not None or headers):
        raise typer.BadParameter("--method and --header go with --url.")
    if url is not None:
        http = {"url": url, "method": method, "headers": _pairs(headers, "--header", "x-team:bi")}
        return {"http": _said(http)}
    return {"function": function} if function is not None else {"shell": {"command": _argv(command or "")}}


def _argv(command: str) -> list[str]:
    """Split as a shell would, and nothing else that a shell does: no shell runs it."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"{command!r} cannot be split into words: {error}.", param_hint="--command") from error


def _said(fields: Mapping[str, Any]) -> Json:
    return {field: value for field, value in fields.items() if value is not None and value != {}}


def _duration(written: str | None) -> str | float | None:
    """A bare number is seconds, as in JSON."""
    if written is None:
        return None
    try:
        number = float(written)
    except ValueError:
        return written
    return int(number) if number.is_integer() else number


def _pairs(written: Sequence[str], flag: str, example: str) -> dict[str, str]:
    pairs = {}
    for pair in written:
        name, colon, value = pair.partition(":")
        if not colon or not name:
            raise typer.BadParameter(f"{pair!r} is no pair: write {example}.", param_hint=flag)
        pairs[name] = value.strip()
    return pairs


def _flags(names: Mapping[str, Any]) -> str:
    return " or ".join(f"--{name}" for name in names)
