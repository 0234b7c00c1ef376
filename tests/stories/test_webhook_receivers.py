"""The receivers of the guide, in three languages, as their readers run them: each takes a real call of ondot, and
refuses one that was changed, is old, or was signed with another secret (T3)."""

import asyncio
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from started import free_port

from ondot.model.signature import parse_secret, sign
from ondot.testing import World, open_world
from tests.proves import proves

GUIDE: Final = Path(__file__).parents[2] / "docs/guides/webhooks.md"
LANGUAGES: Final = {
    "python": ("receiver.py", [sys.executable, "receiver.py"], []),
    "javascript": ("receiver.mjs", ["node", "receiver.mjs"], []),
    "go": ("receiver.go", ["./receiver"], ["go", "build", "-o", "receiver", "receiver.go"]),
}
BODY: Final = b'{"order":17,"name":"\xc3\xbc"}'
WITHIN_S: Final = 120.0
BUILT_WITHIN_S: Final = 400.0
"""The first build compiles Go's own libraries."""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world(at="2031-03-03T12:00:00Z", network=True) as world:
        yield world


@asynccontextmanager
async def running(language: str, secret: str, directory: Path) -> AsyncIterator[str]:
    """The receiver of the guide in this language, on a free port; its URL."""
    name, command, build = LANGUAGES[language]
    if shutil.which((build or command)[0]) is None:
        pytest.skip(f"{(build or command)[0]} is not installed")
    port = free_port()
    found = re.findall(rf"^```{language}\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    (directory / name).write_text(found[0].replace("8000", str(port)))
    # Without cgo: a C compiler is not needed, and on a busy machine it takes minutes.
    environment = os.environ | {"WEBHOOK_SECRET": secret, "CGO_ENABLED": "0"}
    if build:
        built = await asyncio.create_subprocess_exec(*build, cwd=directory, env=environment)
        try:
            assert await asyncio.wait_for(built.wait(), BUILT_WITHIN_S) == 0
        finally:
            with suppress(ProcessLookupError):
                built.kill()
    process = await asyncio.create_subprocess_exec(
        *command, cwd=directory, env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await _until_open(port, process)
        yield f"http://127.0.0.1:{port}/hook"
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()


async def _until_open(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(WITHIN_S):
        while True:
            assert process.returncode is None, "it ended"
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return
            await asyncio.sleep(0.02)


async def post(url: str, body: bytes, headers: dict[str, str]) -> int:
    async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as response:
        return response.status


def headers_of(secret: str, body: bytes = BODY, *, age_s: int = 0, message_id: str = "e-1") -> dict[str, str]:
    timestamp = str(int(time.time()) - age_s)
    signature = sign([parse_secret(secret)], message_id, timestamp, body)
    return {"webhook-id": message_id, "webhook-timestamp": timestamp, "webhook-signature": signature}


@proves("T3")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("language", LANGUAGES)
async def test_the_receiver_of_the_guide_takes_a_real_call_and_refuses_a_forged_one(
    language: str, world: World, tmp_path: Path
) -> None:
    secret = (await world.client.get_signing_secret("127.0.0.1"))["secret"]
    other = (await world.client.get_signing_secret("localhost"))["secret"]
    async with running(language, secret, tmp_path) as url:
        target = {"http": {"url": url}}
        for name in ("before", "while-rotated"):
            await world.client.create_job({"name": name, "payload": {"n": "ü", "float": 1.0}, "target": target})
            await world.run_due()
            [execution] = await world.executions(name)
            assert execution.state == "SUCCEEDED", (name, world.calls(name)[-1].error)
            await world.client.rotate_signing_secret()
        good = headers_of(secret)
        assert await post(url, BODY, good) == 204
        forged = {
            "another body": (BODY + b" ", good),
            "no body": (b"", good),
            "another id": (BODY, good | {"webhook-id": "e-2"}),
            "another time": (BODY, good | {"webhook-timestamp": str(int(good["webhook-timestamp"]) + 1)}),
            "an old call": (BODY, headers_of(secret, age_s=400)),
            "a call from the future": (BODY, headers_of(secret, age_s=-400)),
            "the secret of another host": (BODY, headers_of(other)),
            "no signature": (BODY, {name: value for name, value in good.items() if name != "webhook-signature"}),
            "an empty signature": (BODY, good | {"webhook-signature": "v1,"}),
            "another version": (BODY, good | {"webhook-signature": good["webhook-signature"].replace("v1,", "v2,")}),
        }
        for what, (body, headers) in forged.items():
            assert await post(url, body, headers) == 401, what
