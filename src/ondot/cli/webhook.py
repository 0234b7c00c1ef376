"""`ondot webhook`: the secrets that sign calls, and a check of signatures for receivers (T3)."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from ondot.cli.calling import ask
from ondot.cli.options import Output
from ondot.cli.output import Format, show_answer, show_progress

SECRET_VARIABLE = "WEBHOOK_SECRET"  # noqa: S105 - the name of a variable

app = typer.Typer(help="Signatures of HTTP calls.", no_args_is_help=True)


@app.callback()
def webhook() -> None:
    """Signatures of HTTP calls."""


@app.command()
def secret(
    host: Annotated[str, typer.Option(metavar="HOST", help="The receiver's host, or a URL on it.", show_default=False)],
    output: Output = Format.TABLE,
) -> None:
    """Print the secret that signs calls to a host, and the old one while it is rotated. The audit log records it."""
    answer = ask(lambda client: client.get_signing_secret(host))
    show_answer(answer, output, "\n".join(each["secret"] for each in answer["secrets"]))
    if output.is_table:
        old = [each for each in answer["secrets"] if each["ends_at"]]
        remark = f" The others end by {max(each['ends_at'] for each in old)}." if old else ""
        show_progress(f"Signs calls to {answer['host']}. Store it at the receiver.{remark}")


@app.command()
def rotate(
    overlap: Annotated[
        str, typer.Option(metavar="DURATION", help="How long calls are signed with the old secret too; 0 ends it now.")
    ] = "24h",
    output: Output = Format.TABLE,
) -> None:
    """Give every host a new secret. Until the overlap ends calls are signed with both."""
    from ondot.cli.flags import duration

    answer = ask(lambda client: client.rotate_signing_secret({"overlap": duration(overlap)}))
    sentence = f"The secrets have version {answer['versions'][0]['version']} now."
    show_answer(answer, output, sentence)
    if output.is_table:
        show_progress("Give each receiver its new one: `ondot webhook secret --host HOST`.")


@app.command()
def verify(
    body: Annotated[
        Path | None,
        typer.Argument(
            metavar="[BODY]", help="The file with the exact bytes of the body. By default standard input.", exists=True
        ),
    ] = None,
    message_id: Annotated[str, typer.Option("--id", metavar="ID", help="The header webhook-id.")] = "",
    timestamp: Annotated[str, typer.Option(metavar="SECONDS", help="The header webhook-timestamp.")] = "",
    signature: Annotated[
        str, typer.Option(metavar="SIGNATURE", help="The header webhook-signature, with all that it lists.")
    ] = "",
    secret_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"A file with the secret. By default the variable {SECRET_VARIABLE}."),
    ] = None,
    tolerance: Annotated[str, typer.Option(metavar="DURATION", help="How old a call may be.")] = "5m",
    output: Output = Format.TABLE,
) -> None:
    """Check the signature of a call as a receiver does. Needs no server. Exits with 1 if the call is not authentic."""
    from ondot.model.signature import find_fault

    fault = find_fault(
        _read_keys(secret_file),
        message_id=message_id,
        timestamp=timestamp,
        signatures=signature,
        body=sys.stdin.buffer.read() if body is None or str(body) == "-" else body.read_bytes(),
        now_s=time.time(),
        tolerance_s=_seconds(tolerance),
    )
    answer = {"valid": fault is None, "reason": fault}
    show_answer(answer, output, "Valid." if fault is None else f"Not valid. {fault}")
    if fault is not None:
        raise typer.Exit(1)


def _read_keys(path: Path | None) -> list[bytes]:
    """The keys of one or several secrets, separated by blanks or lines: a receiver has two while one is rotated."""
    import os

    from ondot.model.signature import parse_secret

    try:
        text = os.environ.get(SECRET_VARIABLE, "") if path is None else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} cannot be read: {error}.", param_hint="--secret-file") from error
    hint = "--secret-file" if path is not None else SECRET_VARIABLE
    if not text.split():
        advice = (
            f"Set {SECRET_VARIABLE}, or name a file with --secret-file: a secret in the arguments is seen by others."
        )
        raise typer.BadParameter(f"No secret. {advice}", param_hint=hint)
    try:
        return [parse_secret(secret) for secret in text.split()]
    except ValueError as error:
        raise typer.BadParameter(f"{str(error)[0].upper()}{str(error)[1:]}.", param_hint=hint) from None


def _seconds(written: str) -> float:
    from ondot.model.duration import seconds

    try:
        return seconds(float(written) if written.isdecimal() else written)
    except ValueError as error:
        raise typer.BadParameter(f"{written!r} must be {error}.", param_hint="--tolerance") from None
