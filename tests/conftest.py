"""Fixtures of every test: a separate database, a world with a clock turned by hand; and the summary of every run.

One PostgreSQL serves the whole session. Under xdist the controller starts it and passes its URL to the workers;
otherwise the first test that needs it starts it.
"""

import re
import zoneinfo
from collections.abc import AsyncIterator, Iterator
from functools import cache
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from brokers import Etcd, Kafka, Nats, RabbitMQ, Redis
from tests.brokers import share
from tests.servers import Running, Server, new_database
from tests.world import World, open_world

REQUIREMENTS = Path(__file__).parent.parent / "docs/reference/requirements.md"

FLEETS = ("tests/stories/", "faults/test_campaign", "faults/test_hostile", "faults/test_kill_nine", "faults/test_herd")
SPREAD_OVER = 0.8

_RUNNING = pytest.StashKey[Running]()


# The duration of an example means nothing while other tests run beside it.
settings.register_profile("ondot", deadline=None)
settings.load_profile("ondot")

# Oracles that use zoneinfo need the same rules as ondot: those of the tzdata package.
zoneinfo.reset_tzpath(to=())


@pytest.fixture(autouse=True)
def _keep_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command that a test runs in this process configures logs: not for the tests after it. Loggers that it caches
    would stay as they are then."""
    before = structlog.get_config()
    configure = structlog.configure
    monkeypatch.setattr(
        structlog, "configure", lambda **options: configure(**options | {"cache_logger_on_first_use": False})
    )
    yield
    configure(**before)


def pytest_configure(config: pytest.Config) -> None:
    if _is_controller(config):
        config.stash[_RUNNING] = Running()


def pytest_unconfigure(config: pytest.Config) -> None:
    if (running := config.stash.get(_RUNNING, None)) is not None:
        running.stop()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    server = node.config.stash[_RUNNING].server
    node.workerinput["server"] = (server.url, server.name, server.brokers)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if (running := config.stash.get(_RUNNING, None)) is not None:
        terminalreporter.write_line(f"servers: {running.server.name}")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(name: str, obj: object) -> None:
    if name.startswith("test_") and iscoroutinefunction(obj):
        pytest.mark.anyio(obj)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A test must not prove a requirement that is not in the list."""
    items[:] = _spread([item for item in items if _waits(item)], [item for item in items if not _waits(item)])
    if hasattr(config, "workerinput"):
        return  # a worker that stops while it collects reports no reason: there the tests themselves fail
    unknown = sorted(complaint for item in items for complaint in _unknown_requirements(item))
    if unknown:
        raise pytest.UsageError("\n".join(unknown))


def _waits(item: pytest.Item) -> bool:
    """Whole fleets of processes: they take long, and use little of a processor."""
    return any(part in item.nodeid for part in FLEETS)


def _spread(long: list[pytest.Item], short: list[pytest.Item]) -> list[pytest.Item]:
    """Keep the order, with the long tests evenly among the first of the others, so that none runs alone at the end."""
    ahead = len(short) * SPREAD_OVER
    places = [(ahead * (number + 1) / (len(long) + 1), item) for number, item in enumerate(long)]
    return [item for _, item in sorted([*places, *enumerate(short)], key=lambda place: place[0])]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if unknown := _unknown_requirements(item):
        pytest.fail("\n".join(unknown), pytrace=False)


def _unknown_requirements(item: pytest.Item) -> list[str]:
    known = _known_requirements()
    return [
        f"{item.nodeid} proves {code}, which is not in docs/reference/{REQUIREMENTS.name}"
        for marker in item.iter_markers("proves")
        for code in marker.args
        if known and code not in known
    ]


@cache
def _known_requirements() -> frozenset[str]:
    """Empty until the list is written."""
    text = REQUIREMENTS.read_text() if REQUIREMENTS.exists() else ""
    return frozenset(re.findall(r"\b[A-Z]\d+\b", text))


def _is_controller(config: pytest.Config) -> bool:
    return bool(config.getoption("numprocesses", None)) and not hasattr(config, "workerinput")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Server:
    config = request.config
    if (workerinput := getattr(config, "workerinput", None)) is not None:
        return Server(*workerinput["server"])
    if _RUNNING not in config.stash:
        config.stash[_RUNNING] = Running()
    return config.stash[_RUNNING].server


@pytest.fixture(scope="session")
def redis_url(server: Server) -> str:
    """The session's Redis: a test uses a prefix of its own in it."""
    return share(Redis, Path(server.brokers))


@pytest.fixture(scope="session")
def kafka_servers(server: Server) -> str:
    """The session's Kafka: a test uses topics of its own in it."""
    return share(Kafka, Path(server.brokers))


@pytest.fixture(scope="session")
def rabbitmq_url(server: Server) -> str:
    """The session's RabbitMQ: a test uses queues and exchanges of its own in it."""
    return share(RabbitMQ, Path(server.brokers))


@pytest.fixture(scope="session")
def etcd_url(server: Server) -> str:
    """The session's etcd: each database has keys of its own in it."""
    return share(Etcd, Path(server.brokers))


@pytest.fixture(scope="session")
def nats_url(server: Server) -> str:
    """The session's NATS: a test uses subjects of its own in it."""
    return share(Nats, Path(server.brokers))


@pytest.fixture
async def database_url(server: Server) -> AsyncIterator[str]:
    """A separate migrated database, on the real clock."""
    async with new_database(server) as url:
        yield url


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[World]:
    async with open_world(database_url) as world:
        yield world
