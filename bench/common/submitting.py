"""A process that submits no-op jobs in batches of 1,000 until it is stopped, and never far ahead of the workers.

    python submitting.py URL        until SIGTERM; then it prints how many were acknowledged

It stays ahead by the work of three seconds, and by at least 10,000 jobs. It reads the progress of the workers from the
server's count of rows that entered history, at most a second old. That costs no scan: under an old snapshot, counting
the waiting rows would itself be the load.
"""

import asyncio
import signal
import sys
import time

from client import client

from ondot.model.job import JobSpec
from ondot.model.target import FunctionTarget

BATCH, AT_ONCE = 1_000, 2
AHEAD, AHEAD_S = 10_000, 3.0
LOOK_EVERY_S = 0.05
SPEC = JobSpec(name="nothing", target=FunctionTarget(name="nothing"))
ENDED = """
SELECT coalesce(sum(n_tup_ins), 0) FROM pg_stat_user_tables WHERE schemaname = 'ondot' AND relname LIKE 'history%'
"""


async def keep_submitting(url: str) -> int:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    submitted = ended = 0
    ahead, began_s = AHEAD, time.monotonic()
    async with client(url) as from_here:
        while not stop.is_set():
            if submitted - ended < ahead:
                await asyncio.gather(*(from_here.submit(SPEC, BATCH) for _ in range(AT_ONCE)))
                submitted += AT_ONCE * BATCH
                continue
            await asyncio.sleep(LOOK_EVERY_S)
            async with from_here.database.connection() as connection:
                ended = int(await connection.fetchval(ENDED))
            ahead = max(AHEAD, int(AHEAD_S * ended / (time.monotonic() - began_s)))
    return submitted


if __name__ == "__main__":
    print(asyncio.run(keep_submitting(sys.argv[1])), flush=True)
