"""The jobs of a fault run: every kind that ondot has, each with the changes that will be made to it, from a seed.

Light on purpose: calls and functions of milliseconds, about ten fires for each recurring job, so that two cores run
thousands of them beside the faults. Intervals have an explicit anchor, so that every fire is known beforehand. Jobs
that share an order or unique key are submitted one after another, because two requests in flight have no defined order.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from inspect import signature
from typing import Any
from zoneinfo import ZoneInfo

ZONES = ["UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham"]
PATIENT = {"max_retries": 2, "initial": "0.2s", "max": "1s", "max_worker_losses": 30}
"""A retry budget that the faults alone do not use up."""
AT_MOST_ONCE = {"max_retries": 0, "max_worker_losses": 0}
BEYOND_HORIZON_S = 22.0
FIRES = (5, 12)
SECONDS = ["*/2", "*/3", "1-59/4", "0,13,27,41", "5/7"]

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """A change, some seconds after the job was accepted. The client does not wait for an `unclear` answer."""

    after_s: float
    op: str
    body: Body | None = None
    is_unclear: bool = False


@dataclass(frozen=True, slots=True)
class Life:
    """A job and the changes that will be made to it. `ends`: it ends by itself, without a delete."""

    body: Body
    steps: tuple[Step, ...] = ()
    ends: bool = True
    serial: str | None = None
    """Jobs with the same value are submitted one after another, each after the last was acknowledged."""


@dataclass(slots=True)
class Mix:
    receiver_url: str
    jobs: int
    seconds: float
    chance: random.Random
    focus: tuple[str, ...] = ()
    """Only these kinds; empty: all of them."""
    made: int = 0

    def name(self, kind: str) -> str:
        self.made += 1
        return f"{kind} {self.made}"

    def http(self, kind: str, **more: Any) -> Body:
        body = {"name": self.name(kind), "url": self.receiver_url, "retry": PATIENT, "timeout": "20s", **more}
        return body | {"payload": {"mark": body["name"]}}

    def function(self, kind: str, function: str, payload: Body, **more: Any) -> Body:
        given = {"function": function, "payload": payload, "retry": PATIENT, "timeout": "20s", "cancel_grace": "0.5s"}
        return {"name": self.name(kind), **given, **more}

    def key_of(self, kind: str, of_400: int) -> str:
        """One of several keys. More jobs in the same time have more keys, so that each key stays as busy."""
        count = max(1, round(of_400 * self.jobs / 400 * 15 / self.seconds))
        return f"{kind} {self.chance.randrange(count)}"

    # One-time --------------------------------------------------------------------------------------------------------

    def once(self, left_s: float) -> Life:
        """A job that runs once: now, soon, or beyond the horizon."""
        kinds: dict[Callable[[], Life], int] = {
            self._plain: 40,
            self._slow: 5,
            self._at_most_once: 10,
            self._by_key: 9,
            self._in_time: 4,
            self._at_a_rate: 3,
            self._ordered: 9,
            self._unique: 4,
            self._function: 20,
            self._transaction: 9,
            self._program: 4,
        }
        life = self.chance.choices(list(kinds), list(kinds.values()))[0]()
        if life.serial is None and "concurrency_key" not in life.body:
            life.body.update(self._when(left_s))
        return life

    def _when(self, left_s: float) -> Body:
        chance = self.chance.random()
        if chance < 0.5:
            return {}
        if chance < 0.65:
            return {"schedule": {"in": f"{self.chance.uniform(0.5, 8):.3f}s"}}
        ahead_s = self.chance.uniform(1, 8)
        if chance > 0.9 and left_s > BEYOND_HORIZON_S:
            ahead_s = self.chance.uniform(BEYOND_HORIZON_S, max(BEYOND_HORIZON_S + 1, min(left_s, 45)))
        return {"schedule": {"at": _written(datetime.now(UTC) + timedelta(seconds=ahead_s))}}

    def _plain(self) -> Life:
        return Life(self.http("http", priority=self.chance.choice(["high", "normal", "normal", "low"])))

    def _slow(self) -> Life:
        """A slow call: its worker may die meanwhile."""
        return Life(self.http("slow", url=f"{self.receiver_url}?slow_s={self.chance.uniform(1, 2.5):.1f}"))

    def _slower(self) -> Life:
        """Slower than it takes to mark a worker lost: another repeats the call before this one has ended."""
        return Life(self.http("slower", url=f"{self.receiver_url}?slow_s={self.chance.uniform(4, 6):.1f}"))

    def _at_most_once(self) -> Life:
        return Life(self.http("at most once", retry=AT_MOST_ONCE))

    def _by_key(self) -> Life:
        key = self.key_of("limit", 10)
        limited = {"concurrency_key": key, "key_concurrency": 1 + int(key.split()[1]) % 3}
        if self.chance.random() < 0.5:
            return Life(self.http("by key", **limited))
        return Life(self.function("by key", "naps", {"seconds": self.chance.random() / 2}, **limited))

    def _in_time(self) -> Life:
        # Behind a key that is never free for long: many miss their deadline.
        return Life(self.http("in time", start_deadline="2s", concurrency_key=self.key_of("crowd", 3)))

    def _at_a_rate(self) -> Life:
        return Life(self.http("at a rate", concurrency_key=self.key_of("rate", 2), key_rate="3/s"))

    def _ordered(self) -> Life:
        key = self.key_of("order", 16)
        return Life(self.http("ordered", order_key=key), serial=key)

    def _unique(self) -> Life:
        key = self.key_of("one", 3)
        return Life(self.http("unique", unique=key), serial=key)

    def _function(self) -> Life:
        functions: list[tuple[str, Body]] = [
            ("fails_at_random", {"percent": 40}),
            ("naps", {"seconds": self.chance.random() / 2}),
            ("naps_in_a_thread", {"seconds": self.chance.random() / 2}),
            ("goes_on", {"steps": 5}),
            ("leaks", {"megabytes": 1, "files": 1}),
            ("forks", {}),
        ]
        name, payload = self.chance.choice(functions)
        return Life(self.function(name, name, payload))

    def _transaction(self) -> Life:
        payload = {"before_s": self.chance.random() * 0.2, "inside_s": self.chance.random() * 0.2}
        return Life(self.function("transacts", "transacts", payload))

    def _program(self) -> Life:
        script = self.chance.choice(["sleep 0.2", "cat >/dev/null; echo read", "exit 3", "kill -9 $$"])
        body = {"name": self.name("program"), "target": {"shell": {"command": ["sh", "-c", script]}}}
        return Life({**body, "retry": PATIENT, "timeout": "20s"})

    def held(self) -> Life:
        """A one-time job that is changed before it is due: moved, paused and resumed, or deleted."""
        due_at = datetime.now(UTC) + timedelta(seconds=self.chance.uniform(8, 14))
        body = self.http("held", schedule={"at": _written(due_at)})
        moved = {**body, "schedule": {"at": _written(due_at + timedelta(seconds=4))}}
        moved["payload"] = {"mark": f"{body['name']} moved"}
        chosen: list[tuple[Step, ...]] = [
            (Step(2, "update", moved),),
            (Step(1, "pause"), Step(4, "resume", {})),
            (Step(5, "pause"), Step(14, "resume", {})),
            (Step(3, "delete"),),
            (Step(3, "delete", is_unclear=True),),
        ]
        return Life(body, self.chance.choice(chosen))

    # Recurring -------------------------------------------------------------------------------------------------------

    def recurring(self, left_s: float) -> Life:
        kinds: dict[Callable[[float], Life], int] = {
            self._counted: 18,
            self._bounded: 8,
            self._deleted: 12,
            self._updated: 12,
            self._paused: 14,
            self._upserted: 8,
            self._run: 8,
            self._meeting: 8,
            self._jittered: 5,
            self._each_minute: 7,
        }
        return self.chance.choices(list(kinds), list(kinds.values()))[0](left_s)

    def _every(self, left_s: float, **more: Any) -> tuple[Body, float]:
        """An interval, anchored somewhere in the past, and the length of a life of several fires."""
        period_s = self.chance.choice([1, 1.5, 2, 3, 5])
        anchor_at = datetime.now(UTC) - timedelta(seconds=self.chance.uniform(0, 100))
        life_s = min(period_s * self.chance.randint(*FIRES), max(left_s - 2, 3.0))
        return {"every": f"{period_s}s", "anchor_at": _written(anchor_at), **more}, life_s

    def _clocked(self, left_s: float) -> tuple[Body, float]:
        """A cron expression with seconds in some zone, or an RRULE, or an interval."""
        chance = self.chance.random()
        life_s = min(self.chance.uniform(10, 40), max(left_s - 2, 3.0))
        if chance < 0.35:
            return self._every(left_s)
        if chance < 0.5:
            begins = datetime.now(UTC) - timedelta(minutes=self.chance.randrange(1000))
            rule = f"RRULE:FREQ=SECONDLY;INTERVAL={self.chance.choice([2, 3, 5])}"
            return {"rrule": f"DTSTART:{begins:%Y%m%dT%H%M%S}Z\n{rule}"}, life_s
        return {"cron": f"{self.chance.choice(SECONDS)} * * * * *", "timezone": self.chance.choice(ZONES)}, life_s

    def _misfire(self) -> Body:
        policy = self.chance.choice(["skip", "once", "all"])
        return {"misfire": {"policy": policy, "grace": self.chance.choice(["3s", "60s"])}}

    def _counted(self, left_s: float) -> Life:
        schedule, life_s = self._every(left_s, **self._misfire())
        fires = max(2, int(life_s / float(schedule["every"][:-1])))
        body = self.http("counted", schedule={**schedule, "max_fires": fires})
        if self.chance.random() < 0.3:
            payload = {"mark": f"{body['name']} again"}
            return Life(body, (Step(life_s / 2, "update", {**body, "payload": payload}),))
        return Life(body)

    def _bounded(self, left_s: float) -> Life:
        schedule, life_s = self._clocked(left_s)
        start_at = datetime.now(UTC) + timedelta(seconds=self.chance.uniform(1, 5))
        end_at = start_at + timedelta(seconds=max(life_s, 20.0))  # the rarest of SECONDS fires once in 19 s
        body = self.http("bounded", schedule={**schedule, **_bounds(start_at, end_at), **self._misfire()})
        return Life(body, ends=(end_at - datetime.now(UTC)).total_seconds() < left_s)

    def _deleted(self, left_s: float) -> Life:
        schedule, life_s = self._clocked(left_s)
        body = self.http("deleted", schedule={**schedule, **self._misfire()}, retry=AT_MOST_ONCE)
        return Life(body, (Step(life_s, "delete"),), ends=False)

    def _updated(self, left_s: float) -> Life:
        schedule, life_s = self._clocked(left_s)
        body = self.http("updated", schedule=schedule)
        steps = []
        for number in range(1, self.chance.randint(2, 4)):
            schedule, _ = self._clocked(left_s)
            new = {**body, "schedule": schedule, "payload": {"mark": f"{body['name']} v{number}"}}
            steps.append(Step(life_s * number / 4, "update", new, is_unclear=self.chance.random() < 0.05))
        return Life(body, (*steps, Step(life_s, "delete")), ends=False)

    def _paused(self, left_s: float) -> Life:
        schedule, life_s = self._clocked(left_s)
        body = self.http("paused", schedule={**schedule, **self._misfire()})
        missed = self.chance.choice([{}, {"missed": "skip"}, {"missed": "once"}, {"missed": "all"}])
        steps = [
            Step(life_s * 0.3, "pause", is_unclear=self.chance.random() < 0.08),
            Step(life_s * 0.6, "resume", missed),
        ]
        if self.chance.random() < 0.7:
            steps.append(Step(life_s, "delete"))
        return Life(body, tuple(steps), ends=False)

    def _upserted(self, left_s: float) -> Life:
        schedule, life_s = self._clocked(left_s)
        body = self.http("upserted", schedule=schedule)
        body["key"] = body["name"]
        other, _ = self._clocked(left_s)
        new = {**body, "schedule": other, "payload": {"mark": f"{body['name']} upserted"}}
        steps = (Step(life_s * 0.3, "upsert", new), Step(life_s * 0.6, "upsert", new), Step(life_s, "delete"))
        return Life(body, steps, ends=False)

    def _run(self, left_s: float) -> Life:
        schedule, life_s = self._clocked(left_s)
        body = self.http("run", schedule=schedule)
        runs = [
            Step(life_s * part, "run", {"payload": {"mark": f"{body['name']} by hand {part}"}}) for part in (0.2, 0.5)
        ]
        return Life(body, (*runs, Step(life_s, "delete")), ends=False)

    def _meeting(self, left_s: float) -> Life:
        """Fires that overlap: each takes longer than its interval."""
        limits: Body = self.chance.choice(
            [{"overlap": "skip"}, {"overlap": "queue"}, {"overlap": "cancel"}, {"concurrency": 2}, {"rate": "2/3s"}]
        )
        schedule = self._every(left_s)[0] | {"every": "1s", "max_fires": 5}
        if "rate" in limits:
            return Life(self.http("at its rate", schedule=schedule, **limits))
        return Life(self.function("meeting", "naps", {"seconds": 1.3}, schedule=schedule, **limits))

    def _jittered(self, left_s: float) -> Life:
        schedule, life_s = self._every(left_s, jitter="2s")
        body = self.http("jittered", schedule=schedule)
        return Life(body, (Step(life_s, "delete"),), ends=False)

    def _each_minute(self, left_s: float) -> Life:
        """Five fields: each minute, or a time of the day within this run."""
        zone = self.chance.choice(ZONES)
        local = datetime.now(UTC).astimezone(ZoneInfo(zone)) + timedelta(seconds=self.chance.uniform(5, 90))
        named = f"{local.minute} {local.hour} * * *"
        cron = self.chance.choice(["* * * * *", named, f"{local.second} {named}"])
        body = self.http("each minute", schedule={"cron": cron, "timezone": zone})
        return Life(body, (Step(min(150.0, max(left_s - 2, 3.0)), "delete"),), ends=False)

    # All of them -----------------------------------------------------------------------------------------------------

    def lives(self, count: int, left_s: float) -> Iterator[Life]:
        """Make `count` jobs; their instants count from now."""
        for _ in range(count):
            chance = self.chance.random()
            if self.focus:
                yield self._of(self.chance.choice(self.focus), left_s)
            elif chance < 0.15:
                yield self.recurring(left_s)
            elif chance < 0.2 and left_s > 10:
                yield self.held()
            else:
                yield self.once(left_s)

    def _of(self, kind: str, left_s: float) -> Life:
        """Make a job of this kind, recurring or not."""
        make: Callable[..., Life] = getattr(self, f"_{kind}")
        return make(left_s) if "left_s" in signature(make).parameters else make()


def _bounds(start_at: datetime, end_at: datetime) -> Body:
    return {"start_at": _written(start_at), "end_at": _written(end_at)}


def _written(instant: datetime) -> str:
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
