"""A sample application, checked by mypy and by pyright (D2): right use has no errors, wrong use exactly those that are
marked, line by line. Both checkers report a mark that no error needs. basedpyright is pyright with all that it needs in
its wheel."""

import subprocess
import sys
from importlib import resources
from pathlib import Path

from tests.proves import proves

ROOT = Path(__file__).parents[2]
SAMPLE = Path(__file__).parent / "typed_app"


def check(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@proves("D2")
def test_mypy_finds_the_errors_that_are_marked_and_no_others() -> None:
    check("mypy", "--strict", str(SAMPLE))


@proves("D2")
def test_pyright_finds_the_errors_that_are_marked_and_no_others() -> None:
    check("basedpyright", "--project", str(SAMPLE))


@proves("D2")
def test_programs_that_use_ondot_are_checked_against_its_types() -> None:
    assert resources.files("ondot").joinpath("py.typed").is_file()
