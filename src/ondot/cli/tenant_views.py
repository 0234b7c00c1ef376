"""Tenants in a terminal."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ondot.cli.listing import Listing
from ondot.cli.output import card, cell, state_cell, table, time_line
from ondot.cli.views import rate_in_words

if TYPE_CHECKING:
    from rich.table import Table

Json = dict[str, Any]


def tenant_table(tenants: Iterable[Json], _now: datetime) -> Listing:
    drawn = table(
        *("NAME", "STATE", "WEIGHT", "POOLS", "QUOTAS", "REMOVAL"),
        drop=("WEIGHT", "POOLS"),
        whole=("STATE", "WEIGHT"),
        wide=("REMOVAL",),
    )
    for tenant in tenants:
        removal = tenant["removal"]
        drawn.add_row(
            cell(tenant["name"], style="bold"),
            state_cell(tenant["state"]),
            f"{tenant['weight']:g}",
            ", ".join(tenant["pools"]),
            ", ".join(quotas_in_words(tenant["quotas"])) or "none",
            None if removal is None else removal_in_words(removal),
        )
    return drawn


def tenant_card(tenant: Json, usage: Json | None, now: datetime) -> "Table":
    """`usage`: None of a deleted tenant."""
    quotas, targets, removal = tenant["quotas"], tenant["targets"], tenant["removal"]
    return card(
        [
            ("tenant", tenant["name"]),
            ("state", state_cell(tenant["state"])),
            ("removal", None if removal is None else removal_in_words(removal)),
            ("weight", f"{tenant['weight']:g}"),
            ("pools", ", ".join(tenant["pools"])),
            *((f"quota {name}", _quota_in_words(name, quota, usage)) for name, quota in quotas.items()),
            ("quotas", None if quotas else "none"),
            ("running", None if usage is None or "concurrent" in quotas else f"{usage['running']:,}"),
            ("waiting", None if usage is None else f"{sum(pool['waiting'] for pool in usage['pools']):,}"),
            *((f"targets {name.replace('_', ' ')}", ", ".join(hosts) or None) for name, hosts in targets.items()),
            ("history kept", None if tenant["retention_days"] is None else f"{tenant['retention_days']:,} days"),
            ("created", time_line(tenant["created_at"], now)),
            ("deleted", time_line(tenant["deleted_at"], now)),
        ]
    )


def _quota_in_words(name: str, quota: int | Json, usage: Json | None) -> str | None:
    if isinstance(quota, dict):
        used_up = usage is not None and name == "starts" and usage["next_start_at"] is not None
        return f"{rate_in_words(quota)}{', used up' if used_up else ''}"
    return f"{quota:,}, {usage['running']:,} running" if name == "concurrent" and usage is not None else f"{quota:,}"


def quotas_in_words(quotas: Json) -> list[str]:
    return [
        f"{name} {rate_in_words(quota) if isinstance(quota, dict) else f'{quota:,}'}" for name, quota in quotas.items()
    ]


def removal_in_words(removal: Json) -> str:
    if removal["done_at"] is not None:
        return f"{removal['rows']:,} rows removed"
    return f"{removal['rows']:,} rows removed, {removal['share']:.0%} of this round"


def usage_lines(usage: Json) -> list[str]:
    """What it uses of its quotas, in words."""
    quotas = usage["quotas"]
    ceiling = f" of {quotas['concurrent']:,}" if "concurrent" in quotas else ""
    lines = [f"Tenant {usage['name']}, weight {usage['weight']:g}: {usage['running']:,}{ceiling} running."]
    if usage["next_start_at"] is not None:
        lines.append(f"Its quota starts is used up until {usage['next_start_at']}.")
    return lines


def usage_table(usage: Json) -> Listing:
    drawn = table(
        *("POOL", "RUNNING", "FAIR SHARE", "WAITING", "RUNNING OF ALL", "WAITS FOR"),
        drop=("RUNNING OF ALL", "FAIR SHARE", "WAITS FOR"),
        whole=("RUNNING", "FAIR SHARE", "WAITING", "RUNNING OF ALL"),
    )
    for pool in usage["pools"]:
        fair = pool["fair_slots"]
        drawn.add_row(
            cell(pool["name"], style="bold"),
            f"{pool['running']:,} of {pool['slots']:,} slots",
            "" if fair is None else f"{fair:,.1f}",
            f"{pool['waiting']:,} of {pool['waiting_of_all']:,}",
            f"{pool['running_of_all']:,}",
            ", ".join(f"{one['name']} {one['running']:,}" for one in pool["waits_for"] or ()),
        )
    return drawn
