"""`ondot.submit_specs`: many jobs in the caller's own transaction by one statement, from SQL."""

from typing import Any

import asyncpg
import msgspec
import pytest

from ondot.model.ids import ticks_at
from tests.proves import proves
from tests.servers import Server, connected, new_database
from tests.store.test_enqueue import GRANTS
from tests.world import World

SPEC: dict[str, Any] = {"name": "a", "target": {"kind": "function", "name": "a"}}
SUBMIT = "SELECT id, created_at FROM ondot.submit_specs($1::text[]::json[], $2::text[]::json[])"


def text(value: object) -> str:
    return msgspec.json.encode(value).decode()


@proves("E11")
async def test_ids_are_uuids_of_version_seven_that_count_up_from_ondots_clock(world: World) -> None:
    rows = await world.fetch(SUBMIT, [text(SPEC)] * 5000, [None] * 5000)
    ids = [row["id"] for row in rows]
    assert ids == sorted(set(ids))
    assert {(id_.version, id_.variant) for id_ in ids} == {(7, "specified in RFC 4122")}
    first = ticks_at(world.now)
    assert [(id_.int >> 80 << 12) + (id_.int >> 64 & 0xFFF) - first for id_ in ids] == list(range(1, 5001))
    assert {row["created_at"] for row in rows} == {world.now}
    assert await world.value("SELECT count(DISTINCT id) FROM ondot.execution") == 5000


@proves("E11")
@pytest.mark.parametrize(
    ("specs", "payloads", "words"),
    [
        ([SPEC, {**SPEC, "pool": "No"}], [None, None], "not a pool's name"),
        ([SPEC, []], [None, None], "must be a JSON object"),
        ([SPEC, None], [None, None], "must be a JSON object"),
        ([SPEC, SPEC], [{}, [1]], "payload must be a JSON object"),
        ([SPEC, SPEC], [{}, "x"], "payload must be a JSON object"),
        ([SPEC, SPEC], [{}], "2 specs and 1 payloads"),
        ([{**SPEC, "payload": {}}], [{}], "A spec has a payload"),
    ],
)
async def test_one_invalid_spec_rejects_all_with_what_to_do(
    world: World, specs: list[Any], payloads: list[Any], words: str
) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=words) as caught:
        await world.fetch(
            SUBMIT,
            [None if spec is None else text(spec) for spec in specs],
            [None if payload is None else text(payload) for payload in payloads],
        )
    assert caught.value.hint
    assert await world.count("job_once") == 0


@proves("E11", "E16")
@pytest.mark.parametrize("field", ["unique", "debounce", "throttle", "key", "schedule", "pause_after_failures"])
async def test_a_field_that_needs_the_api_is_rejected_by_name(world: World, field: str) -> None:
    with pytest.raises(asyncpg.FeatureNotSupportedError, match=f'"{field}" cannot be enqueued'):
        await world.fetch(SUBMIT, [text({**SPEC, field: "x"})], [None])


@proves("E11")
async def test_a_role_with_the_documented_grants_may_use_it(server: Server) -> None:
    async with new_database(server) as url, connected(url) as owner:
        role = f"caller_many_{await owner.fetchval('SELECT oid FROM pg_database WHERE datname = current_database()')}"
        await owner.execute(f"CREATE ROLE {role}")
        try:
            await owner.execute(GRANTS.format(role=role))
            # The guard of test databases reads the allowed transitions with the writer's rights.
            await owner.execute(f"GRANT SELECT ON ondot.guard_allowed TO {role}")
            await owner.execute(f"SET ROLE {role}; SET search_path = pg_temp")
            limited = {**SPEC, "limits": {"key": "customer:7", "key_concurrency": 1}}
            assert len(await owner.fetch(SUBMIT, [text(SPEC), text(limited)], [None, "{}"])) == 2
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="table pool"):
                await owner.fetch(SUBMIT, [text({**SPEC, "pool": "new"})], [None])
        finally:
            await owner.execute("RESET ROLE")
            await owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
