"""④ A worker leases a batch (E1, E2, E11, E13). Policy chooses the lanes (`model.fairness`), SQL only takes.

One pass has four steps. Survey: what waits in the lanes and before the gates of this worker's pools (`flow.lanes`).
Portions: the work that is due, cut into parts that one statement leases. Room: how much of a portion its limits allow.
Lease: take that much, by lanes or by rates. The first portion that yields something ends the pass.

Limits counted at the lease belong to scopes: the pool of a lane, and its tenant. A lane without limits has no scope,
and its lease is a single statement outside a transaction. Otherwise the scopes are locked, one statement answers how
much room each of them has (`scope_room`), and the lease takes their slots and tokens in the same transaction. A portion
has one pool scope at most and any number of tenants: each takes no more than its own room (`flow.quotas`).

The lease id is minted before the first try: after a lost reply the worker asks by it, and adopts what it got. A worker
never leases more than its free slots. Where payloads are large and the connection is slow, it leases no more than it
can read within a deadline.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from msgspec import Struct

from ondot.flow.events.followed import KNOWN_AT_LEASE_S, Followed
from ondot.flow.gate import admit_pass
from ondot.flow.in_flight import InFlight
from ondot.flow.job_series import JOB_SERIES
from ondot.flow.lanes import Lanes
from ondot.flow.measure import MEASURES
from ondot.flow.quotas import count_tenants
from ondot.flow.served_tenants import TenantNos
from ondot.flow.trace_links import LINKED_ORIGINS, Links, find_links
from ondot.flow.workflows.attempts import StepAttempt, find_step_attempts
from ondot.model.execution import PriorityClass
from ondot.model.fairness import Lane, Scopes, Take
from ondot.model.ids import ExecutionId, LeaseId, PoolNo, TenantNo, WorkerId
from ondot.model.job import JobSpec
from ondot.model.retry import SUSPECT_FROM
from ondot.model.target import FunctionTarget
from ondot.model.trace import TraceContext
from ondot.model.turns import NO_ROOMS
from ondot.store.adaptive_batch import AdaptiveBatch
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.executions import find_payloads
from ondot.store.jobs import find_stopped_jobs
from ondot.store.own_events import find_hops
from ondot.store.queue import (
    LARGEST_LEASE,
    Leased,
    RatedPool,
    Room,
    Survey,
    admit_at_rates,
    end_if_frozen,
    find_lease,
    find_room,
    lease_admitted,
    lease_executions,
    take_tokens,
)
from ondot.store.traces import TRACED_ORIGINS, find_traces
from ondot.telemetry.metrics import LEASED
from ondot.telemetry.trace import active_tracer

MOST_GATES = 6
"""Rounds of admission in a pass: an execution that passes one gate may stand before the next."""
LOCKED_FOR = timedelta(milliseconds=5)
FULL_FOR = timedelta(seconds=1)


class Assignment(Struct, frozen=True, gc=False):
    """One attempt to run. `spec` None: it cannot be decoded any more, and the attempt fails with that reason."""

    leased: Leased
    lease_id: LeaseId
    spec: JobSpec | None
    payload: bytes
    over: str | None = None
    """Why the call must not be made any more: its job was deleted or paused before the first call."""
    step: StepAttempt | None = None
    """Which step of which run it is an attempt of, if any."""
    hops: int | None = None
    """How many events led to one that this attempt sends; None: no event started it."""
    links: Links | None = None
    """The traces of what led to it, and how, if traces are recorded: the execution that it repeats, or its event."""
    trace: TraceContext | None = None
    """The trace that it belongs to, or its run, if that is not its job's."""

    @property
    def is_suspect(self) -> bool:
        """A function that took workers down runs in a child process, and few such run at once (E6)."""
        return (
            self.leased.losses >= SUSPECT_FROM
            and self.spec is not None
            and isinstance(self.spec.target, FunctionTarget)
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """The result of one pass. `next_at`: when the next work known to this worker may start, by the database's clock.

    `more`: due work is left. `contended`: due work is there, but other workers have it locked. `kept`: due work is
    there, but the free slots are kept for other tenants.
    """

    assignments: list[Assignment]
    next_at: datetime | None = None
    more: bool = False
    contended: bool = False
    kept: bool = False


class _NotLeased(Exception):
    """Admitted work could not be leased: this worker is marked lost, or a pool got a limit after the survey.

    Raised to give tokens and slots back with the transaction.
    """


@dataclass(frozen=True, slots=True)
class _Portion:
    """Work that one statement leases: of lanes, in their order, or of pools with work that waits for a rate."""

    scopes: Scopes
    lanes: Sequence[Lane] = ()
    rated_pools: Sequence[PoolNo] = ()
    rated_of: TenantNo | None = None
    """Of pools with rates: the work of this tenant, which has quotas; None: of all without."""
    of_suspects: bool = False

    @property
    def is_plain(self) -> bool:
        return not self.scopes and not self.rated_pools

    @property
    def is_of_limited_pool(self) -> bool:
        return any(scope.kind == "pool" for scope in self.scopes)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a portion yielded. Nothing: `again_at` is when to ask again; None: other workers have it locked."""

    lease_id: LeaseId
    leased: list[Leased]
    again_at: datetime | None = None


def _rated_portions(rates: Sequence[RatedPool]) -> list[_Portion]:
    """Pools without limits of their own in one portion, first; the others by their scopes."""
    by_scopes: dict[tuple[Scopes, TenantNo | None], list[PoolNo]] = {}
    for pool in sorted(rates, key=lambda pool: len(pool.scopes)):
        by_scopes.setdefault((pool.scopes, pool.limited), []).append(pool.pool_no)
    return [
        _Portion(scopes, rated_pools=pool_nos, rated_of=limited) for (scopes, limited), pool_nos in by_scopes.items()
    ]


def _lane_portions(in_turn: list[Lane], scopes_of: Callable[[Lane], Scopes]) -> list[_Portion]:
    """The lanes in their order, cut where the pools' limits change and between suspects and others, which have slots of
    their own.

    A cut in the lanes of one tenant does not separate those of other tenants.
    """

    def kind_of(lane: Lane) -> tuple[Scopes, bool]:
        of_pool = tuple(scope for scope in scopes_of(lane) if scope.kind == "pool")
        return of_pool, lane.priority_class is PriorityClass.SUSPECT

    def portion(kind: tuple[Scopes, bool], lanes: list[Lane]) -> _Portion:
        of_pool, of_suspects = kind
        tenants = dict.fromkeys(scope for lane in lanes for scope in scopes_of(lane) if scope.kind == "tenant")
        return _Portion((*of_pool, *tenants), lanes, of_suspects=of_suspects)

    if len(kinds := {kind_of(lane) for lane in in_turn}) == 1:
        return [portion(kinds.pop(), in_turn)]
    tenants = [
        [(kind, list(lanes)) for kind, lanes in groupby(own, key=kind_of)]
        for _, own in groupby(in_turn, key=lambda lane: lane.tenant_no)
    ]
    portions = []
    while tenants:
        kind = tenants[0][0][0]
        lanes = [lane for own in tenants if own[0][0] == kind for lane in own[0][1]]
        portions.append(portion(kind, lanes))
        tenants = [rest for own in tenants if (rest := own[1:] if own[0][0] == kind else own)]
    return portions


def _ask_again_at(room: Room | None, now: datetime) -> datetime:
    """None: another worker has the scopes locked. Full: the completion of an attempt wakes the pool before."""
    if room is None:
        return now + LOCKED_FOR
    return room.token_at if room.token_at is not None and room.token_at > now else now + FULL_FOR


def _may_be_stopped(row: Leased) -> bool:
    """A fire that was leased before and given back without a call: its job may have been stopped meanwhile."""
    return row.origin == "fire" and row.was_returned


async def _find_hops(connection: Connection, leased: Sequence[Leased]) -> dict[ExecutionId, int]:
    """Of executions that events started, and of steps of such runs: one more than led to them."""
    hops: dict[ExecutionId, int] = {}
    for tenant_no in {row.tenant_no for row in leased}:
        causes = {
            row.id: ExecutionId(row.job_id) if row.origin == "step" else row.id
            for row in leased
            if row.tenant_no == tenant_no and row.origin in {"step", "event"}
        }
        led = await find_hops(connection, tenant_no, set(causes.values()))
        hops |= {id_: led.get(cause, 0) + 1 for id_, cause in causes.items()}
    return hops


class Leaser:
    """Leases for one incarnation of a worker."""

    def __init__(
        self,
        database: Database,
        worker_id: WorkerId,
        pool_nos: Sequence[PoolNo],
        tenants: Callable[[], TenantNos] = lambda: None,
        in_flight: InFlight | None = None,
        followed: Followed | None = None,
    ) -> None:
        """`tenants`: those that the worker serves at this moment. `in_flight`: the attempts that run here; None: the
        caller runs one lease after the other. `followed`: shared with what completes."""
        self._database = database
        self._followed = followed or Followed()
        self._tenants = tenants
        self._worker_id = worker_id
        self._pool_nos = tuple(pool_nos)
        self._lanes = Lanes(database, worker_id, pool_nos, tenants, in_flight)
        self.pending: LeaseId | None = None
        """A lease that was asked for and that the worker has not acknowledged. Every beat names it: while the loop is
        busy, or the reply is lost, recovery must not take it for a lease that its worker never got."""
        self._at_once = AdaptiveBatch(LARGEST_LEASE)
        self._assigned: list[Assignment] = []
        """What was read of the pending lease before reading failed: the next try continues after it."""

    @property
    def bounds(self) -> list[tuple[Lane, datetime]]:
        """This worker looks at no row below these. Every beat names them, so that housekeeping can sweep there."""
        return self._lanes.bounds

    @property
    def slots_held(self) -> dict[TenantNo, int]:
        """How many slots of this worker the attempts of each tenant hold."""
        return self._lanes.slots_held

    def acknowledge(self) -> None:
        """The worker has taken over the assignments of the last pass."""
        self.pending = None

    async def one_pass(self, free_slots: int, free_for_suspects: int | None = None) -> Batch:
        """Admit at gates, then lease up to `free_slots` of the work that is due, most deserving lanes first.

        `free_for_suspects`: how many of the slots may go to work that took workers down. None: all of them.
        """
        if self.pending is not None:
            return await self._adopt(self.pending)
        survey, contended = await self._admit_and_survey()
        if survey is None:
            return Batch([])
        rates = [pool for pool in survey.rates if pool.look_at <= survey.now]
        next_at = self._lanes.next_at
        if free_slots <= 0:
            return Batch([], next_at, more=bool(self._lanes.has_due or rates))
        for portion in self._portions(rates):
            limit = min(free_slots, self._at_once.size, self._lanes.most_at_once)
            if portion.of_suspects and free_for_suspects is not None:
                limit = min(limit, free_for_suspects)
            if limit <= 0:
                continue
            taken = await self._lease(portion, limit, free_slots, free_for_suspects)
            if taken.leased:
                async with self._database.connection() as connection:
                    assignments = await self._assign(connection, taken.lease_id, taken.leased)
                return Batch(assignments, next_at, more=True)
            if taken.again_at is None:
                contended = True
            else:
                next_at = min(next_at or taken.again_at, taken.again_at)
        kept = self._lanes.not_kept(free_slots) < free_slots and bool(survey.waiting)
        return Batch([], next_at, contended=contended, kept=kept)

    async def _admit_and_survey(self) -> tuple[Survey | None, bool]:
        """What waits once all that may pass a gate has; and whether other workers have a gate locked that is due."""
        survey = await self._lanes.survey()
        for _ in range(MOST_GATES):
            if survey is None or survey.gates_at is None or survey.gates_at > survey.now:
                return survey, False
            changed = await admit_pass(self._database, self._pool_nos)
            survey = await self._lanes.survey(again=True)
            if not changed:
                break
        return survey, survey is not None and survey.gates_at is not None and survey.gates_at <= survey.now

    def _portions(self, rates: list[RatedPool]) -> Iterator[_Portion]:
        yield from _rated_portions(rates)
        self._lanes.start_round()
        while lanes := self._lanes.next_in_turn():
            yield from _lane_portions(lanes, self._lanes.scopes_of)

    async def _lease(self, portion: _Portion, limit: int, free: int, free_for_suspects: int | None) -> _Taken:
        """Lease up to `limit` of a portion, as far as its scopes have room."""
        lease_id = LeaseId(self._database.clock.new_id())
        takes: list[Take] = []
        room: Room | None = None
        leased: list[Leased] = []
        try:
            async with self._database.connection() if portion.is_plain else self._database.transaction() as connection:
                if not portion.is_plain:
                    await end_if_frozen(connection)
                if portion.scopes:
                    room = await find_room(connection, portion.scopes, limit)
                    if room is None or not room.count:
                        return _Taken(lease_id, [], _ask_again_at(room, self._database.clock.now()))
                    limit = room.count
                if portion.rated_pools:
                    leased = await self._take_at_rates(
                        connection, lease_id, portion, room, limit, free, free_for_suspects
                    )
                else:
                    rooms = NO_ROOMS if room is None else room.tenants
                    takes = self._lanes.share_out(portion.lanes, limit, free=free, rooms=rooms)
                    if takes:
                        limit = min(limit, sum(take.count for take in takes))
                        posts = await self._are_starts_sent(connection)
                        self.pending = lease_id
                        leased = await lease_executions(
                            connection,
                            lease_id,
                            self._worker_id,
                            limit=limit,
                            takes=takes,
                            from_ats=self._lanes.heads_of(takes),
                            takes_slots=portion.is_of_limited_pool,
                            room=room,
                            posts=posts,
                        )
                if portion.scopes and leased:
                    await take_tokens(connection, portion.scopes, leased)
        except _NotLeased:
            leased = []
        if takes:
            # After the commit: bounds that rose for a lease that was rolled back would hide its rows.
            self._lanes.record(takes, leased, limit)
        if room is not None:
            await self._leave_out_full(room)
        if leased:
            return _Taken(lease_id, leased)
        self.pending = None
        if takes or (room is None and portion.rated_pools):
            return _Taken(lease_id, [])
        # Its tenants have no room, or the free slots are kept for others: a completion wakes the pool before.
        return _Taken(lease_id, [], _ask_again_at(room or Room(0), self._database.clock.now()))

    async def _leave_out_full(self, room: Room) -> None:
        self._lanes.leave_out(tenant_no for tenant_no, count in room.tenants.items() if count <= 0)
        if room.uncounted:
            await count_tenants(self._database, room.uncounted)

    async def _take_at_rates(
        self,
        connection: Connection,
        lease_id: LeaseId,
        portion: _Portion,
        room: Room | None,
        limit: int,
        free: int,
        free_for_suspects: int | None,
    ) -> list[Leased]:
        """Lease the executions that get a token of their rates. The token is taken in the transaction of the lease."""
        limit = min(limit, self._lanes.not_kept(free, portion.rated_of))
        if room is not None and portion.rated_of is not None:
            limit = min(limit, room.tenants[portion.rated_of])
        if limit <= 0:
            return []
        admitted = await admit_at_rates(
            connection, portion.rated_pools, limit, free_for_suspects, self._tenants(), portion.rated_of
        )
        if not admitted:
            return []
        posts = await self._are_starts_sent(connection)
        self.pending = lease_id
        leased = await lease_admitted(
            connection,
            lease_id,
            self._worker_id,
            admitted,
            takes_slots=portion.is_of_limited_pool,
            room=room,
            posts=posts,
        )
        if len(leased) < len(admitted):
            raise _NotLeased
        return leased

    async def _are_starts_sent(self, connection: Connection) -> bool:
        return (await self._followed.read(connection, KNOWN_AT_LEASE_S)).starts_are_sent

    async def _adopt(self, lease_id: LeaseId) -> Batch:
        """The reply to a lease was lost: take over what it got, if it got anything."""
        async with self._database.connection() as connection:
            leased = await find_lease(connection, lease_id, self._worker_id)
            assignments = await self._assign(connection, lease_id, leased)
        if not assignments:
            self.pending = None
        return Batch(assignments, more=True)

    async def _assign(self, connection: Connection, lease_id: LeaseId, leased: list[Leased]) -> list[Assignment]:
        """Read specs and payloads, as many at a time as fit into a deadline."""
        rest = leased
        if self._assigned:
            # An execution that recovery took from this worker meanwhile is not run, though it was read.
            ids = {row.id for row in leased}
            self._assigned = [assignment for assignment in self._assigned if assignment.leased.id in ids]
            read = {assignment.leased.id for assignment in self._assigned}
            rest = [row for row in leased if row.id not in read]
        while rest:
            portion = rest[: self._at_once.size]
            with self._at_once.adapt(len(portion)):
                self._assigned += await self._read(connection, lease_id, portion)
            rest = rest[len(portion) :]
        assignments, self._assigned = self._assigned, []
        if assignments:
            self._lanes.start(leased)
            LEASED.inc(len(assignments))
            if not MEASURES.measure_plain(assignments):
                if asking := [one for one in assignments if one.spec is not None and one.spec.metrics]:
                    await JOB_SERIES.learn(self._database, asking)
                MEASURES.measure_leased(assignments)
        return assignments

    async def _read(self, connection: Connection, lease_id: LeaseId, leased: list[Leased]) -> list[Assignment]:
        origins = {row.origin for row in leased}
        if "step" in origins:
            return await self._read_steps(connection, lease_id, leased)
        versions = [(row.job_id, row.job_version) for row in leased]
        specs = await self._database.specs.find(connection, versions)
        own = [row.id for row in leased if row.own_payload]
        payloads = await find_payloads(connection, own) if own else {}
        returned = {row.job_id for row in leased if _may_be_stopped(row)}
        over = await find_stopped_jobs(connection, sorted(returned)) if returned else {}
        hops = await _find_hops(connection, leased) if "event" in origins else {}
        links: dict[ExecutionId, Links] = {}
        if active_tracer() is not None and not origins.isdisjoint(LINKED_ORIGINS):
            links = await find_links(connection, self._database.specs, leased, specs)
        traces: dict[ExecutionId, TraceContext] = {}
        if not origins.isdisjoint(TRACED_ORIGINS):
            traces = await find_traces(connection, [row.id for row in leased if row.origin in TRACED_ORIGINS])
        if not (payloads or returned or hops or links or traces):  # nearly all batches: nothing to look up for each
            return [
                Assignment(row, lease_id, spec := specs.get(version), bytes(spec.payload) if spec else b"null")
                for row, version in zip(leased, versions, strict=True)
            ]
        return [
            Assignment(
                row,
                lease_id,
                spec := specs.get(version),
                payloads.get(row.id) or (bytes(spec.payload) if spec else b"null"),
                over.get(row.job_id) if _may_be_stopped(row) else None,
                hops=hops.get(row.id),
                links=links.get(row.id),
                trace=traces.get(row.id),
            )
            for row, version in zip(leased, versions, strict=True)
        ]

    async def _read_steps(self, connection: Connection, lease_id: LeaseId, leased: list[Leased]) -> list[Assignment]:
        """The same for a batch with steps of runs: their specs are parts of those of their workflows."""
        of_steps = [row for row in leased if row.origin == "step"]
        others = [row for row in leased if row.origin != "step"]
        assignments = await self._read(connection, lease_id, others) if others else []
        steps = await find_step_attempts(
            connection,
            self._database.specs,
            [(row.id, row.job_id, row.job_version) for row in of_steps],
            with_payloads=any(row.own_payload for row in of_steps),
        )
        of_events = [row for row in of_steps if row.id in steps and steps[row.id].is_of_event]
        hops = await _find_hops(connection, of_events) if of_events else {}
        for row in of_steps:
            step = steps.get(row.id)
            spec = None if step is None else step.spec
            payload = b"null" if step is None else step.payload or bytes(step.spec.payload)
            trace = None if step is None else step.trace
            assignments.append(Assignment(row, lease_id, spec, payload, step=step, hops=hops.get(row.id), trace=trace))
        return assignments
