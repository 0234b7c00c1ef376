"""Both ends of alerts in a fault run: the target of the jobs that alerts watch, and the channels that get the messages.

It is not ondot, and each call, message and answer is a line of its books, flushed at once: they are the truth. A job
gets a 500 while its mood is bad. Channels are in trouble at times, all of them: they answer 500, hang and then hang up,
or are away: then every connection is reset before a byte was read.
"""

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal

from aiohttp import web

Trouble = Literal["error", "hang", "away"]
TROUBLES: tuple[Trouble, ...] = ("error", "hang", "away")
FOR_EVER = 1_000_000_000


@dataclass(frozen=True, slots=True)
class JobCall:
    job: str
    at_s: float
    status: int


@dataclass(frozen=True, slots=True)
class Arrival:
    """One try of a message; `status` None: it was never answered."""

    id: str
    attempt: int
    type: str
    incident_id: str | None
    channel: str
    at_s: float
    status: int | None = None


@dataclass(frozen=True, slots=True)
class AlertBooks:
    calls: Sequence[JobCall]
    arrivals: Sequence[Arrival]
    troubles: Sequence[tuple[float, float]]
    """From when to when channels were in trouble."""


@dataclass(slots=True)
class AlertReceiver:
    file: IO[str]
    jobs_url: str = ""
    channels_url: str = ""
    bad_moods: dict[str, int] = field(default_factory=dict)
    """By job: how many of the next calls get a 500."""
    trouble: Trouble | None = None
    delivered: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """By channel: the types of the messages that got a 200, each message once."""
    successes: Counter[str] = field(default_factory=Counter)
    """By job: its calls that got a 200."""
    _known: set[str] = field(default_factory=set)
    _is_over: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def call(self, request: web.Request) -> web.Response:
        job = request.match_info["name"]
        left = self.bad_moods.get(job, 0)
        self.bad_moods[job] = left - 1 if 0 < left < FOR_EVER else left
        status = 500 if left else 200
        self.successes[job] += status == 200
        self._write({"call": {"job": job, "status": status}, "at_s": time.time()})
        async with self._changed:
            self._changed.notify_all()
        return web.json_response({}, status=status)

    async def message(self, request: web.Request) -> web.Response:
        trouble = self.trouble
        if trouble == "away":
            return _hang_up(request)
        body = json.loads(await request.read())
        id_, attempt, channel = body["id"], int(request.headers["ondot-attempt"]), request.match_info["name"]
        kind = body["type"].removeprefix("incident.")
        entry = {"id": id_, "attempt": attempt, "type": kind, "incident_id": body["incident_id"], "channel": channel}
        self._write({"message": entry, "at_s": time.time()})
        if trouble == "hang":
            await self._is_over.wait()
            return _hang_up(request)
        status = 200 if trouble is None else 500
        self._write({"answered": {"id": id_, "attempt": attempt}, "status": status, "at_s": time.time()})
        if status == 200 and id_ not in self._known:
            self._known.add(id_)
            self.delivered[channel].append(kind)
            async with self._changed:
                self._changed.notify_all()
        return web.json_response({}, status=status)

    @asynccontextmanager
    async def in_trouble(self, trouble: Trouble) -> AsyncIterator[None]:
        began_s = time.time()
        self.trouble = trouble
        self._is_over.clear()
        try:
            yield
        finally:
            self.trouble = None
            self._is_over.set()
            self._write({"trouble": trouble, "began_s": began_s, "at_s": time.time()})

    async def until(self, is_so: Callable[[], bool], *, within_s: float) -> bool:
        """Wait until something holds that a call or a message may change. False: it took too long."""
        try:
            async with asyncio.timeout(within_s), self._changed:
                await self._changed.wait_for(is_so)
        except TimeoutError:
            return False
        return True

    def _write(self, line: dict[str, Any]) -> None:
        if not self.file.closed:
            self.file.write(json.dumps(line) + "\n")
            self.file.flush()


def _hang_up(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


@asynccontextmanager
async def keeping_alert_books(path: Path) -> AsyncIterator[AlertReceiver]:
    with path.open("a") as file:
        receiver = AlertReceiver(file)
        app = web.Application()
        app.router.add_post("/job/{name}", receiver.call)
        app.router.add_post("/channel/{name}", receiver.message)
        runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        receiver.jobs_url, receiver.channels_url = f"{url}/job", f"{url}/channel"
        try:
            yield receiver
        finally:
            await runner.cleanup()


def read_alert_books(path: Path) -> AlertBooks:
    calls: list[JobCall] = []
    arrivals: list[Arrival] = []
    troubles: list[tuple[float, float]] = []
    unanswered: dict[tuple[str, int], int] = {}
    for entry in map(json.loads, path.read_text().splitlines()):
        at_s = entry["at_s"]
        if call := entry.get("call"):
            calls.append(JobCall(call["job"], at_s, call["status"]))
        elif message := entry.get("message"):
            unanswered[message["id"], message["attempt"]] = len(arrivals)
            arrivals.append(Arrival(**message, at_s=at_s))
        elif answered := entry.get("answered"):
            number = unanswered[answered["id"], answered["attempt"]]
            arrivals[number] = replace(arrivals[number], status=entry["status"])
        else:
            troubles.append((entry["began_s"], at_s))
    return AlertBooks(calls, arrivals, troubles)
