"""How the command line starts: help everywhere, nothing heavy, exit codes and settings."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from ondot import __version__
from ondot.cli import app
from ondot.cli.commands import COMMANDS
from tests.cli.running import ondot
from tests.proves import proves

NOBODY = "http://127.0.0.1:1"
AN_ID = "019a1de9-4d8d-7d9d-8dd7-1801991e16d7"


def root() -> Any:
    command: Any = get_command(app)
    command.load_commands()
    return command


def all_commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, below in getattr(command, "commands", {}).items():
        yield from all_commands(below, (*words, name))


@pytest.mark.parametrize("words", list(all_commands(root())), ids=" ".join)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_has_help(words: tuple[str, ...], flag: str) -> None:
    ran = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*words, flag])
    assert ran.exit_code == 0
    assert " ".join(("Usage: ondot" if not words else "", *words)).strip() in ran.output
    assert "--supervised-by" not in ran.output


def test_the_help_of_the_command_itself_names_every_noun() -> None:
    ran = ondot("--help", fresh=True)
    assert ran.code == 0
    for name in ("up", "api", "scheduler", "worker", "job", "execution", "cron", "migrate", "doctor", "key"):
        assert f" {name} " in ran.out


@pytest.mark.parametrize("words", [["--version"], ["version"]])
def test_the_version_is_printed(words: list[str]) -> None:
    assert ondot(*words, fresh=True).out == f"ondot {__version__}\n"


HEAVY = "{'asyncpg', 'fastapi', 'uvicorn', 'uvloop', 'pydantic', 'httpx2', 'holidays', 'rich', 'asyncio'}"
NOUNS = "sorted(name[10:] for name in sys.modules if name.startswith('ondot.cli.'))"


def test_nothing_heavy_is_imported_to_start() -> None:
    """What keeps `ondot --help` and `ondot cron explain` quick; a clock would only measure the machine's load."""
    ran = ondot(python=f"import sys, ondot.cli; print(sorted({HEAVY} & set(sys.modules)))")
    assert (ran.out, ran.err) == ("[]\n", "")


@proves("D5")
def test_the_help_loads_no_command() -> None:
    """It took 0.44 s to load all of them, and 0.19 s without."""
    ran = ondot(
        "--help",
        python=f"import atexit, sys; atexit.register(lambda: print({NOUNS})); from ondot.cli import main; main()",
    )
    assert ran.out.splitlines()[-1] == "['commands', 'errors', 'listing', 'output']"


@proves("D5")
@pytest.mark.parametrize(("words", "others"), [(("pool", "list"), "job"), (("cron", "explain", "@daily"), "fleet")])
def test_a_command_loads_the_module_of_its_noun_alone(words: tuple[str, ...], others: str) -> None:
    begin = "import atexit, sys; atexit.register(lambda: print(file=sys.stderr, *"
    ran = ondot(*words, python=f"{begin}{NOUNS})); from ondot.cli import main; main()", url=NOBODY)
    loaded = set(ran.err.splitlines()[-1].split())
    assert words[0] in loaded
    assert len(loaded & COMMANDS.keys()) == 1, "another noun was loaded"
    assert others not in loaded


@proves("D5")
def test_the_sdk_loads_few_modules() -> None:
    """`import ondot` takes 0.22 s with `Ondot`; what a server or the command line needs would double it."""
    heavy = f"({HEAVY} - {{'asyncio'}}) | {{'typer', 'pydantic_settings', 'jinja2', 'structlog'}}"
    ran = ondot(python=f"import sys, ondot; ondot.Ondot; print(sorted(({heavy}) & set(sys.modules)))")
    assert (ran.out, ran.err) == ("[]\n", "")


def test_the_help_of_a_command_is_its_own() -> None:
    for name, command in root().commands.items():
        first = " ".join((command.help or "").split("\n\n")[0].split())
        assert first == COMMANDS[name].help, name


@pytest.mark.parametrize(
    "words",
    [
        ["up"],
        ["api"],
        ["scheduler"],
        ["worker"],
        ["migrate", "check"],
        ["key", "list"],
    ],
    ids=" ".join,
)
def test_without_the_server_packages_a_server_command_shows_what_to_install(words: list[str], tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['asyncpg'] = None; from ondot.cli import main; main()"
    ran = ondot(*words, python=blocked, cwd=tmp_path, home=str(tmp_path))
    assert ran.code == 2
    assert "pip install 'ondot[server]'" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("words", [["no-such-noun"], ["job", "no-such-verb"], ["job", "get"]])
def test_a_wrong_command_line_exits_with_2(words: list[str]) -> None:
    ran = ondot(*words)
    assert ran.code == 2
    assert ran.out == ""


@pytest.mark.parametrize(
    "words",
    [["job", "list"], ["job", "get", AN_ID], ["execution", "list"], ["execution", "logs", AN_ID, "-f"]],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_server_that_cannot_be_reached_exits_with_5(words: list[str]) -> None:
    ran = ondot(*words, url=NOBODY)
    assert ran.code == 5
    assert ran.out == ""
    assert ran.err.startswith(f"error: No ondot server can be reached at {NOBODY}")
    assert len(ran.err.splitlines()) == 1


def test_all_faults_of_the_settings_are_reported_at_once() -> None:
    ran = ondot("job", "list", prot="1", url="ftp://x", heartbeat_s="0")
    assert ran.code == 2
    for expected in ("ONDOT_PROT", "ONDOT_PORT?", "ONDOT_URL", "ONDOT_HEARTBEAT_S"):
        assert expected in ran.err
    assert "Traceback" not in ran.err


def test_a_role_without_a_database_shows_how_to_get_one(tmp_path: Path) -> None:
    ran = ondot("scheduler", cwd=tmp_path, home=str(tmp_path))
    assert ran.code == 2
    assert "ONDOT_DATABASE_URL" in ran.err
    assert "Traceback" not in ran.err


def test_a_worker_without_its_app_reports_it_before_it_starts_processes(tmp_path: Path) -> None:
    ran = ondot(
        "worker", "nowhere:app", "--processes", "2", cwd=tmp_path, database_url="postgresql://nobody@127.0.0.1:1/x"
    )
    assert ran.code == 2
    assert "nowhere" in ran.err


def test_up_refuses_demo_with_another_app() -> None:
    assert ondot("up", "--demo", "--app", "tasks:app").code == 2


def test_a_child_whose_supervisor_is_gone_does_not_start(tmp_path: Path) -> None:
    assert ondot("scheduler", "--supervised-by", "1", cwd=tmp_path, home=str(tmp_path)).code == 1


def test_doctor_reports_invalid_settings() -> None:
    ran = ondot("doctor", "-o", "json", prot="1")
    assert ran.code == 1
    (finding,) = json.loads(ran.out)["findings"]
    assert (finding["check"], finding["level"]) == ("settings", "problem")


def test_doctor_without_database_or_server_shows_what_to_start(tmp_path: Path) -> None:
    ran = ondot("doctor", "-o", "json", url=NOBODY, home=str(tmp_path), cwd=tmp_path)
    assert ran.code == 1
    levels = {finding["check"]: finding["level"] for finding in json.loads(ran.out)["findings"]}
    assert levels == {"client": "ok", "settings": "ok", "server": "problem", "database": "warning"}


def test_doctor_reports_that_the_database_is_down() -> None:
    ran = ondot("doctor", database_url="postgresql://nobody@127.0.0.1:1/nothing")
    assert ran.code == 1
    assert "PostgreSQL does not answer" in ran.out
    assert all(len(line) <= 80 for line in ran.out.splitlines())


def test_ctrl_c_while_waiting_for_a_server_exits_with_130_quietly(tmp_path: Path) -> None:
    # A shell's background job, which a test run may be, ignores Ctrl-C and hands that down.
    minding_ctrl_c = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from ondot.cli import main; main()"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with subprocess.Popen(
            [sys.executable, "-c", minding_ctrl_c, "job", "list"],
            env=environment | {"ONDOT_URL": url},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            connection, _ = silent.accept()
            with connection:
                process.send_signal(signal.SIGINT)
                assert process.communicate(timeout=30) == (b"", b"")
            assert process.returncode == 130
