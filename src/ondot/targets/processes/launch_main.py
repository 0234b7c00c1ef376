"""Between fork and the program (T4): `python -I -S launch_main.py REPORT LC_CTYPE UID GID GROUPS LIMITS WORD…`.

Drops the worker's account, sets limits, and becomes the program, with the same process id. It is a program of its own
because the worker has threads, and between fork and exec of such a process no Python may run. If it cannot become the
program, it writes the error's number to the descriptor REPORT, which the program itself never sees. It imports little:
it costs about 15 ms for each program that is confined.
"""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_NO_NEW_PRIVS = 38
_CPU_MARGIN_S = 1
"""A program that ignores SIGXCPU is killed after this much more processor time."""


def main(report: str, lc_ctype: str, uid: str, gid: str, groups: str, limits: str, *words: str) -> None:
    descriptor = int(report)
    os.set_inheritable(descriptor, False)
    # Before the account changes: it may not be able to read what Python imports for that.
    places = [""] if "/" in words[0] else [f"{place}/" for place in os.get_exec_path()]
    try:
        _set_limits(*(int(limit) for limit in limits.split(",")))
        if int(uid) >= 0:
            _become(int(uid), int(gid), [int(group) for group in groups.split(",") if group])
        # Python ignores these two, and a program inherits that: it would not notice that its reader is gone, or that
        # its file may not grow.
        for number in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if lc_ctype == "unset":
            # Python sets it in the C locale; the program must get the worker's environment unchanged.
            os.environ.pop("LC_CTYPE", None)
        _execute(places, words)
    except OSError as error:
        os.write(descriptor, str(error.errno).encode())
        os._exit(127)


def _execute(places: list[str], words: tuple[str, ...]) -> None:
    """As `os.execvpe`: the first that can be executed. Raises the error that says most about why none can."""
    refused = None
    for place in places:
        try:
            os.execve(place + words[0], words, os.environ)  # noqa: S606 - the job's own words, by no shell
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            refused = refused or error
    raise refused or missing


def _set_limits(memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    if cpu_s:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + _CPU_MARGIN_S))
    if file_bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    if memory_bytes or cpu_s or file_bytes:
        # A program that is ended by SIGXCPU or SIGXFSZ would leave a dump of its memory.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _become(uid: int, gid: int, groups: list[int]) -> None:
    # Before the account changes: it may not be able to read the library.
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    os.setgroups(groups)
    os.setgid(gid)
    os.setuid(uid)
    os.umask(0o077)
    if libc is not None:
        # No setuid program, such as sudo, can regain the dropped rights.
        libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
