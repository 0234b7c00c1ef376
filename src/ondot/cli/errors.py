"""From an error to one message on standard error and an exit code.

    0 done · 1 the run failed · 2 usage or settings · 3 not found · 4 conflict · 5 unavailable or full · 130 Ctrl-C

Promises that no expected error shows a traceback. An unexpected one is shown in one line, and in full with
`ondot --debug …`; a role always shows it in full, because its operator needs it.
"""

from typing import Any, Final

import typer
from typer.core import TyperGroup

from ondot.cli.output import show_error
from ondot.model.errors import (
    Conflict,
    Fault,
    Forbidden,
    InvalidBody,
    InvalidRequest,
    Misconfigured,
    NotFound,
    OndotError,
    PreconditionFailed,
    QueueFull,
    QuotaExceeded,
    Unauthorized,
    Unavailable,
)

FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNAVAILABLE: Final = 5

SERVER_PACKAGES: Final = frozenset(
    {"aiohttp", "asyncpg", "cryptography", "fastapi", "jinja2", "prometheus_client", "starlette", "uvicorn", "uvloop"}
)
QUOTES: Final = (
    'A cron expression is one argument: put it in quotes, for example "0 9 * * 1-5". Without quotes the shell replaces '
    "each * with the names of files."
)
TAKES_CRON: Final = frozenset({"explain", "create", "update"})
OF_ROOT: Final = {"--context": "NAME ", "--tenant": "NAME ", "--debug": ""}
"""Options before the command, with their value. Some commands have a --tenant of their own."""
ROLES: Final = frozenset({"up", "api", "scheduler", "worker"})


class Reporting(TyperGroup):
    """The command `ondot`: every error of every command passes through it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (OndotError, BaseExceptionGroup, ModuleNotFoundError) as error:
            expected = expected_error(error)
            if expected is None:
                self._show_unexpected(ctx, error)
                raise
            show_error(message_of(expected))
            raise typer.Exit(exit_code(expected)) from error
        except typer.TyperException as error:
            _advise_quotes(error)
            _advise_place(error)
            raise
        except (typer.Exit, typer.Abort, OSError, EOFError):
            raise
        except Exception as error:
            self._show_unexpected(ctx, error)
            raise

    @staticmethod
    def _show_unexpected(ctx: Any, error: BaseException) -> None:
        if ctx.params.get("debug") or ctx.invoked_subcommand in ROLES:
            return
        show_error(
            f"Unexpected error: {type(error).__name__}: {error}\n"
            "See the traceback with `ondot --debug …`, and please report it."
        )
        raise typer.Exit(FAILED) from error


def _advise_quotes(error: Any) -> None:
    """Extra words after a command that takes a cron expression are most likely the rest of the expression."""
    command = getattr(getattr(error, "ctx", None), "info_name", None)
    message = getattr(error, "message", "")
    if command in TAKES_CRON and message.startswith("Got unexpected extra argument"):
        error.message = f"{message}. {QUOTES}"


def _advise_place(error: Any) -> None:
    """Options of `ondot` itself, as in kubectl or aws, are often written at the end."""
    option = getattr(error, "option_name", None)
    if option in OF_ROOT:
        error.message = f"{option} is written before the command: ondot {option} {OF_ROOT[option]}…"
        error.possibilities = None


def expected_error(error: BaseException) -> OndotError | None:
    """The error to show; of a group, the first one, if all of them are ondot's own."""
    if isinstance(error, OndotError):
        return error
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in SERVER_PACKAGES:
        return Misconfigured(f"The server needs {error.name}, which is not installed: pip install 'ondot[server]'")
    if isinstance(error, BaseExceptionGroup):
        errors = [expected_error(inner) for inner in error.exceptions]
        return errors[0] if all(errors) else None
    return None


def exit_code(error: OndotError) -> int:
    match error:
        case NotFound():
            return NOT_FOUND
        case Conflict() | PreconditionFailed():
            return CONFLICT
        case Unavailable() | QueueFull() | QuotaExceeded():
            return UNAVAILABLE
        case InvalidRequest() | Unauthorized() | Forbidden() | Misconfigured():
            return USAGE
    return FAILED


def message_of(error: OndotError) -> str:
    """The message; for a body, each fault with its pointer instead, because the message only joins them."""
    if not isinstance(error, InvalidBody) or not error.faults:
        return error.message
    faults = "\n".join(f"  {fault.pointer or '/'}: {named_once(fault)}" for fault in error.faults)
    return f"{error.title}:\n{faults}"


def named_once(fault: Fault) -> str:
    """The message of a fault without the field's name at its start, which the pointer before it repeats."""
    before, _, after = fault.message.partition("`")
    named, _, words = after.partition("`")
    if before or not fault.pointer.endswith("/" + named.replace(".", "/")):
        return fault.message
    return words.removeprefix(":").lstrip() if words.startswith((": ", " must ", " is ")) else fault.message
