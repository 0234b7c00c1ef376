"""Options and arguments that several commands share, spelled once."""

from typing import Annotated
from uuid import UUID

import typer

from ondot.cli.output import Format

Output = Annotated[Format, typer.Option("--output", "-o", help="How to print what comes back.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many at most.")]
SupervisedBy = Annotated[int | None, typer.Option("--supervised-by", hidden=True)]
JobId = Annotated[UUID, typer.Argument(metavar="JOB_ID", help="The job's id.", show_default=False)]
ExecutionId = Annotated[UUID, typer.Argument(metavar="EXECUTION_ID", help="The execution's id.", show_default=False)]
