"""`ondot key`: create, list and revoke API keys (T1). Uses the database itself: who can reach it may create keys."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from ondot.cli.calling import ask_database
from ondot.cli.options import Output, Yes, actor_here
from ondot.cli.output import Format, rfc_3339, show_answer, show_progress
from ondot.cli.pages import show_page
from ondot.model.errors import NotFound

if TYPE_CHECKING:
    from ondot.store.database import Database

LONGEST_NAME = 200

app = typer.Typer(help="API keys. These commands need the database.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The user of the key, for example billing.", show_default=False)],
    output: Output = Format.TABLE,
) -> None:
    """Create an API key. It is shown once: only its hash is stored."""
    if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
        raise typer.BadParameter(f"A name must have 1 to {LONGEST_NAME} printable characters.", param_hint="NAME")

    async def question(database: "Database") -> dict[str, Any]:
        from ondot.model.ids import DEFAULT_TENANT
        from ondot.store.audit import record
        from ondot.store.keys import add_key, new_key

        id_, key = database.clock.new_id(), new_key()
        async with database.transaction() as connection:
            await add_key(connection, id_, DEFAULT_TENANT, name, key)
            await record(connection, DEFAULT_TENANT, actor_here(), "key.create", id_, {"name": name})
        return {"id": str(id_), "name": name, "key": key}

    made = ask_database(question)
    show_answer(made, output, made["key"])
    if output is Format.TABLE:
        show_progress(f"Key {made['id']}. It is shown only now: store it, and set ONDOT_API_KEY to use it.")


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List API keys, including revoked ones."""

    async def question(database: "Database") -> list[dict[str, Any]]:
        from ondot.model.ids import DEFAULT_TENANT
        from ondot.store.keys import list_keys

        async with database.connection() as connection:
            rows = await list_keys(connection, DEFAULT_TENANT)
        return [
            {
                "id": str(row.id),
                "name": row.name,
                "created_at": rfc_3339(row.created_at),
                "revoked_at": rfc_3339(row.revoked_at) if row.revoked_at else None,
            }
            for row in rows
        ]

    keys = ask_database(question)
    from ondot.cli.views import key_table

    show_page(
        {"items": keys, "next_cursor": None}, output, key_table, none="No keys. Create one with `ondot key create`."
    )


@app.command()
def revoke(
    key_id: Annotated[UUID, typer.Argument(metavar="KEY_ID", help="The key's id.", show_default=False)],
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Revoke an API key. It is refused within a second, and its open requests end."""
    import sys

    if not yes and sys.stdin.isatty() and not typer.confirm(f"Revoke {key_id}? This cannot be undone.", err=True):
        raise typer.Exit(1)

    async def question(database: "Database") -> bool:
        from ondot.model.ids import DEFAULT_TENANT
        from ondot.store.audit import record
        from ondot.store.keys import revoke_key

        async with database.transaction() as connection:
            revoked = await revoke_key(connection, DEFAULT_TENANT, key_id)
            if revoked:
                await record(connection, DEFAULT_TENANT, actor_here(), "key.revoke", key_id)
            return revoked

    if not ask_database(question):
        raise NotFound(f"There is no key {key_id}.")
    answer = {"id": str(key_id), "revoked": True, "at": rfc_3339(datetime.now(UTC))}
    show_answer(answer, output, f"Revoked {key_id}.")
