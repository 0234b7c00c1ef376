"""The command line as a process of its own, with no setting of whoever runs the tests."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


def ondot(*words: str, cwd: Path | None = None, stdin: str = "", python: str = "", **settings: str) -> Ran:
    """`ondot WORDS`, or a line of Python in its place; settings by their names without the prefix."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
    environment = {f"ONDOT_{name.upper()}": value for name, value in settings.items()}
    begin = ["-c", python] if python else ["-m", "ondot"]
    done = subprocess.run(
        [sys.executable, *begin, *words],
        env=inherited | {"COLUMNS": "80"} | environment,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
