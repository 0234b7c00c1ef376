"""SQL over the archive's files, by DuckDB: one view for each table, under its name.

A row that stayed when its day was first archived is in a later file again: of rows with the same key, the one in the
newest file counts. The database is in memory, and reads nothing but these files.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ondot.archive.parquet import INSTALL
from ondot.model.errors import InvalidRequest, Misconfigured

KEYS: Final[Mapping[str, Sequence[str]]] = {
    "history": ("id",),
    "attempt": ("execution_id", "attempt_no"),
    "log": ("execution_id", "attempt_no", "line_no"),
    "object": ("execution_id", "attempt_no", "kind"),
    "job_once": ("id",),
    "audit": ("id",),
    "event": ("id",),
    "event_match": ("event_id", "job_id"),
}
"""The primary key of each table that is archived."""


def query_files(sql: str, files: Mapping[str, Sequence[Path]]) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run a query; `files` by table. Returns the names of the columns, and the rows."""
    try:
        import duckdb
    except ImportError as error:
        raise Misconfigured(INSTALL) from error
    with duckdb.connect(":memory:") as connection:
        try:
            connection.execute("SET TimeZone = 'UTC'")
            for table, keys in KEYS.items():
                if paths := [str(path) for path in files.get(table, ())]:
                    _make_view(connection, table, keys, paths)
            # From here on the query reads the views and no other file of this machine.
            allowed = sorted({str(path.parent) + "/" for paths in files.values() for path in paths})
            connection.execute("SET allowed_directories = $1", [allowed])
            connection.execute("SET enable_external_access = false")
            found = connection.execute(sql)
            if found is None:
                # DuckDB returns nothing for a text without a statement: empty, or only comments.
                raise InvalidRequest("The query is empty. Write, for example: SELECT count(*) FROM history")
            names = [column[0] for column in found.description or ()]
            return names, found.fetchall()
        except duckdb.Error as error:
            message = f"DuckDB: {str(error).strip()}"
            if isinstance(error, duckdb.CatalogException):
                there = ", ".join(table for table in KEYS if files.get(table)) or "none of the tables in the query"
                message += f"\nThe tables are {', '.join(KEYS)}. There are files of: {there}."
            raise InvalidRequest(message) from error


def _make_view(connection: Any, table: str, keys: Sequence[str], paths: Sequence[str]) -> None:
    listed = ", ".join("'" + path.replace("'", "''") + "'" for path in paths)
    read = f"read_parquet([{listed}], union_by_name = true, hive_partitioning = false, filename = 'file_'"
    newest = f"row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY parse_filename(file_) DESC) = 1"
    connection.execute(f"CREATE VIEW {table} AS SELECT * EXCLUDE (file_) FROM {read}) QUALIFY {newest}")  # noqa: S608
