"""A process that rewrites days and is killed inside one step, after its statement and before its commit.

python -m tests.flow.killed_rewriting URL DAYS start_copy|copy_some|swap_copy
"""

import asyncio
import os
import signal
import sys
from typing import Any

from ondot.flow.history import rewrite
from ondot.store.database import open_database
from tests.servers import settings_for


async def run(url: str, days: int, step: str) -> None:
    original = getattr(rewrite, step)

    async def run_and_die(*arguments: Any, **named: Any) -> None:
        await original(*arguments, **named)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(rewrite, step, run_and_die)
    database = await open_database(settings_for(url, retention_days=days))
    await database.read_clock()
    rewriting = rewrite.Rewriting(database)
    while await rewriting.one_pass():
        pass


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
