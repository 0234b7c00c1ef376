"""`ondot pool`: the workers of each pool, the work that waits for them, and the limits of a pool (E1, E13)."""

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ondot.cli.body import in_flags
from ondot.cli.calling import ask
from ondot.cli.complete import complete_names
from ondot.cli.options import Output
from ondot.cli.output import Format, show, show_document, show_line
from ondot.cli.pages import show_page
from ondot.model.errors import InvalidBody

Json = dict[str, Any]

NONE = "none"

PoolName = Annotated[
    str,
    typer.Argument(metavar="POOL", help="The pool's name.", show_default=False, autocompletion=complete_names("pool")),
]

app = typer.Typer(help="Pools: their workers, waiting work and limits.", no_args_is_help=True)


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List pools with their workers, running and waiting work, and limits."""
    page = ask(lambda client: client.list_pools())
    from ondot.cli.views import pool_table

    show_page(page, output, pool_table, none="No pools. A pool is created when a job or a worker first names it.")


@app.command("get")
def get(name: PoolName, output: Output = Format.TABLE) -> None:
    """Show one pool."""
    _show(ask(lambda client: client.get_pool(name)), output)


@app.command("set")
def set_(
    name: PoolName,
    concurrency: Annotated[
        str | None, typer.Option(metavar="N|none", help="How many attempts may run at once, over all its workers.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="N/DURATION|none", help="How many attempts may start per time, for example 100/1m."),
    ] = None,
    transport: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|none", help="What carries its wake-ups, for example redis; none: the installation's."
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Set the limits of a pool, or remove them with `none`: they apply to attempts that start from now on. Or set its
    transport, while everything runs."""
    changes: Json = {}
    if concurrency is not None:
        changes["concurrency"] = _number(concurrency)
    if rate is not None:
        changes["rate"] = None if rate.lower() == NONE else rate
    if transport is not None:
        changes["transport"] = None if transport.lower() == NONE else transport
    if not changes:
        raise typer.BadParameter(
            "Name a limit: --concurrency 20 or --rate 100/1m, or none to remove one; or --transport redis."
        )
    try:
        pool = ask(lambda client: client.patch_pool(name, changes))
    except InvalidBody as refusal:
        raise in_flags(
            refusal, {"/concurrency": "--concurrency", "/rate": "--rate", "/transport": "--transport"}
        ) from None
    _show(pool, output)


@app.command("scale")
def scale(name: PoolName, output: Output = Format.TABLE) -> None:
    """Show how many workers a pool should have: for what runs, waits, and is due in the next minutes."""
    wanted = ask(lambda client: client.scale_of_pool(name))
    if not output.is_table:
        return show_document(wanted, output)
    return show_line(f"{wanted['workers']} workers (now {wanted['workers_now']}): {wanted['why']}.")


def _number(written: str) -> int | None:
    if written.lower() == NONE:
        return None
    if not (written.isascii() and written.isdecimal()):
        raise typer.BadParameter(
            f"{written!r} is not a number. Write, for example, 20, or none.", param_hint="--concurrency"
        )
    return int(written[:9])


def _show(pool: Json, output: Format) -> None:
    if not output.is_table:
        return show_document(pool, output)
    from ondot.cli.views import pool_table

    return show(pool_table([pool], datetime.now(UTC)), output)
