"""Flags that several commands share, in lists: those of a job, and those that choose dead letters.

Each flag knows its place in the body, as a JSON pointer. So the body is built from the list, and a fault that the
server finds at a pointer is reported at the flag.
"""

import inspect
import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ondot.cli.complete import complete_names
from ondot.cli.names import Id, parser_of
from ondot.model.grpc import A_METHOD, AN_ADDRESS

Json = dict[str, Any]
Command = Callable[..., None]

Gap = StrEnum("Gap", ["SHIFT", "SKIP"])
Fold = StrEnum("Fold", ["FIRST", "LAST", "BOTH"])
BusinessDays = StrEnum("BusinessDays", ["TRUE", "NEXT", "PREVIOUS"])
Overlap = StrEnum("Overlap", ["ALLOW", "SKIP", "QUEUE", "CANCEL"])


@dataclass(frozen=True, slots=True)
class Flag:
    pointer: str
    help: str
    metavar: str | None = None
    kind: Any = str
    read: Callable[[Any], Any] | None = None
    """From the value as it was typed to the value in the body; None: it stays as it is."""
    names: tuple[str, ...] = ()
    """If they do not follow from the parameter's name."""
    thing: str | None = None
    """The kind of thing that it names; the shell completes it."""

    def option(self) -> Any:
        more: Json = {} if self.thing is None else {"autocompletion": complete_names(self.thing)}
        if self.kind is Id and self.thing is not None:
            more["parser"] = parser_of(self.thing)
        return Annotated[self.kind | None, typer.Option(*self.names, metavar=self.metavar, help=self.help, **more)]

    def put(self, value: Any, body: Json) -> None:
        *outer, last = self.pointer.strip("/").split("/")
        for name in outer:
            body = body.setdefault(name, {})
        body[last] = value if self.read is None else self.read(value)


Flags = Mapping[str, Flag]


def takes_flags(flags: Flags) -> Callable[[Command], Command]:
    """Give a command these flags in the place of its `**flags`; its keyword-only options follow them in the help."""
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=flag.option())
        for name, flag in flags.items()
    ]

    def decorate(command: Command) -> Command:
        own = [p for p in inspect.signature(command).parameters.values() if p.kind is not p.VAR_KEYWORD]
        first = [p for p in own if p.kind is not p.KEYWORD_ONLY]
        parameters = [*first, *added, *own[len(first) :]]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def given(flags: Mapping[str, Any]) -> Json:
    """The flags that were given, by the names of their parameters."""
    return {name: value for name, value in flags.items() if value is not None and value != []}


def put_flags(values: Mapping[str, Any], flags: Flags) -> Json:
    """The body that these flags make."""
    body: Json = {}
    for name, value in given(values).items():
        flags[name].put(value, body)
    return body


def flag_name(name: str, flag: Flag) -> str:
    return flag.names[0] if flag.names else f"--{name.replace('_', '-')}"


def flags_by_pointer(flags: Flags) -> dict[str, str]:
    return {flag.pointer: flag_name(name, flag) for name, flag in flags.items()}


def instant(flag: str) -> Callable[[str], datetime]:
    """Reads an instant as people type it."""

    def read(written: str) -> datetime:
        try:
            at = datetime.fromisoformat(written)
            return (at.replace(tzinfo=UTC) if at.tzinfo is None else at).astimezone(UTC)
        except (ValueError, OverflowError) as error:
            advice = "Write 2026-03-29T00:00:00Z, or 2026-03-29 for midnight in UTC."
            raise typer.BadParameter(f"{written!r} is not an instant. {advice}", param_hint=flag) from error

    return read


def duration(written: str) -> str | float:
    """A bare number means seconds, as in JSON."""
    try:
        number = float(written)
    except ValueError:
        return written
    return int(number) if number.is_integer() else number


def text_of_file(name: str, flag: str = "-f") -> str:
    """The text of a file; `-` is standard input."""
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise typer.BadParameter(f"{name} is not UTF-8 text.", param_hint=flag) from error
    except OSError as error:
        raise typer.BadParameter(f"Cannot read {name}: {error.strerror}.", param_hint=flag) from error


def parse_json(text: str, flag: str) -> Any:
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"This is not JSON: {error}.", param_hint=flag) from error


def parse_payload(written: str) -> Any:
    """`--payload`: JSON, or `@FILE`."""
    text = text_of_file(written[1:], "--payload") if written.startswith("@") else written
    return parse_json(text, "--payload")


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _parse_command(command: str) -> list[str]:
    """Split into words as a shell would. Nothing else of a shell happens: no shell runs it."""
    try:
        return shlex.split(command)
    except ValueError as error:
        raise typer.BadParameter(f"Cannot split {command!r} into words: {error}.", param_hint="--command") from error


def _parse_grpc(written: str) -> dict[str, str]:
    """A server without a port is the name of a connection."""
    address, slash, method = written.partition("/")
    if not slash or not method:
        example = f"{AN_ADDRESS}/{A_METHOD}"
        raise typer.BadParameter(f"{written!r} has no method. Write, for example, {example}.", param_hint="--grpc")
    return {"address" if ":" in address else "connection": address, "method": method}


_PLACE_OF: Final = {"redis": "stream", "kafka": "topic", "rabbitmq": "routing_key", "nats": "subject"}


def _parse_publish(written: str) -> dict[str, Any]:
    """JSON, or the kind, the connection and the place."""
    if written.lstrip().startswith("{"):
        found: dict[str, Any] = parse_json(written, "--publish")
        return found
    kind, _, rest = written.partition(":")
    connection, _, place = rest.partition(":")
    if kind not in _PLACE_OF or not connection or not place:
        example = "kafka:kafka-main:orders"
        kinds = ", ".join(_PLACE_OF)
        message = f"{written!r} is not a place to publish to. Write, for example, {example}; kinds: {kinds}; or JSON."
        raise typer.BadParameter(message, param_hint="--publish")
    return {kind: {"connection": connection, _PLACE_OF[kind]: place}}


def _pairs(flag: str, example: str) -> Callable[[Sequence[str]], dict[str, str]]:
    def read(written: Sequence[str]) -> dict[str, str]:
        pairs = {}
        for pair in written:
            name, colon, value = pair.partition(":")
            if not colon or not name:
                raise typer.BadParameter(f"{pair!r} is not a pair. Write, for example, {example}.", param_hint=flag)
            pairs[name] = value.strip()
        return pairs

    return read


FLAGS: Final[Mapping[str, Flag]] = {
    "name": Flag("/name", "The job's name. By default, the name of its target."),
    "url": Flag("/target/http/url", "Call this URL."),
    "method": Flag("/target/http/method", "With --url: the HTTP method. By default, POST."),
    "header": Flag(
        "/target/http/headers",
        "With --url: send this header. May be repeated.",
        "NAME:VALUE",
        kind=list[str],
        read=_pairs("--header", "x-team:bi"),
    ),
    "function": Flag("/target/function", "Call this function of a worker."),
    "grpc": Flag(
        "/target/grpc",
        "Call this method of a gRPC server, for example api.example.com:443/shop.v1.Orders/Place; or of a connection.",
        "HOST:PORT/METHOD",
        read=_parse_grpc,
    ),
    "metadata": Flag(
        "/target/grpc/metadata",
        "With --grpc: send this metadata. May be repeated.",
        "NAME:VALUE",
        kind=list[str],
        read=_pairs("--metadata", "x-team:bi"),
    ),
    "tls": Flag(
        "/target/grpc/tls",
        "With --grpc: whether the connection is secured. By default, it is.",
        kind=bool,
        names=("--tls/--no-tls",),
    ),
    "publish": Flag(
        "/target/publish",
        "Publish the payload: a connection's stream, topic, queue or subject, for example kafka:kafka-main:orders;"
        " or JSON.",
        "KIND:CONNECTION:PLACE",
        read=_parse_publish,
    ),
    "command": Flag(
        "/target/shell/command",
        "Run this program. The text is split into words; no shell is used.",
        read=_parse_command,
    ),
    "cron": Flag("/schedule/cron", 'Run by a cron expression, for example "0 9 * * 1-5".', "EXPR"),
    "every": Flag("/schedule/every", "Run at an interval, for example 15m.", "DURATION", read=duration),
    "rrule": Flag(
        "/schedule/rrule", 'Run by a recurrence rule (RFC 5545), for example "FREQ=DAILY;COUNT=9".', "RULE"
    ),
    "at": Flag("/schedule/at", "Run once at this instant, for example 2030-01-31T09:00:00Z.", "INSTANT"),
    "in_": Flag(
        "/schedule/in", "Run once after this delay, for example 90s.", "DURATION", read=duration, names=("--in",)
    ),
    "timezone": Flag(
        "/schedule/timezone", "An IANA time zone. By default, UTC.", "ZONE", names=("--timezone", "-z")
    ),
    "gap": Flag(
        "/schedule/dst/gap",
        "What to do with a fire in the skipped hour (clocks go forward). By default, shift.",
        kind=Gap,
    ),
    "fold": Flag(
        "/schedule/dst/fold", "When to fire in the repeated hour (clocks go back). By default, first.", kind=Fold
    ),
    "jitter": Flag("/schedule/jitter", "Start each fire up to this much later.", "DURATION", read=duration),
    "spread": Flag(
        "/schedule/spread", "Start up to this much later, where the least work is due.", "DURATION", read=duration
    ),
    "calendar": Flag(
        "/schedule/calendar/exclude_holidays",
        "Skip the holidays of a country or region, for example DE or DE-BY.",
        "CC[-REGION]",
    ),
    "business_days": Flag(
        "/schedule/calendar/business_days",
        "Fire only on business days (true), or move a fire to the next or previous one.",
        kind=BusinessDays,
        read=lambda value: True if value == "true" else value,
    ),
    "payload": Flag("/payload", "The JSON that the target receives.", "JSON|@FILE", read=parse_payload),
    "pool": Flag("/pool", "The pool of workers that runs it."),
    "priority": Flag("/priority", "high, normal or low."),
    "retries": Flag("/retry/max_retries", "How many attempts may follow the first.", kind=int),
    "timeout": Flag("/timeout", "How long one attempt may take.", "DURATION", read=duration),
    "overlap": Flag(
        "/overlap",
        "If the previous execution is still running: start anyway (allow, the default), skip the fire, queue it, or "
        "cancel the running one.",
        kind=Overlap,
    ),
    "concurrency": Flag("/concurrency", "How many executions of the job may run at once.", "N", kind=int),
    "rate": Flag("/rate", "How many executions may start per time, for example 10/1m.", "N/DURATION"),
    "concurrency_key": Flag("/concurrency_key", "All jobs with this key share a limit.", "KEY"),
    "key_concurrency": Flag(
        "/key_concurrency",
        "With --concurrency-key: how many may run at once. By default 1, or no limit with --key-rate.",
        "N",
        kind=int,
    ),
    "key_rate": Flag(
        "/key_rate", "With --concurrency-key: how many may start per time, for example 10/1m.", "N/DURATION"
    ),
    "order_key": Flag("/order_key", "All jobs with this key run strictly one after another.", "KEY"),
    "start_deadline": Flag(
        "/start_deadline", "Skip an execution that has not started this long after it was due.", "DURATION",
        read=duration,
    ),
    "cancel_grace": Flag(
        "/cancel_grace", "How long a cancelled attempt may take to stop by itself. By default, 10s.", "DURATION",
        read=duration,
    ),
    "start_within": Flag(
        "/expect/start_within", "Expect its first attempt to start this long after it was due.", "DURATION",
        read=duration, names=("--expect-start-within",),
    ),
    "end_within": Flag(
        "/expect/end_within", "Expect it to have succeeded this long after it was due.", "DURATION", read=duration,
        names=("--expect-end-within",),
    ),
    "end_by": Flag(
        "/expect/end_by", "Expect it to have succeeded by this time of day in its zone, for example 06:00.", "HH:MM",
        names=("--expect-end-by",),
    ),
    "success_every": Flag(
        "/expect/success_every", "Expect a success at least this often, for example 26h.", "DURATION", read=duration,
        names=("--expect-success-every",),
    ),
    "depends_on": Flag(
        "/depends_on",
        "For a job that runs once: start it when this job, by id or key, has succeeded. May be repeated.",
        "JOB",
        kind=list[str],
    ),
    "metrics": Flag(
        "/metrics",
        "For a job that recurs: it has series of its own in the metrics.",
        kind=bool,
        names=("--metrics/--no-metrics",),
    ),
    "unique": Flag("/unique", "For a job that runs once: no second job with this key while the first lives.", "KEY"),
    "key": Flag("/key", "Your own id. A second job with this key updates the first."),
    "label": Flag(
        "/labels",
        "A label to find the job by. May be repeated.",
        "NAME:VALUE",
        kind=list[str],
        read=_pairs("--label", "team:bi"),
    ),
}  # fmt: skip

FOR_UPDATE: Final = {name: flag for name, flag in FLAGS.items() if name not in {"unique", "key", "depends_on"}}
"""Without those that take effect only when a job is created."""
OF_SCHEDULE: Final = {
    name: FLAGS[name] for name in ("gap", "fold", "jitter", "calendar", "business_days", "rrule", "every")
}
"""What `cron explain` takes beside an expression and its time zone."""

OF_LETTERS: Final = {
    "job": Flag("/filter/job_id", "Only of this job: its name, key or id.", "JOB", kind=Id, read=str, thing="job"),
    "pool": Flag("/filter/pool", "Only dead letters of this pool.", thing="pool"),
    "fingerprint": Flag("/filter/fingerprint", "Only errors of this group.", "TEXT"),
    "from_": Flag(
        "/filter/from_at", "Only failures from this instant on.", "INSTANT", read=instant("--from"), names=("--from",)
    ),
    "to": Flag("/filter/to_at", "Only failures before this instant.", "INSTANT", read=instant("--to")),
    "search": Flag("/filter/q", "A query; a word is part of the error's message.", "QUERY", names=("--search", "-q")),
}
