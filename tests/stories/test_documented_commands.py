"""The commands of the README, the start page and the guides run in their order, and print what the pages show (O6).

A page is read as its reader would: a `python` block is a file, named in the text before it; an `sh` block is typed into
one bash. Lines that start a role (`ondot up`, `ondot worker`, …) run in the background, as in a terminal of their own;
the others must succeed, unless the line says `# exits with N`. A line `# text` is output: `…` is anything, and ids and
instants may differ. The test replaces ports, homes and the database's URL, and leaves out `make` and `createdb`.
"""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil
import pytest
from started import free_port, place

from tests.proves import proves
from tests.servers import Server, new_database

ROOT: Final = Path(__file__).parents[2]
BLOCK: Final = re.compile(r"^```(sh|python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
GUIDES: Final = sorted(
    page
    for page in [ROOT / "README.md", ROOT / "docs/start.md", *(ROOT / "docs/guides").glob("*.md")]
    if "\n```sh\n" in page.read_text()
)
ADDRESS: Final = "http://127.0.0.1:1200"
DATABASE: Final = "postgresql://ondot:secret@db.example.com/ondot"
OF_THE_MACHINE: Final = (". .venv/bin/activate", "createdb ")
ROLE: Final = re.compile(r"ondot (up|api|scheduler|worker)\b.*")
MARK: Final = "@@ done"
STARTS_WITHIN_S: Final = 120
PRELUDE: Final = r"""
set -Eeuo pipefail -m
trap 'echo "failed with $?: $BASH_COMMAND" >&2' ERR
curl() { command curl --silent --show-error --fail-with-body "$@"; }
"""
"""A refusal of the API is a failure here: curl alone exits with 0. With `-m` background jobs obey Ctrl-C."""


class Reader:
    """One bash, and the roles that it has in the background."""

    def __init__(self, home: Path, directory: Path, **variables: str) -> None:
        self._port = free_port()
        self._other_port = str(free_port())
        self.url = f"http://127.0.0.1:{self._port}"
        self._directory = directory
        self._roles: dict[int, str] = {}
        self._typed = 0
        ours = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, "COLUMNS": "160", "HOME": str(home.parent), "ONDOT_HOME": str(home)}
        own |= {"ONDOT_URL": self.url, "ONDOT_PORT": str(self._port)}
        self._errors = (directory / "errors.txt").open("w+")
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=directory,
            env=ours | own | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,
        )
        self.type(PRELUDE)

    def type(self, text: str) -> str:
        """What a block prints."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._typed += 1
        script = self._directory / f"block_{self._typed}.sh"
        script.write_text(self._replaced(text))
        self._bash.stdin.write(f"source {script} </dev/null; echo; echo '{MARK}'\n")
        self._bash.stdin.flush()
        printed = ""
        while (line := self._bash.stdout.readline()) != f"{MARK}\n":
            assert line, f"{self._all_errors()}\n{printed[-3000:]}"
            printed += line
        return printed

    def write(self, name: str, text: str) -> None:
        (self._directory / name).write_text(text.replace("8000", self._other_port))

    def start(self, lines: list[str]) -> None:
        """Roles in the background, instead of those that run; unless they are the same."""
        if list(self._roles.values()) == lines:
            return
        self.stop()
        for line in lines:
            log = self._directory / f"role_{len(self._roles)}.txt"
            pid = self.type(f"{line} >{log} 2>&1 & echo $!").split()[0]
            self._roles[int(pid)] = line
        self._wait_until_ready()

    def stop(self) -> None:
        for pid, line in self._roles.items():
            code = self.type(f"kill -INT {pid}; wait {pid} && echo 0 || echo $?").split()[-1]
            assert code == "0" or not line.startswith("ondot up"), f"{line} ended with {code}"
        self._roles.clear()

    def close(self) -> None:
        for pid in self._roles:  # each is the leader of a process group, because of `set -m`
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        self._bash.kill()
        self._bash.wait(10)
        for file in (self._bash.stdin, self._bash.stdout, self._errors):
            assert file is not None
            file.close()

    def _all_errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read()

    def _replaced(self, text: str) -> str:
        text = text.replace(ADDRESS, self.url).replace("127.0.0.1:8000", f"127.0.0.1:{self._other_port}")
        return re.sub(r"^(.+?) +# exits with (\d+).*$", r"\1 || [ $? = \2 ]", text, flags=re.MULTILINE)

    def _wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < deadline_s and all(map(is_running, self._roles)):
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=10):
                    return
            except OSError:
                time.sleep(0.05)
        logs = "\n".join(path.read_text()[-2000:] for path in self._directory.glob("role_*.txt"))
        raise AssertionError(f"not ready:\n{logs}")


def is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@contextmanager
def reader(directory: Path, **variables: str) -> Iterator[Reader]:
    with place() as home:
        reader = Reader(home, directory, **variables)
        try:
            yield reader
            reader.stop()
        finally:
            reader.close()


def roles_of(lines: list[str]) -> list[str]:
    """The commands that start roles, if the block has no others."""
    lines = ["ondot up --demo" if line.startswith("make up") else line for line in lines]
    return lines if all(ROLE.fullmatch(line) for line in lines) else []


def by_server() -> list[tuple[Path, ...]]:
    """Pages that start with the same server share it. One that goes on with another is the last."""
    groups: dict[str, list[tuple[int, Path]]] = {}
    for page in GUIDES:
        blocks = [lines_of(body) for kind, body in BLOCK.findall(page.read_text()) if kind == "sh"]
        servers = [roles[0] for lines in blocks if (roles := roles_of(lines))]
        groups.setdefault(servers[0] if servers else "", []).append((len(servers), page))
    return [tuple(page for _, page in sorted(pages)) for pages in groups.values()]


def lines_of(body: str) -> list[str]:
    return [re.sub(r" +#.*", "", line) for line in body.splitlines()]


def follow(page: Path, reader: Reader, database_url: str) -> None:
    """Do what the page says, from its first block to its last."""
    text = page.read_text()
    for block in BLOCK.finditer(text):
        kind, body = block.groups()
        body = body.replace(DATABASE, database_url)
        lines = lines_of(body)
        if kind == "python":
            named = re.findall(r"`(\w+\.py)`", text[: block.start()])
            if named:
                reader.write(named[-1], body)
        elif kind == "console":
            command, *expected = body.removeprefix("$ ").splitlines()
            check_output("\n".join(f"# {line}" for line in expected), reader.type(command), page)
        elif roles := roles_of(lines):
            reader.start(roles)
        elif not lines[0].startswith(OF_THE_MACHINE):
            check_output(body, reader.type(body), page)


def check_output(text: str, printed: str, page: Path) -> None:
    for comment in re.findall(r"^# (.+)$", text, re.MULTILINE):
        assert shown(comment).search(printed), f"{page.name} shows:\n{comment}\nit prints:\n{printed}"


def shown(comment: str) -> re.Pattern[str]:
    """A line of output as the page shows it: other instants and ids, and `…` for anything."""
    pattern = re.escape(" ".join(comment.split())).replace("\\ ", r"\s+")
    pattern = re.sub(r"(\\s\+)?…(\\s\+)?", ".*", pattern)
    pattern = re.sub(r"in\\s\+\d+\\s\+days", r"in\\s+\\d+\\s+days", pattern)
    pattern = re.sub(r"\d{4}\\-\d\d\\-\d\dT\d\d:\d\d:\d\d(\\\.\d+)?Z", r"[-0-9]{10}T[0-9:.]+Z", pattern)
    pattern = pattern.replace('"status":"SUCCEEDED"', '"status":"[A-Z]+"')  # the next one may be due just then
    return re.compile(re.sub(r"\b01[0-9a-f]{6}\\-", "[0-9a-f]{8}-", pattern), re.DOTALL)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("pages", by_server(), ids=lambda pages: "+".join(page.stem for page in pages))
@proves("O6")
async def test_every_command_of_a_page_works_in_its_order_and_prints_what_it_shows(
    pages: tuple[Path, ...], tmp_path: Path, server: Server
) -> None:
    async with new_database(server, template="template1") as url:
        with reader(tmp_path, ONDOT_ALLOW_UNSAFE_DATABASE="1") as typing:
            for page in pages:
                follow(page, typing, url)


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_no_page_needs_a_placeholder_to_be_filled_in_by_hand(page: Path) -> None:
    commands = "".join(text for kind, text in BLOCK.findall(page.read_text()) if kind == "sh")
    assert re.findall(r"\b[A-Z]+_ID\b|<\w+>| ID\b", commands) == []
