"""⑤a A handler's effect and its completion in one transaction: both, or neither."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from ondot import Context, Ondot
from ondot.flow.attempt_log import AttemptLogs
from ondot.flow.complete import Done
from ondot.flow.handler_transaction import Transactor
from ondot.flow.lease import Assignment
from ondot.flow.run import build_call, run_attempt
from ondot.model.completion import Completion
from ondot.model.errors import Unavailable
from ondot.model.execution import State
from ondot.model.gates import Limits
from ondot.model.job import JobSpec
from ondot.model.retry import Retry
from ondot.model.target import FunctionTarget
from ondot.ports.target import Call, Cancel, Target, Targets
from ondot.sdk.transaction import Stale
from ondot.store.database import open_database
from ondot.targets.function.target import FunctionCaller
from ondot.telemetry.metrics import REPEATED, STALE
from tests.faults.proxy import Proxy, a_proxy
from tests.flow.test_recover import lose
from tests.proves import proves
from tests.servers import Server, connected, new_database, settings_for
from tests.world import Worker, World, job

EFFECT = "INSERT INTO effect VALUES (1)"
AT_ONCE = Retry(max_retries=1, backoff="fixed", initial_s=0, jitter=False)


@dataclass(slots=True)
class Shop:
    """An application that shares the database with ondot, and one worker of it."""

    world: World
    worker: Worker
    transactor: Transactor
    caller: Target[FunctionTarget]
    app: Ondot = field(default_factory=Ondot)

    async def effects(self) -> int:
        return int(await self.world.value("SELECT count(*) FROM effect"))

    async def lease(self, function: str, **fields: Any) -> Assignment:
        await self.world.submit(job(target=FunctionTarget(name=function), retry=AT_ONCE, **fields))
        [assignment] = await self.worker.lease()
        return assignment

    async def run(self, assignment: Assignment, *, shares: bool = True) -> Completion:
        """One attempt, ended as a worker ends it."""
        notes = AttemptLogs(self.world.database, self.worker.id)

        def make_call(assignment: Assignment, spec: JobSpec) -> Call:
            transaction = self.transactor.opener(assignment, spec) if shares else None
            return build_call(assignment, spec, notes, Cancel(spec.cancel_grace_s), transaction=transaction)

        targets: Targets = {FunctionTarget: self.caller}
        completion = await run_attempt(assignment, targets, make_call, lambda: None)
        await notes.close(assignment.leased)
        if self.transactor.settled(completion):
            self.worker.completer.release(assignment.lease_id)
        else:
            await self.worker.completer.write([Done(completion, assignment.lease_id)])
        return completion

    async def run_one(self, function: str, **fields: Any) -> tuple[Assignment, Completion]:
        assignment = await self.lease(function, **fields)
        return assignment, await self.run(assignment)

    async def state(self, assignment: Assignment) -> State:
        return (await self.world.execution(assignment.leased.id)).state

    @asynccontextmanager
    async def opened(self, assignment: Assignment, given: Any = None) -> AsyncIterator[Any]:
        """The transaction of an attempt, without a handler around it."""
        assert assignment.spec is not None
        async with self.transactor.opener(assignment, assignment.spec)(given) as opened:
            yield opened.connection


@pytest.fixture
async def shop(world: World) -> AsyncIterator[Shop]:
    await world.value("CREATE TABLE effect (n integer)")
    worker = await world.worker()
    app = Ondot()
    caller = FunctionCaller(app.handlers)
    yield Shop(world, worker, Transactor(world.database, world.dispatcher, worker.id), caller, app)
    await caller.close()


@proves("E11", "P8")
async def test_the_effect_and_the_completion_are_committed_as_one(shop: Shop) -> None:
    @shop.app.job
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(EFFECT)
            ctx.set_result({"paid": 7})
            # Neither is visible before the commit.
            assert await shop.effects() == 0
            assert await shop.world.states() == [State.RUNNING]
        assert await shop.effects() == 1
        assert await shop.world.states() == [State.SUCCEEDED]

    before = STALE.value, REPEATED.value
    with capture_logs() as lines:
        assignment, completion = await shop.run_one("pay")
    assert completion.state is State.SUCCEEDED
    execution = await shop.world.execution(assignment.leased.id)
    assert (execution.state, execution.result, execution.attempt_no) == (State.SUCCEEDED, {"paid": 7}, 1)
    assert execution.worker_id == shop.worker.id
    assert (STALE.value, REPEATED.value) == before
    assert [line for line in lines if line["event"].startswith("handler.")] == []
    # The next statement of the worker removes the lease.
    assert shop.worker.completer.leases == ()
    await shop.worker.completer.write([])
    assert await shop.world.count("lease") == 0


@proves("E11", "E4")
async def test_an_error_in_the_block_rolls_back_and_the_attempt_fails_as_usual(shop: Shop) -> None:
    @shop.app.job
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(EFFECT)
            raise OSError("no such account")

    assignment, completion = await shop.run_one("pay")
    assert completion.error is not None
    assert "OSError: no such account" in completion.error
    assert (await shop.effects(), await shop.state(assignment)) == (0, State.RETRYING)
    assert not shop.transactor.was_committed(assignment.leased.id, 1)


@proves("E11", "P6")
async def test_a_stale_attempt_has_no_effect_and_is_counted_once(shop: Shop) -> None:
    seen: list[str] = []

    @shop.app.job
    async def pay(ctx: Context) -> None:
        try:
            async with ctx.transaction() as connection:
                await connection.execute(EFFECT)
                await lose(shop.world, shop.worker)
                assert await shop.world.recover() == 1
        except Stale as error:
            seen.append(str(error))
            raise

    before = STALE.value
    assignment, _ = await shop.run_one("pay")
    assert len(seen) == 1
    assert str(assignment.leased.id) in seen[0]
    assert (await shop.effects(), await shop.state(assignment)) == (0, State.RETRYING)
    assert STALE.value == before + 1


@proves("E11", "P6")
async def test_only_the_last_of_two_attempts_of_an_execution_has_an_effect(shop: Shop) -> None:
    world = shop.world
    first = await shop.lease("pay")
    with pytest.raises(Stale):  # noqa: PT012 - the block is what is tried
        async with shop.opened(first) as connection:
            await connection.execute(EFFECT)
            await lose(world, shop.worker)
            await world.recover()
            fresh = await world.worker()
            [second] = await fresh.lease()
            transactor = Transactor(world.database, world.dispatcher, fresh.id)
            assert second.spec is not None
            async with transactor.opener(second, second.spec)(None) as opened:
                await opened.connection.execute("INSERT INTO effect VALUES (2)")
    assert [row["n"] for row in await world.fetch("SELECT n FROM effect")] == [2]
    assert await shop.state(first) is State.SUCCEEDED


@proves("E11", "P6")
async def test_an_attempt_that_is_stale_cannot_open_its_transaction(shop: Shop) -> None:
    assignment = await shop.lease("pay")
    await lose(shop.world, shop.worker)
    await shop.world.recover()
    with pytest.raises(Stale, match="no longer counts"):
        async with shop.opened(assignment):
            pytest.fail("the block ran")


@proves("E11", "E8")
async def test_a_transaction_that_commits_wins_over_a_cancel_meanwhile(shop: Shop) -> None:
    assignment = await shop.lease("pay")
    async with shop.opened(assignment) as connection:
        await connection.execute(EFFECT)
        await shop.world.fetch("UPDATE ondot.execution SET cancel_at = ondot.clock(), cancel_reason = 'no more'")
    assert (await shop.effects(), await shop.state(assignment)) == (1, State.SUCCEEDED)


@proves("E11", "P8")
async def test_a_handler_that_raises_after_the_commit_has_succeeded_and_that_is_logged(shop: Shop) -> None:
    @shop.app.job
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(EFFECT)
        raise ValueError("too late")

    with capture_logs() as lines:
        assignment, completion = await shop.run_one("pay")
    assert completion.state is State.RETRYING
    assert (await shop.effects(), await shop.state(assignment)) == (1, State.SUCCEEDED)
    [line] = [line for line in lines if line["event"] == "handler.failed_after_commit"]
    assert line["execution_id"] == str(assignment.leased.id)
    assert line["error"] == "ValueError: too late"


@proves("E11")
@pytest.mark.parametrize(("returned", "warnings"), [(None, 0), (1, 0), (2, 1)])
async def test_a_result_returned_after_the_commit_is_ignored_and_logged_if_it_differs(
    shop: Shop, returned: object, warnings: int
) -> None:
    @shop.app.job
    async def pay(ctx: Context) -> object:
        async with ctx.transaction():
            ctx.set_result(1)
        return returned

    with capture_logs() as lines:
        assignment, _ = await shop.run_one("pay")
    assert (await shop.world.execution(assignment.leased.id)).result == 1
    assert len([line for line in lines if line["event"] == "handler.result_ignored"]) == warnings


@proves("E11")
async def test_a_second_completion_by_the_worker_changes_nothing(shop: Shop) -> None:
    assignment = await shop.lease("pay")
    async with shop.opened(assignment) as connection:
        await connection.execute(EFFECT)
    assert shop.transactor.was_committed(assignment.leased.id, 1)
    before = REPEATED.value
    assert await shop.worker.complete(assignment) == []
    assert REPEATED.value == before + 1
    assert await shop.state(assignment) is State.SUCCEEDED


@proves("E11")
async def test_a_handler_may_pass_its_own_connection(shop: Shop) -> None:
    @shop.app.job
    async def pay(ctx: Context) -> None:
        async with shop.world.second_connection() as mine:
            async with ctx.transaction(mine) as connection:
                assert connection is mine
                await mine.execute(EFFECT)
            assert not mine.is_in_transaction()

    assignment, _ = await shop.run_one("pay")
    assert (await shop.effects(), await shop.state(assignment)) == (1, State.SUCCEEDED)


@proves("E11")
async def test_a_connection_that_cannot_commit_with_ondot_is_refused(shop: Shop, server: Server) -> None:
    assignment = await shop.lease("pay")
    async with shop.world.second_connection() as mine, mine.transaction():
        with pytest.raises(ValueError, match="in a transaction already"):
            async with shop.opened(assignment, mine):
                pytest.fail("the block ran")
    with pytest.raises(TypeError, match="takes an asyncpg connection"):
        async with shop.opened(assignment, object()):
            pytest.fail("the block ran")
    async with new_database(server) as url, connected(url) as other:
        with pytest.raises(ValueError, match="another database"):
            async with shop.opened(assignment, other):
                pytest.fail("the block ran")
    async with new_database(server, template="template1") as url, connected(url) as bare:
        with pytest.raises(ValueError, match="another database"):
            async with shop.opened(assignment, bare):
                pytest.fail("the block ran")
        assert not bare.is_in_transaction()
    assert await shop.state(assignment) is State.RUNNING


@proves("E11")
async def test_an_attempt_commits_once_and_may_retry_after_a_rollback(shop: Shop) -> None:
    @shop.app.job
    async def pay(ctx: Context) -> None:
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tried
            async with ctx.transaction() as connection:
                await connection.execute(EFFECT)
                raise ZeroDivisionError
        async with ctx.transaction() as connection:
            await connection.execute(EFFECT)
            with pytest.raises(RuntimeError, match="open already"):
                async with ctx.transaction():
                    pytest.fail("the block ran")
        with pytest.raises(RuntimeError, match="commits once"):
            async with ctx.transaction():
                pytest.fail("the block ran")

    assignment, completion = await shop.run_one("pay")
    assert completion.state is State.SUCCEEDED, completion.error
    assert (await shop.effects(), await shop.state(assignment)) == (1, State.SUCCEEDED)


@proves("E11")
async def test_a_block_that_ends_the_transaction_itself_fails_with_the_reason(shop: Shop) -> None:
    @shop.app.job
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("COMMIT")

    assignment, completion = await shop.run_one("pay")
    assert completion.error is not None
    assert "Leave COMMIT and ROLLBACK to ctx.transaction()" in completion.error
    assert await shop.state(assignment) is State.RETRYING
    async with shop.world.database.transaction() as connection:
        assert connection.is_in_transaction()


@proves("E11")
async def test_a_statement_that_failed_and_was_swallowed_does_not_become_a_success(shop: Shop) -> None:
    @shop.app.job
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(EFFECT)
            try:
                await connection.execute("SELECT 1 / 0")
            except Exception:  # noqa: BLE001 - the fault
                ctx.log("never mind")

    assignment, completion = await shop.run_one("pay")
    assert completion.error is not None
    assert "transaction is aborted" in completion.error
    assert (await shop.effects(), await shop.state(assignment)) == (0, State.RETRYING)


@proves("E11", "P8")
async def test_a_constraint_that_is_checked_at_commit_fails_the_attempt(shop: Shop) -> None:
    await shop.world.value("ALTER TABLE effect ADD UNIQUE (n) DEFERRABLE INITIALLY DEFERRED")

    @shop.app.job
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(EFFECT)
            await connection.execute(EFFECT)

    assignment, completion = await shop.run_one("pay")
    assert completion.error is not None
    assert "UniqueViolationError" in completion.error
    assert (await shop.effects(), await shop.state(assignment)) == (0, State.RETRYING)


@proves("E11", "E7")
async def test_a_timeout_in_the_block_rolls_back(shop: Shop) -> None:
    @shop.app.job
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            await connection.execute(EFFECT)
            await asyncio.Event().wait()

    assignment, completion = await shop.run_one("pay", timeout_s=0.2)
    assert completion.outcome.value == "TIMED_OUT"
    assert (await shop.effects(), await shop.state(assignment)) == (0, State.RETRYING)
    assert await shop.world.value("SELECT count(*) FROM pg_locks WHERE relation = 'effect'::regclass") == 0


@proves("E11", "E7")
async def test_a_cancellation_during_the_commit_waits_for_its_result(shop: Shop) -> None:
    await shop.world.fetch(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN PERFORM pg_advisory_xact_lock(7); RETURN NULL; END'"
    )
    await shop.world.fetch(
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION wait()"
    )
    assignment = await shop.lease("pay")

    async def pay() -> None:
        async with shop.opened(assignment) as connection:
            await connection.execute(EFFECT)

    async with shop.world.second_connection() as other:
        holding = other.transaction()
        await holding.start()
        await other.execute("SELECT pg_advisory_xact_lock(7)")
        task = asyncio.create_task(pay())
        await shop.world.until_a_lock_is_awaited()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        await holding.rollback()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert shop.transactor.was_committed(assignment.leased.id, 1)
    assert (await shop.effects(), await shop.state(assignment)) == (1, State.SUCCEEDED)


@proves("E11", "P8")
async def test_a_change_of_the_row_at_the_same_moment_does_not_make_a_current_attempt_stale(shop: Shop) -> None:
    assignment = await shop.lease("pay")

    async def pay() -> None:
        async with shop.opened(assignment) as connection:
            await connection.execute(EFFECT)

    async with shop.world.second_connection() as other:
        holding = other.transaction()
        await holding.start()
        # A new limit of its pool or a request to cancel does this.
        await other.execute("UPDATE ondot.execution SET gated = gated WHERE id = $1", assignment.leased.id)
        task = asyncio.create_task(pay())
        await shop.world.until_a_lock_is_awaited()
        await holding.commit()
    await task
    assert (await shop.effects(), await shop.state(assignment)) == (1, State.SUCCEEDED)


@pytest.fixture
async def proxy(world: World) -> AsyncIterator[Proxy]:
    async with a_proxy(world.url) as proxy:
        yield proxy


@proves("E11", "P2", "P8")
async def test_a_commit_whose_reply_is_lost_is_found_to_have_happened(shop: Shop, proxy: Proxy) -> None:
    assignment = await shop.lease("pay")
    async with connected(proxy.url) as mine:
        with capture_logs() as lines:
            async with shop.opened(assignment, mine) as connection:
                await connection.execute(EFFECT)
                proxy.cut_before_reply("COMMIT\x00")
    assert proxy.was_struck
    assert [line["event"] for line in lines] == ["transaction.in_doubt"]
    assert shop.transactor.was_committed(assignment.leased.id, 1)
    assert (await shop.effects(), await shop.state(assignment)) == (1, State.SUCCEEDED)


@proves("E11", "P2", "P8")
async def test_a_commit_that_never_arrived_is_found_not_to_have_happened(shop: Shop, proxy: Proxy) -> None:
    assignment = await shop.lease("pay")
    async with connected(proxy.url) as mine:
        with pytest.raises(Unavailable):  # noqa: PT012 - the block is what is tried
            async with shop.opened(assignment, mine) as connection:
                await connection.execute(EFFECT)
                proxy.cut_before_request("COMMIT;")
    assert proxy.was_struck
    assert not shop.transactor.was_committed(assignment.leased.id, 1)
    assert (await shop.effects(), await shop.state(assignment)) == (0, State.RUNNING)


@proves("E11")
async def test_a_plain_function_gets_the_advice_to_become_async(shop: Shop) -> None:
    @shop.app.job
    def plain(ctx: Context) -> None:
        with ctx.transaction():  # type: ignore[attr-defined]
            pytest.fail("the block ran")

    @shop.app.job
    def loop_of_its_own(ctx: Context) -> None:
        async def inner() -> None:
            async with ctx.transaction():
                pytest.fail("the block ran")

        asyncio.run(inner())

    for function, words in (("plain", "needs an async function"), ("loop_of_its_own", "worker's own event loop")):
        assignment, completion = await shop.run_one(function)
        assert completion.error is not None
        assert words in completion.error
        assert await shop.state(assignment) is State.RETRYING
        await shop.world.fetch("TRUNCATE ondot.ready")


@proves("E11")
async def test_a_handler_whose_worker_has_no_database_to_share_gets_advice(shop: Shop) -> None:
    @shop.app.job
    async def pay(ctx: Context) -> None:
        async with ctx.transaction():
            pytest.fail("the block ran")

    completion = await shop.run(await shop.lease("pay"), shares=False)
    assert completion.error is not None
    assert "idempotency key" in completion.error


@proves("E11")
async def test_a_result_set_in_the_block_must_be_json_that_fits_into_the_database(shop: Shop) -> None:
    @shop.app.job
    async def pay(ctx: Context) -> None:
        with pytest.raises(RuntimeError, match="return the result"):
            ctx.set_result(1)
        async with ctx.transaction():
            with pytest.raises(TypeError):
                ctx.set_result(object())
            with pytest.raises(ValueError, match="bytes"):
                ctx.set_result("x" * 1_048_577)

    _, completion = await shop.run_one("pay")
    assert completion.state is State.SUCCEEDED, completion.error


@proves("E11")
async def test_jobs_enqueued_in_the_transaction_commit_or_roll_back_with_it(shop: Shop) -> None:
    @shop.app.job
    async def receipt(customer: int) -> None: ...

    @shop.app.job
    async def pay(ctx: Context) -> None:
        async with ctx.transaction() as connection, shop.app.transaction(connection):
            await receipt.enqueue(customer=7)
            if ctx.attempt == 1:
                raise RuntimeError("not yet")

    assignment, _ = await shop.run_one("pay")
    assert await shop.world.count("job_once") == 1
    [again] = await shop.worker.lease()
    await shop.run(again)
    assert again.leased.id == assignment.leased.id
    [next_one] = await shop.worker.lease()
    assert next_one.payload == b'{"customer":7}'


@proves("E11")
async def test_session_settings_of_a_handler_are_reset_before_ondot_uses_the_connection(shop: Shop) -> None:
    database = await open_database(settings_for(shop.world.url), connections=1)
    try:
        await database.read_clock()
        transactor = Transactor(database, shop.world.dispatcher, shop.worker.id)
        assignment = await shop.lease("pay")
        assert assignment.spec is not None
        async with transactor.opener(assignment, assignment.spec)(None) as opened:
            pid = await opened.connection.fetchval("SELECT pg_backend_pid()")
            await opened.connection.execute("SET search_path = nowhere; SET work_mem = '1MB'")
        async with database.connection() as connection:
            assert await connection.fetchval("SELECT pg_backend_pid()") == pid
            assert await connection.fetchval("SHOW search_path") != "nowhere"
            assert await connection.fetchval("SHOW plan_cache_mode") == "force_custom_plan"
    finally:
        await database.close()


@proves("E11", "L3")
async def test_handlers_hold_half_of_the_connections_and_ondot_has_the_others(shop: Shop) -> None:
    assignments = [await shop.lease("pay") for _ in range(10)]
    half = shop.world.database.pool.get_max_size() // 2
    inside = asyncio.Semaphore(0)
    go = asyncio.Event()

    async def pay(assignment: Assignment) -> None:
        async with shop.opened(assignment) as connection:
            await connection.execute(EFFECT)
            inside.release()
            await go.wait()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for assignment in assignments:
            group.create_task(pay(assignment))
        for _ in range(half):
            await inside.acquire()
        # No other handler gets a connection while ondot uses its own.
        assert await asyncio.gather(*(shop.effects() for _ in range(half))) == [0] * half
        assert inside.locked()
        go.set()
    assert await shop.effects() == 10
    assert set(await shop.world.states()) == {State.SUCCEEDED}


@proves("E11", "E13")
async def test_a_commit_frees_the_slots_of_the_attempt_and_wakes_the_pool(shop: Shop) -> None:
    limits = Limits(key="customer:7", key_concurrency=1)
    for _ in range(2):
        await shop.world.submit(job(target=FunctionTarget(name="pay"), limits=limits))
    [first] = await shop.worker.lease()
    async with shop.opened(first):
        assert await shop.worker.lease() == []
    assert await shop.world.count("slot") == 0
    assert shop.world.dispatcher._pending
    [second] = await shop.worker.lease()
    assert second.leased.id != first.leased.id
