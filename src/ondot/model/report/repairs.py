"""The calls that repair what a report found (O10), each as a command for people and a call for buttons and programs."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from ondot.model.report.findings import Repair


def replay_letters(job_id: UUID | None, fingerprint: str | None, since: datetime, until: datetime) -> Repair:
    """All open dead letters of a cause in the window."""
    letters: dict[str, Any] = {"from_at": _instant(since), "to_at": _instant(until)}
    command = f"ondot dead-letter replay --from {_instant(since)} --to {_instant(until)}"
    if job_id is not None:
        letters["job_id"] = str(job_id)
        command += f" --job {job_id}"
    letters["fingerprint"] = fingerprint or "unknown"
    command += f" --fingerprint {fingerprint or 'unknown'} --yes"
    return Repair("Replay all", command, "POST", "/v1/dead-letters/replay", {"filter": letters})


def replay_letter(execution_id: UUID) -> Repair:
    body = {"ids": [str(execution_id)]}
    return Repair("Replay", f"ondot dead-letter replay {execution_id}", "POST", "/v1/dead-letters/replay", body)


def rerun_run(run_id: UUID) -> Repair:
    """An ended run goes on as a new one, which takes over the results of the steps that succeeded."""
    return Repair("Run its failed steps again", f"ondot run rerun {run_id}", "POST", f"/v1/runs/{run_id}/rerun", {})


def retry_run(run_id: UUID) -> Repair:
    return Repair("Retry from the failed step", f"ondot run retry {run_id}", "POST", f"/v1/runs/{run_id}/retry", {})


def backfill(job_id: UUID, from_at: datetime, to_at: datetime) -> Repair:
    command = f"ondot job backfill {job_id} --from {_instant(from_at)} --to {_instant(to_at)}"
    body = {"from_at": _instant(from_at), "to_at": _instant(to_at)}
    return Repair("Run the missed fires", command, "POST", f"/v1/jobs/{job_id}/backfill", body)


def run_now(job_id: UUID) -> Repair:
    return Repair("Run now", f"ondot job run {job_id}", "POST", f"/v1/jobs/{job_id}/run", {})


def resume(job_id: UUID) -> Repair:
    return Repair("Resume", f"ondot job resume {job_id}", "POST", f"/v1/jobs/{job_id}/resume", None)


def raise_concurrency(job_id: UUID, field: str, limit: int) -> Repair:
    """Twice the limit, for a line that does not shorten."""
    to = limit * 2
    flag = f"--{field.replace('_', '-')}"
    return Repair(
        f"Raise the limit to {to:,}",
        f"ondot job update {job_id} {flag} {to}",
        "PATCH",
        f"/v1/jobs/{job_id}",
        {field: to},
        right="jobs:write",
    )


def look_into(command: str) -> Repair:
    return Repair("Look into it", command)


def acknowledge(incident_id: UUID) -> Repair:
    path = f"/v1/incidents/{incident_id}/acknowledge"
    return Repair("Acknowledge", f"ondot incident ack {incident_id}", "POST", path, {})


def start_worker(pool: str) -> Repair:
    """No call does it: a worker is a process."""
    return Repair("Start a worker", "ondot worker" if pool == "default" else f"ondot worker --pool {pool}")


def explain_job(job_id: UUID) -> Repair:
    return Repair("Explain", f"ondot job explain {job_id}")


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
