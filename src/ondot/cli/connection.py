"""`ondot connection`: brokers and servers that jobs name, with their credentials (E3).

A password is read from standard input or asked for, or its secret is named, and never given as an argument: arguments
are in the history of the shell and in the list of processes.
"""

import sys
from pathlib import Path
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
FIELDS = ("kind", "url", "servers", "address", "username", "password", "mechanism", "tls", "ca")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The connection's name.", show_default=False)]

app = typer.Typer(help="Brokers and servers that jobs name.", no_args_is_help=True)


@app.command()
def add(
    name: Name,
    kind: Annotated[str, typer.Option(help="redis, kafka, rabbitmq, nats, grpc or webhook.", show_default=False)],
    url: Annotated[str | None, typer.Option(help="Of Redis, RabbitMQ, NATS or a webhook.")] = None,
    servers: Annotated[str | None, typer.Option(metavar="HOST:PORT,…", help="Of Kafka.")] = None,
    address: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Of a gRPC server.")] = None,
    username: Annotated[str | None, typer.Option(help="The user name.")] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input, or ask for it.")
    ] = False,
    secret: Annotated[str | None, typer.Option(metavar="NAME", help="The secret that has the password.")] = None,
    mechanism: Annotated[
        str | None, typer.Option(help="Of Kafka: PLAIN (the default), SCRAM-SHA-256 or SCRAM-SHA-512.")
    ] = None,
    tls: Annotated[
        bool | None, typer.Option("--tls/--no-tls", help="Of Kafka and gRPC: encrypt the connection.")
    ] = None,
    ca: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificates to trust, as PEM.")] = None,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Create a connection, or replace its content. Credentials are encrypted and never shown."""
    if password_stdin and secret is not None:
        raise typer.BadParameter("Give one of --password-stdin and --secret.")
    given = {"kind": kind, "url": url, "servers": servers, "address": address, "username": username}
    fields: dict[str, Any] = {**given, "mechanism": mechanism, "tls": tls}
    if password_stdin:
        fields["password"] = _read_password(name)
    elif secret is not None:
        fields["password"] = {"$secret": secret}
    if ca is not None:
        try:
            fields["ca"] = ca.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"Cannot read {ca}: {error}.", param_hint="--ca") from error
    body = {field: value for field, value in fields.items() if value is not None}
    try:
        made = ask(lambda client: client.put_connection(name, body, reason=reason))
    except InvalidBody as refusal:
        raise in_flags(refusal, {f"/{field}": f"--{field}" for field in FIELDS}) from None
    line = f"Connection {made['name']} ({made['kind']}), version {made['version']}."
    show_answer(made, output, f"{line} Try it: ondot connection test {made['name']}")


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List connections by name, without their credentials."""
    page = ask(lambda client: client.list_connections(limit=PAGE))
    from ondot.cli.views import connection_table

    none = "No connections. Create one with `ondot connection add NAME --kind kafka --servers …`."
    show_page(page, output, connection_table, none=none)


@app.command("get")
def get(name: Name, output: Output = Format.TABLE) -> None:
    """Show one connection, without its credentials, and jobs that name it."""
    from datetime import UTC, datetime

    connection = ask(lambda client: client.get_connection(name))
    if not output.is_table:
        return show_document(connection, output)
    from ondot.cli.output import show, show_line
    from ondot.cli.views import connection_table

    show(connection_table([connection], datetime.now(UTC)), output)
    if users := connection["used_by"]:
        show_line(f"Named by {', '.join(user['name'] for user in users)}.")
    return None


@app.command("remove")
def remove(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Although jobs name it: their next runs fail.")] = False,
    yes: Yes = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Remove a connection. Refused while jobs name it, unless --force."""
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Remove {name}? This cannot be undone.", err=True):
        raise typer.Exit(1)
    removed = ask(lambda client: client.delete_connection(name, force=force, reason=reason))
    show_answer(removed, output, f"Removed the connection {removed['name']}.")


@app.command("test")
def try_out(name: Name, output: Output = Format.TABLE) -> None:
    """Connect and log in from the API, and send nothing. Exit code 1 if that fails."""
    tested = ask(lambda client: client.test_connection(name))
    error = tested["test_error"]
    show_answer(tested, output, "It works." if error is None else f"It does not work: {error}")
    if error is not None:
        raise typer.Exit(FAILED)


def _read_password(name: str) -> str:
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(f"Password of {name} (not shown): ")
    return sys.stdin.read().removesuffix("\n").removesuffix("\r")
