"""Whose directory a home is: real ones, of real accounts, as an attacker would leave them."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ondot.cli.calling import database_settings
from ondot.embedded.binaries import choose_account
from ondot.embedded.home import make_home
from ondot.embedded.server import EmbeddedPostgres
from ondot.model.errors import Misconfigured, Unavailable
from ondot.objects import open_objects
from ondot.private import check_private
from ondot.roles.up import refuse_account_of_server
from ondot.settings import load_settings
from tests.embedded.servers import NOBODY, QUICK, only_root
from tests.proves import proves


@pytest.fixture
def place() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="ondot-home-")).resolve()
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@proves("O6", "P12")
def test_a_home_that_is_made_is_ours_alone(place: Path) -> None:
    home = place / "a" / "home"
    make_home(home, None)
    assert home.stat().st_mode & 0o777 == 0o700
    assert home.parent.stat().st_mode & 0o777 == 0o700


@only_root
@proves("O6", "P12")
def test_the_servers_account_may_go_through_a_home_and_not_look_around(place: Path) -> None:
    make_home(place / "home", NOBODY)
    assert (place / "home").stat().st_mode & 0o777 == 0o711


@proves("P12")
@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o757, 0o702])
def test_a_home_that_everyone_may_write_to_is_refused(place: Path, mode: int) -> None:
    home = place / "home"
    home.mkdir()
    home.chmod(mode)
    with pytest.raises(Misconfigured, match=f"Everyone may write to {home}.*chmod go-w {home}"):
        EmbeddedPostgres(home, settings=QUICK).start()
    assert list(home.iterdir()) == []


@only_root
@proves("P12")
def test_a_home_that_a_group_of_others_may_write_to_is_refused(place: Path) -> None:
    home = place / "home"
    home.mkdir()
    os.chown(home, 0, NOBODY.gid)
    home.chmod(0o770)
    with pytest.raises(Misconfigured, match=r"The group of \w+ may write"):
        check_private(home)
    # A group that nobody else is in is as good as none.
    os.chown(home, 0, 54321)
    check_private(home)


@only_root
@proves("P12")
@pytest.mark.parametrize("whose", ["home", "parent", "link", "target"])
def test_a_home_that_another_user_owns_or_could_replace_is_refused(place: Path, whose: str) -> None:
    parent, home = place / "parent", place / "parent" / "home"
    (place / "target" / "home").mkdir(parents=True)
    if whose in {"link", "target"}:
        parent.symlink_to(place / "target")
    else:
        home.mkdir(parents=True)
    theirs = {"home": home, "parent": parent, "link": parent, "target": place / "target"}[whose]
    check_private(home)
    os.chown(theirs, NOBODY.uid, NOBODY.gid, follow_symlinks=False)
    with pytest.raises(Misconfigured, match=f"{theirs} belongs to nobody.*--home or ONDOT_HOME"):
        EmbeddedPostgres(home, settings=QUICK).start()
    assert list(home.iterdir()) == []


@proves("P12")
def test_a_parent_that_everyone_may_write_to_is_refused_unless_it_is_sticky(place: Path) -> None:
    parent = place / "shared"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(Misconfigured, match=f"Everyone may write to {parent}"):
        make_home(parent / "home", None)
    assert not (parent / "home").exists()
    parent.chmod(0o1777)
    make_home(parent / "home", None)
    assert (parent / "home").stat().st_mode & 0o777 == 0o700


@only_root
@proves("P12")
def test_nothing_is_made_behind_a_strangers_link_in_a_sticky_directory(place: Path) -> None:
    shared = place / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "home").symlink_to(place / "elsewhere")
    os.chown(shared / "home", NOBODY.uid, NOBODY.gid, follow_symlinks=False)
    with pytest.raises(Misconfigured, match="belongs to nobody"):
        make_home(shared / "home" / "deeper", None)
    assert not (place / "elsewhere").exists()


@proves("P12")
def test_links_that_lead_in_a_circle_end(place: Path) -> None:
    (place / "one").symlink_to(place / "two")
    (place / "two").symlink_to(place / "one")
    with pytest.raises(Misconfigured, match="is a symbolic link"):
        EmbeddedPostgres(place / "one" / "home", settings=QUICK).start()


@proves("P12")
def test_a_home_of_our_own_behind_a_link_of_our_own_is_accepted(place: Path) -> None:
    (place / "disk").mkdir(mode=0o700)
    (place / "home").symlink_to("disk")
    check_private(place / "home")
    (place / "disk").chmod(0o777)
    with pytest.raises(Misconfigured, match=f"Everyone may write to {place / 'disk'}"):
        check_private(place / "home")


@proves("P12")
@pytest.mark.parametrize("name", ["ondot.lock", "server.lock", "postgresql.log"])
def test_a_link_in_a_home_is_not_written_through(place: Path, name: str) -> None:
    home, victim = place / "home", place / "victim"
    home.mkdir(mode=0o711)
    victim.write_text("precious")
    (home / name).symlink_to(victim)
    with pytest.raises(Misconfigured, match=f"{home / name} is a symbolic link"):
        EmbeddedPostgres(home, settings=QUICK).start()
    assert victim.read_text() == "precious"


@only_root
@proves("P12")
async def test_output_is_not_put_into_a_home_that_is_a_strangers(place: Path) -> None:
    home = place / "home"
    home.mkdir()
    os.chown(home, NOBODY.uid, NOBODY.gid)
    with pytest.raises(Unavailable, match="belongs to nobody"):
        await open_objects(load_settings(home=home)).put("key", b"content")
    assert list(home.iterdir()) == []


@only_root
@proves("T4", "P12")
def test_commands_do_not_run_as_the_account_of_the_embedded_server(place: Path) -> None:
    server = choose_account(place / "data")
    assert server is not None
    with pytest.raises(Misconfigured, match="name another account"):
        refuse_account_of_server(server.name, place / "data")
    refuse_account_of_server("daemon", place / "data")
    refuse_account_of_server(None, place / "data")


@only_root
@proves("P12")
def test_a_command_is_not_led_to_the_database_of_a_strangers_home(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "home" / "data").mkdir(parents=True)
    (place / "home" / "data" / "postmaster.pid").write_text(f"1\n\n\n5432\n{place}\n")
    monkeypatch.chdir(place)
    assert str(database_settings(home=place / "home").database_url).startswith("postgresql://ondot@/ondot?host=")
    os.chown(place / "home", NOBODY.uid, NOBODY.gid)
    with pytest.raises(Misconfigured, match="belongs to nobody"):
        database_settings(home=place / "home")
