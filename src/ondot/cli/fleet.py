"""`ondot fleet`: schedulers with their partitions, workers, pools, and problems, on one screen (C1, C7)."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ondot.cli.calling import ask
from ondot.cli.options import Output
from ondot.cli.output import Format, console, show, show_document, show_items
from ondot.cli.pages import gather

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

    from ondot.sdk.client import Client

Json = dict[str, Any]

WORKERS: Final = 10_000
LOOK_EVERY_S: Final = 2.0


def fleet(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds until Ctrl-C.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Show schedulers, workers and pools: ownership, waiting work, and problems."""
    if not watch:
        return _show(ask(_read), output)
    if not output.is_table:
        raise typer.BadParameter(
            "--watch draws a table. Leave out -o, or leave out --watch and repeat the command.", param_hint="--watch"
        )
    return ask(_watch)


async def _read(client: "Client") -> Json:
    latest: Json = {}

    async def page_of_workers(paging: Json) -> Json:
        latest.update(await client.list_workers(**paging))
        return latest

    workers = await gather(page_of_workers, WORKERS)
    return {
        "nodes": await client.list_nodes(),
        "workers": latest | workers,
        "pools": await client.list_pools(),
        "readiness": await client.ready(),
    }


def _show(seen: Json, output: Format) -> None:
    if output is Format.NAME:
        return show_items(seen, [*seen["nodes"]["items"], *seen["workers"]["items"]], output)
    if not output.is_table:
        return show_document(seen, output)
    from ondot.cli.fleet_views import fleet_screen

    return show(fleet_screen(seen, datetime.now(UTC)), output)


async def _watch(client: "Client") -> None:
    """An unreachable server is reported and called again, so that a restart can be watched to its end."""
    import asyncio

    from rich.live import Live

    from ondot.cli.fleet_views import away_screen, fleet_screen
    from ondot.model.errors import Unavailable

    screen = console()
    with Live(console=screen, auto_refresh=False, screen=screen.is_terminal) as live:
        while True:
            drawn: Group | Text
            try:
                drawn = fleet_screen(await _read(client), datetime.now(UTC))
            except Unavailable as error:
                drawn = away_screen(error.message, datetime.now(UTC))
            live.update(drawn, refresh=True)
            await asyncio.sleep(LOOK_EVERY_S)
