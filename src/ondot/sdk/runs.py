"""A run of a workflow that was asked for from Python (W3): its state, its results, and its repairs."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from ondot.sdk.client import Client
from ondot.sdk.options import Duration, seconds_of

FIRST_LOOK_S: Final = 0.1
LONGEST_LOOK_S: Final = 1.0


class RunNotSucceeded(Exception):
    """The run waits for a person (BLOCKED), or ended FAILED or CANCELLED. `steps`: those that failed."""

    def __init__(self, message: str, run_id: str, state: str, steps: list[str]) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.state = state
        self.steps = steps


class RunHandle:
    def __init__(self, client: Client, job: Mapping[str, Any]) -> None:
        """`job`: the answer to its creation."""
        self._client = client
        self.job: Final = job
        self.job_id: Final = str(job["id"])
        self._run_id: str | None = None

    def __repr__(self) -> str:
        return f"<RunHandle of job {self.job_id}>"

    async def run_id(self) -> str:
        """The id of the run; it exists once the job is due."""
        wait_s = FIRST_LOOK_S
        while self._run_id is None:
            found = (await self._client.job_executions(self.job_id, limit=1))["items"]
            if found:
                self._run_id = str(found[0]["id"])
                break
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_LOOK_S)
        return self._run_id

    async def get(self) -> dict[str, Any]:
        """The run with its steps, as the API shows it."""
        return await self._client.get_run(await self.run_id())

    async def state(self) -> str:
        return str((await self.get())["state"])

    async def result(self, timeout: Duration | None = None) -> dict[str, Any]:  # noqa: ASYNC109 - as asyncio.wait_for
        """What the steps returned, by name, once the run has succeeded.

        Raises RunNotSucceeded if it is BLOCKED or ended otherwise, with the steps that failed; TimeoutError if it has
        not ended in time.
        """
        async with asyncio.timeout(None if timeout is None else seconds_of("timeout", timeout)):
            wait_s = FIRST_LOOK_S
            while True:
                run = await self.get()
                if run["state"] in {"SUCCEEDED", "FAILED", "CANCELLED", "BLOCKED"}:
                    break
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_LOOK_S)
        if run["state"] != "SUCCEEDED":
            raise _not_succeeded(run)
        return {step["name"]: step["result"] for step in run["steps"] if step["state"] == "SUCCEEDED"}

    async def retry(self, **fields: Any) -> dict[str, Any]:
        """Run the failed steps again; or `steps=[…]`, or `from_=[…]` with everything that follows."""
        return await self._client.change_run(await self.run_id(), "retry", _without_underscores(fields))

    async def cancel(self, reason: str | None = None) -> dict[str, Any]:
        return await self._client.change_run(await self.run_id(), "cancel", reason=reason)

    async def explain(self) -> dict[str, Any]:
        return await self._client.explain_execution(await self.run_id())


def _not_succeeded(run: Mapping[str, Any]) -> RunNotSucceeded:
    failed = [str(name) for name in run.get("failed_steps") or ()]
    errors = {step["name"]: step.get("error") for step in run["steps"]}
    named = f": step {', '.join(failed)} failed" if failed else f": {run['reason']}" if run.get("reason") else ""
    error = errors.get(failed[0]) if failed else None
    because = f" ({error['message']})" if isinstance(error, dict) and error.get("message") else ""
    advice = f" Fix the cause, then `ondot run retry {run['id']}`." if run["state"] == "BLOCKED" else ""
    message = f"The run {run['id']} is {run['state']}{named}{because}.{advice}"
    return RunNotSucceeded(message, str(run["id"]), str(run["state"]), failed)


def _without_underscores(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removesuffix("_"): value for name, value in fields.items()}
