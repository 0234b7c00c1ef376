"""Writes src/ondot/store/schema.sql, the sum of all migrations, or checks that it is as written (`--check`).

It makes every change of the schema show in a diff. It is read from the catalog, because the text of pg_dump differs
between servers. Day partitions are left out; functions are listed by name, their text is in `store/functions/`.
"""

import asyncio
import sys
from pathlib import Path
from uuid import uuid4

from structlog.testing import capture_logs

from ondot.store.connection import Connection
from ondot.store.database import open_database
from ondot.store.migrate import migrate_up
from ondot.testing.server import server, settings_for

TARGET = Path(__file__).parent.parent / "src" / "ondot" / "store" / "schema.sql"

HEADER = "-- Written by docs/schema.py from the migrations and functions; `make check` fails when they differ.\n"

TABLES = """
SELECT format(E'CREATE TABLE ondot.%I (\\n%s\\n)%s%s;%s%s', t.relname,
    (SELECT string_agg('    ' || line, E',\\n' ORDER BY kind, place, line) FROM (
        SELECT 1 AS kind, a.attnum AS place, format('%I %s', a.attname, format_type(a.atttypid, a.atttypmod))
            || CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
            || coalesce(' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid), '')
            || CASE a.attidentity WHEN 'a' THEN ' GENERATED ALWAYS AS IDENTITY' ELSE '' END AS line
        FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
        WHERE a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
        UNION ALL
        -- From 18 on NOT NULL is a constraint, too.
        SELECT 2, 0, format('CONSTRAINT %I %s', conname, pg_get_constraintdef(oid))
        FROM pg_constraint WHERE conrelid = t.oid AND contype <> 'n') lines),
    ' PARTITION BY ' || pg_get_partkeydef(t.oid),
    ' WITH (' || array_to_string(t.reloptions, ', ') || ')',
    (SELECT string_agg(E'\\n' || pg_get_indexdef(i.indexrelid) || ';', '' ORDER BY i.indexrelid::regclass::text)
     FROM pg_index i WHERE i.indrelid = t.oid
       AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid AND c.conrelid = t.oid)),
    (SELECT string_agg(E'\\n' || pg_get_triggerdef(g.oid) || ';', '' ORDER BY g.tgname)
     FROM pg_trigger g WHERE g.tgrelid = t.oid AND NOT g.tgisinternal))
FROM pg_class t
WHERE t.relnamespace = 'ondot'::regnamespace AND t.relkind IN ('r', 'p') AND NOT t.relispartition ORDER BY t.relname
"""

FUNCTIONS = """
SELECT format('-- ondot.%s(%s)', proname, pg_get_function_identity_arguments(oid))
FROM pg_proc WHERE pronamespace = 'ondot'::regnamespace ORDER BY 1
"""


async def dump(connection: Connection) -> str:
    tables = [row[0] for row in await connection.fetch(TABLES)]
    functions = [row[0] for row in await connection.fetch(FUNCTIONS)]
    return "\n".join([HEADER, *(f"{table}\n" for table in tables), *functions, ""])


async def make() -> str:
    on, name = server(), f"ondot_schema_{uuid4().hex}"
    admin = await open_database(settings_for(on.url))
    async with admin.connection() as connection:
        await connection.execute(f"CREATE DATABASE {name}")
    try:
        database = await open_database(settings_for(on.of(name)))
        await migrate_up(database)
        async with database.connection() as connection:
            made = await dump(connection)
        await database.close()
    finally:
        async with admin.connection() as connection:
            await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await admin.close()
    return made


def main() -> int:
    with capture_logs():
        made = asyncio.run(make())
    if "--check" in sys.argv[1:]:
        if TARGET.exists() and TARGET.read_text() == made:
            return 0
        print(f"{TARGET.name} is not what the migrations add up to: run 'make format'.")  # noqa: T201
        return 1
    TARGET.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
