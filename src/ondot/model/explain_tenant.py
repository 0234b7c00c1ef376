"""Why an execution or a job waits for its tenant (E17, T2): it is suspended, a quota is reached, or others have a turn.

Other tenants are counted, and named only to an owner of the installation. An installation with one tenant without
quotas has no such reasons.
"""

from datetime import datetime

from ondot.model.explain_facts import Reason, TenantFacts, format_instant
from ondot.model.schedule.words import duration


def explain_suspension(name: str) -> Reason:
    message = f"Tenant {name} is suspended: nothing of it starts."
    advice = f"Ask an owner of the installation to resume it: `ondot tenant resume {name}`."
    return Reason("tenant_suspended", message, None, advice, {"tenant": name})


def explain_lost_pool(name: str, pool: str) -> Reason:
    """Not a wait: the job goes on in the pool, and its next change is refused."""
    message = (
        f"Tenant {name} may no longer name the pool {pool}: the job goes on there, and its next change is refused."
    )
    advice = "Give the job another pool, or ask an owner of the installation to grant this one again."
    return Reason("pool_not_granted", message, None, advice, {"tenant": name, "pool": pool})


def explain_quota(tenant: TenantFacts | None, token_at: datetime, now: datetime, ahead: str) -> Reason | None:
    """`token_at`: when its turn comes by the rate of its tenant; `ahead`: in words, how many go before it."""
    if tenant is None:
        return None
    name = tenant.name
    if tenant.is_stopped:
        return explain_suspension(name)
    if tenant.concurrent is not None and tenant.running >= tenant.concurrent:
        message = (
            f"Waiting for tenant {name}'s quota `concurrent`: {tenant.running:,} of {tenant.concurrent:,} run, in all"
            " pools."
        )
        advice = "Wait for one of them, or ask an owner of the installation for a larger quota."
        details = {"tenant": name, "quota": "concurrent", "limit": tenant.concurrent, "running": tenant.running}
        return Reason("tenant_concurrent", message, None, advice, details)
    if tenant.every_s is not None and token_at > now:
        message = (
            f"Waiting for tenant {name}'s quota `starts`, one every {duration(tenant.every_s)}: with {ahead} before it,"
            f" it may start at {format_instant(token_at)} at the earliest."
        )
        advice = "Wait for its turn, or ask an owner of the installation for a larger quota."
        details = {"tenant": name, "quota": "starts", "every_s": tenant.every_s, "token_at": token_at}
        return Reason("tenant_starts", message, token_at, advice, details)
    return None


def describe_turns(tenant: TenantFacts | None) -> tuple[str, dict[str, object]]:
    """Of a pool that is busy with the work of several tenants: a sentence, and the same as fields."""
    if tenant is None or not (tenant.others_wait or tenant.others):
        return "", {}
    held = sum(slots for _, slots in tenant.others)
    details: dict[str, object] = {"slots_of_other_tenants": held, "other_tenants_wait": tenant.others_wait}
    words = f" Other tenants hold {held:,} of the slots" if held else " Other tenants hold none of the slots"
    if tenant.names_others and tenant.others:
        words += f" ({', '.join(f'{name} {slots:,}' for name, slots in tenant.others)})"
        details["other_tenants"] = dict(tenant.others)
    if tenant.others_wait:
        words += " and have more work: its turn comes by its tenant's weight, for the time that each has had slots"
    return f"{words}.", details
