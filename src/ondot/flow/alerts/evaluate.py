"""The evaluation of alerts (O4): one pass each second in the scheduler that does the housekeeping.

A pass looks at what holds (`sources`), decides by the latch, and stores what changed together with the messages in one
transaction. The state is in PostgreSQL, and in the memory of the process that evaluates; `alert_state` names that
process. One that lost its duty, or that has not seen a change, writes nothing and reads everything again: a take-over
repeats no message and forgets none. A source that takes long is asked less often: alerts cost about a twentieth of one
connection, in a storm at most a fifth.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from ondot.flow.alerts.known_jobs import KnownJobs
from ondot.flow.alerts.send import Queue, message_of
from ondot.flow.alerts.sources import Found, Look, find_source, source_of
from ondot.flow.alerts.words import SHOWN, title_of
from ondot.model.alerts.cause import Cause
from ondot.model.alerts.latch import REOPEN_S, Changes, Rule, State, Tracked, step
from ondot.model.ids import JobId
from ondot.store.alerts import AlertRow, LoadedAlert, hold, load_alerts, read_state, take_over
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.incidents import (
    NewIncident,
    load_causes,
    load_incidents,
    put_causes,
    put_incidents,
    remove_causes,
)
from ondot.telemetry.log import get_logger

SLOW_S: Final = 0.05
RESTS: Final = 20.0
"""A source that took longer than `SLOW_S` is not asked again for this many times as long,"""
LONGEST_REST_S: Final = 2.5
LEAST_RESTS: Final = 5.0
"""but for at most 2.5 s, so that a message goes out within five; or for five times as long, if it takes that long."""
CAUSES_A_STATEMENT: Final = 2_000
MANY: Final = 500

log = get_logger()


@dataclass(slots=True)
class _Known:
    """What this process has read: valid for one generation."""

    generation: int
    alerts: dict[UUID, LoadedAlert]
    state: State
    names: dict[UUID, str] = field(default_factory=dict)
    """Of the alerts of open incidents, also of deleted ones."""
    titles: dict[UUID, str] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        return not self.alerts and not self.state.causes and not self.state.incidents


class Evaluator:
    def __init__(
        self,
        database: Database,
        queue: Queue,
        *,
        rests: float = RESTS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._queue = queue
        self._rests = rests
        self._monotonic = monotonic
        self._id = database.clock.new_id()
        self._known: _Known | None = None
        self._jobs = KnownJobs()
        self._not_before: dict[str, float] = {}

    async def one_pass(self) -> int:
        """Returns how many messages were queued."""
        async with self._database.connection() as connection:
            found = await read_state(connection)
        known = self._known
        if known is None or found.evaluator != self._id or found.generation != known.generation:
            known = self._known = await self._load()
        if known.is_idle:
            return 0
        async with self._database.connection() as connection:
            held = await self._look(connection, known, found.now)
        rules = _rules(known, found.now)
        new_id = self._database.clock.new_id
        if len(known.state.causes) + sum(map(len, held.values())) > MANY:
            # Ten thousand take some hundred milliseconds: the loop also plans and beats.
            state, changes = await asyncio.to_thread(step, known.state, rules, held, found.now, new_id)
        else:
            state, changes = step(known.state, rules, held, found.now, new_id)
        if changes and not await self._store(known, state, changes, found.now):
            self._known = None
            return 0
        known.state = state
        return len(changes.messages)

    async def _load(self) -> _Known:
        self._jobs.forget()
        self._not_before.clear()
        async with self._database.transaction() as connection:
            generation = await take_over(connection, self._id)
            alerts = await load_alerts(connection)
            incidents = await load_incidents(connection, REOPEN_S)
            causes = [row.tracked for row in await load_causes(connection)]
        state = State(
            {(tracked.alert_id, tracked.cause.key): tracked for tracked in sorted(causes, key=_live_last)},
            {row.id: row.latched for row in incidents},
        )
        return _Known(
            generation,
            {alert.row.id: alert for alert in alerts},
            state,
            {row.alert_id: row.alert for row in incidents} | {alert.row.id: alert.row.name for alert in alerts},
            {row.id: row.title for row in incidents},
        )

    async def _look(self, connection: Connection, known: _Known, now: datetime) -> dict[UUID, Found]:
        """What holds now, of the alerts whose source is asked in this pass."""
        by_source: defaultdict[str, list[AlertRow]] = defaultdict(list)
        for alert in known.alerts.values():
            if alert.is_active:
                by_source[source_of(alert.row.kind.name)].append(alert.row)
        tracked = {JobId(each.cause.job_id) for each in known.state.causes.values() if each.cause.job_id is not None}
        look = Look(connection, now, self._jobs, frozenset(tracked))
        held: dict[UUID, Found] = {}
        for name, alerts in by_source.items():
            began_s = self._monotonic()
            if began_s < self._not_before.get(name, 0.0):
                continue
            held |= await find_source(name)(look, alerts)
            took_s = self._monotonic() - began_s
            if took_s > SLOW_S:
                rest_s = min(took_s * self._rests, max(LONGEST_REST_S, took_s * LEAST_RESTS))
                self._not_before[name] = began_s + rest_s
        return held

    async def _store(self, known: _Known, state: State, changes: Changes, now: datetime) -> bool:
        """False: another process evaluates, or something changed meanwhile; nothing was written."""
        shown = _causes_of(state, changes)
        titles = {
            id_: title_of(incident, shown[id_]) if shown[id_] or id_ not in known.titles else known.titles[id_]
            for id_, incident in changes.incidents.items()
        }
        sent: defaultdict[UUID, int] = defaultdict(int)
        for message in changes.messages:
            sent[message.incident_id] += 1
        never_open = [
            tracked.id
            for tracked in changes.causes.values()
            if tracked.ended_at is not None and tracked.incident_id is None
        ]
        kept = [
            tracked
            for tracked in changes.causes.values()
            if tracked.ended_at is None or tracked.incident_id is not None
        ]
        async with self._database.transaction() as connection:
            if not await hold(connection, self._id, known.generation):
                return False
            if never_open:
                await remove_causes(connection, never_open)
            for first in range(0, len(kept), CAUSES_A_STATEMENT):
                await put_causes(connection, kept[first : first + CAUSES_A_STATEMENT])
            if changes.incidents:
                await put_incidents(
                    connection,
                    [
                        NewIncident(incident, known.names[incident.alert_id], titles[id_], sent[id_])
                        for id_, incident in changes.incidents.items()
                    ],
                )
            for message in changes.messages:
                incident = state.incidents[message.incident_id]
                title = titles.get(incident.id) or known.titles[incident.id]
                why = None if incident.alert_id in known.alerts else "its alert was deleted"
                await self._queue(
                    connection,
                    incident.tenant_no,
                    message.channels,
                    message_of(
                        message.kind,
                        incident,
                        title,
                        shown.get(incident.id, []),
                        alert=known.names[incident.alert_id],
                        now=now,
                        base_url=self._database.settings.public_url or "",
                        why=why,
                    ),
                )
        known.titles |= titles
        for message in changes.messages:
            log.warning(
                f"incident.{message.kind.value}",
                incident_id=str(message.incident_id),
                alert=known.names[state.incidents[message.incident_id].alert_id],
                title=known.titles[message.incident_id],
                channels=list(message.channels),
            )
        return True


def _rules(known: _Known, now: datetime) -> dict[UUID, Rule]:
    return {
        id_: Rule(
            tenant_no=alert.row.tenant_no,
            for_s=alert.row.for_s,
            repeat_s=alert.row.repeat_s,
            notify=alert.row.notify,
            is_muted=not alert.is_active or (alert.row.muted_until is not None and alert.row.muted_until > now),
        )
        for id_, alert in known.alerts.items()
    }


def _live_last(tracked: Tracked) -> bool:
    return tracked.ended_at is None


def _causes_of(state: State, changes: Changes) -> dict[UUID, list[Cause]]:
    """The first causes of the incidents that change: those that hold, or else those that ended."""
    wanted: dict[UUID, list[Cause]] = {id_: [] for id_ in changes.incidents}
    wanted |= {message.incident_id: [] for message in changes.messages}
    for is_live in (True, False):
        for tracked in state.causes.values():
            causes = wanted.get(tracked.incident_id) if tracked.incident_id is not None else None
            if causes is not None and (tracked.ended_at is None) is is_live and len(causes) < SHOWN:
                causes.append(tracked.cause)
    return wanted
