"""Stores output that is too large for the database (E14): in a directory, or in a bucket of S3.

An object is written whole or not at all, and never changed. A row in `ondot.object` records that it exists; its key
names what it belongs to, so that no two attempts write the same one. Storage that does not answer is `Unavailable`.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import IO, Literal, Protocol

from ondot.model.ids import ExecutionId, TenantNo, instant_of

Kind = Literal["result", "log"]

_NAMES: dict[Kind, str] = {"result": "result.json", "log": "log.txt"}


@dataclass(frozen=True, slots=True)
class Stored:
    """An object that is read in chunks."""

    size: int
    chunks: AsyncIterator[bytes]


class Objects(Protocol):
    @property
    def place(self) -> str:
        """A URL without secrets, for people."""

    async def put(self, key: str, content: bytes | IO[bytes]) -> None:
        """Replaces an object that exists under the key."""

    async def get(self, key: str) -> Stored | None:
        """None: there is no such object."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Missing ones are no error."""


def key_of(tenant_no: TenantNo, execution_id: ExecutionId, attempt_no: int, kind: Kind) -> str:
    """`<tenant>/<yyyy>/<mm>/<dd>/<execution>/<attempt>/<name>`; the day is that of the partition of its rows."""
    return f"{tenant_no}/{instant_of(execution_id):%Y/%m/%d}/{execution_id}/{attempt_no}/{_NAMES[kind]}"
