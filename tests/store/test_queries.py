"""Every block of SQL on a real schema: it PREPAREs, its header is true, and it keeps tenants apart."""

import re
from collections.abc import AsyncIterator, Iterable
from importlib import resources
from typing import Final

import pytest

from ondot.model.execution import (
    CANCEL,
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

TENANTS_TABLES: Final = [
    "attempt",
    "audit",
    "backfill",
    "checkpoint",
    "dead_letter",
    "execution",
    "bulk",
    "claim",
    "gate",
    "gated",
    "history",
    "idempotency",
    "job",
    "job_once",
    "job_version",
    "key",
    "line",
    "log",
    "object",
    "owed",
    "ready",
    "skipped",
    "slot",
    "streak",
    "timer",
    "waiting",
]

OVER_ALL_TENANTS: Final = {
    # Schedulers and housekeeping serve every tenant; rows that they write have the tenant of the row that they read.
    "find_due_timers": "a node plans its partitions",
    "is_crowded": "a node plans its partitions",
    "plan_fires": "the tenant comes from the timer",
    "take_owed": "a node works off its partitions",
    "make_owed": "the tenant comes from the owed range",
    "put_off_owed": "ranges that this node took",
    "find_past_deadline": "housekeeping",
    "succeed_executions": "fenced by worker and attempt",
    "find_chores": "housekeeping",
    "explain_suspects": "the slots of workers are for all tenants",
    "forget_gates": "housekeeping",
    "add_missing_slots": "what runs in a pool, of all tenants",
    "forget_claims": "housekeeping",
    "call_delayed_lines": "housekeeping",
    "look_at_executions": "housekeeping",
    "look_at_ready": "housekeeping",
    "look_at_waiting": "housekeeping",
    "look_at_gated": "housekeeping",
    "look_at_slots": "housekeeping",
    "look_at_lines": "housekeeping",
    "look_at_leases": "housekeeping",
    "look_at_timers": "housekeeping",
    "lease_to_recovery": "housekeeping",
    "queue_again": "housekeeping",
    "line_up_again": "housekeeping",
    "drop_ready": "housekeeping",
    "drop_waiting": "housekeeping",
    "drop_gated": "housekeeping",
    "drop_slots": "housekeeping",
    "call_overlooked": "housekeeping",
    "drop_leases": "housekeeping",
    "find_stuck_timers": "housekeeping",
    "take_bulk": "housekeeping",
    "lock_gates_of_executions": "gates of executions that the caller then ends, each for its tenant",
    "find_streaks_over": "housekeeping",
    **dict.fromkeys(
        (
            "lock_ended_jobs",
            "lock_deleted_jobs",
            "remove_jobs",
            "lock_superseded",
            "forget_versions",
            "forget_letters",
            "forget_skipped",
            "forget_backfills",
            "forget_bulks",
        ),
        "housekeeping",
    ),
    "list_timers_after": "housekeeping",
    "sweep_late_ready": "housekeeping",
    "forget_keys": "housekeeping",
    "forget_checkpoints": "housekeeping",
    "oldest_due": "the state of the installation",
    "read_queue_depth": "the state of the installation",
    # Workers serve every tenant: they name executions that they leased, fenced by worker and attempt.
    "find_cancels": "what this worker runs",
    "scope_room": "a worker of the pool",
    "survey_lanes": "a lane names its tenant",
    "lease_executions": "a lane names its tenant",
    "find_lease": "by a lease of this worker",
    "complete_executions": "fenced by worker and attempt",
    "find_outcomes": "fenced by worker and attempt",
    "find_payloads": "of executions that this worker leased",
    "find_stopped_jobs": "of executions that this worker leased",
    "find_once_specs": "of executions that were leased and timers that are due",
    "find_specs": "of executions that were leased and timers that are due",
    "find_lost_executions": "of leases without a worker",
    "add_log_lines": "each line carries its tenant",
    "save_progress": "fenced by worker and attempt",
    "find_checkpoint": "of an execution that this worker leased",
    # Before or after the tenant is known.
    "find_callers": "says whose keys they are",
    "list_changed_tenants": "every process knows all tenants",
    "is_live": "of a job whose claim was locked for its tenant",
    "lock_timer": "after the job was locked for its tenant",
}

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
@proves("P12", "T1")
def test_every_block_that_touches_a_table_of_tenants_filters_by_tenant(query: Query) -> None:
    sql = _without_comments(query.text)
    touched = {table for table in TENANTS_TABLES if re.search(rf"\bondot\.{table}\b", sql)}
    if not touched or query.name in OVER_ALL_TENANTS:
        return
    declared = re.search(r"\$(\d+) tenant_no", query.text)
    assert declared, f"{query.name} takes no tenant_no, and OVER_ALL_TENANTS does not say why"
    number = declared[1]
    reads = re.search(r"\b(FROM|JOIN|UPDATE|USING) ondot\.", sql)
    pattern = rf"tenant_no = \${number}\b" if reads else rf"\${number}\b"
    assert re.search(pattern, sql), f"{query.name} does not filter on its tenant"


@proves("P12")
def test_the_list_of_blocks_over_all_tenants_names_only_blocks_that_exist() -> None:
    assert {query.name for noun in nouns() for query in load_queries(noun).values()} >= set(OVER_ALL_TENANTS)


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
@pytest.mark.parametrize("table", ["execution", "history"])
def test_the_sql_that_makes_and_the_sql_that_records_an_execution_is_written_once(table: str) -> None:
    spelled = {
        path.name: count
        for folder in ("sql", "functions")
        for path in resources.files("ondot.store").joinpath(folder).iterdir()
        if (count := path.read_text().count(f"INSERT INTO ondot.{table} ("))
    }
    assert spelled == {"transitions.sql": 1}


@proves("E5")
def test_every_statement_that_ends_executions_includes_what_happens_at_every_end() -> None:
    """But for plain successes, which leave alone what has more to do, and fires taken back, which do not end."""
    records = {query.name for query in ALL if "INSERT INTO ondot.history (" in query.text}
    assert {query.name for query in ALL if fragments()["end"] in query.text} == records - {"succeed_executions"}
    deletes = {query.name for query in ALL if "DELETE FROM ondot.execution" in query.text}
    assert deletes - records == {"take_back_executions"}
    [succeed] = [query for query in ALL if query.name == "succeed_executions"]
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
    completions = {transition for transition in TRANSITIONS if START.target in transition.sources}
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
