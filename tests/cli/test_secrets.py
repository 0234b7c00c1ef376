"""The command line shows no secrets, and sends a key only to its own server."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp import web

from ondot.model.errors import Misconfigured, OndotError
from ondot.sdk import Client
from ondot.settings import load_settings
from tests.cli.running import ondot
from tests.proves import proves
from tests.receiver import Receiver, open_receiver

MARK = "s3cr3t"
URLS = [
    f"postgresql://u:{MARK}@127.0.0.1:1/db",
    f"postgresql://u@127.0.0.1:1/db?password={MARK}",
    f"postgresql://u@127.0.0.1:1/db?sslmode=disable&sslpassword={MARK}&pasword={MARK}",
    f"postgresql://u@127.0.0.1:1/db?passfile=/{MARK}",
    f"postgresql://u:{quote(MARK + '#/@?%')}@127.0.0.1:1/db",
    f"postgresql://u:{MARK}@127.0.0.1:1/db?sslmode={MARK}",
    f"postgresql://u:{MARK}@127.0.0.1:1,127.0.0.1:2/db?target_session_attrs={MARK}",
    f"postgresql://u:{MARK}#x@h/db",
    f"postgresql://u:{MARK}/x@h/db",
    f"postgresql://u:{MARK}@x@h/db",
    f"postgresql://u:[{MARK}@h/db",
    f"postgresql://u:{MARK}\u2100@h/db",
    f"host=h password={MARK}",
]


@proves("P12", "T5")
@pytest.mark.parametrize("url", URLS)
def test_no_command_shows_a_secret_of_the_database_url(url: str, tmp_path: Path) -> None:
    for words in (["doctor"], ["migrate", "status"], ["key", "list"], ["up", "--port", "0"]):
        ran = ondot(*words, cwd=tmp_path, database_url=url)
        assert ran.code != 0
        assert ran.out + ran.err
        assert "Unexpected error" not in ran.err
        assert MARK not in ran.out + ran.err


@proves("P12", "T5")
@pytest.mark.parametrize(
    "line",
    [
        f'database_url = "postgresql://u:{MARK}@x@h/db"',
        f'databse_url = "postgresql://u:{MARK}@h/db"',
        f'api-key = "{MARK}"',
        f'api_key = ["{MARK}"]',
        f'url = "ftp://u:{MARK}@h"',
        f'url = "http://[{MARK}"',
        f'objects_url = "s3://u:{MARK}@bucket"',
    ],
)
def test_a_fault_of_the_settings_does_not_quote_a_secret(line: str, tmp_path: Path) -> None:
    (tmp_path / "ondot.toml").write_text(f"{line}\n")
    ran = ondot("job", "list", cwd=tmp_path)
    assert ran.code == 2
    assert "The settings are not valid" in ran.err
    assert MARK not in ran.out + ran.err


@proves("P12")
def test_settings_do_not_show_their_secrets() -> None:
    settings = load_settings(database_url=f"postgresql://u:{MARK}@h/db", api_key=MARK)
    assert MARK not in repr(settings)
    assert MARK not in str(settings)


@pytest.fixture
async def server() -> AsyncIterator[Receiver]:
    async with open_receiver() as receiver:
        receiver.answer(lambda: web.json_response({"items": [], "next_cursor": None}))
        yield receiver


async def job_list(directory: Path, **settings: Any) -> tuple[int, str]:
    ran = await asyncio.to_thread(lambda: ondot("job", "list", "-o", "json", cwd=directory, **settings))
    return ran.code, ran.err


@proves("P12", "T1")
async def test_the_url_of_a_toml_does_not_get_the_key_of_the_environment(server: Receiver, tmp_path: Path) -> None:
    (tmp_path / "ondot.toml").write_text(f"url = {json.dumps(server.url)}\n")
    secret = tmp_path / "key"
    secret.write_text("ondot_mine")
    for settings in ({"api_key": "ondot_mine"}, {"api_key_file": str(secret)}):
        code, message = await job_list(tmp_path, **settings)
        assert code == 2
        assert "Set ONDOT_URL as well" in message
        assert "ondot_mine" not in message
    assert server.received == []


@proves("P12", "T1")
async def test_the_key_of_a_toml_is_not_sent_to_the_url_of_the_environment(server: Receiver, tmp_path: Path) -> None:
    (tmp_path / "ondot.toml").write_text('api_key = "ondot_theirs"\n')
    code, ran = await job_list(tmp_path, url=server.url)
    assert (code, server.received) == (2, [])
    assert "put `url` into ondot.toml" in ran
    assert "ondot_theirs" not in ran


@proves("T1")
@pytest.mark.parametrize(("toml", "variables"), [("both", ""), ("", "both"), ("url", "both"), ("key", "both")])
async def test_a_key_is_sent_to_a_url_from_the_same_place(
    server: Receiver, tmp_path: Path, toml: str, variables: str
) -> None:
    lines = {"url": 'url = "http://127.0.0.1:1"\n', "key": 'api_key = "ondot_theirs"\n'}
    both = f'url = {json.dumps(server.url)}\napi_key = "ondot_mine"\n'
    (tmp_path / "ondot.toml").write_text(both if toml == "both" else lines.get(toml, ""))
    settings = {"url": server.url, "api_key": "ondot_mine"} if variables else {}
    code, ran = await job_list(tmp_path, **settings)
    assert (code, ran) == (0, "")
    assert [received.headers["authorization"] for received in server.received] == ["Bearer ondot_mine"]


@proves("P12", "T1")
async def test_a_client_made_in_code_uses_no_key_of_a_toml(
    server: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ondot.toml").write_text('api_key = "ondot_theirs"\n')
    async with Client(server.url) as client:
        with pytest.raises(Misconfigured, match="from the same place"):
            await client.list_jobs()
    monkeypatch.setenv("ONDOT_API_KEY", "ondot_mine")
    async with Client(server.url) as client:
        await client.list_jobs()
    assert [received.headers["authorization"] for received in server.received] == ["Bearer ondot_mine"]


@proves("P12", "T1")
async def test_a_redirect_to_another_host_does_not_get_the_key(server: Receiver) -> None:
    async with open_receiver() as other:
        server.answer(lambda: web.Response(status=307, headers={"Location": f"{other.url}/v1/jobs"}))
        async with Client(server.url, "ondot_mine") as client:
            with pytest.raises(OndotError):
                await client.list_jobs()
        assert other.received == []
