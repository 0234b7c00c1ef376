"""The lives of `bare` without a client: the statements as functions, called by a procedure that commits after each.

Functions, arguments and the procedure are temporary and belong to the session. The arguments of the batches are in a
temporary table before the clock starts.
"""

import asyncio
from collections.abc import Sequence

from bare import BATCH, IDS, LEASE, RECENT, Lives, Sent, Statements, statements_of

from ondot.model.ids import EPOCH
from ondot.settings import load_settings
from ondot.store.connection import OwnConnection
from ondot.store.database import connect, open_database

MOST_PER_S = 50_000
"""Lives for which batches are made ahead. A session that runs out of them ends early, and records when."""

_PROCEDURE = """
CREATE PROCEDURE pg_temp.live(seconds double precision) LANGUAGE plpgsql AS $body$
DECLARE
    began_at timestamptz := clock_timestamp();
    took_s double precision := 0;
    insert_ pg_temp.insert_arguments;
    lease_ pg_temp.lease_arguments;
    complete_ pg_temp.complete_arguments;
    lease_id uuid;
    ids uuid[];
    size integer;
    counted bigint := 0;
    more boolean := true;
BEGIN
    SELECT * INTO lease_ FROM pg_temp.lease_arguments;
    SELECT * INTO complete_ FROM pg_temp.complete_arguments;
    WHILE more OR size > 0 LOOP
        IF more THEN
            SELECT * INTO insert_ FROM pg_temp.insert_arguments WHERE no = nextval('pg_temp.batch');
            more := FOUND;
        END IF;
        IF more THEN
            PERFORM FROM pg_temp.insert_({insert}) AS i({insert_columns});
            COMMIT;
        END IF;
        lease_id := gen_random_uuid();
        SELECT array_agg(id ORDER BY id), count(*) INTO ids, size FROM pg_temp.lease_({lease}) AS l({lease_columns});
        COMMIT;
        IF size > 0 THEN
            IF (SELECT c.counted IS NOT NULL FROM pg_temp.complete_({complete}) AS c({complete_columns})) THEN
                RAISE EXCEPTION 'not all leased executions could be completed';
            END IF;
            COMMIT;
        END IF;
        IF more THEN
            took_s := extract(epoch FROM clock_timestamp() - began_at);
            more := took_s < seconds;
            counted := counted + size;
        END IF;
    END LOOP;
    INSERT INTO pg_temp.lived VALUES (counted, took_s);
END $body$
"""


async def server_lives(url: str, seconds: float, sessions: int) -> Lives:
    """Run this many sessions at once; each counts the lives that ended within the measured time."""
    settings = load_settings(database_url=url, statement_timeout_s=600)
    connections = [await connect(settings) for _ in range(sessions)]
    database = await open_database(settings)
    try:
        statements = await statements_of(database)
        for connection in connections:
            await _prepare(connection, statements, batches=int(seconds * MOST_PER_S / sessions / BATCH) + 2)
            await connection.execute("CALL pg_temp.live(0)")
        results = await asyncio.gather(*(_live(connection, seconds) for connection in connections))
        count = sum(count for count, _ in results)
        return Lives(count, count, count / sum(count / took_s for count, took_s in results))
    finally:
        for connection in connections:
            await connection.close()
        await database.close()


async def _live(connection: OwnConnection, seconds: float) -> tuple[int, float]:
    await connection.execute(f"CALL pg_temp.live({seconds})")
    row = await connection.fetchrow("SELECT lives, took_s FROM pg_temp.lived ORDER BY took_s DESC")
    assert row is not None
    return row["lives"], row["took_s"]


async def _prepare(connection: OwnConnection, statements: Statements, batches: int) -> None:
    lease, complete = await statements.lease(LEASE), await statements.complete(IDS, LEASE)
    inserts = [await statements.insert() for _ in range(batches)]
    await connection.execute("CREATE TEMP SEQUENCE batch; CREATE TEMP TABLE lived (lives bigint, took_s float8)")
    await _function(connection, "insert_", inserts[0])
    await _function(connection, "lease_", lease)
    await _function(connection, "complete_", complete)
    await _table(connection, "insert_arguments", inserts)
    await _table(connection, "lease_arguments", [lease])
    await _table(connection, "complete_arguments", [complete])
    from_at = lease.place_of([EPOCH])
    recent = f"ARRAY[clock_timestamp() - interval '{RECENT.total_seconds()} s']"
    named = {
        lease.place_of(LEASE): "lease_id",
        from_at: f"CASE WHEN size = {BATCH} THEN {recent} ELSE lease_.a{from_at} END",
    }
    sized = [isinstance(argument, list) for argument in complete.arguments]
    of_completion = {n: f"complete_.a{n}[1:size]" for n, is_array in enumerate(sized) if is_array}
    of_completion |= {complete.place_of(IDS): "ids", complete.place_of([LEASE]): "ARRAY[lease_id]"}
    await connection.execute(
        _PROCEDURE.format(
            insert=_arguments("insert_", inserts[0], {}),
            insert_columns=await _columns(connection, inserts[0]),
            lease=_arguments("lease_", lease, named),
            lease_columns=await _columns(connection, lease),
            complete=_arguments("complete_", complete, of_completion),
            complete_columns=await _columns(connection, complete),
        )
    )


def _arguments(record: str, sent: Sent, instead: dict[int, str]) -> str:
    return ", ".join(instead.get(n, f"{record}.a{n}") for n in range(len(sent.arguments)))


async def _types(connection: OwnConnection, sent: Sent) -> list[str]:
    return [each.name for each in (await connection.prepare(sent.text)).get_parameters()]


async def _columns(connection: OwnConnection, sent: Sent) -> str:
    columns = (await connection.prepare(sent.text)).get_attributes()
    return ", ".join(f'"{each.name}" {each.type.name}' for each in columns)


async def _function(connection: OwnConnection, name: str, sent: Sent) -> None:
    """`$1` and so on are the parameters of a function as of a statement."""
    types = ", ".join(await _types(connection, sent))
    await connection.execute(
        f"CREATE FUNCTION pg_temp.{name}({types}) RETURNS SETOF record LANGUAGE plpgsql AS $body$ BEGIN"
        f" RETURN QUERY\n{sent.text};\nEND $body$"
    )


async def _table(connection: OwnConnection, name: str, all_sent: Sequence[Sent]) -> None:
    types = await _types(connection, all_sent[0])
    columns = [f"a{n}" for n in range(len(types))]
    defined = ", ".join(f"{column} {type_}" for column, type_ in zip(columns, types, strict=True))
    await connection.execute(f"CREATE TEMP TABLE {name} ({defined}, no bigint PRIMARY KEY)")
    for column, type_ in zip(columns, types, strict=True):
        if type_.endswith("[]"):
            # Nothing is unpacked while the clock runs.
            await connection.execute(f"ALTER TABLE {name} ALTER {column} SET STORAGE EXTERNAL")
    places = ", ".join(f"${n + 1}" for n in range(len(types) + 1))
    rows = [(*sent.arguments, no) for no, sent in enumerate(all_sent, 1)]
    await connection.executemany(f"INSERT INTO {name} VALUES ({places})", rows)
