"""Names, keys and the first characters of ids, wherever a command takes an id (D5): one way for all commands.

A whole id costs no request. Anything else is one `GET /v1/find`: a key or a whole name counts first, then the beginning
of an id. A job with a schedule wins over one-time jobs of its name, and what exists over what is deleted. If the text
may mean several, the command ends with exit code 2 and lists them; if it means none, with 3 and the nearest names.
"""

import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import typer

from ondot.cli.calling import ask
from ondot.cli.errors import USAGE
from ondot.cli.output import harmless, show_error, show_progress
from ondot.model.errors import NotFound

if TYPE_CHECKING:
    from ondot.model.access import Caller
    from ondot.sdk.client import Client
    from ondot.store.database import Database

    Id = UUID
else:
    # What the help shows as the type: people may type a name, too.
    Id = type("name|id", (UUID,), {})

Json = dict[str, Any]

STANDARD_INPUT: Final = "-"
SHOWN: Final = 10
GONE: Final = frozenset({"DELETED", "REVOKED", "RESOLVED"})
WORDS: Final = {"dead_letter": "dead letter", "bulk": "operation", "view": "saved view", "key": "API key"}
"""What people call a kind, where that is not its name."""
LISTS: Final = {"bulk": "bulk list", "dead_letter": "dead-letter list", "worker": "fleet", "node": "fleet"}
KINDS: Final = {"subject": ("job", "execution", "run", "bulk")}
"""Kinds that stand for several."""
OF_JOBS: Final = {"execution": "job", "run": "workflow", "dead_letter": "job"}
"""What a job's name stands for: the latest of these that it has, if a command only reads it."""


def argument(kind: str, metavar: str, help_: str, *, latest: bool = False, by_name: bool = False, **more: Any) -> Any:
    """An argument that names a thing. `latest`: the name of a job means the latest that it has. `by_name`: the API
    takes the thing's name, not its id."""
    from ondot.cli.complete import complete_names

    return typer.Argument(
        metavar=metavar,
        help=help_,
        show_default=False,
        parser=parser_of(kind, latest=latest, by_name=by_name),
        autocompletion=complete_names(kind, *([OF_JOBS[kind]] if latest else [])),
        **more,
    )


def option(kind: str, *flags: str, metavar: str, help_: str, **more: Any) -> Any:
    """An option that names a thing."""
    from ondot.cli.complete import complete_names

    return typer.Option(
        *flags, metavar=metavar, help=help_, parser=parser_of(kind), autocompletion=complete_names(kind), **more
    )


def parser_of(kind: str, *, latest: bool = False, by_name: bool = False) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        if is_completing():
            return text
        if text == STANDARD_INPUT:
            return Lines([parse(line) for line in _lines()])
        if by_name:
            return text if not may_be_id(text) else resolve(kind, text, latest=latest, by_name=True)
        return whole_id(text) or resolve(kind, text, latest=latest)

    # typer shows it where there is no metavar.
    parse.__name__ = kind.upper()
    return parse


class Lines(list[Any]):
    """What standard input named, in the place of `-`."""


def several(named: Iterable[Any] | None) -> list[Any]:
    """All that were named, each once, with those of standard input in their place."""
    flat: list[Any] = []
    for each in named or ():
        flat += each if isinstance(each, Lines) else [each]
    return list(dict.fromkeys(flat))


def one(named: Any) -> Any:
    """The only one that was named."""
    [id_] = several([named])
    return id_


def is_completing() -> bool:
    """The shell asks for completions: what was typed before is not resolved."""
    return "_ONDOT_COMPLETE" in os.environ


def whole_id(text: str) -> UUID | None:
    """The id, if the text is a whole one."""
    try:
        return UUID(text) if len(text) in {32, 36} else None
    except ValueError:
        return None


def resolve(kind: str, text: str, *, latest: bool = False, by_name: bool = False) -> Any:
    """The id of what a text names. Raises NotFound, or ends the command if the text may mean several things."""

    async def question(client: "Client") -> str:
        return await resolve_with(client, kind, text, latest=latest, by_name=by_name)

    found = ask(question)
    return found if by_name else UUID(found)


async def resolve_with(client: "Client", kind: str, text: str, *, latest: bool = False, by_name: bool = False) -> str:
    of = OF_JOBS.get(kind)
    kinds = [*KINDS.get(kind, (kind,)), *([] if of is None else [of])]
    found = await client.find(text, kinds, exact=True, limit=SHOWN)
    own = [each for each in found["items"] if _is_of(kind, each)]
    if chosen := choose(kind, text, own, more=found["more"] and bool(own)):
        return str(chosen["name"] if by_name else chosen["id"])
    jobs = [each for each in found["items"] if not _is_of(kind, each) and each["match"] in {"key", "name"}]
    if of is not None and jobs:
        return await _latest_of(client, kind, text, jobs[0], acts=not latest)
    raise not_found(kind, text, found["near"])


async def id_of(client: "Client", kind: str, text: str) -> UUID:
    """As `resolve`, for commands that decide later where they ask."""
    return whole_id(text) or UUID(await resolve_with(client, kind, text))


async def resolve_in_database(database: "Database", caller: "Caller", kind: str, text: str) -> UUID:
    """The same for commands that use the database itself."""
    from dataclasses import asdict

    from ondot.flow.find import Asked, find
    from ondot.model.find import Kind

    if id_ := whole_id(text):
        return id_
    asked = Asked(caller, text, [Kind(kind)], SHOWN, is_exact=True, shows=lambda _: True, sees_fleet=True)
    found = await find(database, asked)
    items = [asdict(each) | {"once": each.is_once, "next_fire_at": None} for each in found.candidates]
    chosen = choose(kind, text, items, more=found.is_cut)
    if chosen is None:
        raise not_found(kind, text, found.near)
    return UUID(chosen["id"])


def choose(kind: str, text: str, items: Sequence[Json], *, more: bool) -> Json | None:
    """The one that is meant; None: none of them. Ends the command if several are."""
    exact = [each for each in items if each["match"] in {"id", "key", "name"}]
    meant = exact or [each for each in items if each["match"] == "id-prefix"]
    # A run is an execution, too.
    meant = list({each["id"]: each for each in meant}.values())
    for is_weaker in (_is_gone, _is_once) if exact else ():
        meant = [each for each in meant if not is_weaker(each)] or meant
    if len(meant) > 1 or (more and not exact and meant):
        word = WORDS.get(kind, kind)
        end_as_ambiguous(f"{text!r} may mean several {word}s. Use an id, or more of it:", meant, more=more)
    return meant[0] if meant else None


def end_as_ambiguous(message: str, candidates: Sequence[Json], *, more: bool = False) -> None:
    """Exit code 2, with the candidates on standard error."""
    rows = [("KIND", "ID", "NAME", "STATE", "NEXT RUN")]
    rows += [
        (
            WORDS.get(str(each["kind"]), str(each["kind"])),
            str(each["id"]),
            harmless(each["name"]),
            each["state"] or "",
            (each.get("next_fire_at") or "")[:19].replace("T", " "),
        )
        for each in candidates[:SHOWN]
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    show_error("\n".join([message, *lines, *(["… and more"] if more or len(candidates) > SHOWN else [])]))
    raise typer.Exit(USAGE)


def not_found(kind: str, text: str, near: Sequence[str]) -> NotFound:
    word = WORDS.get(kind, kind)
    listed = LISTS.get(kind, f"{kind} list")
    advice = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"See them with: ondot {listed}"
    return NotFound(f"There is no {word} {text[:200]!r}. {advice}")


def _is_of(kind: str, each: Json) -> bool:
    kinds = KINDS.get(kind, (kind,))
    return each["kind"] in kinds or ("job" in kinds and each["kind"] == "workflow")


def _is_gone(each: Json) -> bool:
    return each["state"] in GONE


def _is_once(each: Json) -> bool:
    return bool(each["once"])


def may_be_id(text: str) -> bool:
    digits = text.replace("-", "").lower()
    return 4 <= len(digits) <= 32 and not digits.strip("0123456789abcdef")


async def _latest_of(client: "Client", kind: str, text: str, job: Json, *, acts: bool) -> str:
    """The latest that a job has; a command that changes something does not choose one by itself."""
    read: dict[str, Callable[..., Awaitable[Json]]] = {
        "execution": lambda limit: client.job_executions(job["id"], limit=limit),
        "run": lambda limit: client.list_runs(job["id"], limit=limit),
        "dead_letter": lambda limit: client.list_dead_letters(job_id=job["id"], limit=limit),
    }
    items = (await read[kind](SHOWN if acts else 1))["items"]
    word = WORDS.get(kind, kind)
    if not items:
        raise NotFound(f"The job {text!r} has no {word}s.")
    ids = [str(each["execution_id"] if kind == "dead_letter" else each["id"]) for each in items]
    if acts:
        rows = [
            {"kind": kind, "id": id_, "name": job["name"], "state": each.get("state")}
            for id_, each in zip(ids, items, strict=True)
        ]
        advice = f"{text!r} is a job. Name one of its {word}s, or all by a query: -q 'job:{job['id']}'. The latest:"
        end_as_ambiguous(advice, rows)
    show_progress(f"{text}: its latest {word}, {ids[0]}")
    return ids[0]


def _lines() -> list[str]:
    """Names or ids of standard input, one in a line."""
    if sys.stdin.isatty():
        show_progress("Reading names from standard input, one in a line; Ctrl-D ends it.")
    return [line for each in sys.stdin if (line := each.strip())]
