"""What a lease costs with much waiting, and with many tenants waiting.

One database for each case, all on one PostgreSQL (fsync and synchronous_commit on): 1,000, 100,000 and 10 million
executions due and waiting for one tenant; 100,000 waiting for 10 and for 1,000 tenants, evenly (--quick: 1,000 and
50,000). They are loaded by SQL, as executions of 1,000 jobs with their places in the queue, vacuumed and analysed;
caches are as that leaves them. There is no checkpoint during the run: rows that have waited for long would pay for the
image of each page that is first touched after it, and new rows would not. A worker's Leaser then leases batches of
1,000, ten passes in a row in each database by turns, so that other load of the machine affects all of them. The case of
1,000 is filled up again before each pass, outside the measurement.

A pass is everything from free slots to assignments that can be run: survey, lease, definitions of the jobs.
*cost_us* of each case, for each leased execution, the median of its turns: processor time of the server's backend (by
the kernel's count) and of the client; *pass_ms*: the median duration of a pass. *ratio*: cost with the most waiting ÷
with 1,000; *tenants_ratio*: cost with 1,000 tenants ÷ with one, both with the same number waiting. *server_ratio* and
*tenants_server_ratio*: the same of the server alone.

Every pass must return its whole batch, nothing twice, and leased executions must be RUNNING, under one lease per pass.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

from fleet import Fleet, fleet
from lease_cost import BATCH, IN_A_ROW, make_databases, open_case
from question import Result, ask


async def measure(made: Fleet, depths: list[int], tenants: list[int], with_tenants: int, rounds: int) -> Result:
    wanted = {f"waiting_{depth}": (depth, 1) for depth in depths}
    wanted |= {f"tenants_{count}": (with_tenants, count) for count in tenants if count > 1}
    await make_databases(made, list(wanted))
    async with AsyncExitStack() as stack:
        cases = [await open_case(stack, made, name, *numbers) for name, numbers in wanted.items()]
        for n in range(rounds + 1):
            for case in cases:
                await case.turn()
                if n == 0:
                    case.forget()
        for case in cases:
            await case.check()
    found = {case.name: case.result() for case in cases}
    alone, many = f"waiting_{with_tenants}", f"tenants_{tenants[-1]}"
    least, most = f"waiting_{depths[0]}", f"waiting_{depths[-1]}"
    figures: dict[str, Any] = {
        "question": "backlog",
        "ratio": ratio(found[most]["all"], found[least]["all"]),
        "tenants_ratio": ratio(found[many]["all"], found[alone]["all"]),
        "server_ratio": ratio(found[most]["server"], found[least]["server"]),
        "tenants_server_ratio": ratio(found[many]["server"], found[alone]["server"]),
        "batch": BATCH,
        "passes": rounds * IN_A_ROW,
    }
    return (
        figures
        | {f"cost_us {name}": each for name, each in found.items()}
        | {"pass_ms": {case.name: round(median(case.took_s) * 1e3, 1) for case in cases}}
    )


def ratio(these: float, those: float) -> float:
    return round(these / those, 3)


def backlog(quick: bool) -> Result:
    depths = [1_000, 50_000] if quick else [1_000, 100_000, 10_000_000]
    with_tenants, rounds = depths[1], 3 if quick else 7
    with fleet(checkpoint_timeout="1d", max_wal_size="32GB") as made:
        return asyncio.run(measure(made, depths, [1, 10, 1_000], with_tenants, rounds))


if __name__ == "__main__":
    ask(backlog, full="up to 10 million waiting", quick="up to 50,000 waiting")
