"""Says that PostgreSQL or etcd is away (O4): from memory, because nothing can be read, or nobody queues it, then.

Each scheduler keeps the channels of alerts of the kind `database` in memory, with their credentials, and refreshes them
each minute. Once the database was silent for the alert's `for`, the scheduler that had partition 0 sends one message to
each; the others send it a minute later, in case that one is gone too. All of them use the same id, so that receivers
can join them. When the database is back, the message is recorded as a delivery, and the condition `database` names the
channels that know it: the incident sends them its recovery.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID, uuid5

from ondot.flow.alerts.conditions import report_condition
from ondot.flow.channels.credentials import NoCredential, Opened, open_credentials
from ondot.flow.channels.deliver import ChannelCaller
from ondot.flow.vault import Vault
from ondot.model.channel import DeliveryState, Message, PagerDutyChannel
from ondot.model.errors import OndotError
from ondot.model.ids import INSTALLATION, ExecutionId
from ondot.model.outcome import Failed, Succeeded
from ondot.ports.target import CallReport
from ondot.store.channels import ChannelRow, add_delivery, end_attempt, find_channels, find_database_alerts
from ondot.store.database import Database
from ondot.telemetry.log import get_logger

REFRESH_EVERY_S: Final = 60.0
LOOK_EVERY_S: Final = 1.0
DEFAULT_FOR_S: Final = 30.0
OTHERS_WAIT_S: Final = 60.0
KIND: Final = "database"
HOLDS_S: Final = 5.0
"""The condition ends by itself soon after the return: it was reported late."""
_SPACE: Final = UUID("6f1d2b5e-9d6c-5a6a-8a3e-0d0b5f1c7a11")

log = get_logger()


@dataclass(frozen=True, slots=True)
class _Kept:
    """A channel in memory. `incident_id`: the same in all schedulers, another one for each outage."""

    channel: ChannelRow
    opened: Opened
    for_s: float
    incident_id: UUID


@dataclass(frozen=True, slots=True)
class _Sent:
    kept: _Kept
    message: Message
    report: CallReport


class DatabaseAway:
    def __init__(self, database: Database, vault: Vault, caller: ChannelCaller) -> None:
        self._database = database
        self._vault = vault
        self._caller = caller
        self._kept: Sequence[_Kept] = ()
        self._sent: dict[UUID, _Sent] = {}
        """By channel: what was sent since the database is away."""
        self._since: datetime | None = None

    async def refresh_pass(self) -> int:
        """Read the channels that alerts of this kind name; one statement while there is no such alert."""
        kept: dict[UUID, _Kept] = {}
        async with self._database.connection() as connection:
            alerts = await find_database_alerts(connection)
            found = [
                (alert, channel)
                for alert in alerts
                for channel in (await find_channels(connection, alert.tenant_no, alert.notify)).values()
            ]
        for alert, channel in found:
            try:
                opened = await open_credentials(self._vault, channel.tenant_no, channel.spec)
                await self._caller.prepare(channel.tenant_no, opened.spec)
            except (NoCredential, OndotError) as error:
                log.warning("channel.not_kept", channel=channel.name, error=error.message)
                continue
            incident_id = uuid5(_SPACE, f"{alert.id}/{alert.latest_incident or ''}")
            kept.setdefault(channel.id, _Kept(channel, opened, alert.for_s or DEFAULT_FOR_S, incident_id))
        self._kept = tuple(kept.values())
        return 0

    async def watch_pass(
        self,
        silent_s: Callable[[], float],
        is_first: Callable[[], bool],
        what: Callable[[], str] = lambda: "PostgreSQL",
    ) -> int:
        """Send what is due, or record what was sent. `silent_s`: since when no beat was confirmed; `is_first`: whether
        this scheduler is the one to send; `what`: which server is away. No statement while nothing is wrong."""
        silent = silent_s()
        due = [
            kept
            for kept in self._kept
            if silent >= kept.for_s + (0.0 if is_first() else OTHERS_WAIT_S) and kept.channel.id not in self._sent
        ]
        if due:
            self._since = self._since or self._database.clock.now() - timedelta(seconds=silent)
            for sent in await asyncio.gather(*(self._send(kept, self._since, what()) for kept in due)):
                self._sent[sent.kept.channel.id] = sent
        elif self._sent and silent < LOOK_EVERY_S * 10:
            await self._record()
        return 0

    async def _send(self, kept: _Kept, since: datetime, what: str) -> _Sent:
        message = Message(
            kind="opened",
            title=f"{what} is away",
            text=f"A scheduler has not reached {what} since {since.isoformat(timespec='seconds')}: nothing is"
            f" planned{' or started' if what == 'PostgreSQL' else ''} until it is back.",
            at=self._database.clock.now(),
            incident_id=kept.incident_id,
        )
        report = await self._caller.send_directly(kept.channel, kept.opened, message, kept.incident_id)
        log.warning("database.away_reported", channel=kept.channel.name, delivered=isinstance(report, Succeeded))
        return _Sent(kept, message, report)

    async def _record(self) -> None:
        """The database is back."""
        since = self._since or self._database.clock.now()
        async with self._database.transaction() as connection:
            for sent in self._sent.values():
                id_ = ExecutionId(self._database.clock.new_id())
                error = sent.report.error.message if isinstance(sent.report, Failed) else None
                state = DeliveryState.DELIVERED if isinstance(sent.report, Succeeded) else DeliveryState.FAILED
                await add_delivery(connection, id_, sent.kept.channel, sent.message)
                await end_attempt(connection, id_, 0, state, error=error, has_ended=True)
            knowing = [each for each in self._sent.values() if isinstance(each.report, Succeeded)]
            await report_condition(
                connection,
                KIND,
                INSTALLATION,
                "postgresql",
                f"PostgreSQL was away since {since.isoformat(timespec='seconds')}.",
                {"sent_to": sorted({each.kept.channel.name for each in knowing})},
                since=since,
                holds_s=HOLDS_S,
            )
        for sent in knowing:
            if isinstance(sent.kept.channel.spec, PagerDutyChannel):
                # The incident's own recovery has another key.
                over = Message(
                    kind="recovered",
                    title=sent.message.title,
                    text="",
                    at=self._database.clock.now(),
                    incident_id=sent.kept.incident_id,
                )
                await self._caller.send_directly(sent.kept.channel, sent.kept.opened, over, sent.kept.incident_id)
        self._sent.clear()
        self._since = None
        await self.refresh_pass()
