"""Known secrets go in by every door of a running ondot; then every output is searched for them (T5, P12).

The search finds a canary as it is, in hex, percent-encoded and in base64, also inside a longer text in base64. A
control that hides nothing must be found in the same outputs, or the search is broken.
"""

import asyncio
import base64
import json
import os
import re
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from aiohttp import web

from ondot.kms import generate_key
from tests.cli.running import ondot
from tests.proves import proves
from tests.receiver import Receiver, open_receiver
from tests.servers import connected
from tests.stories.outage import until

APP = """
import logging
from ondot import Context, Ondot

app = Ondot()


@app.job(secrets=["inside"], retries=0)
async def leak(ctx: Context, given: str = "", fail: bool = False) -> dict[str, str]:
    value = ctx.secret("inside")
    print("printed", value, given)
    logging.getLogger("leak").warning("logged by the function: %s", value)
    ctx.log("said", value=value)
    ctx.progress(0.5, f"at {value}")
    ctx.heartbeat(checkpoint={"value": value, "given": given})
    if fail:
        raise RuntimeError(f"raised {value} and {given}")
    return {"value": value, "given": given}


@app.job(retries=0)
def leak_in_thread(given: str) -> str:
    print(given)
    return given
"""
CONTROL = "control-canary"


def canary(name: str) -> str:
    return f"{name}-{secrets.token_hex(12)}"


def forms(value: str) -> Iterator[str]:
    """Written for this test, so that a gap in what ondot scrubs shows."""
    raw = value.encode()
    yield value
    yield quote(value, safe="")
    yield raw.hex()
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
        yield encoded[-(-before * 8 // 6) + (1 if before else 0) : -1 - (len(raw) + before) % 3]


class Search:
    def __init__(self, canaries: dict[str, str]) -> None:
        patterns = {name: "|".join(re.escape(form) for form in forms(value)) for name, value in canaries.items()}
        self._patterns = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in patterns.items()}
        self.outputs: dict[str, int] = {}
        self.found: list[str] = []
        self.controls = 0

    def add(self, name: str, value: str) -> None:
        self._patterns[name] = re.compile("|".join(re.escape(form) for form in forms(value)), re.IGNORECASE)

    def look(self, kind: str, where: str, text: str) -> None:
        self.outputs[kind] = self.outputs.get(kind, 0) + 1
        self.controls += CONTROL in text
        self.found += [f"{name} in {kind} {where}" for name, pattern in self._patterns.items() if pattern.search(text)]


@proves("T5")
@pytest.mark.parametrize("around", [b"", b"a", b"ab", b"abc", b"user:"])
def test_the_search_finds_every_form(around: bytes) -> None:
    value = canary("x")
    raw = around + value.encode() + around
    for text in (value, quote(value, safe=""), raw.hex(), raw.hex().upper(), base64.b64encode(raw).decode()):
        search = Search({"x": value})
        search.look("texts", "here", f"before {text} after")
        assert search.found == ["x in texts here"]
    search = Search({"x": value})
    search.look("texts", "here", f"{value[:-1]} {canary('x')}")
    assert search.found == []


class Running:
    def __init__(self, url: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.url = url
        self.process = process
        self.log = log
        self.key = ""

    async def ask(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        return await asyncio.to_thread(_ask, method, self.url + path, body, self.key)

    async def made(self, method: str, path: str, body: object) -> dict[str, Any]:
        status, text = await self.ask(method, path, body)
        assert status in {200, 201, 202}, text
        answer: dict[str, Any] = json.loads(text)
        return answer


def _ask(method: str, url: str, body: object, key: str) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"idempotency-key": secrets.token_hex(8), "authorization": f"Bearer {key}"}
    headers |= {"content-type": "application/json"} if data is not None else {}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, f"{answer.headers}\n{answer.read().decode(errors='replace')}".partition("\n\n")[2]
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")


@asynccontextmanager
async def running(directory: Path, environment: dict[str, str]) -> AsyncIterator[Running]:
    (directory / "leaky.py").write_text(APP)
    log = directory / "roles.log"
    with log.open("w") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ondot", "up", "--port", "0", "--allow-shell", "--verbose", "--app", "leaky:app"),
            cwd=directory,
            env=environment,
            stdout=output,
            stderr=output,
        )
    try:

        async def url() -> str | None:
            assert process.returncode is None, log.read_text()
            found = re.search(r"^\s+page\s+(http://\S+)", log.read_text(), re.MULTILINE)
            return found[1] if found and "Ctrl-C stops it" in log.read_text() else None

        yield Running(str(await until(url, what="it started", within_s=90)).rstrip("/"), process, log)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def reflect(request: web.Request) -> web.StreamResponse:
    """A receiver that sends back all that it gets, as a failure if it is asked to."""
    text = f"{dict(request.headers)} {(await request.read()).decode()}"
    status = 500 if "fail" in request.path else 200
    return web.json_response({"headers": dict(request.headers), "text": text}, status=status)


async def plant(up: Running, receiver: Receiver, canaries: dict[str, str], settings: dict[str, Any]) -> None:
    """Every secret by its door, and jobs that try to show them."""
    for name in ("inside", "outside"):
        await up.made("PUT", f"/v1/secrets/{name}", {"value": canaries[name]})
    by_stdin = ondot("secret", "set", "typed", stdin=canaries["typed"] + "\n", **settings)
    assert by_stdin.code == 0, by_stdin.err
    assert canaries["typed"] not in by_stdin.out + by_stdin.err
    person = ["user", "create", "ada@example.com", "--role", "admin", "--password-stdin"]
    created = ondot(*person, stdin=canaries["person"] + "\n", **settings)
    assert created.code == 0, created.err
    headers = {
        "authorization": f"Bearer {canaries['authorization']}",
        "cookie": f"session={canaries['cookie']}",
        "x-outside": {"$secret": "outside", "prefix": "Key "},
    }
    payload = {"control": CONTROL, "deep": [{"$secret": "typed"}, {"$secret": "outside", "prefix": "x"}]}
    never = {"max_retries": 0}
    for path in ("good", "fail"):
        signing = f"whsec_{canaries['signing']}"
        http = {"url": f"{receiver.url}/{path}", "headers": headers, "signing_secret": signing}
        await up.made("POST", "/v1/jobs", {"name": path, "target": {"http": http}, "payload": payload, "retry": never})
        await up.made(
            "POST", "/v1/jobs", {"name": f"{path}-hourly", "key": path, "every": "1h", "target": {"http": http}}
        )
    given = {"given": {"$secret": "outside"}, "fail": False}
    for body in (
        {"function": "leak", "payload": given},
        {"function": "leak", "payload": given | {"fail": True}},
        {"function": "leak_in_thread", "payload": {"given": {"$secret": "typed"}}},
        {"command": ["sh", "-c", "v=$(cat); echo out $v; echo err $v >&2; echo $v | base64; exit 3"]}
        | {"payload": {"a": {"$secret": "typed"}, "control": CONTROL}, "retry": never},
    ):
        await up.made("POST", "/v1/jobs", body)
    http = {"url": f"{receiver.url}/good", "headers": headers, "signing_secret": f"whsec_{canaries['signing']}"}
    steps = {
        "sent": {"target": {"http": http}, "payload": payload},
        "leaked": {"function": "leak", "payload": given | {"fail": True}, "depends_on": ["sent"], "max_retries": 0},
    }
    by_event = {"schedule": {"event": {"type": "com.example.leak"}}}
    await up.made("POST", "/v1/workflows", {"name": "flow", "steps": steps, **by_event})
    sent = {"specversion": "1.0", "id": "1", "source": "/canaries", "type": "com.example.leak", "data": CONTROL}
    await up.made("POST", "/v1/events", sent)


async def refused(up: Running, canaries: dict[str, str], search: Search) -> None:
    """Requests that are rejected: their errors must not quote a secret."""
    value, token = canaries["outside"], f"Bearer {canaries['authorization']}"
    http = {"url": "https://a.org", "headers": {"authorization": token, "x y": "z"}}
    for method, path, body in (
        ("PUT", "/v1/secrets/Bad Name".replace(" ", "%20"), {"value": value}),
        ("PUT", "/v1/secrets/outside", {"value": [value]}),
        ("PUT", "/v1/secrets/outside", {"value": value, "hosts": "x"}),
        ("PUT", "/v1/secrets/outside", {"value": value, "hostz": []}),
        ("POST", "/v1/jobs", {"target": {"http": http}}),
        ("POST", "/v1/jobs", {"target": {"http": {"url": "https://a.org", "headers": {"authorization": [token]}}}}),
        ("POST", "/v1/jobs", {"target": {"http": {"url": f"https://u:{value}@a.org/"}}}),
        (
            "POST",
            "/v1/jobs",
            {"target": {"http": {"url": "https://a.org", "headers": {"authorization": token + "\n"}}}},
        ),
    ):
        status, text = await up.ask(method, path, body)
        assert status == 422, text
        search.look("errors", path, text)


async def plant_hook(up: Running, canaries: dict[str, str], search: Search) -> str:
    """A hook, and requests to it that are rejected. Returns its token, which one answer shows."""
    body = {"name": "planted", "type": "com.example.planted", "signature": "github", "secret": canaries["hook_secret"]}
    token: str = (await up.made("POST", "/v1/hooks", body))["token"]
    search.add("hook_token", token.removeprefix("ondh_"))
    for method, path in (
        ("POST", f"/v1/hooks/{token}"),
        ("GET", f"/v1/hooks/{token}"),
        ("PUT", f"/v1/hooks/{token}"),
        ("POST", f"/v1/hooks/{token}/rotate"),
        ("POST", f"/v1/hooks/{token}?key={token}"),
        ("POST", f"/v1/executions/{token}/cancel"),
        ("GET", f"/hooks/{token}"),
    ):
        status, text = await up.ask(method, path, {"control": CONTROL})
        assert status in {401, 404, 405, 422}, (method, path, text)
        search.look("errors", f"{method} a hook", text)
    return token


async def plant_channels(up: Running, receiver: Receiver, canaries: dict[str, str], search: Search) -> None:
    """Channels with credentials, one of which repeats what it gets; and a ping, called well and badly."""
    url = f"{receiver.url}/services/{canaries['slack']}"
    for name, kind in (
        ("leaky", {"slack": {"url": url}}),
        ("duty", {"pagerduty": {"routing_key": canaries["routing"], "url": receiver.url}}),
        ("calls", {"webhook": {"url": receiver.url, "headers": {"authorization": f"Bearer {canaries['bearer']}"}}}),
    ):
        await up.made("POST", "/v1/channels", {"name": name, **kind})
        status, text = await up.ask("POST", f"/v1/channels/{name}/test", {})
        search.look("answers", f"a test of {name} ({status})", text)
    assert any(canaries["slack"] in received.path for received in receiver.received)
    status, text = await up.ask("POST", "/v1/channels", {"name": "bad name", "slack": {"url": url}})
    assert status == 422, text
    search.look("errors", "a bad channel", text)
    ping: str = (await up.made("POST", "/v1/pings", {"name": "planted", "period": "1d"}))["url"].rpartition("/")[2]
    search.add("ping_token", ping.removeprefix("ondp_"))
    for place in (ping, f"{ping}/start", f"{ping}/7", f"{ping}/nothing", f"{ping}x", f"{ping}?key={ping}"):
        _, text = await up.ask("GET", f"/ping/{place}")
        search.look("errors", "a ping", text)


async def search_api(up: Running, search: Search, ids: dict[str, list[str]]) -> None:
    _, text = await up.ask("GET", "/openapi.json")
    search.look("documents", "/openapi.json", text)
    for path, methods in json.loads(text)["paths"].items():
        if "get" not in methods:
            continue
        noun = path.split("/")[2] if path.startswith("/v1/") else ""
        places = [path]
        if "{" in path:
            wanted = ids.get(noun, [])
            places = [re.sub(r"\{[^}]*\}", found, path, count=1) for found in wanted]
            places = [re.sub(r"\{[^}]*\}", "leaked" if noun == "runs" else "1", place) for place in places]
        for place in places:
            status, text = await up.ask("GET", place)
            search.look("answers" if status == 200 else "refusals", f"{place} ({status})", text)
    for method, path in (("POST", "/v1/jobs/{}/pause"), ("POST", "/v1/jobs/{}/resume"), ("PATCH", "/v1/jobs/{}")):
        for id_ in ids["jobs"]:
            status, text = await up.ask(method, path.format(id_), {} if method == "PATCH" else None)
            search.look("answers", f"{method} {path} ({status})", text)
    pages = ["/", "/jobs", "/executions", "/skipped", "/dead-letters", "/fleet", "/schedules", "/docs", "/metrics"]
    pages += ["/secrets", "/audit", "/users", "/keys", "/runs", "/events", "/hooks", "/channels", "/pings"]
    pages += [f"/{noun}/{id_}" for noun in ("jobs", "executions", "runs", "events") for id_ in ids[noun]]
    for page in pages:
        status, text = await up.ask("GET", page)
        search.look("pages" if status == 200 else "refusals", f"{page} ({status})", text)


def search_commands(search: Search, ids: dict[str, list[str]], settings: dict[str, Any]) -> None:
    commands = [
        ["job", "list"],
        ["execution", "list"],
        ["dead-letter", "list"],
        ["fleet"],
        ["pool", "list"],
        ["secret", "list"],
        ["secret", "get", "inside"],
        ["hook", "list"],
        ["channel", "get", "leaky"],
        ["ping", "get", "planted"],
        ["run", "list"],
        *(["run", "get", id_] for id_ in ids["runs"]),
        ["audit"],
        ["key", "list"],
        ["user", "list"],
        ["doctor"],
        ["migrate", "status"],
        *(["job", "get", id_] for id_ in ids["jobs"][:4]),
        *(["job", "explain", id_] for id_ in ids["jobs"][:2]),
        *(["execution", "get", id_] for id_ in ids["executions"][:8]),
        *(["execution", "logs", id_] for id_ in ids["executions"][:8]),
    ]
    for command in commands:
        for output in ("table", "json"):
            ran = ondot(*command, "-o", output, **settings)
            search.look("commands", " ".join(command), ran.out + ran.err)


async def search_database(url: str, search: Search) -> None:
    async with connected(url) as connection:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'ondot'")
        for [table] in tables:
            for row in await connection.fetch(f'SELECT t::text AS row FROM ondot."{table}" t'):
                search.look("rows", table, row["row"])


def search_processes(process: asyncio.subprocess.Process, search: Search) -> None:
    root = psutil.Process(process.pid)
    for found in (root, *root.children(recursive=True)):
        for file in ("environ", "cmdline"):
            try:
                text = Path(f"/proc/{found.pid}/{file}").read_bytes().decode(errors="replace")
            except OSError:
                text = ""
            if not (found.pid == root.pid and file == "environ" and os.geteuid() == 0):
                search.look("processes", f"{found.pid} {file}", text)


@pytest.mark.timeout(240)
@proves("T5", "P12")
async def test_no_output_shows_a_secret_that_went_in_by_any_door(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_channels = ("slack", "routing", "bearer")
    names = ("inside", "outside", "typed", "authorization", "cookie", "password", "person", "hook_secret", *of_channels)
    canaries = {name: canary(name) for name in names}
    canaries["master"] = generate_key()
    canaries["signing"] = base64.b64encode(secrets.token_bytes(32)).decode()
    separator = "&" if "?" in database_url else "?"
    home = tmp_path / "home"
    settings: dict[str, Any] = {
        "database_url": f"{database_url}{separator}password={canaries['password']}",
        "secret_key": canaries["master"],
        "allow_unsafe_database": "1",
        "log_level": "debug",
        "home": str(home),
    }
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
    environment = inherited | {f"ONDOT_{name.upper()}": value for name, value in settings.items()}
    async with open_receiver() as receiver, running(tmp_path, environment) as up:
        receiver.answering = reflect
        settings["url"] = up.url
        key = json.loads(
            (await asyncio.to_thread(ondot, "key", "create", "ci", "--role", "owner", "-o", "json", **settings)).out
        )["key"]
        up.key = settings["api_key"] = key
        # The one call that shows a secret, for the receiver's operator.
        signing = await up.made("GET", "/v1/webhooks/signing-secret?host=a.org", None)
        more = {"key": key.rpartition("_")[2], "host": signing["secret"].removeprefix("whsec_")}
        search = Search(canaries | more)
        await asyncio.to_thread(_plant_in_loop, up, receiver, canaries, settings)
        await refused(up, canaries, search)
        await plant_hook(up, canaries, search)

        async def all_ended() -> bool:
            _, text = await up.ask("GET", "/v1/executions?limit=100")
            states = [item["state"] for item in json.loads(text)["items"]]
            _, text = await up.ask("GET", "/v1/runs?state=BLOCKED")
            is_blocked = len(json.loads(text)["items"]) == 1
            return is_blocked and sum(state in {"SUCCEEDED", "FAILED"} for state in states) >= 6

        await until(all_ended, what="all jobs ended", within_s=60)
        assert len(receiver.received) >= 2
        assert all(canaries["authorization"] in received.headers["authorization"] for received in receiver.received)
        await plant_channels(up, receiver, canaries, search)
        ids = {"secrets": ["inside", "outside"], "pools": ["default"], "pings": ["planted"]}
        ids["channels"] = ["leaky", "duty", "calls"]
        for noun in ("jobs", "executions", "runs", "events", "workflows", "keys", "audit", "hooks"):
            _, text = await up.ask("GET", f"/v1/{noun}?limit=100")
            ids[noun] = [item["id"] for item in json.loads(text).get("items", [])]
        ids["dead-letters"] = ids["executions"]
        await search_api(up, search, ids)
        await asyncio.to_thread(search_commands, search, ids, settings)
        await search_database(database_url, search)
        search_processes(up.process, search)
    search.look("logs", "all roles", up.log.read_text())
    for file in home.rglob("*"):
        if file.is_file():
            search.look("files", str(file), file.read_bytes().decode(errors="replace"))
    with capsys.disabled():
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(search.outputs.items()))
        print(f"\n{len(canaries | more)} canaries searched in {sum(search.outputs.values())} outputs: {counts}")  # noqa: T201
    assert search.found == []
    assert search.controls > 5
    assert search.outputs["answers"] > 40
    assert search.outputs["pages"] > 15
    assert search.outputs["rows"] > 100


def _plant_in_loop(up: Running, receiver: Receiver, canaries: dict[str, str], settings: dict[str, Any]) -> None:
    """In a thread, with a loop of its own: commands run meanwhile."""
    asyncio.run(plant(up, receiver, canaries, settings))
