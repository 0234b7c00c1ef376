"""What a job's program gets from its worker (T4, T5): variables, an account, a directory, limits.

It gets a fixed list of variables and no others: the worker's environment contains secrets of ondot and of its
functions. It works in a directory of its own, which is removed when it has ended. If the operator names an account or
sets a limit, `launch_main` starts it, which drops the worker's account and sets the limits; otherwise it is started
directly.
"""

import os
import pwd
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from ondot.model.errors import Misconfigured
from ondot.settings import Settings
from ondot.targets.processes import launch_main
from ondot.targets.processes.scratch import remove_scratch, scratch_of

KEPT: Final = frozenset({"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ"})
KEPT_PREFIX: Final = "LC_"

_OUT_OF_MEMORY: Final = re.compile(
    r"MemoryError|OutOfMemory|bad_alloc|cannot allocate|can't allocate|failed to map|out of memory|memory exhausted",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Account:
    """The account that programs run as, if it is not the worker's."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str

    @classmethod
    def named(cls, name: str) -> "Account":
        """Raises Misconfigured if there is no such account, or this process may not become it."""
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            raise Misconfigured(
                f"ONDOT_SHELL_USER={name}: this machine has no such account. Create it, or name another."
            ) from None
        if found.pw_uid == 0:
            raise Misconfigured(
                f"ONDOT_SHELL_USER={name}: commands do not run as root. Name an account without rights."
            )
        if os.geteuid() != 0:
            raise Misconfigured(
                f"ONDOT_SHELL_USER={name}: only a worker that runs as root can run commands as another account. Start"
                f" it as root, or start the whole worker as {name} and leave ONDOT_SHELL_USER out."
            )
        groups = tuple(os.getgrouplist(name, found.pw_gid))
        return cls(name, found.pw_uid, found.pw_gid, groups, found.pw_dir, found.pw_shell)


class Reached(NamedTuple):
    name: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Limits:
    """For each process of a program; None: no limit."""

    memory_bytes: int | None = None
    cpu_s: int | None = None
    file_bytes: int | None = None

    def __bool__(self) -> bool:
        return any((self.memory_bytes, self.cpu_s, self.file_bytes))

    def find_reached(self, exit_code: int, stderr: str) -> Reached | None:
        """The limit that ended a program, by its exit code and its standard error; None if none did.

        A shell reports the signal that ended its child as 128 plus its number. There is no signal for memory: the
        program is refused more, and reports it in its own words.
        """
        number = -exit_code if exit_code < 0 else exit_code - 128
        if self.cpu_s and number == signal.SIGXCPU:
            return Reached("cpu", f"{self.cpu_s} s of processor time (ONDOT_SHELL_CPU_S)")
        if self.file_bytes and (number == signal.SIGXFSZ or "File too large" in stderr):
            return Reached("file_size", f"{self.file_bytes:,} bytes in one file (ONDOT_SHELL_FILE_BYTES)")
        if self.memory_bytes and _OUT_OF_MEMORY.search(stderr):
            return Reached("memory", f"{self.memory_bytes:,} bytes of memory (ONDOT_SHELL_MEMORY_BYTES)")
        return None


@dataclass(frozen=True, slots=True)
class Confinement:
    account: Account | None = None
    limits: Limits = field(default_factory=Limits)
    variables: frozenset[str] = frozenset()
    """Names of further variables that programs get."""

    @property
    def is_launched(self) -> bool:
        return self.account is not None or bool(self.limits)

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """The part of the worker's environment that a program gets."""
        kept = {
            name: value
            for name, value in own.items()
            if name in KEPT or name in self.variables or name.startswith(KEPT_PREFIX)
        }
        if self.account is None:
            return kept
        name, home = self.account.name, self.account.home
        return kept | {"USER": name, "LOGNAME": name, "HOME": home, "SHELL": self.account.shell}

    def words(self, command: Sequence[str], environment: Mapping[str, str], report: int) -> tuple[str, ...]:
        """The command line of the launcher."""
        account, limits = self.account, self.limits
        ids = ("-1", "-1", "") if account is None else (str(account.uid), str(account.gid), _join(account.groups))
        return (
            *(sys.executable, "-I", "-S", launch_main.__file__),
            *(str(report), "set" if "LC_CTYPE" in environment else "unset", *ids),
            _join((limits.memory_bytes or 0, limits.cpu_s or 0, limits.file_bytes or 0)),
            *command,
        )

    def make_scratch(self, mark: str) -> Path:
        path = scratch_of(mark)
        path.mkdir(mode=0o700)
        if self.account is not None:
            os.chown(path, self.account.uid, self.account.gid)
        return path

    def check(self) -> None:
        """Start a program that does nothing. Raises Misconfigured if this machine cannot do that."""
        scratch = self.make_scratch(secrets.token_hex(16))
        ours, theirs = os.pipe()
        try:
            environment = self.environment(os.environ)
            words = self.words(("/bin/sh", "-c", "cd . && :"), environment, theirs)
            done = subprocess.run(  # noqa: S603 - our own launcher
                words,
                env=environment,
                cwd=scratch,
                pass_fds=(theirs,),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        finally:
            os.close(theirs)
            with os.fdopen(ours, "rb") as report:
                error_number = report.read()
            remove_scratch(scratch)
        if done.returncode:
            why = os.strerror(int(error_number)) if error_number else done.stderr.decode(errors="replace").strip()
            account = f" as {self.account.name}" if self.account else ""
            raise Misconfigured(
                f"No command can be started{account} in {scratch.parent} ({why}): give it access to that directory,"
                " name another by TMPDIR, or correct the ONDOT_SHELL_… settings."
            )


UNCONFINED: Final = Confinement()


def _join(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def read_confinement(settings: Settings) -> Confinement:
    """What the settings allow commands. Raises Misconfigured if this machine cannot enforce it."""
    if not settings.allow_shell:
        return UNCONFINED
    confinement = Confinement(
        Account.named(settings.shell_user) if settings.shell_user else None,
        Limits(settings.shell_memory_bytes, settings.shell_cpu_s, settings.shell_file_bytes),
        frozenset(settings.shell_variables),
    )
    if confinement.is_launched:
        confinement.check()
    return confinement
