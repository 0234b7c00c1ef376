"""`ondot top`: what runs, waits and comes next, live; one frame with `--once` or outside a terminal (D5, O5).

One bounded request each second. A server that does not answer is reported above the greyed last frame, and called
again, so that a restart can be watched to its end. Keys are read one by one; the terminal is restored at the end.
"""

import asyncio
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ondot.cli.calling import ask
from ondot.cli.options import Output
from ondot.cli.output import Format, console, show, show_document
from ondot.cli.top_views import SORTS, Look, sorted_executions, top_screen
from ondot.model.errors import OndotError, Unavailable

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = Mapping[str, Any]

LOOK_EVERY_S: Final = 1.0
MOST_NAMED: Final = 200
UP: Final = frozenset({"\x1b[A", "\x1bOA", "k"})
KEY: Final = re.compile(r"\x1b(?:\[[0-9;]*|O)?[A-Za-z~]|.", re.DOTALL)
"""One key: an escape sequence, or a character."""
DOWN: Final = frozenset({"\x1b[B", "\x1bOB", "j"})


def top(
    once: Annotated[bool, typer.Option("--once", help="Show one frame and exit.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show what runs, waits and comes next, live. q quits, p pauses, s sorts, arrows select, enter explains."""
    is_live = not once and output.is_table and sys.stdout.isatty() and sys.stdin.isatty()
    if is_live:
        return ask(_watch)
    seen = ask(lambda client: client.now(limit=MOST_NAMED))
    if not output.is_table:
        return show_document(seen, output)
    return show(top_screen(seen, Look()), output)


async def _watch(client: "Client") -> None:
    from rich.live import Live

    screen = console()
    keys: asyncio.Queue[str] = asyncio.Queue()
    look, seen = Look(), None
    with _keys_to(keys), Live(console=screen, auto_refresh=False, screen=True) as live:
        while True:
            if not look.is_paused:
                seen, look = await _read(client, seen, look)
            ends_at = asyncio.get_running_loop().time() + LOOK_EVERY_S
            while (left_s := ends_at - asyncio.get_running_loop().time()) > 0:
                # Also when nothing was pressed, so that a resized terminal is drawn again.
                live.update(top_screen(seen, look, screen.height), refresh=True)
                try:
                    key = await asyncio.wait_for(keys.get(), left_s)
                except TimeoutError:
                    break
                if key in {"q", "Q", ""}:
                    return
                look = await _press(client, key, seen, look)


async def _read(client: "Client", seen: Json | None, look: Look) -> tuple[Json | None, Look]:
    try:
        seen = await client.now(limit=MOST_NAMED)
    except Unavailable as error:
        since = look.away_since or datetime.now(UTC)
        return seen, replace(look, away_since=since, away_why=error.message)
    last = max(len(seen["executions"]) - 1, 0)
    return seen, replace(look, away_since=None, away_why="", selected=min(look.selected, last))


async def _press(client: "Client", key: str, seen: Json | None, look: Look) -> Look:
    executions = sorted_executions(seen, look.sort) if seen else []
    last = max(len(executions) - 1, 0)
    if key in UP | DOWN:
        step = -1 if key in UP else 1
        return replace(look, selected=min(max(look.selected + step, 0), last), explained="")
    match key:
        case "p" | " ":
            return replace(look, is_paused=not look.is_paused)
        case "s":
            return replace(look, sort=SORTS[(SORTS.index(look.sort) + 1) % len(SORTS)])
        case "\r" | "\n" if executions:
            explained = "" if look.explained else await _explain(client, executions[min(look.selected, last)])
            return replace(look, explained=explained)
    return look


async def _explain(client: "Client", execution: Json) -> str:
    try:
        found = await client.explain_execution(execution["id"])
    except OndotError as error:
        return error.message
    return f"{execution['id']}: {found['summary']}"


@contextmanager
def _keys_to(keys: "asyncio.Queue[str]") -> Iterator[None]:
    """Put each key that is pressed into the queue; an empty one at the end of the input. Ctrl-C stays a signal."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def read() -> None:
        with suppress(BlockingIOError):
            text = os.read(descriptor, 64).decode("utf-8", "replace")
            for key in KEY.findall(text) or [""]:
                keys.put_nowait(key)

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, read)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
