"""`ondot key` and `ondot migrate` as processes, on a real database."""

import json

from ondot.settings import load_settings
from ondot.store.database import open_database
from ondot.store.keys import find_callers, present
from tests.cli.running import Ran, ondot
from tests.proves import proves


def on(database_url: str, *words: str) -> Ran:
    return ondot(*words, database_url=database_url, allow_unsafe_database="1")


async def opens(database_url: str, key: str) -> bool:
    database = await open_database(load_settings(database_url=database_url))
    try:
        async with database.connection() as connection:
            return bool(await find_callers(connection, [present(key)]))
    finally:
        await database.close()


@proves("T1")
async def test_a_key_opens_until_it_is_revoked(database_url: str) -> None:
    made = json.loads(on(database_url, "key", "create", "billing", "-o", "json").out)
    assert await opens(database_url, made["key"])
    (listed,) = map(json.loads, on(database_url, "key", "list", "-o", "jsonl").out.splitlines())
    assert (listed["id"], listed["name"], listed["revoked_at"]) == (made["id"], "billing", None)
    assert made["key"] not in json.dumps(listed)
    assert on(database_url, "key", "revoke", made["id"], "--yes").code == 0
    assert not await opens(database_url, made["key"])


async def test_a_key_alone_is_printed_so_that_a_script_can_take_it(database_url: str) -> None:
    ran = on(database_url, "key", "create", "ci")
    assert await opens(database_url, ran.out.strip())


async def test_a_key_that_does_not_exist_exits_with_3(database_url: str) -> None:
    ran = on(database_url, "key", "revoke", "019a1de9-4d8d-7d9d-8dd7-1801991e16d7")
    assert (ran.code, ran.out) == (3, "")


async def test_a_migrated_database_fits(database_url: str) -> None:
    assert on(database_url, "migrate", "check").code == 0
    assert on(database_url, "migrate", "up").out == "Nothing to do: the schema is up to date.\n"
    items = json.loads(on(database_url, "migrate", "status", "-o", "json").out)["items"]
    assert {item["state"] for item in items} == {"applied"}


async def test_a_function_that_is_out_of_date_is_shown_and_applied(database_url: str) -> None:
    database = await open_database(load_settings(database_url=database_url))
    async with database.connection() as connection:
        await connection.execute("UPDATE ondot.function SET checksum = 'older' WHERE name = 'admit'")
    await database.close()
    assert "admit" in on(database_url, "migrate", "check").err
    [waiting] = json.loads(on(database_url, "migrate", "up", "--dry-run", "-o", "json").out)["items"]
    assert waiting == {"number": None, "name": "functions: admit", "state": "waiting"}
    assert json.loads(on(database_url, "migrate", "status", "-o", "json").out)["items"][-1] == waiting
    assert "admit" in on(database_url, "migrate", "up").out
    assert on(database_url, "migrate", "check").code == 0


async def test_an_empty_database_shows_pending_migrations_and_is_migrated(database_url: str) -> None:
    database = await open_database(load_settings(database_url=database_url))
    async with database.connection() as connection:
        await connection.execute("DROP SCHEMA ondot CASCADE")
    await database.close()
    ran = on(database_url, "migrate", "check")
    assert ran.code == 1
    assert "ondot migrate up" in ran.err
    assert on(database_url, "key", "list").code == 2
    waiting = json.loads(on(database_url, "migrate", "up", "--dry-run", "-o", "json").out)["items"]
    assert waiting
    assert {item["state"] for item in waiting} == {"waiting"}
    applied = json.loads(on(database_url, "migrate", "up", "-o", "json").out)["items"]
    assert [item["number"] for item in applied] == [item["number"] for item in waiting]
    assert on(database_url, "migrate", "check").code == 0


def test_a_database_that_is_away_exits_with_5() -> None:
    ran = on("postgresql://nobody@127.0.0.1:1/nothing", "migrate", "check")
    assert ran.code == 5
    assert "Traceback" not in ran.err
