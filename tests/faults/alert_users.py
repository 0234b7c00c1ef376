"""The users of alerts in a fault run: their jobs really fail, miss what is expected of them, and recover.

Each has an alert and a channel of its own. A *bad time* of a job lasts until the message that opens the incident has
arrived and a little longer, and the good time after it until the recovery has arrived: so each message has a time in
which it must come, however slow the machine is, and none may come in another. A *blip* is a failure that is not enough
for the alert: no message may follow. A *storm* is one alert on many jobs that fail with the same error: one message for
all of them. Meanwhile another alert is changed again and again, so that the evaluation reads its state again in the
middle of incidents.

Bad and good times are lines of the journal; `alert_checks` compares them with the books of `alert_receiver`. Names
begin with `alert `: the audit of the other jobs leaves them out.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from tests.faults.alert_checks import NAMED, Span
from tests.faults.alert_receiver import FOR_EVER, TROUBLES, AlertReceiver
from tests.faults.client import Body, Client

IN_A_ROW = 2
END_WITHIN_S = 2.0
MOST_BAD_TIMES = 3
"""Of one job: each time its incident opens again, it waits twice as long before it recovers."""
LAST_AT = 0.6
"""No further bad time begins after this share of the run: its messages come while the faults last, or soon after."""
PAUSE_S = (0.5, 2.0)
TROUBLE_S = (0.5, 2.5)
STORM = 12
EDIT_EVERY_S = 1.0
LINGER_S = 2.5
"""A bad time goes on after its message, so that a second one would show."""
NO_RETRY = {"max_retries": 0, "max_worker_losses": 100}
RETRY = {"max_retries": 100, "initial": "0.5s", "max": "1s", "max_worker_losses": 100}


@dataclass(slots=True)
class AlertUsers:
    urls: Sequence[str]
    receiver: AlertReceiver
    alerts: int
    """How many, without that of the storm."""
    seed: int
    journal: Path
    patience_s: float
    """How long after the faults a message may come."""
    headers: Mapping[str, str] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    _client: Client = field(init=False)
    _log: IO[str] = field(init=False)
    _last_s: float = 0.0
    _until_s: float = 0.0

    def __post_init__(self) -> None:
        self._client = Client(self.urls, random.Random(self.seed + 12), self.happened, self.headers)

    async def run(self, seconds: float) -> None:
        """Until the last message has arrived, or patience ends."""
        began_s = time.monotonic()
        self._last_s, self._until_s = began_s + seconds * LAST_AT, began_s + seconds + self.patience_s
        with self.journal.open("a") as self._log:
            async with self._client.open():
                troubling = asyncio.create_task(self._make_trouble(random.Random(self.seed + 13)))
                async with asyncio.TaskGroup() as group:
                    for number in range(self.alerts):
                        live = self._fail_at_times if number % 3 else self._miss_at_times
                        group.create_task(live(f"{NAMED}{number}", random.Random(self.seed * 10 + number)))
                    if self.alerts:
                        group.create_task(self._storm(f"{NAMED}storm"))
                        group.create_task(self._edit(f"{NAMED}edited"))
                troubling.cancel()

    async def _make_trouble(self, chance: random.Random) -> None:
        while time.monotonic() < self._last_s:
            await asyncio.sleep(chance.uniform(*TROUBLE_S))
            async with self.receiver.in_trouble(chance.choice(TROUBLES)):
                await asyncio.sleep(chance.uniform(*TROUBLE_S))

    # Lives -----------------------------------------------------------------------------------------------------------

    async def _fail_at_times(self, name: str, chance: random.Random) -> None:
        """A job each second that fails twice in a row and more, or only once."""
        if not await self._watch(name, {"failing": {"in_a_row": IN_A_ROW}}, name):
            return
        id_ = await self._create_job(name, {"schedule": {"every": "1s"}, "retry": NO_RETRY})
        for number in range(MOST_BAD_TIMES if id_ else 0):
            await asyncio.sleep(chance.uniform(*PAUSE_S))
            if number and time.monotonic() > self._last_s:
                break
            if chance.random() < 0.4:
                await self._blip(name)
            if not await self._live_through(Span(channel_of(name), [name], IN_A_ROW, 0.0, time.time())):
                break
        await self._delete(id_)

    async def _miss_at_times(self, name: str, chance: random.Random) -> None:
        """One job after the other that does not succeed in time, and then does."""
        if not await self._watch(name, {"expectation": {}}, f"{name}.*"):
            return
        for number in range(MOST_BAD_TIMES):
            await asyncio.sleep(chance.uniform(*PAUSE_S))
            if number and time.monotonic() > self._last_s:
                break
            job = f"{name}.{number}"
            span = Span(channel_of(name), [job], 1, END_WITHIN_S, time.time())
            self.receiver.bad_moods[job] = FOR_EVER
            expect = {"end_within": f"{END_WITHIN_S:g}s"}
            schedule = {"every": "1s", "max_fires": 1}
            id_ = await self._create_job(job, {"schedule": schedule, "expect": expect, "retry": RETRY})
            if id_ is None or not await self._live_through(span):
                break

    async def _storm(self, name: str) -> None:
        """Many jobs fail, all with the same error, and succeed when they are run again."""
        if not await self._watch(name, {"failing": {"in_a_row": 1}}, f"{name}.*"):
            return
        jobs = [f"{name}.{number}" for number in range(STORM)]
        self.receiver.bad_moods |= dict.fromkeys(jobs, FOR_EVER)
        span = Span(channel_of(name), jobs, 1, 0.0, time.time())
        ids = await asyncio.gather(*(self._create_job(job, {"retry": NO_RETRY}) for job in jobs))

        async def run_again() -> None:
            await asyncio.gather(*(self._client.ask("POST", f"/v1/jobs/{id_}/run", {}) for id_ in ids if id_))

        await self._live_through(span, run_again)

    async def _edit(self, name: str) -> None:
        """An alert that is changed and finds nothing."""
        body = {"name": name, "when": {"dead_letters": {"over": 1_000_000}}}
        id_ = await self._create("alert", "/v1/alerts", body)
        while id_ is not None and time.monotonic() < self._last_s:
            await asyncio.sleep(EDIT_EVERY_S)
            await self._client.ask("PATCH", f"/v1/alerts/{id_}", {"for": f"{random.randrange(60)}s"})

    async def _blip(self, name: str) -> None:
        """One failure, and then successes."""
        span = Span(channel_of(name), [name], 0, 0.0, time.time())
        self.receiver.bad_moods[name] = 1
        await self.receiver.until(lambda: not self.receiver.bad_moods[name], within_s=self._left_s)
        calls = self.receiver.successes[name]
        await self.receiver.until(lambda: self.receiver.successes[name] > calls + 1, within_s=self._left_s)
        span.bad_until_s = time.time()
        self._write({"span": asdict(span)})

    async def _live_through(self, span: Span, recover: Callable[[], Awaitable[None]] | None = None) -> bool:
        """A bad time and the good one after it. False: a message did not come. `recover`: beside better moods."""
        before = Counter(self.receiver.delivered[span.channel])
        self.receiver.bad_moods |= dict.fromkeys(span.jobs, FOR_EVER)
        is_open = await self._arrives(span.channel, "opened", before)
        if is_open:
            await asyncio.sleep(LINGER_S)
        span.bad_until_s = time.time()
        self.receiver.bad_moods |= dict.fromkeys(span.jobs, 0)
        if recover is not None:
            await recover()
        is_over = is_open and await self._arrives(span.channel, "recovered", before)
        span.good_until_s = time.time()
        self._write({"span": asdict(span)})
        return is_over

    async def _arrives(self, channel: str, kind: str, before: Counter[str]) -> bool:
        delivered = self.receiver.delivered[channel]
        return await self.receiver.until(lambda: delivered.count(kind) > before[kind], within_s=self._left_s)

    @property
    def _left_s(self) -> float:
        return max(self._until_s - time.monotonic(), 0.0)

    # Requests --------------------------------------------------------------------------------------------------------

    async def _watch(self, name: str, when: Body, jobs: str) -> bool:
        """A channel, and an alert that notifies it."""
        channel = channel_of(name)
        url = f"{self.receiver.channels_url}/{channel}"
        body = {"name": name, "when": when, "scope": {"jobs": [jobs]}, "notify": [channel], "repeat": None}
        return (
            await self._create("channel", "/v1/channels", {"name": channel, "webhook": {"url": url}}) is not None
            and await self._create("alert", "/v1/alerts", body) is not None
        )

    async def _create_job(self, name: str, more: Body) -> str | None:
        body = {"name": name, "url": f"{self.receiver.jobs_url}/{quote(name)}", "timeout": "10s", **more}
        return await self._create("job", "/v1/jobs", body)

    async def _create(self, what: str, path: str, body: Body) -> str | None:
        reply = await self._client.ask("POST", path, body, key=f"{what} {body['name']} {self.seed}")
        self.happened[f"alert {what} {reply.outcome}"] += 1
        if reply.outcome == "refused":
            raise AssertionError(f"{what} {body['name']} was refused: {reply.answer}")
        if reply.outcome != "acked":
            return None
        if what != "job":
            self._write({"acked": what, "name": body["name"]})
        return str(reply.answer.get("id", body["name"]))

    async def _delete(self, id_: str | None) -> None:
        if id_ is not None:
            await self._client.ask("DELETE", f"/v1/jobs/{id_}")

    def _write(self, line: dict[str, Any]) -> None:
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()


def channel_of(name: str) -> str:
    return name.replace(" ", "-")
