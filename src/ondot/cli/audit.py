"""`ondot audit`: who did what, and when (T6)."""

from typing import Annotated
from uuid import UUID

import typer

from ondot.cli.calling import ask
from ondot.cli.options import Limit, Output
from ondot.cli.output import Format
from ondot.cli.pages import gather, show_page


def audit(
    action: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this action, for example execution.cancel or dead_letter.replay."),
    ] = None,
    subject: Annotated[
        UUID | None, typer.Option(metavar="ID", help="Only changes of this execution, job or operation.")
    ] = None,
    limit: Limit = 50,
    output: Output = Format.TABLE,
) -> None:
    """Show who changed what, newest first."""
    filters = {"action": action, "subject": subject}
    page = ask(lambda client: gather(lambda paging: client.list_audit(**filters, **paging), limit))
    from ondot.cli.views import audit_table

    show_page(page, output, audit_table, none="The audit log has no matching entries.")
