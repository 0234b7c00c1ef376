"""`ondot tenant`: create, list, change, suspend, resume and delete tenants, and what one uses (T1, T2)."""

import sys
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ondot.cli.body import in_flags
from ondot.cli.calling import ask, find_server
from ondot.cli.complete import complete_names
from ondot.cli.options import DryRun, Limit, Output, Reason, Yes
from ondot.cli.output import Format, show, show_answer, show_document, show_error, show_line
from ondot.cli.pages import gather, show_page
from ondot.model.errors import InvalidBody

Json = dict[str, Any]

NONE = "none"
NUMBERS = ("jobs", "payload_bytes", "concurrent", "reserved")

FLAGS = {
    "/name": "NAME",
    "/weight": "--weight",
    "/pools": "--pool",
    **{f"/quotas/{name}": f"--{name.replace('_', '-')}" for name in (*NUMBERS, "starts", "creates", "events")},
    "/targets/private_networks": "--private-network",
    "/targets/allow": "--allow-host",
    "/targets/deny": "--deny-host",
    "/retention_days": "--retention-days",
}

TenantName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="The tenant's name.", show_default=False, autocompletion=complete_names("tenant")
    ),
]
Weight = Annotated[float | None, typer.Option(help="Its share of a busy pool, beside other tenants. Default: 1.")]
Pool = Annotated[
    list[str] | None,
    typer.Option(metavar="POOL", help="A pool that it may name; may be given several times. * for all."),
]
Jobs = Annotated[str | None, typer.Option(metavar="N|none", help="Quota: live jobs.")]
PayloadBytes = Annotated[str | None, typer.Option(metavar="N|none", help="Quota: bytes of a payload.")]
Concurrent = Annotated[str | None, typer.Option(metavar="N|none", help="Quota: attempts that run at once.")]
Reserved = Annotated[str | None, typer.Option(metavar="N|none", help="Slots of each pool that are kept free for it.")]
Starts = Annotated[str | None, typer.Option(metavar="N/DURATION|none", help="Quota: attempts that start, as 200/1s.")]
Creates = Annotated[str | None, typer.Option(metavar="N/DURATION|none", help="Quota: jobs that are created.")]
PrivateNetwork = Annotated[
    list[str] | None,
    typer.Option(metavar="NETWORK", help="A private network that its calls may reach, as 10.1.0.0/16; none for none."),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="HOST|NETWORK", help="It may call only these; may be given several times. none for any."),
]
DenyHost = Annotated[
    list[str] | None, typer.Option(metavar="HOST|NETWORK", help="A host or network that it never calls; none for none.")
]
RetentionDays = Annotated[
    str | None,
    typer.Option(metavar="N|none", help="How long its history is kept, in days; none: as the installation's."),
]
Events = Annotated[str | None, typer.Option(metavar="N/DURATION|none", help="Quota: events that are sent.")]

app = typer.Typer(help="Tenants: who shares this installation. For owners.", no_args_is_help=True)


@app.command()
def create(
    name: TenantName,
    weight: Weight = None,
    pool: Pool = None,
    jobs: Jobs = None,
    payload_bytes: PayloadBytes = None,
    concurrent: Concurrent = None,
    reserved: Reserved = None,
    starts: Starts = None,
    creates: Creates = None,
    events: Events = None,
    private_network: PrivateNetwork = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    retention_days: RetentionDays = None,
    reason: Reason = None,
    yes: Yes = False,
    output: Output = Format.TABLE,
) -> None:
    """Create a tenant. Without --pool it may name the pool default.

    The second tenant ends answers without a key: asks first where the commands send none.
    """
    quotas = _quotas(
        jobs=jobs,
        payload_bytes=payload_bytes,
        concurrent=concurrent,
        reserved=reserved,
        starts=starts,
        creates=creates,
        events=events,
    )
    targets = _targets(private_networks=private_network, allow=allow_host, deny=deny_host)
    body = {"name": name, **_body(weight, pool, quotas, targets, retention_days)}
    ends_keyless = _is_keyless()
    if ends_keyless and not yes:
        _confirm_end_of_keyless(name)
    try:
        tenant = ask(lambda client: client.create_tenant(body, reason=reason))
    except InvalidBody as refusal:
        raise in_flags(refusal, FLAGS) from None
    show_answer(tenant, output, f"Created tenant {tenant['name']}. Next: ondot key create NAME --tenant {name}")
    if ends_keyless:
        show_error(
            "From now on every request needs a key. Create one for yourself, an owner's:"
            " ondot key create me --role owner. Then set ONDOT_API_KEY to it."
        )


def _is_keyless() -> bool:
    """Whether this command is answered without an API key, as of a server with one tenant and no users."""
    from ondot.model.keys import looks_like_a_key

    key = find_server().key
    # The token of a server without keys is sent as one.
    if key is not None and looks_like_a_key(key):
        return False
    return len(ask(lambda client: client.list_tenants(limit=2))["items"]) == 1


def _confirm_end_of_keyless(name: str) -> None:
    what = (
        f"With the tenant {name} this server stops answering without a key, within a second: commands, pages and"
        " programs that send none are refused. You need an owner's key then: ondot key create me --role owner."
    )
    if not sys.stdin.isatty():
        raise typer.BadParameter(f"{what} Create that key first, or add --yes.", param_hint="--yes")
    typer.confirm(f"{what} Create {name}?", abort=True, err=True)


@app.command("list")
def list_(
    deleted: Annotated[bool, typer.Option("--deleted", help="List deleted tenants instead.")] = False,
    limit: Limit = 1_000,
    output: Output = Format.TABLE,
) -> None:
    """List tenants."""
    state = {"state": "DELETED"} if deleted else {}
    page = ask(lambda client: gather(lambda paging: client.list_tenants(**paging, **state), limit))
    from ondot.cli.tenant_views import tenant_table

    show_page(page, output, tenant_table, none="No deleted tenants." if deleted else "No tenants.")


@app.command()
def get(name: TenantName, output: Output = Format.TABLE) -> None:
    """Show a tenant: its pools and its quotas with what it uses; of a deleted one, how far its rows are removed."""
    tenant = ask(lambda client: client.get_tenant(name))
    if not output.is_table:
        return show_document(tenant, output)
    usage = None if tenant["state"] == "DELETED" else ask(lambda client: client.get_usage(name))
    from ondot.cli.tenant_views import tenant_card

    return show(tenant_card(tenant, usage, datetime.now(UTC)))


@app.command()
def usage(name: TenantName, output: Output = Format.TABLE) -> None:
    """Show what a tenant uses of each pool and of its quotas, and which tenants it waits for."""
    found = ask(lambda client: client.get_usage(name))
    if not output.is_table:
        return show_document(found, output)
    from ondot.cli.tenant_views import usage_lines, usage_table

    for line in usage_lines(found):
        show_line(line)
    return show(usage_table(found), output)


@app.command()
def update(
    name: TenantName,
    weight: Weight = None,
    pool: Pool = None,
    jobs: Jobs = None,
    payload_bytes: PayloadBytes = None,
    concurrent: Concurrent = None,
    reserved: Reserved = None,
    starts: Starts = None,
    creates: Creates = None,
    events: Events = None,
    private_network: PrivateNetwork = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    retention_days: RetentionDays = None,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Change the weight, the pools or quotas of a tenant; `none` removes a quota. It takes effect within a second."""
    quotas = _quotas(
        jobs=jobs,
        payload_bytes=payload_bytes,
        concurrent=concurrent,
        reserved=reserved,
        starts=starts,
        creates=creates,
        events=events,
    )
    targets = _targets(private_networks=private_network, allow=allow_host, deny=deny_host)
    changes = _body(weight, pool, quotas, targets, retention_days)
    if not changes:
        raise typer.BadParameter("Name a change, for example --weight 2, --pool gpu or --jobs 100000.")
    try:
        tenant = ask(lambda client: client.patch_tenant(name, changes, reason=reason))
    except InvalidBody as refusal:
        raise in_flags(refusal, FLAGS) from None
    _show(tenant, output)


@app.command()
def suspend(name: TenantName, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Suspend a tenant: it can be read, and nothing of it is planned or started. Running work finishes."""
    tenant = ask(lambda client: client.suspend_tenant(name, reason=reason))
    show_answer(tenant, output, f"Suspended {name}. Resume it with: ondot tenant resume {name}")


@app.command()
def resume(name: TenantName, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Resume a suspended tenant. Each job's misfire policy decides about the fires of the suspension."""
    tenant = ask(lambda client: client.resume_tenant(name, reason=reason))
    show_answer(tenant, output, f"Resumed {name}.")


@app.command()
def delete(
    name: TenantName, yes: Yes = False, dry_run: DryRun = False, reason: Reason = None, output: Output = Format.TABLE
) -> None:
    """Delete a tenant with everything that it owns. This cannot be undone: asks for its name, unless --yes."""
    counts = ask(lambda client: client.count_tenant(name))
    if dry_run:
        return show_answer(counts, output, f"Would delete {name}: {_in_words(counts['counts'])}.")
    if not yes:
        if not sys.stdin.isatty():
            raise typer.BadParameter("This deletes everything of the tenant. Confirm with --yes.", param_hint="--yes")
        show_line(f"This deletes {name} for ever: {_in_words(counts['counts'])}.")
        if typer.prompt("Type the name of the tenant", err=True) != name:
            show_line("Not deleted.")
            raise typer.Exit(1)
    tenant = ask(lambda client: client.delete_tenant(name, reason=reason))
    return show_answer(tenant, output, f"Deleted {name}. Its rows go in the background: ondot tenant get {name}")


def _body(
    weight: float | None, pools: list[str] | None, quotas: Json, targets: Json, retention_days: str | None
) -> Json:
    body: Json = {}
    if weight is not None:
        body["weight"] = weight
    if pools:
        body["pools"] = pools
    if quotas:
        body["quotas"] = quotas
    if targets:
        body["targets"] = targets
    if retention_days is not None:
        body["retention_days"] = _number(retention_days, "--retention-days")
    return body


def _targets(**written: list[str] | None) -> Json:
    return {name: [] if value == ["none"] else value for name, value in written.items() if value}


def _quotas(**written: str | None) -> Json:
    return {name: _quota(name, value) for name, value in written.items() if value is not None}


def _quota(name: str, written: str) -> int | str | None:
    if written.lower() == NONE:
        return None
    return _number(written, FLAGS[f"/quotas/{name}"]) if name in NUMBERS else written


def _number(written: str, flag: str) -> int | None:
    if written.lower() == NONE:
        return None
    digits = written.replace("_", "").replace(",", "")
    if not (digits.isascii() and digits.isdecimal()):
        raise typer.BadParameter(f"{written!r} is not a number. Write, for example, 90, or none.", param_hint=flag)
    return int(digits[:18])


def _in_words(counts: Json) -> str:
    return ", ".join(_count_in_words(kind.replace("_", " "), count) for kind, count in counts.items())


def _count_in_words(kind: str, count: int | None) -> str:
    kind = "ended executions" if kind == "history" else kind
    return f"many {kind}" if count is None else f"{count:,} {kind.removesuffix('s') if count == 1 else kind}"


def _show(tenant: Json, output: Format) -> None:
    if not output.is_table:
        return show_document(tenant, output)
    from ondot.cli.tenant_views import tenant_table

    return show(tenant_table([tenant], datetime.now(UTC)), output)
