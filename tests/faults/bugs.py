"""Roles with a bug: `python -m tests.faults.bugs BUG scheduler …` is `ondot scheduler …` with that bug planted in it.

They test the harness: each was a real bug of some scheduler, and a campaign must catch it. They are planted from here,
so that ondot itself has no switch for them. A bug whose place in the code is gone fails at once.
"""

import asyncio
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import NAMESPACE_DNS, UUID, uuid5

from msgspec import structs

from ondot.coordination import etcd
from ondot.flow import backfill, complete, group_commit, idempotency, new_jobs, plan, removal, run_now, skipped
from ondot.flow.alerts import evaluate
from ondot.flow.change import change, settle, take_back
from ondot.flow.channels import deliver
from ondot.flow.history import rewrite
from ondot.flow.workflows import repair, run_pass
from ondot.model import beats, turns
from ondot.model.fairness import Lane, Take
from ondot.model.ids import PARTITIONS, PoolNo
from ondot.model.outcome import Succeeded
from ondot.model.workflow import progress
from ondot.model.workflow.states import StepState
from ondot.roles import housekeeper, leasing, pool_listener, process, pulse, scheduler, worker
from ondot.store import day_rewrite, events, jobs, lookup, nodes, outcomes, owed, queue, timers, workers
from ondot.store.queries import Query
from ondot.targets.http import target as http

DREAM_S = 1.5
LONG_DREAM_S = 8.0
"""The pause between the read of the timers and the plan; the long one is longer than the horizon of a campaign."""


def _rewrite(queries: dict[str, Query], name: str, *pairs: tuple[str, str]) -> None:
    query = queries[name]
    for old, new in pairs:
        if old not in query.text:
            raise LookupError(f"{name} has no {old!r} any more: plant this bug elsewhere")
        query = replace(query, text=query.text.replace(old, new))
    queries[name] = query


def _put(place: object, name: str, value: object) -> Any:
    """Replace an attribute; return its old value."""
    before = getattr(place, name)
    setattr(place, name, value)
    return before


# Planning ------------------------------------------------------------------------------------------------------------

_IS_UNMOVED = "AND version = s.version AND next_fire_at = s.expected_at"
_IS_NEW = "ON CONFLICT (job_id, fire_at) WHERE origin IN ('fire', 'backfill') DO NOTHING"


def _owns_all() -> None:
    _put(scheduler.Scheduler, "owned", property(lambda _self: frozenset(range(PARTITIONS))))


def _dreams(seconds: float) -> None:
    """Pause between the read of the timers and the plan."""

    async def look_and_dream(*args: Any, **kwargs: Any) -> Any:
        found = await look(*args, **kwargs)
        await asyncio.sleep(seconds)
        return found

    look = _put(plan, "find_due_timers", look_and_dream)


def no_compare_and_set() -> None:
    """A node moves timers that it read long ago, wherever they are by now."""
    _owns_all()
    _dreams(LONG_DREAM_S)
    _rewrite(timers._SQL, "plan_fires", (_IS_UNMOVED, ""))


def no_unique_key() -> None:
    """Two nodes plan the same timers, do not compare where they were, and fires have no unique key."""
    _owns_all()
    _dreams(DREAM_S)
    _rewrite(timers._SQL, "plan_fires", (_IS_UNMOVED, ""), (_IS_NEW, ""))
    _rewrite(owed._SQL, "make_owed", (_IS_NEW, ""))

    async def drop_it_and_look(connection: Any, *args: Any, **kwargs: Any) -> Any:
        await connection.execute("DROP INDEX IF EXISTS ondot.execution_fire")
        return await look(connection, *args, **kwargs)

    look = _put(plan, "find_due_timers", drop_it_and_look)


def cadence_from_now() -> None:
    """The next fire of an interval is counted from when this one was planned, not from when it was due."""

    def drifts(schedule: Any, timer: Any, *, now: datetime, **more: Any) -> Any:
        advanced = step(schedule, timer, now=now, **more)
        if advanced.next_fire_at is None or not hasattr(schedule.when, "every_s"):
            return advanced
        later = timedelta(microseconds=now.microsecond)
        return structs.replace(advanced, next_fire_at=advanced.next_fire_at + later)

    step = _put(plan, "advance", drifts)


def early() -> None:
    """Work may start a second before it is due."""
    _rewrite(
        timers._SQL,
        "plan_fires",
        ("greatest(coalesce(f.ready_at, f.fire_at), ondot.clock())", "f.fire_at - interval '1 s'"),
    )


def skips_silently() -> None:
    """Skipped fires are not recorded."""

    async def keeps_quiet(*_args: Any, **_kwargs: Any) -> None:
        return None

    _rewrite(timers._SQL, "plan_fires", ("JOIN taken k ON k.job_id = s.job_id\n", "JOIN taken k ON false\n"))
    for module in (settle, take_back, skipped):
        _put(module, "record_skipped", keeps_quiet)


def never_takes_over() -> None:
    """The partitions of a dead node stay with it."""
    _rewrite(nodes._SQL, "take_partitions", ("p.owner IS NULL\n       OR NOT EXISTS", "p.owner IS NULL AND NOT EXISTS"))


def never_gets_another_lease() -> None:
    """A node whose lease etcd has revoked goes on to renew it."""

    async def renews_for_ever(self: Any, keys: Any) -> int:
        lease = self._lease
        try:
            return int(await renew(self, keys))
        finally:
            self._lease = lease or self._lease

    renew = _put(etcd.EtcdCoordinator, "_renew", renews_for_ever)


# Changing ------------------------------------------------------------------------------------------------------------


def forgets_to_take_back() -> None:
    """A pause or a delete leaves executions that were planned ahead in the queue."""

    async def takes_nothing(*_args: Any, **_kwargs: Any) -> list[Any]:
        return []

    _put(take_back, "take_back_fires", takes_nothing)


def ack_before_commit() -> None:
    """A create is acknowledged before it is stored."""

    async def says_so_first(self: group_commit.GroupCommit, tenant_no: Any, requests: Sequence[Any]) -> None:
        specs = [spec for request in requests for spec in request.specs]
        numbers = {spec.pool: PoolNo(1) for spec in specs}
        now = self._database.clock.now()
        jobs = new_jobs.new_once_jobs(self._database, specs, numbers, now)
        for entry in group_commit._entries(requests, jobs, now):
            entry.request.response.set_result(entry.text)
        await asyncio.sleep(1.0)
        await store(self, tenant_no, requests)

    store = _put(group_commit.GroupCommit, "_store", says_so_first)


def forgets_keys() -> None:
    """An idempotency key is not looked up."""

    async def is_unknown(*_args: Any, **_kwargs: Any) -> None:
        return None

    async def all_are_free(_connection: Any, _tenant_no: Any, keys: Sequence[tuple[str, bytes, str]]) -> frozenset[str]:
        return frozenset(key for key, _, _ in keys)

    _put(idempotency, "take_key", is_unknown)
    _put(idempotency, "store_answer", is_unknown)
    _put(group_commit, "take_keys", all_are_free)


# Hanging -------------------------------------------------------------------------------------------------------------


def beats_though_hung() -> None:
    """A thread sends heartbeats, and nothing checks whether the loop moves."""
    _put(pulse.Pulse, "_watch", lambda _self: None)


def waits_for_its_log() -> None:
    """The thread that logs a line writes it, however long that takes."""
    _put(process, "unblock_output", lambda: None)


# Running -------------------------------------------------------------------------------------------------------------


def no_polling() -> None:
    """Workers look for work only after a wake-up."""
    _put(leasing, "POLL_S", 3600.0)
    _put(beats, "POLL_S", 3600.0)


def worker_id_from_host() -> None:
    """All workers of a host share one id, which is used again."""
    shared = uuid5(NAMESPACE_DNS, socket.gethostname())

    def named_by_its_host(self: worker.Incarnation, database: Any, *args: Any, **more: Any) -> None:
        new_id = database.clock.new_id
        database.clock.new_id = lambda: shared
        try:
            init(self, database, *args, **more)
        finally:
            database.clock.new_id = new_id

    async def registers_again(connection: Any, worker_id: Any, **more: Any) -> datetime:
        now: datetime = await register(connection, worker_id, **more)
        await connection.execute("UPDATE ondot.worker SET state = 'ALIVE', ended_at = NULL WHERE id = $1", worker_id)
        return now

    init = _put(worker.Incarnation, "__init__", named_by_its_host)
    register = _put(worker, "register_worker", registers_again)


def any_answer_is_success() -> None:
    """Any answer of a receiver counts as a success."""
    _put(http, "_report_failure", lambda answer, _now: Succeeded(answer.as_json()))


def repeats_the_call() -> None:
    """A call is made twice for good measure."""

    async def twice(self: http.HttpCaller, *args: Any) -> Any:
        await call(self, *args)
        return await call(self, *args)

    call = _put(http.HttpCaller, "call", twice)


def forgets_outcomes() -> None:
    """Outcomes that were not stored at the first try are dropped."""

    async def tries_once(self: complete.Completer, batch: list[Any]) -> None:
        try:
            await self.write(batch)
        except Exception:  # noqa: BLE001 - that is the bug
            return

    _put(complete.Completer, "_write_until_stored", tries_once)


_IS_ITS_OWN = (
    "e.attempt_no = o.attempt_no\n      AND e.worker_id = $1::uuid AND e.state = 'RUNNING'",
    "e.state = 'RUNNING' AND $1::uuid IS NOT NULL",
)


def no_token() -> None:
    """An outcome counts from any worker and for any attempt."""
    _rewrite(outcomes._SQL, "succeed_executions", _IS_ITS_OWN)
    _rewrite(outcomes._SQL, "complete_executions", _IS_ITS_OWN)
    # And a worker that was marked lost does not notice.
    _rewrite(workers._SQL, "beat_worker", (" AND state IN ('ALIVE', 'DRAINING')", ""))


def no_gates() -> None:
    """Limits are read and not enforced."""
    for module in (run_now, plan, change, settle, backfill):
        _put(module, "encode_stages", lambda *_args: None)
    _put(jobs, "encode_stages", lambda *_args: None)


# Recovering ----------------------------------------------------------------------------------------------------------


def never_recovers() -> None:
    """The work of a dead worker is not recovered."""

    async def looks_away(*_args: Any, **_kwargs: Any) -> int:
        return 0

    _put(housekeeper, "recover_pass", looks_away)


def recovers_by_age() -> None:
    """Executions that have run for a while count as lost."""
    _rewrite(
        workers._SQL,
        "find_orphaned_leases",
        ("WHERE w.id IS NULL", "WHERE l.leased_at < ondot.clock() - interval '1 second' OR w.id IS NULL"),
        ("coalesce(w.state IN ('ALIVE', 'DRAINING'), false)", "false"),
    )


def recovers_by_id() -> None:
    """The work of a lost worker is recovered, even if another worker runs it by now."""
    _rewrite(
        workers._SQL,
        "find_lost_executions",
        ("e.id = m.id AND e.attempt_no = m.attempt_no AND e.worker_id = l.worker_id", "e.id = m.id"),
        ("l.id AS lease_id, l.worker_id", "l.id AS lease_id, e.worker_id"),
    )
    # Its leases stay for a while, as after a lost deletion.
    _rewrite(outcomes._SQL, "complete_executions", ("cardinality($2)\n), counted", "-1\n), counted"))


# Tenants -------------------------------------------------------------------------------------------------------------


def ignores_quotas() -> None:
    """How many attempts of a tenant run is counted, and not compared."""
    _rewrite(queue._SQL, "scope_room", ("WHEN l.concurrent IS NULL THEN $5", "WHEN true THEN $5"))


def leases_for_suspended() -> None:
    """Work of a suspended tenant is leased."""
    _rewrite(queue._SQL, "survey_lanes", ("coalesce(t.is_stopped, false) AS is_stopped", "false AS is_stopped"))
    _rewrite(queue._SQL, "scope_room", ("WHEN l.is_stopped THEN 0", "WHEN false THEN 0"))


def goes_on_for_deleted() -> None:
    """Work of a deleted tenant is leased, run and completed: its deletion does not end it."""

    async def finds_none(*_args: Any, **_kwargs: Any) -> list[Any]:
        return []

    async def ends_none(*_args: Any, **_kwargs: Any) -> int:
        return 0

    leases_for_suspended()
    _put(removal, "find_waiting", finds_none)
    for name in ("cancel_running", "stop_running"):
        _put(removal, name, ends_none)


def keeps_rows_of_deleted() -> None:
    """The rows of a deleted tenant stay."""

    async def removes_nothing(*_args: Any, **_kwargs: Any) -> int:
        return 0

    _put(removal, "remove_rows", removes_nothing)


def trusts_keys_for_ever() -> None:
    """A key that was right once is not looked up again."""
    _put(lookup, "CACHED_S", 3600.0)


def first_come_first_served() -> None:
    """The tenant that has waited longest gets all the slots, whatever it got before."""

    def waits_longest(self: turns.Turns, tenant_no: Any) -> Any:
        return 0.0, 0.0, min(entry.ready_at for entry in self._lanes[tenant_no]), tenant_no

    def all_of_the_first(_self: Any, lanes: Sequence[Lane], limit: int, rooms: Any = None, **_more: Any) -> list[Take]:
        most = [(lane, min(limit, (rooms or {}).get(lane.tenant_no, limit))) for lane in lanes]
        return [Take(lane, count) for lane, count in most if count > 0][:1]

    _put(turns.Turns, "_place", waits_longest)
    _put(turns.Turns, "share_out", all_of_the_first)


# Workflows and events ------------------------------------------------------------------------------------------------


def loses_arrivals() -> None:
    """The end of a step that failed is not reported to its run, and nobody looks for it."""
    _rewrite(
        outcomes._SQL,
        "complete_executions",
        (
            "FROM ended\n    WHERE awaited_by IS NOT NULL",
            "FROM ended\n    WHERE awaited_by IS NOT NULL AND new_state <> 'FAILED'",
        ),
    )


def releases_twice() -> None:
    """A release is repeated with new ids, as if it had not been stored the first time."""

    async def twice(connection: Any, new: Sequence[tuple[Any, Any]]) -> Any:
        woken = await release(connection, new)
        again = [(run, replace(execution, id=UUID(int=execution.id.int ^ 1))) for run, execution in new]
        return {**woken, **await release(connection, again)}

    release = _put(run_pass, "release_steps_of_runs", twice)


def counts_old_generations() -> None:
    """A repair does not wait for the end of a step that it stops, and the end counts for the next generation."""

    def forgets_what_runs(graph: Any, rows: Any, plan: Any, reason: str) -> Any:
        moved = apply(graph, rows, plan, reason)
        for no in plan.stopped:
            rows[no].execution_id = None
        return moved

    def counts_any(self: progress.Progress, arrival: Any) -> None:
        if self.rows[arrival.step_no].state is StepState.RELEASED:
            self.end(arrival.step_no, StepState(arrival.state))

    apply = _put(repair, "apply_repair", forgets_what_runs)
    _put(progress.Progress, "_arrive", counts_any)


def matches_old_subscriptions() -> None:
    """Events are matched against the jobs that this process knows, however old that is."""
    _rewrite(events._SQL, "receive_events", ("= $2::bigint AS is_current", ">= 0 * $2::bigint AS is_current"))


# Alerts and retention -------------------------------------------------------------------------------------------------


def opens_again() -> None:
    """A scheduler that takes over the evaluation does not know which channels know of an incident."""

    async def forgets_channels(*args: Any) -> list[Any]:
        return [replace(row, notified=()) for row in await load(*args)]

    load = _put(evaluate, "load_incidents", forgets_channels)


def marks_sent_first() -> None:
    """A message counts as delivered before it is sent."""

    async def records_first(self: deliver.ChannelCaller, delivery: Any, call: Any) -> Any:
        await self._record(delivery, call, Succeeded())
        return await send(self, delivery, call)

    send = _put(deliver.ChannelCaller, "_deliver", records_first)


def drops_late_rows() -> None:
    """A day is replaced by its copy, without the rows that were written to it meanwhile."""

    async def waits_and_forgets(connection: Any, parent: str, **more: Any) -> Any:
        await asyncio.sleep(DREAM_S)
        await connection.execute("DELETE FROM ondot.day_touched WHERE parent = $1", parent)
        return await swap(connection, parent, **more)

    swap = _put(rewrite, "swap_copy", waits_and_forgets)


def drops_due_jobs() -> None:
    """One-time jobs of old days that have not fired yet are not copied."""
    _rewrite(
        day_rewrite._SQL,
        "keep_job_once",
        ("AND t.next_fire_at < 'infinity'", "AND false"),
        ("AND s.fire_at >= coalesce(c.at, $5::timestamptz)", "AND s.fire_at >= coalesce(c.at, $5) AND false"),
    )


# Transports, caught by tests/faults/test_transports.py ---------------------------------------------------------------


def trusts_silence() -> None:
    """A worker asks PostgreSQL each 15 s although no beat arrives any more."""
    _put(pool_listener.PoolListener, "trusted_until_s", property(lambda _self: time.monotonic() + 3600))


BUGS_OF_TRANSPORTS: dict[str, Callable[[], None]] = {trusts_silence.__name__: trusts_silence}

BUGS: dict[str, Callable[[], None]] = {
    bug.__name__: bug
    for bug in (
        no_compare_and_set,
        no_unique_key,
        cadence_from_now,
        early,
        skips_silently,
        never_takes_over,
        never_gets_another_lease,
        forgets_to_take_back,
        ack_before_commit,
        forgets_keys,
        beats_though_hung,
        waits_for_its_log,
        no_polling,
        worker_id_from_host,
        any_answer_is_success,
        repeats_the_call,
        forgets_outcomes,
        no_token,
        no_gates,
        never_recovers,
        recovers_by_age,
        recovers_by_id,
        ignores_quotas,
        leases_for_suspended,
        goes_on_for_deleted,
        keeps_rows_of_deleted,
        trusts_keys_for_ever,
        first_come_first_served,
        loses_arrivals,
        releases_twice,
        counts_old_generations,
        matches_old_subscriptions,
        opens_again,
        marks_sent_first,
        drops_late_rows,
        drops_due_jobs,
    )
}


def main() -> None:
    from ondot.cli import main as run
    from tests.faults.hangs import may_hang
    from tests.faults.pace import hurry

    may_hang()
    hurry()
    (BUGS | BUGS_OF_TRANSPORTS)[sys.argv[1]]()
    sys.argv = ["ondot", *sys.argv[2:]]
    run()


if __name__ == "__main__":
    main()
