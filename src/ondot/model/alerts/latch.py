"""The latch of alerts (O4): from causes that hold now to incidents and messages. Pure; the state is data.

A cause must hold for its alert's `for`; then it joins an incident or opens one. One message when an incident opens,
reminders while a cause holds, one recovery when none has held for a while. A cause joins, in this order: an open
incident about the same job, one of its alert with the same reason, one that the same reason left within the last half
hour (which opens again, and then waits twice as long before it recovers: so flapping ends in one long incident and not
in many messages); and beyond `MOST_OPEN` incidents of an alert, one that collects all other reasons.

The state is in PostgreSQL: a scheduler that takes over reads it and goes on. Instants are the database's; after its
clock was set back, no wait gets longer than it was.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID

from ondot.model.alerts.cause import Cause
from ondot.model.ids import TenantNo

GONE_S: Final = 15.0
"""A cause that is away for less counts as holding on."""
CLEAR_S: Final = 45.0
"""How long nothing must hold before an incident recovers, for the first time."""
LONGEST_CLEAR_S: Final = 1800.0
REOPEN_S: Final = 1800.0
MOST_OPEN: Final = 20
"""Incidents of one alert at a time, before all further reasons share one."""
VARIOUS: Final = "various reasons"


class Send(StrEnum):
    OPENED = "opened"
    REMINDER = "reminder"
    ACKNOWLEDGED = "acknowledged"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Rule:
    """What the latch needs of an alert."""

    tenant_no: TenantNo
    for_s: float = 0.0
    repeat_s: float | None = None
    notify: tuple[str, ...] = ()
    is_muted: bool = False


@dataclass(frozen=True, slots=True)
class Tracked:
    """A cause since it was first seen. `gone_at`: since when it has not held; not stored, a process that takes over
    waits from scratch."""

    id: UUID
    tenant_no: TenantNo
    alert_id: UUID
    cause: Cause
    since: datetime
    incident_id: UUID | None = None
    ended_at: datetime | None = None
    gone_at: datetime | None = None
    times: int = 1
    """How often it started while its incident was open."""


@dataclass(frozen=True, slots=True)
class Incident:
    id: UUID
    tenant_no: TenantNo
    alert_id: UUID
    kind: str
    reason: str
    since: datetime
    opened_at: datetime
    job_id: UUID | None = None
    """None: it is about several jobs, or about none."""
    clear_at: datetime | None = None
    remind_at: datetime | None = None
    resolved_at: datetime | None = None
    is_by_hand: bool = False
    """A person resolved it: what still holds stays quiet until it was over once."""
    is_acknowledged: bool = False
    notified: tuple[str, ...] = ()
    reopened: int = 0
    causes: int = 0


@dataclass(frozen=True, slots=True)
class ToSend:
    kind: Send
    incident_id: UUID
    channels: tuple[str, ...]


@dataclass(slots=True)
class State:
    """All that is open, the latest of each cause, and incidents that recovered within `REOPEN_S`."""

    causes: dict[tuple[UUID, str], Tracked] = field(default_factory=dict)
    incidents: dict[UUID, Incident] = field(default_factory=dict)


@dataclass(slots=True)
class Changes:
    """What one step changed, to be stored in one transaction with the messages."""

    causes: dict[UUID, Tracked] = field(default_factory=dict)
    incidents: dict[UUID, Incident] = field(default_factory=dict)
    messages: list[ToSend] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.causes or self.incidents or self.messages)


Held = Mapping[UUID, Mapping[str, Cause]]
"""What holds now, by alert and key. An alert that is missing was not evaluated: nothing of it changes."""


def step(
    state: State, rules: Mapping[UUID, Rule], held: Held, now: datetime, new_id: Callable[[], UUID]
) -> tuple[State, Changes]:
    """One look at what holds now. `rules`: all alerts; causes of one that is missing end at once."""
    turn = _Turn(State(dict(state.causes), dict(state.incidents)), rules, now, new_id)
    turn.follow(held)
    turn.assign()
    turn.settle()
    return turn.state, turn.changes


def clear_s(reopened: int) -> float:
    return min(CLEAR_S * 2.0 ** min(reopened, 20), LONGEST_CLEAR_S)


class _Turn:
    def __init__(self, state: State, rules: Mapping[UUID, Rule], now: datetime, new_id: Callable[[], UUID]) -> None:
        self.state = state
        self.changes = Changes()
        self._rules = rules
        self._now = now
        self._new_id = new_id

    def follow(self, held: Held) -> None:
        """Start, continue and end causes."""
        for place, tracked in list(self.state.causes.items()):
            if tracked.ended_at is not None:
                continue
            if tracked.alert_id not in self._rules:
                self._put_cause(replace(tracked, ended_at=self._now))
                continue
            of_alert = held.get(tracked.alert_id)
            if of_alert is None:
                continue
            cause = of_alert.get(place[1])
            if cause is not None:
                # Not all of a cause is stored: after a take-over the next look adds the rest. And `since` is ahead if
                # the clock was set back: its `for` would last until the clock is there again.
                since = min(tracked.since, self._now)
                if (tracked.gone_at, tracked.since, tracked.cause.message, tracked.cause.many) != (
                    None,
                    since,
                    cause.message,
                    cause.many,
                ):
                    self.state.causes[place] = replace(tracked, cause=cause, since=since, gone_at=None)
            else:
                self._let_go(place, tracked)
        for alert_id, of_alert in held.items():
            for key, cause in of_alert.items():
                tracked_before = self.state.causes.get((alert_id, key))
                if tracked_before is None or tracked_before.ended_at is not None:
                    self._start(alert_id, cause, tracked_before)

    def _let_go(self, place: tuple[UUID, str], tracked: Tracked) -> None:
        gone_at = min(tracked.gone_at or self._now, self._now)
        if self._passed(gone_at, GONE_S):
            self._put_cause(replace(tracked, ended_at=gone_at, gone_at=None))
        else:
            self.state.causes[place] = replace(tracked, gone_at=gone_at)

    def _start(self, alert_id: UUID, cause: Cause, before: Tracked | None) -> None:
        since = min(cause.since, self._now)
        incident = None if before is None or before.incident_id is None else self._open(before.incident_id)
        if before is not None and incident is not None:
            self._put_cause(
                replace(before, cause=cause, since=since, ended_at=None, gone_at=None, times=before.times + 1)
            )
        else:
            tenant_no = self._rules[alert_id].tenant_no
            self._put_cause(Tracked(self._new_id(), tenant_no, alert_id, cause, since))

    def assign(self) -> None:
        """Give an incident to each cause that has held for long enough."""
        waiting = [
            tracked
            for tracked in self.state.causes.values()
            if tracked.incident_id is None
            and tracked.ended_at is None
            and tracked.gone_at is None
            and self._passed(tracked.since, self._rules[tracked.alert_id].for_s)
        ]
        if not waiting:
            return
        index = _Index(self.state, self._now)
        joining: dict[UUID, list[Tracked]] = {}
        for tracked in waiting:
            rule = self._rules[tracked.alert_id]
            incident = index.find(rule.tenant_no, tracked)
            if incident is None:
                incident = self._new_incident(rule, tracked, is_crowded=index.is_crowded(tracked.alert_id))
                self._put_incident(incident)
            elif incident.resolved_at is not None:
                incident = self._reopen(incident)
            joining.setdefault(incident.id, []).append(tracked)
            index.add(incident, tracked)
            self._put_cause(replace(tracked, incident_id=incident.id))
        for incident_id, causes in joining.items():
            self._join(self.state.incidents[incident_id], causes)

    def _reopen(self, incident: Incident) -> Incident:
        again = replace(
            incident,
            resolved_at=None,
            clear_at=None,
            remind_at=None,
            is_acknowledged=False,
            notified=(),
            reopened=incident.reopened + 1,
        )
        self._put_incident(again)
        return again

    def _join(self, incident: Incident, causes: Sequence[Tracked]) -> None:
        known = dict.fromkeys(name for tracked in causes for name in tracked.cause.sent_to)
        is_one_job = all(tracked.cause.job_id == incident.job_id for tracked in causes)
        self._put_incident(
            replace(
                incident,
                causes=incident.causes + len(causes),
                since=min(incident.since, *(tracked.since for tracked in causes)),
                job_id=incident.job_id if is_one_job else None,
                notified=(*incident.notified, *(name for name in known if name not in incident.notified)),
            )
        )

    def _new_incident(self, rule: Rule, tracked: Tracked, *, is_crowded: bool) -> Incident:
        cause = tracked.cause
        return Incident(
            id=self._new_id(),
            tenant_no=rule.tenant_no,
            alert_id=tracked.alert_id,
            kind=cause.kind,
            reason=VARIOUS if is_crowded else cause.reason,
            since=tracked.since,
            opened_at=self._now,
            job_id=cause.job_id,
        )

    def settle(self) -> None:
        """Recover incidents that nothing holds open, and send what is owed of the others."""
        alerts_of: dict[UUID, set[UUID]] = {}
        is_held: set[UUID] = set()
        for tracked in self.state.causes.values():
            if tracked.incident_id is not None and tracked.ended_at is None:
                alerts_of.setdefault(tracked.incident_id, set()).add(tracked.alert_id)
                is_held.add(tracked.incident_id)
        for incident in list(self.state.incidents.values()):
            if incident.resolved_at is not None:
                if self._passed(min(incident.resolved_at, self._now), REOPEN_S):
                    self._forget(incident.id)
            elif incident.id in is_held:
                self._notify(incident, [self._rules[id_] for id_ in sorted(alerts_of[incident.id])])
            else:
                self._recover(incident)

    def _recover(self, incident: Incident) -> None:
        clear_at = min(incident.clear_at or self._now, self._now)
        is_over = incident.alert_id not in self._rules or self._passed(clear_at, clear_s(incident.reopened))
        if not is_over:
            if clear_at != incident.clear_at:
                self._put_incident(replace(incident, clear_at=clear_at))
            return
        self._put_incident(replace(incident, clear_at=clear_at, resolved_at=self._now, remind_at=None))
        if incident.notified:
            self.changes.messages.append(ToSend(Send.RECOVERED, incident.id, incident.notified))

    def _notify(self, incident: Incident, rules: Iterable[Rule]) -> None:
        """The channels that do not know of it yet get its opening; the others a reminder when it is due."""
        loud = [rule for rule in rules if not rule.is_muted]
        wanted = dict.fromkeys(name for rule in loud for name in rule.notify)
        missing = tuple(name for name in wanted if name not in incident.notified)
        repeat_s = min((rule.repeat_s for rule in loud if rule.repeat_s is not None), default=None)
        after = replace(incident, clear_at=None, notified=(*incident.notified, *missing))
        next_at = None if repeat_s is None else self._now + timedelta(seconds=repeat_s)
        if missing:
            self.changes.messages.append(ToSend(Send.OPENED, incident.id, missing))
        if missing or next_at is None or incident.remind_at is None or incident.remind_at > next_at:
            # Also an alert that was changed, and a clock that was set back.
            after = replace(after, remind_at=next_at)
        elif incident.remind_at <= self._now and not incident.is_acknowledged:
            known = tuple(name for name in incident.notified if name in wanted)
            if known:
                self.changes.messages.append(ToSend(Send.REMINDER, incident.id, known))
            after = replace(after, remind_at=next_at)
        if after != incident:
            self._put_incident(after)

    def _open(self, incident_id: UUID) -> Incident | None:
        incident = self.state.incidents.get(incident_id)
        return None if incident is None or incident.resolved_at is not None else incident

    def _forget(self, incident_id: UUID) -> None:
        del self.state.incidents[incident_id]
        for place in [
            place
            for place, tracked in self.state.causes.items()
            if tracked.incident_id == incident_id and tracked.ended_at is not None
        ]:
            del self.state.causes[place]

    def _passed(self, since: datetime, seconds: float) -> bool:
        return (self._now - since).total_seconds() >= seconds

    def _put_cause(self, tracked: Tracked) -> None:
        place = (tracked.alert_id, tracked.cause.key)
        if tracked.ended_at is not None and (tracked.incident_id is None or self._open(tracked.incident_id) is None):
            del self.state.causes[place]
        else:
            self.state.causes[place] = tracked
        self.changes.causes[tracked.id] = tracked

    def _put_incident(self, incident: Incident) -> None:
        self.state.incidents[incident.id] = incident
        self.changes.incidents[incident.id] = incident


class _Index:
    """Where a cause may join."""

    def __init__(self, state: State, now: datetime) -> None:
        self._by_job: dict[tuple[TenantNo, UUID], UUID] = {}
        self._by_reason: dict[tuple[UUID, str], UUID] = {}
        self._left: dict[tuple[UUID, str], UUID] = {}
        self._count: dict[UUID, int] = {}
        self._incidents = state.incidents
        for incident in state.incidents.values():
            if incident.resolved_at is None:
                self._add_open(incident)
            elif not incident.is_by_hand and (now - incident.resolved_at).total_seconds() < REOPEN_S:
                self._left[incident.alert_id, incident.reason] = incident.id
        for tracked in state.causes.values():
            open_one = None if tracked.incident_id is None else state.incidents.get(tracked.incident_id)
            if open_one is not None and open_one.resolved_at is None and tracked.cause.job_id is not None:
                self._by_job.setdefault((open_one.tenant_no, tracked.cause.job_id), open_one.id)

    def find(self, tenant_no: TenantNo, tracked: Tracked) -> Incident | None:
        cause, alert_id = tracked.cause, tracked.alert_id
        id_ = None if cause.job_id is None else self._by_job.get((tenant_no, cause.job_id))
        id_ = id_ or self._by_reason.get((alert_id, cause.reason)) or self._left.get((alert_id, cause.reason))
        if id_ is None and self.is_crowded(alert_id):
            id_ = self._by_reason.get((alert_id, VARIOUS)) or self._left.get((alert_id, VARIOUS))
        return None if id_ is None else self._incidents[id_]

    def is_crowded(self, alert_id: UUID) -> bool:
        return self._count.get(alert_id, 0) >= MOST_OPEN

    def add(self, incident: Incident, tracked: Tracked) -> None:
        if self._by_reason.get((incident.alert_id, incident.reason)) != incident.id:
            self._left.pop((incident.alert_id, incident.reason), None)
            self._add_open(incident)
        if tracked.cause.job_id is not None:
            self._by_job.setdefault((incident.tenant_no, tracked.cause.job_id), incident.id)

    def _add_open(self, incident: Incident) -> None:
        self._by_reason[incident.alert_id, incident.reason] = incident.id
        self._count[incident.alert_id] = self._count.get(incident.alert_id, 0) + 1
