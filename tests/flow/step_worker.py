"""A worker in a process of its own that does one thing for each line that it reads: `lease N`, `complete`, `advance`.

It answers each line with one of its own. `finish` completes and then advances, as workers do.
"""

import asyncio
import sys

from ondot.flow.complete import Completer, Done
from ondot.flow.dispatch import Dispatcher
from ondot.flow.lease import Assignment, Leaser
from ondot.flow.workflows.advance import advance_run
from ondot.model.completion import succeed
from ondot.model.ids import WorkerId
from ondot.store.database import open_database
from ondot.store.workers import register_worker
from ondot.transports.polling import PollingTransport
from tests.servers import settings_for
from tests.world import DEFAULT_POOL


async def main(url: str) -> None:
    database = await open_database(settings_for(url))
    async with database.connection() as connection:
        database.clock.freeze(await connection.fetchval("SELECT ondot.clock()"))
        worker_id = WorkerId(database.clock.new_id())
        await register_worker(
            connection, worker_id, host="here", pid=1, release="0", pool_nos=[DEFAULT_POOL], slots=100
        )
    dispatcher = Dispatcher(PollingTransport())
    leaser = Leaser(database, worker_id, [DEFAULT_POOL])
    completer = Completer(database, dispatcher, worker_id)
    leased: list[Assignment] = []
    while line := await asyncio.to_thread(sys.stdin.readline):
        match line.split():
            case ["lease", count]:
                batch = await leaser.one_pass(int(count))
                leaser.acknowledge()
                leased = batch.assignments
                _answer(str(len(leased)))
            case [what]:
                if what in {"complete", "finish"}:
                    completion = [succeed(each.leased, has_more_at_end=True) for each in leased]
                    await completer.write(
                        [Done(done, each.lease_id) for done, each in zip(completion, leased, strict=True)]
                    )
                if what in {"advance", "finish"}:
                    for run_id in {each.leased.job_id for each in leased}:
                        await advance_run(database, dispatcher, run_id)
                _answer(what)


def _answer(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
