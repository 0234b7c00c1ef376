"""The environment of our processes, kept where no job can read it (P12, T5).

The kernel shows the environment that a program was started with in `/proc/PID/environ`, for as long as the process
lives and whatever it does to its variables: a shell job of the same account read the database's password there. So a
role first of all moves its variables to its own memory and overwrites the block that the kernel shows
(`take_environment`). It also asks the kernel that no process of the same account may read its memory or attach to it;
root may all the same.

Our processes hand their variables to each other by a descriptor and not by the block: there is no moment at which
others could read them. What a program needs before it can read the descriptor (paths, languages, Python's own) stays
in the block; `PLAIN` is that list, and nothing in it is a secret. All of this is for Linux; elsewhere variables are
handed over as usual.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NoReturn

DESCRIPTOR: Final = "ONDOT_ENVIRONMENT_FD"

PLAIN: Final = frozenset(
    {
        "GLIBC_TUNABLES",
        "HOME",
        "LANG",
        "LANGUAGE",
        "LOGNAME",
        "ONDOT_CALL_ID",  # how `targets.processes.descendants` finds the processes of a call
        "PATH",
        "SHELL",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
    }
)
PLAIN_PREFIXES: Final = ("DYLD_", "LC_", "LD_", "MALLOC_", "PYTHON")

_ENV_START, _ENV_END = 47, 48
"""Fields of /proc/self/stat, counted from the one after the program's name."""
_PR_SET_DUMPABLE: Final = 4


def is_plain(name: str) -> bool:
    return name in PLAIN or name.startswith(PLAIN_PREFIXES)


def plain_environment() -> dict[str, str]:
    """For a process that needs none of our variables."""
    return {name: value for name, value in os.environ.items() if is_plain(name)}


@contextmanager
def handed_over(environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """How to start a process of ours with these variables: the block for it, and the descriptors to pass."""
    if sys.platform != "linux":
        yield dict(environment), ()
        return
    descriptor = _written(environment)
    plain = {name: value for name, value in environment.items() if is_plain(name)}
    try:
        yield {**plain, DESCRIPTOR: str(descriptor)}, (descriptor,)
    finally:
        os.close(descriptor)


def take_environment() -> None:
    """First of all in a process of ours: get what was handed over, and let nobody read it after us."""
    descriptor = os.environ.pop(DESCRIPTOR, None)
    if descriptor is not None:
        with os.fdopen(int(descriptor), "rb") as file:
            for entry in filter(None, file.read().split(b"\0")):
                name, _, value = entry.partition(b"=")
                os.environb[name] = value
    if sys.platform == "linux":
        _overwrite_block()
        _keep_others_out()


def execute_again() -> NoReturn:
    """The same command in the same process, with the same variables."""
    with handed_over(os.environ) as (block, descriptors):
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        os.execve(sys.executable, sys.orig_argv, block)  # noqa: S606 - what this process was started with


if sys.platform == "linux":
    import ctypes

    def _written(environment: Mapping[str, str]) -> int:
        """A file in memory that has no name, at its beginning."""
        descriptor = os.memfd_create("environment")
        content = b"\0".join(os.fsencode(f"{name}={value}") for name, value in environment.items())
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

    def _overwrite_block() -> None:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - before anything else is imported
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[_ENV_START]), int(fields[_ENV_END])
        # The C library gets copies of its own first: its variables point into the block until they are set again.
        for name, value in os.environb.items():
            os.putenv(name, value)
        at = start
        for entry in ctypes.string_at(start, end - start).split(b"\0") if start else ():
            if not is_plain(os.fsdecode(entry.partition(b"=")[0])):
                ctypes.memset(at, 0, len(entry))
            at += len(entry) + 1

    def _keep_others_out() -> None:
        """No reading of our memory, no debugger, no core dump; the kernel forgets it when another program begins."""
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
