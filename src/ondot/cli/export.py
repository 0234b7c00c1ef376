"""`ondot export`: a whole list as CSV or JSON lines, streamed to standard output or a file (O2)."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli.calling import ask
from ondot.cli.output import show_error
from ondot.model.errors import OndotError

if TYPE_CHECKING:
    from ondot.sdk.client import Client


class Lists(StrEnum):
    JOBS = "jobs"
    EXECUTIONS = "executions"
    DEAD_LETTERS = "dead-letters"
    RUNS = "runs"
    WORKFLOWS = "workflows"
    SKIPPED = "skipped-fires"
    EVENTS = "events"
    AUDIT = "audit"
    BULK = "bulk"


class FileFormat(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"


def export(
    what: Annotated[Lists, typer.Argument(metavar="LIST", help=f"One of: {', '.join(Lists)}.", show_default=False)],
    format_: Annotated[FileFormat, typer.Option("--format", help="The format of the file.")] = FileFormat.CSV,
    query: Annotated[str | None, typer.Option("--query", "-q", metavar="QUERY", help="Only what matches.")] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A filter of the list, for example state=FAILED. Repeatable."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="At most this many.")] = None,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to this file.")] = None,
) -> None:
    """Write a whole list to standard output or a file, of any length."""
    filters: dict[str, Any] = {"q": query, "limit": limit}
    for text in where or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE.", param_hint="--where")
        filters[name] = [*filters[name], value] if name in filters else [value]

    async def write(client: "Client") -> None:
        pieces = client.export(what.value, format_.value, **filters)
        if to is None:
            async for piece in pieces:
                sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
            return
        # The file is opened for the first piece: a refused export leaves an earlier file as it is.
        first = await anext(pieces, b"")
        try:
            with to.open("wb") as file:
                file.write(first)
                async for piece in pieces:
                    file.write(piece)
        except OndotError:
            show_error(f"{to} is not whole: the export ended early.")
            raise

    ask(write)
