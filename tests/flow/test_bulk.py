"""Operations on many executions, jobs and runs (O8). Those on dead letters: test_dead_letters.py."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from ondot.flow.bulk import turns
from ondot.flow.bulk.start import preview, start_bulk, stop, undo_of
from ondot.flow.bulk.turns import LEASE_S, bulk_pass
from ondot.flow.change.change import pause
from ondot.model.access import LOCAL, Right, Role, rights_of
from ondot.model.access import Caller as KeyCaller
from ondot.model.errors import Conflict, Unavailable
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId, TenantNo
from ondot.model.retry import Retry
from ondot.model.target import ShellTarget
from ondot.store.audit import By
from ondot.store.bulk import (
    BulkRow,
    ItemRow,
    NewBulk,
    claim_items,
    list_bulk_items,
    list_bulks,
    record_items,
    take_bulk,
)
from ondot.store.jobs import lock_job
from ondot.store.keys import add_key, revoke_key
from tests.flow.workflows import run_steps, start, step, workflow
from tests.proves import proves
from tests.world import World, every, failed, job, once


async def begin(
    world: World,
    of: Any,
    action: Any,
    ids: Sequence[UUID] | None,
    *,
    per_s: float = 1000,
    by: By | None = None,
    **more: Any,
) -> UUID:
    bulk = NewBulk(world.database.clock.new_id(), of, action, per_s, ids=ids, **more)
    by = by or By("ann", "because")
    await start_bulk(world.database, DEFAULT_TENANT, bulk, by=by, render=lambda _: "")
    return bulk.id


@pytest.fixture(autouse=True)
def _a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "TURN_WITHIN_S", 60.0)


async def work(world: World) -> None:
    """Until nothing is due for a while."""
    for _ in range(3):
        await bulk_pass(world.database, world.dispatcher)
        await world.advance(1)


async def operation(world: World, id_: UUID) -> BulkRow:
    async with world.database.connection() as connection:
        [row] = await list_bulks(connection, DEFAULT_TENANT, id_=id_)
    return row


async def counts(world: World, id_: UUID) -> tuple[str, int, int, int]:
    row = await operation(world, id_)
    return row.state, row.done, row.refused, row.unchanged


async def items(world: World, id_: UUID) -> list[ItemRow]:
    async with world.database.connection() as connection:
        return await list_bulk_items(connection, DEFAULT_TENANT, id_, limit=100)


async def recurring(world: World, count: int, **fields: Any) -> list[JobId]:
    made = await world.submit_all([job(schedule=every(3600, world.now), **fields) for _ in range(count)])
    return [accepted.id for accepted in made]


async def states(world: World, ids: Sequence[UUID]) -> list[str]:
    rows = await world.fetch("SELECT id, state FROM ondot.job")
    by_id = {row["id"]: row["state"] for row in rows}
    return [by_id[id_] for id_ in ids]


@proves("O8", "T6")
async def test_jobs_are_paused_and_the_operation_is_undone_for_those_that_it_changed(world: World) -> None:
    ids = await recurring(world, 5)
    await pause(world.database, DEFAULT_TENANT, ids[0], by=By("bob"))
    unknown = UUID(int=7)
    id_ = await begin(world, "jobs", "pause", [*ids, unknown])
    assert (await operation(world, id_)).total == 6
    await work(world)
    assert await counts(world, id_) == ("DONE", 4, 1, 1)
    assert await states(world, ids) == ["PAUSED"] * 5
    refused = [(item.id, item.detail) for item in await items(world, id_) if not item.is_done]
    assert refused == [(unknown, f"There is no job {unknown}.")]
    undo = undo_of(await operation(world, id_), world.database.clock.new_id())
    await start_bulk(world.database, DEFAULT_TENANT, undo, by=By("ann"), render=lambda _: "")
    await work(world)
    assert await counts(world, undo.id) == ("DONE", 4, 0, 0)
    assert await states(world, ids) == ["PAUSED", *["ACTIVE"] * 4]
    again = undo_of(await operation(world, id_), world.database.clock.new_id())
    with pytest.raises(Conflict, match="undone already"):
        await start_bulk(world.database, DEFAULT_TENANT, again, by=By("ann"), render=lambda _: "")
    entries = await world.fetch("SELECT action, subject FROM ondot.audit ORDER BY id")
    assert sorted((entry["action"], entry["subject"]) for entry in entries) == [
        ("bulk.start", id_),
        ("bulk.undo", undo.id),
        ("job.pause", ids[0]),
    ], "one entry stands for all items"


@proves("O8")
async def test_labels_and_priority_are_changed_and_restored_unless_the_job_was_changed_since(world: World) -> None:
    ids = await recurring(world, 3, labels={"team": "bi", "old": "1"}, priority="low")
    change = {"labels": {"team": "ops", "old": None}, "priority": "high"}
    id_ = await begin(world, "jobs", "update", ids, change=change)
    await work(world)
    assert await counts(world, id_) == ("DONE", 3, 0, 0)
    for job_id in ids:
        spec = (await world.job(job_id)).spec
        assert (spec.labels, spec.priority) == ({"team": "ops"}, "high")
    again = await begin(world, "jobs", "update", ids, change=change)
    await begin(world, "jobs", "update", ids[:1], change={"labels": {"mine": "1"}})
    await work(world)
    assert await counts(world, again) == ("DONE", 0, 0, 3), "nothing is left to change, so no version is made"
    undo = undo_of(await operation(world, id_), world.database.clock.new_id())
    await start_bulk(world.database, DEFAULT_TENANT, undo, by=By("ann"), render=lambda _: "")
    await work(world)
    assert await counts(world, undo.id) == ("DONE", 2, 1, 0)
    [refused] = [item for item in await items(world, undo.id) if not item.is_done]
    assert (refused.id, "was changed since" in (refused.detail or "")) == (ids[0], True)
    spec = (await world.job(ids[1])).spec
    assert (spec.labels, spec.priority) == ({"team": "bi", "old": "1"}, "low")


@proves("O8", "E8", "E10")
async def test_executions_are_cancelled_and_retried_each_once(world: World) -> None:
    made = await world.submit_all([job(schedule=once(world.after(5))) for _ in range(4)])
    ids = [ExecutionId(row["id"]) for row in await world.fetch("SELECT id FROM ondot.execution ORDER BY id")]
    assert len(made) == len(ids) == 4
    id_ = await begin(world, "executions", "cancel", [*ids, ids[0]])
    await work(world)
    assert await counts(world, id_) == ("DONE", 4, 0, 0)
    second = await begin(world, "executions", "cancel", ids)
    retried = await begin(world, "executions", "retry", ids)
    twice = await begin(world, "executions", "retry", ids)
    await work(world)
    assert await counts(world, second) == ("DONE", 0, 0, 4)
    assert await counts(world, retried) == ("DONE", 4, 0, 0)
    assert await counts(world, twice) == ("DONE", 0, 4, 0), "their replays are live"
    replays = await world.fetch("SELECT replay_of FROM ondot.execution ORDER BY 1")
    assert [row["replay_of"] for row in replays] == sorted(ids)


@proves("O8", "P5")
async def test_a_crash_between_items_repeats_none_and_another_process_continues(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await recurring(world, 6)
    id_ = await begin(world, "jobs", "run", ids)
    calls = 0

    async def dies(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise ConnectionError("here")
        await record_items(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(turns, "record_items", dies)
        with pytest.raises(Unavailable, match="here"):
            await bulk_pass(world.database, world.dispatcher)
    assert await counts(world, id_) == ("RUNNING", 3, 0, 0)
    assert await bulk_pass(world.database, world.dispatcher) == 0, "its turn is leased"
    await world.advance(LEASE_S)
    await asyncio.gather(*(bulk_pass(world.database, world.dispatcher) for _ in range(3)))
    await work(world)
    assert await counts(world, id_) == ("DONE", 6, 0, 0)
    runs = await world.fetch("SELECT job_id FROM ondot.execution WHERE origin = 'run'")
    assert sorted(row["job_id"] for row in runs) == sorted(ids)


@proves("O8")
async def test_an_item_is_claimed_by_one_of_two_processes(world: World) -> None:
    ids = await recurring(world, 2)
    await begin(world, "jobs", "run", ids)
    async with world.database.connection() as connection:
        turn = await take_bulk(connection, LEASE_S)
        assert turn is not None
        assert await take_bulk(connection, LEASE_S) is None
    first = sorted(ids)[:1]
    async with world.database.transaction() as connection:
        assert await claim_items(connection, turn, first, were_locked=False, lock_timeout_ms=250)
    async with world.database.transaction() as connection:
        assert not await claim_items(connection, turn, first, were_locked=False, lock_timeout_ms=250)


@proves("O8")
async def test_a_locked_job_is_passed_over_and_tried_again_at_the_end(world: World) -> None:
    ids = await recurring(world, 3)
    id_ = await begin(world, "jobs", "pause", ids)
    async with world.second_connection() as other, other.transaction(), asyncio.timeout(30):
        await lock_job(other, DEFAULT_TENANT, sorted(ids)[0])
        await work(world)
        assert await counts(world, id_) == ("RUNNING", 2, 0, 0)
    await world.advance(1)
    await work(world)
    assert await counts(world, id_) == ("DONE", 3, 0, 0)


@proves("O8", "T1")
async def test_the_rights_of_a_key_are_those_of_the_moment(world: World) -> None:
    ours = await recurring(world, 2, pool="default")
    await world.submit(job(schedule=every(3600, world.now), pool="gpu"))
    other = JobId(await world.value("SELECT id FROM ondot.job WHERE id <> ALL ($1)", ours))
    key_id = world.database.clock.new_id()
    async with world.database.connection() as connection:
        await add_key(connection, key_id, DEFAULT_TENANT, "ci", "k" * 40, role=Role.EDITOR, pools=["default"])
    by = By("ci", key_id=key_id)
    id_ = await begin(world, "jobs", "pause", [*ours, other], by=by)
    await work(world)
    assert await counts(world, id_) == ("DONE", 2, 1, 0), "a job of another pool does not exist for the key"
    assert await states(world, [other]) == ["ACTIVE"]
    id_ = await begin(world, "jobs", "resume", ours, by=by)
    async with world.database.connection() as connection:
        await revoke_key(connection, DEFAULT_TENANT, key_id)
    await work(world)
    row = await operation(world, id_)
    assert (row.state, row.done) == ("CANCELLED", 0)
    assert row.stopped_because == "The key 'ci' that started it is revoked. Start it again with another one."


@proves("O8", "T2")
async def test_one_tenant_does_not_wait_for_another_and_a_suspended_one_waits(world: World) -> None:
    ids = await recurring(world, 40)
    await world.fetch(
        "INSERT INTO ondot.tenant (tenant_no, name, state, created_at) VALUES (2, 'b', 'ACTIVE', $1)", world.now
    )
    [other] = [accepted.id for accepted in await world.submit_all([job(schedule=every(60, world.now))], TenantNo(2))]
    slow = await begin(world, "jobs", "pause", ids, per_s=40)
    theirs = NewBulk(world.database.clock.new_id(), "jobs", "pause", 1000, ids=[other])
    await start_bulk(world.database, TenantNo(2), theirs, by=By("eve"), render=lambda _: "")
    await world.fetch("UPDATE ondot.tenant SET state = 'SUSPENDED' WHERE tenant_no = 2")
    await bulk_pass(world.database, world.dispatcher)
    assert (await counts(world, slow))[:2] == ("RUNNING", 10)
    assert await states(world, [other]) == ["ACTIVE"]
    await world.fetch("UPDATE ondot.tenant SET state = 'ACTIVE' WHERE tenant_no = 2")
    await bulk_pass(world.database, world.dispatcher)
    assert await states(world, [other]) == ["PAUSED"]
    row = await stop(world.database, DEFAULT_TENANT, slow, by=By("ann"))
    assert (row.state, row.done) == ("CANCELLED", 10)
    await work(world)
    assert (await states(world, ids)).count("PAUSED") == 10


@proves("O8")
async def test_a_dry_run_counts_and_says_what_would_be_refused_and_why(world: World) -> None:
    [live, gone] = await recurring(world, 2)
    done = await begin(world, "jobs", "delete", [gone])
    await work(world)
    assert await counts(world, done) == ("DONE", 1, 0, 0)
    bulk = NewBulk(world.database.clock.new_id(), "jobs", "pause", 50, ids=[live, gone, UUID(int=9)])
    async with world.database.connection() as connection:
        seen = await preview(connection, LOCAL, bulk)
        limited = KeyCaller(DEFAULT_TENANT, "k", Role.EDITOR, rights_of(Role.EDITOR), frozenset({"gpu"}))
        hidden = await preview(connection, limited, bulk)
    assert (seen.count, seen.refused, [id_ for id_, _ in seen.sample]) == (3, 2, sorted([live, gone]))
    assert dict(seen.refusals) == {
        gone: f"The job {gone} is deleted: create it again.",
        UUID(int=9): f"There is no job {UUID(int=9)}.",
    }
    assert (hidden.refused, hidden.sample) == (3, [])
    assert Right.JOBS_RUN in limited.rights


async def compare(world: World, of: Any, action: Any, ids: Sequence[UUID], **more: Any) -> set[UUID]:
    """A dry run must refuse what the operation then refuses; returns those."""
    bulk = NewBulk(world.database.clock.new_id(), of, action, 1000, ids=ids, **more)
    async with world.database.connection() as connection:
        seen = await preview(connection, LOCAL, bulk)
    id_ = await begin(world, of, action, ids, **more)
    await work(world)
    refused = {item.id: item.detail for item in await items(world, id_) if not item.is_done}
    assert dict(seen.refusals).keys() == refused.keys(), (seen.refusals, refused)
    assert (await operation(world, id_)).refused == seen.refused
    return set(refused)


@proves("O8")
@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("pause", {"runs", "waits", "over", "run again", "cancelled", "deleted"}),
        ("update", {"runs", "waits", "over", "run again", "cancelled", "deleted"}),
        ("delete", {"runs", "over", "run again", "cancelled"}),
        ("resume", {"deleted"}),
        ("run", {"deleted"}),
    ],
)
async def test_a_dry_run_foresees_which_jobs_are_refused(world: World, action: str, expected: set[str]) -> None:
    """One-time jobs in each stage of their life, beside jobs that recur."""
    worker = await world.worker()

    async def add(schedule: Any, **fields: Any) -> JobId:
        return (await world.submit(job(schedule=schedule, **fields))).id

    ids: dict[str, JobId] = {}
    ids["over"] = await add(once(world.now))
    await worker.run_one()
    ids["run again"] = await add(once(world.now))
    await worker.run_one()
    ids["waits"] = await add(once(world.now), retry=Retry(delays_s=(3600.0,), backoff="listed"))
    await worker.run_one(failed())
    ids["runs"] = await add(once(world.now))
    await worker.lease()
    ids["cancelled"] = await add(once(world.after(20)))
    await begin(world, "executions", "cancel", [(await world.executions(ids["cancelled"]))[0].id])
    ids["deleted"] = await add(every(3600, world.now))
    ids["planned"] = await add(once(world.after(30)))
    ids["far"] = await add(once(world.after(86_400)))
    ids["paused"] = await add(once(world.after(86_400)))
    ids["changed"] = await add(once(world.after(86_400)))
    ids["recurs"] = await add(every(3600, world.now))
    await work(world)
    await begin(world, "jobs", "delete", [ids["deleted"]])
    await begin(world, "jobs", "pause", [ids["paused"]])
    await begin(world, "jobs", "update", [ids["changed"]], change={"priority": "low"})
    await work(world)
    await world.run_now(ids["run again"])
    more = {"change": {"labels": {"a": "b"}}} if action == "update" else {}
    refused = await compare(world, "jobs", action, list(ids.values()), **more)
    assert {name for name, id_ in ids.items() if id_ in refused} == expected


@proves("O8")
async def test_a_dry_run_shows_that_jobs_have_ended_and_which_updates_change_nothing(world: World) -> None:
    worker = await world.worker()
    ended = (await world.submit(job(schedule=once(world.now), priority="low"))).id
    await worker.run_one()
    bulk = NewBulk(world.database.clock.new_id(), "jobs", "update", 50, q="", change={"priority": "low"})
    shell = job(target=ShellTarget(command=("true",)), schedule=every(3600, world.now))
    forbidden = (await world.submit(shell)).id
    limited = KeyCaller(DEFAULT_TENANT, "k", Role.EDITOR, rights_of(Role.EDITOR) - {Right.SHELL})
    async with world.database.connection() as connection:
        bulk = replace(bulk, id=world.database.clock.new_id())
        seen = await preview(connection, limited, bulk)
    assert {id_: item.state for id_, item in seen.sample} == {ended: "ENDED", forbidden: "ACTIVE"}
    [(refused, why)] = seen.refusals
    assert (refused, "shell" in why) == (forbidden, True)


@proves("O8", "E10")
@pytest.mark.parametrize("current", [False, True])
async def test_a_dry_run_foresees_which_executions_and_dead_letters_are_refused(world: World, current: bool) -> None:
    worker = await world.worker()
    ids: dict[str, ExecutionId] = {}

    async def fail(name: str) -> JobId:
        made = await world.submit(job(schedule=once(world.now), retry=Retry(max_retries=0)))
        ids[name] = (await worker.run_one(failed())).leased.id
        return made.id

    for name in ("failed", "replayed"):
        await fail(name)
    gone = await fail("gone")
    await world.fetch("DELETE FROM ondot.job_once WHERE id = $1", gone)
    retrying = job(schedule=once(world.now), retry=Retry(delays_s=(3600.0,), backoff="listed"))
    await world.submit(retrying)
    ids["waits"] = (await worker.run_one(failed())).leased.id
    deleted = (await world.submit(job(schedule=every(60, world.now), retry=Retry(max_retries=0)))).id
    ids["of a deleted job"] = await world.run_now(deleted)
    await worker.complete_all(await worker.lease(), failed())
    await begin(world, "jobs", "delete", [deleted])
    await begin(world, "dead_letters", "replay", [ids["replayed"]])
    await work(world)
    for assignment in await worker.lease():
        await worker.complete(assignment)
    succeeded = (await world.submit(job(schedule=once(world.now)))).id
    await worker.run_one()
    ids["being replayed"] = (await world.executions(succeeded))[0].id
    await begin(world, "executions", "retry", [ids["being replayed"]])
    await work(world)
    names = {id_: name for name, id_ in ids.items()}
    letters = [id_ for name, id_ in ids.items() if name not in {"waits", "being replayed"}]
    refused = await compare(world, "dead_letters", "replay", [letters[-1], letters[-2]], current_version=current)
    assert {names[ExecutionId(id_)] for id_ in refused} == ({"gone", "of a deleted job"} if current else {"gone"})
    refused = await compare(world, "executions", "retry", list(ids.values()), current_version=current)
    by_version = {"waits", "of a deleted job"} if current else {"of a deleted job"}
    assert {names[ExecutionId(id_)] for id_ in refused} == {"replayed", "being replayed", "gone"} | by_version
    refused = await compare(world, "executions", "cancel", list(ids.values()))
    assert {names[ExecutionId(id_)] for id_ in refused} == set(ids) - {"waits"}
    assert not await compare(world, "dead_letters", "discard", letters)


@proves("O8", "W8")
async def test_a_dry_run_foresees_which_runs_are_refused(world: World) -> None:
    worker = await world.worker()
    ids = {"ended": await start(world, worker, {"a": step()})}
    await run_steps(world, worker, ids["ended"])
    ids["blocked"] = await start(world, worker, {"a": step(retry=Retry(max_retries=0))})
    await run_steps(world, worker, ids["blocked"], {"a": failed()})
    ids["runs"] = await start(world, worker, {"a": step()})
    await world.submit(job("flow", target=workflow({"a": step()})))
    [waits] = await world.fetch("SELECT id FROM ondot.execution WHERE state = 'PENDING' AND origin = 'fire'")
    ids["waits"] = ExecutionId(waits["id"])
    names = {id_: name for name, id_ in ids.items()}

    async def refused(action: str) -> set[str]:
        return {names[ExecutionId(id_)] for id_ in await compare(world, "runs", action, list(ids.values()))}

    assert await refused("pause") == {"ended", "waits"}
    assert await refused("resume") == {"ended", "waits"}
    assert await refused("retry") == {"ended", "waits", "runs"}
    assert await refused("cancel") == {"ended"}


@proves("O8")
async def test_an_operation_that_keeps_failing_stops_and_says_why(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await recurring(world, 1)
    id_ = await begin(world, "jobs", "pause", ids)

    async def breaks(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(turns, "act_on_job", breaks)
    for _ in range(turns.MOST_FAILURES):
        await bulk_pass(world.database, world.dispatcher)
        await world.advance(2)
    row = await operation(world, id_)
    assert (row.state, "RuntimeError: a bug" in (row.stopped_because or "")) == ("CANCELLED", True)


@proves("O8", "O9")
async def test_an_operation_of_the_release_before_is_adopted(world: World) -> None:
    id_ = world.database.clock.new_id()
    await world.fetch(
        "INSERT INTO ondot.bulk (id, tenant_no, action, filter, current_version, actor, per_s, total, state, turn_at,"
        " created_at) VALUES ($1, 1, 'discard', $2, false, 'ann', 50, 1, 'RUNNING', $3, $3)",
        id_,
        json.dumps({"q": "x"}),
        world.now,
    )
    await work(world)
    assert await counts(world, id_) == ("DONE", 0, 0, 0)
    newer = await begin(world, "jobs", "pause", [UUID(int=1)])
    due = await world.value("SELECT turn_at = 'infinity' FROM ondot.bulk WHERE id = $1", newer)
    assert due is True, "a scheduler of the release before would discard letters for it"


@proves("O8")
async def test_all_that_match_a_query_when_it_is_asked_for_are_reached_each_once(world: World) -> None:
    bi = await recurring(world, 25, labels={"team": "bi"})
    others = await recurring(world, 2, labels={"team": "ops"})
    id_ = await begin(world, "jobs", "pause", None, q="label.team=bi", per_s=40)
    assert (await operation(world, id_)).total == 25
    await bulk_pass(world.database, world.dispatcher)
    late = await recurring(world, 1, labels={"team": "bi"})
    for _ in range(4):
        await world.advance(0.25)
        await bulk_pass(world.database, world.dispatcher)
    assert await counts(world, id_) == ("DONE", 25, 0, 0)
    assert await states(world, [*bi, *others, *late]) == ["PAUSED"] * 25 + ["ACTIVE"] * 3
    undo = undo_of(await operation(world, id_), world.database.clock.new_id())
    await start_bulk(world.database, DEFAULT_TENANT, undo, by=By("ann"), render=lambda _: "")
    await work(world)
    assert (await states(world, bi)).count("ACTIVE") == 25


@proves("O8", "E10")
async def test_failed_executions_that_match_are_retried_once_though_they_fail_again(world: World) -> None:
    await world.submit_all([job(retry=Retry(max_retries=0)) for _ in range(6)])
    worker = await world.worker()

    async def fail_all() -> None:
        for attempt in await worker.lease():
            await worker.complete(attempt, failed("again"))

    await fail_all()
    id_ = await begin(world, "executions", "retry", None, q="state:failed", per_s=8)
    for _ in range(8):
        await bulk_pass(world.database, world.dispatcher)
        await fail_all()
        await world.advance(0.25)
    assert await counts(world, id_) == ("DONE", 6, 0, 0)
    assert await world.value("SELECT count(*) FROM ondot.history WHERE state = 'FAILED'") == 12


@proves("O8", "C7")
async def test_an_operation_waits_while_the_queue_is_full_and_no_item_fails(world: World) -> None:
    world.database.settings = world.database.settings.model_copy(update={"queue_ceiling": 3})
    ids = await recurring(world, 8)
    id_ = await begin(world, "jobs", "run", ids, per_s=12)
    worker = await world.worker()
    ran, reached = 0, []
    for _ in range(20):
        await bulk_pass(world.database, world.dispatcher)
        waiting = int(await world.value("SELECT count(*) FROM ondot.ready WHERE ready_at <= ondot.clock()"))
        assert waiting <= 3 + 3, "a turn of three items may start below the ceiling"
        state, done, refused, _ = await counts(world, id_)
        reached.append(done)
        assert refused == 0
        if state == "DONE":
            break
        if waiting >= 3:
            # Nothing is started while it is full, however often its turn comes.
            for _ in range(3):
                await world.advance(1)
                await bulk_pass(world.database, world.dispatcher)
            assert (await counts(world, id_))[1] == done
        for assignment in await worker.lease(10):
            await worker.complete(assignment)
            ran += 1
        await world.advance(1)
    assert reached[-1] == 8
    assert len(set(reached)) > 2, "it went on in steps"


@proves("O8")
async def test_two_operations_on_the_same_items_and_a_second_undo_change_nothing_twice(world: World) -> None:
    ids = await recurring(world, 6)
    first, second = [await begin(world, "jobs", "pause", ids, per_s=12) for _ in range(2)]
    await bulk_pass(world.database, world.dispatcher)
    await stop(world.database, DEFAULT_TENANT, first, by=By("ann"))
    for _ in range(8):
        await bulk_pass(world.database, world.dispatcher)
        await world.advance(1)
    changed = [(await operation(world, id_)).done for id_ in (first, second)]
    assert sum(changed) == 6, "each job is paused by one of them"
    assert 0 < changed[0] < 6
    assert (await stop(world.database, DEFAULT_TENANT, first, by=By("ann"))).state == "CANCELLED"
    # A stopped operation is undone for what it has changed, and once.
    undo = undo_of(await operation(world, first), world.database.clock.new_id())
    await start_bulk(world.database, DEFAULT_TENANT, undo, by=By("ann"), render=lambda _: "")
    again = undo_of(await operation(world, first), world.database.clock.new_id())
    with pytest.raises(Conflict, match="undone already"):
        await start_bulk(world.database, DEFAULT_TENANT, again, by=By("ann"), render=lambda _: "")
    await work(world)
    assert (await states(world, ids)).count("ACTIVE") == changed[0]
