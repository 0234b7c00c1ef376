"""`ondot alert`: what people want to be notified of (O4).

`--when` is a kind with its thresholds, `failing:in_a_row=3`, or the JSON of the API.
"""

import json
import sys
from typing import Annotated, Any

import typer

from ondot.cli.body import in_flags
from ondot.cli.calling import ask
from ondot.cli.names import argument
from ondot.cli.options import Output, Reason, Yes
from ondot.cli.output import Format, show_answer, show_document, show_line
from ondot.cli.pages import show_page
from ondot.model.alerts.defaults import OF_INSTALLATION, OF_TENANT
from ondot.model.alerts.kinds import KINDS
from ondot.model.errors import Conflict, Forbidden, InvalidBody
from ondot.model.explain_facts import pluralize

PAGE = 1_000
NEVER = "never"
FLAGS = {"/when": "--when", "/for": "--for", "/repeat": "--repeat", "/notify": "--notify", "/name": "NAME"}

_HELP_WHEN = "KIND or KIND:NAME=VALUE,…; `ondot alert kinds` lists them."

AlertName = Annotated[str, argument("alert", "ALERT", "The alert: its name or its id.", by_name=True)]
When = Annotated[str, typer.Option(metavar="KIND[:…]", help=_HELP_WHEN, show_default=False)]
Labels = Annotated[
    list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Jobs with this label; again for more.")
]
Jobs = Annotated[list[str] | None, typer.Option("--job", metavar="NAME", help="A job's name, also with * and ?.")]
Pools = Annotated[list[str] | None, typer.Option("--pool", metavar="POOL", help="Jobs of this pool.")]
AllTenants = Annotated[bool, typer.Option("--all-tenants", help="The jobs of all tenants; for owners.")]
For = Annotated[str | None, typer.Option("--for", metavar="DURATION", help="How long it must hold.")]
Repeat = Annotated[str | None, typer.Option(metavar="DURATION", help="How often to remind, or `never`. Default: 4h.")]
Notify = Annotated[list[str] | None, typer.Option(metavar="CHANNEL", help="A channel; again for more.")]

app = typer.Typer(help="What to be notified of, and when.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="The alert's name.", show_default=False)],
    when: When,
    label: Labels = None,
    job: Jobs = None,
    pool: Pools = None,
    all_tenants: AllTenants = False,
    for_: For = None,
    repeat: Repeat = None,
    notify: Notify = None,
    preview: Annotated[bool, typer.Option("--preview", help="Only show what it would find now.")] = False,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Create an alert: `ondot alert create bi --when failing:in_a_row=3 --label team=bi --for 2m --notify ops`."""
    body = {"name": name, "when": _when(when), **_fields(label, job, pool, all_tenants, for_, repeat, notify)}
    if preview:
        return _show_preview(_ask(lambda client: client.preview_alert(body)), output)
    made = _ask(lambda client: client.create_alert(body, reason=reason))
    return show_answer(made, output, f"Created the alert {made['name']} ({made['id']}).")


@app.command("list")
def list_(output: Output = Format.TABLE) -> None:
    """List alerts by name."""
    page = ask(lambda client: client.list_alerts(limit=PAGE))
    from ondot.cli.alert_views import alert_table

    show_page(page, output, alert_table, none="No alerts. Create the usual ones with `ondot alert defaults`.")


@app.command("get")
def get(alert: AlertName, output: Output = Format.TABLE) -> None:
    """Show one alert."""
    found = ask(lambda client: client.get_alert(alert))
    if not output.is_table:
        return show_document(found, output)
    from ondot.cli.alert_views import show_alert

    return show_alert(found)


@app.command()
def update(
    alert: AlertName,
    when: Annotated[str | None, typer.Option(metavar="KIND[:…]", help=_HELP_WHEN)] = None,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    label: Labels = None,
    job: Jobs = None,
    pool: Pools = None,
    all_tenants: AllTenants = False,
    for_: For = None,
    repeat: Repeat = None,
    notify: Notify = None,
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Change an alert. --label, --job and --pool replace its whole scope. Open incidents go on under the new rules."""
    patch: dict[str, Any] = _fields(label, job, pool, all_tenants, for_, repeat, notify)
    if when is not None:
        patch["when"] = _when(when)
    if name is not None:
        patch["name"] = name
    if not patch:
        raise typer.BadParameter("Give at least one thing to change, for example --for 5m.")
    changed = _ask(lambda client: client.update_alert(alert, patch, reason=reason))
    show_answer(changed, output, f"Changed the alert {changed['name']}.")


@app.command()
def mute(
    alert: AlertName,
    for_: Annotated[str, typer.Option("--for", metavar="DURATION", help="How long; 0 ends it.")] = "1h",
    reason: Reason = None,
    output: Output = Format.TABLE,
) -> None:
    """Send no openings and no reminders for a while. Incidents are still recorded, and recoveries are sent."""
    muted = _ask(lambda client: client.mute_alert(alert, {"for": _duration(for_)}, reason=reason))
    until = muted["muted_until"]
    show_answer(muted, output, f"Muted {muted['name']} until {until}." if until else f"{muted['name']} is not muted.")


@app.command("delete")
def delete(alert: AlertName, yes: Yes = False, reason: Reason = None, output: Output = Format.TABLE) -> None:
    """Delete an alert. Its open incidents recover; their history stays."""
    if not yes and sys.stdin.isatty() and not typer.confirm(f"Delete {alert}? This cannot be undone.", err=True):
        raise typer.Exit(1)
    deleted = ask(lambda client: client.delete_alert(alert, reason=reason))
    show_answer(deleted, output, f"Deleted the alert {deleted['name']}.")


@app.command()
def kinds() -> None:
    """List the kinds of alerts, with an example of each; needs no server."""
    for kind in KINDS.values():
        values = ",".join(f"{each.name}={_example(each.example)}" for each in kind.thresholds)
        show_line(f"{kind.name + (':' + values if values else ''):44} {kind.says}")


@app.command()
def defaults(notify: Notify = None, reason: Reason = None) -> None:
    """Create the usual alerts, those that do not exist yet; with --notify they go to these channels."""
    for body in (*OF_TENANT, *OF_INSTALLATION):
        wanted = {**body, "notify": notify or []}
        try:
            _ask(lambda client, wanted=wanted: client.create_alert(wanted, reason=reason))
        except Conflict:
            show_line(f"exists   {body['name']}")
        except Forbidden:
            show_line(f"left out {body['name']}: it is for owners of the installation")
        else:
            show_line(f"created  {body['name']}")


def _fields(
    label: list[str] | None,
    job: list[str] | None,
    pool: list[str] | None,
    all_tenants: bool,
    for_: str | None,
    repeat: str | None,
    notify: list[str] | None,
) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    for written in label or []:
        name, equals, value = written.partition("=")
        if not equals:
            raise typer.BadParameter(f"--label {written!r}: write NAME=VALUE, for example team=bi.")
        scope.setdefault("labels", {}).setdefault(name, []).append(value)
    scope |= {name: values for name, values in (("jobs", job), ("pools", pool)) if values}
    if all_tenants:
        scope["tenant"] = "all"
    fields: dict[str, Any] = {"scope": scope} if scope else {}
    if for_ is not None:
        fields["for"] = _duration(for_)
    if repeat is not None:
        fields["repeat"] = None if repeat == NEVER else _duration(repeat)
    if notify is not None:
        fields["notify"] = notify
    return fields


def _when(written: str) -> Any:
    if written.lstrip().startswith("{"):
        try:
            return json.loads(written)
        except ValueError:
            raise typer.BadParameter(f"--when {written!r} is not JSON.") from None
    kind, _, rest = written.partition(":")
    values: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise typer.BadParameter(f"--when {written!r}: write KIND:NAME=VALUE, for example failing:in_a_row=3.")
        values[name.strip()] = _value(value.strip())
    return {kind.strip(): values}


def _value(text: str) -> Any:
    return {"true": True, "false": False}.get(text, _duration(text))


def _duration(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdecimal() else text


def _example(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _show_preview(found: dict[str, Any], output: Format) -> None:
    if found["would_open"]:
        first = "It would open an incident now."
    elif found["count"]:
        first = "It holds now, but not for long enough yet."
    else:
        first = "It would not open an incident now."
    lines = [first, *(f"- {cause['message']}" for cause in found["causes"])]
    if found["count"] > len(found["causes"]):
        lines.append(f"- and {found['count'] - len(found['causes']):,} more")
    opened = found["incidents_24h"]
    lines.append(
        f"In the last 24 hours alerts of this kind opened {pluralize(opened, 'incident')}, whatever their scope."
    )
    show_answer(found, output, "\n".join(lines))


def _ask(question: Any) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = ask(question)
    except InvalidBody as refusal:
        raise in_flags(refusal, FLAGS) from None
    return answer
