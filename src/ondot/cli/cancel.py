"""`ondot execution cancel`: end executions that wait or run (E8), and report how each ended.

Each is cancelled by a request of its own, so that one that does not exist, or has ended, does not stop the others. More
than a hundred are one operation of the server.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ondot.cli.bulk import Matching, Rate, change_many, which
from ondot.cli.calling import ask
from ondot.cli.errors import CONFLICT, exit_code, message_of
from ondot.cli.options import DryRun, Executions, Output, Reason, View, Yes
from ondot.cli.output import Format, relative, show_error, show_items, show_line
from ondot.cli.waiting import has_ended, until_ended
from ondot.model.errors import Conflict, NotFound, OndotError

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = dict[str, Any]

ONE_BY_ONE: Final = 100


def cancel(
    execution_ids: Executions = None,
    query: Matching = None,
    view: View = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    wait: Annotated[
        bool, typer.Option("--wait", "-w", help="Wait until they end; exit with 4 unless all were cancelled.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Cancel executions, by id or all that match. A waiting one ends at once; a running one is asked to stop, and
    stopped by force after its grace period."""
    chosen = which("executions", execution_ids, query, view)
    if chosen.query is not None or dry_run or len(chosen.ids) > ONE_BY_ONE:
        return change_many(chosen, "cancel", rate=rate, reason=reason, dry_run=dry_run, yes=yes, output=output)
    refusals: list[OndotError] = []

    async def question(client: "Client") -> list[Json]:
        asked = []
        for id_ in chosen.ids:
            try:
                asked.append(await client.cancel_execution(id_, reason))
            except (NotFound, Conflict) as refusal:
                refusals.append(refusal)
        return [await until_ended(client, one["id"]) if wait and not has_ended(one) else one for one in asked]

    executions = ask(question)
    if output.is_table:
        for execution in executions:
            show_line(end_in_words(execution))
    else:
        show_items({"items": executions}, executions, output)
    for refusal in refusals:
        show_error(message_of(refusal))
    if refusals:
        raise typer.Exit(exit_code(refusals[0]))
    if wait and any(execution["state"] != "CANCELLED" for execution in executions):
        raise typer.Exit(CONFLICT)
    return None


def end_in_words(execution: Json) -> str:
    """How the cancelled execution ended: by itself, by force, or before it could be cancelled."""
    id_, error = execution["id"], execution["error"] or {}
    message = error.get("message") if error.get("code") == "cancelled" else None
    match execution["state"]:
        case "CANCELLED" if message:
            return f"Cancelled {id_}, by {'force' if error.get('forced') else 'itself'}. {message}"
        case "CANCELLED":
            started = "" if execution["started_at"] else " It had not started."
            return f"Cancelled {id_}.{started}"
        case "RUNNING" if execution.get("cancel_requested_at"):
            asked_at = datetime.fromisoformat(execution["cancel_requested_at"])
            since = relative(asked_at, datetime.now(UTC))
            return (
                f"Asked {id_} to stop ({since}); after its grace period it is stopped by force. "
                f"Watch it: ondot execution get {id_} --watch"
            )
        case state:
            return f"{id_} ended {state} before it could be cancelled."
