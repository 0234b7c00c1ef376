"""Users as a table."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from ondot.cli.listing import Listing
from ondot.cli.output import cell, exactly, table, when

if TYPE_CHECKING:
    from ondot.cli.output import Json


def user_table(users: Iterable["Json"], now: datetime) -> Listing:
    drawn = table(
        *("EMAIL", "NAME", "ROLE", "STATE", "LAST SIGN-IN", "AT"),
        drop=("LAST SIGN-IN", "NAME"),
        whole=("ROLE", "STATE", "LAST SIGN-IN"),
        wide=("AT",),
    )
    for user in users:
        drawn.add_row(
            cell(user["email"], style="bold"),
            user["name"],
            user["role"],
            cell("active", style="green") if user["state"] == "ACTIVE" else "disabled",
            when(user["last_sign_in_at"], now) if user["last_sign_in_at"] else "never",
            exactly(user["last_sign_in_at"]),
        )
    return drawn
