"""The judgement of retention in a fault run (O1): did all stay that must, and all go that must go?

It compares the list of `old_days` with the database's tables, the files of the objects and the books of the receiver.

    lost_row       what must stay is there: jobs that are not over, open dead letters, what ended lately, each with its
                   attempts, lines and objects
    kept_row       what must go is gone
    lost_object    the object of each kept row is in storage
    left_object    the object of a row that must go is not
    lost_old_job   jobs of old days that were due in the run, live executions and runs have run once
    lost_end       and their end is kept, if they do not live any more
    left_over      no copy, list of objects or trigger of a rewriting is left
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from tests.faults.audit import Violation

ID_OF = {"job_once": "id", "history": "id", "attempt": "execution_id", "log": "execution_id", "object": "execution_id"}
RUN = frozenset({"due", "live", "run"})
"""Why a job stays that runs during the run."""


@dataclass(frozen=True, slots=True)
class OldRow:
    table: str
    id: UUID
    why: str
    stays: bool
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What is there in the end."""

    rows: Mapping[str, Collection[UUID]]
    """By table."""
    files: Collection[str]
    ends: Mapping[UUID, Sequence[str]]
    """By job: the states of its executions that have ended."""
    called: Collection[UUID]
    """Jobs that the receiver has seen."""
    live: Collection[UUID] = ()
    """Jobs with executions that have not ended."""
    left_over: Sequence[str] = ()


def judge_rows(listed: Sequence[OldRow], found: Found) -> Iterator[Violation]:
    for row in listed:
        subject, is_there = f"{row.table} {row.id} ({row.why})", row.id in found.rows[row.table]
        if row.stays and not is_there:
            yield Violation("lost_row", subject, "must stay, and is gone")
        elif is_there and not row.stays:
            yield Violation("kept_row", subject, "must go, and is there")
        if row.key is not None and row.stays and row.key not in found.files:
            yield Violation("lost_object", subject, f"{row.key} is not in storage")
        if row.key is not None and not row.stays and row.key in found.files:
            yield Violation("left_object", subject, f"{row.key} is in storage, and no row names it")
        if row.why in RUN:
            yield from _judge_run(row, found)
    for name in found.left_over:
        yield Violation("left_over", name, "is left of a rewriting")


def _judge_run(row: OldRow, found: Found) -> Iterator[Violation]:
    subject, ends, was_called = f"job {row.id} ({row.why})", found.ends.get(row.id, ()), row.id in found.called
    if was_called and not ends and row.id not in found.live:
        yield Violation("lost_end", subject, "was called, does not live any more, and has no end")
    elif list(ends) != ["SUCCEEDED"]:
        yield Violation("lost_old_job", subject, f"must have ended once, and has {list(ends)}")
    if row.why != "run" and not was_called:
        yield Violation("lost_old_job", subject, "was never called")


_LEFT_OVER = """
SELECT relname::text AS name FROM pg_class
WHERE relnamespace = 'ondot'::regnamespace AND relkind = 'r' AND relname ~ '(_copy|_gone_[0-9]+)$'
  AND relname <> 'day_copy'
UNION ALL SELECT tgrelid::regclass || ' ' || tgname FROM pg_trigger WHERE tgname = 'day_touched' AND NOT tgisinternal
"""


async def judge_retention(
    connection: asyncpg.Connection,
    list_of_rows: Path,
    objects: Path,
    books: Path,
    counts: dict[str, int],
) -> list[Violation]:
    listed = read_list(list_of_rows)
    ends: defaultdict[UUID, list[str]] = defaultdict(list)
    for row in await connection.fetch("SELECT job_id, state FROM ondot.history JOIN public.past USING (job_id)"):
        ends[row["job_id"]].append(row["state"])
    found = Found(
        {
            table: {row["id"] for row in await connection.fetch(f"SELECT {column} AS id FROM ondot.{table}")}
            for table, column in ID_OF.items()
        },
        _list_files(objects),
        ends,
        _read_called(books),
        {row["job_id"] for row in await connection.fetch("SELECT job_id FROM ondot.execution")},
        [row["name"] for row in await connection.fetch(_LEFT_OVER)],
    )
    by_fate = Counter(row.stays for row in listed)
    counts |= {"old_rows_kept": by_fate[True], "old_rows_gone": by_fate[False]}
    counts["old_jobs_run"] = sum(row.why in RUN for row in listed)
    return list(judge_rows(listed, found))


def _list_files(objects: Path) -> set[str]:
    return {str(file.relative_to(objects)) for file in objects.rglob("*") if file.is_file()}


def _read_called(books: Path) -> set[UUID]:
    entries = map(json.loads, books.read_text().splitlines())
    return {UUID(entry["received"]["job_id"]) for entry in entries if "received" in entry}


def read_list(path: Path) -> list[OldRow]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [OldRow(**line | {"id": UUID(line["id"])}) for line in lines]
