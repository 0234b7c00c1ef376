"""What people type is looked for by index: a hundred thousand names are not read for one of them."""

import json
from typing import Any

import pytest

from ondot.store.queries import load_queries
from tests.proves import proves
from tests.world import World

JOBS = """
INSERT INTO ondot.job (id, tenant_no, key, name, state, version, pool_no, labels, created_at, updated_at)
SELECT gen_random_uuid(), 1, 'key/' || n, 'Job ' || md5(n::text), 'ACTIVE', 1, 1, '{}', ondot.clock(), ondot.clock()
FROM generate_series(1, 5000) n;
ANALYZE ondot.job;
"""


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", ()) for node in nodes(part))]


@proves("D5")
@pytest.mark.parametrize(
    ("block", "arguments"),
    [
        ("seek_jobs_named", (1, 21, "key/77", False, None)),
        ("seek_jobs_from", (1, 21, "job a", "job a\U0010ffff", False, None)),
    ],
)
async def test_names_and_keys_of_jobs_are_found_by_the_index_of_the_header(
    world: World, block: str, arguments: tuple[Any, ...]
) -> None:
    query = load_queries("find")[block]
    async with world.database.connection() as connection:
        await connection.execute(JOBS)
        explained = json.loads(await connection.fetchval(f"EXPLAIN (FORMAT JSON) {query.text}", *arguments))
        found = await connection.fetch(query.text, *arguments)
    used = nodes(explained[0]["Plan"])
    assert not [node for node in used if node["Node Type"] == "Seq Scan"]
    indexes = {node["Index Name"] for node in used if "Index Name" in node}
    assert indexes >= {name.strip() for name in query.header["index"].split(",")}
    assert len(found) == (1 if block == "seek_jobs_named" else 21)
