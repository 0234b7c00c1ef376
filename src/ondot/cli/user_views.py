"""Users as a table."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from ondot.cli.output import cell, table, time_cell

if TYPE_CHECKING:
    from rich.table import Table

    from ondot.cli.output import Json


def user_table(users: Iterable["Json"], now: datetime) -> "Table":
    drawn = table("USER", "ROLE", "STATE", "LAST SIGN-IN", whole=("ROLE", "STATE"), ids="USER")
    for user in users:
        drawn.add_row(
            cell(user["name"], user["email"], style="bold"),
            user["role"],
            cell("active", style="green") if user["state"] == "ACTIVE" else cell("disabled"),
            time_cell(user["last_sign_in_at"], now) if user["last_sign_in_at"] else cell("never"),
        )
    return drawn
