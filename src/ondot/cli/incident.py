"""`ondot incident`: what went wrong, from the first message to the recovery (O4)."""

from typing import Annotated, Any

import typer

from ondot.cli.calling import ask
from ondot.cli.names import Id, argument, option
from ondot.cli.options import Limit, OfJob, Output, Reason
from ondot.cli.output import Format, show_answer, show_document
from ondot.cli.pages import gather, show_page

IncidentId = Annotated[Id, argument("incident", "INCIDENT", "The incident: its id, or its alert, if one is open.")]
Note = Annotated[str | None, typer.Option(metavar="TEXT", help="What you found or did.")]

app = typer.Typer(help="What went wrong, who knows of it, and when it was over.", no_args_is_help=True)


@app.command("list")
def list_(
    all_: Annotated[bool, typer.Option("--all", help="Also those that are over.")] = False,
    alert: Annotated[
        Id | None, option("alert", "--alert", metavar="ALERT", help_="Of one alert: its name or id.")
    ] = None,
    job: OfJob = None,
    kind: Annotated[str | None, typer.Option(help="Of one kind of alert.")] = None,
    limit: Limit = 50,
    output: Output = Format.TABLE,
) -> None:
    """List open incidents, newest first."""
    filters: dict[str, Any] = {
        "state": None if all_ else "open",
        "alert": None if alert is None else str(alert),
        "job": None if job is None else str(job),
        "kind": kind,
    }
    page = ask(lambda client: gather(lambda more: client.list_incidents(**filters, **more), limit))
    from ondot.cli.alert_views import incident_table

    show_page(page, output, incident_table, none="No incidents." if all_ else "No open incidents.")


@app.command("get")
def get(incident_id: IncidentId, output: Output = Format.TABLE) -> None:
    """Show one incident, with its causes, and its messages and whether they arrived."""
    found = ask(lambda client: client.get_incident(incident_id))
    if not output.is_table:
        return show_document(found, output)
    from ondot.cli.alert_views import show_incident

    return show_incident(found)


@app.command()
def ack(incident_id: IncidentId, note: Note = None, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Acknowledge an incident: you look into it, and no further reminder is sent."""
    known = ask(lambda client: client.acknowledge_incident(incident_id, _body(note), reason=reason))
    show_answer(known, output, f"Acknowledged: {known['title']}.")


@app.command()
def resolve(incident_id: IncidentId, note: Note = None, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """End an incident by hand. What still holds stays quiet until it was over once."""
    over = ask(lambda client: client.resolve_incident(incident_id, _body(note), reason=reason))
    show_answer(over, output, f"Resolved: {over['title']}.")


def _body(note: str | None) -> dict[str, Any]:
    return {} if note is None else {"note": note}
