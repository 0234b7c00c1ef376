"""Celery beat for the herd: N crontab entries kept in memory, sent to the worker of `peer.celery`.

A crontab is due at full minutes only. To avoid waiting for one, its clock (`nowfun`) is set back by the seconds from
the last full minute to the due instant.
"""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

from datetime import UTC, datetime, timedelta

from celery.schedules import crontab

from peer.celery import app
from peer.herd import read_task

__all__ = ["app"]

count, due_s = read_task()
BACK = timedelta(seconds=due_s % 60)
due_at = datetime.fromtimestamp(due_s, UTC) - BACK


def now() -> datetime:
    return datetime.now(UTC) - BACK


app.conf.beat_schedule = {
    f"mark-{number}": {
        "task": "mark",
        "schedule": crontab(minute=str(due_at.minute), hour=str(due_at.hour), nowfun=now),
        "args": (number,),
    }
    for number in range(count)
}
