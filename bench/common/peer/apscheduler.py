"""APScheduler 3 for the herd: memory job store, its default thread pool of ten, jobs that are late still run."""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, arg-type, no-untyped-call"

from datetime import UTC, datetime

from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.cron import CronTrigger

from peer.herd import read_task
from peer.marks import mark


def work() -> None:
    count, due_s = read_task()
    due_at = datetime.fromtimestamp(due_s, UTC)
    scheduler = BlockingScheduler(timezone=UTC, job_defaults={"misfire_grace_time": None})
    for number in range(count):
        trigger = CronTrigger(hour=due_at.hour, minute=due_at.minute, second=due_at.second, timezone=UTC)
        scheduler.add_job(mark, trigger, (number,))
    scheduler.start()


if __name__ == "__main__":
    work()
