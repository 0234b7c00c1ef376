"""From the flags of `ondot job create`, or a file, to the body that the API takes.

Flags become the long form of the contract, so that pointers of faults read the same for flags and files. Only what the
flags alone can get wrong is refused here; everything else is the server's to judge.
"""

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer


def body_of_file(name: str) -> dict[str, Any]:
    """A job in a JSON file; `-` is standard input."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{name} is not UTF-8 text.", param_hint="-f") from error
    except OSError as error:
        raise typer.BadParameter(f"{name} cannot be read: {error.strerror}.", param_hint="-f") from error
    body = json_of(text, "-f")
    if not isinstance(body, dict):
        raise typer.BadParameter("A job is a JSON object, in braces.", param_hint="-f")
    return body


def body_of_flags(
    *,
    name: str | None,
    schedule: dict[str, str | None],
    timezone: str | None,
    jitter: str | None,
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
) -> dict[str, Any]:
    target = _target(url, method, headers, function, command)
    when = {kind: written for kind, written in schedule.items() if written is not None}
    if len(when) > 1:
        raise typer.BadParameter(f"Give one of {_flags(when)}: a job has one schedule.")
    around = {"timezone": timezone, "jitter": _duration(jitter)}
    body: dict[str, Any] = {
        "name": name,
        "schedule": {kind: written if kind in {"cron", "at"} else _duration(written) for kind, written in when.items()}
        | {field: value for field, value in around.items() if value is not None},
        "target": target,
        "payload": None if payload is None else json_of(payload, "--payload"),
        "pool": pool,
        "priority": priority,
        "retry": None if retries is None else {"max_retries": retries},
        "timeout": _duration(timeout),
        "key": key,
        "labels": _pairs(labels, "--label", "team:bi"),
    }
    return {field: value for field, value in body.items() if value not in (None, {})}


def json_of(text: str, flag: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"This is not JSON: {error}.", param_hint=flag) from error


def refuse_no_text(body: dict[str, Any]) -> None:
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
    url: str | None, method: str | None, headers: Sequence[str], function: str | None, command: str | None
) -> dict[str, Any]:
    given = {"url": url, "function": function, "command": command}
    chosen = {flag: value for flag, value in given.items() if value is not None}
    if len(chosen) != 1:
        said = f"Give one of {_flags(chosen)}" if chosen else f"Say what to call: {_flags(given)}, or a file with -f"
        raise typer.BadParameter(f"{said}.")
    if url is None and (method is not None or headers):
        raise typer.BadParameter("--method and --header go with --url.")
    if url is not None:
        http = {"url": url, "method": method, "headers": _pairs(headers, "--header", "x-team:bi")}
        return {"http": {field: value for field, value in http.items() if value not in (None, {})}}
    return {"function": function} if function is not None else {"shell": {"command": _argv(command or "")}}


def _argv(command: str) -> list[str]:
    """Split as a shell would, and nothing else that a shell does: no shell runs it."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"{command!r} cannot be split into words: {error}.", param_hint="--command") from error


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


def _flags(names: dict[str, Any]) -> str:
    return " or ".join(f"--{name}" for name in names)
