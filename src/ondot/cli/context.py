"""`ondot context`: the servers that you use, each with its key; the file is private (`ondot.contexts`)."""

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli.calling import ask_server, find_server
from ondot.cli.options import Output, Yes
from ondot.cli.output import (
    Format,
    card,
    cell,
    show,
    show_answer,
    show_document,
    show_line,
    show_notice,
    show_progress,
    table,
)
from ondot.cli.pages import show_page
from ondot.model.errors import Forbidden, Misconfigured, OndotError
from ondot.model.urls import without_userinfo

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from ondot.cli.listing import Listing
    from ondot.contexts import Contexts, Server

Json = dict[str, Any]

app = typer.Typer(help="Contexts: the servers that you use, with their keys.", no_args_is_help=True)

ContextName = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.", show_default=False)]


@app.command()
def add(
    name: ContextName,
    url: Annotated[str, typer.Option(metavar="URL", help="The server's URL, for example https://ondot.example.com.")],
    key_stdin: Annotated[
        bool, typer.Option("--key-stdin", help="Read the API key from standard input; on a terminal it is asked for.")
    ] = False,
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="The tenant that an owner acts for.")] = None,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not call the server.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Add a server, or change it. It is called to check the URL and the key, and becomes the context in use if it is
    the first one."""
    from ondot.contexts import Context, Server, changed_contexts, check_name

    context = Context(_check_url(url), _read_key() if key_stdin else None, tenant)
    check_name(name)
    server = Server(context.url, context.key or "", tenant, context=name)
    me = None if no_check else _who(server)
    with changed_contexts() as versions:
        before = versions[0]
        current = before.current or name
        versions.append(replace(before, current=current, by_name={**before.by_name, name: context}))
    if output.is_table and me is not None:
        show_line(_me_in_words(me, server))
    use_it = "" if current == name else f" Use it: ondot context use {name}"
    show_answer(_describe(versions[-1], name), output, f"Added {name}, {without_userinfo(context.url)}.{use_it}")


@app.command()
def use(name: ContextName, output: Output = Format.TABLE) -> None:
    """Use this context from now on."""
    from ondot.contexts import changed_contexts

    with changed_contexts() as versions:
        versions[0].get(name)
        versions.append(replace(versions[0], current=name))
    used = _describe(versions[-1], name)
    show_answer(used, output, f"Using {name}, {used['url']}.")
    for variable in ("ONDOT_URL", "ONDOT_CONTEXT"):
        if os.environ.get(variable):
            show_notice(f"{variable} is set here and comes first: unset {variable} to use {name}.")


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List the contexts, without their keys."""
    from ondot.contexts import read_contexts

    contexts = read_contexts()
    items = [_describe(contexts, name) for name in sorted(contexts.by_name)]
    page = {"items": items, "next_cursor": None}
    show_page(page, output, _table, none="No contexts. Add one with `ondot context add NAME --url URL --key-stdin`.")


@app.command("show")
def show_(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Default: the one in use.", show_default=False)
    ] = None,
    output: Output = Format.TABLE,
) -> None:
    """Show where commands go, who you are there, and why."""
    from ondot.contexts import Server, read_contexts

    if name is None:
        server = find_server()
    else:
        context = read_contexts().get(name)
        server = Server(context.url, context.key or "", context.tenant, context=name)
    found: Json = {
        "context": server.context,
        "url": without_userinfo(server.url),
        "tenant": server.tenant,
        "has_key": bool(server.key),
        "me": None,
        "error": None,
    }
    try:
        found["me"] = _who(server)
    except OndotError as error:
        found["error"] = error.message
    if not output.is_table:
        return show_document(found, output)
    return show(
        card(
            [
                ("context", server.context or "none: ONDOT_URL, ondot.toml or the default"),
                ("server", found["url"]),
                ("tenant", server.tenant),
                ("key", "yes" if server.key else "none"),
                ("not sent", f"the key of {server.unused}: the URL does not come from it" if server.unused else None),
                ("you are", _me_in_words(found["me"], server) if found["me"] else None),
                ("problem", cell(found["error"], style="bold red") if found["error"] else None),
            ]
        )
    )


@app.command()
def remove(name: ContextName, yes: Yes = False, output: Output = Format.TABLE) -> None:
    """Forget a server and its key. The key stays valid: revoke it with `ondot key revoke`."""
    from ondot.contexts import changed_contexts, read_contexts, without

    read_contexts().get(name)
    if not yes and sys.stdin.isatty():
        typer.confirm(f"Forget {name} and its key?", abort=True, err=True)
    with changed_contexts() as versions:
        answer = _describe(versions[0], name)
        versions.append(without(versions[0], name))
    show_answer(answer, output, f"Removed {name}.")


def _who(server: "Server") -> Json | None:
    """The caller as the server knows it; None: the key is valid, but may not read that."""
    show_progress(f"Calling {without_userinfo(server.url)} …")
    try:
        return ask_server(lambda client: client.me(), server)
    except Forbidden:
        return None


def _check_url(url: str) -> str:
    from ondot.settings import load_settings

    try:
        return load_settings(url=url).url.rstrip("/")
    except Misconfigured as error:
        raise Misconfigured(error.message.replace("ONDOT_URL:", "--url:")) from None


def _read_key() -> str:
    if sys.stdin.isatty():
        from getpass import getpass

        key = getpass("API key: ")
    else:
        key = sys.stdin.readline()
    if not key.strip() or not key.strip().isascii() or not key.strip().isprintable():
        raise Misconfigured("There is no API key on standard input. Send it: echo $KEY | ondot context add …")
    return key.strip()


def _me_in_words(me: Json, server: "Server") -> str:
    tenant = f" of the tenant {me['tenant']}" if me["tenant"] else ""
    return f"{me['name']}, {me['role']}{tenant}, on ondot {me['release']}"


def _describe(contexts: "Contexts", name: str) -> Json:
    context = contexts.by_name[name]
    return {
        "name": name,
        "url": without_userinfo(context.url),
        "tenant": context.tenant,
        "has_key": context.key is not None,
        "is_current": contexts.current == name,
    }


def _table(items: "Iterable[Json]", _now: "datetime") -> "Listing":
    drawn = table("NAME", "IN USE", "URL", "KEY", "TENANT", drop=("TENANT", "KEY"), whole=("IN USE", "KEY"))
    for item in items:
        drawn.add_row(
            cell(item["name"], style="bold"),
            cell("yes", style="green") if item["is_current"] else "no",
            item["url"],
            "yes" if item["has_key"] else "none",
            item["tenant"],
        )
    return drawn
