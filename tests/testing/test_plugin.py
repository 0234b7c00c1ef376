"""The pytest plugin, as a user's project meets it: pytest in a process of its own, and the examples of the document."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ondot.testing.server import VARIABLE
from tests.proves import proves
from tests.servers import Server

ROOT = Path(__file__).parents[2]
WEEKLY = """
import pytest
from ondot import Ondot

app = Ondot()

@app.job(cron="0 9 * * 1")
def weekly(): ...

@pytest.mark.parametrize("weeks", [1, 2, 3])
async def test_weekly(ondot_world, weeks):
    async with ondot_world(app, at="2026-01-01T00:00:00Z") as world:
        await world.advance(weeks=weeks)
        assert len(world.calls(weekly)) == weeks
"""


def run_pytest(directory: Path, *options: str, url: str) -> subprocess.CompletedProcess[str]:
    """By the plugin's name: of all that this environment would load by itself, only it and what the test asks for."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "ondot.testing.plugin", *options],
        cwd=directory,
        env=environment | {VARIABLE: url, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )


@proves("O7")
def test_the_plugin_comes_with_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"ondot": "ondot.testing.plugin"}


@proves("O7")
def test_async_tests_with_the_fixture_need_no_other_plugin_and_run_on_several_processes(
    tmp_path: Path, server: Server
) -> None:
    (tmp_path / "test_weekly.py").write_text(WEEKLY)
    done = run_pytest(tmp_path, "-p", "xdist", "-n", "2", url=server.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@proves("O7")
def test_a_test_in_a_world_fails_with_its_own_message_and_one_of_anyio_is_left_to_it(
    tmp_path: Path, server: Server
) -> None:
    (tmp_path / "test_wrong.py").write_text(WEEKLY.replace("== weeks", '== 7, "seven were wanted"'))
    marked = WEEKLY.replace("@pytest.mark.parametrize", "@pytest.mark.anyio\n@pytest.mark.parametrize")
    backend = "@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    (tmp_path / "test_marked.py").write_text(marked + backend)
    done = run_pytest(tmp_path, "-p", "anyio.pytest_plugin", "-k", "1", url=server.url)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "seven were wanted" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


@proves("O7")
@pytest.mark.timeout(120)
def test_without_a_named_server_a_world_brings_its_own_and_leaves_nothing_behind(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from ondot import Ondot
from ondot.testing import open_world, server

async def main():
    async with open_world(at="2026-01-01T00:00:00Z") as world:
        print(server.server().url.partition("host=")[2].partition("&")[0])

asyncio.run(main())
"""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=220,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    place = Path(done.stdout.splitlines()[-1])
    assert "ondot-testing-" in str(place)
    assert not place.exists()
    assert not any("ondot-testing-" in parent.name and parent.exists() for parent in place.parents)


def test_the_plugin_costs_a_project_without_worlds_next_to_nothing() -> None:
    """It is imported by every pytest where ondot is installed: not the engine, and no driver of a database."""
    script = "import sys, ondot.testing.plugin; print(*sorted(set(sys.modules) & {'asyncpg', 'fastapi', 'msgspec'}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
