"""The commands of `ondot`, each loaded when it is called: `ondot job list` imports the module of jobs alone (D5).

The help of `ondot` needs a line for each command, so the lines are here; a test compares them with the modules. Shell
completion and `ondot --help` go through the same table.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand
from typer.main import get_command

from ondot.cli.errors import Reporting

RUN, WORK, OPERATE, SET, KEEP = "Run a server", "Work", "Operate", "Settings", "Maintain a server"
"""The groups of the help. Work, Operate and Settings are those of the pages, too."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`named`: a function, or the Typer of a noun, in the module `ondot.cli.<module>`."""

    panel: str
    module: str
    named: str
    help: str


COMMANDS: Final = {
    "up": Entry(
        RUN,
        "up",
        "up",
        "Start everything: PostgreSQL, API, web pages, scheduler and workers. Ctrl-C stops it; nothing is lost.",
    ),
    "api": Entry(RUN, "roles", "api", "Serve the API and the web pages."),
    "scheduler": Entry(RUN, "roles", "scheduler", "Plan the fires of jobs, and recover lost work."),
    "worker": Entry(
        RUN,
        "roles",
        "worker",
        "Run attempts: HTTP calls, functions of an app, and shell commands if allowed.",
    ),
    "job": Entry(WORK, "job", "app", "Jobs: what to run, when, and how."),
    "function": Entry(WORK, "function", "app", "Functions: what workers can run, and with which arguments."),
    "workflow": Entry(WORK, "workflow", "app", "Workflows: jobs of several steps that depend on each other."),
    "run": Entry(WORK, "run", "app", "Runs of workflows: look at them, and repair them."),
    "execution": Entry(WORK, "execution", "app", "Executions: the runs of jobs, waiting, running or ended."),
    "event": Entry(WORK, "event", "app", "Events: send them, and see what they started."),
    "view": Entry(WORK, "view", "app", "Saved views: queries with a name, for the lists."),
    "export": Entry(WORK, "export", "export", "Write a whole list to standard output or a file, of any length."),
    "import": Entry(WORK, "import_", "app", "Move in from other schedulers."),
    "cron": Entry(WORK, "cron", "app", "Schedules, without a server."),
    "report": Entry(
        OPERATE,
        "report",
        "report",
        "Show what went wrong: missed, failed, late, held back, lost and more, with the commands that repair it.",
    ),
    "incident": Entry(OPERATE, "incident", "app", "What went wrong, who knows of it, and when it was over."),
    "dead-letter": Entry(OPERATE, "dead_letter", "app", "Dead letters: failed executions that wait for a decision."),
    "bulk": Entry(OPERATE, "bulk", "app", "Operations on many at once: progress, results, stop, undo."),
    "forecast": Entry(
        OPERATE,
        "forecast",
        "forecast",
        "Show what becomes due by pool: fires, the slots they need, the wait to expect, and the largest jobs.",
    ),
    "fleet": Entry(
        OPERATE,
        "fleet",
        "fleet",
        "Show schedulers, workers and pools: ownership, waiting work, and problems.",
    ),
    "top": Entry(
        OPERATE,
        "top",
        "top",
        "Show what runs, waits and comes next, live. q quits, p pauses, s sorts, arrows select, enter explains.",
    ),
    "pool": Entry(OPERATE, "pool", "app", "Pools: their workers, waiting work and limits."),
    "history": Entry(
        OPERATE,
        "history",
        "history",
        "Show how much history there is, what stays though its day is over and why, and what goes next. For owners.",
    ),
    "alert": Entry(SET, "alert", "app", "What to be notified of, and when."),
    "connection": Entry(SET, "connection", "app", "Brokers and servers that jobs name."),
    "channel": Entry(SET, "channel", "app", "Where messages about incidents go."),
    "sink": Entry(SET, "sink", "app", "Where ondot's own events are sent."),
    "ping": Entry(SET, "ping", "app", "Watch jobs that ondot does not run."),
    "hook": Entry(SET, "hook", "app", "URLs that turn plain webhooks into events."),
    "webhook": Entry(SET, "webhook", "app", "Signatures of HTTP calls."),
    "secret": Entry(SET, "secret", "app", "Secrets, and the master keys that encrypt them."),
    "audit": Entry(SET, "audit", "app", "Who changed what."),
    "archive": Entry(KEEP, "archive", "app", "Days that were archived before they went."),
    "migrate": Entry(KEEP, "migrate", "app", "The schema of the database."),
    "doctor": Entry(
        KEEP,
        "doctor",
        "doctor",
        "Check this installation, and show how to fix what is wrong. Exits with 1 if there is a problem.",
    ),
    "context": Entry(KEEP, "context", "app", "Contexts: the servers that you use, with their keys."),
    "tenant": Entry(KEEP, "tenant", "app", "Tenants: who shares this installation. For owners."),
    "user": Entry(KEEP, "user", "app", "People who sign in to the pages. These commands need the database."),
    "key": Entry(
        KEEP,
        "key",
        "app",
        "API keys. With ONDOT_API_KEY these commands call the server; without it they use the database.",
    ),
    "completion": Entry(
        KEEP,
        "completion",
        "completion",
        "Print the script for completion in a shell. In bash: source <(ondot completion bash)",
    ),
    "version": Entry(KEEP, "version", "version", "Print the version."),
}


class Deferred(TyperCommand):
    """Stands for a command in the help, until the command is called."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help, rich_help_panel=entry.panel)
        self.entry = entry

    def load(self) -> Any:
        entry = self.entry
        found = getattr(import_module(f"ondot.cli.{entry.module}"), entry.named)
        holder = typer.Typer(add_completion=False)
        holder.callback()(lambda: None)
        if isinstance(found, typer.Typer):
            holder.add_typer(found, name=self.name, rich_help_panel=entry.panel)
        else:
            holder.command(self.name, rich_help_panel=entry.panel)(found)
        group: Any = get_command(holder)
        return group.commands[self.name]


class Root(Reporting):
    def __init__(self, **group: Any) -> None:
        super().__init__(**group)
        self.commands = {name: Deferred(name, entry) for name, entry in COMMANDS.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        """In the order that a newcomer needs them."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, Deferred) else command, rest

    def load_commands(self) -> None:
        """Load all, to go through them."""
        self.commands = {
            name: command.load() if isinstance(command, Deferred) else command
            for name, command in self.commands.items()
        }
