"""The life of an embedded PostgreSQL, with real servers: started by root and by a user, stopped, killed.

Some of these run a child as an unprivileged user; what a machine cannot offer is skipped with its reason.
"""

import os
import shutil
import signal
from pathlib import Path

import psutil
import pytest

from ondot.embedded import postmaster
from ondot.embedded.binaries import find_binaries, version_of
from ondot.embedded.server import EmbeddedPostgres
from ondot.model.errors import Misconfigured
from ondot.settings import default_home
from tests.embedded.servers import (
    QUICK,
    STAY,
    await_ready,
    child,
    home_fixture,  # noqa: F401
    kill_group,
    only_root,
    ordinary_user,
    value,
)
from tests.proves import proves


@proves("O6")
def test_data_written_before_a_stop_is_there_after_the_next_start(home: Path) -> None:
    server = EmbeddedPostgres(home, settings=QUICK)
    url = server.start()
    assert server.alive()
    assert value(url, "CREATE TABLE kept AS SELECT 42 AS answer") is None
    server.stop()
    server.stop()
    assert not server.alive()
    assert server.pid is None

    with EmbeddedPostgres(home, settings=QUICK) as again:
        assert again.start() == url
        assert value(again.url, "SELECT answer FROM kept") == 42


@proves("O6", "P1")
def test_the_server_is_durable_speaks_utf8_and_utc_and_listens_on_no_network(home: Path) -> None:
    with EmbeddedPostgres(home) as server:
        expected = {
            "fsync": "on",
            "synchronous_commit": "on",
            "full_page_writes": "on",
            "data_checksums": "on",
            "listen_addresses": "",
            "server_encoding": "UTF8",
            "TimeZone": "UTC",
            "jit": "off",
            "shared_buffers": "256MB",
        }
        assert {name: value(server.url, f"SHOW {name}") for name in expected} == expected
        assert value(server.url, "SELECT datcollate FROM pg_database WHERE datname = 'ondot'") == "C"
        assert value(server.url, "SELECT current_setting('server_version_num')::int / 10000 >= 15") is True


@proves("O6")
def test_only_the_account_of_the_server_can_reach_its_socket(home: Path) -> None:
    with EmbeddedPostgres(home, settings=QUICK) as server:
        assert server.pid
        uid = psutil.Process(server.pid).uids().effective
        assert uid != 0
        for private in (home / "run", home / "data"):
            assert private.stat().st_mode & 0o777 == 0o700
            assert private.stat().st_uid == uid
        assert psutil.Process(server.pid).net_connections("inet") == []
        assert home.parent.stat().st_uid == os.geteuid()


@proves("O6")
def test_an_ordinary_user_can_start_it_in_a_directory_of_their_own(home: Path) -> None:
    user = ordinary_user()
    if user:
        os.chown(home.parent, user.uid, user.gid)
    with child(STAY, home, user=user) as process:
        _, server = await_ready(process)
        assert server.uids().effective == (user.uid if user else os.geteuid())
        assert home.stat().st_mode & 0o777 == 0o700
        process.communicate()
    assert psutil.wait_procs([server], timeout=30)[1] == []


@only_root
@proves("O6")
def test_root_runs_a_copy_of_programs_that_the_servers_account_cannot_reach(home: Path) -> None:
    package = find_binaries().parent.parent
    if not (package.parent / f"{package.name}.libs").exists():
        pytest.skip("the programs of the wheel are not installed")
    closed = home.parent / "closed"
    closed.mkdir(mode=0o700)
    tree = find_binaries().parent
    shutil.copytree(tree, closed / package.name / tree.name)
    shutil.copytree(package.parent / f"{package.name}.libs", closed / f"{package.name}.libs")
    hidden = closed / package.name / tree.name / "bin"

    with EmbeddedPostgres(home, binaries=hidden, settings=QUICK) as server:
        assert value(server.url, "SELECT 1") == 1
        assert server.pid
        running = Path(psutil.Process(server.pid).exe())
        assert running.is_relative_to(home / f"postgresql-{version_of(hidden)}")
        made = running.stat()
        assert made.st_uid == 0
    assert closed.stat().st_mode & 0o777 == 0o700

    with EmbeddedPostgres(home, binaries=hidden, settings=QUICK):
        assert running.stat().st_ino == made.st_ino, "the copy is made once"


@proves("O6")
def test_two_homes_run_side_by_side(home: Path) -> None:
    with EmbeddedPostgres(home / "a", settings=QUICK) as a, EmbeddedPostgres(home / "b", settings=QUICK) as b:
        value(a.url, "CREATE TABLE only_in_a ()")
        assert value(b.url, "SELECT to_regclass('only_in_a')::text") is None


@proves("O6")
def test_a_home_in_use_is_refused_with_the_pid_that_holds_it(home: Path) -> None:
    with EmbeddedPostgres(home, settings=QUICK) as server:
        with pytest.raises(Misconfigured, match=f"in use by process {os.getpid()}: stop it first"):
            EmbeddedPostgres(home, settings=QUICK).start()
        assert server.alive()
        assert value(server.url, "SELECT 1") == 1


@proves("O6")
def test_kill_9_of_the_whole_process_group_ends_in_a_clean_shutdown_and_a_restart_keeps_the_data(
    home: Path,
) -> None:
    with child(STAY, home) as process:
        url, orphan = await_ready(process)
        value(url, "CREATE TABLE kept AS SELECT 42 AS answer")
        kill_group(process)

    with EmbeddedPostgres(home, settings=QUICK) as server:
        assert value(server.url, "SELECT answer FROM kept") == 42
        assert psutil.wait_procs([orphan], timeout=10)[1] == []
        written = (home / "postgresql.log").read_text()
        assert "received fast shutdown request" in written
        assert "not properly shut down" not in written


@proves("O6")
def test_a_server_started_from_a_thread_outlives_the_thread_but_not_the_process(home: Path) -> None:
    body = "thread = threading.Thread(target=server.start)\nthread.start()\nthread.join()\n" + STAY
    with child(body, home) as process:
        url, orphan = await_ready(process)
        assert value(url, "SELECT 1") == 1
        kill_group(process)
    assert psutil.wait_procs([orphan], timeout=30)[1] == []
    assert "received fast shutdown request" in (home / "postgresql.log").read_text()


@proves("O6")
def test_a_server_that_was_killed_is_noticed_and_recovers_on_the_next_start(home: Path) -> None:
    with EmbeddedPostgres(home, settings=QUICK) as server:
        value(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
        killed = server.pid
        assert killed
        os.kill(killed, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(killed)], timeout=10)
        assert not server.alive()
        assert value(server.start(), "SELECT answer FROM kept") == 42
        assert server.pid != killed
        assert "not properly shut down" in (home / "postgresql.log").read_text()


@proves("O6")
def test_a_server_that_hangs_is_ended_within_bounds(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postmaster, "STOP_S", 0.1)
    monkeypatch.setattr(postmaster, "IMMEDIATE_STOP_S", 0.5)
    server = EmbeddedPostgres(home, settings=QUICK)
    server.start()
    assert server.pid
    frozen = psutil.Process(server.pid)
    frozen.suspend()
    server.stop()
    assert not frozen.is_running()


@proves("O6")
def test_the_default_home_is_the_users_data_directory_and_for_root_one_that_others_can_enter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_home() == Path("/var/lib/ondot")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_home() == Path("/data/ondot")
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/ada")
    assert default_home() == Path("/home/ada/.local/share/ondot")
