"""`ondot job`: create, update, list, get, cancel, run, next, pause, resume. Through the API, never to the database.

`apply`, `explain` and the backfills have modules of their own, and join this noun here.
"""

import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli import apply, backfill, explain
from ondot.cli.body import body_of, in_flags, payload_of
from ondot.cli.calling import ask
from ondot.cli.cron import show_preview
from ondot.cli.execution import end_with
from ondot.cli.flags import AT_CREATION, takes_flags
from ondot.cli.options import Fires, JobId, Limit, Output, Payload, Reason, Wait, Yes
from ondot.cli.output import Format, show, show_document, show_line
from ondot.cli.pages import gather, show_page
from ondot.cli.waiting import first_execution, until_ended
from ondot.model.errors import InvalidBody

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = dict[str, Any]


class Missed(StrEnum):
    """What becomes of the fires of a pause."""

    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


app = typer.Typer(help="Jobs: what runs, when, and how.", no_args_is_help=True)


@app.command()
@takes_flags()
def create(
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="The whole job as JSON; - is standard input.")
    ] = None,
    *,
    idempotency_key: Annotated[str | None, typer.Option(help="Sent twice, it is made once.")] = None,
    wait: Wait = False,
    output: Output = Format.TABLE,
    **flags: Any,
) -> None:
    """Create a job. Without a schedule (--cron, --every, --rrule, --at, --in) it runs once, now."""
    body = body_of(file, flags)

    async def question(client: "Client") -> tuple[Json, Json | None]:
        job = await client.create_job(body, idempotency_key)
        if not wait:
            return job, None
        execution = await first_execution(client, job)
        return job, await until_ended(client, execution["id"])

    try:
        job, execution = ask(question)
    except InvalidBody as refusal:
        raise (in_flags(refusal) if file is None else refusal) from None
    if output is Format.TABLE:
        from ondot.cli.views import job_card

        show_line(f"Created {job['name']} {job['id']}" if execution else "Created.")
        if execution is None:
            show(job_card(job, datetime.now(UTC)))
    elif execution is None:
        show_document(job, output)
    if execution is not None:
        end_with(execution, output)


@app.command()
@takes_flags(without=AT_CREATION)
def update(
    job_id: JobId,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="The changes as a JSON merge patch; - is standard input."),
    ] = None,
    if_version: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only if it still has this version; exit with 4 if not.")
    ] = None,
    *,
    reason: Reason = None,
    output: Output = Format.TABLE,
    **flags: Any,
) -> None:
    """Change what is named and leave the rest: a new version, which takes over at once."""
    changes = body_of(file, flags, changes=True)
    if not changes:
        raise typer.BadParameter("Say what to change, for example --cron or --timeout, or a file with -f.")
    try:
        job = ask(lambda client: client.patch_job(job_id, changes, if_version, reason))
    except InvalidBody as refusal:
        raise (in_flags(refusal) if file is None else refusal) from None
    if output is Format.TABLE:
        from ondot.cli.views import job_card

        show_line(f"Version {job['version']}.")
        show(job_card(job, datetime.now(UTC)))
    else:
        show_document(job, output)


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option(help="ACTIVE, PAUSED, ENDED or DELETED.")] = None,
    name: Annotated[str | None, typer.Option(help="The whole name.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="A part of the name.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="With this label.")] = None,
    pool: Annotated[str | None, typer.Option(help="Of this pool.")] = None,
    limit: Limit = 50,
    output: Output = Format.TABLE,
) -> None:
    """List jobs, newest first."""
    filters = {"state": state and state.upper(), "name": name, "q": search, "label": label, "pool": pool}
    page = ask(lambda client: gather(lambda paging: client.list_jobs(**filters, **paging), limit))
    from ondot.cli.views import job_table

    show_page(page, output, job_table, none="No jobs.")


@app.command()
def get(job_id: JobId, output: Output = Format.TABLE) -> None:
    """Show a job, its latest executions and the fires that were skipped."""
    job = ask(lambda client: client.get_job(job_id))
    if output is not Format.TABLE:
        return show_document(job, output)
    from ondot.cli.views import execution_table, job_card, skipped_table

    now = datetime.now(UTC)
    show(job_card(job, now))
    if job["latest_executions"]:
        show_line("")
        show(execution_table(job["latest_executions"], now))
    if job.get("skipped_fires"):
        show_line("")
        show(skipped_table(job["skipped_fires"], now))
    return None


@app.command()
def delete(job_id: JobId, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Delete a job: no further fires; what waits is cancelled, what runs may end."""
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter("Nobody can be asked here, and it cannot be undone: give --yes.", param_hint="--yes")
    if not yes:
        job = ask(lambda client: client.get_job(job_id))
        if not typer.confirm(f"Delete {job['name']!r}, {job['schedule_in_words']}? It cannot be undone.", err=True):
            raise typer.Exit(1)
    answer = ask(lambda client: client.delete_job(job_id, reason))
    _say(f"Deleted {job_id}.", answer, output)


@app.command(hidden=True)
def cancel(job_id: JobId, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """The same as `ondot job delete`."""
    delete(job_id, yes, reason, output)


@app.command()
def run(
    job_id: JobId,
    payload: Payload = None,
    wait: Wait = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Start one execution now, with the job's payload or another. It is no fire."""
    given = payload_of(payload)

    async def question(client: "Client") -> tuple[Json, Json | None]:
        started = await client.run_job(job_id, **given, reason=reason)
        return started, await until_ended(client, started["execution_id"]) if wait else None

    started, execution = ask(question)
    if execution is not None:
        end_with(execution, output)
    else:
        _say(f"Started execution {started['execution_id']}.", started, output)


@app.command("next")
def next_(job_id: JobId, n: Fires = 10, output: Output = Format.TABLE) -> None:
    """Show the next fires of a job."""

    async def question(client: "Client") -> tuple[Json, Json | None]:
        told = await client.next_fires(job_id, n)
        return told, None if told["fires"] or output is not Format.TABLE else await client.get_job(job_id)

    told, job = ask(question)
    show_preview(told, output, none=None if job is None else _why_none(job))


@app.command()
def skipped(
    every: Annotated[
        bool, typer.Option("--all", help="Also fires of pauses and of deleted jobs, not only those of outages.")
    ] = False,
    limit: Limit = 50,
    output: Output = Format.TABLE,
) -> None:
    """List the fires that were missed in the last 7 days, of all jobs, with the command that runs them after all."""
    filters: Json = {} if every else {"reason": ["misfire", "coalesced"]}
    page = ask(lambda client: gather(lambda paging: client.skipped_fires(**filters, **paging), limit))
    from ondot.cli.views import missed_table

    show_page(page, output, missed_table, none="No fire was missed.")


@app.command()
def pause(job_id: JobId, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """No fires until it is resumed; they are recorded as skipped."""
    _changed(ask(lambda client: client.pause_job(job_id, reason)), output)


@app.command()
def resume(
    job_id: JobId,
    missed: Annotated[
        Missed | None,
        typer.Option(help="The fires of the pause: skip them (if not said), run the latest once, or run all."),
    ] = None,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Fire again, from now on."""
    _changed(ask(lambda client: client.resume_job(job_id, missed.value if missed else None, reason)), output)


app.command("explain")(explain.explain_job)
app.command("apply")(apply.apply)
app.command("backfill")(backfill.backfill)
app.command("backfills")(backfill.backfills)
app.command("backfill-cancel")(backfill.backfill_cancel)


def _why_none(job: Json) -> str | None:
    """Why a job has no next fire, if its state says so, and what to do about it."""
    why = f": {job['state_reason']}" if job.get("state_reason") else ""
    match job["state"]:
        case "PAUSED":
            return f"No fires while it is paused{why}. Resume it with: ondot job resume {job['id']}"
        case "DELETED":
            return "No further fires: it is deleted."
        case "ENDED":
            return "No further fires: it has ended."
    return None


def _changed(job: Json, output: Format) -> None:
    if output is not Format.TABLE:
        return show_document(job, output)
    from ondot.cli.views import job_table

    return show(job_table([job], datetime.now(UTC)))


def _say(sentence: str, answer: Json, output: Format) -> None:
    if output is Format.TABLE:
        show_line(sentence)
    else:
        show_document(answer, output)
