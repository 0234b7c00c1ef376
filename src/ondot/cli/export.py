"""`ondot export`: a whole list as CSV or JSON lines, streamed to standard output or a file (O2)."""

import sys
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ondot.cli.calling import ask
from ondot.cli.output import show_error
from ondot.model.errors import OndotError

if TYPE_CHECKING:
    from ondot.sdk.client import Client


LISTS: Final = (
    "jobs",
    "functions",
    "executions",
    "dead-letters",
    "runs",
    "workflows",
    "skipped-fires",
    "events",
    "audit",
    "bulk",
    "incidents",
    "alerts",
    "alerts/kinds",
    "channels",
    "connections",
    "sinks",
    "pings",
    "hooks",
    "keys",
    "secrets",
    "users",
    "sessions",
    "tenants",
    "pools",
    "nodes",
    "workers",
    "functions",
    "views",
    "dead-letters/groups",
    "dead-letters/operations",
    "jobs/ID/executions",
    "jobs/ID/backfills",
    "jobs/ID/misses",
    "workflows/ID/runs",
    "runs/ID/steps",
    "runs/ID/steps/NAME/items",
    "bulk/ID/items",
    "channels/NAME/deliveries",
)
"""Every list of the API that can be a file, by its path."""


class FileFormat(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"


def export(
    what: Annotated[str, typer.Argument(metavar="LIST", help=f"One of: {', '.join(LISTS)}.", show_default=False)],
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
    path = find_path(what)
    filters: dict[str, Any] = {}
    for text in where or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE.", param_hint="--where")
        filters.setdefault(name, []).append(value)
    for name, given in (("q", query), ("limit", limit)):
        if given is not None:
            filters.setdefault(name, []).append(given)

    async def write(client: "Client") -> None:
        pieces = client.export(path, format_.value, **filters)
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


def find_path(what: str) -> str:
    """The path of a list, with the ids and names in it as the user wrote them. Raises BadParameter."""
    from urllib.parse import quote

    written = what.strip("/").split("/")
    for known in LISTS:
        parts = known.split("/")
        if len(parts) == len(written) and all(
            part == text or (part in {"ID", "NAME"} and text not in {"", part})
            for part, text in zip(parts, written, strict=True)
        ):
            return "/".join(quote(text, safe="") for text in written)
    near = get_close_matches(what, LISTS, n=1)
    advice = f"Did you mean {near[0]}?" if near else f"Use one of: {', '.join(LISTS)}."
    raise typer.BadParameter(f"There is no list {what!r}. {advice}", param_hint="LIST")
