"""How many jobs per second are accepted: over HTTP, by the SDK, and inside the caller's own transaction.

Each job calls a function, is due now and has a payload of one field; the jobs differ only in that. A job is stored with
its execution and its place in the queue, and counted once it is acknowledged, which is after COMMIT (`fsync` and
`synchronous_commit` on). The load, one API process and PostgreSQL share the machine; no worker runs the jobs.

- *per_s*: `POST /v1/jobs/batch` with 1,000 jobs, by 4 clients on a connection each. *bare_per_s*: the same rows by the
  same statement through asyncpg, their arguments made before, on as many connections; rounds of both take turns, and
  *ratio* is the median of the first ÷ that of the second.
- *single_per_s*: `POST /v1/jobs` by 50 clients on a connection each. Both send requests that were made before, and only
  count the bytes of the answers, so that the measurement is of the server.
- *sdk_per_s*: `handler.enqueue`, 50 at a time; *sdk_batch_per_s*: `handler.enqueue_many` of 1,000, 2 at a time. The
  client's work counts here too: the SDK sends every request with an idempotency key, and parses the answers.
- *transaction_per_s*: `handler.enqueue` in `app.transaction(connection)`, one after another, 100 in a transaction, on 4
  connections; *transaction_batch_per_s*: `enqueue_many` of 1,000, one in a transaction; *enqueue_sql_per_s*:
  `SELECT ondot.enqueue(…)`, 100 in a transaction.

Every answer must be a 201, and at the end the database must hold each acknowledged job once, with its execution and its
row in the queue, and no other. *cpu_us*: processor time by kind of process for each job; `load` is this process.
"""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parent / "common")  # not this directory: its http.py would hide the library's

import asyncio
import resource
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import msgspec
import uvloop
from fleet import Fleet, fleet
from question import Result, ask, say

from ondot import Ondot
from ondot.model.ids import DEFAULT_TENANT, JobId
from ondot.model.job import JobSpec, fill_in_schedule
from ondot.model.target import FunctionTarget
from ondot.settings import load_settings
from ondot.store.database import open_database
from ondot.store.jobs import NewOnceJob, insert_once_jobs

BATCH, BATCH_CLIENTS, SINGLE_CLIENTS = 1_000, 4, 50
SDK_AT_ONCE, SDK_BATCHES_AT_ONCE = 50, 2
IN_A_TRANSACTION, CONNECTIONS = 100, 4
ROUNDS = 3
WARM_S = 0.3
ENQUEUE = "SELECT ondot.enqueue('invoice', $1::text::jsonb)"

Once = Callable[[], Awaitable[int]]
"""One request or transaction; returns how many jobs it made."""
Statement = tuple[str, tuple[Any, ...]]


async def invoice(customer: int) -> None:
    """Never run here."""


class Http(asyncio.Protocol):
    """One connection that is kept; it reads only where an answer ends."""

    def __init__(self) -> None:
        self._answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._head = b""
        self._left = -1

    @classmethod
    async def open(cls, url: str) -> "Http":
        host, _, port = url.removeprefix("http://").partition(":")
        _, protocol = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        return protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport  # uvloop's has the methods of a transport, but not its type

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = self._head[:end].lower(), self._head[end + 4 :]
            if not head.startswith(b"http/1.1 201"):
                self._fail(RuntimeError(f"refused: {self._head[:2000]!r}"))
                return
            self._left = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
            self._head = b""
        self._left -= len(data)
        if self._left == 0:
            self._left = -1
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or RuntimeError("the API closed a connection"))

    def _fail(self, error: Exception) -> None:
        if not self._answered.done():
            self._answered.set_exception(error)

    async def send(self, request: bytes) -> None:
        self._answered = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        await self._answered


class Recorder:
    """Takes the place of a connection, and records the statements."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []

    async def execute(self, statement: str, *arguments: Any) -> None:
        self.statements.append((statement, arguments))

    async def fetch(self, statement: str, *arguments: Any) -> list[Any]:
        self.statements.append((statement, arguments))
        return []

    async def fetchval(self, statement: str, *arguments: Any) -> None:
        self.statements.append((statement, arguments))


class Bench:
    def __init__(self, made: Fleet, url: str, for_s: float) -> None:
        self.fleet = made
        self.url = url
        self.for_s = for_s
        self.made = 0
        self.app = Ondot(url)
        self.invoice = self.app.job(invoice)
        self.cpu_us: dict[str, dict[str, float]] = {}

    async def rate(self, name: str, doing: Sequence[Once]) -> float:
        """Jobs per second, with each of these repeated, all at once; first a moment to open and prepare."""
        self.made += (await for_a_while(WARM_S, doing))[0]
        before = self.cpu_s()
        made, took_s = await for_a_while(self.for_s, doing)
        spent = {kind: cpu_s - before.get(kind, 0.0) for kind, cpu_s in self.cpu_s().items()}
        self.cpu_us[name] = {kind: round(cpu_s / made * 1e6, 1) for kind, cpu_s in sorted(spent.items())}
        self.made += made
        say(f"{name}: {made / took_s:,.0f}/s")
        return made / took_s

    def cpu_s(self) -> dict[str, float]:
        own = resource.getrusage(resource.RUSAGE_SELF)
        return self.fleet.cpu_s() | {"load": own.ru_utime + own.ru_stime}

    # Over HTTP.

    async def batches(self) -> float:
        body = ",".join(job_text(number) for number in range(BATCH))
        return await self._requests("batch", BATCH_CLIENTS, request_of("/v1/jobs/batch", f'{{"jobs":[{body}]}}'), BATCH)

    async def singles(self) -> float:
        return await self._requests("single", SINGLE_CLIENTS, request_of("/v1/jobs", job_text(1)), 1)

    async def _requests(self, name: str, clients: int, request: bytes, jobs: int) -> float:
        connections = [await Http.open(self.url) for _ in range(clients)]

        def sending(connection: Http) -> Once:
            async def once() -> int:
                await connection.send(request)
                return jobs

            return once

        try:
            return await self.rate(name, [sending(connection) for connection in connections])
        finally:
            for connection in connections:
                connection.transport.close()

    # The same rows with nothing around them.

    async def bare(self, batches: int) -> float:
        prepared = await self._prepared(batches)
        async with opened(self.fleet) as connections:
            for connection in connections:
                statement, arguments = prepared.pop()
                await connection.execute(statement, *arguments)

            async def insert(connection: Any) -> None:
                while prepared:
                    statement, arguments = prepared.pop()
                    await connection.execute(statement, *arguments)

            left, began_s = len(prepared), time.perf_counter()
            await asyncio.gather(*(insert(connection) for connection in connections))
            took_s = time.perf_counter() - began_s
        self.made += batches * BATCH
        say(f"bare: {left * BATCH / took_s:,.0f}/s")
        return left * BATCH / took_s

    async def _prepared(self, batches: int) -> list[Statement]:
        """The real statement with its arguments for this many batches, as the store makes them."""
        recorder: Any = Recorder()
        database = await open_database(load_settings(database_url=self.fleet.url))
        await database.read_clock()
        async with database.connection() as connection:
            pool_no = (await database.pools.numbers(connection, DEFAULT_TENANT, ["default"]))["default"]
        for _ in range(batches):
            now, ids = database.clock.now(), database.clock.new_ids(2 * BATCH)
            jobs = [
                NewOnceJob(JobId(id_), spec_of(number, JobId(id_), now), pool_no, now, now, execution_id)
                for number, (id_, execution_id) in enumerate(zip(ids[:BATCH], ids[BATCH:], strict=True))
            ]
            await insert_once_jobs(recorder, DEFAULT_TENANT, jobs)
        await database.close()
        statements: list[Statement] = recorder.statements
        if len(statements) != batches:
            raise RuntimeError("a batch is no longer one statement: the bare rate would not be of the same work")
        return statements

    # By the SDK.

    async def sdk(self) -> float:
        async def once() -> int:
            await self.invoice.enqueue(customer=1)
            return 1

        return await self.rate("sdk", [once] * SDK_AT_ONCE)

    async def sdk_batches(self) -> float:
        async def once() -> int:
            return len(await self.invoice.enqueue_many(self.invoice.args(number) for number in range(BATCH)))

        return await self.rate("sdk_batch", [once] * SDK_BATCHES_AT_ONCE)

    # In the caller's transaction.

    async def transactions(self) -> float:
        async def fill(_: Any) -> int:
            for number in range(IN_A_TRANSACTION):
                await self.invoice.enqueue(customer=number)
            return IN_A_TRANSACTION

        return await self._in_transactions("transaction", fill)

    async def transaction_batches(self) -> float:
        async def fill(_: Any) -> int:
            return len(await self.invoice.enqueue_many(self.invoice.args(number) for number in range(BATCH)))

        return await self._in_transactions("transaction_batch", fill)

    async def enqueue_sql(self) -> float:
        async def fill(connection: Any) -> int:
            for number in range(IN_A_TRANSACTION):
                await connection.fetchval(ENQUEUE, f'{{"customer":{number}}}')
            return IN_A_TRANSACTION

        return await self._in_transactions("enqueue_sql", fill)

    async def _in_transactions(self, name: str, fill: Callable[[Any], Awaitable[int]]) -> float:
        async with opened(self.fleet) as connections:

            def filling(connection: Any) -> Once:
                async def once() -> int:
                    async with connection.transaction(), self.app.transaction(connection):
                        return await fill(connection)

                return once

            return await self.rate(name, [filling(connection) for connection in connections])

    async def check(self) -> None:
        connection = await self.fleet.connect()
        for table in ("job_once", "execution", "ready"):
            count = await connection.fetchval(f"SELECT count(*) FROM ondot.{table}")
            if count != self.made:
                raise RuntimeError(f"{self.made:,} jobs were acknowledged, but {table} has {count:,} rows")
        await connection.close()


@asynccontextmanager
async def opened(made: Fleet) -> Any:
    connections = [await made.connect() for _ in range(CONNECTIONS)]
    try:
        yield connections
    finally:
        for connection in connections:
            await connection.close()


async def for_a_while(seconds: float, doing: Sequence[Once]) -> tuple[int, float]:
    """How many jobs were made, and how long it took until the last of them was acknowledged."""
    began_s = time.perf_counter()

    async def again(once: Once) -> int:
        made = 0
        while time.perf_counter() - began_s < seconds:
            made += await once()
        return made

    made = sum(await asyncio.gather(*(again(once) for once in doing)))
    return made, time.perf_counter() - began_s


def request_of(path: str, body: str) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return f"{head}\r\n\r\n{body}".encode()


def job_text(number: int) -> str:
    """What the SDK would send."""
    return f'{{"name":"invoice","target":{{"function":"invoice"}},"payload":{{"customer":{number}}}}}'


def spec_of(number: int, job_id: JobId, now: datetime) -> JobSpec:
    payload = msgspec.Raw(f'{{"customer":{number}}}'.encode())
    return fill_in_schedule(
        JobSpec(name="invoice", target=FunctionTarget(name="invoice"), payload=payload), job_id, now
    )


def question(quick: bool) -> Result:
    for_s, bare_batches = (1.5, 30) if quick else (15.0, 400)
    with fleet() as made:
        bench = Bench(made, made.api(), for_s)
        return uvloop.run(measure(bench, bare_batches, 1 if quick else ROUNDS))


async def measure(bench: Bench, bare_batches: int, rounds: int) -> Result:
    bare, batches = [], []
    for _ in range(rounds):
        bare.append(await bench.bare(bare_batches))
        batches.append(await bench.batches())
    per_s, bare_per_s = statistics.median(batches), statistics.median(bare)
    result: Result = {
        "question": "submit",
        "per_s": round(per_s),
        "ratio": round(per_s / bare_per_s, 3),
        "bare_per_s": round(bare_per_s),
        "single_per_s": round(await bench.singles()),
        "sdk_per_s": round(await bench.sdk()),
        "sdk_batch_per_s": round(await bench.sdk_batches()),
        "transaction_per_s": round(await bench.transactions()),
        "transaction_batch_per_s": round(await bench.transaction_batches()),
        "enqueue_sql_per_s": round(await bench.enqueue_sql()),
    }
    await bench.app.close()
    await bench.check()
    return result | {"jobs": bench.made, "cpu_us": bench.cpu_us}


if __name__ == "__main__":
    ask(question, full="15 s for each", quick="1.5 s for each")
