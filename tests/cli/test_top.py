"""`ondot top`: live in a real terminal, one frame elsewhere; fits 80x24, and says when it is not live."""

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from ondot.cli.top_views import SORTS, Look, sorted_executions, top_screen
from tests.cli.running import Ran, ondot
from tests.cli.samples import EXECUTION_ID, JOB_ID
from tests.proves import proves
from tests.ui.serving import Served, served
from tests.world import World, cron, job

NOW = "2026-11-15T12:00:00Z"
WITHIN_S = 60


def seen(executions: int = 3, pools: int = 2, fires: int = 3) -> dict[str, Any]:
    name = "名前 with\x1b[2J a long name " * 4
    return {
        "now": NOW,
        "nodes": 2,
        "workers": 3,
        "slots": 300,
        "draining": 0,
        "running": executions,
        "held_back": 4,
        "dead_letters": 5,
        "limits": [],
        "recent": {
            "window_s": 60,
            "started": 90,
            "succeeded": 60,
            "failed": 6,
            "is_least": False,
            "late_s": 0.123,
        },
        "pools": [
            {"name": f"pool-{n}", "workers": 1, "slots": 100, "waiting": n, "oldest_s": 2.5 if n else None}
            for n in range(pools)
        ],
        "executions": [
            {
                "id": EXECUTION_ID,
                "job_id": JOB_ID,
                "name": f"{n:03} {name}",
                "attempt": n % 3,
                "message": None,
                "started_at": f"2026-11-15T11:{59 - n % 60:02}:00Z",
                "worker": f"host-{n % 2}:1",
                "progress": n / executions if n % 2 else None,
            }
            for n in range(executions)
        ],
        "fires": [{"job_id": JOB_ID, "name": f"job-{n}", "at": "2026-11-15T12:00:04Z"} for n in range(fires)],
    }


def drawn(renderable: Any, width: int) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=True, color_system=None, markup=False).print(renderable)
    return stream.getvalue().splitlines()


@proves("D5", "O5")
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 12), (60, 40), (200, 60)])
@pytest.mark.parametrize("count", [0, 1, 500])
@pytest.mark.parametrize("selected", [0, 499])
def test_the_screen_fits_the_terminal(width: int, height: int, count: int, selected: int) -> None:
    found = seen(count, count, count)
    for look in (
        Look(selected=selected),
        Look(explained="why " * 100),
        Look(away_since=datetime.now(UTC), away_why="w" * 300),
    ):
        lines = drawn(top_screen(found, look, height), width)
        assert len(lines) <= height
        assert max(map(cell_len, lines)) <= width
        assert not any("\x1b" in line for line in lines)
    if count == 500:
        shown = "\n".join(drawn(top_screen(found, Look(selected=selected), height), width))
        chosen = sorted_executions(found, "longest")[selected]["name"][:3]
        assert f"\n{chosen} " in shown, "the selected one is in sight"


def test_numbers_rates_and_lateness_are_shown() -> None:
    shown = "\n".join(drawn(top_screen(seen(), Look()), 160))
    for expected in (
        "2 schedulers, 3 workers, 3 of 300 slots busy",
        "1 waiting, 4 held back by limits, 5 dead letters",
        "1.5/s started, 1.0/s succeeded, 0.1/s failed; latest start 0.12 s after due",
        "pool-1",
        "in 4 s",
        "33%",
    ):
        assert expected in shown


def test_executions_are_sorted_as_wanted() -> None:
    orders = {sort: [each["name"][:3] for each in sorted_executions(seen(4), sort)] for sort in SORTS}
    assert orders["longest"] == ["003", "002", "001", "000"]
    assert orders["name"] == ["000", "001", "002", "003"]
    assert orders["worker"] == ["002", "000", "003", "001"]
    assert orders["progress"][0] == "003"


async def run(page: Served, *words: str) -> Ran:
    return await asyncio.to_thread(ondot, "top", *words, url=page.url)


@proves("D5", "O5")
async def test_outside_a_terminal_it_prints_one_frame(world: World) -> None:
    made = await world.submit(job("report", schedule=cron("* * * * *")))
    await world.worker()
    async with served(world.database) as page:
        shown = await run(page)
        assert (shown.code, shown.err) == (0, "")
        assert "1 workers, 0 of 100 slots busy" in shown.out
        assert "report" in shown.out
        found = json.loads((await run(page, "-o", "json")).out)
        assert [fire["job_id"] for fire in found["fires"]] == [str(made.id)]
        assert found["recent"]["failed"] == 0


class Terminal:
    """A command in a pty of its own."""

    def __init__(self, url: str, width: int = 80, height: int = 24) -> None:
        self.text = ""
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            environment = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
            environment |= {"ONDOT_URL": url, "TERM": "xterm-256color", "XDG_CONFIG_HOME": "/nonexistent"}
            for name in ("COLUMNS", "LINES"):
                environment.pop(name, None)
            os.execve(sys.executable, [sys.executable, "-m", "ondot", "top"], environment)
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGWINCH)

    async def until(self, wanted: str) -> None:
        """Read until the terminal shows a text that came after the last one."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(WITHIN_S):
            while not (found := re.search(wanted, self.text)):
                piece = await loop.run_in_executor(None, self._read)
                assert piece, f"it ended before it showed {wanted!r}: {self.text[-2000:]}"
                self.text += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", piece)
        self.text = self.text[found.end() :]

    def press(self, key: str) -> None:
        os.write(self.descriptor, key.encode())

    def _read(self) -> str:
        try:
            return os.read(self.descriptor, 65536).decode("utf-8", "replace")
        except OSError:
            return ""

    async def end(self) -> int:
        async with asyncio.timeout(WITHIN_S):
            while await asyncio.get_running_loop().run_in_executor(None, self._read):
                pass
            _, status = await asyncio.to_thread(os.waitpid, self.pid, 0)
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(status)


@proves("D5", "O5")
async def test_in_a_terminal_it_is_live_and_obeys_its_keys(world: World) -> None:
    await world.submit(job("report", schedule=cron("* * * * *")))
    async with served(world.database) as page:
        terminal = Terminal(page.url)
        await terminal.until("ondot top, ")
        await terminal.until("report")
        await terminal.until("q quit")
        await terminal.until("ondot top, ")  # the next frame, by itself
        terminal.press("s")
        await terminal.until("sorted by name")
        terminal.press("p")
        await terminal.until(", paused")
        terminal.press("\x1b[Bj\x1b[A?\x00\r")
        terminal.press("p")
        terminal.resize(50, 16)
        await terminal.until("ondot top, [0-9: Z-]+\r?\n")
    await terminal.until("not live since")
    async with served(world.database, port=int(page.url.rpartition(":")[2])):
        await terminal.until("ondot top, ")
        terminal.press("q")
        assert await terminal.end() == 0
