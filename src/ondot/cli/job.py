"""`ondot job`: create, update, list, get, delete, run, next, pause, resume. Through the API, not the database.

`apply`, `explain`, the backfills, and `diff`, `reset`, `adopt` have modules of their own.
"""

import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli import apply, backfill, declared, explain, report
from ondot.cli.body import body_of, in_flags, payload_of
from ondot.cli.bulk import Matching, Rate, change_many, which
from ondot.cli.calling import ask
from ondot.cli.complete import complete_choices, complete_names
from ondot.cli.cron import show_preview
from ondot.cli.execution import end_with
from ondot.cli.flags import FLAGS, FOR_UPDATE, takes_flags
from ondot.cli.options import (
    Cursor,
    DryRun,
    Fires,
    JobId,
    Jobs,
    Limit,
    ListOutput,
    Output,
    Payload,
    Reason,
    Search,
    View,
    Wait,
    Yes,
)
from ondot.cli.output import Format, ListFormat, show, show_answer, show_document, show_line, show_notice
from ondot.cli.pages import gather, show_csv, show_page
from ondot.cli.view import query_of
from ondot.cli.waiting import first_execution, until_ended
from ondot.model.errors import InvalidBody

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = dict[str, Any]


class Missed(StrEnum):
    SKIP = "skip"
    ONCE = "once"
    ALL = "all"


app = typer.Typer(help="Jobs: what to run, when, and how.", no_args_is_help=True)


@app.command()
@takes_flags(FLAGS)
def create(
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="The whole job as JSON; - reads standard input.")
    ] = None,
    *,
    idempotency_key: Annotated[str | None, typer.Option(help="Two requests with the same key create one job.")] = None,
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
    if output.is_table:
        from ondot.cli.views import job_card

        show_line(f"Created {job['name']} {job['id']}" if execution else "Created.")
        if execution is None:
            show(job_card(job, datetime.now(UTC)))
    elif execution is None:
        show_document(job, output)
    _show_warnings(job)
    if execution is not None:
        end_with(execution, output)


def _show_warnings(job: Json) -> None:
    for warning in job.get("warnings", ()):
        show_notice(f"Warning: {warning['detail']}")


@app.command()
@takes_flags(FOR_UPDATE)
def update(
    job_id: JobId,
    file: Annotated[
        str | None,
        typer.Option("--file", "-f", metavar="FILE", help="The changes as a JSON merge patch; - reads standard input."),
    ] = None,
    if_version: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only if the job still has this version; else exit with 4.")
    ] = None,
    *,
    reason: Reason = None,
    output: Output = Format.TABLE,
    **flags: Any,
) -> None:
    """Change the fields that you name and keep the others. The new version takes effect at once."""
    changes = body_of(file, flags, changes=True)
    if not changes:
        raise typer.BadParameter("Say what to change, for example with --cron or --timeout, or give a file with -f.")
    try:
        job = ask(lambda client: client.patch_job(job_id, changes, if_version, reason))
    except InvalidBody as refusal:
        raise (in_flags(refusal) if file is None else refusal) from None
    if output.is_table:
        from ondot.cli.views import job_card

        show_line(f"Version {job['version']}.")
        show(job_card(job, datetime.now(UTC)))
    else:
        show_document(job, output)
    _show_warnings(job)


@app.command("list")
def list_(
    state: Annotated[
        str | None,
        typer.Option(
            help="ACTIVE, PAUSED, ENDED or DELETED.",
            autocompletion=complete_choices("ACTIVE", "PAUSED", "ENDED", "DELETED"),
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The exact name.")] = None,
    search: Search = None,
    view: View = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="Only jobs with this label.")] = None,
    pool: Annotated[
        str | None, typer.Option(help="Only jobs of this pool.", autocompletion=complete_names("pool"))
    ] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
    output: ListOutput = ListFormat.TABLE,
) -> None:
    """List jobs, newest first. Search with -q 'label.team=bi kind:cron state:active'."""
    query = ask(lambda client: query_of(client, "jobs", view, search)) if view else search
    filters = {"state": state and state.upper(), "name": name, "q": query, "label": label, "pool": pool}
    if output is ListFormat.CSV:
        return show_csv("jobs", filters, limit)
    page = ask(lambda client: gather(lambda paging: client.list_jobs(**filters, **paging), limit, cursor))
    from ondot.cli.views import job_table

    return show_page(
        page,
        output,
        job_table,
        none="No jobs. Create one with `ondot job create`, or import a crontab with `ondot import crontab`.",
    )


@app.command()
def get(job_id: JobId, output: Output = Format.TABLE) -> None:
    """Show a job, its latest executions, and its skipped fires."""
    job = ask(lambda client: client.get_job(job_id))
    if not output.is_table:
        return show_document(job, output)
    from ondot.cli.views import execution_table, job_card, skipped_table

    now = datetime.now(UTC)
    show(job_card(job, now))
    if job["latest_executions"]:
        show_line("")
        show(execution_table(job["latest_executions"], now), output)
    if job.get("skipped_fires"):
        show_line("")
        show(skipped_table(job["skipped_fires"], now), output)
    return None


@app.command()
def delete(
    jobs: Jobs = None,
    yes: Yes = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
    query: Matching = None,
    view: View = None,
    rate: Rate = None,
    dry_run: DryRun = False,
) -> None:
    """Delete jobs, by name or all that match. They fire no more; waiting executions are cancelled, running ones may
    finish."""
    chosen = which("jobs", jobs, query, view)
    if not chosen.is_one or dry_run:
        return change_many(chosen, "delete", rate=rate, reason=reason, dry_run=dry_run, yes=yes, output=output)
    [id_] = chosen.ids
    if not yes and not sys.stdin.isatty():
        raise typer.BadParameter(
            "This cannot be undone, and this terminal cannot ask for confirmation. Add --yes.", param_hint="--yes"
        )
    if not yes:
        job = ask(lambda client: client.get_job(id_))
        if not typer.confirm(f"Delete {job['name']!r}, {job['schedule_in_words']}? This cannot be undone.", err=True):
            raise typer.Exit(1)
    answer = ask(lambda client: client.delete_job(id_, reason))
    return show_answer(answer, output, f"Deleted {id_}.")


@app.command(hidden=True)
def cancel(job_id: JobId, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """The same as `ondot job delete`."""
    delete([job_id], yes, reason, output)


@app.command()
def run(
    jobs: Jobs = None,
    query: Matching = None,
    view: View = None,
    payload: Payload = None,
    wait: Wait = False,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Start one execution now, with the job's payload or another one; or one of each of several jobs. It does not count
    as a fire."""
    chosen = which("jobs", jobs, query, view)
    if not chosen.is_one or dry_run:
        if payload is not None or wait:
            raise typer.BadParameter("Each of several jobs runs with its own payload: leave out --payload and --wait.")
        return change_many(chosen, "run", rate=rate, reason=reason, dry_run=dry_run, yes=yes, output=output)
    given, [id_] = payload_of(payload), chosen.ids

    async def question(client: "Client") -> tuple[Json, Json | None]:
        started = await client.run_job(id_, **given, reason=reason)
        return started, await until_ended(client, started["execution_id"]) if wait else None

    started, execution = ask(question)
    if execution is not None:
        return end_with(execution, output)
    return show_answer(started, output, f"Started execution {started['execution_id']}.")


@app.command("next")
def next_(job_id: JobId, n: Fires = 10, output: Output = Format.TABLE) -> None:
    """Show the next fires of a job."""

    async def question(client: "Client") -> tuple[Json, Json | None]:
        preview = await client.next_fires(job_id, n)
        return preview, None if preview["fires"] or not output.is_table else await client.get_job(job_id)

    preview, job = ask(question)
    show_preview(preview, output, none=None if job is None else _why_none(job))


@app.command()
def skipped(
    every: Annotated[
        bool,
        typer.Option("--all", help="Also show fires of paused and deleted jobs, not only those missed in outages."),
    ] = False,
    limit: Limit = 50,
    output: Output = Format.TABLE,
) -> None:
    """List the fires of all jobs that were missed in the last 7 days, each with the command that runs them."""
    filters: Json = {} if every else {"reason": ["misfire", "coalesced"]}
    page = ask(lambda client: gather(lambda paging: client.skipped_fires(**filters, **paging), limit))
    from ondot.cli.views import missed_table

    show_page(page, output, missed_table, none="No fires were missed.")


@app.command()
def pause(
    jobs: Jobs = None,
    query: Matching = None,
    view: View = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Pause jobs, by name or all that match: until they are resumed, their fires are recorded as skipped."""
    chosen = which("jobs", jobs, query, view)
    if not chosen.is_one or dry_run:
        return change_many(chosen, "pause", rate=rate, reason=reason, dry_run=dry_run, yes=yes, output=output)
    [id_] = chosen.ids
    return _show_changed(ask(lambda client: client.pause_job(id_, reason)), output)


@app.command()
def resume(
    jobs: Jobs = None,
    query: Matching = None,
    view: View = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    missed: Annotated[
        Missed | None,
        typer.Option(help="The fires of the pause: skip them (the default), run only the latest (once), or run all."),
    ] = None,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Resume paused jobs, by name or all that match: they fire again from now on."""
    chosen = which("jobs", jobs, query, view)
    if not chosen.is_one or dry_run:
        if missed is not None:
            raise typer.BadParameter("Several jobs skip the fires of the pause: leave out --missed.")
        return change_many(chosen, "resume", rate=rate, reason=reason, dry_run=dry_run, yes=yes, output=output)
    [id_] = chosen.ids
    return _show_changed(ask(lambda client: client.resume_job(id_, missed.value if missed else None, reason)), output)


app.command("explain")(explain.explain_job)
app.command("misses")(report.misses)
app.command("apply")(apply.apply)
app.command("diff")(declared.diff)
app.command("reset")(declared.reset)
app.command("adopt")(declared.adopt)
app.command("backfill")(backfill.backfill)
app.command("backfills")(backfill.backfills)
app.command("backfill-cancel")(backfill.backfill_cancel)


def _why_none(job: Json) -> str | None:
    """Why a job has no next fire, if its state is the reason, and what to do about it."""
    why = f": {job['state_reason']}" if job.get("state_reason") else ""
    match job["state"]:
        case "PAUSED":
            return f"The job is paused{why}. Resume it with: ondot job resume {job['id']}"
        case "DELETED":
            return "No further fires: the job is deleted."
        case "ENDED":
            return "No further fires: the job has ended."
    return None


def _show_changed(job: Json, output: Format) -> None:
    if not output.is_table:
        return show_document(job, output)
    from ondot.cli.views import job_table

    return show(job_table([job], datetime.now(UTC)), output)
