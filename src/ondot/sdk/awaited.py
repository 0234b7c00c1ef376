"""How a program waits for jobs to end (D2): one way for handles of functions and of workflows.

`Ended` is what the server knows of a job that has nothing left to do, and of the latest of its executions.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ondot.sdk.client import Client

FIRST_LOOK_S: Final = 0.05
LONGEST_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Ended:
    """`execution`: the latest of the job, as the API shows it; None: it was deleted before it ran."""

    job_id: str
    execution: Mapping[str, Any] | None


async def wait_for_end(client: Client, job_id: str) -> Ended:
    """Wait until a job has nothing left to do, or its run is BLOCKED and waits for a person. Raises NotFound."""
    wait_s = FIRST_LOOK_S
    while True:
        job = await client.get_job(job_id)
        latest = job["latest_executions"][0] if job["latest_executions"] else None
        if job["state"] in {"ENDED", "DELETED"} or (latest and latest["state"] == "BLOCKED" and latest["attempt"]):
            return Ended(job_id, latest)
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_LOOK_S)
