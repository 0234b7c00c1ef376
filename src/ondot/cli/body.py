"""From the flags of `ondot job create` and `update`, or a file, to the body that the API takes.

Flags become the long form of the contract, so that pointers of faults read the same for flags and files. Only mistakes
that flags alone can make are rejected here. The server checks everything else.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import typer

from ondot.cli.errors import named_once
from ondot.cli.flags import (
    FLAGS,
    flag_name,
    flags_by_pointer,
    given,
    parse_json,
    parse_payload,
    put_flags,
    text_of_file,
)
from ondot.model.errors import Fault, InvalidBody

Json = dict[str, Any]

SCHEDULES: Final = ("cron", "every", "rrule", "at", "in_")
TARGETS: Final = ("url", "function", "command", "grpc", "publish")
FLAG_AT: Final = {
    **flags_by_pointer(FLAGS),
    "/schedule/dst": "--gap, --fold",
    "/schedule/calendar": "--calendar, --business-days",
    "/target/shell": "--command",
}
"""The flag that a part of a body came from."""


def body_of(file: str | None, flags: Mapping[str, Any], *, changes: bool = False) -> Json:
    """The body from a file or from flags."""
    if file is None:
        body = body_of_flags(flags, changes=changes)
    elif given(flags):
        what = "changes" if changes else "job"
        raise typer.BadParameter(f"Give the {what} in a file or as flags, not both.", param_hint="-f")
    else:
        body = body_of_file(file)
    reject_surrogates(body)
    return body


def body_of_file(name: str) -> Json:
    """A job in a JSON file."""
    body = parse_json(text_of_file(name), "-f")
    if not isinstance(body, dict):
        raise typer.BadParameter("A job must be a JSON object, in braces.", param_hint="-f")
    return body


def body_of_flags(flags: Mapping[str, Any], *, changes: bool = False) -> Json:
    """The body of a job; with `changes` only what is to change of an existing one, so that no target is needed."""
    named = given(flags)
    schedules = [name for name in SCHEDULES if name in named]
    if len(schedules) > 1:
        raise typer.BadParameter(f"Give one of {_or(schedules)}: a job has one schedule.")
    targets = [name for name in TARGETS if name in named]
    details = [name for name in ("method", "header") if name in named]
    if len(targets) > 1:
        raise typer.BadParameter(f"Give one of {_or(targets)}.")
    if not targets and (details or not changes):
        raise typer.BadParameter(f"Say what to call: {_or(TARGETS)}, or a file with -f.")
    if details and targets != ["url"]:
        raise typer.BadParameter("--method and --header need --url.")
    if targets != ["grpc"] and (of_grpc := [name for name in ("metadata", "tls") if name in named]) and not changes:
        raise typer.BadParameter(f"{_or(of_grpc)} needs --grpc.")
    return {field: value for field, value in put_flags(flags, FLAGS).items() if value is not None}


def payload_of(written: str | None) -> Json:
    """`--payload` by its field; nothing if it was not given, because null is a payload, too."""
    body = {} if written is None else {"payload": parse_payload(written)}
    reject_surrogates(body)
    return body


def in_flags(refusal: InvalidBody, flags: Mapping[str, str] = FLAG_AT) -> InvalidBody:
    """The same faults at the flags they are about; a fault of no flag keeps its pointer."""
    faults = tuple(Fault(_flag_at(fault.pointer, flags), named_once(fault)) for fault in refusal.faults)
    return type(refusal)(refusal.message, faults=faults)


def reject_surrogates(body: Json) -> None:
    """Bytes of an argument that are not UTF-8, and lone surrogates in JSON, cannot be sent."""
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise typer.BadParameter(
            f"This contains text that is not Unicode: {error.object[error.start :][:20]!r}."
        ) from error


def _flag_at(pointer: str, flags: Mapping[str, str]) -> str:
    outer = pointer
    while outer:
        if outer in flags:
            return flags[outer]
        outer = outer.rpartition("/")[0]
    return pointer


def _or(names: Iterable[str]) -> str:
    return " or ".join(flag_name(name, FLAGS[name]) for name in names)
