"""A hostile job looks for the secrets of the ondot that runs it: in its environment, and in every process."""

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.proves import proves
from tests.stories.outage import until

LOOK = "env; grep -l '{pattern}' /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null; echo looked"


class Up:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""
        self.url = ""

    async def started(self) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            while "Ctrl-C stops it" not in self.said:
                line = (await self.process.stdout.readline()).decode()
                assert line, f"it ended: {self.said}"
                self.said += line
                if "  page  " in line:
                    self.url = line.split()[1]

    async def ask(self, path: str, body: object = None) -> Any:
        return await asyncio.to_thread(_asked, f"{self.url}{path}", body)


def _asked(url: str, body: object) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30) as answer:
        return json.load(answer)


@asynccontextmanager
async def up(directory: Path, environment: dict[str, str]) -> AsyncIterator[Up]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "ondot", "up", "--port", "0", "--allow-shell"),
        cwd=directory,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        running = Up(process)
        await running.started()
        yield running
    finally:
        process.terminate()
        rest, _ = await process.communicate()
        running.said += rest.decode()


@pytest.mark.timeout(240)
@proves("P12", "T5", "O6")
async def test_a_job_finds_no_secret_of_the_ondot_that_runs_it(database_url: str, tmp_path: Path) -> None:
    word = uuid4().hex
    secret = f"s3cr3t-{word}"
    separator = "&" if "?" in database_url else "?"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
    environment = {
        **inherited,
        "ONDOT_DATABASE_URL": f"{database_url}{separator}password={secret}",
        "ONDOT_ALLOW_UNSAFE_DATABASE": "1",
        "ONDOT_API_KEY": secret,
        "AWS_SECRET_ACCESS_KEY": secret,
        "HTTP_PROXY": "http://127.0.0.1:1",
        "http_proxy": "http://127.0.0.1:1",
    }
    # A process that hides nothing: the job must find its secrets, or the search is broken.
    control = subprocess.Popen(("sleep", "1000"), env={"OPEN": secret})  # noqa: ASYNC220
    try:
        async with up(tmp_path, environment) as ondot:
            command = ["sh", "-c", LOOK.format(pattern=f"[s]3cr3t-{word}")]
            job = await ondot.ask("/v1/jobs", {"name": "look", "command": command, "max_retries": 0})
            path = f"/v1/jobs/{job['id']}/executions"

            async def ended() -> Any:
                items = (await ondot.ask(path))["items"]
                return items[0] if items and items[0]["state"] in {"SUCCEEDED", "FAILED"} else None

            execution = await until(ended, what="the job looked", within_s=60)
            lines = (await ondot.ask(f"/v1/executions/{execution['id']}/logs"))["items"]
            texts = [line["line"] for line in lines]
    finally:
        control.kill()
        control.wait()
    assert texts[-1] == "looked"
    assert [text for text in texts if text.startswith("/proc/")] == [f"/proc/{control.pid}/environ"]
    assert secret not in "\n".join(texts)
    assert secret not in ondot.said
    assert ondot.said.rstrip().endswith("stopped")
