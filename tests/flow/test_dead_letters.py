"""Replay and discard: one execution for each letter, for any number of requests and crashes."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest

from ondot.flow.bulk import turns
from ondot.flow.bulk.start import start_bulk, stop
from ondot.flow.bulk.turns import ITEMS_A_TURN, LEASE_S, bulk_pass
from ondot.flow.change.change import delete
from ondot.flow.dead_letters import discard, replay
from ondot.flow.replay import Replay
from ondot.model.errors import NotFound, Unavailable
from ondot.model.execution import State
from ondot.model.gates import Limits
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId, TenantNo
from ondot.model.retry import Retry
from ondot.store.audit import By, list_audit
from ondot.store.bulk import BulkRow, NewBulk, list_bulks, take_bulk
from ondot.store.dead_letters import LetterFilter, lock_letters, resolve_letters
from tests.proves import proves
from tests.world import World, every, failed, job

NO_RETRY = Retry(max_retries=0)


async def fail_all(world: World, message: str = "it broke") -> list[ExecutionId]:
    """Let all due executions fail without a retry."""
    worker = await world.worker()
    assignments = await worker.lease()
    await worker.complete_all(assignments, failed(message))
    return [assignment.leased.id for assignment in assignments]


async def letters(world: World, count: int, message: str = "it broke", **fields: Any) -> list[ExecutionId]:
    await world.submit_all([job(retry=NO_RETRY, **fields) for _ in range(count)])
    return await fail_all(world, message)


async def replay_all(
    world: World, ids: Sequence[ExecutionId], how: Replay | None = None, tenant_no: TenantNo = DEFAULT_TENANT
) -> list[tuple[str, str | None]]:
    """Result and the id of the new execution, for each."""
    text = await replay(
        world.database,
        world.dispatcher,
        tenant_no,
        ids,
        how or Replay(),
        by=By("ann", "again"),
        render=lambda entries: json.dumps(
            [(entry.result, str(entry.replay_id) if entry.replay_id else None) for entry in entries]
        ),
    )
    return [tuple(entry) for entry in json.loads(text)]


async def begin(
    world: World,
    action: Any = "replay",
    filter: LetterFilter | None = None,  # noqa: A002
    *,
    per_s: float = 50,
    how: Replay | None = None,
) -> UUID:
    how = how or Replay()
    bulk = NewBulk(
        world.database.clock.new_id(),
        "dead_letters",
        action,
        per_s,
        filter=filter or LetterFilter(),
        payload=how.payload,
        current_version=how.current_version,
    )
    by = By("ann", "all of them")
    text = await start_bulk(world.database, DEFAULT_TENANT, bulk, by=by, render=lambda row: str(row.id))
    return UUID(text)


async def operation(world: World, id_: UUID) -> BulkRow:
    async with world.database.connection() as connection:
        [row] = await list_bulks(connection, DEFAULT_TENANT, id_=id_)
    return row


async def open_letters(world: World) -> int:
    return int(await world.value("SELECT count(*) FROM ondot.dead_letter WHERE resolved_at IS NULL"))


@proves("E10")
async def test_a_replay_is_a_new_execution_of_the_same_job_with_the_old_payload(world: World) -> None:
    accepted = await world.submit(job(retry=NO_RETRY, payload=b'{"n":1}', priority="high"))
    [spec_payload] = await fail_all(world)
    await world.run_now(accepted.id, b'{"n":2}')
    [own_payload] = await fail_all(world)
    results = await replay_all(world, [own_payload, spec_payload])
    assert [result for result, _ in results] == ["replayed", "replayed"]
    worker = await world.worker()
    leased = {str(assignment.leased.id): assignment for assignment in await worker.lease()}
    assert [json.loads(leased[str(id_)].payload) for _, id_ in results] == [{"n": 2}, {"n": 1}]
    made = await world.execution(ExecutionId(UUID(results[0][1])))
    assert (made.origin, made.job_id, made.job_version, made.replay_of) == ("replay", accepted.id, 1, own_payload)
    assert made.priority_class == int(job(priority="high").priority_class)


@proves("E10", "T6")
async def test_a_letter_has_its_resolver_the_reason_and_the_replay(world: World) -> None:
    one, other = await letters(world, 2)
    [(_, replay_id)] = await replay_all(world, [one])
    await discard(world.database, DEFAULT_TENANT, [other], by=By("bob", "old"), render=lambda _: "")
    rows = {row["execution_id"]: row for row in await world.fetch("SELECT * FROM ondot.dead_letter")}
    assert (rows[one]["resolution"], rows[one]["resolved_by"], rows[one]["resolved_reason"]) == (
        "replayed",
        "ann",
        "again",
    )
    assert (str(rows[one]["replay_id"]), rows[one]["resolved_at"]) == (replay_id, world.now)
    assert (rows[other]["resolution"], rows[other]["resolved_by"], rows[other]["replay_id"]) == (
        "discarded",
        "bob",
        None,
    )
    async with world.database.connection() as connection:
        [entry] = await list_audit(connection, DEFAULT_TENANT, subject=one, limit=9)
        assert (entry.actor, entry.action, entry.detail["replay_id"]) == ("ann", "dead_letter.replay", replay_id)
        [entry] = await list_audit(connection, DEFAULT_TENANT, subject=other, limit=9)
        assert (entry.actor, entry.action, entry.detail) == ("bob", "dead_letter.discard", {"reason": "old"})
        assert await list_audit(connection, TenantNo(2), limit=9) == []


@proves("E10", "T1")
async def test_letters_that_cannot_be_replayed_are_reported_and_the_others_run(world: World) -> None:
    done, gone, good = await letters(world, 3)
    await replay_all(world, [done])
    await world.value("DELETE FROM ondot.job_once WHERE id = $1", (await world.execution(gone)).job_id)
    unknown = ExecutionId(UUID(int=7))
    results = await replay_all(world, [done, gone, unknown, good])
    assert [result for result, _ in results] == ["already_resolved", "spec_gone", "not_found", "replayed"]
    assert await open_letters(world) == 1
    assert await replay_all(world, [gone], tenant_no=TenantNo(2)) == [("not_found", None)]


@proves("E10")
async def test_an_edited_payload_replaces_the_old_one(world: World) -> None:
    [id_] = await letters(world, 1, payload=b'{"n":1}')
    await replay_all(world, [id_], Replay(payload='{"n":3}'))
    worker = await world.worker()
    [assignment] = await worker.lease()
    assert json.loads(assignment.payload) == {"n": 3}


@proves("E10")
async def test_a_replay_runs_the_version_that_failed_unless_the_current_one_is_asked_for(world: World) -> None:
    accepted = await world.submit(job(retry=NO_RETRY, schedule=every(3600, world.now)))
    await world.run_now(accepted.id)
    await world.run_now(accepted.id)
    one, other = await fail_all(world)
    changed = job(retry=NO_RETRY, schedule=every(3600, world.now), timeout_s=7.0)
    await world.update(accepted.id, changed)
    [(_, by_old)] = await replay_all(world, [one])
    [(_, by_new)] = await replay_all(world, [other], Replay(current_version=True))
    versions = [(await world.execution(ExecutionId(UUID(id_)))).job_version for id_ in (by_old, by_new) if id_]
    assert versions == [1, 2]


@proves("E10")
async def test_a_letter_of_a_deleted_job_is_replayed_by_its_old_version_only(world: World) -> None:
    accepted = await world.submit(job(retry=NO_RETRY, schedule=every(3600, world.now)))
    await world.run_now(accepted.id)
    [id_] = await fail_all(world)
    await delete(world.database, DEFAULT_TENANT, accepted.id)
    assert await replay_all(world, [id_], Replay(current_version=True)) == [("job_deleted", None)]
    assert [result for result, _ in await replay_all(world, [id_])] == ["replayed"]
    worker = await world.worker()
    await worker.run_one()
    assert (await world.states(accepted.id))[-1] is State.SUCCEEDED


@proves("E10", "P3")
async def test_two_replays_of_the_same_letters_at_once_make_one_execution_of_each(world: World) -> None:
    ids = await letters(world, 10)
    answers = await asyncio.gather(replay_all(world, ids), replay_all(world, ids[::-1]), replay_all(world, ids[3:]))
    results = [result for answer in answers for result, _ in answer]
    assert results.count("replayed") == 10
    assert await world.count("execution") == 10


@proves("E10", "P3")
async def test_a_second_replay_waits_for_the_first_and_finds_its_result(world: World) -> None:
    [id_] = await letters(world, 1)
    async with world.second_connection() as other:
        holding = other.transaction()
        await holding.start()
        await lock_letters(other, DEFAULT_TENANT, [id_])
        waiting = asyncio.create_task(replay_all(world, [id_]))
        await world.until_a_lock_is_awaited()
        await other.execute("UPDATE ondot.dead_letter SET resolved_at = now(), resolution = 'discarded'")
        await holding.commit()
        assert await waiting == [("already_resolved", None)]
    assert await world.count("execution") == 0


@proves("E10", "E13")
async def test_a_replay_passes_the_gates_of_its_job(world: World) -> None:
    ids = await letters(world, 2, limits=Limits(key="db", key_concurrency=1))
    await replay_all(world, ids)
    assert await world.count("gated") == 2
    worker = await world.worker()
    assert len(await worker.lease()) == 1


@proves("E10", "E13")
async def test_many_replays_lock_their_gates_in_the_one_order_that_all_transactions_use(world: World) -> None:
    for n in range(8):
        await world.submit(job(retry=NO_RETRY, limits=Limits(order_key=f"customer {n}")))
    ids = await fail_all(world)
    await replay_all(world, ids)
    rows = await world.fetch("SELECT stages->0->>'gate' AS gate FROM ondot.gated ORDER BY execution_id")
    gates = [UUID(row["gate"]) for row in rows]
    assert len(gates) == 8
    assert gates == sorted(gates)


@proves("E10", "O8")
async def test_an_operation_replays_all_that_match_at_its_rate(world: World) -> None:
    await letters(world, 30, "no such table")
    await letters(world, 3, "timed out")
    id_ = await begin(world, filter=LetterFilter(q="SUCH table"), per_s=40)
    assert (await operation(world, id_)).total == 30
    done = []
    for _ in range(5):
        await bulk_pass(world.database, world.dispatcher)
        assert await bulk_pass(world.database, world.dispatcher) == 0, "its next turn is not due"
        done.append((await operation(world, id_)).done)
        await world.advance(0.25)
    assert done == [10, 20, 30, 30, 30]
    row = await operation(world, id_)
    assert (row.state, row.total) == ("DONE", 30)
    assert await open_letters(world) == 3
    entries = await world.fetch("SELECT subject, detail FROM ondot.audit WHERE action LIKE 'dead_letter.%'")
    assert [(entry["subject"], json.loads(entry["detail"])["total"]) for entry in entries] == [(id_, 30)]


@proves("O8")
async def test_a_rate_below_one_a_turn_holds_too(world: World) -> None:
    await letters(world, 3)
    id_ = await begin(world, "discard", per_s=1)
    done = []
    for _ in range(8):
        await bulk_pass(world.database, world.dispatcher)
        done.append((await operation(world, id_)).done)
        await world.advance(0.5)
    assert done == [1, 1, 2, 2, 3, 3, 3, 3]


@proves("O8")
async def test_a_late_pass_makes_up_for_a_second_and_no_more(world: World) -> None:
    await letters(world, 100)
    id_ = await begin(world, "discard", per_s=40)
    await world.advance(3600)
    await bulk_pass(world.database, world.dispatcher)
    assert (await operation(world, id_)).done == 50


@proves("O8", "E10")
async def test_executions_that_fail_again_during_an_operation_are_not_replayed_again(world: World) -> None:
    await letters(world, 20)
    id_ = await begin(world, per_s=40)
    for _ in range(6):
        await bulk_pass(world.database, world.dispatcher)
        await fail_all(world)
        await world.advance(0.25)
    row = await operation(world, id_)
    assert (row.state, row.done) == ("DONE", 20)
    assert await open_letters(world) == 20


@proves("O8")
async def test_a_turn_is_bounded_whatever_the_rate(world: World) -> None:
    await world.submit_all([job(retry=NO_RETRY) for _ in range(ITEMS_A_TURN + 1)])
    while await fail_all(world):
        pass
    await begin(world, per_s=1000)
    async with world.database.connection() as connection:
        turn = await take_bulk(connection, LEASE_S)
    assert turn is not None
    assert await turns.work_off(world.database, world.dispatcher, turn) == ITEMS_A_TURN


@proves("O8", "P5")
async def test_a_crash_in_the_middle_of_a_turn_loses_and_repeats_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await letters(world, 12)
    id_ = await begin(world, per_s=20)

    async def dies(*_: object, **__: object) -> None:
        raise ConnectionError("here")

    with monkeypatch.context() as patched:
        patched.setattr(turns, "record_items", dies)
        with pytest.raises(Unavailable, match="here"):
            await bulk_pass(world.database, world.dispatcher)
    assert (await open_letters(world), await world.count("execution")) == (12, 0)
    await world.advance(LEASE_S)
    for _ in range(4):
        await bulk_pass(world.database, world.dispatcher)
        await world.advance(0.25)
    assert (await operation(world, id_)).done == 12
    replayed = await world.fetch("SELECT replay_of FROM ondot.execution ORDER BY 1")
    assert [row["replay_of"] for row in replayed] == sorted(ids)


@proves("O8", "E10")
async def test_operations_and_people_at_the_same_letters_make_one_execution_of_each(world: World) -> None:
    ids = await letters(world, 40)
    for _ in range(3):
        await begin(world, per_s=400)
    passes = [bulk_pass(world.database, world.dispatcher) for _ in range(3)]
    await asyncio.gather(*passes, replay_all(world, ids[:20]), replay_all(world, ids[10:]))
    await world.advance(1)
    await bulk_pass(world.database, world.dispatcher)
    assert await open_letters(world) == 0
    replayed = await world.fetch("SELECT replay_of FROM ondot.execution ORDER BY 1")
    assert [row["replay_of"] for row in replayed] == sorted(ids)


@proves("O8")
async def test_an_operation_passes_over_a_locked_letter_without_waiting(world: World) -> None:
    ids = await letters(world, 3)
    id_ = await begin(world, "discard")
    async with world.second_connection() as other, other.transaction(), asyncio.timeout(60):
        await lock_letters(other, DEFAULT_TENANT, [ids[0]])
        await bulk_pass(world.database, world.dispatcher)
        row = await operation(world, id_)
        assert (row.state, row.done, row.total) == ("RUNNING", 2, 3)


@proves("O8")
async def test_an_operation_returns_to_a_letter_that_was_locked_and_stayed_open(world: World) -> None:
    ids = await letters(world, 30)
    id_ = await begin(world, per_s=40)
    async with world.second_connection() as other, asyncio.timeout(60):
        transaction = other.transaction()
        await transaction.start()
        await lock_letters(other, DEFAULT_TENANT, [ids[0]])
        for _ in range(8):
            await bulk_pass(world.database, world.dispatcher)
            await world.advance(1)
        row = await operation(world, id_)
        assert (row.state, row.done) == ("RUNNING", 29), "while a letter is locked"
        await transaction.rollback()
    await bulk_pass(world.database, world.dispatcher)
    row = await operation(world, id_)
    assert (row.state, row.done, row.total) == ("DONE", 30, 30)
    assert await open_letters(world) == 0


@proves("O8")
async def test_an_operation_is_done_when_another_transaction_has_resolved_the_locked_letter(world: World) -> None:
    ids = await letters(world, 3)
    id_ = await begin(world, "discard")
    async with world.second_connection() as other, other.transaction(), asyncio.timeout(60):
        await lock_letters(other, DEFAULT_TENANT, [ids[0]])
        await bulk_pass(world.database, world.dispatcher)
        await resolve_letters(other, DEFAULT_TENANT, [(ids[0], None)], "discarded", actor="bob", reason=None)
    await world.advance(1)
    await bulk_pass(world.database, world.dispatcher)
    row = await operation(world, id_)
    assert (row.state, row.done, row.total) == ("DONE", 2, 3)


@proves("O8")
async def test_an_operation_that_cannot_replay_some_letters_still_ends(world: World) -> None:
    await letters(world, 3)
    gone = await world.submit(job(retry=NO_RETRY, schedule=every(60, world.now)))
    await world.run_now(gone.id)
    await fail_all(world)
    await delete(world.database, DEFAULT_TENANT, gone.id)
    id_ = await begin(world, how=Replay(current_version=True))
    await bulk_pass(world.database, world.dispatcher)
    row = await operation(world, id_)
    assert (row.state, row.done, row.total) == ("DONE", 3, 4)


@proves("O8")
async def test_a_cancelled_operation_stops_and_cancelling_twice_changes_nothing(world: World) -> None:
    await letters(world, 20)
    id_ = await begin(world, "discard", per_s=40)
    await bulk_pass(world.database, world.dispatcher)
    for _ in range(2):
        row = await stop(world.database, DEFAULT_TENANT, id_, by=By("bob"))
        assert (row.state, row.done) == ("CANCELLED", 10)
    await world.advance(5)
    assert await bulk_pass(world.database, world.dispatcher) == 0
    assert await open_letters(world) == 10
    async with world.database.connection() as connection:
        stops = await list_audit(connection, DEFAULT_TENANT, action="dead_letter.stop", limit=9)
    assert [(stop.actor, stop.subject, stop.detail) for stop in stops] == [("bob", id_, {"done": 10, "total": 20})]
    with pytest.raises(NotFound):
        await stop(world.database, TenantNo(2), id_, by=By("bob"))


@proves("O8")
async def test_an_operation_on_nothing_is_done_at_once(world: World) -> None:
    row = await operation(world, await begin(world, filter=LetterFilter(job_id=JobId(UUID(int=1)))))
    assert (row.state, row.total, row.done, row.ended_at) == ("DONE", 0, 0, world.now)


@proves("E10", "O8")
async def test_every_filter_holds_for_an_operation_as_for_a_list(world: World) -> None:
    [one] = await letters(world, 1, "alpha is down")
    await world.advance(10)
    [two] = await letters(world, 1, "beta is down")
    job_id = (await world.execution(two)).job_id
    print_of_two = await world.value("SELECT error->>'fingerprint' FROM ondot.dead_letter WHERE execution_id = $1", two)
    await world.advance(10)
    for chosen in (
        LetterFilter(job_id=job_id),
        LetterFilter(q="BETA"),
        LetterFilter(fingerprint=print_of_two),
        LetterFilter(from_at=world.after(-10)),
        LetterFilter(from_at=world.after(-10), to_at=world.now, pool="default"),
    ):
        assert (await operation(world, await begin(world, "discard", chosen))).total == 1, msgspec.to_builtins(chosen)
    for nothing in (LetterFilter(pool="other"), LetterFilter(to_at=world.after(-20)), LetterFilter(fingerprint="x")):
        assert (await operation(world, await begin(world, "discard", nothing))).total == 0
    await bulk_pass(world.database, world.dispatcher)
    rows = await world.fetch("SELECT execution_id FROM ondot.dead_letter WHERE resolved_at IS NULL")
    assert [row["execution_id"] for row in rows] == [one]
