"""`ondot key`: create, list, rotate and revoke API keys (T1).

One rule: with an API key (`ONDOT_API_KEY`, `ONDOT_API_KEY_FILE`) these commands call the server, with the rights of
that key. Without one, or with `--database`, they use the database itself, and may do everything: a person who can reach
the database is an owner. So the first key of an installation needs the database only.
"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli.calling import ask, ask_database, find_server
from ondot.cli.complete import complete_names
from ondot.cli.names import id_of, resolve_in_database
from ondot.cli.options import Limit, Output, Reason, Yes, actor_here
from ondot.cli.output import Format, show_answer, show_progress
from ondot.cli.pages import gather, show_page
from ondot.model.access import Right, Role
from ondot.model.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ondot.model.access import Caller
    from ondot.sdk.client import Client
    from ondot.store.audit import By
    from ondot.store.database import Database

LONGEST_NAME = 200

Json = dict[str, Any]

KeyId = Annotated[
    str,
    typer.Argument(
        metavar="KEY",
        help="The key: its name, or its id, which is also a part of the key.",
        show_default=False,
        autocompletion=complete_names("key"),
    ),
]
OnDatabase = Annotated[bool, typer.Option("--database", help="Use the database itself, also if ONDOT_API_KEY is set.")]
TenantName = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="The tenant of the key; by default your own.")
]

app = typer.Typer(
    help="API keys. With ONDOT_API_KEY these commands call the server; without it they use the database.",
    no_args_is_help=True,
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The user of the key, for example billing.", show_default=False)],
    role: Annotated[Role, typer.Option(help="What the key may do.")] = Role.ADMIN,
    scope: Annotated[
        list[Right] | None,
        typer.Option(help="Only this right of the role; may be given several times. Default: all of the role."),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(metavar="POOL", help="Only jobs of this pool; may be given several times. Default: all pools."),
    ] = None,
    expires_in: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long it works, for example 90d. Default: until revoked.")
    ] = None,
    tenant: TenantName = None,
    reason: Reason = None,
    database: OnDatabase = False,
    output: Output = Format.TABLE,
) -> None:
    """Create an API key. It is shown once: only its hash is stored.

    The first owner of an installation is made with access to the database: ondot key create NAME --role owner
    """
    if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
        raise typer.BadParameter(f"A name must have 1 to {LONGEST_NAME} printable characters.", param_hint="NAME")
    scopes = None if scope is None else [right.value for right in scope]
    body = {"name": name, "role": role.value, "scopes": scopes, "pools": pool, "expires_in": expires_in}

    async def by_database(database: "Database", caller: "Caller", by: "By") -> Json:
        from ondot.document.key_body import KeyBody
        from ondot.document.reading import read_form
        from ondot.flow.keys import create_key, wanted_key

        wanted = wanted_key(read_form(KeyBody, body, 'for example {"name": "ci", "role": "editor"}'))
        return _parse(await create_key(database, caller, wanted, render=_render, by=by))

    _show_new(
        _ask(lambda client: client.create_key(body, reason=reason), by_database, database, tenant, reason), output
    )


@app.command("list")
def list_(
    tenant: TenantName = None, limit: Limit = 1_000, database: OnDatabase = False, output: Output = Format.TABLE
) -> None:
    """List API keys, newest first, also those that no longer work."""

    async def by_database(database: "Database", caller: "Caller", _by: "By") -> Json:
        from ondot.store.keys import list_keys

        async with database.connection() as connection:
            rows = await list_keys(connection, caller.tenant_no, limit=limit)
        return {"items": [_parse(_render(row, None)) for row in rows], "next_cursor": None}

    page = _ask(
        lambda client: gather(lambda paging: client.list_keys(**paging), limit), by_database, database, tenant, None
    )
    for item in page["items"]:
        item.pop("key", None)
    from ondot.cli.views import key_table

    show_page(page, output, key_table, none="No keys. Create one with `ondot key create`.")


@app.command()
def rotate(
    key_id: KeyId,
    overlap: Annotated[str, typer.Option(metavar="DURATION", help="How long the old key still works.")] = "24h",
    tenant: TenantName = None,
    reason: Reason = None,
    database: OnDatabase = False,
    output: Output = Format.TABLE,
) -> None:
    """Replace an API key by a new one with the same rights. The old one works until the overlap is over."""

    async def by_database(database: "Database", caller: "Caller", by: "By") -> Json:
        from ondot.document.key_body import RotateBody
        from ondot.document.reading import read_form
        from ondot.flow.keys import rotate_key

        wanted = read_form(RotateBody, {"overlap": overlap}, 'for example {"overlap": "24h"}')
        id_ = await resolve_in_database(database, caller, "key", key_id)
        return _parse(await rotate_key(database, caller, id_, overlap_s=wanted.overlap, render=_render, by=by))

    async def by_server(client: "Client") -> Json:
        return await client.rotate_key(await id_of(client, "key", key_id), overlap=overlap, reason=reason)

    made = _ask(by_server, by_database, database, tenant, reason)
    _show_new(made, output)


@app.command()
def revoke(
    key_id: KeyId,
    yes: Yes = False,
    force: Annotated[bool, typer.Option("--force", help="Also if it is the last key of an owner.")] = False,
    tenant: TenantName = None,
    reason: Reason = None,
    database: OnDatabase = False,
    output: Output = Format.TABLE,
) -> None:
    """Revoke an API key. It is refused within a second, and its open requests end."""
    import sys

    if not yes and sys.stdin.isatty() and not typer.confirm(f"Revoke {key_id}? This cannot be undone.", err=True):
        raise typer.Exit(1)

    async def by_database(database: "Database", caller: "Caller", by: "By") -> Json:
        from ondot.flow.keys import revoke

        id_ = await resolve_in_database(database, caller, "key", key_id)
        return _parse(_render(await revoke(database, caller, id_, force=force, by=by), None))

    async def by_server(client: "Client") -> Json:
        return await client.revoke_key(await id_of(client, "key", key_id), force=force, reason=reason)

    revoked = _ask(by_server, by_database, database, tenant, reason)
    answer = {"id": revoked["id"], "revoked": True, "at": revoked["revoked_at"]}
    show_answer(answer, output, f"Revoked {revoked['name']} ({revoked['id']}).")


def _ask(
    by_server: "Callable[[Client], Awaitable[Json]]",
    by_database: "Callable[[Database, Caller, By], Awaitable[Json]]",
    database: bool,
    tenant: str | None,
    reason: str | None,
) -> Json:
    if not database and find_server().key:
        return ask(by_server, tenant=tenant)

    async def question(database: "Database") -> Json:
        from ondot.model.access import Caller, rights_of
        from ondot.model.ids import DEFAULT_TENANT
        from ondot.store.audit import By

        tenant_no = DEFAULT_TENANT
        if tenant is not None:
            found = await database.tenants.by_name(tenant)
            if found is None:
                raise NotFound(f"There is no tenant {tenant!r}.")
            tenant_no = found.tenant_no
        caller = Caller(tenant_no, actor_here(), Role.OWNER, rights_of(Role.OWNER))
        return await by_database(database, caller, By(caller.name, reason))

    return ask_database(question)


def _show_new(made: Json, output: Format) -> None:
    if made["key"] is None:  # the first answer was lost, and the request was sent again
        show_progress(made["warnings"][0]["detail"])
        raise typer.Exit(1)
    show_answer({name: made[name] for name in made if name != "warnings"}, output, made["key"])
    if output.is_table:
        show_progress(f"Key {made['id']}. It is shown only now: store it, and set ONDOT_API_KEY to use it.")


def _render(row: Any, key: str | None) -> str:
    import msgspec

    from ondot.flow.keys import describe_key

    return msgspec.json.encode({**describe_key(row), "key": key, "warnings": []}).decode()


def _parse(text: str) -> Json:
    import msgspec

    parsed: Json = msgspec.json.decode(text)
    return parsed
