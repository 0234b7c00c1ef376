"""Some hundred executions (or ten thousand) in a storm of failures, then an audit; and an audit of the audit.

`ONDOT_TEST_EXECUTIONS` sets how many, `ONDOT_TEST_SEED` which storm: docs/explanation/guarantees.md runs the large one.
"""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from tests.faults.audit import audit
from tests.faults.fleet import EFFECTS, a_fleet
from tests.faults.ledger import keeping_books, read_books
from tests.faults.planting import PLANTS, Plant, Rest, at_rest
from tests.faults.storm import HEARTBEAT_S, Storm
from tests.proves import proves

EXECUTIONS = int(os.environ.get("ONDOT_TEST_EXECUTIONS", "300"))
SEED = int(os.environ.get("ONDOT_TEST_SEED", "4"))
SECONDS = max(11.0, EXECUTIONS / 30)
CALM_WITHIN_S = 60 + SECONDS


@pytest.mark.long
@pytest.mark.timeout(270 + 3 * SECONDS)
@proves("P1", "P3", "P5", "P6", "P7", "P8", "E4", "E6", "E8", "E10", "E11", "E12", "E13", "E16")
async def test_after_a_storm_every_execution_attempt_call_slot_and_effect_adds_up(
    database_url: str, tmp_path: Path
) -> None:
    books = tmp_path / "calls.jsonl"
    async with keeping_books(books) as ledger, a_fleet(database_url, tmp_path, heartbeat_s=f"{HEARTBEAT_S}") as fleet:
        storm = Storm(fleet, ledger.url, EXECUTIONS, SEED, SECONDS)
        await storm.blow()
        await storm.calm(within_s=CALM_WITHIN_S)
        calls = read_books(books)
        print(f"\n{await storm.figures(len(calls))}")  # noqa: T201 - what the run was, for who asked for a large one
        violations = await audit(fleet.connection, calls)
        print("\n".join([f"violations: {len(violations)}", *map(str, violations)]))  # noqa: T201
        assert [str(violation) for violation in violations] == []
        assert storm.happened.keys() >= {"kills", "freezes", "cancels"}, "it was no storm"


@pytest.fixture
async def rest(database_url: str) -> AsyncIterator[Rest]:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute(EFFECTS)
        yield await at_rest(connection)
    finally:
        await connection.close()


async def test_the_audit_finds_nothing_where_everything_adds_up(rest: Rest) -> None:
    assert await audit(rest.connection, rest.calls) == []


@pytest.mark.parametrize(("plant", "check"), PLANTS.items(), ids=[plant.__name__ for plant in PLANTS])
async def test_the_audit_finds_each_planted_error(rest: Rest, plant: Plant, check: str) -> None:
    await plant(rest)

    found = await audit(rest.connection, rest.calls)

    assert check in {violation.check for violation in found}
