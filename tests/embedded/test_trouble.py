"""An embedded PostgreSQL in trouble: it is repaired, or the error says what to do about it.

Nothing is simulated but the disk's size, by a small tmpfs in a mount namespace of the child.
"""

import os
import subprocess
import time
from pathlib import Path

import pytest

from ondot.embedded import binaries, postmaster
from ondot.embedded import home as homes
from ondot.embedded.binaries import choose_account, find_binaries
from ondot.embedded.server import EmbeddedPostgres
from ondot.model.errors import Misconfigured
from tests.embedded.servers import (
    AS_ROOT,
    QUICK,
    STAY,
    child,
    home_fixture,  # noqa: F401
    kill_group,
    only_root,
    ordinary_user,
    said,
    value,
)
from tests.proves import proves


@only_root
@proves("O6")
def test_the_error_for_root_names_the_directory_that_keeps_the_servers_account_out(home: Path) -> None:
    home.parent.chmod(0o700)
    with pytest.raises(Misconfigured, match=f"may not enter {home.parent}: .*ONDOT_HOME=/var/lib/ondot"):
        EmbeddedPostgres(home, settings=QUICK).start()
    assert home.parent.stat().st_mode & 0o777 == 0o700


@only_root
@proves("O6")
def test_the_error_for_root_without_an_unprivileged_account_says_what_to_do(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binaries, "UNPRIVILEGED", ("no-such-user",))
    with pytest.raises(Misconfigured, match="start ondot as an ordinary user"):
        EmbeddedPostgres(home, settings=QUICK).start()


@only_root
@proves("O6")
def test_data_that_root_restored_is_changed_to_the_servers_account(home: Path) -> None:
    with EmbeddedPostgres(home, settings=QUICK) as server:
        value(server.url, "CREATE TABLE kept AS SELECT 42 AS answer")
    for path in (home / "data", *(home / "data").rglob("*")):
        os.chown(path, 0, 0, follow_symlinks=False)
    with EmbeddedPostgres(home, settings=QUICK) as server:
        assert value(server.url, "SELECT answer FROM kept") == 42


@proves("O6")
@pytest.mark.parametrize("name", ["deep/" * 20 + "home", "with space, 'quotes' and ümlaut"])
def test_a_long_or_odd_home_gets_its_socket_in_a_short_private_directory(home: Path, name: str) -> None:
    server = EmbeddedPostgres(home / name, settings=QUICK)
    with server:
        assert value(server.url, "SELECT current_database()") == "ondot"
        directory = Path(str(value(server.url, "SHOW unix_socket_directories")))
        assert len(str(directory)) <= 86
        assert directory.stat().st_mode & 0o777 == 0o700
        assert not directory.is_relative_to(home)
    assert not directory.exists()


@proves("O6")
def test_a_socket_directory_of_another_user_is_not_used(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long_home = home / ("deep/" * 20)
    long_home.mkdir(parents=True)
    for temporary in ("first", "second"):
        (home / temporary).mkdir(mode=0o755)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "first"))
    account = choose_account(long_home / "data")
    taken = homes.socket_directory(long_home, account, "socket")
    assert taken.parent == home / "first"
    taken.chmod(0o777)
    assert homes.socket_directory(long_home, account, "socket").parent != home / "first"
    taken.rmdir()
    taken.symlink_to(home / "second")
    other = homes.socket_directory(long_home, account, "socket")
    assert other.parent != home / "first"
    other.rmdir()


@proves("O6")
def test_a_pid_file_whose_pid_now_belongs_to_another_process_is_not_believed(home: Path) -> None:
    with EmbeddedPostgres(home, settings=QUICK) as server:
        note = (home / "data" / "postmaster.pid").read_text()
        owner = (home / "data").stat()
        assert server.pid
        stale = note.replace(str(server.pid), "{pid}", 1)
    # Of the same account as the server: PostgreSQL itself sees through the pids of others.
    bystander = subprocess.Popen(["sleep", "60"], user=owner.st_uid if AS_ROOT else None)
    try:
        path = home / "data" / "postmaster.pid"
        path.write_text(stale.format(pid=bystander.pid))
        os.chown(path, owner.st_uid, owner.st_gid)
        with EmbeddedPostgres(home, settings=QUICK) as server:
            assert value(server.url, "SELECT 1") == 1
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@proves("O6")
def test_a_server_that_was_started_by_hand_on_our_data_is_left_alone(home: Path) -> None:
    with EmbeddedPostgres(home, settings=QUICK):
        pass
    command = [str(find_binaries() / "postgres"), "-D", str(home / "data"), "-c", "listen_addresses=", "-k"]
    account = choose_account(home / "data")
    with (home / "by-hand.log").open("wb") as output:
        by_hand = postmaster.Guarded([*command, str(home / "run")], account, output=output.fileno())
    try:
        deadline = time.monotonic() + 30
        while postmaster.ask(home / "run" / ".s.PGSQL.5432", "ondot", "ondot") != "":
            assert time.monotonic() < deadline
        with pytest.raises(Misconfigured, match=f"process {by_hand.process.pid}, runs on .*pg_ctl stop"):
            EmbeddedPostgres(home, settings=QUICK).start()
        assert by_hand.alive()
    finally:
        by_hand.stop()


@proves("O6")
def test_an_initdb_that_was_killed_half_way_starts_from_scratch(home: Path) -> None:
    with child(STAY, home) as process:
        deadline = time.monotonic() + 30
        while not any(home.glob("data.new-*/PG_VERSION")):
            assert time.monotonic() < deadline
        kill_group(process)
    assert not (home / "data").exists()

    with EmbeddedPostgres(home, settings=QUICK) as server:
        assert value(server.url, "SELECT 1") == 1
    assert list(home.glob("data.new-*")) == []


@proves("O6")
def test_a_data_directory_with_something_else_in_it_is_not_touched(home: Path) -> None:
    (home / "data").mkdir(parents=True)
    (home / "data" / "thesis.txt").write_text("years of work")
    with pytest.raises(Misconfigured, match="contains files but no PostgreSQL data: move it away"):
        EmbeddedPostgres(home, settings=QUICK).start()
    assert (home / "data" / "thesis.txt").read_text() == "years of work"


@proves("O6")
def test_data_of_a_version_that_is_not_at_hand_is_refused_with_both_versions(home: Path) -> None:
    (home / "data").mkdir(parents=True)
    (home / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(Misconfigured, match=r"made by PostgreSQL 9, but the one found is \d+"):
        EmbeddedPostgres(home, settings=QUICK).start()


@proves("O6")
def test_data_of_an_older_version_is_opened_with_that_version_if_it_is_at_hand(home: Path) -> None:
    newest = find_binaries()
    older = [path for path in newest.parent.parent.glob("pginstall*/bin") if path != newest]
    if not older:
        pytest.skip("only one version of PostgreSQL is installed")
    with EmbeddedPostgres(home, binaries=older[0], settings=QUICK) as server:
        made_by = value(server.url, "SHOW server_version")
    with EmbeddedPostgres(home, settings=QUICK) as server:
        assert value(server.url, "SHOW server_version") == made_by
    with pytest.raises(Misconfigured, match="was made by PostgreSQL"):
        EmbeddedPostgres(home, binaries=newest, settings=QUICK).start()


@proves("O6")
def test_a_home_that_is_a_file_is_named(home: Path) -> None:
    home.write_text("")
    for place in (home, home / "below"):
        with pytest.raises(Misconfigured, match=f"{home}.* is a file where a directory must be"):
            EmbeddedPostgres(place, settings=QUICK).start()


@proves("O6")
def test_a_home_that_cannot_be_written_is_named(home: Path) -> None:
    home.mkdir()
    home.chmod(0o555)
    body = "try:\n    server.start()\nexcept Misconfigured as refusal:\n    print(refusal.message)"
    with child(body, home, user=ordinary_user()) as process:
        assert f"ondot may not write to {home}/ondot.lock (Permission denied)" in said(process)


@only_root
@proves("O6")
@pytest.mark.parametrize("full", ["at the first start", "later"])
def test_a_full_disk_is_named(home: Path, full: str) -> None:
    # A mount namespace of its own: the file system is gone with the child, whatever happens to it.
    wrapper = ("unshare", "--mount", "--propagation", "private")
    if subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine allows no mount namespace")
    home.mkdir()
    size = "16m" if full == "at the first start" else "100m"
    body = f"""
subprocess.run(["mount", "-t", "tmpfs", "-o", "size={size},mode=755", "tmpfs", str(home)], check=True)
try:
    server.start()
    server.stop()
except Misconfigured as refusal:
    sys.exit(print("first:", refusal.message))
try:
    with (home / "ballast").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
except OSError:
    pass
try:
    server.start()
except Misconfigured as refusal:
    print("later:", refusal.message)
"""
    with child(body, home, wrapper=wrapper) as process:
        output = said(process)
    assert ("first:" if full == "at the first start" else "later:") in output
    assert f"here is no space left on the disk of {home}" in output


@proves("O6")
def test_a_failed_start_shows_the_last_lines_of_the_servers_log(home: Path) -> None:
    server = EmbeddedPostgres(home, settings=QUICK | {"max_connections": "many"})
    with pytest.raises(Misconfigured, match=r'did not start.*\n.*invalid value for parameter "max_connections"'):
        server.start()
    assert not server.alive()
    with EmbeddedPostgres(home, settings=QUICK) as repaired:
        assert repaired.alive()


@proves("O6")
def test_a_log_that_grew_large_is_put_aside_at_the_next_start(home: Path) -> None:
    with EmbeddedPostgres(home, settings=QUICK) as server:
        os.truncate(server.log_path, 11_000_000)
    with EmbeddedPostgres(home, settings=QUICK) as server:
        assert server.log_path.stat().st_size < 100_000
        assert server.log_path.with_name("postgresql.log.1").stat().st_size >= 11_000_000


@proves("O6")
def test_the_error_without_postgresql_says_how_to_get_one() -> None:
    with pytest.raises(Misconfigured, match=r"No PostgreSQL 9 .*pip install 'ondot\[embedded\]'.*ONDOT_DATABASE_URL"):
        find_binaries(9)


@proves("O6")
def test_programs_that_do_not_run_are_named(home: Path) -> None:
    with pytest.raises(Misconfigured, match=f"initdb and postgres in {home}/bin do not run"):
        EmbeddedPostgres(home, binaries=home / "bin").start()
