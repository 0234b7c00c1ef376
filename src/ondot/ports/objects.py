"""Where output lies that is too large for the database (E14): a directory, or a bucket of S3.

An object is written whole or not at all, and never changed. The row in `ondot.object` says that there is one; its key
is made of what it belongs to, so that no two attempts write the same. Storage that does not answer is `Unavailable`.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import IO, Literal, Protocol

from ondot.model.ids import ExecutionId, TenantNo, instant_of

Kind = Literal["result", "log"]

_NAMES: dict[Kind, str] = {"result": "result.json", "log": "log.txt"}


@dataclass(frozen=True, slots=True)
class Stored:
    """An object that is being read, some of it at a time."""

    size: int
    chunks: AsyncIterator[bytes]


class Objects(Protocol):
    @property
    def place(self) -> str:
        """Where it is, for people: a URL without secrets."""

    async def put(self, key: str, content: bytes | IO[bytes]) -> None:
        """Keep it; what stood under the key is replaced."""

    async def get(self, key: str) -> Stored | None:
        """None: there is no such object."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Those that are not there are no fault."""


def key_of(tenant_no: TenantNo, execution_id: ExecutionId, attempt_no: int, kind: Kind) -> str:
    """`<tenant>/<yyyy>/<mm>/<dd>/<execution>/<attempt>/<name>`; the day is that of the partition its rows stand in."""
    return f"{tenant_no}/{instant_of(execution_id):%Y/%m/%d}/{execution_id}/{attempt_no}/{_NAMES[kind]}"
