"""How the command line prints: tables for people, JSON, YAML and names for programs.

Promises that `-o json` and `-o yaml` are one document, `-o jsonl` one line per item and `-o name` one line with what
other commands accept; that there is no colour outside a terminal or with `NO_COLOR`; that a row of a table is one line
(`listing`); and that text from a server cannot control the terminal: control characters are escaped. rich is imported
only when a table is drawn.
"""

import json
import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TextIO

from ondot.cli.listing import Listing
from ondot.model.text import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

Json = Mapping[str, Any]

STYLES = {
    "SUCCEEDED": "green",
    "ACTIVE": "green",
    "ok": "green",
    "applied": "green",
    "RUNNING": "cyan",
    "RETRYING": "yellow",
    "PAUSED": "yellow",
    "BLOCKED": "yellow",
    "warning": "yellow",
    "waiting": "yellow",
    "FAILED": "bold red",
    "TIMED_OUT": "bold red",
    "WORKER_LOST": "bold red",
    "problem": "bold red",
    "changed": "bold red",
    "CANCELLED": "dim",
    "SKIPPED": "dim",
    "DELETED": "dim",
    "HELD": "yellow",
    "DONE": "green",
    "ENDED": "dim",
    "open": "yellow",
    "replayed": "green",
    "discarded": "dim",
    "handled": "dim",
}


HAVE_NAMES = frozenset({"concurrency", "hosts", "smtp", "url", "webhook", "grace", "notify", "quotas"})
"""Fields by which items are known whose commands take a name: pools, secrets, channels, pings, alerts, tenants."""


class Format(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    NAME = "name"

    @property
    def is_table(self) -> bool:
        """For people, not for programs."""
        return self in {Format.TABLE, Format.WIDE}


class ListFormat(StrEnum):
    """Of lists that can be exported."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"
    NAME = "name"
    CSV = "csv"


def console(output: Format = Format.TABLE, *, stderr: bool = False) -> "Console":
    from rich.console import Console

    color = {"color_system": None} if os.environ.get("NO_COLOR") else {}
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False, **color)  # type: ignore[arg-type]
    made.is_wide = output is Format.WIDE  # type: ignore[attr-defined]
    return made


def show(renderable: "RenderableType", output: Format = Format.TABLE) -> None:
    """`output`: a table shows all its columns if it is WIDE."""
    console(output).print(renderable, crop=False)


def show_line(text: str) -> None:
    """One line that is not wrapped, so that it can be copied."""
    console().print(harmless(text), soft_wrap=True)


def show_json(document: object) -> None:
    _write_json(json.dumps(document, indent=2, ensure_ascii=False, default=_as_json))


def show_json_lines(documents: Iterable[object]) -> None:
    for document in documents:
        _write_json(json.dumps(document, ensure_ascii=False, separators=(",", ":"), default=_as_json))


def show_document(document: Json, output: Format) -> None:
    """One item, for a program."""
    show_items(document, [document], output)


def show_items(document: object, items: Iterable[Json], output: Format) -> None:
    """For a program: all as one document, or the items one by one."""
    match output:
        case Format.JSONL:
            show_json_lines(items)
        case Format.NAME:
            for item in items:
                _write(sys.stdout, harmless(name_of(item)))
        case Format.YAML:
            from ondot.cli.yaml import to_yaml

            _write_json(to_yaml(json.loads(json.dumps(document, default=_as_json))).rstrip("\n"))
        case _:
            show_json(document)


def name_of(item: Json) -> str:
    """What other commands accept for an item: the key of a job that has one, else its id; the name of what has names
    (pools, secrets, channels); else the first value."""
    if "schedule_in_words" in item:
        fields = ["key", "id"]
    elif "name" in item and item.keys() & HAVE_NAMES:
        fields = ["name"]
    else:
        fields = ["email", "execution_id", "id", "name"]
    return str(next((item[field] for field in fields if item.get(field)), next(iter(item.values()), "")))


def show_answer(answer: Json, output: Format, sentence: str) -> None:
    """A sentence for a person, or the answer itself for a program."""
    if output.is_table:
        show_line(sentence)
    else:
        show_document(answer, output)


def show_error(message: str) -> None:
    _write(sys.stderr, "error: " + harmless(message))


def show_notice(text: str) -> None:
    """A message on standard error, for a person or a program."""
    _write(sys.stderr, harmless(text))


def show_progress(text: str) -> None:
    """A message for a person at a terminal, on standard error, which programs do not read."""
    if sys.stderr.isatty():
        _write(sys.stderr, harmless(text))


def _write_json(text: str) -> None:
    """On a terminal, control characters are escaped, which means the same in JSON."""
    _write(sys.stdout, harmless(text) if sys.stdout.isatty() else text)


def _write(stream: TextIO, text: str) -> None:
    # Text that is not Unicode (a lone surrogate in a JSON answer) must not raise an error.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def _as_json(value: object) -> str:
    return rfc_3339(value) if isinstance(value, datetime) else str(value)


async def show_pieces(pieces: AsyncIterator[bytes]) -> None:
    """A long text as it arrives: unchanged to a file or a pipe, with control characters escaped to a terminal."""
    ends_line = True
    if not sys.stdout.isatty():
        async for piece in pieces:
            sys.stdout.buffer.write(piece)
            ends_line = piece.endswith(b"\n")
    else:
        import codecs

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        async for piece in pieces:
            text = harmless(decoder.decode(piece))
            sys.stdout.write(text)
            ends_line = text.endswith("\n")
    sys.stdout.write("" if ends_line else "\n")
    sys.stdout.flush()


def harmless(text: str) -> str:
    """The text with control characters escaped, so that a name or a log line cannot control the terminal."""
    return visible(text)


# Times ---------------------------------------------------------------------------------------------------------------


def instant_of(written: object) -> datetime | None:
    """An instant in an answer."""
    if isinstance(written, datetime):
        return written
    return datetime.fromisoformat(written) if isinstance(written, str) else None


def rfc_3339(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def exact(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def relative(at: datetime, now: datetime) -> str:
    """How far away: "in 4 s", "2 min ago"."""
    away_s = (at - now).total_seconds()
    if abs(away_s) < 1:
        return "now"
    return f"in {rough(away_s)}" if away_s > 0 else f"{rough(-away_s)} ago"


def rough(duration_s: float) -> str:
    """Only the largest unit, rounded down, to be read at a glance."""
    days = int(duration_s // 86_400)
    if days:
        return f"{days} day" if days == 1 else f"{days} days"
    if duration_s >= 3600:
        return f"{int(duration_s // 3600)} h"
    return f"{int(duration_s // 60)} min" if duration_s >= 60 else f"{int(duration_s)} s"


def took(started: object, ended: object) -> str:
    started_at, ended_at = instant_of(started), instant_of(ended)
    return "" if started_at is None or ended_at is None else lasting(ended_at - started_at)


def lasting(duration: timedelta) -> str:
    """A measured duration, with two units where they matter."""
    total_s = max(duration.total_seconds(), 0.0)
    if total_s < 1:
        return f"{total_s * 1000:.0f} ms"
    if total_s < 60:
        return f"{total_s:.1f} s"
    minutes, seconds = divmod(int(total_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


# Cells ---------------------------------------------------------------------------------------------------------------


def cell(*lines: str | None, style: str = "") -> "Text":
    """A cell of a card, of one or more lines: the first in its style and the others dimmed. A list has one line."""
    from rich.text import Text

    text = Text()
    for number, line in enumerate(line for line in lines if line):
        text.append("\n" if number else "")
        text.append(harmless(line), style="dim" if number else style)
    return text


def state_cell(state: str, *below: str | None) -> "Text":
    return cell(state, *below, style=STYLES.get(state, ""))


def when(written: object, now: datetime) -> str:
    """How far away an instant is."""
    at = instant_of(written)
    return "-" if at is None else relative(at, now)


def exactly(written: object) -> str:
    at = instant_of(written)
    return "-" if at is None else exact(at)


def time_line(written: object, now: datetime) -> str | None:
    at = instant_of(written)
    return None if at is None else f"{exact(at)} ({relative(at, now)})"


def compact(value: object) -> str | None:
    """A payload, result or error on one line."""
    return None if value is None else json.dumps(value, ensure_ascii=False, default=_as_json)


def table(*columns: str, drop: Sequence[str] = (), whole: Sequence[str] = (), wide: Sequence[str] = ()) -> Listing:
    """A list with one line for each row."""
    return Listing(*columns, drop=drop, whole=whole, wide=wide)


def paragraphs(*columns: str) -> "Table":
    """A table whose last column is text that wraps: what a person must read to its end."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, no_wrap=column != columns[-1], overflow="fold")
    return made


def card(facts: Iterable[tuple[str, "str | Text | None"]]) -> "Table":
    """One item, with one fact per line; unknown facts are left out."""
    from rich.table import Table

    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, fact in facts:
        if fact is not None:
            made.add_row(name, cell(fact) if isinstance(fact, str) else fact)
    return made
