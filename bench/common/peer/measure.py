"""One peer measured on real worker processes; all figures come from the marks of its jobs.

In this order, on workers that have run some hundred jobs:
- *start*: one job each 20 ms on idle workers; from just before it is enqueued to its mark.
- *lifecycle*: N jobs enqueued while the workers run; N ÷ (from the first enqueue to the last done).
- *enqueue* and *drain*: N jobs enqueued while the workers are halted (SIGSTOP); then N ÷ (from when they go on to the
  last done), so that the rate excludes start-up and the producer.

A job is done when it has its mark; on PostgreSQL its end must be stored, too. N is scaled to the peer's own speed,
found by growing bursts. Everything has a deadline. A job that is lost or runs twice makes the run invalid.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
from question import quantile

from peer import PROCESSES, Peer, Put, marks
from peer.workers import Workers, family, processor_s

Figures = dict[str, float]

LOOK_EACH_S = 0.005
FIRST_BURST, LARGEST = 100, 400_000


@dataclass(frozen=True, slots=True)
class Look:
    """The extent of a measurement: `work_s` of lifecycles, `singles` jobs one by one each `each_s`.

    `ready_s`: the limit for the second process after the first; `whole_s`: the limit for everything.
    """

    work_s: float
    singles: int
    ready_s: float
    whole_s: float
    each_s: float = 0.02


QUICK = Look(work_s=0.3, singles=15, ready_s=1.5, whole_s=9.0)
FULL = Look(work_s=5.0, singles=150, ready_s=5.0, whole_s=180.0)


class Measured:
    """The figures of one peer on workers that were just started. `server`: the server process that they use."""

    def __init__(self, peer: Peer, workers: Workers, server: psutil.Process | None, look: Look) -> None:
        self._peer, self._workers, self._server, self._look = peer, workers, server, look
        self._next = 0

    async def all(self) -> Figures:
        try:
            async with asyncio.timeout(self._look.whole_s), self._peer.producer() as put:
                figures = await self._phases(put)
        except TimeoutError:
            begun = f"{marks.count(self._workers.marks)} of {self._next} jobs started in {self._look.whole_s:g} s."
            raise RuntimeError(f"{begun} {self._workers.trouble()}".strip()) from None
        self._check()
        return figures

    async def _phases(self, put: Put) -> Figures:
        await self._warm(put)
        figures = await self._starts(put)
        figures |= await self._lifecycles(put)
        return figures | await self._backlog(put, int(figures["jobs"]))

    async def _warm(self, put: Put) -> None:
        """Run jobs until every process has run one."""
        await put(self._numbers(1))
        await self._done()
        deadline_s = time.monotonic() + self._look.ready_s
        while marks.processes(self._workers.marks) < PROCESSES and time.monotonic() < deadline_s:
            await put(self._numbers(FIRST_BURST // 4))
            await self._done()

    async def _starts(self, put: Put) -> Figures:
        asked: dict[int, int] = {}
        due_s = time.monotonic()
        for number in self._numbers(self._look.singles):
            due_s = max(due_s + self._look.each_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
            asked[number] = time.time_ns()
            await put([number])
        await self._done()
        began = dict(marks.read(self._workers.marks))
        waits_ms = sorted((began[number] - asked_ns) / 1e6 for number, asked_ns in asked.items())
        return {"start_p50_ms": quantile(waits_ms, 0.5), "start_p99_ms": quantile(waits_ms, 0.99)}

    async def _lifecycles(self, put: Put) -> Figures:
        """Growing bursts until one takes long enough: only that one counts, the others find its size."""
        count = FIRST_BURST
        while True:
            numbers = self._numbers(count)
            cpu_before_s, began_ns = self._cpu_s(), time.time_ns()
            await put(numbers)
            took_s = (await self._done() - began_ns) / 1e9
            cpu_s = self._cpu_s() - cpu_before_s
            if took_s >= 0.7 * self._look.work_s or count >= LARGEST:
                return {"lifecycle_per_s": count / took_s, "cpu_us": cpu_s / count * 1e6, "jobs": count}
            count = min(max(3 * count // 2, int(count * self._look.work_s / took_s)), LARGEST)

    async def _backlog(self, put: Put, count: int) -> Figures:
        self._workers.halt()
        try:
            numbers = self._numbers(count)
            began_s = time.monotonic()
            await put(numbers)
            enqueued_s = time.monotonic() - began_s
        finally:
            went_on_ns = time.time_ns()
            self._workers.go_on()
        drained_s = (await self._done() - went_on_ns) / 1e9
        return {"enqueue_per_s": count / enqueued_s, "drain_per_s": count / drained_s}

    def _numbers(self, count: int) -> Sequence[int]:
        self._next += count
        return range(self._next - count, self._next)

    async def _done(self) -> int:
        """Wait for all enqueued jobs; return the instant of the last one (ns)."""
        while marks.count(self._workers.marks) < self._next:
            self._workers.check()
            await asyncio.sleep(LOOK_EACH_S)
        if self._peer.SERVER == "redis":
            return marks.last(self._workers.marks)
        while await self._peer.unfinished():
            await asyncio.sleep(LOOK_EACH_S)
        return time.time_ns()

    def _cpu_s(self) -> float:
        """Of workers, server and this process, which produces."""
        servers = [] if self._server is None else family(self._server)
        return processor_s([*self._workers.family(), *servers, psutil.Process()])

    def _check(self) -> None:
        begun = sorted(number for number, _ in marks.read(self._workers.marks))
        if begun != list(range(self._next)):
            lost, doubled = self._next - len(set(begun)), len(begun) - len(set(begun))
            raise RuntimeError(f"invalid run: {lost} jobs were lost and {doubled} ran twice")
