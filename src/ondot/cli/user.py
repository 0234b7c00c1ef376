"""`ondot user`: the people who sign in to the pages (T1, T7). Uses the database itself: the first owner is created by
those who can reach it, and by nobody else."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ondot.cli.calling import ask_database
from ondot.cli.complete import complete_names
from ondot.cli.options import Output, Reason, Yes, actor_here
from ondot.cli.output import Format, rfc_3339, show_answer, show_error, show_progress
from ondot.cli.pages import show_page
from ondot.model.errors import NotFound

if TYPE_CHECKING:
    from ondot.model.access import Caller
    from ondot.people.users import Changes
    from ondot.store.database import Database
    from ondot.store.users import UserRow

GENERATED_BYTES = 15

app = typer.Typer(help="People who sign in to the pages. These commands need the database.", no_args_is_help=True)

Email = Annotated[str, typer.Argument(metavar="EMAIL", help="The user's e-mail address.", show_default=False)]
User = Annotated[
    str,
    typer.Argument(
        metavar="USER",
        help="The user: e-mail address, name or id.",
        show_default=False,
        autocompletion=complete_names("user"),
    ),
]
Tenant = Annotated[str | None, typer.Option(metavar="NAME", help="The tenant of the user. Default: the first one.")]
RoleOption = Annotated[str, typer.Option("--role", metavar="ROLE", help="viewer, operator, editor, admin or owner.")]


@app.command()
def create(
    email: Email,
    owner: Annotated[bool, typer.Option("--owner", help="An owner of the installation: the same as --role owner.")] = (
        False
    ),
    role: RoleOption = "viewer",
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="Shown in the pages. Default: EMAIL.")] = None,
    tenant: Tenant = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input.")
    ] = False,
    generate: Annotated[bool, typer.Option("--generate", help="Generate the password, and show it once.")] = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Create a user. Asks for the password, unless it is read from standard input or generated."""
    from ondot.model.sign_in import parse_email, parse_name

    address = parse_email(email)
    if address is None:
        raise typer.BadParameter(f"{email!r} is not an e-mail address.", param_hint="EMAIL")
    shown = parse_name(name or address)
    if shown is None:
        raise typer.BadParameter("A name has 1 to 200 printable characters.", param_hint="--name")
    wanted = _role("owner" if owner else role)
    password, is_generated = _read_password(address, from_stdin=password_stdin, generate=generate)

    async def question(database: "Database") -> tuple["UserRow", bool]:
        from ondot.people.passwords import Passwords
        from ondot.people.users import create as create_user
        from ondot.store.audit import By
        from ondot.store.users import read_population

        hashed = await Passwords().hash(password)
        caller = await _caller(database, tenant)
        by = By(actor_here(), reason)
        async with database.connection() as connection:
            ends_keyless = not any(await read_population(connection))
        user, _ = await create_user(database, caller, by, email=address, name=shown, role=wanted, password=hashed)
        return user, ends_keyless

    user, ends_keyless = ask_database(question)
    answer = _view(user) | ({"password": password} if is_generated else {})
    show_answer(answer, output, password if is_generated else f"Created {user.email}, {user.role.value}.")
    if is_generated and output.is_table:
        show_progress(f"The password of {user.email}. It is shown only now.")
    if ends_keyless:
        show_error(
            "With the first user, answers without a key end: people sign in, and commands and programs need a key."
            " Create one for yourself: ondot key create me --role owner. Then set ONDOT_API_KEY to it."
        )


@app.command("list")
def list_(tenant: Tenant = None, output: Output = Format.TABLE) -> None:
    """List the users of a tenant."""

    async def question(database: "Database") -> list[dict[str, Any]]:
        from ondot.store.users import list_users

        caller = await _caller(database, tenant)
        async with database.connection() as connection:
            return [_view(row) for row in await list_users(connection, caller.tenant_no, limit=100_000)]

    rows = ask_database(question)
    from ondot.cli.user_views import user_table

    none = "No users. Create the first with `ondot user create --owner EMAIL`."
    show_page({"items": rows, "next_cursor": None}, output, user_table, none=none)


@app.command()
def update(
    email: User,
    role: Annotated[
        str | None, typer.Option("--role", metavar="ROLE", help="viewer, operator, editor, admin or owner.")
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="TEXT", help="Shown in the pages.")] = None,
    tenant: Tenant = None,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Change the role or the name of a user. It holds within a second."""
    from ondot.people.users import Changes

    changes = Changes(name=name, role=None if role is None else _role(role))
    user = _change(email, tenant, changes, reason)
    show_answer(_view(user), output, f"{user.email} is {user.role.value}.")


@app.command()
def disable(
    email: User, tenant: Tenant = None, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE
) -> None:
    """Disable a user: it cannot sign in, and all its sessions end within a second."""
    from ondot.people.users import Changes
    from ondot.store.users import UserState

    _confirm(f"Disable {email}? All its sessions end.", yes=yes)
    user = _change(email, tenant, Changes(state=UserState.DISABLED), reason)
    show_answer(_view(user), output, f"{user.email} is disabled.")


@app.command()
def enable(email: User, tenant: Tenant = None, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Enable a user that was disabled."""
    from ondot.people.users import Changes
    from ondot.store.users import UserState

    user = _change(email, tenant, Changes(state=UserState.ACTIVE), reason)
    show_answer(_view(user), output, f"{user.email} is active.")


@app.command()
def reset(
    email: User, tenant: Tenant = None, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE
) -> None:
    """End the password and all sessions of a user, and print a link with which it sets a new password."""
    _confirm(f"Reset {email}? Its password and all its sessions end.", yes=yes)

    async def question(database: "Database") -> dict[str, Any]:
        from ondot.people.users import reset as reset_user
        from ondot.store.audit import By

        caller = await _caller(database, tenant)
        user = await _find(database, caller, email)
        _, invitation = await reset_user(database, caller, By(actor_here(), reason), user.id)
        base = database.settings.public_url or database.settings.url
        return {"email": user.email, "url": invitation.url(base), "expires_at": rfc_3339(invitation.expires_at)}

    answer = ask_database(question)
    show_answer(answer, output, answer["url"])
    if output.is_table:
        show_progress(f"Pass it on to {answer['email']}. It works once, until {answer['expires_at']}.")


@app.command()
def delete(
    email: User, tenant: Tenant = None, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE
) -> None:
    """Delete a user; all its sessions end. The last owner stays."""
    _confirm(f"Delete {email}? This cannot be undone.", yes=yes)

    async def question(database: "Database") -> "UserRow":
        from ondot.people.users import delete as delete_user
        from ondot.store.audit import By

        caller = await _caller(database, tenant)
        user = await _find(database, caller, email)
        return await delete_user(database, caller, By(actor_here(), reason), user.id)

    user = ask_database(question)
    show_answer({"email": user.email, "deleted": True}, output, f"Deleted {user.email}.")


def _change(email: str, tenant: str | None, changes: "Changes", reason: str | None) -> "UserRow":
    async def question(database: "Database") -> "UserRow":
        from ondot.people.users import change
        from ondot.store.audit import By

        caller = await _caller(database, tenant)
        user = await _find(database, caller, email)
        return await change(database, caller, By(actor_here(), reason), user.id, changes)

    return ask_database(question)


async def _caller(database: "Database", tenant: str | None) -> "Caller":
    """Who can reach the database is an owner, acting for a tenant."""
    from dataclasses import replace

    from ondot.model.access import LOCAL

    if tenant is None:
        return LOCAL
    found = await database.tenants.by_name(tenant)
    if found is None:
        raise NotFound(f"There is no tenant {tenant!r}.")
    return replace(LOCAL, tenant_no=found.tenant_no)


async def _find(database: "Database", caller: "Caller", email: str) -> "UserRow":
    from ondot.cli.names import resolve_in_database
    from ondot.model.sign_in import parse_email
    from ondot.store.users import find_by_email, get_user

    async with database.connection() as connection:
        user, _ = await find_by_email(connection, caller.tenant_no, parse_email(email) or "")
    if user is None:
        id_ = await resolve_in_database(database, caller, "user", email)
        async with database.connection() as connection:
            user = await get_user(connection, caller.tenant_no, id_)
    if user is None:
        raise NotFound(f"There is no user {email}. List them with `ondot user list`.")
    return user


def _role(name: str) -> Any:
    from ondot.model.access import Role

    roles = [role.value for role in Role if role is not Role.WORKER]
    if name not in roles:
        raise typer.BadParameter(f"Unknown role {name!r}. Use one of: {', '.join(roles)}.", param_hint="--role")
    return Role(name)


def _read_password(email: str, *, from_stdin: bool, generate: bool) -> tuple[str, bool]:
    """The password, and whether it was generated."""
    import secrets

    from ondot.model.sign_in import fault_of_password

    if generate and from_stdin:
        raise typer.BadParameter("Use --generate or --password-stdin, not both.")
    if generate:
        return secrets.token_urlsafe(GENERATED_BYTES), True
    if from_stdin:
        password = sys.stdin.readline().rstrip("\r\n")
    elif sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt="The same again", err=True)
    else:
        raise typer.BadParameter("No password: standard input is no terminal. Use --password-stdin or --generate.")
    if fault := fault_of_password(password, email):
        raise typer.BadParameter(fault, param_hint="password")
    return password, False


def _confirm(question: str, *, yes: bool) -> None:
    if not yes and sys.stdin.isatty() and not typer.confirm(question, err=True):
        raise typer.Exit(1)


def _view(user: "UserRow") -> dict[str, Any]:
    return {
        "id": str(user.id),
        "email": user.email,
        "name": user.name,
        "role": user.role.value,
        "state": user.state.value,
        "last_sign_in_at": rfc_3339(user.last_sign_in_at) if user.last_sign_in_at else None,
    }
