"""The checker of alerts, on histories that are written by hand: good ones pass, each kind of wrong one is found."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.faults.alert_checks import (
    Delivery,
    Disturbances,
    Span,
    group_messages,
    judge_deliveries,
    judge_messages,
)
from tests.faults.alert_receiver import AlertBooks, Arrival, JobCall, keeping_alert_books, read_alert_books
from tests.proves import proves

OPENED = Arrival("m1", 1, "opened", "i", "ops", 15.0, 200)
RECOVERED = Arrival("m2", 1, "recovered", "i", "ops", 25.0, 200)
BAD = Span("ops", ["a"], 2, 0.0, 10.0, 20.0, 30.0)
BLIP = Span("ops", ["a"], 0, 0.0, 2.0, 4.0)
FAILED = (JobCall("a", 11.0, 500), JobCall("a", 12.0, 500))


@dataclass(frozen=True)
class History:
    spans: tuple[Span, ...] = (BAD,)
    arrivals: tuple[Arrival, ...] = (OPENED, RECOVERED)
    calls: tuple[JobCall, ...] = FAILED
    troubles: tuple[tuple[float, float], ...] = ()
    deliveries: tuple[Delivery, ...] = field(
        default=(Delivery("m1", "ops", "opened", "DELIVERED", 1), Delivery("m2", "ops", "recovered", "DELIVERED", 1))
    )

    def checks(self) -> set[str]:
        books = AlertBooks(self.calls, self.arrivals, self.troubles)
        messages = group_messages(self.arrivals)
        found = [
            *judge_messages(self.spans, books, Disturbances(self.troubles), ended_s=100.0, slack_s=0.0),
            *judge_deliveries(messages, {one.id: one for one in self.deliveries}),
        ]
        return {violation.check for violation in found}


LONG = replace(BAD, bad_until_s=40.0, good_until_s=50.0)
TWICE = (OPENED, replace(OPENED, attempt=2, at_s=16.0), RECOVERED)
GOOD = {
    "a cause, its message and its recovery": History(),
    "a blip": History((BLIP, BAD)),
    "a message that was tried again": History(
        arrivals=(replace(OPENED, status=500), replace(OPENED, attempt=2, at_s=16.0), RECOVERED),
        deliveries=(Delivery("m1", "ops", "opened", "DELIVERED", 2), History().deliveries[1]),
    ),
    "a message that came again, because its sender died": History(
        arrivals=TWICE, deliveries=(Delivery("m1", "ops", "opened", "DELIVERED", 2), History().deliveries[1])
    ),
    "no message of a cause that was too short": History(arrivals=(), deliveries=()),
    "a message that was dropped": History(
        deliveries=(*History().deliveries, Delivery("m3", "ops", "opened", "DROPPED", 1))
    ),
    "a late message, while its channel was away": History(
        (LONG,),
        (replace(OPENED, at_s=30.0), replace(RECOVERED, at_s=45.0)),
        troubles=((14.0, 29.0),),
    ),
    "a job that never failed": History((LONG,), arrivals=(), calls=(), deliveries=()),
}
WRONG = {
    "no message": (History((LONG,), arrivals=(), deliveries=()), "lost_alert"),
    "no recovery": (
        History((replace(BAD, good_until_s=60.0),), (OPENED,), deliveries=(History().deliveries[0],)),
        "lost_alert",
    ),
    "two openings": (History(arrivals=(OPENED, replace(OPENED, id="m3", at_s=16.0), RECOVERED)), "doubled_alert"),
    "two recoveries": (History(arrivals=(OPENED, RECOVERED, replace(RECOVERED, id="m3", at_s=26.0))), "doubled_alert"),
    "an opening after the recovery": (
        History(arrivals=(OPENED, RECOVERED, replace(OPENED, id="m3", at_s=27.0))),
        "phantom_alert",
    ),
    "a recovery while it is bad": (
        History(arrivals=(OPENED, replace(RECOVERED, id="m3", at_s=16.0), RECOVERED)),
        "phantom_alert",
    ),
    "a message after a blip": (
        History((BLIP, BAD), arrivals=(replace(OPENED, id="m0", at_s=3.0), OPENED, RECOVERED)),
        "phantom_alert",
    ),
    "a message before anything failed": (History(calls=()), "phantom_alert"),
    "a reminder": (History(arrivals=(OPENED, replace(OPENED, id="m3", type="reminder"), RECOVERED)), "phantom_alert"),
    "the recovery of another incident": (
        History(arrivals=(OPENED, replace(RECOVERED, incident_id="j"))),
        "phantom_alert",
    ),
    "a late message": (
        History((LONG,), (replace(OPENED, at_s=30.0), replace(RECOVERED, at_s=45.0))),
        "late_alert",
    ),
    "a try that is not on record": (History(arrivals=TWICE), "repeated_message"),
    "the same attempt twice": (
        History(
            arrivals=(OPENED, replace(OPENED, at_s=16.0), RECOVERED),
            deliveries=(Delivery("m1", "ops", "opened", "DELIVERED", 2), History().deliveries[1]),
        ),
        "repeated_message",
    ),
    "a message without a record": (History(deliveries=(History().deliveries[0],)), "repeated_message"),
    "delivered, and never answered": (
        History(arrivals=(replace(OPENED, status=None), RECOVERED)),
        "unsent_message",
    ),
    "delivered, and never sent": (
        History(deliveries=(*History().deliveries, Delivery("m3", "ops", "opened", "DELIVERED", 1))),
        "unsent_message",
    ),
    "a message that still waits": (
        History(deliveries=(*History().deliveries, Delivery("m3", "ops", "opened", "RETRYING", 3))),
        "stuck_message",
    ),
}


@proves("O4")
@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_passes(name: str) -> None:
    assert GOOD[name].checks() == set()


@proves("O4")
@pytest.mark.parametrize("name", WRONG)
def test_each_wrong_history_is_found(name: str) -> None:
    history, check = WRONG[name]
    assert check in history.checks()


async def test_the_books_say_what_came_and_what_was_answered(tmp_path: Path) -> None:
    import aiohttp

    books = tmp_path / "books.jsonl"
    body = {"id": "m1", "type": "incident.opened", "incident_id": "i"}
    async with keeping_alert_books(books) as receiver, aiohttp.ClientSession() as session:
        receiver.bad_moods["a b"] = 1
        for status in (500, 200):
            async with session.post(f"{receiver.jobs_url}/a%20b") as answer:
                assert answer.status == status
        url = f"{receiver.channels_url}/ops"
        for attempt, trouble in enumerate(("away", "error"), start=1):
            async with receiver.in_trouble(trouble):  # type: ignore[arg-type]
                try:
                    async with session.post(url, json=body, headers={"ondot-attempt": f"{attempt}"}) as answer:
                        assert (answer.status, trouble) == (500, "error")
                except aiohttp.ClientError:
                    assert trouble == "away"
        async with session.post(url, json=body, headers={"ondot-attempt": "3"}) as answer:
            assert answer.status == 200
        assert receiver.delivered["ops"] == ["opened"]
    kept = read_alert_books(books)
    assert [(call.job, call.status) for call in kept.calls] == [("a b", 500), ("a b", 200)]
    assert [(one.attempt, one.status) for one in kept.arrivals] == [(2, 500), (3, 200)]
    assert len(kept.troubles) == 2
