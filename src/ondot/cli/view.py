"""`ondot view`: queries with a name, your own or shared by the tenant (O1). Lists take them with `-V NAME`."""

import sys
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from ondot.cli.calling import ask
from ondot.cli.complete import complete_names
from ondot.cli.listing import Listing
from ondot.cli.names import may_be_id, resolve_with
from ondot.cli.options import Limit, Output, Reason, Yes
from ondot.cli.output import Format, cell, show_answer, show_document, show_line, table
from ondot.cli.pages import gather, show_page
from ondot.model.errors import NotFound

if TYPE_CHECKING:
    from ondot.model.query.fields import Of
    from ondot.sdk.client import Client

Json = dict[str, Any]

app = typer.Typer(help="Saved views: queries with a name, for the lists.", no_args_is_help=True)

ViewName = Annotated[
    str,
    typer.Argument(
        metavar="NAME|ID", help="The view's name or id.", show_default=False, autocompletion=complete_names("view")
    ),
]
Query = Annotated[str | None, typer.Option("--query", "-q", metavar="QUERY", help="The query.")]
Shared = Annotated[bool | None, typer.Option("--shared/--own", help="For the whole tenant, or only for you.")]
OfList = Annotated[
    str | None, typer.Option("--of", metavar="LIST", help="executions, jobs, dead_letters or runs.", show_default=False)
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The view's name.", show_default=False)],
    query: Query = None,
    of: OfList = "executions",
    shared: Annotated[bool, typer.Option("--shared", help="For the whole tenant.")] = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Save a query under a name."""
    if query is None:
        raise typer.BadParameter("Give a query, for example -q 'state:failed since:24h'.", param_hint="--query")
    body = {"name": name, "of": of, "q": query, "shared": shared}
    made = ask(lambda client: client.create_view(body, reason=reason))
    show_answer(made, output, f"Saved {made['name']}. {_how_to_list(made)}")


@app.command("list")
def list_(of: OfList = None, limit: Limit = 100, output: Output = Format.TABLE) -> None:
    """List your own views and the shared ones."""
    page = ask(lambda client: gather(lambda paging: client.list_views(of=of, **paging), limit))
    show_page(page, output, _view_table, none="No views. Save one with `ondot view create NAME -q QUERY`.")


@app.command()
def get(name: ViewName, of: OfList = None, output: Output = Format.TABLE) -> None:
    """Show a view."""
    view = ask(lambda client: find_view(client, name, of))
    if not output.is_table:
        return show_document(view, output)
    show_line(view["q"])
    return show_line(_how_to_list(view))


@app.command()
def update(
    name: ViewName,
    query: Query = None,
    rename: Annotated[str | None, typer.Option(metavar="NAME", help="Another name.")] = None,
    shared: Shared = None,
    of: OfList = None,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Change the query or the name of a view, or share it."""
    fields = {"q": query, "name": rename, "shared": shared}
    fields = {field: value for field, value in fields.items() if value is not None}
    if not fields:
        raise typer.BadParameter("State what to change: -q, --rename, --shared or --own.")

    async def question(client: "Client") -> Json:
        view = await find_view(client, name, of)
        return await client.update_view(view["id"], fields, reason=reason)

    view = ask(question)
    show_answer(view, output, f"Changed {view['name']}: {view['q']}")


@app.command()
def delete(
    name: ViewName, of: OfList = None, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE
) -> None:
    """Delete a view. What it lists stays."""
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Delete the view {name}?", err=True):
        raise typer.Exit(1)

    async def question(client: "Client") -> Json:
        view = await find_view(client, name, of)
        return await client.delete_view(view["id"], reason=reason)

    deleted = ask(question)
    show_answer(deleted, output, f"Deleted the view {deleted['name']}.")


async def find_view(client: "Client", name: str, of: str | None) -> Json:
    """By id or by name; of two with the same name, one's own."""
    try:
        return await client.get_view(UUID(name))
    except ValueError:
        pass
    found: list[Json] = (await client.list_views(name=name, of=of))["items"]
    if not found and may_be_id(name):
        return await client.get_view(await resolve_with(client, "view", name))
    if not found:
        kind = f" of {of.replace('_', ' ')}" if of else ""
        raise NotFound(f"There is no view {name!r}{kind}. List them with `ondot view list`.")
    if len({view["of"] for view in found}) > 1:
        kinds = ", ".join(sorted(view["of"] for view in found))
        raise typer.BadParameter(f"There are several views {name!r}, of {kinds}. Add --of.", param_hint="--of")
    return min(found, key=lambda view: view["shared"])


async def query_of(client: "Client", of: "Of", view: str | None, search: str | None) -> str | None:
    """The query of a view and of a search: both must hold."""
    if view is None:
        return search
    found = await find_view(client, view, of)
    return " ".join(filter(None, (found["q"], search)))


def _view_table(views: Iterable[Json], _now: datetime) -> Listing:
    drawn = table("NAME", "OF", "WHOSE", "QUERY", drop=("WHOSE", "OF"), whole=("OF", "WHOSE"))
    for view in views:
        whose = "shared" if view["shared"] else "own"
        drawn.add_row(cell(view["name"], style="bold"), view["of"].replace("_", " "), whose, view["q"])
    return drawn


def _how_to_list(view: Json) -> str:
    noun = {"executions": "execution", "jobs": "job", "dead_letters": "dead-letter", "runs": "run"}[view["of"]]
    quoted = view["name"] if view["name"].replace("-", "").isalnum() else f"'{view['name']}'"
    return f"Use it: ondot {noun} list -V {quoted}"
