"""Options and arguments that several commands share, spelled once."""

from getpass import getuser
from typing import Annotated

import typer

from ondot.cli.complete import complete_names
from ondot.cli.names import Id, argument, option
from ondot.cli.output import Format, ListFormat

Output = Annotated[Format, typer.Option("--output", "-o", help="The format of the output; wide shows all columns.")]
ListOutput = Annotated[
    ListFormat, typer.Option("--output", "-o", help="The format of the output; wide shows all columns.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Wait until it ends; exit with 1 unless it succeeded.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="The reason, for the audit log.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count, change nothing.")]
CurrentVersion = Annotated[
    bool, typer.Option("--current-version", help="Use the job's current version, not the version that it ran with.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="The maximum number to show.")]
Search = Annotated[
    str | None,
    typer.Option(
        "--search",
        "-q",
        metavar="QUERY",
        help="A query such as 'state:failed label.team=bi'; a word is part of a name.",
    ),
]
View = Annotated[
    str | None,
    typer.Option(
        "--view",
        "-V",
        metavar="NAME",
        help="A saved view: your own, or one that is shared. -q narrows it.",
        autocompletion=complete_names("view"),
    ),
]
Cursor = Annotated[
    str | None, typer.Option(metavar="CURSOR", help="Where to go on: as printed at the end of the list before.")
]
Fires = Annotated[int, typer.Option("-n", min=1, max=1000, help="The number of fires to show.")]
SupervisedBy = Annotated[int | None, typer.Option("--supervised-by", hidden=True)]
MetricsPages = Annotated[str | None, typer.Option("--metrics-pages", hidden=True)]
ShowLifeTo = Annotated[int | None, typer.Option("--show-life-to", hidden=True)]
JobId = Annotated[Id, argument("job", "JOB", "The job: its name, its key, or its id.")]
Jobs = Annotated[list[Id] | None, argument("job", "JOB", "Jobs: names, keys or ids; - reads them from standard input.")]
WorkflowId = Annotated[Id, argument("workflow", "WORKFLOW", "The workflow: its name, its key, or its id.")]
ExecutionId = Annotated[
    Id,
    argument("execution", "EXECUTION", "The execution: its id; or a job, for the latest that it has.", latest=True),
]
Executions = Annotated[
    list[Id] | None, argument("execution", "EXECUTION", "Ids of executions; - reads them from standard input.")
]
LetterId = Annotated[
    Id,
    argument("dead_letter", "EXECUTION", "Its execution: the id; or a job, for the latest that it has.", latest=True),
]
OfJob = Annotated[Id | None, option("job", "--job", metavar="JOB", help_="Only of this job: its name, key or id.")]
Payload = Annotated[str | None, typer.Option(metavar="JSON|@FILE", help="The JSON that the target receives.")]
BackfillId = Annotated[Id, argument("backfill", "BACKFILL", "The backfill's id.")]


def actor_here() -> str:
    """The name in the audit log of a user who changes the database from here, without the API."""
    return f"{getuser()} (command line)"
