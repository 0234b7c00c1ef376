"""The latch of alerts: one message, reminders, one recovery, whatever the causes do (O4)."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, lists, tuples

from ondot.model.alerts.cause import Cause
from ondot.model.alerts.latch import (
    CLEAR_S,
    GONE_S,
    MOST_OPEN,
    REOPEN_S,
    VARIOUS,
    Changes,
    Rule,
    Send,
    State,
    ToSend,
    clear_s,
    step,
)
from ondot.model.ids import TenantNo
from tests.proves import proves

T0 = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
TENANT = TenantNo(1)
ALERT, OTHER = UUID(int=1), UUID(int=2)
JOB = UUID(int=77)


class Clockwork:
    """The latch with its state, stepped by hand."""

    def __init__(self, **rule: object) -> None:
        self.rules = {ALERT: Rule(TENANT, notify=("ops",), **rule)}  # type: ignore[arg-type]
        self.state = State()
        self.now = T0
        self.sent: list[tuple[datetime, ToSend]] = []
        self._next = 1000

    def new_id(self) -> UUID:
        self._next += 1
        return UUID(int=self._next)

    def step(self, *causes: Cause, after: float = 1.0, alert: UUID = ALERT, take_over: bool = False) -> Changes:
        self.now += timedelta(seconds=after)
        if take_over:
            self.state = State(
                {place: replace(cause, gone_at=None) for place, cause in self.state.causes.items()},
                dict(self.state.incidents),
            )
        held: dict[UUID, dict[str, Cause]] = {id_: {} for id_ in self.rules} | {
            alert: {cause.key: cause for cause in causes}
        }
        self.state, changes = step(self.state, self.rules, held, self.now, self.new_id)
        self.sent += [(self.now, message) for message in changes.messages]
        return changes

    @property
    def kinds(self) -> list[str]:
        return [message.kind.value for _, message in self.sent]

    @property
    def open(self) -> int:
        return sum(incident.resolved_at is None for incident in self.state.incidents.values())


def cause(key: str = "a", *, since: datetime = T0, reason: str = "why", job_id: UUID | None = None) -> Cause:
    return Cause("failing", key, reason, key, f"{key} fails", since, job_id)


def quiet(latch: Clockwork, seconds: float) -> None:
    """Nothing holds for this long, looked at each second."""
    for _ in range(int(seconds)):
        latch.step()


@proves("O4")
def test_a_cause_opens_an_incident_after_its_time_reminds_and_recovers_once() -> None:
    latch = Clockwork(for_s=120, repeat_s=600)
    latch.step(cause(), after=119)
    assert latch.kinds == []
    latch.step(cause())
    assert latch.kinds == ["opened"]
    latch.step(cause(), after=599)
    assert latch.kinds == ["opened"]
    latch.step(cause())
    latch.step(cause(), after=3 * 600)  # nobody looked meanwhile: one reminder, not three
    latch.step(cause())
    assert latch.kinds == ["opened", "reminder", "reminder"]
    quiet(latch, GONE_S + CLEAR_S + 2)
    assert latch.kinds == ["opened", "reminder", "reminder", "recovered"]
    assert latch.open == 0


@proves("O4")
def test_a_short_cause_is_no_incident_and_a_short_break_no_recovery() -> None:
    latch = Clockwork(for_s=60)
    latch.step(cause(since=latch.now))
    quiet(latch, 120)
    assert latch.kinds == []
    assert latch.state.causes == {}
    again = cause(since=latch.now)
    for _ in range(62):
        latch.step(again)
    quiet(latch, GONE_S + 5)
    latch.step(cause(since=latch.now))
    quiet(latch, GONE_S + CLEAR_S - 2)
    assert latch.kinds == ["opened"]


@proves("O4")
def test_ten_thousand_jobs_with_one_reason_are_one_incident_and_each_further_reason_is_one_up_to_a_bound() -> None:
    latch = Clockwork()
    latch.step(*(cause(f"job {n}", job_id=UUID(int=n + 1)) for n in range(10_000)))
    assert latch.kinds == ["opened"]
    [storm] = latch.state.incidents.values()
    assert (storm.causes, storm.job_id) == (10_000, None)

    storms = Clockwork()
    storms.step(*(cause(f"job {n}", job_id=UUID(int=n + 1), reason=f"reason {n}") for n in range(500)))
    assert len(storms.sent) == MOST_OPEN + 1 == storms.open
    [rest] = [each for each in storms.state.incidents.values() if each.reason == VARIOUS]
    assert rest.causes == 500 - MOST_OPEN


@proves("O4")
def test_causes_of_several_alerts_on_one_job_join_one_incident_and_each_channel_is_sent_one_opening() -> None:
    latch = Clockwork()
    latch.rules[OTHER] = Rule(TENANT, notify=("ops", "boss"))
    latch.step(cause(job_id=JOB))
    first = cause(job_id=JOB)
    held = {ALERT: {first.key: first}, OTHER: {"late": cause("late", job_id=JOB, reason="late")}}
    latch.state, changes = step(latch.state, latch.rules, held, latch.now, latch.new_id)
    [incident] = latch.state.incidents.values()
    assert [(each.kind, each.channels) for each in changes.messages] == [(Send.OPENED, ("boss",))]
    assert (incident.causes, incident.job_id, incident.notified) == (2, JOB, ("ops", "boss"))

    other_tenant = {**latch.rules, OTHER: Rule(TenantNo(2), notify=("theirs",))}
    apart, _ = step(State(), other_tenant, held, latch.now, latch.new_id)
    assert {each.tenant_no for each in apart.incidents.values()} == {1, 2}


@proves("O4")
def test_a_reason_that_returns_soon_opens_its_incident_again_and_waits_longer_each_time() -> None:
    latch = Clockwork()
    latch.step(cause())
    quiet(latch, GONE_S + CLEAR_S + 2)
    latch.step(cause(since=latch.now), after=60)
    [incident] = latch.state.incidents.values()
    assert incident.reopened == 1
    assert latch.kinds == ["opened", "recovered", "opened"]
    quiet(latch, GONE_S + clear_s(1) - 2)
    assert latch.kinds[-1] == "opened"
    quiet(latch, 4)
    assert latch.kinds[-1] == "recovered"
    latch.step(cause(since=latch.now), after=REOPEN_S + 1)
    latch.step(cause())
    assert len([each for each in latch.state.incidents.values() if each.resolved_at is None]) == 1
    assert latch.open == 1
    assert all(each.reopened == 0 for each in latch.state.incidents.values())


@proves("O4")
def test_what_a_person_resolved_stays_quiet_until_it_was_over_once() -> None:
    latch = Clockwork(repeat_s=60)
    latch.step(cause())
    [incident] = latch.state.incidents.values()
    latch.state.incidents[incident.id] = replace(incident, resolved_at=latch.now, is_by_hand=True)
    for _ in range(5):
        latch.step(cause(), after=60)
    assert latch.kinds == ["opened"]
    quiet(latch, GONE_S + 2)
    latch.step(cause(since=latch.now))
    assert latch.kinds == ["opened", "opened"]


@proves("O4")
def test_acknowledged_and_muted_incidents_send_no_reminder_and_still_recover() -> None:
    latch = Clockwork(repeat_s=60)
    latch.rules[ALERT] = replace(latch.rules[ALERT], is_muted=True)
    latch.step(cause())
    assert latch.open == 1
    assert latch.kinds == []
    latch.rules[ALERT] = replace(latch.rules[ALERT], is_muted=False)
    latch.step(cause())
    assert latch.kinds == ["opened"]
    [incident] = latch.state.incidents.values()
    latch.state.incidents[incident.id] = replace(incident, is_acknowledged=True)
    latch.step(cause(), after=3600)
    quiet(latch, GONE_S + CLEAR_S + 2)
    assert latch.kinds == ["opened", "recovered"]


@proves("O4")
def test_a_deleted_alert_ends_its_incident_at_once_and_a_changed_one_reaches_its_new_channels() -> None:
    latch = Clockwork()
    latch.step(cause())
    latch.rules[ALERT] = replace(latch.rules[ALERT], notify=("ops", "night"))
    latch.step(cause())
    assert latch.sent[-1][1].channels == ("night",)
    del latch.rules[ALERT]
    latch.state, changes = step(latch.state, latch.rules, {}, latch.now, latch.new_id)
    assert [(each.kind, each.channels) for each in changes.messages] == [(Send.RECOVERED, ("ops", "night"))]


@proves("O4")
def test_channels_that_know_it_already_get_its_recovery_only() -> None:
    latch = Clockwork()
    latch.step(replace(cause(), sent_to=("ops",)))
    assert latch.open == 1
    assert latch.kinds == []
    quiet(latch, GONE_S + CLEAR_S + 2)
    assert latch.kinds == ["recovered"]


@proves("O4")
def test_a_clock_that_is_set_back_makes_no_wait_longer() -> None:
    latch = Clockwork(repeat_s=600)
    latch.step(cause())
    latch.step(cause(), after=-7 * 86_400)
    latch.step(cause(), after=601)
    assert latch.kinds == ["opened", "reminder"]
    quiet(latch, 5)
    latch.step(after=-86_400)
    quiet(latch, GONE_S + CLEAR_S + 3)
    assert latch.kinds[-1] == "recovered"


@proves("O4")
def test_a_clock_that_is_set_back_while_a_cause_waits_for_its_time_delays_it_by_no_more_than_that_time() -> None:
    latch = Clockwork(for_s=120)
    latch.step(cause())
    latch.step(cause(), after=-3600)
    latch.step(cause(), after=121)
    assert latch.kinds == ["opened"]


_WALK = lists(tuples(booleans(), booleans(), floats(0.5, 400), booleans(), integers(0, 30)), min_size=1, max_size=80)


@settings(max_examples=50)
@given(_WALK, floats(0, 90))
@proves("O4")
def test_messages_of_an_incident_alternate_however_causes_flap_and_schedulers_change(
    walk: Sequence[tuple[bool, bool, float, bool, int]], for_s: float
) -> None:
    latch = Clockwork(for_s=for_s, repeat_s=300)
    for holds, also, after, take_over, number in walk:
        causes = [cause("a", since=latch.now)] * holds
        causes += [cause(f"b{number}", since=latch.now, job_id=UUID(int=number + 1))] * also
        latch.step(*causes, after=after, take_over=take_over)
        before = latch.state
        again, changes = step(before, latch.rules, {}, latch.now, latch.new_id)
        assert not changes, "a second look at one instant changes nothing"
        assert again.incidents == before.incidents
    is_known: dict[UUID, bool] = {}
    last_at: dict[UUID, datetime] = {}
    for at, message in latch.sent:
        id_ = message.incident_id
        assert is_known.get(id_, False) is (message.kind is not Send.OPENED)
        is_known[id_] = message.kind is not Send.RECOVERED
        if message.kind is Send.REMINDER:
            assert at - last_at[id_] >= timedelta(seconds=300)
        last_at[id_] = at
    assert {id_ for id_, known in is_known.items() if known} == {
        each.id for each in latch.state.incidents.values() if each.resolved_at is None
    }


@settings(max_examples=15)
@given(lists(tuples(integers(1, 900), integers(1, 900)), min_size=40, max_size=40))
@proves("O4")
def test_a_flapping_cause_sends_few_messages(turns: Sequence[tuple[int, int]]) -> None:
    latch = Clockwork()
    for on_s, off_s in turns:
        latch.step(cause(since=latch.now), after=off_s)
        latch.step(cause(), after=on_s)
        latch.step(after=1)
        latch.step(after=GONE_S + 1)
    hours = (latch.now - T0).total_seconds() / 3600
    # Ten messages until it waits half an hour, then at most two for each.
    assert len(latch.sent) <= 12 + 4 * hours
