"""`ondot hook`: URLs that turn plain webhooks into events (S11).

A signing secret is read from standard input or asked for, never given as an argument: arguments are in the history of
the shell and in the list of processes. A token is shown once.
"""

import sys
from typing import Annotated, Any

import typer

from ondot.cli.body import in_flags
from ondot.cli.calling import ask
from ondot.cli.names import Id, argument
from ondot.cli.options import Output, Reason, Yes
from ondot.cli.output import Format, show_answer, show_document, show_progress
from ondot.cli.pages import show_page
from ondot.model.errors import InvalidBody
from ondot.model.hook import Signature

PAGE = 1_000

HookId = Annotated[Id, argument("hook", "HOOK", "The hook: its name or its id.")]
SecretStdin = Annotated[bool, typer.Option("--secret-stdin", help="Read the signing secret from standard input.")]

app = typer.Typer(help="URLs that turn plain webhooks into events.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The hook's name, for people.", show_default=False)],
    type_: Annotated[str, typer.Option("--type", metavar="TYPE", help="The type of its events.", show_default=False)],
    source: Annotated[str | None, typer.Option(help="The source of its events. Default: /hooks/ and the name.")] = None,
    signature: Annotated[Signature, typer.Option(help="How the sender signs.")] = Signature.NONE,
    header: Annotated[str | None, typer.Option(help="For hmac: the header of the signature.")] = None,
    secret_stdin: SecretStdin = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Create a hook. Its URL is shown once: only the hash of its token is stored.

    Stripe and Slack choose the signing secret: pass it with --secret-stdin. For others ondot makes one.
    """
    body: dict[str, Any] = {"name": name, "type": type_, "signature": signature.value}
    for field, value in (("source", source), ("header", header), ("secret", _read_secret() if secret_stdin else None)):
        if value is not None:
            body[field] = value
    _show_new(_ask(lambda client: client.create_hook(body, reason=reason)), output)


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List hooks by name, without their tokens."""
    page = ask(lambda client: client.list_hooks(limit=PAGE))
    from ondot.cli.views import hook_table

    show_page(page, output, hook_table, none="No hooks. Create one with `ondot hook create NAME --type TYPE`.")


@app.command("get")
def get(hook_id: HookId, output: Output = Format.TABLE) -> None:
    """Show one hook, without its token."""
    from datetime import UTC, datetime

    hook = ask(lambda client: client.get_hook(hook_id))
    if not output.is_table:
        return show_document(hook, output)
    from ondot.cli.output import show
    from ondot.cli.views import hook_table

    return show(hook_table([hook], datetime.now(UTC)), output)


@app.command()
def rotate(
    hook_id: HookId,
    overlap: Annotated[str, typer.Option(metavar="DURATION", help="How long the one before still works.")] = "24h",
    secret_stdin: Annotated[
        bool,
        typer.Option("--secret-stdin", help="Replace the signing secret, read from standard input; not the token."),
    ] = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Give a hook a new token, and so a new URL; or a new signing secret."""
    body: dict[str, Any] = {"overlap": int(overlap) if overlap.isdecimal() else overlap}
    if secret_stdin:
        body["secret"] = _read_secret()
    _show_new(_ask(lambda client: client.rotate_hook(hook_id, body, reason=reason)), output)


@app.command("delete")
def delete(hook_id: HookId, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Delete a hook. Its URL is refused within a second; its events stay."""
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Delete {hook_id}? This cannot be undone.", err=True):
        raise typer.Exit(1)
    deleted = ask(lambda client: client.delete_hook(hook_id, reason=reason))
    show_answer(deleted, output, f"Deleted the hook {deleted['name']}.")


def _ask(question: Any) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = ask(question)
    except InvalidBody as refusal:
        flags = {"/secret": "the signing secret", "/type": "--type", "/source": "--source", "/header": "--header"}
        raise in_flags(refusal, flags | {"/name": "NAME", "/overlap": "--overlap"}) from None
    return answer


def _show_new(hook: dict[str, Any], output: Format) -> None:
    lines = [f"Hook {hook['name']} ({hook['id']})."]
    if hook["url"] is not None:
        lines.append(f"Send to: {hook['url']}")
    if hook["secret"] is not None:
        lines.append(f"Signing secret: {hook['secret']}")
    if hook["url"] is not None:
        lines.append("This is shown once: store it at the sender.")
    else:
        lines.append("It has a new signing secret; the URL stays.")
    show_answer(hook, output, "\n".join(lines))


def _read_secret() -> str:
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass("Signing secret (not shown): ")
    try:
        secret = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise typer.BadParameter("The signing secret must be text in UTF-8.") from None
    show_progress(f"Read {len(secret):,} characters from standard input.")
    return secret.removesuffix("\n").removesuffix("\r")
