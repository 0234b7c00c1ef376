"""The first screen of `ondot up`: where it is, what is open and why, what to try."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ondot.cli.up import first_screen, log_level, what_is_open
from ondot.roles.up import Running
from ondot.settings import load_settings
from tests.proves import proves

URL = "http://127.0.0.1:1200"


@pytest.fixture(autouse=True)
def _no_settings_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def screen(*, demo: bool = False, database_url: str | None = None, **settings: Any) -> str:
    running = Running(URL, None if database_url else Path("/data/ondot"), "embedded PostgreSQL")
    return "\n".join(first_screen(running, load_settings(database_url=database_url, **settings), demo=demo))


def curl(shown: str) -> list[str]:
    return shlex.split(next(line for line in shown.splitlines() if "curl" in line))


@proves("O6")
def test_it_shows_all_addresses() -> None:
    shown = screen()
    for expected in (URL, f"{URL}/docs", "/data/ondot (embedded PostgreSQL)", "Ctrl-C stops it; nothing is lost."):
        assert expected in shown


def test_the_curl_line_can_be_pasted() -> None:
    for demo in (False, True):
        *words, body = curl(screen(demo=demo))
        assert words[-2] == f"{URL}/v1/jobs"
        assert words[-1] == "-d"
        assert isinstance(json.loads(body), dict)
    assert json.loads(curl(screen(demo=True))[-1])["function"] == "hello"


def test_on_loopback_it_shows_that_no_key_is_needed_and_why() -> None:
    no_key, others, private, shell = what_is_open(load_settings(home=Path("/data/ondot")))
    assert "No API key" in no_key
    assert "this account" in no_key
    assert "/data/ondot/token" in others
    assert "may call private" in private
    assert "may not run shell" in shell


def test_on_a_network_it_shows_that_a_key_is_needed() -> None:
    key, private, shell = what_is_open(load_settings(host="0.0.0.0", allow_shell=True))
    assert "ondot key create" in key
    assert "may not call private" in private
    assert "may run shell" in shell
    assert "Authorization: Bearer ondot_…" in curl(screen(host="0.0.0.0"))


def test_a_key_can_be_required_on_loopback() -> None:
    assert "needs an API key" in what_is_open(load_settings(auth="on"))[0]


def test_the_password_of_a_database_is_not_shown() -> None:
    shown = screen(database_url="postgresql://ondot:s3cret@db:5432/ondot")
    assert "s3cret" not in shown
    assert "postgresql://ondot@db:5432/ondot" in shown


@pytest.mark.parametrize(
    ("settings", "verbose", "level"),
    [
        ({}, False, "warning"),
        ({}, True, "info"),
        ({"log_level": "debug"}, False, "debug"),
        ({"log_level": "info"}, False, "info"),
    ],
)
def test_the_roles_are_quiet_by_default(settings: dict[str, Any], verbose: bool, level: str) -> None:
    assert log_level(load_settings(**settings), verbose=verbose) == level
