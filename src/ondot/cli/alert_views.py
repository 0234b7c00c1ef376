"""Alerts and incidents in a terminal."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from ondot.cli.listing import Listing
from ondot.cli.output import card, cell, show, state_cell, table, time_line, when
from ondot.cli.views import relative_of

Json = dict[str, Any]


def alert_table(alerts: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("NAME", "WHEN", "SCOPE", "FOR", "NOTIFIES", "MUTED", "ID"),
        drop=("FOR", "SCOPE", "NOTIFIES"),
        whole=("FOR",),
        wide=("MUTED", "ID"),
    )
    for alert in alerts:
        muted = _muted(alert, now)
        drawn.add_row(
            cell(alert["name"], style="bold"),
            _when_in_words(alert["when"]),
            scope_in_words(alert["scope"]),
            f"{alert['for']:g} s",
            "muted" if muted else ", ".join(alert["notify"]) or "nobody",
            muted,
            alert["id"],
        )
    return drawn


def show_alert(alert: Json) -> None:
    now = datetime.now(UTC)
    repeat = alert["repeat"]
    show(
        card(
            [
                ("alert", alert["name"]),
                ("id", alert["id"]),
                ("when", _when_in_words(alert["when"])),
                ("scope", scope_in_words(alert["scope"])),
                ("for", f"{alert['for']:g} s"),
                ("reminds", "never" if repeat is None else f"every {repeat:g} s"),
                ("notifies", ", ".join(alert["notify"]) or "nobody"),
                ("muted", _muted(alert, now)),
                ("created", time_line(alert["created_at"], now)),
                ("by", alert["created_by"]),
            ]
        )
    )


def incident_table(incidents: Iterable[Json], now: datetime) -> Listing:
    drawn = table(
        *("STATE", "SINCE", "INCIDENT", "ID", "ACKNOWLEDGED BY", "NOTE"),
        drop=("SINCE",),
        whole=("STATE", "SINCE", "ID"),
        wide=("ACKNOWLEDGED BY", "NOTE"),
    )
    for incident in incidents:
        drawn.add_row(
            state_cell(incident["state"]),
            when(incident["since"], now),
            cell(incident["title"], style="bold"),
            incident["id"],
            incident["acknowledged_by"],
            incident["note"],
        )
    return drawn


def show_incident(incident: Json) -> None:
    now = datetime.now(UTC)
    show(
        card(
            [
                ("incident", incident["title"]),
                ("id", incident["id"]),
                ("state", state_cell(incident["state"])),
                ("alert", incident["alert"]),
                ("since", time_line(incident["since"], now)),
                ("opened", time_line(incident["opened_at"], now)),
                ("acknowledged", _by(incident["acknowledged_at"], incident["acknowledged_by"], now)),
                ("resolved", _by(incident["resolved_at"], incident["resolved_by"] or "itself", now)),
                ("came back", f"{incident['reopened']} times" if incident["reopened"] else None),
                ("causes", f"{incident['causes']:,}, {incident['holding']:,} hold now"),
                ("note", incident["note"]),
            ]
        )
    )
    drawn = table("CAUSE", "SINCE", "ENDED", "TO LOOK INTO IT", drop=("ENDED", "SINCE"), whole=("SINCE", "ENDED"))
    for cause in incident["first_causes"]:
        drawn.add_row(
            cell(cause["message"]),
            cell(relative_of(cause["since"], now)),
            cell(relative_of(cause["ended_at"], now) if cause["ended_at"] else "holds"),
            cell(str(cause["details"].get("command", "-"))),
        )
    show(drawn)
    if not incident["deliveries"]:
        return
    drawn = table("MESSAGE", "CHANNEL", "STATE", "SENT", "ERROR", drop=("ERROR", "SENT"), whole=("STATE", "SENT"))
    for message in incident["deliveries"]:
        drawn.add_row(
            message["kind"],
            message["channel"],
            state_cell(message["state"]),
            cell(relative_of(message["created_at"], now)),
            cell(message["error"] or "-"),
        )
    show(drawn)


def scope_in_words(scope: Json) -> str:
    parts = [f"{name}={'|'.join(values)}" for name, values in scope.get("labels", {}).items()]
    parts += list(scope.get("jobs", []))
    parts += [f"pool {pool}" for pool in scope.get("pools", [])]
    if scope.get("tenant"):
        parts.append("all tenants")
    return ", ".join(parts) or "all jobs"


def _when_in_words(when: Json) -> str:
    [(kind, thresholds)] = when.items()
    values = ", ".join(f"{name} {value}" for name, value in thresholds.items())
    return f"{kind}: {values}" if values else str(kind)


def _muted(alert: Json, now: datetime) -> str | None:
    until = alert["muted_until"]
    is_muted = until is not None and datetime.fromisoformat(until) > now
    return f"muted until {until}" if is_muted else None


def _by(at: str | None, by: str | None, now: datetime) -> str | None:
    return None if at is None else f"{relative_of(at, now)} by {by}"
