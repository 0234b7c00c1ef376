"""Every block of SQL keeps tenants apart: each table of tenants that it reads is filtered on the tenant, or joined by
an id to one that is, or the block is listed in `over_all_tenants` with its reason (P12, T1)."""

import re
from collections.abc import Iterator
from importlib import resources
from typing import Final

import pytest

from ondot.store.queries import Query, fragments, load_queries, nouns
from tests.proves import proves
from tests.store.over_all_tenants import BLOCKS, FILTERED_AROUND, FRAGMENTS, FUNCTIONS, TABLES

ALL: Final = [
    pytest.param(query, id=f"{noun}-{query.name}") for noun in nouns() for query in load_queries(noun).values()
]
_TABLE: Final = re.compile(r"CREATE TABLE ondot\.(\w+) \(\n(.*?)\n\)", re.DOTALL)
_READ: Final = re.compile(
    r"(?:\b(?:FROM|JOIN|UPDATE|USING)|,)\s+(?:ONLY )?ondot\.(\w+)\b(?!\s*\()(?:\s+(?:AS )?(\w+))?"
)
_NOT_AN_ALIAS: Final = frozenset(
    [
        "where",
        "set",
        "order",
        "for",
        "on",
        "using",
        "limit",
        "join",
        "left",
        "group",
        "cross",
        "returning",
        "union",
        "full",
        "inner",
    ]
)
_IDS: Final = r"(?:id|job_id|execution_id|gate_id)"


def files_of(folder: str) -> dict[str, str]:
    return {
        path.name.removesuffix(".sql"): path.read_text()
        for path in resources.files("ondot.store").joinpath(folder).iterdir()
        if path.name.endswith(".sql")
    }


def tables_of_tenants() -> frozenset[str]:
    """From the schema, so that a new table is a tenant's unless the list says otherwise."""
    schema = resources.files("ondot.store").joinpath("schema.sql").read_text()
    return frozenset(name for name, columns in _TABLE.findall(schema) if "    tenant_no " in columns) - TABLES.keys()


OF_TENANTS: Final = tables_of_tenants()


def parts_of(sql: str) -> Iterator[str]:
    """Each SELECT, INSERT, UPDATE and DELETE of a statement alone: queries inside it are replaced by `()`."""
    stack: list[list[str]] = [[]]
    for character in re.sub(r"'[^']*'", "''", re.sub(r"--.*", "", sql)):
        if character == "(":
            stack.append([])
        elif character == ")" and len(stack) > 1:
            inner = "".join(stack.pop())
            if re.search(r"\b(SELECT|INSERT|UPDATE|DELETE)\b", inner):
                yield from re.split(r"\bUNION(?: ALL)?\b", inner)
                inner = ""
            stack[-1].append(f"({inner})")
        else:
            stack[-1].append(character)
    yield from re.split(r"\bUNION(?: ALL)?\b|;", "".join(stack[0]))


def unfiltered(sql: str, tenant: str) -> list[str]:
    """The tables of tenants that a statement reads without a filter on the tenant, and without a join by an id.
    `tenant`: a pattern for the tenant's parameter."""
    found = []
    for part in parts_of(sql):
        reads = [
            (table, alias if alias and alias.lower() not in _NOT_AN_ALIAS else table)
            for table, alias in _READ.findall(part)
            if table in OF_TENANTS
        ]
        for table, alias in reads:
            column = (
                rf"(?:\b{alias}\.)tenant_no" if len(_READ.findall(part)) > 1 else rf"(?:\b{alias}\.|(?<!\.)\b)tenant_no"
            )
            filters = rf"{column} = (?:{tenant}|\w+\.tenant_no)|(?:{tenant}(?:::integer)?|\w+\.tenant_no) = {column}"
            joins = (
                rf"\b{alias}\.{_IDS} = (?!{alias}\.)\w+\.|= {alias}\.{_IDS}\b|(?<!\.)\b{_IDS} = (?!{alias}\.)\w+\.\w+"
            )
            by_inner = rf"\b{_IDS} = ANY \(ARRAY\(\)\)"
            if not re.search(rf"{filters}|{joins}|{by_inner}", part):
                found.append(table)
    return found


@pytest.mark.parametrize("query", ALL)
@proves("P12", "T1")
def test_every_block_that_reads_a_table_of_tenants_filters_on_the_tenant(query: Query) -> None:
    sql = re.sub(r"--.*", "", query.text)
    touched = {table for table in OF_TENANTS if re.search(rf"\bondot\.{table}\b(?!\s*\()", sql)} | {
        table for table in OF_TENANTS if re.search(rf"\bINTO ondot\.{table}\b", sql)
    }
    if not touched or query.name in BLOCKS:
        return
    declared = re.search(r"\$(\d+) tenant_no", query.text)
    assert declared, f"{query.name} takes no tenant_no, and over_all_tenants does not say why"
    tenant = rf"\${declared[1]}\b"
    if re.search(r"\b(FROM|JOIN|UPDATE|USING) ondot\.", sql):
        assert re.search(rf"tenant_no = {tenant}|{tenant}::integer = \w+\.tenant_no", sql), (
            f"{query.name} does not filter on its tenant"
        )
    assert re.search(tenant, sql), f"{query.name} does not write its tenant"
    if query.name not in FILTERED_AROUND:
        text = query.text
        for name in FRAGMENTS:
            text = text.replace(fragments()[name], "true")
        assert unfiltered(text, tenant) == [], f"{query.name} reads rows of other tenants"


@pytest.mark.parametrize("name", sorted(files_of("functions")))
@proves("P12", "T1")
def test_every_function_that_reads_a_table_of_tenants_filters_on_the_tenant(name: str) -> None:
    if name not in FUNCTIONS:
        assert unfiltered(files_of("functions")[name], r"(?:of_)?tenant(?:_no)?\b") == [], f"{name} reads all tenants"


@proves("P12")
def test_the_list_of_sql_over_all_tenants_names_only_what_exists_and_needs_it() -> None:
    blocks = {query.name: query for noun in nouns() for query in load_queries(noun).values()}
    assert blocks.keys() >= BLOCKS.keys() | FILTERED_AROUND.keys()
    assert not BLOCKS.keys() & FILTERED_AROUND.keys()
    for name in FILTERED_AROUND:
        assert unfiltered(blocks[name].text, r"\$\d+\b"), f"{name} filters everywhere: remove it from the list"
    functions = files_of("functions")
    assert functions.keys() >= FUNCTIONS.keys()
    assert {table for table, _ in _TABLE.findall(_schema())} >= TABLES.keys()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM ondot.job WHERE id = $2",
        "SELECT * FROM ondot.job j WHERE j.id = $2 AND j.name = $1",
        "SELECT (SELECT count(*) FROM ondot.execution) FROM ondot.job WHERE tenant_no = $1",
        "SELECT * FROM ondot.job WHERE tenant_no = $1 UNION ALL SELECT * FROM ondot.job_once",
        "DELETE FROM ondot.key WHERE id = $2",
        "UPDATE ondot.job SET name = $3 WHERE id = $2",
        "SELECT * FROM ondot.job j, ondot.timer t WHERE j.tenant_no = $1",
        "WITH a AS (SELECT id FROM ondot.history) SELECT * FROM ondot.job WHERE tenant_no = $1",
    ],
)
@proves("P12")
def test_the_check_finds_a_forgotten_filter(sql: str) -> None:
    assert unfiltered(sql, r"\$1\b")


def _schema() -> str:
    return resources.files("ondot.store").joinpath("schema.sql").read_text()
