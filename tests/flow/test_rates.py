"""Rates: each start takes a token of every rate that holds for it."""

import asyncio
import random
from collections import defaultdict
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ondot.flow.gate import Tidying
from ondot.flow.pools import PoolLimits, set_limits
from ondot.flow.retain import sweep_pass
from ondot.model.gates import Limits, Rate, gate_id, list_stages, rate_gate
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.job import JobSpec
from ondot.store.audit import By
from ondot.store.sql_functions import functions
from tests.proves import proves
from tests.world import Worker, World, every, job

A_TENTH = Rate(limit=1, per_s=10)
SLOW, FAST = Rate(limit=1, per_s=3600), Rate(limit=100, per_s=1)


def by_key(name: str, key_rate: Rate, **limits: Any) -> JobSpec:
    return job(name, limits=Limits(key="k", key_rate=key_rate, **limits))


async def names(worker: Worker, slots: int = 100) -> list[str]:
    return [one.spec.name for one in await worker.lease(slots) if one.spec]


async def change(world: World, job_id: JobId, rate: Rate) -> None:
    spec = job("changed", schedule=every(3600, world.now), limits=Limits(rate=rate))
    await world.update(job_id, spec)


def exceeded(instants: list[datetime], rate: Rate) -> list[tuple[datetime, datetime, int]]:
    """The windows in which more started than the rate allows: `burst`, or the tokens of 50 ms, and then its pace."""
    instants = sorted(instants)
    at_once = max(rate.burst, int(0.05 / rate.every_s))
    return [
        (first, last, count)
        for begin, first in enumerate(instants)
        for count, last in enumerate(instants[begin:], 1)
        if count > at_once + (last - first).total_seconds() / rate.every_s + 1e-6
    ]


@proves("E13", "P11")
@pytest.mark.parametrize("turn", range(4))
async def test_the_rate_of_a_key_holds_for_jobs_that_also_have_a_rate_of_their_own(world: World, turn: int) -> None:
    """For either order of the gates. Their ids are random, so about half of the cases have each order."""
    own = Rate(limit=1 + turn, per_s=1 + turn)
    await world.submit_all([by_key("both", A_TENTH, rate=own), by_key("key", A_TENTH)] * 3)
    worker = await world.worker()
    for _ in range(3):
        assert len(await worker.lease()) == 1
        assert await worker.lease() == []
        await world.advance(9.9)
        assert await worker.lease() == []
        await world.advance(0.1)


@proves("E13", "P11", "L6")
async def test_jobs_that_name_one_key_with_different_rates_each_keep_their_own(world: World) -> None:
    worker = await world.worker()
    started: dict[str, list[datetime]] = defaultdict(list)
    for _ in range(20):
        await world.submit_all([by_key("slow", SLOW), by_key("fast", FAST)])
        for _ in range(2):
            for name in await names(worker):
                started[name].append(world.now)
            await world.advance(0.05)
    assert (len(started["slow"]), len(started["fast"])) == (1, 20)
    await world.advance(3600)
    assert await names(worker) == ["slow"]


@proves("E13", "P11")
@pytest.mark.parametrize("seed", range(3))
async def test_no_rate_is_exceeded_by_many_workers_in_any_window(world: World, seed: int) -> None:
    mix = random.Random(seed)
    rates = [Rate(limit=1, per_s=1), Rate(limit=2, per_s=3, burst=2), Rate(limit=1, per_s=5), Rate(limit=30, per_s=1)]
    picked: list[Limits] = []
    recurring = []
    for _ in range(8):
        limits = Limits(
            key=mix.choice("ab"),
            key_rate=mix.choice(rates),
            rate=mix.choice([None, *rates]),
            key_concurrency=mix.choice([None, 3]),
        )
        picked.append(limits)
        accepted = await world.submit(job(schedule=every(86_400, world.now), limits=limits))
        recurring.append(accepted.id)
    for job_id in recurring * 4:
        await world.run_now(job_id)
    workers = [await world.worker() for _ in range(3)]
    starts: dict[tuple[object, Rate], list[datetime]] = defaultdict(list)

    async def work(worker: Worker) -> None:
        for assignment in await worker.lease(mix.randint(1, 5)):
            limits = picked[recurring.index(assignment.leased.job_id)]
            instant = datetime.fromtimestamp(assignment.leased.started_s, world.now.tzinfo)
            for of, rate in ((limits.key, limits.key_rate), (assignment.leased.job_id, limits.rate)):
                if rate is not None:
                    starts[of, rate].append(instant)
            await worker.complete(assignment)

    for turn in range(60):
        if not await world.count("execution WHERE state <> 'SUCCEEDED' AND origin <> 'fire'"):
            break
        await asyncio.gather(*(work(worker) for worker in workers))
        if turn % 10 == 0:
            await Tidying(world.database).one_pass()
        await world.advance(mix.choice([0.02, 0.3, 1, 4]))
    assert sum(len(instants) for instants in starts.values()) >= len(recurring) * 4
    assert {name: found for name, instants in starts.items() if (found := exceeded(instants, name[1]))} == {}


@proves("E13", "C3", "P11")
@pytest.mark.parametrize("back_s", [5, 3600])
async def test_a_rate_holds_and_continues_after_the_clock_was_set_back(world: World, back_s: float) -> None:
    both = by_key("both", A_TENTH, rate=Rate(limit=1, per_s=8))
    await world.submit_all([both, by_key("key", A_TENTH), both])
    worker = await world.worker()
    assert len(await worker.lease()) == 1
    await world.advance(-back_s)
    await world.submit(by_key("key", A_TENTH))
    started = []
    for second in range(11):
        # As housekeeping does: it calls lines that wait by the clock from before.
        await Tidying(world.database).one_pass()
        started += [second for _ in await worker.lease()]
        await world.advance(1)
    assert started == [10]


@proves("E13", "C3", "P11")
async def test_the_rate_of_a_pool_holds_and_continues_after_the_clock_was_set_back(world: World) -> None:
    limits = PoolLimits(None, Rate(limit=1, per_s=10))
    await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", limits, by=By("ops"))
    await world.submit_all([job(), job()])
    worker = await world.worker()
    assert len(await worker.lease()) == 1
    await world.advance(-3600)
    await world.submit(job())
    started = []
    for second in range(11):
        # As housekeeping does: new rows are below the bound that this worker has from before.
        await worker.beat()
        await sweep_pass(world.database, world.dispatcher)
        started += [second for _ in await worker.lease()]
        await world.advance(1)
    assert started == [10]


@proves("E13", "P11", "S8")
@pytest.mark.parametrize(("rate", "after_s"), [(Rate(limit=1, per_s=20), 15), (Rate(limit=1, per_s=4), 3)])
async def test_setting_another_rate_lets_nothing_start_at_once(world: World, rate: Rate, after_s: float) -> None:
    """After a quarter of the old bucket's length, the new one lacks three quarters of a token."""
    accepted = await world.submit(job(schedule=every(3600, world.now), limits=Limits(rate=A_TENTH)))
    worker = await world.worker()
    for _ in range(3):
        await world.run_now(accepted.id)
    [first] = await worker.lease()
    await world.advance(2.5)
    await change(world, accepted.id, rate)
    await world.advance(after_s - 0.1)
    assert await worker.lease() == []
    await world.advance(0.1)
    assert len(await worker.lease()) == 1
    await worker.complete(first)


@proves("E13", "P11")
async def test_setting_another_limit_of_a_pool_lets_nothing_start_at_once(world: World) -> None:
    async def limit(concurrency: int | None, rate: Rate | None) -> None:
        limits = PoolLimits(concurrency, rate)
        await set_limits(world.database, world.dispatcher, DEFAULT_TENANT, "default", limits, by=By("ops"))

    await limit(None, A_TENTH)
    await world.submit_all([job() for _ in range(4)])
    worker = await world.worker()
    assert len(await worker.lease()) == 1
    await limit(5, A_TENTH)
    assert await worker.lease() == []
    await limit(5, Rate(limit=1, per_s=2))
    assert await worker.lease() == []
    await world.advance(2)
    assert len(await worker.lease()) == 1


OLD_STAGES = """
    UPDATE ondot.gated SET stages = (
        SELECT jsonb_agg(CASE WHEN s ? 'of' THEN s - 'of' || jsonb_build_object('gate', s->'of') ELSE s END ORDER BY no)
        FROM jsonb_array_elements(stages) WITH ORDINALITY AS e(s, no))
"""


@proves("E13", "O9", "P11")
async def test_tokens_taken_before_the_upgrade_count_after_it(world: World) -> None:
    """All rates of a key had one gate, and executions planned by a role of the release before still name it."""
    [by_gates] = [function.sql for function in functions() if function.name == "name_rates"]
    await world.submit_all([by_key("slow", SLOW), by_key("slow", SLOW), by_key("fast", FAST)])
    async with world.second_connection() as connection:
        await connection.execute("ALTER TABLE ondot.gated DISABLE TRIGGER gated_rates")
        await connection.execute(OLD_STAGES)
        await connection.execute("ALTER TABLE ondot.gated ENABLE TRIGGER gated_rates")
        await connection.execute("DELETE FROM ondot.gate WHERE id NOT IN (SELECT gate_id FROM ondot.waiting)")
        assert await connection.fetchval("SELECT count(DISTINCT gate_id) FROM ondot.waiting") == 1
        await connection.execute("UPDATE ondot.gate SET token_at = ondot.clock() + interval '30 minutes'")
        await connection.execute(by_gates[by_gates.index("UPDATE ondot.gated SET stages = stages") :])
    worker = await world.worker()
    await world.advance(0.01)
    assert await names(worker) == ["fast"]
    await world.submit(by_key("slow", SLOW))
    await world.value(OLD_STAGES)  # as written by a role of the release before: the trigger names the gates
    await world.advance(1799)
    assert await names(worker) == []
    await world.advance(1)
    assert await names(worker) == ["slow"]
    await world.advance(3599)
    assert await names(worker) == []
    await world.advance(1)
    assert await names(worker) == ["slow"]


rates = st.builds(
    lambda limit, per_s, burst: Rate(limit=limit, per_s=per_s, burst=min(limit, burst)),
    st.integers(1, 1_000_000),
    st.one_of(st.integers(1, 30 * 86_400), st.floats(1, 30 * 86_400, allow_subnormal=False)),
    st.integers(1, 1_000),
)


@proves("E13")
@given(st.lists(rates, min_size=2, max_size=10))
def test_each_distinct_rate_has_a_gate_of_its_own(several: list[Rate]) -> None:
    of = gate_id(DEFAULT_TENANT, "rate", "key:k")
    paces = {(round(rate.every_s * 1e9), rate.burst) for rate in several}
    assert len({rate_gate(of, rate) for rate in several}) == len(paces)


@proves("E13", "O9")
async def test_the_database_names_the_gate_of_a_rate_as_python_does(world: World) -> None:
    mix = random.Random(1)
    several = [
        Rate(limit=mix.randint(1, 10**6), per_s=mix.uniform(1, 10**6), burst=mix.randint(1, 9)) for _ in range(999)
    ]
    several += [
        Rate(limit=1, per_s=1),
        Rate(limit=1_000_000, per_s=1),
        Rate(limit=3, per_s=1),
        Rate(limit=7, per_s=86_400),
    ]
    of = gate_id(DEFAULT_TENANT, "rate", "key:k")
    rows = await world.fetch(
        "SELECT ondot.rate_gate($1, r.every_s, r.burst) AS gate FROM unnest($2::double precision[], $3::integer[])"
        " WITH ORDINALITY AS r(every_s, burst, no) ORDER BY no",
        of,
        [rate.every_s for rate in several],
        [rate.burst for rate in several],
    )
    assert [row["gate"] for row in rows] == [rate_gate(of, rate) for rate in several]
    [stage] = list_stages(Limits(key="k", key_rate=several[0]), DEFAULT_TENANT, JobId(of))
    assert stage.gate == rows[0]["gate"]
