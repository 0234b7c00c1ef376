"""`ondot migrate`: update the schema, show its state, or check whether this release can run on it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli.calling import database_settings
from ondot.cli.errors import FAILED
from ondot.cli.options import Output
from ondot.cli.output import Format, show, show_error, show_items, show_line, state_cell, table
from ondot.model.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ondot.store.migrate import Migration, Status

SHOWN = 5
"""Functions that are listed by name; more are counted."""

app = typer.Typer(help="The schema of the database.", no_args_is_help=True)


@app.command()
def up(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show pending changes, apply none.")] = False,
    row_security: Annotated[
        bool | None,
        typer.Option(
            "--row-security/--no-row-security",
            help="Set up row-level security for the API's reads, or remove it. Without: leave it on or off.",
            show_default=False,
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Apply pending changes. Safe to run in several places at once."""
    if dry_run:
        found = _status()
        _show(_rows(found.waiting, found.functions, "waiting"), output, none="Nothing is pending.")
        return
    from ondot.roles.migrate import migrate

    applied = migrate(database_settings(), row_security=row_security)
    _show(
        _rows(applied.migrations, applied.functions, "applied"), output, none="Nothing to do: the schema is up to date."
    )


@app.command()
def status(output: Output = Format.TABLE) -> None:
    """Show applied and pending migrations, and whether the functions are up to date."""
    from ondot.store.migrate import migrations

    found = _status()
    known = migrations()
    unknown = sorted(set(found.applied) - {migration.number for migration in known})
    rows = [
        *(_row(migration, _state(migration, found)) for migration in known),
        *({"number": number, "name": "of a newer release", "state": "applied"} for number in unknown),
        *_rows((), found.functions, "waiting"),
    ]
    _show(rows, output, none="")


@app.command()
def check() -> None:
    """Exit with 0 if this release can run on the schema, with 1 and the reason otherwise."""
    found = _status()
    from ondot.store.migrate import fits

    try:
        fits(found)
    except Misconfigured as refusal:
        show_error(refusal.message)
        raise typer.Exit(FAILED) from refusal
    waiting = f"; {len(found.waiting)} waiting: `ondot migrate up`" if found.waiting else ""
    show_line(f"This release can run on schema {max(found.applied)}{waiting}.")


def _status() -> "Status":
    from ondot.roles.migrate import read_schema_status

    return read_schema_status(database_settings())


def _state(migration: "Migration", found: "Status") -> str:
    if migration.number in found.changed:
        return "changed"
    return "applied" if migration.number in found.applied else "waiting"


def _rows(migrations: "Iterable[Migration]", functions: tuple[str, ...], state: str) -> list[dict[str, Any]]:
    rows = [_row(migration, state) for migration in migrations]
    if functions:
        names = f"{len(functions)} functions" if len(functions) > SHOWN else f"functions: {', '.join(functions)}"
        rows.append({"number": None, "name": names, "state": state})
    return rows


def _row(migration: "Migration", state: str) -> dict[str, Any]:
    return {"number": migration.number, "name": migration.name, "state": state}


def _show(rows: list[dict[str, Any]], output: Format, *, none: str) -> None:
    if not output.is_table:
        return show_items({"items": rows}, rows, output)
    if not rows:
        return show_line(none)
    drawn = table("NUMBER", "MIGRATION", "STATE", whole=("NUMBER", "STATE"))
    for row in rows:
        number = "" if row["number"] is None else f"{row['number']:04}"
        drawn.add_row(number, row["name"].replace("_", " "), state_cell(row["state"]))
    return show(drawn, output)
