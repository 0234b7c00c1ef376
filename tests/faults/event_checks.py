"""The judgement of the events of a fault run (S11, P1, P2): did each start what its answer says, once?

It reads the database's tables and the journal of `event_users`. An execution that an event started has the event as its
payload, so that nothing else of ondot has to be believed. Every event that was sent:

    lost_event          an acknowledged event started exactly the executions that its answer names
    doubled_event       no event starts a job twice, however often it is sent; each answer to it is the same
    missed_event        it started each job that waited for its type before it was sent, and until it was acknowledged
    event_after_delete  it started no job that was deleted, or paused, before it was sent
    phantom_event       it started no job that waits for another type, and nothing was started by no event
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import asyncpg

from tests.faults.audit import Violation
from tests.faults.journal import Operation, read_journal

NAMED = "event "
"""How the names of jobs begin that events start."""


@dataclass(frozen=True, slots=True)
class Started:
    """An execution that an event started; `event`: the id that its sender gave it."""

    id: UUID
    event: str
    job: str


@dataclass(slots=True)
class Sent:
    """An event, sent once or more often. It took effect between `asked_s` and `acked_s`, or at any time since."""

    id: str
    type: str
    asked_s: float
    acked_s: float | None = None
    answers: set[frozenset[str]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A job that events start, with the requests about it in their order."""

    name: str
    type: str
    operations: Sequence[Operation]

    def surely_waited(self, from_s: float, to_s: float) -> bool:
        """Whether it was there and not paused all the time, as far as its user knows."""
        waits, before = False, [one for one in self.operations if one.asked_s <= to_s]
        for one in before:
            if one.op in {"pause", "delete"} and one.outcome != "refused":
                waits = False
            elif one.op in {"create", "resume"} and one.acked_s is not None:
                waits = one.acked_s <= from_s
        return waits and not any(one.was_unclear and one.op in {"pause", "delete"} for one in before)

    def surely_did_not(self, from_s: float) -> bool:
        """Whether it was deleted or paused before, and nobody asked for it again since."""
        acked = [one for one in self.operations if one.op in {"pause", "delete"} and one.is_acked]
        if any(one.op == "delete" and one.acked_s is not None and one.acked_s < from_s for one in acked):
            return True
        last = max((one for one in acked if one.op == "pause"), key=lambda one: one.asked_s, default=None)
        return (
            last is not None
            and last.acked_s is not None
            and last.acked_s < from_s
            and not any(one.op == "resume" and (one.asked_s > last.asked_s or one.was_unclear)
                        for one in self.operations)
        )  # fmt: skip


def judge_sent(
    sent: Mapping[str, Sent], subscribers: Mapping[str, Subscriber], started: Sequence[Started]
) -> Iterator[Violation]:
    by_event: defaultdict[str, list[Started]] = defaultdict(list)
    for one in started:
        by_event[one.event].append(one)
        if one.event not in sent:
            yield Violation("phantom_event", str(one.id), f"no request sent the event {one.event!r} of {one.job}")
    for event in sent.values():
        yield from _judge_event(event, subscribers, by_event[event.id])


def _judge_event(event: Sent, subscribers: Mapping[str, Subscriber], found: Sequence[Started]) -> Iterator[Violation]:
    subject = f"event {event.id}"
    jobs = [one.job for one in found]
    if len(event.answers) > 1:
        yield Violation("doubled_event", subject, f"got different answers: {sorted(map(sorted, event.answers))}")
    if twice := sorted({job for job in jobs if jobs.count(job) > 1}):
        yield Violation("doubled_event", subject, f"started {twice} more than once")
    ids = {str(one.id) for one in found}
    for answer in event.answers:
        if answer != ids:
            yield Violation("lost_event", subject, f"was answered {sorted(answer)}, but started {sorted(ids)}")
    for name, subscriber in subscribers.items():
        if subscriber.type != event.type:
            if name in jobs:
                yield Violation("phantom_event", subject, f"is of type {event.type}, but started {name}")
        elif name in jobs:
            if subscriber.surely_did_not(event.asked_s):
                yield Violation("event_after_delete", subject, f"started {name}, which was deleted or paused before")
        elif event.acked_s is not None and subscriber.surely_waited(event.asked_s, event.acked_s):
            yield Violation("missed_event", subject, f"did not start {name}, which waited for it")


_STARTED = f"""
SELECT e.id, e.payload::text AS payload, j.name
FROM (SELECT id, job_id, payload FROM ondot.history UNION ALL SELECT id, job_id, payload FROM ondot.execution) e
JOIN ondot.job j ON j.id = e.job_id WHERE j.name LIKE '{NAMED}%'
"""


async def judge_events(connection: asyncpg.Connection, journal: Path, counts: dict[str, int]) -> list[Violation]:
    operations = read_journal(journal)
    started = [
        Started(row["id"], str((json.loads(row["payload"] or "{}")).get("id")), row["name"])
        for row in await connection.fetch(_STARTED)
    ]
    sent, subscribers = read_sent(operations), read_subscribers(operations)
    counts |= {"events_sent": len(sent), "events_started": len(started), "subscribers": len(subscribers)}
    return list(judge_sent(sent, subscribers, started))


def read_sent(operations: Sequence[Operation]) -> dict[str, Sent]:
    """Every event, with all requests that sent it."""
    sent: dict[str, Sent] = {}
    for one in operations:
        if one.op != "send":
            continue
        answers = one.answer.get("events", ()) if one.is_acked else ()
        for place, event in enumerate((one.body or {})["events"]):
            entry = sent.setdefault(event["id"], Sent(event["id"], event["type"], one.asked_s))
            entry.asked_s = min(entry.asked_s, one.asked_s)
            if one.acked_s is not None:
                entry.acked_s = min(one.acked_s, entry.acked_s or one.acked_s)
                entry.answers.add(frozenset(answers[place]["executions"]))
    return sent


def read_subscribers(operations: Sequence[Operation]) -> dict[str, Subscriber]:
    found: defaultdict[str, list[Operation]] = defaultdict(list)
    types: dict[str, str] = {}
    for one in sorted(operations, key=lambda one: one.asked_s):
        if one.op != "send":
            found[one.job].append(one)
            if one.op == "create" and one.body is not None:
                types[one.job] = one.body["schedule"]["event"]["type"]
    return {name: Subscriber(name, types[name], requests) for name, requests in found.items()}
