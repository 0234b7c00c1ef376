"""The command line as a process of its own, without the settings of the user who runs the tests.

Most commands do not start from scratch: half a second of imports for some hundred commands would take minutes. A server
that has already imported their modules forks a process for each. `test_start` starts real ones, as does `python`.
"""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

WITHIN_S = 120.0
PRELOADED = ["ondot.cli", "ondot.sdk.client", "ondot.app", "ondot.doctor.examine", "rich.table", "tests.cli.running"]


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


def without_warnings(ran: Ran) -> str:
    """Standard error without the warnings that no worker has the function of a job, which these tests do not run."""
    lines = ran.err.splitlines(keepends=True)
    return "".join(line for line in lines if not (line.startswith("Warning: ") and "No worker has registered" in line))


def ondot(
    *words: str,
    cwd: Path | None = None,
    stdin: str = "",
    python: str = "",
    fresh: bool = False,
    config: Path = Path("/nonexistent"),
    **settings: str,
) -> Ran:
    """`ondot WORDS`, or a line of Python instead; settings by their names without the prefix. `fresh`: with an
    interpreter that has imported nothing. `config`: the user's configuration directory."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
    environment = (
        inherited
        | {"COLUMNS": "80", "XDG_CONFIG_HOME": str(config)}
        | {f"ONDOT_{name.upper()}": value for name, value in settings.items()}
    )
    if python or fresh:
        begin = ["-c", python] if python else ["-m", "ondot"]
        return _started([sys.executable, *begin, *words], environment, cwd, stdin)
    return _forked(words, environment, cwd, stdin)


def _started(command: Sequence[str], environment: Mapping[str, str], cwd: Path | None, stdin: str) -> Ran:
    done = subprocess.run(
        command, env=environment, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def _forked(words: Sequence[str], environment: Mapping[str, str], cwd: Path | None, stdin: str) -> Ran:
    with tempfile.TemporaryDirectory(prefix="ondot-command-") as directory:
        place = Path(directory)
        (place / "in").write_text(stdin)
        process = _server().Process(target=_run, args=(words, dict(environment), cwd or Path.cwd(), place))
        process.start()
        process.join(WITHIN_S)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise TimeoutError(f"`ondot {' '.join(words)}` did not end within {WITHIN_S:g} s")
        return Ran(process.exitcode, (place / "out").read_text(), (place / "err").read_text())


@cache
def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run(words: Sequence[str], environment: Mapping[str, str], cwd: Path, place: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    for number, (name, mode) in enumerate((("in", "r"), ("out", "w"), ("err", "w"))):
        with (place / name).open(mode) as file:
            os.dup2(file.fileno(), number)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as in an interpreter that has just started
    sys.argv = ["ondot", *words]
    from ondot.cli import main
    from ondot.telemetry.outlet import drain_output

    try:
        main()
    finally:
        # A process of multiprocessing ends without Python's exit handlers.
        drain_output()
