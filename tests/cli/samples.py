"""Answers of the API as the command line gets them."""

from typing import Any

JOB_ID = "019a1de9-4d8d-7d9d-8dd7-1801991e16d7"
EXECUTION_ID = "019a1de9-4d27-75d2-8eac-f20415957ca8"
WORKER_ID = "019a1de9-9b23-7aac-b1ca-34bc80b2579e"


def job(**changes: Any) -> dict[str, Any]:
    return {
        "id": JOB_ID,
        "name": "daily-report",
        "state": "ACTIVE",
        "key": None,
        "depends_on": [],
        "version": 1,
        "next_fire_at": "2026-11-16T08:00:00Z",
        "schedule_in_words": "At 09:00, Monday through Friday, Europe/Berlin",
        "schedule": {"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"},
        "target": {"http": {"url": "https://example.com/report", "method": "POST", "headers": {}}},
        "payload": {"region": "eu"},
        "pool": "default",
        "priority": "normal",
        "labels": {"team": "bi"},
        "retry": {"max_retries": 3, "backoff": "exponential", "initial": 1},
        "timeout": None,
        "created_at": "2026-11-15T09:00:00Z",
        "updated_at": "2026-11-15T09:00:00Z",
        "latest_executions": [],
    } | changes


def execution(**changes: Any) -> dict[str, Any]:
    return {
        "id": EXECUTION_ID,
        "job_id": JOB_ID,
        "job_version": 1,
        "job_name": "daily-report",
        "state": "FAILED",
        "origin": "fire",
        "fire_at": "2026-11-15T11:58:00Z",
        "ready_at": "2026-11-15T11:58:00Z",
        "started_at": "2026-11-15T11:58:00.100000Z",
        "ended_at": "2026-11-15T11:58:01.400000Z",
        "attempt": 2,
        "failures": 2,
        "losses": 0,
        "worker_id": WORKER_ID,
        "pool": "default",
        "priority_class": "normal",
        "payload": None,
        "result": None,
        "error": {"code": "exception", "message": "ValueError: line 17 has no e-mail address"},
        "reason": "1 retry used, none left",
        "progress": {"fraction": 0.5, "message": "half of it"},
        "attempts": [
            {
                "attempt": number,
                "outcome": "FAILED",
                "worker_id": WORKER_ID,
                "started_at": "2026-11-15T11:58:00.100000Z",
                "ended_at": "2026-11-15T11:58:01.400000Z",
                "error": {"code": "exception", "message": "ValueError: line 17 has no e-mail address"},
            }
            for number in (1, 2)
        ],
    } | changes
