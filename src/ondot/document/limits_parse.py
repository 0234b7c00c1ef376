"""From the fields that hold a job back to the model (E12, E13, E16), and which of them go together.

What stands beside what is looked at in the body as it was written, so that it is told together with the faults of the
fields themselves. `unique`, `debounce` and `throttle` say what becomes of a job as it is created: of one that exists
they can be taken away, but not set.
"""

from collections.abc import Callable, Iterator, Mapping

from ondot.document.body import JobBody
from ondot.document.limits_body import RateBody
from ondot.document.shorthand import Path
from ondot.model.gates import Limits, Rate
from ondot.model.job import Debounce, JobSpec, Throttle, Unique

_INSTEAD = {
    "unique": "use `overlap`, so that its executions do not meet, or `key`, to have the job once",
    "debounce": "use `overlap` or `rate`",
    "throttle": "use `rate`",
}
"""What a job that recurs has in the place of these."""


def limits_of(body: JobBody) -> Limits | None:
    """None if nothing limits the job."""
    key_concurrency = body.key_concurrency
    if body.concurrency_key is not None and key_concurrency is None and body.key_rate is None:
        key_concurrency = 1
    limits = Limits(
        overlap=body.overlap,
        order_key=body.order_key,
        concurrency=body.concurrency,
        rate=_rate(body.rate),
        key=body.concurrency_key,
        key_concurrency=key_concurrency,
        key_rate=_rate(body.key_rate),
    )
    return None if limits == Limits() else limits


def unique_of(body: JobBody) -> Unique | None:
    return None if body.unique is None else Unique(key=body.unique.key, within_s=body.unique.within)


def debounce_of(body: JobBody) -> Debounce | None:
    if body.debounce is None:
        return None
    return Debounce(key=body.debounce.key, wait_s=body.debounce.wait, max_wait_s=body.debounce.max_wait)


def throttle_of(body: JobBody) -> Throttle | None:
    if body.throttle is None:
        return None
    return Throttle(key=body.throttle.key, per_s=body.throttle.per, limit=body.throttle.limit)


def company_faults(
    long: Mapping[str, object], name: Callable[[Path], str], *, is_new: bool
) -> Iterator[tuple[Path, str]]:
    """What must not stand together, or alone, in the long form of a body; `name` tells how a field was written."""
    schedule = long.get("schedule")
    recurs = isinstance(schedule, dict) and any(
        schedule.get(kind) is not None for kind in ("cron", "every", "rrule", "event")
    )
    for field, instead in (("key_concurrency", "concurrency"), ("key_rate", "rate")):
        if long.get(field) is not None and long.get("concurrency_key") is None:
            advice = f"give `concurrency_key` too, or `{instead}` for this job alone"
            yield (field,), f"`{name((field,))}` limits by a key: {advice}."
    for field, instead in _INSTEAD.items():
        if long.get(field) is None:
            continue
        if recurs:
            yield (field,), f"`{name((field,))}` is for jobs that run once, and this one recurs: {instead}."
        elif long.get("key") is not None:
            why = "a job whose `key` is taken becomes a new version of it"
            yield (field,), f"`{name((field,))}` and `key` do not go together: {why}; leave one of them out."
    first, *others = [field for field in _INSTEAD if long.get(field) is not None] or [""]
    for field in others:
        why = "each decides by itself whether the job runs"
        yield (field,), f"`{name((field,))}` and `{first}` do not go together: {why}; leave one of them out."
    if long.get("debounce") is not None and is_new and schedule is not None and not recurs:
        advice = f"leave out `{name(('schedule',))}`"
        yield ("debounce",), f"`{name(('debounce',))}` says itself when the job runs: {advice}."


def changed_at_creation(spec: JobSpec, current: JobSpec) -> Iterator[tuple[Path, str]]:
    """What a change of a job sets of that which only its creation can do."""
    for field in _INSTEAD:
        wanted, stored = getattr(spec, field), getattr(current, field)
        if wanted is not None and wanted != stored:
            advice = "leave it as it is, take it away with null, or create another job"
            yield (field,), f"`{field}` says what becomes of a job as it is created: {advice}."


def _rate(body: RateBody | None) -> Rate | None:
    return None if body is None else Rate(limit=body.limit, per_s=body.per, burst=body.burst)
