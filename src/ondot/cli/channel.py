"""`ondot channel`: where messages about incidents go (O4).

A URL or key that is secret is named by its secret (`--secret slack`), or read from standard input: arguments are in the
history of the shell.
"""

import sys
from typing import Annotated, Any

import typer

from ondot.cli.body import in_flags
from ondot.cli.calling import ask
from ondot.cli.errors import FAILED
from ondot.cli.names import argument
from ondot.cli.options import Output, Reason, Yes
from ondot.cli.output import Format, show_answer, show_document, show_progress
from ondot.cli.pages import show_page
from ondot.model.errors import InvalidBody

PAGE = 1_000

NewName = Annotated[str, typer.Argument(metavar="NAME", help="The channel's name.", show_default=False)]
ChannelName = Annotated[str, argument("channel", "CHANNEL", "The channel: its name or its id.", by_name=True)]
Webhook = Annotated[str | None, typer.Option("--webhook", metavar="URL", help="Send signed JSON to this address.")]
Email = Annotated[
    list[str] | None, typer.Option("--email", metavar="ADDRESS", help="Send e-mails; may be given several times.")
]
Slack = Annotated[bool, typer.Option("--slack", help="Send to an incoming webhook of Slack.")]
PagerDuty = Annotated[bool, typer.Option("--pagerduty", help="Send events to a service of PagerDuty.")]
Secret = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The secret with Slack's URL or PagerDuty's key. Without it: from standard input."
    ),
]

app = typer.Typer(help="Where messages about incidents go.", no_args_is_help=True)


@app.command()
def create(
    name: NewName,
    webhook: Webhook = None,
    email: Email = None,
    slack: Slack = False,
    pagerduty: PagerDuty = False,
    secret: Secret = None,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Create a channel: one of --webhook, --email, --slack, --pagerduty."""
    body = {"name": name, **_kind(webhook, email, slack=slack, pagerduty=pagerduty, secret=secret)}
    made = _ask(lambda client: client.create_channel(body, reason=reason))
    show_answer(made, output, f"Channel {made['name']} ({made['kind']}). Try it: ondot channel test {made['name']}")


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List channels by name, without their credentials."""
    page = ask(lambda client: client.list_channels(limit=PAGE))
    from ondot.cli.views import channel_table

    show_page(page, output, channel_table, none="No channels. Create one with `ondot channel create NAME --email …`.")


@app.command("get")
def get(name: ChannelName, output: Output = Format.TABLE) -> None:
    """Show one channel and its latest deliveries."""
    from datetime import UTC, datetime

    channel = ask(lambda client: client.get_channel(name))
    if not output.is_table:
        return show_document(channel, output)
    from ondot.cli.output import show
    from ondot.cli.views import channel_table, delivery_table

    now = datetime.now(UTC)
    show(channel_table([channel], now), output)
    if channel["deliveries"]:
        show(delivery_table(channel["deliveries"], now), output)
    return None


@app.command("update")
def update(
    name: ChannelName,
    webhook: Webhook = None,
    email: Email = None,
    slack: Slack = False,
    pagerduty: PagerDuty = False,
    secret: Secret = None,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Change where a channel sends."""
    body = _kind(webhook, email, slack=slack, pagerduty=pagerduty, secret=secret)
    changed = _ask(lambda client: client.update_channel(name, body, reason=reason))
    show_answer(changed, output, f"Channel {changed['name']} ({changed['kind']}), version {changed['version']}.")


@app.command("delete")
def delete(name: ChannelName, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Delete a channel. Refused while an alert names it."""
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Delete {name}? This cannot be undone.", err=True):
        raise typer.Exit(1)
    deleted = ask(lambda client: client.delete_channel(name, reason=reason))
    show_answer(deleted, output, f"Deleted the channel {deleted['name']}.")


@app.command("test")
def try_out(name: ChannelName, output: Output = Format.TABLE) -> None:
    """Send a test message, and show what came back. Exit code 1 if it was not delivered."""
    sent = ask(lambda client: client.send_test_message(name))
    lines = {
        "DELIVERED": f"Delivered. The receiver answered: {sent['answer'] or 'nothing'}",
        "FAILED": f"Not delivered: {sent['error']}",
    }
    waits = "It waits to be sent: check that a scheduler runs, with `ondot fleet`."
    show_answer(sent, output, lines.get(sent["state"], waits))
    if sent["state"] != "DELIVERED":
        raise typer.Exit(FAILED)


def _kind(
    webhook: str | None, email: list[str] | None, *, slack: bool, pagerduty: bool, secret: str | None
) -> dict[str, Any]:
    given = [webhook is not None, bool(email), slack, pagerduty]
    if sum(given) != 1:
        raise typer.BadParameter("Give one of --webhook, --email, --slack, --pagerduty.")
    if webhook is not None:
        return {"webhook": {"url": webhook}}
    if email:
        return {"email": {"to": email}}
    value: object = {"$secret": secret} if secret is not None else _read_value()
    return {"slack": {"url": value}} if slack else {"pagerduty": {"routing_key": value}}


def _read_value() -> str:
    if sys.stdin.isatty():
        from getpass import getpass

        return getpass("Value (not shown): ").strip()
    value = sys.stdin.read().strip()
    show_progress(f"Read {len(value):,} characters from standard input.")
    return value


def _ask(question: Any) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = ask(question)
    except InvalidBody as refusal:
        flags = {"/name": "NAME", "/webhook/url": "--webhook", "/email/to": "--email", "/slack/url": "the URL"}
        raise in_flags(refusal, flags | {"/pagerduty/routing_key": "the key"}) from None
    return answer
