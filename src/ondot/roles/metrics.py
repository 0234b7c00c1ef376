"""Each role serves its own metrics (O2), at `ONDOT_METRICS_HOST` and `ONDOT_METRICS_PORT`, and reports its own state.

A process that a supervisor started counts in the supervisor's memory and serves nothing: `ondot worker --processes`
serves the sum of its workers, and the API of an `ondot up` that of all its processes. With `ONDOT_METRICS_AUTH=on` a
scraper sends the key of an owner; it is looked up on a connection of its own, so that also a process whose loop hangs
can be asked.
"""

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from typing import Final

from prometheus_client.core import Metric

from ondot.model.access import Right
from ondot.model.errors import OndotError
from ondot.model.keys import LONGEST, looks_like_a_key
from ondot.roles.listen import listen
from ondot.settings import Settings
from ondot.store.connection import AWAY, DATABASE_ERROR, Pool
from ondot.store.database import Database, connect
from ondot.store.keys import find_callers, present
from ondot.telemetry.log import get_logger
from ondot.telemetry.metrics import CONNECTIONS, PROCESSES, REGISTRY, STARTS
from ondot.telemetry.page import Page, make_page
from ondot.telemetry.serve import MetricsServer
from ondot.telemetry.sum import ProcessMetrics, sum_pages

KEY_LASTS_S: Final = 60.0
"""How long a key that was accepted is not looked up again."""
LOOKED_UP_WITHIN_S: Final = 5.0
PORT_IN_USE: Final = (
    "Set ONDOT_METRICS_PORT to another port for each process on this machine, or run several workers as one:"
    " `ondot worker --processes N` serves their sum."
)

log = get_logger()


def open_metrics(settings: Settings, role: str, pages: Sequence[int] = ()) -> ProcessMetrics:
    """Start to count as this role, and to serve. `pages`: descriptors from a supervisor: of this process, and those
    that it adds up. Raises Misconfigured if the port is in use."""
    REGISTRY.role = role
    if pages:
        REGISTRY.attach(Page.shared(pages[0]))
    STARTS.labels(role).inc()
    PROCESSES.follow(lambda: 1.0)
    metrics = ProcessMetrics(REGISTRY, [Page.shared(descriptor) for descriptor in pages[1:]])
    if settings.metrics_port is not None and (not pages or role == "api"):
        _serve(settings, metrics.collect_all)
    return metrics


def make_pages(names: Iterable[str]) -> dict[str, int]:
    """One for each child, by its name."""
    return {name: make_page() for name in names}


def serve_sum(settings: Settings, pages: Sequence[int]) -> MetricsServer:
    """In a supervisor: serve the sum of its children."""
    opened = [Page.shared(descriptor) for descriptor in pages]
    return _serve(settings, lambda: sum_pages(opened, REGISTRY.documentation))


def follow_connections(database: Database) -> None:
    """Show how busy the connections of this process are."""
    for use, pool in (("main", database.pool), ("patient", database.patient_pool)):
        if pool is None:
            continue
        CONNECTIONS.follow(pool.get_max_size, use, "most")
        CONNECTIONS.follow(pool.get_size, use, "open")
        CONNECTIONS.follow(partial(_count_busy, pool), use, "busy")
        CONNECTIONS.follow(partial(_count_waiting, pool), use, "waiting")


def _count_busy(pool: Pool) -> int:
    return pool.get_size() - pool.get_idle_size()


def _count_waiting(pool: Pool) -> int:
    """asyncpg itself does not show how many wait for a connection."""
    return len(pool._queue._getters)  # type: ignore[attr-defined]


def _serve(settings: Settings, collect: Callable[[], Iterable[Metric]]) -> MetricsServer:
    assert settings.metrics_port is not None
    listener = listen(settings.metrics_host, settings.metrics_port, PORT_IN_USE)
    may_read = KeyCheck(settings) if settings.metrics_auth == "on" else lambda _: HTTPStatus.OK
    server = MetricsServer(listener, collect, may_read)
    server.start()
    log.info("metrics.served", address="{}:{}".format(*listener.getsockname()[:2]))
    return server


class KeyCheck:
    """Whether a scraper's key has the right `fleet:manage`. One look-up at a time: wrong keys must not use up the
    connections of the database."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._looking = threading.Lock()
        self._accepted: dict[bytes, float] = {}

    def __call__(self, authorization: str | None) -> HTTPStatus:
        scheme, _, key = (authorization or "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or len(key) > LONGEST or not looks_like_a_key(key):
            return HTTPStatus.UNAUTHORIZED
        hashed = hashlib.sha256(key.encode()).digest()
        with self._looking:
            if time.monotonic() - self._accepted.get(hashed, -KEY_LASTS_S) < KEY_LASTS_S:
                return HTTPStatus.OK
            try:
                status = asyncio.run(self._look_up(key))
            except (OndotError, TimeoutError, DATABASE_ERROR, *AWAY):
                return HTTPStatus.SERVICE_UNAVAILABLE
            if status is HTTPStatus.OK:
                self._accepted = {hashed: time.monotonic()}
        return status

    async def _look_up(self, key: str) -> HTTPStatus:
        async with asyncio.timeout(LOOKED_UP_WITHIN_S):
            connection = await connect(self._settings)
            try:
                presented = present(key)
                found = (await find_callers(connection, [presented])).get(presented)
            finally:
                connection.terminate()
        if found is None:
            return HTTPStatus.UNAUTHORIZED
        return HTTPStatus.OK if found.caller.may(Right.FLEET_MANAGE) else HTTPStatus.FORBIDDEN
