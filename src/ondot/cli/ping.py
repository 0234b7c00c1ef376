"""`ondot ping`: watch jobs that ondot does not run (O4). The URL of a ping is shown once."""

import sys
from typing import Annotated, Any

import typer

from ondot.cli.body import in_flags
from ondot.cli.calling import ask
from ondot.cli.names import argument
from ondot.cli.options import Output, Reason, Yes
from ondot.cli.output import Format, show_answer, show_document
from ondot.cli.pages import show_page
from ondot.model.errors import InvalidBody

PAGE = 1_000

NewName = Annotated[str, typer.Argument(metavar="NAME", help="The ping's name.", show_default=False)]
PingName = Annotated[str, argument("ping", "PING", "The ping: its name or its id.", by_name=True)]

app = typer.Typer(help="Watch jobs that ondot does not run.", no_args_is_help=True)


@app.command()
def create(
    name: NewName,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="A call is expected this often.")] = None,
    cron: Annotated[str | None, typer.Option(metavar="EXPRESSION", help="Or: when calls are expected.")] = None,
    timezone: Annotated[str | None, typer.Option(help="Of the cron expression.")] = None,
    grace: Annotated[str, typer.Option(metavar="DURATION", help="How much later a call may come.")] = "5m",
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Create a ping. Its URL is shown once: only the hash of its token is stored."""
    body: dict[str, Any] = {"name": name, "grace": grace}
    if every is not None:
        body["period"] = every
    if cron is not None:
        body["schedule"] = {"cron": cron} | ({} if timezone is None else {"timezone": timezone})
    try:
        made = ask(lambda client: client.create_ping(body, reason=reason))
    except InvalidBody as refusal:
        flags = {"/name": "NAME", "/period": "--every", "/schedule/cron": "--cron", "/grace": "--grace"}
        raise in_flags(refusal, flags | {"/schedule/timezone": "--timezone"}) from None
    _show_new(made, output)


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List pings by name, without their tokens."""
    page = ask(lambda client: client.list_pings(limit=PAGE))
    from ondot.cli.views import ping_table

    show_page(page, output, ping_table, none="No pings. Create one with `ondot ping create NAME --every 1d`.")


@app.command("get")
def get(name: PingName, output: Output = Format.TABLE) -> None:
    """Show one ping and its latest calls, without its token."""
    from datetime import UTC, datetime

    ping = ask(lambda client: client.get_ping(name))
    if not output.is_table:
        return show_document(ping, output)
    from ondot.cli.output import show
    from ondot.cli.views import ping_call_table, ping_table

    now = datetime.now(UTC)
    show(ping_table([ping], now), output)
    if ping["calls"]:
        show(ping_call_table(ping["calls"], now), output)
    return None


@app.command()
def rotate(name: PingName, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Give a ping a new URL. The old one is refused within a second."""
    _show_new(ask(lambda client: client.rotate_ping(name, reason=reason)), output)


@app.command("delete")
def delete(name: PingName, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Delete a ping, with its calls."""
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Delete {name}? This cannot be undone.", err=True):
        raise typer.Exit(1)
    deleted = ask(lambda client: client.delete_ping(name, reason=reason))
    show_answer(deleted, output, f"Deleted the ping {deleted['name']}.")


def _show_new(ping: dict[str, Any], output: Format) -> None:
    lines = [f"Ping {ping['name']}.", f"Call: {ping['url']}", "This is shown once: store it where the job runs."]
    show_answer(ping, output, "\n".join(lines))
