"""`ondot job`: create, list, get, cancel, run, next, pause, resume. Through the API, never to the database."""

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli.body import body_of_file, body_of_flags, json_of, refuse_no_text
from ondot.cli.cron import show_preview
from ondot.cli.options import JobId, Limit, Output, Yes
from ondot.cli.output import Format, show, show_json, show_json_lines, show_line
from ondot.cli.pages import gather, show_page
from ondot.cli.serving import ask
from ondot.cli.waiting import first_execution, until_ended

if TYPE_CHECKING:
    from uuid import UUID

    from ondot.sdk.client import Client

Json = dict[str, Any]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Wait for the end; exit with 1 unless it succeeded.")]
Payload = Annotated[str | None, typer.Option(metavar="JSON", help="What the target is given.")]

app = typer.Typer(help="Jobs: what runs, when, and how.", no_args_is_help=True)


@app.command()
def create(
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="The whole job as JSON; - is standard input.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What people call it; named for its target if left out.")] = None,
    url: Annotated[str | None, typer.Option(help="Call this address.")] = None,
    method: Annotated[str | None, typer.Option(help="With --url: the HTTP method, POST if left out.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="With --url: a header.")] = None,
    function: Annotated[str | None, typer.Option(help="Call this function of a worker.")] = None,
    command: Annotated[str | None, typer.Option(help="Run this program; split into words, no shell.")] = None,
    cron: Annotated[str | None, typer.Option(metavar="EXPR", help='"0 9 * * 1-5": by the clock on the wall.')] = None,
    every: Annotated[str | None, typer.Option(metavar="DURATION", help="15m: again and again.")] = None,
    at: Annotated[str | None, typer.Option(metavar="INSTANT", help="2030-01-31T09:00:00Z: once.")] = None,
    in_: Annotated[str | None, typer.Option("--in", metavar="DURATION", help="90s: once, after so long.")] = None,
    timezone: Annotated[str | None, typer.Option("--timezone", "-z", help="An IANA zone, UTC if left out.")] = None,
    jitter: Annotated[str | None, typer.Option(metavar="DURATION", help="Start up to so much later.")] = None,
    payload: Payload = None,
    pool: Annotated[str | None, typer.Option(help="The workers that run it.")] = None,
    priority: Annotated[str | None, typer.Option(help="high, normal or low.")] = None,
    retries: Annotated[int | None, typer.Option(help="Attempts after the first.")] = None,
    timeout: Annotated[str | None, typer.Option(metavar="DURATION", help="How long one attempt may take.")] = None,
    key: Annotated[str | None, typer.Option(help="Your own id: one job for each.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME:VALUE", help="Your own word for it.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Sent twice, it is made once.")] = None,
    wait: Wait = False,
    output: Output = Format.TABLE,
) -> None:
    """Create a job. Without a schedule (--cron, --every, --at, --in) it runs once, now."""
    schedule = {"cron": cron, "every": every, "at": at, "in": in_}
    flags: Json = {
        "name": name,
        "timezone": timezone,
        "jitter": jitter,
        "url": url,
        "method": method,
        "headers": header or [],
        "function": function,
        "command": command,
        "payload": payload,
        "pool": pool,
        "priority": priority,
        "retries": retries,
        "timeout": timeout,
        "key": key,
        "labels": label or [],
    }
    if file is None:
        body = body_of_flags(schedule=schedule, **flags)
    elif any(value not in (None, []) for value in (*flags.values(), *schedule.values())):
        raise typer.BadParameter("Give the job in a file or by flags, not both.", param_hint="-f")
    else:
        body = body_of_file(file)
    refuse_no_text(body)

    async def question(client: "Client") -> tuple[Json, Json | None]:
        job = await client.create_job(body, idempotency_key)
        if not wait:
            return job, None
        execution = await first_execution(client, job)
        return job, await until_ended(client, execution["id"])

    job, execution = ask(question)
    if output is Format.TABLE:
        from ondot.cli.views import job_card

        show_line(f"Created {job['name']} {job['id']}" if execution else "Created.")
        if execution is None:
            show(job_card(job, datetime.now(UTC)))
    elif execution is None:
        _show_document(job, output)
    if execution is not None:
        end_with(execution, output)


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
    """Show a job and its latest executions."""
    job = ask(lambda client: client.get_job(job_id))
    if output is not Format.TABLE:
        return _show_document(job, output)
    from ondot.cli.views import execution_table, job_card

    now = datetime.now(UTC)
    show(job_card(job, now))
    if job["latest_executions"]:
        show_line("")
        show(execution_table(job["latest_executions"], now))
    return None


@app.command()
def cancel(job_id: JobId, yes: Yes = False, output: Output = Format.TABLE) -> None:
    """Cancel a job: no further fires; what waits is cancelled, what runs may end."""
    if not yes and sys.stdin.isatty():
        job = ask(lambda client: client.get_job(job_id))
        if not typer.confirm(f"Cancel {job['name']!r}, {job['schedule_in_words']}? It cannot be resumed.", err=True):
            raise typer.Exit(1)
    answer = ask(lambda client: client.delete_job(job_id))
    _say(f"Cancelled {job_id}.", answer, output)


@app.command()
def run(job_id: JobId, payload: Payload = None, wait: Wait = False, output: Output = Format.TABLE) -> None:
    """Start one execution now, with the job's payload or another. It is no fire."""
    given = {} if payload is None else {"payload": json_of(payload, "--payload")}
    refuse_no_text(given)

    async def question(client: "Client") -> tuple[Json, Json | None]:
        started = await client.run_job(job_id, **given)
        return started, await until_ended(client, started["execution_id"]) if wait else None

    started, execution = ask(question)
    if execution is not None:
        end_with(execution, output)
    else:
        _say(f"Started execution {started['execution_id']}.", started, output)


@app.command("next")
def next_(
    job_id: JobId,
    n: Annotated[int, typer.Option("-n", min=1, max=1000, help="How many fires.")] = 10,
    output: Output = Format.TABLE,
) -> None:
    """Show the next fires of a job."""
    show_preview(ask(lambda client: client.next_fires(job_id, n)), output)


@app.command()
def pause(job_id: JobId, output: Output = Format.TABLE) -> None:
    """No fires until it is resumed; they are recorded as skipped."""
    _changed(job_id, "pause_job", output)


@app.command()
def resume(job_id: JobId, output: Output = Format.TABLE) -> None:
    """Fire again, from now on."""
    _changed(job_id, "resume_job", output)


def end_with(execution: Json, output: Format) -> None:
    """Show how it ended, and say the same by the exit code."""
    from ondot.cli.execution import show_execution

    show_execution(execution, output)
    if execution["state"] != "SUCCEEDED":
        raise typer.Exit(1)


def _changed(job_id: "UUID", method: str, output: Format) -> None:
    job = ask(lambda client: getattr(client, method)(job_id))
    if output is not Format.TABLE:
        return _show_document(job, output)
    from ondot.cli.views import job_table

    return show(job_table([job], datetime.now(UTC)))


def _say(sentence: str, answer: Json, output: Format) -> None:
    if output is Format.TABLE:
        show_line(sentence)
    else:
        _show_document(answer, output)


def _show_document(document: Json, output: Format) -> None:
    if output is Format.JSON:
        show_json(document)
    else:
        show_json_lines([document])
