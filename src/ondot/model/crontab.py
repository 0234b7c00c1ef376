"""Reading a crontab: its entries, with the variables and comments that belong to them (D6).

Promises one outcome for each line: an entry, or a reason why it is not taken over. The rules are those of Vixie cron
and its heirs: variables hold for the lines below them, an unescaped `%` ends the command and begins its input,
`CRON_TZ` is the zone of a schedule. A crontab of the system has the account in a sixth column.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

_VARIABLE: Final = re.compile(
    r"""\s*(?:(?P<quote>["'])(?P<quoted>\w+)(?P=quote)|(?P<name>[A-Za-z_]\w*))\s*=(?P<value>.*)"""
)
_ENTRY: Final = re.compile(r"\s*(@\S+|\S+(?:\s+\S+){4})\s+(\S.*?)\s*")
_USER: Final = re.compile(r"([a-z_][a-z0-9_.-]*\$?)\s+(\S.*)", re.ASCII | re.IGNORECASE)
_FIELDS: Final = re.compile(r"[-*?\d,/A-Za-z~#]+")
_DECORATION: Final = re.compile(r"[\W_]*")
_SPLIT: Final = re.compile(r"&&|\|\||[;|{}()\n]")
MACROS: Final = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
OTHERS: Final = {"@every_minute": "* * * * *"}
SYSTEM_ACCOUNTS: Final = frozenset(
    {"root", "www-data", "nobody", "daemon", "mail", "postgres", "backup", "list", "man"}
)
NOT_FOR_COMMANDS: Final = frozenset({"SHELL", "MAILTO", "MAILFROM", "CRON_TZ", "RANDOM_DELAY", "CONTENT_TYPE"})
SKIPPED: Final = frozenset(
    {"cd", "test", "[", "[[", "export", "set", "sleep", "true", ":", "exit", "umask", "ulimit", "if"}
)
WRAPPERS: Final = frozenset(
    {"nice", "ionice", "env", "sudo", "timeout", "chronic", "flock", "nohup", "time", "exec", "then", "do", "command"}
    | {"sh", "bash", "dash", "zsh", "ksh", "python", "python2", "python3", "perl", "php", "ruby", "node", "java"}
)


@dataclass(frozen=True, slots=True)
class Entry:
    line: int
    expression: str
    command: str
    stdin: str | None = None
    user: str | None = None
    comment: str | None = None
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def shell(self) -> str:
        return self.variables.get("SHELL") or "/bin/sh"

    @property
    def timezone(self) -> str | None:
        """`TZ` is a variable of the command alone."""
        return self.variables.get("CRON_TZ") or None

    @property
    def script(self) -> str:
        """What the shell runs: with the variables of the crontab, in the home directory, as cron does."""
        exports = "".join(
            f"export {name}={_quote(value)}\n" for name, value in self.variables.items() if name not in NOT_FOR_COMMANDS
        )
        if self.stdin is None:
            return f"{exports}cd || exit\n{self.command}"
        mark = "INPUT"
        while mark in self.stdin.split("\n"):
            mark += "_"
        end = "" if self.stdin.endswith("\n") else "\n"
        return f"{exports}cd || exit\n{{\n{self.command}\n}} <<'{mark}'\n{self.stdin}{end}{mark}"


@dataclass(frozen=True, slots=True)
class Left:
    """A line that is not taken over."""

    line: int
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Crontab:
    entries: tuple[Entry, ...]
    left: tuple[Left, ...]
    has_users: bool
    variables: frozenset[str]
    """The names of all variables that it sets."""


def read_crontab(
    text: str, *, has_users: bool | None = None, is_account: Callable[[str], bool] = SYSTEM_ACCOUNTS.__contains__
) -> Crontab:
    """`has_users`: whether there is a column with accounts; None: if the column of every entry names one."""
    found = list(_lines(text))
    entries = [item for item in found if isinstance(item, Entry)]
    if has_users is None:
        split = [_USER.fullmatch(entry.command) for entry in entries]
        has_users = bool(entries) and all(match is not None and is_account(match[1]) for match in split)
    left = [item for item in found if isinstance(item, Left)]
    if has_users:
        with_users = [_with_user(entry) for entry in entries]
        left += [item for item in with_users if isinstance(item, Left)]
        entries = [item for item in with_users if isinstance(item, Entry)]
    names = frozenset(match["name"] or match["quoted"] for line in text.split("\n") if (match := _variable(line)))
    return Crontab(tuple(_with_input(entry) for entry in entries), tuple(sorted(left, key=_line)), has_users, names)


def names_of(entries: Sequence[Entry]) -> list[tuple[str, str]]:
    """A name and a key for each entry. The key stays the same when a schedule changes or lines are moved."""
    slugs = [slug_of(entry.command) for entry in entries]
    alike = Counter((entry.command, entry.user, entry.stdin) for entry in entries)
    keys: list[str] = []
    for entry, slug in zip(entries, slugs, strict=True):
        what = (entry.command, entry.user, entry.stdin)
        # The same command at several times: only the schedule distinguishes the entries.
        marks = (*what, *((entry.expression, entry.timezone) if alike[what] > 1 else ()))
        keys.append(f"{slug}-{hashlib.sha256(repr(marks).encode('utf-8', 'replace')).hexdigest()[:8]}")
    counts, seen = Counter(slugs), Counter[str]()
    named = []
    for slug, key in zip(slugs, keys, strict=True):
        seen[key] += 1
        unique = key if seen[key] == 1 else f"{key}-{seen[key]}"
        named.append((slug if counts[slug] == 1 else unique, unique))
    return named


def slug_of(command: str) -> str:
    """A short name from a command: its program, and what the program is about."""
    for part in _SPLIT.split(command):
        words = [word.strip("\"'") for word in part.split()]
        while words and (
            _base(words[0]) in WRAPPERS or words[0].startswith("-") or "=" in words[0] or words[0].isdigit()
        ):
            words.pop(0)
        if not words or words[0] in SKIPPED or words[0].startswith((">", "<", "#")):
            continue
        program, *rest = (_base(word) for word in words if not word.startswith(("-", ">", "<", "2>", "&")))
        slug = "-".join([program, *rest[:1]])
        return re.sub(r"[^A-Za-z0-9._-]+", "-", slug).strip("-.")[:60].strip("-.") or "command"
    return "command"


def _base(word: str) -> str:
    name = word.rstrip("/").rpartition("/")[2]
    return re.sub(r"\.(sh|py|pl|php|rb|js)$", "", name)


def _lines(text: str) -> Iterator[Entry | Left]:
    variables: dict[str, str] = {}
    comments: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        stripped = line.strip()
        if stripped.startswith("#"):
            comments.append(stripped.lstrip("#").strip())
            continue
        if not stripped:
            comments = []
            continue
        if match := _variable(line):
            variables = {**variables, match["name"] or match["quoted"]: _unquote(match["value"].strip())}
            comments = []
            continue
        found = _entry(number, line)
        if isinstance(found, Entry):
            found = replace(found, variables=variables, comment=_comment(comments))
        yield found
        comments = []


def _variable(line: str) -> "re.Match[str] | None":
    return None if line.lstrip().startswith("#") else _VARIABLE.fullmatch(line)


def _entry(number: int, line: str) -> Entry | Left:
    shown = line.strip()
    if any(not char.isprintable() and char != "\t" for char in line):
        return Left(number, shown, "it has a character that cannot be shown, or is not UTF-8: correct the line")
    match = _ENTRY.fullmatch(line)
    if match is None:
        return Left(number, shown, "it is neither a variable nor five fields and a command")
    # A dash before the minute means that the run is not written to syslog.
    expression = " ".join(OTHERS.get(match[1], match[1]).removeprefix("-").split())
    why = _why_not(expression)
    return Entry(number, expression, match[2]) if why is None else Left(number, shown, why)


def _why_not(expression: str) -> str | None:
    if expression == "@reboot":
        return "@reboot runs when a machine starts, which is no time: use a systemd unit on that machine"
    if expression.startswith("@"):
        return None if expression in MACROS else f"{expression} is not known: write five fields"
    if "~" in expression:
        return "a random time (~) is chosen by each machine: write H instead, or a fixed time"
    is_schedule = all(_FIELDS.fullmatch(each) for each in expression.split())
    return None if is_schedule else "it is neither a variable nor five fields and a command"


def _with_user(entry: Entry) -> Entry | Left:
    match = _USER.fullmatch(entry.command)
    if match is None:
        return Left(entry.line, f"{entry.expression} {entry.command}", "it has no account before the command")
    return replace(entry, user=match[1], command=match[2])


def _with_input(entry: Entry) -> Entry:
    r"""The first `%` ends the command, the others are line breaks of its input; `\%` is a percent sign."""
    command, *lines = (part.replace(r"\%", "%") for part in re.split(r"(?<!\\)%", entry.command))
    return replace(entry, command=command.rstrip(), stdin="\n".join(lines) if lines else None)


def _comment(lines: Sequence[str]) -> str | None:
    """The comment above an entry, without entries that are commented out. The picture of the columns is none."""
    if any(re.match(r"[.|*+]|-{2,}|m\s+h\s+dom\b", line) for line in lines):
        return None
    kept = [line for line in lines if not _DECORATION.fullmatch(line) and not isinstance(_entry(0, line), Entry)]
    return " ".join(kept) or None


def _unquote(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def _quote(value: str) -> str:
    escaped = value.replace("'", "'\\''")
    return f"'{escaped}'"


def _line(left: Left) -> int:
    return left.line
