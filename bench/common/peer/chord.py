"""Celery's chord: a group whose end calls one more task. Two prefork children, results and broker in one Redis."""
# mypy: disable-error-code="import-not-found, import-untyped, untyped-decorator, no-untyped-call, no-any-return"

from celery import Celery, chord

from peer import PROCESSES, command, redis_url

PREFETCH = 128

app = Celery("peer.chord", broker=redis_url(), backend=redis_url())
app.conf.update(worker_prefetch_multiplier=PREFETCH, worker_enable_remote_control=False, worker_send_task_events=False)


@app.task(name="nothing")
def nothing(_before: object = None) -> None:
    """Do nothing."""


@app.task(name="last")
def last(results: list[None]) -> int:
    return len(results)


@app.task(name="first")
def first() -> None:
    """Do nothing."""


def workers() -> list[list[str]]:
    flags = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    return [command("celery", "-A", "peer.chord", "worker", "--concurrency", str(PROCESSES), *flags)]


def run_fan(count: int, within_s: float) -> int:
    """Run one task, as many beside each other, and one more; returns how many results the last one got."""
    middle = chord([nothing.s() for _ in range(count)], last.s())
    running = (first.si() | middle).apply_async()
    count = running.get(timeout=within_s, interval=0.005)
    running.forget()  # not when Redis is gone
    return count
