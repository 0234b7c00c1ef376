"""Completions of the shell (D5): commands and options without a server; names, keys and ids from the server.

A shell's script (`cli.completion`) runs `ondot` with `_ONDOT_COMPLETE` set and the words so far. Names are text that
other people chose, so no shell evaluates them. Nothing is ever printed but completions: if the server is away, slow, or
refuses, there are none.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from ondot.model.text import visible

WITHIN_S: Final = 0.4
PATIENCE: Final = "_ONDOT_COMPLETE_S"
"""The variable that replaces it, for tests on a busy machine."""
MOST: Final = 100
BY_ID: Final = frozenset({"execution", "run", "dead_letter", "backfill", "bulk", "event"})
SUBJECTS: Final = ("job", "execution", "run", "bulk")
_BREAKS: Final = ":="
"""Where bash splits words besides spaces."""
_QUOTED: Final = frozenset(" \t\\'\"`$&|;<>(){}[]*?!#~^")
"""What bash would take for something else. A backslash before each keeps the word editable."""

Completion = tuple[str, str]


def complete_names(*kinds: str) -> Callable[[str], list[Completion]]:
    """What the server knows of these kinds, for `autocompletion`."""

    kinds = SUBJECTS if kinds == ("subject",) else kinds

    def complete(incomplete: str) -> list[Completion]:
        # The server looks for ids from four characters on; with fewer, the shell chooses among the newest.
        text = incomplete if kinds[0] not in BY_ID or len(incomplete) >= 4 or len(kinds) > 1 else ""
        found = _ask_server(text, kinds)
        if kinds[0] in BY_ID and len(kinds) > 1 and not text:
            found = [*_ask_server("", kinds[:1])[:20], *_ask_server("", kinds[1:])]
        return completions_of(found, incomplete)

    return complete


def complete_choices(*choices: str) -> Callable[[str], list[str]]:
    """Fixed values, whatever their case."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices if choice.casefold().startswith(incomplete.casefold())]

    return complete


def completions_of(items: Sequence[dict[str, Any]], incomplete: str) -> list[Completion]:
    """A name where it says which one is meant, and an id otherwise."""
    counts: dict[str, int] = {}
    for each in items:
        counts[each["name"]] = counts.get(each["name"], 0) + 1
    found: dict[str, str] = {}
    for each in items:
        is_by_id = each["kind"] in BY_ID or each["match"] in {"id", "id-prefix"} or counts[each["name"]] > 1
        about = " ".join(filter(None, (each["state"], each["name"] if is_by_id else None, each["about"])))
        for value in (each["id"],) if is_by_id else (each["name"], each["key"]):
            if value and value.startswith(incomplete) and not value.startswith("-"):
                found.setdefault(value, about)
    return list(found.items())


def _ask_server(text: str, kinds: Sequence[str]) -> list[dict[str, Any]]:
    """Without the SDK's client, whose packages take longer to import than the answer takes."""
    from http.client import HTTPConnection, HTTPSConnection

    from ondot.cli.calling import find_server

    server = find_server()
    parts = urlsplit(server.url)
    open_ = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    headers = {"Accept": "application/json"}
    if key := _key_for(server):
        headers["Authorization"] = f"Bearer {key}"
    if server.tenant:
        headers["Ondot-Tenant"] = server.tenant
    query = urlencode({"q": text[:200], "kinds": ",".join(kinds), "limit": MOST})
    connection = open_(parts.hostname or "", parts.port, timeout=float(os.environ.get(PATIENCE, WITHIN_S)))
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/v1/find?{query}", headers=headers)
        answer = connection.getresponse()
        items: list[dict[str, Any]] = json.loads(answer.read())["items"] if answer.status == 200 else []
    finally:
        connection.close()
    return items


def _key_for(server: Any) -> str | None:
    """Of the server, or the token of a server of this machine."""
    if server.key is not None:
        return server.key or None
    from ondot.account.token import token_for
    from ondot.settings import default_home, load_settings

    return token_for(server.url, load_settings().home or default_home())


def print_completions(shell: str, words: Sequence[str]) -> None:
    """Of the last word, one in a line, with a few words about it after a tab. Never an error, never a traceback."""
    errors = os.open(os.devnull, os.O_WRONLY)
    os.dup2(errors, 2)
    try:
        args, incomplete, already = _words_of_bash(*words) if shell == "bash" else ([*words[:-1]], words[-1], "")
        lines = [_line(shell, item, already) for item in _find(args, incomplete)]
    except (Exception, SystemExit):  # noqa: BLE001
        # Whatever is wrong, a prompt is no place to show it: the command itself will.
        return
    sys.stdout.write("".join(line for line in lines if line))


def _find(args: Sequence[str], incomplete: str) -> list[Any]:
    # typer has no public way to ask for completions but its own scripts, which evaluate what they print.
    from typer._completion_classes import FishComplete
    from typer.main import get_command

    from ondot.cli import app, choose_server

    choose_server(_flag("--tenant", args), _flag("--context", args))
    asked: Any = FishComplete(get_command(app), {}, "ondot", "_ONDOT_COMPLETE")
    return list(asked.get_completions([*args], incomplete))


def _flag(name: str, args: Sequence[str]) -> str | None:
    """The value of a flag before the command, whose function is not called for completions."""
    for number, word in enumerate(args):
        if word == name:
            return args[number + 1] if number + 1 < len(args) else None
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
        if not word.startswith("-") and args[max(number - 1, 0)] not in {"--tenant", "--context"}:
            return None
    return None


def _line(shell: str, item: Any, already: str) -> str:
    value = str(item.value)
    if visible(value) != value:
        return ""  # control characters: nobody types them
    if shell == "bash":
        value = value.removeprefix(already) if value.startswith(already) else value
        return "".join(f"\\{char}" if char in _QUOTED else char for char in value) + "\n"
    about = visible(" ".join(str(item.help or "").split()))[:100]
    return f"{value}\t{about}\n"


def _words_of_bash(line: str, command: str, current: str) -> tuple[list[str], str, str]:
    """The words before the cursor, the one to complete, and how much of that bash takes for words before it: it also
    splits at colons and equals signs."""
    words, incomplete = _split(line)
    if command in words:
        words = words[words.index(command) + 1 :]
    current = current.lstrip("'\"")
    bare = "" if current in {*_BREAKS, ""} and incomplete.endswith(tuple(_BREAKS)) else current
    already = incomplete[: len(incomplete) - len(bare)] if bare != incomplete and incomplete.endswith(bare) else ""
    return words, incomplete, already if already.endswith(tuple(_BREAKS)) else ""


def _split(line: str) -> tuple[list[str], str]:
    """The words of a line, and the last one, whose quote may be open."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:
        return words, lexer.token
    if line[-1:].isspace() and not line.endswith("\\ "):
        return words, ""
    return words[:-1], words[-1] if words else ""
