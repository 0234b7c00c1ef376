"""`ondot secret`: set, list and delete secrets, and the master keys that encrypt them (T5).

A value is read from standard input or asked for, never given as an argument: arguments are in the history of the shell
and in the list of processes.
"""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli.body import in_flags
from ondot.cli.calling import ask, ask_database
from ondot.cli.complete import complete_names
from ondot.cli.options import Output, Yes, actor_here
from ondot.cli.output import Format, show_answer, show_document, show_line, show_progress
from ondot.cli.pages import show_page
from ondot.model.errors import InvalidBody, NoSecretKey

if TYPE_CHECKING:
    from ondot.store.database import Database

NONE = "none"
PAGE = 500

SecretName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The secret's name.", show_default=False, autocompletion=complete_names("secret")
    ),
]

app = typer.Typer(help="Secrets, and the master keys that encrypt them.", no_args_is_help=True)


@app.command("set")
def set_(
    name: SecretName,
    host: Annotated[
        list[str] | None, typer.Option(help="A host that it may be sent to; may be given several times. `none`: any.")
    ] = None,
    function: Annotated[
        list[str] | None, typer.Option(help="A function that may get it; may be given several times. `none`: any.")
    ] = None,
    pool: Annotated[
        list[str] | None, typer.Option(help="A pool in which it may be used; may be given several times. `none`: any.")
    ] = None,
    keep_value: Annotated[bool, typer.Option("--keep-value", help="Change only where it may go.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Create a secret, or give it a new value, read from standard input. One line break at its end is removed."""
    fields: dict[str, Any] = {} if keep_value else {"value": _read_value(name)}
    for field, given in (("hosts", host), ("functions", function), ("pools", pool)):
        if given:
            fields[field] = None if given == [NONE] else given
    try:
        secret = ask(lambda client: client.put_secret(name, fields))
    except InvalidBody as refusal:
        flags = {"/value": "the value", "/hosts": "--host", "/functions": "--function", "/pools": "--pool"}
        raise in_flags(refusal, flags) from None
    show_answer(secret, output, f"Secret {secret['name']}, version {secret['version']}.")


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List secrets: versions, who changed them, where they may go, and what uses them. Values are never shown."""
    page = ask(lambda client: client.list_secrets(limit=PAGE))
    from ondot.cli.views import secret_table

    show_page(page, output, secret_table, none="No secrets. Create one with `ondot secret set NAME`.")


@app.command("get")
def get(name: SecretName, output: Output = Format.TABLE) -> None:
    """Show one secret, without its value."""
    from datetime import UTC, datetime

    secret = ask(lambda client: client.get_secret(name))
    if not output.is_table:
        return show_document(secret, output)
    from ondot.cli.output import show
    from ondot.cli.views import secret_table

    return show(secret_table([secret], datetime.now(UTC)), output)


@app.command("delete")
def delete(name: SecretName, yes: Yes = False, output: Output = Format.TABLE) -> None:
    """Delete a secret. The next runs of jobs that refer to it fail."""
    if not yes and sys.stdin.isatty():
        used = ask(lambda client: client.get_secret(name))["used_by"]
        jobs = f" It is used by {', '.join(job['name'] for job in used[:5])}." if used else ""
        if not typer.confirm(f"Delete {name}?{jobs} This cannot be undone.", err=True):
            raise typer.Exit(1)
    show_answer(ask(lambda client: client.delete_secret(name)), output, f"Deleted {name}.")


@app.command("generate-key")
def generate_key() -> None:
    """Print a new master key, for ONDOT_SECRET_KEY or the file that ONDOT_SECRET_KEY_FILE names."""
    from ondot.kms import generate_key as generate

    show_line(generate())


@app.command("rotate-master")
def rotate_master(output: Output = Format.TABLE) -> None:
    """Encrypt every data key with the first key of ONDOT_SECRET_KEY. Needs the database; all roles go on.

    Put the new key before the old one, restart every API and worker, run this, then remove the old key.
    """

    async def question(database: "Database") -> dict[str, Any]:
        from ondot.flow.secrets import rotate_master as rotate
        from ondot.flow.vault import NO_KEY
        from ondot.kms import open_kms

        kms = open_kms(database.settings.secret_key)
        if kms is None:
            raise NoSecretKey(NO_KEY)
        return {"rewrapped": await rotate(database, kms, actor=actor_here()), "master": kms.master}

    answer = ask_database(question)
    count = answer["rewrapped"]
    keys = "1 data key is" if count == 1 else f"{count:,} data keys are"
    show_answer(answer, output, f"{keys} now encrypted with the master key {answer['master']}.")


def _read_value(name: str) -> str:
    if sys.stdin.isatty():
        import getpass

        value = getpass.getpass(f"Value of {name} (not shown): ")
        if getpass.getpass("Once more: ") != value:
            raise typer.BadParameter("The two values differ.")
        return value
    try:
        value = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise typer.BadParameter("The value must be text in UTF-8; encode other data, for example in base64.") from None
    show_progress(f"Read {len(value):,} characters from standard input.")
    return value.removesuffix("\n").removesuffix("\r")
