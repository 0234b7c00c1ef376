"""What housekeeping has to do now: one statement a second while there is nothing to do."""

from dataclasses import dataclass

from ondot.store.connection import Connection
from ondot.store.queries import load_queries

_SQL = load_queries("chores")


@dataclass(frozen=True, slots=True)
class Chores:
    """Whether an execution is past its start deadline, a job failed too often, a bulk operation is due, a tenant was
    resumed and has parked timers, a tenant was deleted and has rows, an entry of the audit log waits for its seal,
    jobs start by ondot's own events, a message is to be delivered, a ping is late, an expectation of a job is due for a
    look, there are alerts or open incidents, a run of a workflow is due, a job that others wait for is due for a look,
    an end that one of these waits for was not taken for a second, an execution waits for a worker with its function,
    there are sinks."""

    expire: bool
    failing: bool
    bulk: bool
    parked: bool
    removal: bool
    seal: bool
    own_events: bool
    deliveries: bool
    pings: bool
    expect: bool
    alerts: bool
    runs: bool
    parents: bool
    arrivals: bool
    returned: bool
    sinks: bool

    @property
    def has_rare(self) -> bool:
        return self.expire or self.failing or self.parked or self.expect or self.pings or self.returned


async def find_chores(connection: Connection) -> Chores:
    row = await connection.fetchrow(_SQL["find_chores"].text)
    assert row is not None
    return Chores(*row.values())
