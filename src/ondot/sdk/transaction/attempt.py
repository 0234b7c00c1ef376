"""The transaction of an attempt (E11): `ctx.transaction()`, which `flow` opens and completes."""

from dataclasses import dataclass
from typing import Any


class Stale(Exception):
    """This attempt is no longer valid: it was recovered, cancelled or ended. Its transaction is rolled back."""


@dataclass(slots=True)
class Opened:
    """The open transaction of an attempt. `result`: JSON text, stored with the completion."""

    connection: Any
    result: str | None = None
