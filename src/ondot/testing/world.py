"""A world: a whole ondot for one test, whose clock only the test turns (O7).

Its methods call the API, run the passes of the engine, or read the tables. Changes of jobs go through the real API, so
bodies are validated as everywhere. Nothing runs until the clock is turned (`run_until`, `advance`) or `run_due` is
called. Mistakes in a test raise at once: naive instants, clocks turned back, unknown names.
"""

from collections.abc import Generator, Mapping, Sequence, Set
from datetime import datetime, timedelta
from difflib import get_close_matches
from types import TracebackType
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from ondot.model.errors import Conflict, NotFound
from ondot.model.ids import DEFAULT_TENANT, ExecutionId, JobId
from ondot.model.workflow.spec import WorkflowTarget
from ondot.sdk.app import Ondot
from ondot.sdk.client import Client
from ondot.sdk.handle import JobHandle
from ondot.sdk.handler import Handler
from ondot.sdk.workflow_handler import WorkflowHandler
from ondot.store.connection import Connection
from ondot.store.database import Database
from ondot.store.executions import ExecutionRow, get_execution, list_job_executions, list_skipped
from ondot.store.jobs import JobRow, get_job, list_jobs
from ondot.store.run_reads import RunRow, list_runs, list_steps
from ondot.store.step_waits import end_wait
from ondot.testing.clock import parse_instant, turn_clock
from ondot.testing.engine import Engine
from ondot.testing.http import Receivers
from ondot.testing.records import Call, Execution, Request, Run, RunStep, Skipped

MANY = 1_000_000
ENDED = (
    "This world ended with its `async with open_world(…)` block, and its database is gone: use it inside the block, or "
    "keep the answers. Its `calls()` and `requests` can still be read."
)

Job = str | UUID | Mapping[str, Any] | Handler[..., Any] | WorkflowHandler[Any] | JobHandle
"""How a test names a job: by its name, its id, the answer that created it, or the function that it runs."""


class World:
    """Created by `open_world`."""

    def __init__(
        self,
        database: Database,
        engine: Engine,
        client: Client,
        receivers: Receivers,
        app: Ondot,
        created: Set[str],
        failures: dict[str, list[Exception]],
    ) -> None:
        self._failures = failures
        self._database = database
        self._engine = engine
        self._receivers = receivers
        self._created = created
        self._app = app
        self._busy = False
        self._is_down = False
        self.client = client
        """The SDK's client of this world's API, for everything that has no method here."""

    def end(self) -> None:
        """Called by `open_world` at the end: using the world afterwards raises an error that says so."""
        del self._database, self.client

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in {"_database", "client"}:
                raise RuntimeError(ENDED)
            raise AttributeError(f"A world has no {name!r}.", name=name, obj=self)

    @property
    def database_url(self) -> str:
        """Of this world's database, for connections and tables of your own: jobs in your transactions are seen here."""
        return self._database.settings.needs_database_url

    # Time ------------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The time in this world, in UTC."""
        return self._database.clock.now()

    async def run_until(self, at: datetime | str) -> None:
        """Turn the clock to an instant; everything that is due up to and at it runs, each at its own time."""
        until = parse_instant(at)
        if until < self.now:
            raise ValueError(f"It is already {self.now.isoformat()}: a world's clock cannot be turned back to {at}.")
        if self._busy:
            raise RuntimeError("A handler cannot turn the clock: it runs while the test turns it.")
        if self._is_down:
            await turn_clock(self._database, until)
            return
        self._busy = True
        try:
            await self._engine.run_until(until)
        finally:
            self._busy = False

    async def advance(
        self, *, weeks: float = 0, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0
    ) -> None:
        """Turn the clock by this much time; a day has 24 hours."""
        await self.run_until(
            self.now + timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
        )

    async def run_due(self) -> None:
        """Run everything that is due now, and what follows from it at this instant; the clock does not move."""
        await self.run_until(self.now)

    async def run_due_if_idle(self) -> bool:
        """Run what is due, unless that happens already or the world is down. For results that a test awaits."""
        if self._busy or self._is_down:
            return False
        await self.run_due()
        return True

    def outage(self, *, until: datetime | str | None = None) -> "Outage":
        """Schedulers and workers are down while the clock moves; the API answers.

        `await world.outage(until=…)` turns the clock to its end; `async with world.outage():` lasts as long as its
        body, which turns the clock. Then both are back, and missed fires are handled by the jobs' misfire policies.
        """
        return Outage(self, None if until is None else parse_instant(until))

    # Jobs ------------------------------------------------------------------------------------------------------------

    async def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create a job from the API's JSON body; return the API's answer. Raises InvalidBody with all errors."""
        return await self.client.create_job(body)

    async def update(self, job: Job, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change these fields of a job, as PATCH does."""
        return await self.client.patch_job(await self._id(job), changes)

    async def pause(self, job: Job) -> dict[str, Any]:
        """No fires until `resume`."""
        return await self.client.pause_job(await self._id(job))

    async def resume(self, job: Job, **options: Any) -> dict[str, Any]:
        """Fire again; options are those of the client's `resume_job`."""
        return await self.client.resume_job(await self._id(job), **options)

    async def delete(self, job: Job) -> None:
        """No further fires; waiting executions are cancelled."""
        await self.client.delete_job(await self._id(job))

    async def run_now(self, job: Job, **payload: Any) -> dict[str, Any]:
        """Add one execution, which is not a fire; it runs with the next `run_due`, `advance` or `run_until`.

        The arguments are its payload; without any it is the job's own.
        """
        id_ = await self._id(job)
        return await (self.client.run_job(id_, payload) if payload else self.client.run_job(id_))

    async def set_secret(self, name: str, value: str, **reach: Any) -> dict[str, Any]:
        """Create a secret, or give it a new value; `reach` are its `hosts`, `functions` and `pools`."""
        return await self.client.put_secret(name, {"value": value, **reach})

    # What happened ---------------------------------------------------------------------------------------------------

    def calls(self, job: Job | None = None) -> list[Call]:
        """The attempts that were started, in order: of a job, of all jobs with a name, or of a function."""
        made = self._engine.calls
        if job is None:
            return list(made)
        if isinstance(id_or_name := _id_or_name(job), UUID):
            return [call for call in made if call.job_id == id_or_name]
        found = [call for call in made if id_or_name in {call.job, call.target}]
        if not found and id_or_name not in self._app.handlers and id_or_name not in self._created:
            raise self._not_found(id_or_name, {*self._app.handlers, *self._created, *(call.job for call in made)})
        return found

    async def executions(self, job: Job) -> list[Execution]:
        """The executions of a job, or of all jobs with a name, in the order of their fires; without future ones."""
        async with self._database.connection() as connection:
            rows = [
                row
                for found in await self._jobs(job)
                for row in await list_job_executions(
                    connection,
                    DEFAULT_TENANT,
                    found.id,
                    limit=MANY,
                    horizon_s=self._database.settings.horizon_s,
                )
            ]
        return [_execution(row) for row in sorted(rows, key=lambda row: (row.fire_at, row.id))]

    async def runs(self, workflow: Job) -> list[Run]:
        """The runs of a workflow that have started, oldest first."""
        async with self._database.connection() as connection:
            found = [
                run
                for job in await self._jobs(workflow)
                for run in await list_runs(connection, DEFAULT_TENANT, job_id=job.id, limit=MANY)
            ]
            return [await self._run(connection, row) for row in sorted(found, key=lambda row: row.id)]

    async def approve(self, run: Run, step: str = "approve", *, result: Any = None, refuse: bool = False) -> None:
        """Decide a step that waits for a person. What follows it runs with the next `run_due`."""
        waiting = run.steps.get(step)
        if waiting is None or waiting.execution_id is None or waiting.state != "RELEASED":
            raise Conflict(
                f"The step {step!r} of the run {run.id} does not wait for a person; the steps: {run.states}."
            )
        text = None if refuse else msgspec.json.encode(result if result is not None else {"approved": True}).decode()
        async with self._database.transaction() as connection:
            await end_wait(
                connection,
                DEFAULT_TENANT,
                ExecutionId(run.id),
                ExecutionId(waiting.execution_id),
                state="FAILED" if refuse else "SUCCEEDED",
                reason="it was refused" if refuse else None,
                result=text,
            )

    async def send_event(self, **event: Any) -> dict[str, Any]:
        """Send a CloudEvent, such as `type="order.paid", source="/shop", data={…}`; what it starts runs with the next
        `run_due`."""
        return await self.client.send_event(event)

    def fail(self, function: Handler[..., Any], error: Exception, *, times: int = 1) -> None:
        """Let the next calls of a function raise this error instead, so many times."""
        self._failures.setdefault(function.name, []).extend([error] * times)

    async def _run(self, connection: Connection, row: RunRow) -> Run:
        specs = await self._database.specs.find(connection, [(row.job_id, row.job_version)])
        target = specs[row.job_id, row.job_version].target
        assert isinstance(target, WorkflowTarget)
        names = list(target.steps)
        steps: dict[str, RunStep] = {}
        for step in await list_steps(connection, DEFAULT_TENANT, row.id, limit=MANY):
            result = step.result
            if result is None and step.execution_id is not None:
                execution = await get_execution(connection, DEFAULT_TENANT, step.execution_id)
                result = execution.result if execution else None
            steps[names[step.step_no]] = RunStep(step.state.value, step.reason, step.execution_id, result)
        return Run(row.id, row.job_id, row.state.value, row.reason, steps)

    async def skipped(self, job: Job) -> list[Skipped]:
        """The fires of a job that did not run, as ranges with their reasons, oldest first."""
        async with self._database.connection() as connection:
            rows = [
                row
                for found in await self._jobs(job)
                for row in await list_skipped(connection, DEFAULT_TENANT, found.id, MANY)
            ]
        return sorted(
            (Skipped(row.from_at, row.to_at, row.reason, row.count) for row in rows), key=lambda range_: range_.from_at
        )

    async def next_fires(self, job: Job, n: int = 10) -> list[datetime]:
        """The next fires of a job, from the API."""
        answer = await self.client.next_fires(await self._id(job), n)
        return [parse_instant(fire["fire_at"]) for fire in answer["fires"]]

    # The network ---------------------------------------------------------------------------------------------------

    def on_http(
        self,
        url: str,
        *,
        status: int = 200,
        json: Any = None,
        text: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Set the answer of a URL. Several calls set several answers, in order; the last one stays."""
        self._receivers.add(url, status=status, json=json, text=text, headers=headers)

    @property
    def requests(self) -> Sequence[Request]:
        """The requests that HTTP targets received."""
        return tuple(self._receivers.requests)

    # Names -----------------------------------------------------------------------------------------------------------

    async def _id(self, job: Job) -> UUID:
        """Of one job; of several with the same name, the recurring one."""
        if isinstance(id_or_name := _id_or_name(job), UUID):
            return id_or_name
        found = [row for row in await self._find_by_name(id_or_name) if row.state != "DELETED"]
        if not found:
            raise NotFound(f"The job {id_or_name!r} is deleted, or has no schedule of its own.")
        recurring = [row for row in found if row.spec.recurs]
        chosen = found if len(found) == 1 else recurring
        if len(chosen) != 1:
            raise Conflict(f"{len(found)} jobs are named {id_or_name!r}: use the id in the answer of `create`.")
        return chosen[0].id

    async def _jobs(self, job: Job) -> list[JobRow]:
        if not isinstance(id_or_name := _id_or_name(job), UUID):
            return await self._find_by_name(id_or_name)
        async with self._database.connection() as connection:
            row = await get_job(connection, DEFAULT_TENANT, JobId(id_or_name))
        if row is None:
            raise NotFound(f"There is no job {id_or_name} in this world.")
        return [row]

    async def _find_by_name(self, name: str) -> list[JobRow]:
        async with self._database.connection() as connection:
            rows = [
                row
                for state in (None, "DELETED")
                for row in await list_jobs(connection, DEFAULT_TENANT, name=name, state=state, limit=MANY)
            ]
            if rows or name in self._app.handlers or name in self._app.workflows:
                return rows
            known = await list_jobs(connection, DEFAULT_TENANT, limit=MANY)
        raise self._not_found(name, {*self._app.handlers, *(row.spec.name for row in known)})

    @staticmethod
    def _not_found(name: str, known: set[str]) -> NotFound:
        close = get_close_matches(name, known, n=1)
        advice = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(sorted(known)) or 'none'}."
        return NotFound(f"No job of this world is named {name!r}: {advice}")


class Outage:
    """A time in which schedulers and workers are down: await it, or enter it by `async with`."""

    def __init__(self, world: World, until: datetime | None) -> None:
        self._world = world
        self._until = until

    def __await__(self) -> Generator[Any, None, None]:
        if self._until is None:
            raise TypeError("An outage that is awaited needs an end: await world.outage(until=…).")
        return self._last().__await__()

    async def _last(self) -> None:
        async with self:
            pass

    async def __aenter__(self) -> None:
        if self._world._is_down:
            raise RuntimeError("There is already an outage.")
        self._world._is_down = True

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._until is not None and error is None:
                await self._world.run_until(self._until)
        finally:
            self._world._is_down = False
        if error is None:
            await self._world.run_due()


def _id_or_name(job: Job) -> UUID | str:
    if isinstance(job, Handler | WorkflowHandler):
        return job.name
    if isinstance(job, JobHandle):
        return UUID(job.id)
    if isinstance(job, Mapping):
        return UUID(job["id"])
    if isinstance(job, UUID):
        return job
    try:
        return UUID(job)
    except ValueError:
        return job


def _execution(row: ExecutionRow) -> Execution:
    return Execution(
        id=row.id,
        job_id=row.job_id,
        state=row.state,
        origin=row.origin,
        fire_at=row.fire_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        attempts=row.attempt_no,
        reason=row.reason,
        result=row.result,
        error=row.error,
    )
