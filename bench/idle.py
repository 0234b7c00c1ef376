"""What ondot costs with nothing to do: statements a second and share of a core, all roles and PostgreSQL together.

Statements are transactions counted by pg_stat_database, less those of the counting itself: every statement of the idle
loops commits by itself.
"""

import argparse
import asyncio
import json
import time

import asyncpg
from started import ondot_up


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 seconds instead of 120")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    watched_s = 20 if arguments.quick else 120
    with ondot_up() as started:
        time.sleep(8)
        before, cpu_before_s = asyncio.run(transactions(started.database_url)), started.cpu_s()
        began_s = time.monotonic()
        time.sleep(watched_s)
        took_s = time.monotonic() - began_s
        cpu_s = started.cpu_s() - cpu_before_s
        count = asyncio.run(transactions(started.database_url)) - before
        memory = started.memory_bytes()
    result = {
        "question": "idle",
        "statements_per_s": round(count / took_s, 2),
        "core_percent": round(100 * cpu_s / took_s, 2),
        "memory_mib": memory // 2**20,
    }
    if arguments.json:
        print(json.dumps(result))
    else:
        print(
            f"idle: {result['statements_per_s']} statements/s, {result['core_percent']} % of a core,"
            f" {result['memory_mib']} MiB, all roles and PostgreSQL together"
        )


if __name__ == "__main__":
    main()
