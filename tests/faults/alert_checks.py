"""The judgement of the alerts of a fault run (O4): did each cause send what it must, once, and nothing else?

It reads the journal of `alert_users`, the books of `alert_receiver` and the log of faults. Of ondot it reads the
deliveries alone, for what only they can say: which tries are on record, and what counts as sent.

    lost_alert       a bad time that lasted longer than the bound has a message that opens its incident, and the good
                     time after it one that says it is over, of the same incident
    doubled_alert    no second one, whichever scheduler died
    phantom_alert    no message in any other time: after a blip, before a cause, or twice
    late_alert       from the cause to the message it took no longer than the bound, and what faults and troubles add
    repeated_message the same message comes again only as another attempt that is on record
    unsent_message   what counts as delivered was answered with a 2xx
    stuck_message    in the end every message was delivered, or dropped because nobody needs it any more
    lost_ack         acknowledged alerts and channels exist
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from tests.faults.alert_receiver import AlertBooks, Arrival, JobCall, read_alert_books
from tests.faults.audit import Violation
from tests.faults.evidence import read_faults

NAMED = "alert "
"""How the names of jobs begin that alerts watch."""
BOUND_S = 10.0
"""From a cause to its message, without faults: the housekeeper looks each second, and it may lose its lease (5 s)."""
RETRY_S = 3.0
"""The longest wait before a message is tried again (`pace`)."""
CLEAR_S = 8.0
"""The longest wait before an incident recovers, after it opened three times (`pace`)."""
ENDED = ("DELIVERED", "DROPPED")


@dataclass(slots=True)
class Span:
    """A bad time of some jobs, and the good one after it. Until `bad_until_s` their calls fail; None: to the end.

    It is a cause once one of them has failed `in_a_row` times, and `within_s` later. 0: never, it is a blip.
    """

    channel: str
    jobs: list[str]
    in_a_row: int
    within_s: float
    began_s: float
    bad_until_s: float | None = None
    good_until_s: float | None = None


@dataclass(slots=True)
class Message:
    """All tries of one message."""

    id: str
    type: str
    incident_id: str | None
    channel: str
    tries: list[Arrival] = field(default_factory=list)

    @property
    def came_s(self) -> float:
        return self.tries[0].at_s


@dataclass(frozen=True, slots=True)
class Delivery:
    """What ondot has on record about a message."""

    id: str
    channel: str
    kind: str
    state: str
    attempts: int


@dataclass(frozen=True, slots=True)
class Disturbances:
    """What may delay a message: faults, and troubles of the channels."""

    spans: Sequence[tuple[float, float]] = ()

    def seconds(self, from_s: float, to_s: float) -> float:
        return sum(max(min(to_s, ended_s) - max(from_s, began_s), 0.0) for began_s, ended_s in self.spans)


def judge_messages(
    spans: Sequence[Span], books: AlertBooks, disturbances: Disturbances, *, ended_s: float, slack_s: float
) -> Iterator[Violation]:
    messages = group_messages(books.arrivals)
    by_channel: defaultdict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda one: one.began_s):
        by_channel[span.channel].append(span)
    claimed: set[str] = set()
    for channel, of_channel in by_channel.items():
        mine = [message for message in messages if message.channel == channel]
        for span in of_channel:
            found = _Found(span, mine, ended_s)
            claimed |= {message.id for message in (*found.opened, *found.recovered)}
            yield from _judge_span(found, books.calls, disturbances, slack_s)
    for message in messages:
        if message.id not in claimed:
            yield Violation("phantom_alert", message.channel, f"got {message.type} ({message.id}) without a cause")


class _Found:
    """The messages of one span: openings of its bad time, recoveries of its good one."""

    def __init__(self, span: Span, messages: Iterable[Message], ended_s: float) -> None:
        self.span = span
        self.bad_until_s = span.bad_until_s or ended_s
        self.good_until_s = span.good_until_s or ended_s
        of_span = [message for message in messages if span.began_s <= message.came_s <= self.good_until_s]
        if not span.in_a_row:
            of_span = []
        self.opened = [one for one in of_span if one.type == "opened" and one.came_s <= self.bad_until_s]
        self.recovered = [one for one in of_span if one.type == "recovered" and one.came_s > self.bad_until_s]


def _judge_span(
    found: _Found, calls: Sequence[JobCall], disturbances: Disturbances, slack_s: float
) -> Iterator[Violation]:
    span = found.span
    cause_s = _cause_s(span, calls, found.bad_until_s)
    if cause_s is None:
        for message in found.opened:
            yield Violation("phantom_alert", span.channel, f"got opened ({message.id}), and nothing had failed")
        return

    def is_beyond(from_s: float, until_s: float, wait_s: float = 0.0) -> bool:
        bound_s = wait_s + BOUND_S + RETRY_S + slack_s + disturbances.seconds(from_s, until_s)
        return until_s - from_s > bound_s

    for what, messages in (("opened", found.opened), ("recovered", found.recovered)):
        if len(messages) > 1:
            ids = [message.id for message in messages]
            yield Violation("doubled_alert", span.channel, f"got {what} {len(ids)} times for one cause: {ids}")
    if not found.opened:
        if is_beyond(cause_s, found.bad_until_s):
            lasted_s = found.bad_until_s - cause_s
            yield Violation("lost_alert", span.channel, f"got no message in the {lasted_s:.1f} s of its cause")
        return
    came_s = found.opened[0].came_s
    if is_beyond(cause_s, came_s):
        yield Violation("late_alert", span.channel, f"got its message after {came_s - cause_s:.1f} s")
    if not found.recovered and is_beyond(found.bad_until_s, found.good_until_s, CLEAR_S):
        lasted_s = found.good_until_s - found.bad_until_s
        yield Violation("lost_alert", span.channel, f"got no message that it is over for {lasted_s:.1f} s")
    if {one.incident_id for one in found.recovered} - {one.incident_id for one in found.opened}:
        yield Violation("phantom_alert", span.channel, "got the end of another incident than the one that opened")


def _cause_s(span: Span, calls: Sequence[JobCall], until_s: float) -> float | None:
    """When one of its jobs had failed often enough. None: never."""
    failed: defaultdict[str, list[float]] = defaultdict(list)
    for call in calls:
        if call.job in span.jobs and call.status != 200 and span.began_s <= call.at_s <= until_s:
            failed[call.job].append(call.at_s)
    if not span.in_a_row:
        return None
    return min(
        (at_s[span.in_a_row - 1] + span.within_s for at_s in failed.values() if len(at_s) >= span.in_a_row),
        default=None,
    )


def group_messages(arrivals: Sequence[Arrival]) -> list[Message]:
    found: dict[str, Message] = {}
    for one in arrivals:
        message = found.setdefault(one.id, Message(one.id, one.type, one.incident_id, one.channel))
        message.tries.append(one)
    return list(found.values())


def judge_deliveries(messages: Sequence[Message], deliveries: Mapping[str, Delivery]) -> Iterator[Violation]:
    by_id = {message.id: message for message in messages}
    for message in messages:
        delivery = deliveries.get(message.id)
        attempts = [one.attempt for one in message.tries]
        if delivery is None:
            yield Violation("repeated_message", message.channel, f"got {message.id}, of which there is no record")
        elif len(set(attempts)) < len(attempts) or max(attempts) > delivery.attempts:
            recorded = f"{delivery.attempts} attempts are on record"
            yield Violation("repeated_message", message.channel, f"got {message.id} as attempts {attempts}, {recorded}")
    for delivery in deliveries.values():
        tries = by_id[delivery.id].tries if delivery.id in by_id else ()
        if delivery.state == "DELIVERED" and not any(one.status == 200 for one in tries):
            yield Violation("unsent_message", delivery.channel, f"{delivery.kind} {delivery.id} counts as delivered")
        if delivery.state not in ENDED:
            yield Violation("stuck_message", delivery.channel, f"{delivery.kind} {delivery.id} is {delivery.state}")


_DELIVERIES = """
SELECT d.id::text AS id, c.name AS channel, d.kind, d.state, d.attempts
FROM ondot.delivery d JOIN ondot.channel c ON c.id = d.channel_id WHERE c.name = ANY ($1)
"""


async def judge_alerts(
    connection: asyncpg.Connection,
    journal: Path,
    books: Path,
    faults: Path,
    *,
    ended_s: float,
    slack_s: float,
    counts: dict[str, int],
) -> list[Violation]:
    spans, acked = read_spans(journal)
    kept = read_alert_books(books)
    disturbances = Disturbances([*((one.began_s, one.ended_s) for one in read_faults(faults)), *kept.troubles])
    channels = sorted({span.channel for span in spans})
    rows = await connection.fetch(_DELIVERIES, channels)
    deliveries = {row["id"]: Delivery(**row) for row in rows}
    messages = [message for message in group_messages(kept.arrivals) if message.channel in channels]
    found = [
        *judge_messages(spans, kept, disturbances, ended_s=ended_s, slack_s=slack_s),
        *judge_deliveries(messages, deliveries),
    ]
    for what, name in acked:
        if not await connection.fetchval(f"SELECT EXISTS (SELECT FROM ondot.{what} WHERE name = $1)", name):
            found.append(Violation("lost_ack", f"{what} {name}", "was acknowledged, but does not exist"))
    counts |= {
        "alert_causes": sum(span.in_a_row > 0 for span in spans),
        "alert_blips": sum(not span.in_a_row for span in spans),
        "alert_messages": len(messages),
        "alert_tries": len(kept.arrivals),
    }
    return found


def read_spans(journal: Path) -> tuple[list[Span], list[tuple[str, str]]]:
    """The spans, and the alerts and channels that were acknowledged: what, and its name."""
    lines: list[dict[str, Any]] = [json.loads(line) for line in journal.read_text().splitlines()]
    spans = [Span(**line["span"]) for line in lines if "span" in line]
    return spans, [(line["acked"], line["name"]) for line in lines if "acked" in line]
