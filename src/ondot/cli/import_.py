"""`ondot import crontab`: a crontab as a file for `ondot job apply -f` (D6).

Needs no server. The jobs go to standard output or a file; what a person must know goes to standard error: each line
that is not taken over with its reason, and what differs from cron. Exits with 1 only if nothing could be taken over.
"""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ondot.cli.errors import FAILED
from ondot.cli.output import harmless, show_error, show_notice

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ondot.model.crontab import Crontab, Entry

Json = dict[str, Any]

SYSTEM: Final = ("/etc/crontab", "/etc/cron.d/")
LONGEST_SHOWN: Final = 100

app = typer.Typer(help="Move in from other schedulers.", no_args_is_help=True)


@app.callback()
def import_() -> None:
    """Move in from other schedulers."""


@app.command()
def crontab(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="A crontab; - reads standard input.")],
    to: Annotated[
        str | None, typer.Option("--to", metavar="FILE", help="Write the jobs to this file. Default: standard output.")
    ] = None,
    timezone: Annotated[
        str | None,
        typer.Option("--timezone", "-z", metavar="ZONE", help="The zone of the schedules. Default: this machine's."),
    ] = None,
    user_column: Annotated[
        bool | None,
        typer.Option(
            "--user-column/--no-user-column",
            help="Whether there is an account before each command, as in /etc/crontab. Default: found out.",
        ),
    ] = None,
    pool: Annotated[str | None, typer.Option(metavar="POOL", help="The pool of the jobs.")] = None,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="The keys begin with it: one for each machine that you move.")
    ] = "cron",
) -> None:
    """Write the entries of a crontab as jobs, for `ondot job apply -f`."""
    from ondot.model.crontab import read_crontab

    text = _read(file)
    if user_column is None and file.startswith(SYSTEM):
        user_column = True
    found = read_crontab(text, has_users=user_column, is_account=_is_account)
    zone = timezone or _zone_here()
    jobs, faults = _check(found, zone, pool, prefix)
    document = json.dumps({"jobs": jobs}, indent=2, ensure_ascii=False) + "\n"
    if to is None and jobs:
        sys.stdout.write(document)
        sys.stdout.flush()
    elif to is not None and jobs:
        Path(to).write_text(document, encoding="utf-8")
    for line in _remarks(found, jobs, faults, zone, to):
        show_notice(line)
    if not jobs:
        show_error(f"Nothing in {file} could be taken over.")
        raise typer.Exit(FAILED)


def _check(found: "Crontab", zone: str, pool: str | None, prefix: str) -> tuple[list[Json], list[tuple[int, str, str]]]:
    """The jobs that ondot accepts, and the lines that it does not, each with the reason."""
    from ondot.document.parse import job_specs
    from ondot.model.crontab import names_of
    from ondot.model.errors import InvalidBody

    jobs = []
    faults = [(left.line, left.text, left.why) for left in found.left]
    now = datetime.now(UTC)
    for entry, (name, key) in zip(found.entries, names_of(found.entries), strict=True):
        body = _job(entry, name, f"{prefix}-{key}", zone, pool)
        try:
            job_specs({"jobs": [body]}, now)
        except InvalidBody as refusal:
            why = " ".join(fault.message for fault in refusal.faults) or refusal.message
            faults.append((entry.line, f"{entry.expression} {entry.command}", why))
        else:
            jobs.append(body)
    return jobs, sorted(faults)


def _job(entry: "Entry", name: str, key: str, zone: str, pool: str | None) -> Json:
    from ondot.document.rules import MAX_LABEL_VALUE

    labels = {"from": "crontab", "user": entry.user, "comment": entry.comment}
    return {
        "name": name,
        "key": key,
        "schedule": {"cron": entry.expression, "timezone": entry.timezone or zone},
        "target": {"shell": {"command": [entry.shell, "-c", entry.script]}},
        "retry": {"max_retries": 0},
        "labels": {label: _cut(text, MAX_LABEL_VALUE) for label, text in labels.items() if text},
        **({"pool": pool} if pool else {}),
    }


def _remarks(
    found: "Crontab", jobs: list[Json], faults: list[tuple[int, str, str]], zone: str, to: str | None
) -> "Iterator[str]":
    for line, text, why in faults:
        yield f"line {line} is not taken over: {_cut(text, LONGEST_SHOWN)}\n  {why}"
    if not jobs:
        return
    count = f"{len(jobs):,} job{'' if len(jobs) == 1 else 's'}"
    left = f", {len(faults):,} line{'' if len(faults) == 1 else 's'} not taken over" if faults else ""
    where = f" to {to}" if to else ""
    yield f"Wrote {count}{where}{left}. Schedules are in {zone} unless CRON_TZ says otherwise."
    if found.has_users:
        users = sorted({entry.user for entry in found.entries if entry.user})
        yield (
            f"The accounts ({', '.join(users)}) are labels: commands run as the account of the worker, or as"
            " ONDOT_SHELL_USER. For several accounts use a pool and a worker for each (--pool)."
        )
    if "MAILTO" in found.variables:
        yield "MAILTO: output is kept as the log of each run; for messages create a channel and an alert."
    yield (
        "As in cron, a failed run is not repeated (max_retries 0) and no run has a timeout; a fire that is missed runs"
        " once when ondot is back. Change the file as you like."
    )
    yield (
        f"Next: ondot job apply -f {to or 'FILE'}\n"
        "The commands run only on workers that allow it: ONDOT_ALLOW_SHELL=1 ondot worker, or ondot up --allow-shell."
        " Then remove the entries from cron, or they run twice."
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _read(name: str) -> str:
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise typer.BadParameter(f"Cannot read {harmless(name)}: {error.strerror}.", param_hint="FILE") from error
    return content.decode("utf-8", "surrogateescape").replace("\r\n", "\n")


def _zone_here() -> str:
    from ondot.cli.report import local_zone

    return local_zone() or "UTC"


def _is_account(name: str) -> bool:
    import pwd

    from ondot.model.crontab import SYSTEM_ACCOUNTS

    if name in SYSTEM_ACCOUNTS:
        return True
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
