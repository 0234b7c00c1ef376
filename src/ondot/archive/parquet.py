"""One file of the archive: Parquet with zstd, written in row groups of bounded size, with a checksum for each page.

`ParquetFiles` writes a file for each of some tenants. `check_file` reads one whole, and returns how many rows it has
and a digest of their keys; `hash_file` is the digest of its bytes. Everything here runs in a thread, and nothing knows
the database.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ondot.model.errors import Misconfigured

GROUP_ROWS: Final = 50_000
BUFFERED_BYTES: Final = 64 * 1024 * 1024
"""Of all files that are written at once."""
READ_ROWS: Final = 5_000
INSTALL: Final = "The archive needs packages that are not installed: pip install 'ondot[archive]'."
_KEYS: Final = b"ondot.keys"


class Broken(Exception):
    """A file that cannot be read, or is not what was written."""


@dataclass(frozen=True, slots=True)
class Written:
    """`keys`: a digest of the keys of its rows. `digest`: of its bytes."""

    path: Path
    rows: int
    keys: str
    digest: str


class ParquetFiles:
    def __init__(
        self, directory: Path, types: Mapping[str, str], keys: Sequence[str], facts: Mapping[str, str]
    ) -> None:
        """`types`: PostgreSQL's, by column. `facts`: written into each file."""
        pa = _pyarrow()
        metadata = dict(facts) | {_KEYS.decode(): ",".join(keys)}
        fields = [pa.field(name, _arrow_type(pa, type_)) for name, type_ in types.items()]
        self._schema = pa.schema(fields, metadata=metadata)
        self._keys = list(keys)
        self._directory = directory
        self._files: dict[int, _File] = {}

    def add(self, rows: Iterable[Any]) -> None:
        """Rows of any tenants: they are kept until a row group is full, or all of them are too large."""
        for row in rows:
            tenant_no = row["tenant_no"]
            file = self._files.get(tenant_no)
            if file is None:
                file = self._files[tenant_no] = _File(
                    self._directory / f"{tenant_no}.parquet", self._schema, self._keys
                )
            file.add(row)
            if len(file.rows) >= GROUP_ROWS:
                file.flush()
        if sum(file.bytes for file in self._files.values()) > BUFFERED_BYTES:
            for file in self._files.values():
                file.flush()

    def close(self) -> dict[int, Written]:
        return {tenant_no: file.close() for tenant_no, file in self._files.items()}


class _File:
    def __init__(self, path: Path, schema: Any, keys: Sequence[str]) -> None:
        from pyarrow import parquet

        self._path = path
        self._schema = schema
        self._keys = keys
        self._writer = parquet.ParquetWriter(path, schema, compression="zstd", write_page_checksum=True)
        self._digest = hashlib.sha256()
        self._written = 0
        self.rows: list[Mapping[str, Any]] = []
        self.bytes = 0

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows.append(row)
        self.bytes += sum(len(value) if isinstance(value, (str, bytes)) else 16 for value in row.values())

    def flush(self) -> None:
        if not self.rows:
            return
        pa = _pyarrow()
        columns = [pa.array([row[field.name] for row in self.rows], field.type) for field in self._schema]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self._schema), row_group_size=GROUP_ROWS)
        _digest_keys(self._digest, ([row[name] for name in self._keys] for row in self.rows))
        self._written += len(self.rows)
        self.rows, self.bytes = [], 0

    def close(self) -> Written:
        self.flush()
        self._writer.close()
        return Written(self._path, self._written, self._digest.hexdigest(), hash_file(self._path))


def check_file(path: Path) -> tuple[int, str]:
    """Read all of it; returns its rows and the digest of their keys. Raises Broken."""
    pa = _pyarrow()
    from pyarrow import parquet

    digest, rows = hashlib.sha256(), 0
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            keys = (file.schema_arrow.metadata or {}).get(_KEYS, b"").decode().split(",")
            for batch in file.iter_batches(READ_ROWS):
                columns = [batch.column(name).to_pylist() for name in keys]
                _digest_keys(digest, zip(*columns, strict=True))
                rows += batch.num_rows
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise Broken(str(error).split("\n", maxsplit=1)[0]) from error
    return rows, digest.hexdigest()


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_keys(digest: Any, keys: Iterable[Iterable[object]]) -> None:
    for key in keys:
        digest.update("\0".join(map(str, key)).encode() + b"\n")


def _arrow_type(pa: Any, type_: str) -> Any:
    """Ids, JSON and all other types are text."""
    known = {
        "integer": pa.int32(),
        "bigint": pa.int64(),
        "smallint": pa.int16(),
        "boolean": pa.bool_(),
        "real": pa.float64(),
        "double precision": pa.float64(),
        "timestamp with time zone": pa.timestamp("us", tz="UTC"),
        "bytea": pa.binary(),
    }
    return known.get(type_, pa.string())


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise Misconfigured(INSTALL) from error
    return pyarrow
