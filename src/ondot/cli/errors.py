"""From an error to what a person reads and a script gets: one message on standard error, and an exit code.

    0 done · 1 the run failed · 2 usage or settings · 3 not found · 4 conflict · 5 unavailable or full · 130 Ctrl-C

Promises that no foreseeable error shows a traceback. One that nobody foresaw is told in a line, and in full with
`ondot --debug …`; a role shows it in full anyway, since whoever operates it needs it.
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
    Unauthorized,
    Unavailable,
)

FAILED: Final = 1
USAGE: Final = 2
NOT_FOUND: Final = 3
CONFLICT: Final = 4
UNAVAILABLE: Final = 5

ORDER: Final = (
    *("up", "api", "scheduler", "worker"),
    *("job", "execution", "dead-letter", "fleet", "pool", "audit", "cron"),
    *("migrate", "doctor", "key", "version"),
)
SERVER_PACKAGES: Final = frozenset(
    {"aiohttp", "asyncpg", "fastapi", "jinja2", "prometheus_client", "starlette", "uvicorn", "uvloop"}
)
QUOTES: Final = (
    'A cron expression is one argument: put it in quotes, for example "0 9 * * 1-5". Without them the shell puts the '
    "names of files in the place of each *."
)
TAKES_CRON: Final = frozenset({"explain", "create", "update"})
ROLES: Final = frozenset({"up", "api", "scheduler", "worker"})


class Root(TyperGroup):
    """The command `ondot`: every error of every command passes here."""

    def list_commands(self, ctx: Any) -> list[str]:
        """As a newcomer needs them; typer would list commands before groups."""
        return sorted(super().list_commands(ctx), key=ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (OndotError, BaseExceptionGroup, ModuleNotFoundError) as error:
            told = foreseen(error)
            if told is None:
                self._unforeseen(ctx, error)
                raise
            show_error(message_of(told))
            raise typer.Exit(exit_code(told)) from error
        except typer.TyperException as error:
            _advise_quotes(error)
            raise
        except (typer.Exit, typer.Abort, OSError, EOFError):
            raise
        except Exception as error:
            self._unforeseen(ctx, error)
            raise

    @staticmethod
    def _unforeseen(ctx: Any, error: BaseException) -> None:
        if ctx.params.get("debug") or ctx.invoked_subcommand in ROLES:
            return
        show_error(
            f"ondot did not foresee this: {type(error).__name__}: {error}\n"
            "See where it comes from with `ondot --debug …`, and please report it."
        )
        raise typer.Exit(FAILED) from error


def _advise_quotes(error: Any) -> None:
    """Words left over after a command that takes a cron expression are most likely the rest of one."""
    command = getattr(getattr(error, "ctx", None), "info_name", None)
    message = getattr(error, "message", "")
    if command in TAKES_CRON and message.startswith("Got unexpected extra argument"):
        error.message = f"{message}. {QUOTES}"


def foreseen(error: BaseException) -> OndotError | None:
    """The error to tell; of several that came at once, the first, if all of them are ondot's own."""
    if isinstance(error, OndotError):
        return error
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in SERVER_PACKAGES:
        return Misconfigured(f"A part of the server, {error.name}, is not installed: pip install 'ondot[server]'")
    if isinstance(error, BaseExceptionGroup):
        all_told = [foreseen(inner) for inner in error.exceptions]
        return all_told[0] if all(all_told) else None
    return None


def exit_code(error: OndotError) -> int:
    match error:
        case NotFound():
            return NOT_FOUND
        case Conflict() | PreconditionFailed():
            return CONFLICT
        case Unavailable() | QueueFull():
            return UNAVAILABLE
        case InvalidRequest() | Unauthorized() | Forbidden() | Misconfigured():
            return USAGE
    return FAILED


def message_of(error: OndotError) -> str:
    """The message; for a body each fault with its pointer instead, since the message only joins them."""
    if not isinstance(error, InvalidBody) or not error.faults:
        return error.message
    faults = "\n".join(f"  {fault.pointer or '/'}: {named_once(fault)}" for fault in error.faults)
    return f"{error.title}:\n{faults}"


def named_once(fault: Fault) -> str:
    """The message of a fault without the field's name that it begins with: the pointer before it says as much."""
    before, _, after = fault.message.partition("`")
    named, _, words = after.partition("`")
    if before or not fault.pointer.endswith("/" + named.replace(".", "/")):
        return fault.message
    return words.removeprefix(":").lstrip() if words.startswith((": ", " must ", " is ")) else fault.message
