"""`ondot workflow`: create, list, get, runs. One run is `ondot run`; pause, delete and the rest are as of any job."""

from collections.abc import Awaitable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli.body import body_of_file, reject_surrogates
from ondot.cli.calling import ask
from ondot.cli.execution import end_with
from ondot.cli.options import Limit, ListOutput, Output, Wait, WorkflowId
from ondot.cli.output import Format, ListFormat, instant_of, show, show_document, show_line
from ondot.cli.pages import gather, show_csv, show_page
from ondot.cli.run import ShownRun
from ondot.cli.waiting import first_execution, until_ended

if TYPE_CHECKING:
    from ondot.sdk.client import Client

Json = dict[str, Any]

app = typer.Typer(help="Workflows: jobs of several steps that depend on each other.", no_args_is_help=True)


@app.command()
def create(
    file: Annotated[
        str, typer.Option("--file", "-f", metavar="FILE", help="The whole workflow as JSON; - reads standard input.")
    ],
    *,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Two requests with the same key create one workflow.")
    ] = None,
    wait: Wait = False,
    output: Output = Format.TABLE,
) -> None:
    """Create a workflow from a file with `steps`. Without a schedule it runs once, now."""
    body = body_of_file(file)
    reject_surrogates(body)

    async def question(client: "Client") -> tuple[Json, Json | None]:
        job = await client.create_workflow(body, idempotency_key)
        if not wait:
            return job, None
        run = await first_execution(client, job)
        return job, await until_ended(client, run["id"])

    job, run = ask(question)
    if output.is_table:
        show_line(f"Created {job['name']} {job['id']}" if run else "Created.")
        if run is None:
            _show_workflow(job, output)
    elif run is None:
        show_document(job, output)
    if run is not None:
        end_with(run, output)


@app.command("list")
def list_(
    state: Annotated[str | None, typer.Option(help="ACTIVE, PAUSED, ENDED or DELETED.")] = None,
    name: Annotated[str | None, typer.Option(help="The exact name.")] = None,
    search: Annotated[str | None, typer.Option("--search", "-q", help="Part of the name.")] = None,
    limit: Limit = 50,
    output: ListOutput = ListFormat.TABLE,
) -> None:
    """List workflows, newest first."""
    filters = {"state": state and state.upper(), "name": name, "q": search}
    if output is ListFormat.CSV:
        return show_csv("workflows", filters, limit)
    page = ask(lambda client: gather(lambda paging: client.list_workflows(**filters, **paging), limit))
    from ondot.cli.workflow_views import workflow_table

    return show_page(
        page, output, workflow_table, none="No workflows. Create one with `ondot workflow create -f FILE`."
    )


@app.command()
def get(job_id: WorkflowId, output: Output = Format.TABLE) -> None:
    """Show a workflow, its steps, and its latest runs."""
    job = ask(lambda client: client.get_workflow(job_id))
    if not output.is_table:
        return show_document(job, output)
    _show_workflow(job, output)
    if job["latest_executions"]:
        from ondot.cli.views import execution_table

        show_line("")
        show(execution_table(job["latest_executions"], datetime.now(UTC)), output)
    return None


@app.command()
def explain(
    run_id: ShownRun,
    step: Annotated[str | None, typer.Argument(help="The name of a step.", show_default=False)] = None,
    output: Output = Format.TABLE,
) -> None:
    """Explain why a run, or a step of it, does not go on: what it waits for, and what to do."""

    def question(client: "Client") -> Awaitable[Json]:
        return client.explain_execution(run_id) if step is None else client.explain_step(run_id, step)

    explanation = ask(question)
    if not output.is_table:
        return show_document(explanation, output)
    from ondot.cli.explain_views import explanation_card

    now = instant_of(explanation["now"]) or datetime.now(UTC)
    return show(explanation_card("run", explanation, now))


@app.command()
def runs(
    job_id: WorkflowId,
    state: Annotated[str | None, typer.Option(help="PENDING, RUNNING, BLOCKED, SUCCEEDED, FAILED, …")] = None,
    limit: Limit = 50,
    output: Output = Format.TABLE,
) -> None:
    """List the runs of a workflow, also those that wait for their turn, latest first."""
    filters = {"state": state and state.upper()}
    page = ask(lambda client: gather(lambda paging: client.list_runs(job_id, **filters, **paging), limit))
    from ondot.cli.run_views import run_table

    show_page(page, output, run_table, none="No runs.")


def _show_workflow(job: Json, output: Format) -> None:
    from ondot.cli.views import job_card
    from ondot.cli.workflow_views import step_table

    show(job_card(job, datetime.now(UTC)))
    show_line("")
    show(step_table(job["target"]["workflow"]["steps"]), output)
