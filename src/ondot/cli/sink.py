"""`ondot sink`: where ondot's own events are sent (E3)."""

import sys
from typing import Annotated, Any

import typer

from ondot.cli.body import in_flags
from ondot.cli.calling import ask
from ondot.cli.errors import FAILED
from ondot.cli.options import Output, Reason, Yes
from ondot.cli.output import Format, show_answer, show_document
from ondot.cli.pages import show_page
from ondot.model.errors import InvalidBody

PAGE = 1_000
ALL_ENDS = (
    "ondot.execution.succeeded",
    "ondot.execution.failed",
    "ondot.execution.cancelled",
    "ondot.execution.skipped",
)
KIND_OF = {
    **dict.fromkeys(("stream", "list", "channel"), "redis"),
    "topic": "kafka",
    **dict.fromkeys(("exchange", "routing_key"), "rabbitmq"),
    "subject": "nats",
}
"""The broker that a flag belongs to."""

Name = Annotated[str, typer.Argument(metavar="NAME", help="The sink's name.", show_default=False)]
Types = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="Which events, such as ondot.execution.* or ondot.job.paused; again for more. Default: all ends.",
    ),
]
Webhook = Annotated[str | None, typer.Option("--webhook", metavar="URL", help="Send signed JSON to this address.")]
Batch = Annotated[int | None, typer.Option("--batch", metavar="COUNT", help="Events in one request of a webhook.")]
Connection = Annotated[
    str | None,
    typer.Option("--connection", metavar="NAME", help="Send to the broker of this connection (`ondot connection`)."),
]
Pools = Annotated[
    list[str] | None, typer.Option("--pool", metavar="POOL", help="Only events of jobs in this pool; again for more.")
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="NAME=VALUE", help="Only events of jobs with this label; again for more."),
]
Results = Annotated[bool, typer.Option("--results", help="Send results of successes, up to 64 KiB.")]

app = typer.Typer(help="Where ondot's own events are sent.", no_args_is_help=True)


@app.command()
def add(
    name: Name,
    type_: Types = None,
    webhook: Webhook = None,
    batch: Batch = None,
    connection: Connection = None,
    topic: Annotated[str | None, typer.Option(metavar="NAME", help="Kafka: the topic.")] = None,
    exchange: Annotated[str | None, typer.Option(metavar="NAME", help="RabbitMQ: the exchange.")] = None,
    routing_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="RabbitMQ: the routing key; without --exchange a queue.")
    ] = None,
    stream: Annotated[str | None, typer.Option(metavar="NAME", help="Redis: a stream.")] = None,
    list__: Annotated[str | None, typer.Option("--list", metavar="NAME", help="Redis: a list.")] = None,
    channel: Annotated[str | None, typer.Option(metavar="NAME", help="Redis: a channel, which keeps nothing.")] = None,
    subject: Annotated[str | None, typer.Option(metavar="NAME", help="NATS: the subject.")] = None,
    pool: Pools = None,
    label: Labels = None,
    results: Results = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Send events somewhere from now on; or change where and which."""
    body: dict[str, Any] = {"types": type_ or list(ALL_ENDS), "results": results}
    if pool:
        body["pools"] = pool
    if label:
        body["labels"] = dict(_pair(each) for each in label)
    places = {"stream": stream, "list": list__, "channel": channel, "topic": topic, "exchange": exchange}
    places |= {"routing_key": routing_key, "subject": subject}
    body |= _place(webhook, batch, connection, {name: value for name, value in places.items() if value is not None})
    try:
        made = ask(lambda client: client.put_sink(name, body, reason=reason))
    except InvalidBody as refusal:
        flags = {"/types": "--type", "/pools": "--pool", "/labels": "--label"}
        raise in_flags(refusal, flags | {"/webhook/url": "--webhook", "/webhook/batch": "--batch"}) from None
    show_answer(made, output, f"Sink {made['name']} ({made['kind']}). Try it: ondot sink test {made['name']}")


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List sinks by name: what waits for each, and whether it fails."""
    page = ask(lambda client: client.list_sinks(limit=PAGE))
    from ondot.cli.views import sink_table

    show_page(page, output, sink_table, none="No sinks. Add one with `ondot sink add NAME --webhook URL`.")


@app.command("get")
def get(name: Name, output: Output = Format.TABLE) -> None:
    """Show one sink."""
    sink = ask(lambda client: client.get_sink(name))
    if not output.is_table:
        return show_document(sink, output)
    from datetime import UTC, datetime

    from ondot.cli.output import show
    from ondot.cli.views import sink_facts

    show(sink_facts(sink, datetime.now(UTC)), output)
    return None


@app.command("remove")
def remove(name: Name, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Remove a sink. Events that it has not sent are not sent any more."""
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Remove {name}? This cannot be undone.", err=True):
        raise typer.Exit(1)
    gone = ask(lambda client: client.delete_sink(name, reason=reason))
    show_answer(gone, output, f"Removed the sink {gone['name']}. It had sent {gone['sent']:,} events.")


@app.command("pause")
def pause(name: Name, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Send nothing until it is resumed. Its events wait."""
    paused = ask(lambda client: client.pause_sink(name, reason=reason))
    show_answer(paused, output, f"Paused the sink {paused['name']}. Its events wait until you resume it.")


@app.command("resume")
def resume(name: Name, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Send what has waited, and go on."""
    resumed = ask(lambda client: client.resume_sink(name, reason=reason))
    show_answer(resumed, output, f"Resumed the sink {resumed['name']}. Waiting: {resumed['waiting']:,}.")


@app.command("test")
def try_out(name: Name, output: Output = Format.TABLE) -> None:
    """Send a test event after those that wait, and show how it went. Exit code 1 if it was not delivered."""
    sent = ask(lambda client: client.send_test_event(name))
    lines = {
        "DELIVERED": "Delivered.",
        "REFUSED": f"The receiver refused it: {sent['error']}",
        "FAILED": f"Not delivered: {sent['error']}",
    }
    behind = f"{sent['waiting']:,} events wait for this sink." if sent["waiting"] else "It waits to be sent."
    waits = f"{behind} Check that a scheduler runs, with `ondot fleet`, and that no transaction is held open."
    show_answer(sent, output, lines.get(sent["state"], waits))
    if sent["state"] != "DELIVERED":
        raise typer.Exit(FAILED)


def _place(webhook: str | None, batch: int | None, connection: str | None, named: dict[str, str]) -> dict[str, Any]:
    """`named`: the flags for a place in a broker that were given, by their field."""
    if (webhook is None) == (connection is None):
        raise typer.BadParameter("Give one of --webhook and --connection.")
    if webhook is not None:
        if named:
            raise typer.BadParameter(f"--{next(iter(named)).replace('_', '-')} belongs to --connection.")
        return {"webhook": {"url": webhook, **({} if batch is None else {"batch": batch})}}
    if batch is not None:
        raise typer.BadParameter("--batch belongs to --webhook: brokers get batches anyway.")
    kinds = {KIND_OF[name] for name in named}
    if len(kinds) != 1:
        raise typer.BadParameter("Say where in the broker: --topic, --routing-key, --stream, --list or --subject.")
    return {kinds.pop(): {"connection": connection, **named}}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"--label takes NAME=VALUE, for example team=bi, got {text!r}.")
    return name, value
