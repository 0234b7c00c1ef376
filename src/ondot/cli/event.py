"""`ondot event`: send an event, list those that were sent, and show what each started (S11)."""

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import uuid4

import typer

from ondot.cli.body import reject_surrogates
from ondot.cli.calling import ask
from ondot.cli.flags import parse_json, parse_payload, text_of_file
from ondot.cli.names import Id, argument, option
from ondot.cli.options import Limit, ListOutput, Output, Reason
from ondot.cli.output import Format, ListFormat, show, show_answer, show_document, show_line
from ondot.cli.pages import gather, show_csv, show_page

Json = dict[str, Any]

EventId = Annotated[Id, argument("event", "EVENT", "The event's id in ondot.")]

app = typer.Typer(help="Events: send them, and see what they started.", no_args_is_help=True)


@app.command()
def send(
    type_: Annotated[
        str | None, typer.Argument(metavar="TYPE", help="The type of the event.", show_default=False)
    ] = None,
    source: Annotated[str, typer.Option(help="Its source.")] = "/ondot/cli",
    data: Annotated[str | None, typer.Option(metavar="JSON|@FILE", help="Its data.")] = None,
    subject: Annotated[str | None, typer.Option(help="Its subject.")] = None,
    id_: Annotated[
        str | None, typer.Option("--id", help="Its id: the same one again starts nothing. Default: a new one.")
    ] = None,
    file: Annotated[
        str | None,
        typer.Option("-f", metavar="FILE", help="A whole CloudEvent as JSON, or a list of them; - for input."),
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Send an event. The jobs that it matches have started when the command ends."""
    if (type_ is None) == (file is None):
        raise typer.BadParameter("Give a type, or a whole event with -f.")
    if file is not None:
        _send_file(file, output)
        return
    event: Json = {"specversion": "1.0", "id": id_ or str(uuid4()), "source": source, "type": type_}
    if subject is not None:
        event["subject"] = subject
    if data is not None:
        event["data"] = parse_payload(data)
    reject_surrogates(event)
    answer = ask(lambda client: client.send_event(event))
    show_answer(answer, output, _sentence(answer))


def _send_file(file: str, output: Format) -> None:
    sent = parse_json(text_of_file(file), "-f")
    if not isinstance(sent, (dict, list)):
        raise typer.BadParameter("An event must be a JSON object, in braces, or a list of them.", param_hint="-f")
    reject_surrogates({"sent": sent})
    if isinstance(sent, list):
        answers = ask(lambda client: client.send_events(sent))["events"]
    else:
        answers = [ask(lambda client: client.send_event(sent))]
    for answer in answers:
        show_answer(answer, output, _sentence(answer))


@app.command("list")
def list_(
    type_: Annotated[str | None, typer.Option("--type", help="Only events of this type.")] = None,
    source: Annotated[str | None, typer.Option(help="Only events of this source.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only events of this subject.")] = None,
    matched: Annotated[
        bool | None, typer.Option("--matched/--unmatched", help="Only those that matched a job, or only the others.")
    ] = None,
    limit: Limit = 50,
    output: ListOutput = ListFormat.TABLE,
) -> None:
    """List events, newest first."""
    filters = {"type": type_, "source": source, "subject": subject, "matched": matched}
    if output is ListFormat.CSV:
        return show_csv("events", filters, limit)
    page = ask(lambda client: gather(lambda paging: client.list_events(**filters, **paging), limit))
    from ondot.cli.event_views import event_table

    return show_page(page, output, event_table, none="No events. Send one with `ondot event send TYPE`.")


@app.command("get")
def get(id_: EventId, output: Output = Format.TABLE) -> None:
    """Show one event, and what it started."""
    event = ask(lambda client: client.get_event(id_))
    if not output.is_table:
        show_document(event, output)
        return
    from ondot.cli.event_views import event_view

    show(event_view(event), output)


@app.command("try")
def try_(
    type_: Annotated[str, typer.Argument(metavar="TYPE", help="The type of the events.", show_default=False)],
    filter_: Annotated[
        str | None, typer.Option("--filter", metavar="JSON|@FILE", help="A pattern, as in the schedule of a job.")
    ] = None,
    source: Annotated[str | None, typer.Option(help="Their source; `/shop*` for all that start with /shop.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many of the newest events are tried.")] = 100,
    output: Output = Format.TABLE,
) -> None:
    """Try a filter on past events: which match, and of the others the condition that fails."""
    rule: Json = {"type": type_}
    if source is not None:
        rule["source"] = {"prefix": source[:-1]} if source.endswith("*") else source
    if filter_ is not None:
        rule["filter"] = parse_payload(filter_)
    reject_surrogates(rule)
    tried = ask(lambda client: client.try_filter({"event": rule, "limit": limit}))
    if not output.is_table:
        show_document(tried, output)
        return
    from ondot.cli.event_views import tried_table

    if tried["items"]:
        show(tried_table(tried["items"], datetime.now(UTC)), output)
    show_line(f"{tried['matched']:,} of {tried['tried']:,} events match.")


@app.command()
def replay(
    id_: EventId,
    job_id: Annotated[
        Id, option("job", "--job", metavar="JOB", help_="The job to start: its name, key or id.", show_default=False)
    ],
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Start a job again with a past event, whatever its filter says."""
    answer = ask(lambda client: client.replay_event(id_, job_id, reason=reason))
    show_answer(answer, output, f"Started {answer['execution_id']}.")


def _sentence(answer: Json) -> str:
    count, started = answer["matched"], answer["executions"]
    jobs = f"matched {count:,} job{'' if count == 1 else 's'}"
    return f"{answer['id']} {jobs}{': ' + ' '.join(started) if started else ''}"
