"""Functions as tables, made from the API's answers and a `now`, without a request."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ondot.cli.listing import Listing
from ondot.cli.output import Json, card, cell, compact, table, when
from ondot.words.function import describe_argument, list_arguments, options_in_words, workers_in_words

if TYPE_CHECKING:
    from rich.table import Table


def function_table(functions: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("FUNCTION", "WORKERS", "DOES", "OPTIONS", "APP", "RELEASE"),
        drop=("APP", "OPTIONS", "DOES"),
        whole=("WORKERS",),
        wide=("RELEASE",),
    )
    for function in functions:
        drawn.add_row(
            cell(function["name"], style="bold"),
            workers_in_words(function["workers"]),
            function["description"],
            options_in_words(function["options"]),
            function["app"],
            function["release"],
        )
    return drawn


def function_card(function: Json, now: datetime) -> "Table":
    runs = [
        f"{run['state'].lower()} {when(run['fire_at'], now)}  {run['execution_id']}"
        for run in function["latest_executions"]
    ]
    releases = [
        f"{release['app']} {release['release']}: {workers_in_words(release['workers'])}"
        for release in function["known_releases"]
    ]
    return card(
        [
            ("function", cell(function["name"], function["description"], style="bold")),
            ("app", f"{function['app']} {function['release']}"),
            ("workers", workers_in_words(function["workers"])),
            ("pools", ", ".join(function["pools"]) or "none"),
            ("options", compact(function["options"]) if function["options"] else "none"),
            ("releases", cell(*releases)),
            ("latest runs", cell(*runs) if runs else "none"),
        ]
    )


def argument_table(schema: dict[str, Any] | None) -> Listing | None:
    """None: the schema is not known, or there are no arguments."""
    arguments = [] if schema is None else list_arguments(schema)
    if not arguments:
        return None
    drawn = table("ARGUMENT", "TYPE", "DEFAULT")
    for argument in arguments:
        drawn.add_row(
            cell(argument.name, style="bold"),
            describe_argument(argument),
            "required" if argument.is_required else compact(argument.default) if argument.has_default else "optional",
        )
    return drawn
