"""A run of a workflow that was asked for from Python (W3): its state, its results, and its repairs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ondot.sdk.handle import JobHandle, NotSucceeded
from ondot.sdk.options import Duration
from ondot.sdk.sync import Blocking

if TYPE_CHECKING:
    from ondot.sdk.sync_types import SyncRunHandle


class RunNotSucceeded(NotSucceeded):
    """The run waits for a person (BLOCKED), or ended FAILED, CANCELLED or SKIPPED. `steps`: those that failed."""

    run_id: str
    steps: list[str]


class RunHandle(JobHandle):
    @property
    def sync(self) -> "SyncRunHandle":
        """The same without asyncio: its methods block."""
        return cast("SyncRunHandle", Blocking(self))

    async def run_id(self) -> str | None:
        """The id of the run; None until the job is due."""
        latest = await self._latest()
        return None if latest is None else str(latest["id"])

    async def get(self) -> dict[str, Any]:
        """The run with its steps, as the API shows it."""
        return await self._client.get_run(await self._needed_run_id())

    async def result(self, timeout: Duration | None = None) -> dict[str, Any]:  # noqa: ASYNC109 - as asyncio.wait_for
        """What the steps returned, by name, once the run has succeeded.

        Raises RunNotSucceeded if it is BLOCKED or ended otherwise, with the steps that failed; TimeoutError if it has
        not ended in time; ResultGone if its history is no longer kept.
        """
        ended = await self._end(timeout)
        if ended["state"] == "SKIPPED":
            raise _not_succeeded({**ended, "id": ended["execution_id"]})
        run = await self._client.get_run(ended["execution_id"])
        if run["state"] != "SUCCEEDED":
            raise _not_succeeded(run)
        return {step["name"]: step["result"] for step in run["steps"] if step["state"] == "SUCCEEDED"}

    async def retry(self, **fields: Any) -> dict[str, Any]:
        """Run the failed steps again; or `steps=[…]`, or `from_=[…]` with everything that follows."""
        return await self._client.change_run(await self._needed_run_id(), "retry", _without_underscores(fields))

    async def _needed_run_id(self) -> str:
        run_id = await self.run_id()
        if run_id is None:
            raise LookupError(f"The job {self.id} has no run yet: it is not due. Await its result first.")
        return run_id


def _not_succeeded(run: Mapping[str, Any]) -> RunNotSucceeded:
    failed = [str(name) for name in run.get("failed_steps") or ()]
    errors = {step["name"]: step.get("error") for step in run.get("steps", ())}
    named = f": step {', '.join(failed)} failed" if failed else f": {run['reason']}" if run.get("reason") else ""
    error = errors.get(failed[0]) if failed else None
    message = error.get("message") if isinstance(error, dict) else None
    because = f" ({message})" if message else ""
    advice = f" Fix the cause, then `ondot run retry {run['id']}`." if run["state"] == "BLOCKED" else ""
    raised = RunNotSucceeded(
        f"The run {run['id']} is {run['state']}{named}{because}.{advice}",
        job_id=str(run.get("workflow_id") or run["job_id"]),
        execution_id=str(run["id"]),
        state=str(run["state"]),
        error_type=error.get("code") if isinstance(error, dict) else None,
        error_message=message,
        reason=run.get("reason"),
    )
    raised.run_id, raised.steps = str(run["id"]), failed
    return raised


def _without_underscores(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removesuffix("_"): value for name, value in fields.items()}
