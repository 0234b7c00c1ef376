"""`ondot context`: servers with their keys, in a private file; a key goes only to the URL beside it."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ondot.contexts import Context, Contexts, changed_contexts, contexts_file, read_contexts, server_of
from ondot.model.access import Role
from ondot.model.errors import Misconfigured, NotFound
from ondot.model.ids import DEFAULT_TENANT
from ondot.model.keys import new_key
from ondot.settings import load_settings
from ondot.store.keys import add_key
from tests.cli.running import Ran, ondot
from tests.proves import proves
from tests.receiver import open_receiver
from tests.ui.serving import served
from tests.world import World

PROD = Context("https://prod.example.com", "ondot_prod")
DEV = Context("http://127.0.0.1:1200")


@pytest.fixture
def config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    for name in ("ONDOT_URL", "ONDOT_API_KEY", "ONDOT_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config"


def keep(*contexts: tuple[str, Context], current: str | None = None) -> None:
    with changed_contexts() as versions:
        versions.append(Contexts(current, dict(contexts)))


@proves("D5", "P12")
def test_the_file_is_private_and_replaced_as_a_whole(config: Path) -> None:
    keep(("prod", PROD), current="prod")
    path = contexts_file()
    assert path.parent == config / "ondot"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    before = path.stat().st_ino
    keep(("prod", PROD), ("dev", DEV))
    assert path.stat().st_ino != before
    assert [file.name for file in path.parent.iterdir()] == ["contexts.json"]
    assert read_contexts() == Contexts(None, {"prod": PROD, "dev": DEV})
    assert "ondot_prod" not in repr(read_contexts())


@proves("D5", "P12")
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620])
def test_a_file_that_others_can_read_is_refused_with_advice(config: Path, mode: int) -> None:
    keep(("prod", PROD), current="prod")
    contexts_file().chmod(mode)
    with pytest.raises(Misconfigured, match="chmod 600"):
        server_of(load_settings())
    with pytest.raises(Misconfigured, match="chmod 600"):
        keep(("dev", DEV))
    contexts_file().chmod(0o600)
    contexts_file().parent.chmod(0o777)
    with pytest.raises(Misconfigured, match="chmod 700"):
        keep(("dev", DEV))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"current": null, "contexts": {"a": {"uri": 1}}}', "\x00"])
def test_a_broken_file_is_reported_with_what_to_do(config: Path, text: str) -> None:
    keep(("prod", PROD))
    contexts_file().write_text(text)
    with pytest.raises(Misconfigured, match="Remove it"):
        read_contexts()


def test_two_commands_at_once_lose_no_change(config: Path) -> None:
    def add(number: int) -> None:
        with changed_contexts() as versions:
            by_name = {**versions[0].by_name, f"c{number}": DEV}
            versions.append(Contexts(None, by_name))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(20)))
    assert len(read_contexts().by_name) == 20


@proves("D5")
def test_the_order_is_variables_then_context_then_file_then_default(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert server_of(load_settings()).url == "http://127.0.0.1:1200"
    (tmp_path / "ondot.toml").write_text('url = "https://toml.example.com"\napi_key = "ondot_toml"\n')
    assert server_of(load_settings()).key == "ondot_toml"
    keep(("prod", PROD), ("dev", DEV), current="prod")
    found = server_of(load_settings())
    assert (found.url, found.key, found.context) == (PROD.url, PROD.key, "prod")
    monkeypatch.setenv("ONDOT_CONTEXT", "dev")
    found = server_of(load_settings())
    assert (found.url, found.key, found.context) == (DEV.url, None, "dev")
    monkeypatch.delenv("ONDOT_CONTEXT")
    (tmp_path / "ondot.toml").unlink()
    monkeypatch.setenv("ONDOT_URL", "https://other.example.com")
    found = server_of(load_settings())
    assert (found.url, found.key, found.context, found.unused) == ("https://other.example.com", None, None, "prod")
    monkeypatch.setenv("ONDOT_API_KEY", "ondot_env")
    assert server_of(load_settings()).key == "ondot_env"


@proves("D5", "P12")
def test_a_key_never_goes_to_a_url_from_another_place(
    config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    keep(("prod", PROD), ("dev", DEV), current="dev")
    monkeypatch.setenv("ONDOT_API_KEY", "ondot_env")
    with pytest.raises(Misconfigured, match="ONDOT_API_KEY is set, but the URL comes from the context dev"):
        server_of(load_settings())
    monkeypatch.delenv("ONDOT_API_KEY")
    monkeypatch.setenv("ONDOT_URL", "https://x.example.com")
    monkeypatch.setenv("ONDOT_CONTEXT", "prod")
    with pytest.raises(Misconfigured, match="unset one"):
        server_of(load_settings())
    monkeypatch.delenv("ONDOT_URL")
    monkeypatch.setenv("ONDOT_CONTEXT", "gone")
    with pytest.raises(NotFound, match="dev, prod"):
        server_of(load_settings())
    monkeypatch.delenv("ONDOT_CONTEXT")
    (tmp_path / "ondot.toml").write_text('context = "prod"\n')
    with pytest.raises(Misconfigured, match=r"ondot\.toml"):
        server_of(load_settings())


async def key_of(world: World, role: Role) -> str:
    id_ = world.database.clock.new_id()
    key = new_key(id_)
    async with world.database.connection() as connection:
        await add_key(connection, id_, DEFAULT_TENANT, "laptop", key, role=role)
    return key


@proves("D5")
async def test_a_context_is_checked_used_listed_and_removed(world: World, tmp_path: Path) -> None:
    key = await key_of(world, Role.VIEWER)

    async def run(*words: str, stdin: str = "", **settings: Any) -> Ran:
        return await asyncio.to_thread(ondot, *words, stdin=stdin, config=tmp_path, cwd=tmp_path, **settings)

    async with served(world.database, auth="on") as page:
        added = await run("context", "add", "prod", "--url", page.url, "--key-stdin", stdin=f"{key}\n")
        assert (added.code, added.err) == (0, "")
        assert added.out.startswith("laptop, viewer of the tenant default, on ondot ")
        assert (await run("job", "list")).out.startswith("No jobs.")

        wrong = await run("context", "add", "bad", "--url", page.url, "--key-stdin", stdin="ondot_wrong\n")
        assert wrong.code == 2
        assert "bad" not in (await run("context", "list")).out
        kept = await run("context", "add", "bad", "--url", "http://127.0.0.1:1", "--no-check")
        assert kept.out == "Added bad, http://127.0.0.1:1. Use it: ondot context use bad\n"
        assert (await run("context", "list", "-o", "name")).out == "bad\nprod\n"
        assert key not in (await run("context", "list", "-o", "json")).out

        assert (await run("--context", "bad", "job", "list")).code == 5
        assert (await run("job", "list", context="bad")).code == 5
        # The flag wins over the variables, with the key of the context.
        assert (await run("--context", "prod", "job", "list", url="http://127.0.0.1:1", api_key="ondot_x")).code == 0
        assert (await run("context", "use", "bad")).code == 0
        assert (await run("job", "list")).code == 5
        await run("context", "use", "prod")

        hidden = await run("context", "use", "prod", url=page.url)
        assert (hidden.code, hidden.err) == (0, "ONDOT_URL is set here and comes first: unset ONDOT_URL to use prod.\n")
        last = await run("job", "list", "--context", "prod")
        assert last.code == 2
        assert "--context is written before the command: ondot --context NAME …" in last.err
        bare = await run("context", "add", "bare", "--url", "127.0.0.1:1200")
        assert "--url: must begin with http://" in bare.err

        unsent = await run("job", "list", url=page.url)
        assert unsent.code == 2
        assert "The key of the context prod is not sent" in unsent.err
        shown = json.loads((await run("context", "show", "-o", "json")).out)
        assert (shown["context"], shown["me"]["name"], shown["has_key"]) == ("prod", "laptop", True)
        assert (await run("context", "remove", "prod")).out == "Removed prod.\n"
        assert (await run("context", "use", "prod")).code == 3
        assert key not in (tmp_path / "ondot" / "contexts.json").read_text()


@proves("D5", "P12")
async def test_a_redirect_does_not_get_the_key(tmp_path: Path) -> None:
    async with open_receiver() as elsewhere, open_receiver() as server:
        server.answer(lambda: web.Response(status=307, headers={"location": f"{elsewhere.url}/v1/jobs"}))
        key = "ondot_not_yours"
        words = ("context", "add", "prod", "--url", server.url, "--key-stdin", "--no-check")
        await asyncio.to_thread(ondot, *words, config=tmp_path, stdin=key)
        ran = await asyncio.to_thread(ondot, "job", "list", config=tmp_path)
        assert ran.code != 0
        assert (len(server.received), elsewhere.received) == (1, [])
