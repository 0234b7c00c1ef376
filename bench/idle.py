"""What ondot costs when idle: statements per second and share of a core, all roles and PostgreSQL together.

Statements are transactions counted by pg_stat_database, without those of the counting itself: every statement of the
idle loops commits by itself. A whole `ondot up` (API, scheduler, worker, embedded PostgreSQL with fsync and
synchronous_commit on) is watched for two minutes (20 seconds with --quick), after 8 seconds in which it settles.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import time

import asyncpg
from question import Result, ask
from started import ondot_up

SETTLE_S = 8


async def transactions(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("SELECT pg_stat_force_next_flush()")
        return int(
            await connection.fetchval(
                "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
            )
        )
    finally:
        await connection.close()


def idle(quick: bool) -> Result:
    with ondot_up() as started:
        time.sleep(SETTLE_S)
        before, cpu_before_s = asyncio.run(transactions(started.database_url)), started.cpu_s()
        began_s = time.monotonic()
        time.sleep(20 if quick else 120)
        took_s = time.monotonic() - began_s
        cpu_s = started.cpu_s() - cpu_before_s
        count = asyncio.run(transactions(started.database_url)) - before
        memory = started.memory_bytes()
    return {
        "question": "idle",
        "statements_per_s": round(count / took_s, 2),
        "core_percent": round(100 * cpu_s / took_s, 2),
        "memory_mib": memory // 2**20,
    }


if __name__ == "__main__":
    ask(idle, full="two minutes", quick="20 seconds")
