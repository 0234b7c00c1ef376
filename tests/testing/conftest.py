"""Worlds of these tests live on the session's own PostgreSQL: it is named, as a user names one in CI."""

import pytest

from ondot.testing.server import VARIABLE
from tests.servers import Server


@pytest.fixture(autouse=True)
def named_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, server.url)
