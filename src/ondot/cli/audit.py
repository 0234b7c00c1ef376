"""`ondot audit`: who did what, and when; `export` writes it to a file; `verify` proves that it is intact (T6)."""

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from ondot.cli.calling import ask, ask_database, database_settings
from ondot.cli.errors import FAILED
from ondot.cli.flags import instant
from ondot.cli.names import Id, option
from ondot.cli.options import Limit, Output
from ondot.cli.output import Format, show, show_items, show_line, state_cell, table
from ondot.cli.pages import gather, show_page
from ondot.model.errors import NotFound

if TYPE_CHECKING:
    from datetime import datetime

    from ondot.sdk.client import Client
    from ondot.store.database import Database

Json = dict[str, Any]

Action = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only this action, for example execution.cancel or dead_letter.replay."),
]
Subject = Annotated[
    Id | None,
    option(
        "subject",
        "--subject",
        metavar="ID",
        help_="Only changes of this job (name, key or id), execution or operation.",
    ),
]
Actor = Annotated[str | None, typer.Option(metavar="NAME", help="Only changes by this key or user.")]
KeyId = Annotated[
    Id | None, option("key", "--key", metavar="KEY", help_="Only changes with this API key: its name or id.")
]
UserId = Annotated[
    Id | None,
    option("user", "--user", metavar="USER", help_="Only changes by this user: e-mail address, name or id."),
]
RequestId = Annotated[str | None, typer.Option("--request", metavar="ID", help="Only changes of this request.")]
From = Annotated[str | None, typer.Option("--from", metavar="INSTANT", help="Only from this instant on.")]
To = Annotated[str | None, typer.Option(metavar="INSTANT", help="Only before this instant.")]
Installation = Annotated[
    bool, typer.Option("--installation", help="Changes of the installation itself, for owners: tenants, for example.")
]

app = typer.Typer(help="Who changed what.", invoke_without_command=True)


class ExportFormat(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"


@app.callback()
def audit(
    context: typer.Context,
    action: Action = None,
    subject: Subject = None,
    actor: Actor = None,
    key: KeyId = None,
    user: UserId = None,
    request: RequestId = None,
    from_: From = None,
    to: To = None,
    installation: Installation = False,
    limit: Limit = 50,
    output: Output = Format.TABLE,
) -> None:
    """Show who changed what, newest first; export it, or verify that it is intact."""
    if context.invoked_subcommand is not None:
        return
    filters = _filters(action, subject, actor, key, user, request, from_, to, installation=installation)
    page = ask(lambda client: gather(lambda paging: client.list_audit(**filters, **paging), limit))
    from ondot.cli.views import audit_table

    show_page(page, output, audit_table, none="The audit log has no matching entries.")


@app.command()
def export(
    format_: Annotated[ExportFormat, typer.Option("--format", help="The format of the file.")] = ExportFormat.JSONL,
    action: Action = None,
    subject: Subject = None,
    actor: Actor = None,
    key: KeyId = None,
    user: UserId = None,
    request: RequestId = None,
    from_: From = None,
    to: To = None,
    installation: Installation = False,
) -> None:
    """Write all matching entries to standard output, newest first."""
    filters = _filters(action, subject, actor, key, user, request, from_, to, installation=installation)

    async def write(client: "Client") -> None:
        async for piece in client.export_audit(format=format_.value, **filters):
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()

    ask(write)


@app.command()
def verify(
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Only the log of this tenant.")] = None,
    from_: From = None,
    to: To = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="HASH", help="A hash from the log (audit.sealed) that must still be in the chain."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Prove that no entry is missing, changed, inserted or reordered; exit with 1 otherwise.

    With access to the database, the logs of all tenants are verified; otherwise the server verifies the caller's own.
    """
    from_at, to_at = _instant("--from", from_), _instant("--to", to)
    if database_settings().database_url is None:
        if tenant is not None:
            raise typer.BadParameter("It needs the database: set ONDOT_DATABASE_URL.", param_hint="--tenant")
        verdicts = [ask(lambda client: client.verify_audit(from_at=from_at, to_at=to_at, head=head))]
    else:
        verdicts = ask_database(lambda database: _verify(database, tenant, from_at, to_at, _hash(head)))
    if output.is_table:
        _show(verdicts, output)
    else:
        intact = all(verdict["intact"] for verdict in verdicts)
        show_items({"intact": intact, "items": verdicts}, verdicts, output)
    if not all(verdict["intact"] for verdict in verdicts):
        raise typer.Exit(FAILED)


async def _verify(
    database: "Database", name: str | None, from_at: "datetime | None", to_at: "datetime | None", head: bytes | None
) -> list[Json]:
    from ondot.flow.audit_seal import seal_keys
    from ondot.flow.audit_verify import list_logs, verify_audit

    keys = seal_keys(database.settings)
    logs = await list_logs(database)
    if name is not None:
        logs = {number: known for number, known in logs.items() if known == name}
        if not logs:
            raise NotFound(f"There is no tenant {name!r}.")
    elif head is not None and len(logs) > 1:
        raise typer.BadParameter("A hash belongs to one log: add --tenant.", param_hint="--head")
    found = []
    for number, known in logs.items():
        verdict = await verify_audit(database, number, keys, from_at=from_at, to_at=to_at, head=head)
        found.append({"tenant": known, **verdict.as_dict()})
    return found


def _show(verdicts: list[Json], output: Format) -> None:
    drawn = table(
        "", "LOG", "ENTRIES", "SEALS", "SIGNED", "NEWEST SEAL", whole=("", "LOG"), drop=("SIGNED", "SEALS", "ENTRIES")
    )
    # The installation's own log is empty while there is one tenant.
    for verdict in [verdict for verdict in verdicts if verdict["seals"] or verdict["faults"]] or verdicts[-1:]:
        head = verdict["head"]
        drawn.add_row(
            state_cell("ok" if verdict["intact"] else "problem"),
            verdict.get("tenant", "own"),
            f"{verdict['entries']:,}",
            f"{verdict['seals']:,}",
            f"{verdict['signed']:,}",
            f"{verdict['head_seal']} {head[:16]}…" if head else "none",
        )
    show(drawn, output)
    if since := min((each["complete_since"] for each in verdicts if each.get("complete_since")), default=None):
        show_line(f"Entries before {since} may be gone: their retention is over.")
    for verdict in verdicts:
        for fault in verdict["faults"]:
            show_line(f"{verdict.get('tenant', 'own')}: {fault['what']}")
        if (more := verdict["fault_count"] - len(verdict["faults"])) > 0:
            show_line(f"{verdict.get('tenant', 'own')}: {more:,} more.")
    if all(verdict["intact"] for verdict in verdicts):
        waiting = sum(verdict["waiting"] for verdict in verdicts)
        show_line("Intact." + (f" {waiting:,} of the newest entries wait for their seal." if waiting else ""))


def _filters(
    action: str | None,
    subject: UUID | None,
    actor: str | None,
    key: UUID | None,
    user: UUID | None,
    request: str | None,
    from_: str | None,
    to: str | None,
    *,
    installation: bool,
) -> Json:
    return {
        "action": action,
        "subject": subject,
        "actor": actor,
        "key_id": key,
        "user_id": user,
        "request_id": request,
        "from_at": _instant("--from", from_),
        "to_at": _instant("--to", to),
        "installation": installation or None,
    }


def _instant(flag: str, written: str | None) -> "datetime | None":
    return None if written is None else instant(flag)(written)


def _hash(written: str | None) -> bytes | None:
    try:
        found = None if written is None else bytes.fromhex(written)
    except ValueError:
        found = b""
    if found is not None and len(found) != 32:
        raise typer.BadParameter("A hash has 64 hexadecimal digits, as logged with audit.sealed.", param_hint="--head")
    return found
