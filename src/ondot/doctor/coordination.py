"""Where schedulers hold their leases (C6): whether all use the same place, and whether etcd answers fast enough."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ondot.doctor.checks import Finding, count_of

if TYPE_CHECKING:
    from ondot.coordination.etcd_probe import Probe
    from ondot.settings import Settings
    from ondot.store.connection import Connection

CHECK: Final = "coordination"
SLOW_SHARE: Final = 0.05
"""Of a lease. A beat has three calls or so, and 0.2 of a lease for them."""
ADVICE: Final = (
    "Check that etcd runs and ONDOT_ETCD_URL is right. Schedulers go on by themselves when it answers:"
    " docs/guides/etcd.md."
)
PLACES: Final = {"postgres": "PostgreSQL"}


@dataclass(frozen=True, slots=True)
class Leases:
    """`kinds`: where each live node holds its lease. `away`: why some that run have none. `etcd`: None if its URL is
    not set here. `strangers`: nodes in etcd that the database does not know."""

    kinds: Sequence[str]
    away: Sequence[str]
    etcd: "Probe | None"
    strangers: int


async def check_coordination(connection: "Connection", settings: "Settings") -> Finding:
    from ondot.store.fleet import read_nodes

    etcd = await _probe(connection, settings)
    nodes = await read_nodes(connection)
    leases = Leases(
        [node.coordination for node in nodes.rows if node.is_alive],
        [node.away_why or "" for node in nodes.rows if node.is_away(nodes.now)],
        etcd,
        0 if etcd is None else len(set(etcd.nodes) - {node.id for node in nodes.rows}),
    )
    return judge_coordination(leases, settings)


async def _probe(connection: "Connection", settings: "Settings") -> "Probe | None":
    if settings.etcd_url is None:
        return None
    from ondot.coordination.etcd_keys import read_prefix
    from ondot.coordination.etcd_probe import probe_etcd

    return await probe_etcd(settings, await read_prefix(connection, settings))


def judge_coordination(leases: Leases, settings: "Settings") -> Finding:
    return _find_problem(leases) or _find_mixture(leases.kinds) or _judge_place(leases, settings)


def _find_problem(leases: Leases) -> Finding | None:
    if leases.etcd is not None and leases.etcd.why_not is not None:
        return Finding(CHECK, "problem", f"etcd does not answer: {leases.etcd.why_not.removesuffix('.')}.", ADVICE)
    if leases.away:
        message = f"{count_of(len(leases.away), 'scheduler')} without a lease. {leases.away[0].removesuffix('.')}."
        return Finding(CHECK, "problem", message, ADVICE)
    if leases.strangers:
        message = f"{count_of(leases.strangers, 'scheduler')} of another database use the same keys in etcd."
        advice = "Is that a copy of this database? Give it another path in ONDOT_ETCD_URL: docs/guides/etcd.md."
        return Finding(CHECK, "problem", message, advice)
    return None


def _find_mixture(kinds: Sequence[str]) -> Finding | None:
    counts = Counter(kinds)
    if len(counts) < 2:
        return None
    places = ", ".join(f"{count} in {PLACES.get(kind, kind)}" for kind, count in sorted(counts.items()))
    message = f"Schedulers hold their leases in different places: {places}. Those in PostgreSQL wait for the others."
    return Finding(CHECK, "warning", message, "Set the same ONDOT_COORDINATION for all of them.")


def _judge_place(leases: Leases, settings: "Settings") -> Finding:
    etcd = leases.etcd
    if settings.coordination == "postgres" and "etcd" not in leases.kinds:
        return Finding(CHECK, "ok", "Schedulers hold their leases in PostgreSQL.")
    if etcd is None:
        message = "Schedulers hold their leases in etcd. It is not checked: ONDOT_ETCD_URL is not set here."
        return Finding(CHECK, "ok", message)
    answers = f"etcd {etcd.version} answers within {etcd.slowest_s * 1000:.0f} ms"
    if etcd.ttl_s - settings.lease_s >= 1:
        message = f"{answers}. Its leases last at least {etcd.ttl_s} s, so takeovers wait longer than ONDOT_LEASE_S."
        return Finding(CHECK, "warning", message, f"Set ONDOT_LEASE_S to {etcd.ttl_s} or more.")
    if etcd.slowest_s > settings.lease_s * SLOW_SHARE:
        message = f"{answers}: slow for a lease of {settings.lease_s:g} s."
        return Finding(CHECK, "warning", message, "Check etcd's disk and network, or raise ONDOT_LEASE_S.")
    return Finding(CHECK, "ok", f"{answers}, and holds the leases of schedulers.")
