"""The README to the letter: its commands run in their order on a real `ondot up`, and print what it shows.

Replaced are only the port, the homes and what belongs to the clone (`make`, the activation of the environment). The
commands run in one bash, as a reader's would; the first that fails ends it, and is named.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psutil
import pytest
from started import Started, free_port, place

from tests.proves import proves

README: Final = (Path(__file__).parents[2] / "README.md").read_text()
BLOCK: Final = re.compile(r"^```(sh|python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ADDRESS: Final = "http://127.0.0.1:1200"
OF_THE_CLONE: Final = ("make ", ". .venv/bin/activate")
START: Final = "ondot up "
MARK: Final = "@@ block"
BEGINS_WITHIN_S: Final = 120
PRELUDE: Final = r"""
set -Eeuo pipefail
trap 'echo "README: failed with $?: $BASH_COMMAND" >&2' ERR
curl() { command curl --silent --show-error --fail-with-body "$@"; }
"""
"""A refusal of the API is a failure here: curl alone ends with 0."""
UNTIL_IT_RAN: Final = r"""
until ondot execution list --job $ID --state SUCCEEDED -o json | grep -q SUCCEEDED; do :; done
"""
"""The README says "ten seconds later"; on a busy machine it may take longer. Bounded by the test's timeout."""


def blocks(kind: str) -> list[str]:
    return [text for found, text in BLOCK.findall(README) if found == kind]


def commands() -> list[str]:
    """The blocks that a reader types beside a running ondot."""
    return [text for text in blocks("sh") if not text.startswith((*OF_THE_CLONE, START))]


@contextmanager
def running(line: str, home: Path, directory: Path) -> Iterator[Started]:
    """`ondot up` as the README writes it, on a free port; stopped as a reader does, by Ctrl-C."""
    port = free_port()
    process = psutil.Popen(
        ["bash", "-c", f"exec {line}"],
        cwd=directory,
        env=environment(ONDOT_PORT=str(port), ONDOT_HOME=str(home)),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    started = Started(f"http://127.0.0.1:{port}", home, process, 0.0)
    try:
        _until_ready(started)
        yield started
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    assert code == 0


def _until_ready(started: Started) -> None:
    deadline_s = time.monotonic() + BEGINS_WITHIN_S
    while time.monotonic() < deadline_s:
        assert started.process.status() != psutil.STATUS_ZOMBIE, "ondot up ended before it served"
        try:
            started.get("/readyz")
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError("ondot up did not become ready")


def environment(**more: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ONDOT_")}
    return ours | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "160"} | more


def typed(texts: list[str], url: str, directory: Path) -> list[str]:
    """What each block prints, all typed into one bash."""
    script = PRELUDE
    for text in texts:
        script += f"echo; echo '{MARK}'\n{UNTIL_IT_RAN if '/status' in text else ''}{text.replace(ADDRESS, url)}"
    ended = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        env=environment(ONDOT_URL=url),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stderr}\n{ended.stdout[-3000:]}"
    return ended.stdout.split(f"{MARK}\n")[1:]


def shown(comment: str) -> re.Pattern[str]:
    """A line of output as the README shows it: other instants and ids, and `…` for anything."""
    pattern = re.escape(" ".join(comment.split())).replace("\\ ", r"\s+").replace("…", ".*")
    pattern = re.sub(r"\d{4}\\-\d\d\\-\d\d(T|\\s\+)\d\d:\d\d:\d\d(\\\.\d+)?", r"[-0-9]{10}\1[0-9:.]+", pattern)
    pattern = pattern.replace('"status":"SUCCEEDED"', '"status":"[A-Z]+"')  # the next one may be due just then
    return re.compile(re.sub(r"\b01[0-9a-f]{6}\\-", "[0-9a-f]{8}-", pattern), re.DOTALL)


def check_output(text: str, printed: str) -> None:
    for comment in re.findall(r"^# (.+)$", text, re.MULTILINE):
        assert shown(comment).search(printed), f"the README shows:\n{comment}\nit prints:\n{printed}"


@pytest.mark.timeout(300)
@proves("O6")
def test_every_command_of_the_readme_works_in_its_order_and_prints_what_it_shows(tmp_path: Path) -> None:
    *texts, of_tour = commands()
    with place() as home:
        with running("ondot up --demo", home, tmp_path) as up:
            for text, printed in zip(texts, typed(texts, up.url, tmp_path), strict=True):
                check_output(text, printed)

        (tour,) = blocks("python")
        (tmp_path / "tour.py").write_text(tour)
        (line,) = [text for text in blocks("sh") if text.startswith(START)]
        line = line.replace("~/ondot-tour", str(home.parent / "tour"))
        with running(line, home.parent / "tour", tmp_path) as up:
            (printed,) = typed([of_tour], up.url, tmp_path)
            check_output(of_tour, printed)


def test_the_readme_needs_no_placeholder_to_be_filled_in_by_hand() -> None:
    assert re.findall(r"\b[A-Z]+_ID\b", "".join(blocks("sh"))) == []


def test_the_cron_expression_of_the_readme_is_explained_as_shown() -> None:
    """But for how far away it is: that changes with the day."""
    (text,) = blocks("console")
    command, *expected = text.removeprefix("$ ").splitlines()
    ended = subprocess.run(
        ["bash", "-c", command], env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    days = re.compile(r"in \d+ days")
    assert [days.sub("", line).split() for line in ended.stdout.splitlines()] == [
        days.sub("", line).split() for line in expected
    ]
