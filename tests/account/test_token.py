"""The token of a home: who can read it, and where it is sent."""

import os
import socket
import stat
from pathlib import Path

import pytest

from ondot.account import token as module
from ondot.account.sockets import OwnerUnknown, Socket
from ondot.account.token import NAME, keep_token, token_for
from ondot.model.errors import Misconfigured
from tests.proves import proves


@proves("T1")
def test_a_token_is_made_once_and_is_private(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    token = keep_token(home)
    assert stat.S_IMODE((home / NAME).stat().st_mode) == 0o600
    assert keep_token(home) == token
    assert len(token) > 40
    assert [path.name for path in home.iterdir()] == [NAME]
    assert keep_token(tmp_path / "other") != token


@proves("T1")
@pytest.mark.parametrize("trouble", ["readable", "link", "empty", "directory", "open home"])
def test_a_token_that_others_may_have_written_or_read_is_not_used(tmp_path: Path, trouble: str) -> None:
    home = tmp_path / "home"
    keep_token(home)
    path = home / NAME
    match trouble:
        case "readable":
            path.chmod(0o644)
        case "link":
            path.rename(tmp_path / "elsewhere")
            path.symlink_to(tmp_path / "elsewhere")
        case "empty":
            path.write_text("")
        case "directory":
            path.unlink()
            path.mkdir()
        case _:
            home.chmod(0o777)
    with pytest.raises(Misconfigured):
        keep_token(home)


@proves("T1", "P12")
def test_a_client_sends_the_token_only_to_a_server_of_the_account_that_it_belongs_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = keep_token(tmp_path / "home")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        assert token_for(url, tmp_path / "home") == token
        assert token_for(f"http://localhost:{port}", tmp_path / "home") == token
        for elsewhere in (f"https://127.0.0.1:{port}", "http://example.com:1200", f"http://127.0.0.1.evil:{port}"):
            assert token_for(elsewhere, tmp_path / "home") is None
        assert token_for(url, tmp_path / "none") is None
        monkeypatch.setattr(module, "find_listener", lambda _: Socket(10, os.geteuid() + 1, 5))
        assert token_for(url, tmp_path / "home") is None
        monkeypatch.setattr(module, "find_listener", _find_nothing)
        assert token_for(url, tmp_path / "home") == token
    monkeypatch.undo()
    assert token_for(url, tmp_path / "home") is None


def _find_nothing(_: object) -> Socket | None:
    raise OwnerUnknown("no such thing here")
