"""The environment of ondot's processes, kept where no job can read it (P12, T5).

The kernel shows the environment that a program was started with in `/proc/PID/environ`, whatever the process later does
to its variables: a shell job of the same account could read the database's password there. So a role first moves its
variables to its own memory and overwrites the block that the kernel shows (`take_environment`). It also makes the
kernel refuse other processes of the same account that read its memory or attach to it; root still may.

ondot's processes pass their variables to each other through a descriptor, not through the block, so others can read
them at no time. Variables that a program needs before it can read the descriptor (paths, languages, Python's own) stay
in the block: `PLAIN` lists them, and none is a secret. All of this is for Linux; elsewhere variables are passed as
usual.
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

MASTER_KEYS: Final = ("ONDOT_SECRET_KEY", "ONDOT_AUDIT_KEY")
_HIDDEN: Final[dict[str, str]] = {}
"""The keys that this process took out of its environment."""

_ENV_START, _ENV_END = 47, 48
"""Fields of /proc/self/stat, counted from the one after the program's name."""
_PR_SET_DUMPABLE: Final = 4


def is_plain(name: str) -> bool:
    return name in PLAIN or name.startswith(PLAIN_PREFIXES)


def plain_environment() -> dict[str, str]:
    """The environment for a process that needs none of ondot's variables."""
    return {name: value for name, value in os.environ.items() if is_plain(name)}


@contextmanager
def hand_over(environment: Mapping[str, str]) -> Iterator[tuple[dict[str, str], tuple[int, ...]]]:
    """The block and the descriptors with which to start a process of ondot that gets these variables."""
    if sys.platform != "linux":
        yield dict(environment), ()
        return
    descriptor = _write(environment)
    plain = {name: value for name, value in environment.items() if is_plain(name)}
    try:
        yield {**plain, DESCRIPTOR: str(descriptor)}, (descriptor,)
    finally:
        os.close(descriptor)


def take_environment() -> None:
    """The first act of a process of ondot: read the variables passed to it, and keep others from reading them."""
    descriptor = os.environ.pop(DESCRIPTOR, None)
    if descriptor is not None:
        with os.fdopen(int(descriptor), "rb") as file:
            for entry in filter(None, file.read().split(b"\0")):
                name, _, value = entry.partition(b"=")
                os.environb[name] = value
    if sys.platform == "linux":
        _overwrite_block()
        _keep_others_out()


def hide_master_keys() -> None:
    """After the settings were read: take the keys out of the environment. Code of users, and every program that it
    starts, would find them there. A process that starts again gets them back."""
    for name in MASTER_KEYS:
        if (value := os.environ.pop(name, None)) is not None:
            _HIDDEN[name] = value


def execute_again() -> NoReturn:
    """Start the same command again in the same process, with the same variables."""
    with hand_over({**os.environ, **_HIDDEN}) as (block, descriptors):
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        os.execve(sys.executable, sys.orig_argv, block)  # noqa: S606 - this process's own command


if sys.platform == "linux":
    import ctypes

    def _write(environment: Mapping[str, str]) -> int:
        """An anonymous file in memory, positioned at its start."""
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
        # The C library's variables point into the block until they are set again, so they are set first.
        for name, value in os.environb.items():
            os.putenv(name, value)
        at = start
        for entry in ctypes.string_at(start, end - start).split(b"\0") if start else ():
            if not is_plain(os.fsdecode(entry.partition(b"=")[0])):
                ctypes.memset(at, 0, len(entry))
            at += len(entry) + 1

    def _keep_others_out() -> None:
        """No reading of our memory, no debugger, no core dump. The kernel resets this when another program starts."""
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
