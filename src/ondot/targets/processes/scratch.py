"""The working directory of a program, named by the mark of its call, so that worker and guard both find it."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


def scratch_of(mark: str) -> Path:
    return Path(tempfile.gettempdir()) / f"ondot-shell-{mark}"


def remove_if_empty(scratch: Path) -> bool:
    """Whether it is gone. Most programs leave nothing in it, and then this is enough."""
    with suppress(OSError):
        scratch.rmdir()
    return not scratch.exists()


def remove_scratch(scratch: Path) -> bool:
    """Remove it with all in it, through no symbolic link; returns whether it is gone. Blocks, so not for the loop."""
    for _ in range(3):
        # Several times, if a process that was left in the background still creates files there.
        with suppress(OSError):
            shutil.rmtree(scratch)
        if not scratch.exists():
            return True
        if os.geteuid() != 0:
            # The program ran as the same account and may have removed its own access; root needs no mode.
            _open_up(scratch)
    return False


def _open_up(scratch: Path) -> None:
    scratch.chmod(0o700)
    for directory, names, _ in os.walk(scratch):
        for name in names:
            with suppress(OSError):
                Path(directory, name).chmod(0o700)
