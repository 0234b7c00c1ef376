"""Every block of SQL on a real schema: it PREPAREs, and its header is true."""

import re
from collections.abc import AsyncIterator, Iterable
from importlib import resources
from typing import Final

import pytest

from ondot.model.execution import (
    CANCEL,
    HOLD,
    PLAN,
    REFUSE,
    SKIP,
    START,
    TAKE_BACK,
    TERMINAL,
    TRANSITIONS,
    State,
)
from ondot.store.queries import Query, fragments, load_queries, nouns
from tests.proves import proves
from tests.servers import Server, connected, new_database

BLOCKS: Final = [
    pytest.param(query, id=f"{noun}-{query.name}") for noun in nouns() for query in load_queries(noun).values()
]
ALL: Final = [query for noun in nouns() for query in load_queries(noun).values()]

WRITES_A_STATE: Final = re.compile(
    r"(INSERT INTO|DELETE FROM) ondot\.execution\b|UPDATE ondot\.execution\b(?:(?!\bWHERE\b).)*\bstate =", re.DOTALL
)


@pytest.fixture(scope="module")
async def schema_url(server: Server) -> AsyncIterator[str]:
    """One database for all blocks: PREPARE changes nothing in it."""
    async with new_database(server) as url:
        yield url


@pytest.mark.parametrize("query", BLOCKS)
@proves("O6")
async def test_every_block_prepares_and_returns_what_its_header_states(schema_url: str, query: Query) -> None:
    async with connected(schema_url) as connection:
        statement = await connection.prepare(query.text)
        columns = statement.get_attributes()
        assert bool(columns) == (query.returns != "none")
        numbers = {int(number) for number in re.findall(r"\$(\d+)", _without_comments(query.text))}
        assert numbers == set(range(1, len(statement.get_parameters()) + 1))


@pytest.mark.parametrize("query", BLOCKS)
@proves("E5")
def test_every_transition_in_a_header_is_one_of_the_state_machine(query: Query) -> None:
    known = {transition.name for transition in TRANSITIONS}
    named = {name.strip() for name in query.header.get("transition", "").split(",") if name.strip()}
    assert named <= known
    sql = _without_comments(query.text)
    writes = WRITES_A_STATE.search(sql)
    assert bool(writes) <= bool(named), f"{query.name} writes a state and its header names no transition"


@proves("E5")
@pytest.mark.parametrize(("table", "transitions"), [("execution", 2), ("history", 1)], ids=["execution", "history"])
def test_the_sql_that_makes_and_the_sql_that_records_an_execution_is_written_once(table: str, transitions: int) -> None:
    """Once for each transition: `plan` and `block` make executions."""
    spelled = {
        path.name: count
        for folder in ("sql", "functions")
        for path in resources.files("ondot.store").joinpath(folder).iterdir()
        if (count := path.read_text().count(f"INSERT INTO ondot.{table} ("))
    }
    assert spelled == {"transitions.sql": transitions}


@proves("E5")
def test_every_statement_that_ends_executions_includes_what_happens_at_every_end() -> None:
    """But for plain successes, which leave alone what has more to do, and fires taken back, which do not end."""
    records = {query.name for query in ALL if "INSERT INTO ondot.history (" in query.text}
    fast = {"succeed_executions", "succeed_labelled", "succeed_and_post"}
    assert {query.name for query in ALL if fragments()["end"] in query.text} == records - fast
    deletes = {query.name for query in ALL if "DELETE FROM ondot.execution" in query.text}
    assert deletes - records == {"take_back_executions"}
    for succeed in (query for query in ALL if query.name in fast):
        assert f"AND NOT {fragments()['has_more_at_end']}\n" in succeed.text


@proves("E5")
def test_the_states_that_sql_spells_are_those_of_its_transitions() -> None:
    text = {**{query.name: query.text for query in ALL}, **fragments()}

    def spell(states: Iterable[State]) -> str:
        return ", ".join(f"'{state}'" for state in sorted(states))

    assert f"class, '{PLAN.target}', origin" in text["insert_into_execution"]
    assert f"'{REFUSE.target}' AS new_state" in text["never_made"]
    assert f"SET state = '{START.target}'" in text["lease_executions"]
    assert f"e.state IN ({spell(START.sources)})" in text["lease_executions"]
    assert f"AND state = {spell(TAKE_BACK.sources)}" in text["take_back_executions"]
    completions = {transition for transition in TRANSITIONS if START.target in transition.sources} - {HOLD}
    ends = {transition.target for transition in completions if transition.target in TERMINAL}
    goes_on = {transition.target for transition in completions} - ends
    sql = text["complete_executions"]
    assert sql.count(f"e.state = '{START.target}'") == sql.count("e.worker_id = $1") == 3
    assert (
        set(re.findall(r"'(\w+)'", _match(r"new_state IN \(([^)]*)\)\n    RETURNING e\.\*, o\.new_state", sql))) == ends
    )
    assert (
        set(re.findall(r"'(\w+)'", _match(r"cancel_at IS NULL\n      AND o\.new_state IN \(([^)]*)\)", sql))) == goes_on
    )


@proves("E5")
def test_the_statement_that_ends_waiting_executions_names_transitions_with_the_same_sources() -> None:
    named = load_queries("endings")["end_executions"].header["transition"].split(", ")
    ending = [transition for transition in TRANSITIONS if transition.name in named]
    assert ending == [CANCEL, SKIP]
    assert CANCEL.sources == SKIP.sources == set(State) - TERMINAL - {State.RUNNING}


@proves("E5")
def test_the_names_of_blocks_are_unique_over_all_files() -> None:
    names = [query.name for noun in nouns() for query in load_queries(noun).values()]
    assert len(set(names)) == len(names)


def _match(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    assert found, pattern
    return found[1]


def _without_comments(text: str) -> str:
    return re.sub(r"--.*", "", text)
