"""The checker of events, on histories that are written by hand: good ones pass, each kind of wrong one is found."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from tests.faults.event_checks import Started, judge_sent, read_sent, read_subscribers
from tests.faults.journal import Operation
from tests.proves import proves

ONE, TWO = UUID(int=1), UUID(int=2)


def asked(op: str, job: str, at_s: float, **more: Any) -> Operation:
    """A request that took half a second; `acked=False`: it had no clear answer."""
    acked = more.pop("acked", True)
    body = {"schedule": {"event": {"type": more.pop("type", "t")}}} if op == "create" else None
    outcome, acked_s = ("acked", at_s + 0.5) if acked else ("unclear", None)
    return Operation(op, job, body, at_s, outcome, acked_s=acked_s, was_unclear=not acked, **more)  # type: ignore[arg-type]


def sent(at_s: float, *ids: UUID, event: str = "e", acked: bool = True) -> Operation:
    answer = {"events": [{"executions": [str(id_) for id_ in ids]}]} if acked else {}
    body = {"events": [{"id": event, "type": "t"}]}
    return replace(asked("send", "events", at_s, acked=acked), body=body, answer=answer)


CREATED = asked("create", "event 1", 0)
STARTED = Started(ONE, "e", "event 1")


def checks(operations: list[Operation], *started: Started) -> set[str]:
    found = judge_sent(read_sent(operations), read_subscribers(operations), started)
    return {violation.check for violation in found}


GOOD: dict[str, tuple[list[Operation], list[Started]]] = {
    "an event that starts a job": ([CREATED, sent(1, ONE)], [STARTED]),
    "an event that is sent twice": ([CREATED, sent(1, ONE), sent(2, ONE)], [STARTED]),
    "an event without an answer that starts a job": ([CREATED, sent(1, acked=False)], [STARTED]),
    "an event without an answer that starts none": ([CREATED, sent(1, acked=False)], []),
    "an event of another type": ([asked("create", "event 1", 0, type="u"), sent(1)], []),
    "an event while the job is created": ([CREATED, sent(0.2)], []),
    "an event while the job is deleted": ([CREATED, asked("delete", "event 1", 2), sent(2.2)], []),
    "an event after a delete without an answer": (
        [CREATED, asked("delete", "event 1", 2, acked=False), sent(3, ONE)],
        [STARTED],
    ),
    "an event after a delete": ([CREATED, asked("delete", "event 1", 2), sent(3)], []),
    "an event in a pause": ([CREATED, asked("pause", "event 1", 2), sent(3)], []),
    "an event after a resume": (
        [CREATED, asked("pause", "event 1", 2), asked("resume", "event 1", 3), sent(4, ONE)],
        [STARTED],
    ),
}
WRONG: dict[str, tuple[list[Operation], list[Started], str]] = {
    "an execution that was named and is lost": ([CREATED, sent(1, ONE)], [], "lost_event"),
    "an execution that was not named": ([CREATED, sent(0.2)], [STARTED], "lost_event"),
    "a duplicate that started again": (
        [CREATED, sent(1, ONE), sent(2, ONE)],
        [STARTED, Started(TWO, "e", "event 1")],
        "doubled_event",
    ),
    "a duplicate with another answer": ([CREATED, sent(1, ONE), sent(2)], [STARTED], "doubled_event"),
    "an event that was missed after a create": ([CREATED, sent(1)], [], "missed_event"),
    "an event that was missed after a resume": (
        [CREATED, asked("pause", "event 1", 2), asked("resume", "event 1", 3), sent(4)],
        [],
        "missed_event",
    ),
    "an execution after a delete": (
        [CREATED, asked("delete", "event 1", 2), sent(3, ONE)],
        [STARTED],
        "event_after_delete",
    ),
    "an execution in a pause": (
        [CREATED, asked("pause", "event 1", 2), sent(3, ONE)],
        [STARTED],
        "event_after_delete",
    ),
    "an execution by another type": (
        [asked("create", "event 1", 0, type="u"), sent(1, ONE)],
        [STARTED],
        "phantom_event",
    ),
    "an execution by no event": ([CREATED], [STARTED], "phantom_event"),
}


@pytest.mark.parametrize(("operations", "started"), GOOD.values(), ids=GOOD)
def test_a_good_history_passes(operations: list[Operation], started: list[Started]) -> None:
    assert checks(operations, *started) == set()


@proves("S11")
@pytest.mark.parametrize(("operations", "started", "check"), WRONG.values(), ids=WRONG)
def test_a_wrong_history_is_found(operations: list[Operation], started: list[Started], check: str) -> None:
    assert check in checks(operations, *started)
