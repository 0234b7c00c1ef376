"""What other processes can read of our environment: real processes, read as a shell job would."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ondot.environment import DESCRIPTOR, hand_over, is_plain
from tests.proves import proves

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows the environment of a process")

SECRET = "s3cr3t"
NAMES = ("ONDOT_DATABASE_URL", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "STRIPE_KEY")
LOOKS = """
import ctypes, os, subprocess, sys
from ondot.environment import execute_again, take_environment
take_environment()
if os.environ.pop("AGAIN", ""):
    execute_again()
libc = ctypes.CDLL(None)
libc.getenv.restype = ctypes.c_char_p
for name in sys.argv[1:]:
    assert os.environ[name] == libc.getenv(name.encode()).decode() == "s3cr3t", name
assert os.environ["LINES_"] == "one\\ntwo=\\udcff"
assert not [name for name in os.environ if "ONDOT_ENVIRONMENT" in name]
assert "PATH" in os.environ
looked = "cat /proc/$PPID/environ; cat /proc/$PPID/cmdline; ls -l /proc/$PPID/fd"
sys.stdout.buffer.write(subprocess.run(["sh", "-c", looked], env={}, capture_output=True).stdout)
dumpable = libc.prctl(3, 0, 0, 0, 0)
print("dumpable", dumpable)
"""


def given(**more: str) -> dict[str, str]:
    return {**os.environ, **dict.fromkeys(NAMES, SECRET), "LINES_": "one\ntwo=\udcff", "EMPTY": "", **more}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "looks.py"
    path.write_text(LOOKS)
    return path


def looked(script: Path, environment: dict[str, str], descriptors: tuple[int, ...] = ()) -> str:
    done = subprocess.run(
        [sys.executable, str(script), *NAMES],
        env=environment,
        pass_fds=descriptors,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(errors="replace")


@proves("P12", "T5")
@pytest.mark.parametrize("again", ["", "yes"])
def test_a_process_that_took_its_environment_has_it_and_hides_it_from_others(script: Path, again: str) -> None:
    shown = looked(script, given(AGAIN=again))
    assert SECRET not in shown
    assert "LINES_" not in shown
    assert "memfd" not in shown
    assert "PATH=" in shown
    assert "dumpable 0" in shown


@proves("P12", "T5")
def test_an_environment_that_is_passed_on_is_never_in_the_environment_block(script: Path) -> None:
    with hand_over(given()) as (block, descriptors):
        assert SECRET not in "".join(block.values())
        assert all(is_plain(name) or name == DESCRIPTOR for name in block)
        shown = looked(script, block, descriptors)
    assert SECRET not in shown
    assert "memfd" not in shown


@proves("E7")
def test_the_mark_of_a_call_stays_where_its_worker_can_find_it(script: Path) -> None:
    assert "ONDOT_CALL_ID=word" in looked(script, given(ONDOT_CALL_ID="word"))


HIDES = """
import os, subprocess, sys
from ondot.environment import MASTER_KEYS, execute_again, hide_master_keys, take_environment
take_environment()
assert all(os.environ[name] == "s3cr3t" for name in MASTER_KEYS)
hide_master_keys()
hide_master_keys()
assert not any(name in os.environ for name in MASTER_KEYS)
print(subprocess.run(["env"], capture_output=True).stdout)
if os.environ.pop("AGAIN", ""):
    sys.stdout.flush()
    execute_again()
"""


@proves("P12", "T5")
@pytest.mark.parametrize("again", ["", "yes"])
def test_master_keys_are_out_of_the_environment_and_come_back_when_the_process_starts_again(
    tmp_path: Path, again: str
) -> None:
    path = tmp_path / "hides.py"
    path.write_text(HIDES)
    shown = looked(path, given(AGAIN=again, ONDOT_SECRET_KEY=SECRET, ONDOT_AUDIT_KEY=SECRET))
    assert shown.count("STRIPE_KEY") == (2 if again else 1)
    assert "ONDOT_SECRET_KEY" not in shown
    assert "ONDOT_AUDIT_KEY" not in shown
