"""Contexts: the servers that a person uses, each with its URL and key, in one private file (D5).

The file is `ondot/contexts.json` in the user's configuration directory, for this account alone (0600, in a directory
with 0700), and is replaced as a whole. A file that others can read is refused with advice: its keys must be revoked.

A key is sent only to the URL beside it. `server_of` decides: a context named by a flag, then ONDOT_URL with
ONDOT_API_KEY, then the context in use, then `ondot.toml` and the default. URL and key never come from two places.
"""

import fcntl
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from ondot.model.errors import Misconfigured, NotFound
from ondot.settings import Settings

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
FILE: Final = "contexts.json"


@dataclass(frozen=True, slots=True)
class Context:
    url: str
    key: str | None = field(default=None, repr=False)
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    current: str | None = None
    by_name: dict[str, Context] = field(default_factory=dict)

    def get(self, name: str) -> Context:
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none yet: add one with `ondot context add NAME --url URL`"
            raise NotFound(f"There is no context {name!r}. Contexts: {known}.")
        return self.by_name[name]


@dataclass(frozen=True, slots=True)
class Server:
    """Where a command goes. `context`: the name of the context, if that is where the URL comes from. `unused`: the
    context whose key is not sent, because the URL does not come from it."""

    url: str
    key: str | None = field(default=None, repr=False)
    tenant: str | None = None
    context: str | None = None
    unused: str | None = None


def contexts_file() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".config") / "ondot" / FILE


def server_of(settings: Settings) -> Server:
    """The server of a client command. Raises Misconfigured if URL and key would come from different places."""
    if settings.is_from_toml("context"):
        raise Misconfigured(
            "`context` cannot be set in ondot.toml: use --context, ONDOT_CONTEXT or `ondot context use`."
        )
    contexts = read_contexts()
    name = settings.context or contexts.current
    has_url = settings.is_given("url") and not settings.is_from_toml("url")
    if has_url and settings.context:
        raise Misconfigured("ONDOT_URL and ONDOT_CONTEXT both name a server: unset one of them.")
    if name is None or has_url:
        url, key = settings.server
        unused = name if key is None and name in contexts.by_name and contexts.by_name[name].key else None
        return Server(url, key, settings.tenant, unused=unused)
    context = contexts.get(name)
    if settings.api_key and not settings.is_from_toml("api_key"):
        raise Misconfigured(
            f"ONDOT_API_KEY is set, but the URL comes from the context {name}: a key is only sent to a URL from the"
            " same place. Unset ONDOT_API_KEY, or set ONDOT_URL beside it."
        )
    return Server(context.url, context.key, settings.tenant or context.tenant, context=name)


def read_contexts() -> Contexts:
    path = contexts_file()
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except OSError as error:
        raise Misconfigured(f"Cannot read the contexts in {path}: {error.strerror}.") from error
    with os.fdopen(descriptor, encoding="utf-8") as file:
        _refuse_readers(path, os.fstat(descriptor))
        try:
            written = json.loads(file.read())
            contexts = {name: Context(**context) for name, context in written["contexts"].items()}
            return Contexts(written["current"], contexts)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Misconfigured(f"{path} is not a file of contexts. Remove it, and add them again.") from error


@contextmanager
def changed_contexts() -> Iterator[list[Contexts]]:
    """Yields a list of the contexts, whose last is written at the end. Two commands at once do not lose a change."""
    path = contexts_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_writers(path.parent)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        versions = [read_contexts()]
        yield versions
        if len(versions) > 1:
            os.fchmod(directory, 0o700)
            _write(path, versions[-1])
            os.fsync(directory)
    finally:
        os.close(directory)


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise Misconfigured(f"{name!r} cannot name a context: use up to 63 letters, digits, dots, dashes, underscores.")
    return name


def without(contexts: Contexts, name: str) -> Contexts:
    contexts.get(name)
    left = {known: context for known, context in contexts.by_name.items() if known != name}
    return replace(contexts, current=None if contexts.current == name else contexts.current, by_name=left)


def _write(path: Path, contexts: Contexts) -> None:
    by_name = {name: asdict(context) for name, context in sorted(contexts.by_name.items())}
    # mkstemp creates the file for this account alone.
    descriptor, fresh = tempfile.mkstemp(prefix=f".{FILE}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"current": contexts.current, "contexts": by_name}, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(descriptor)
        os.replace(fresh, path)  # noqa: PTH105 - the same call for both names
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise


def _refuse_readers(path: Path, found: os.stat_result) -> None:
    if found.st_uid not in {0, os.geteuid()}:
        raise Misconfigured(f"{path} belongs to another account, which could direct your commands: remove it.")
    if found.st_mode & 0o077:
        raise Misconfigured(
            f"Others can read the keys in {path} (mode {stat.S_IMODE(found.st_mode):o}). Run `chmod 600 {path}`; if"
            " others use this machine, revoke its keys and create new ones."
        )


def _refuse_writers(directory: Path) -> None:
    found = directory.stat()
    if found.st_uid != os.geteuid():
        raise Misconfigured(f"{directory} belongs to another account: keys are not written there.")
    if found.st_mode & 0o022:
        raise Misconfigured(f"Others may write to {directory}: run `chmod 700 {directory}`.")
