"""The options of a registered function (E4, E12, E13, E16), and the keys in them.

The options are the fields of a job's body, by the same names, so `document` checks them: as the module is imported, not
at the first enqueue. Only rules about functions are here. `concurrency` and `rate` limit the function: each enqueue
makes a job of its own, so they become limits by a key that all its jobs share, or by `concurrency_key` if there is one.
Workers register the options, and jobs that are made without the handler get them too (`sdk.declared`).
`unique`, `debounce` and `throttle` apply to a job that is enqueued; `overlap`, `key` and `pause_after_failures` to the
one that recurs. A key may be a template, which is filled from the arguments: `"customer:{customer_id}"`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal, TypedDict
from uuid import UUID

from ondot.model.duration import as_written, seconds
from ondot.model.errors import InvalidBody, InvalidSchedule
from ondot.model.gates import Overlap
from ondot.model.job import Priority
from ondot.model.key_templates import fill as fill  # noqa: PLC0414 - and as options know it
from ondot.model.key_templates import names_in as names_in  # noqa: PLC0414
from ondot.model.secret import is_secret_name
from ondot.model.text import MAX_NAME

Path = tuple[str, ...]
_INSTANT: Final = 'an aware datetime, or text in RFC 3339 such as "2030-01-31T09:00:00Z"'
Duration = timedelta | float | str
"""A timedelta, seconds, or text such as "90s", "15m", "1h30m"."""


class JobOptions(TypedDict, total=False):
    """The options of `@app.job`: fields of a job, which a test compares with them."""

    name: str | None
    """Under which workers know it; by default the function's name. One name, one function."""
    cron: str | None
    timezone: str | None
    every: Duration | None
    rrule: str | None
    event: Mapping[str, Any] | None
    jitter: Duration | None
    spread: Duration | None
    schedule: Mapping[str, Any] | None
    """The other fields of the schedule: `misfire`, `calendar`, `start_at` and more."""
    retries: int | None
    """How often a failed attempt is retried: `max_retries` of `retry`."""
    retry: Mapping[str, Any] | None
    timeout: Duration | None
    priority: Priority | None
    pool: str | None
    labels: Mapping[str, str] | None
    pause_after_failures: int | None
    metrics: bool | None
    key: str | None
    """Of the recurring job: your own id for it; by default `function:<name>`."""
    overlap: Overlap | None
    concurrency: int | None
    """How many of this function run at once, over all workers; with a `concurrency_key`, of one key."""
    rate: str | Mapping[str, Any] | None
    """How many of this function start in a time, such as "10/s"; with a `concurrency_key`, of one key."""
    concurrency_key: str | None
    key_concurrency: int | None
    key_rate: str | Mapping[str, Any] | None
    order_key: str | None
    start_deadline: Duration | None
    cancel_grace: Duration | None
    unique: str | Mapping[str, Any] | None
    debounce: Mapping[str, Any] | None
    throttle: Mapping[str, Any] | None
    expect: Mapping[str, Any] | None
    secrets: Sequence[str] | None
    """The names of the secrets that the function reads by `ctx.secret`."""


class WorkflowOptions(JobOptions, total=False):
    """The options of `@app.workflow`."""

    on_failure: Literal["block", "fail"] | None
    """Whether a step that failed for good blocks the run for a person, or ends it."""
    blocked_for: Duration | None
    """How long a BLOCKED run waits for a person."""


class EnqueueOptions(TypedDict, total=False):
    """The options of `handler.options(…)`: when a job runs, and what differs from the options of `@app.job`."""

    at: datetime | str | None
    """Run at this instant: an aware datetime, or RFC 3339 text."""
    in_: Duration | None
    """Run after this long."""
    after: Any
    """Run once these jobs have succeeded: a handle, an id or a key, or a list of them."""
    key: str | None
    """The key of the job, which may name arguments. To enqueue it again changes the job, as long as it has not started;
    then it is a Conflict."""
    retries: int | None
    """How often a failed attempt is retried: `max_retries` of `retry`."""
    retry: Mapping[str, Any] | None
    timeout: Duration | None
    priority: Priority | None
    pool: str | None
    labels: Mapping[str, str] | None
    concurrency_key: str | None
    key_concurrency: int | None
    key_rate: str | Mapping[str, Any] | None
    order_key: str | None
    start_deadline: Duration | None
    cancel_grace: Duration | None
    unique: str | Mapping[str, Any] | None
    debounce: Mapping[str, Any] | None
    throttle: Mapping[str, Any] | None


OF_A_CALL: Final = ("at", "in_", "after", "key")
"""Options of `handler.options(…)` that are not those of a function."""
OF_THE_HANDLER: Final = ("name", "secrets")
"""Options that are no fields of its jobs."""
SCHEDULES: Final[tuple[str, ...]] = ("cron", "every", "rrule", "event")
IN_SCHEDULE: Final[tuple[str, ...]] = (*SCHEDULES, "timezone", "jitter", "spread")
"""Options that are fields of the body's schedule."""

NAMED_ELSEWHERE: Final = {
    "countdown": ("in_",),
    "delay": ("in_",),
    "eta": ("at",),
    "expires": ("start_deadline",),
    "interval": ("every",),
    "max_instances": ("concurrency", "key_concurrency"),
    "queue": ("pool",),
    "queue_name": ("pool",),
    "rate_limit": ("rate", "key_rate"),
    "run_date": ("at",),
    "tags": ("labels",),
    "time_limit": ("timeout",),
}
"""What Celery, APScheduler, Dramatiq and others call an option."""

RECURRING_ONLY: Final = ("overlap", "key", "pause_after_failures", "expect", "metrics")
COUNTS: Final = ("retries", "pause_after_failures", "concurrency", "key_concurrency")
"""Options that are whole numbers: a timedelta would become one."""
ENQUEUED_ONLY: Final = ("unique", "debounce", "throttle")
KEYS: Final = ("concurrency_key", "order_key")
MAY_BE_EMPTY: Final = ("schedule", "retry", "labels")

BY_KEY: Final = {"concurrency": "key_concurrency", "rate": "key_rate"}
"""Limits of the function, and their names in the bodies of its jobs."""


def read_secrets(names: object) -> tuple[str, ...]:
    """The names of the secrets that a function declares."""
    if names is None:
        return ()
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise TypeError(f'`secrets` is a list of names of secrets, such as ["stripe"], got {names!r:.60}.')
    if wrong := [name for name in names if not isinstance(name, str) or not is_secret_name(name)]:
        raise ValueError(f"{wrong[0]!r:.60} is not the name of a secret: use lower-case letters, digits, _ . and -.")
    return tuple(dict.fromkeys(names))


def read_options(options: Mapping[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The options of the function of this name as fields of a body, and its schedule; None is left out.

    Raises TypeError for an option that does not exist or does not fit beside another, InvalidSchedule for a schedule,
    and ValueError for any other value that a job cannot have.
    """
    _check_names(options, JobOptions.__annotations__)
    given = {option: _to_json(option, value) for option, value in options.items() if option not in OF_THE_HANDLER}
    given = {
        option: value
        for option, value in given.items()
        if value is not None and (value != {} or option not in MAY_BE_EMPTY)
    }
    origins: dict[Path, Path] = {("schedule", option): (option,) for option in IN_SCHEDULE if option in given}
    schedule = _take_schedule(given)
    _check_company(given, recurs=schedule is not None)
    if "retries" in given:
        origins["retry", "max_retries"] = ("retries",)
        given["retry"] = given.get("retry", {}) | {"max_retries": given.pop("retries")}
    if given or schedule:
        _check_bodies(given, schedule, name, origins)
    return given, schedule


def read_enqueue_options(options: Mapping[str, Any], name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a job with these options, on top of those that the function of this name has.

    Raises TypeError for an option that does not exist or does not fit beside another, and ValueError for a value that a
    job cannot have.
    """
    for option in options:
        if option in JobOptions.__annotations__ and option not in EnqueueOptions.__annotations__:
            raise TypeError(f"{name}: `{option}` is for all jobs of the function: write it in @app.job.")
    try:
        _check_names(options, EnqueueOptions.__annotations__)
        given = {option: _to_json(option, value) for option, value in options.items() if option not in OF_A_CALL}
        given = {option: value for option, value in given.items() if value is not None}
        _check_company(given, recurs=False)
        if "retries" in given:
            given["retry"] = given.get("retry", {}) | {"max_retries": given.pop("retries")}
        if given:
            _check_bodies(given, None, name, {("retry", "max_retries"): ("retries",)})
        for option in ("retry", "labels"):
            if option in given and option in fields:
                given[option] = {**fields[option], **given[option]}
        of_call = _of_call(options, is_debounced="debounce" in given or "debounce" in fields)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    return {**fields, **given, **of_call}


def _check_names(options: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    for option in options:
        if option not in known:
            if option in OF_A_CALL and known is JobOptions.__annotations__:
                raise TypeError(f"`{option}` is for single jobs: write f.options({option}=…).enqueue(…).")
            named = [name for name in NAMED_ELSEWHERE.get(option, ()) if name in known]
            close = named or get_close_matches(option, known, n=1)
            advice = f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(known)}."
            raise TypeError(f"A job has no option `{option}`; {advice}")


def _of_call(options: Mapping[str, Any], *, is_debounced: bool) -> dict[str, Any]:
    """When a job runs, after which others, and its key, as fields of its body."""
    at, in_, after, key = (options.get(option) for option in OF_A_CALL)
    fields: dict[str, Any] = {}
    if at is not None and in_ is not None:
        raise TypeError("`at` and `in_` both say when it runs; leave one out.")
    if is_debounced and (at is not None or in_ is not None):
        raise TypeError("`debounce` decides when the job runs; leave out `at` and `in_`.")
    if at is not None:
        fields["schedule"] = {"at": instant_text(at)}
    if in_ is not None:
        fields["schedule"] = {"in": seconds_of("in_", in_)}
    if after is not None:
        fields["depends_on"] = _parents(after)
    if key is not None:
        if not isinstance(key, str) or not key:
            raise TypeError(f'`key` must be text, such as "invoice:7", got {key!r:.60}.')
        fields["key"] = key
    return fields


def _parents(after: Any) -> list[str]:
    """The ids or keys of jobs: of handles, of answers of the API, or as they are."""
    parents = after if isinstance(after, list | tuple | set | frozenset) else [after]
    ids = [parent.get("id") if isinstance(parent, Mapping) else getattr(parent, "id", parent) for parent in parents]
    if wrong := [parent for parent, id_ in zip(parents, ids, strict=True) if not isinstance(id_, str | UUID)]:
        raise TypeError(f"`after` takes jobs: handles, ids or keys, got {wrong[0]!r:.60}.")
    return [str(id_) for id_ in ids]


def instant_text(at: object) -> str:
    """The instant as it is written in a body."""
    if isinstance(at, str):
        try:
            at = datetime.fromisoformat(at)
        except ValueError:
            raise ValueError(f"`at` must be {_INSTANT}, got {at!r:.80}.") from None
    if not isinstance(at, datetime):
        raise TypeError(f"`at` must be {_INSTANT}, got {at!r:.80}.")
    if at.tzinfo is None:
        raise ValueError("`at` must have a time zone: tzinfo=UTC for a datetime, Z or +01:00 at the end of text.")
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def seconds_of(option: str, duration: object) -> int | float:
    try:
        return as_written(seconds(_to_json(option, duration)))
    except ValueError as error:
        raise ValueError(f"`{option}` must be {error}, got {duration!r:.80}.") from None


def _to_json(option: str, value: Any) -> Any:
    """The value as JSON has it: durations as seconds, exceptions by the name of their type, as an error has it."""
    match value:
        case timedelta() if option in COUNTS:
            raise ValueError(f"`{option}` must be a whole number, got {value!r:.80}.")
        case timedelta():
            return as_written(value.total_seconds())
        case type() if issubclass(value, BaseException):
            return value.__qualname__
        case BaseException():
            raise ValueError(
                f"`{option}` must name types of exceptions, got an instance: write {type(value).__name__}."
            )
        case Mapping():
            if other := [name for name in value if not isinstance(name, str)]:
                raise TypeError(f"`{option}` must be a mapping with text as names, got {other[0]!r:.80}.")
            # None is left out, as everywhere in the options; but a label has to be text.
            return {
                name: _to_json(f"{option}.{name}", inner)
                for name, inner in value.items()
                if inner is not None or option == "labels"
            }
        case list() | tuple() | set() | frozenset():
            return [_to_json(option, entry) for entry in value]
    return value


def _take_schedule(given: dict[str, Any]) -> dict[str, Any] | None:
    """The schedule that the options ask for, taken out of them."""
    schedule: dict[str, Any] = {option: given.pop(option) for option in IN_SCHEDULE if option in given}
    more = given.pop("schedule", {})
    if not isinstance(more, dict):
        raise TypeError(f'`schedule` must be a mapping such as {{"misfire": {{"policy": "all"}}}}, got {more!r:.80}.')
    kinds = [kind for kind in SCHEDULES if kind in schedule]
    if len(kinds) > 1:
        raise TypeError(f"`{kinds[0]}` and `{kinds[1]}` are two schedules, and a job has one; leave one out.")
    if "timezone" in schedule and "cron" not in schedule and "rrule" not in schedule:
        raise TypeError("`timezone` needs `cron` or `rrule`: intervals measure real time.")
    if not kinds and (schedule or more):
        raise TypeError(
            f"`{next(iter(schedule), 'schedule')}` is part of a schedule; add `cron`, `every`, `rrule` or `event`."
        )
    if twice := schedule.keys() & more.keys():
        raise TypeError(f"`{min(twice)}` is given twice, alone and in `schedule`; leave one out.")
    return schedule | more or None


def _check_company(given: Mapping[str, Any], *, recurs: bool) -> None:
    """Rules about functions, which the fields of a job do not have."""
    if "overlap" in given and not recurs:
        raise TypeError(
            "`overlap` is about the fires of one job, and each enqueue makes a job of its own. Use `concurrency` or "
            "`throttle`, or add `cron`, `every`, `rrule` or `event`."
        )
    for option in RECURRING_ONLY:
        if option in given and not recurs:
            raise TypeError(f"`{option}` is for a job that recurs; add `cron`, `every`, `rrule` or `event`.")
    for option, by_key in BY_KEY.items():
        if option in given and by_key in given:
            raise TypeError(
                f"With a `concurrency_key`, `{option}` is the limit of each key, as is `{by_key}`; leave one out."
            )
    retry = given.get("retry", {})
    if "retries" in given and (not isinstance(retry, dict) or "max_retries" in retry):
        raise TypeError("`retries` is given twice, alone and in `retry`; leave one out.")


def _check_bodies(
    given: Mapping[str, Any],
    schedule: Mapping[str, Any] | None,
    name: str,
    origins: Mapping[Path, Path],
) -> None:
    """Read the bodies that the options make as a server would: of an enqueue, and of the job that recurs."""
    from ondot.document.parse import job_spec  # here: a program without options need not load pydantic

    fields = with_keys_filled(given, _sample)
    bodies = [without(fields, RECURRING_ONLY)]
    if schedule is not None:
        bodies.append(without(fields, ENQUEUED_ONLY) | {"schedule": schedule})
    for body in bodies:
        try:
            whole = {"name": name, "target": {"function": name}, **body}
            job_spec(whole, datetime.now(UTC), may_be_over=True, origins=origins)
        except InvalidSchedule:
            raise
        except InvalidBody as refusal:
            raise ValueError(refusal.message) from None


def _sample(_: str, template: str) -> str:
    """A template as it may be once it is filled. One that cannot be filled is the handler's to reject."""
    try:
        return fill(template, dict.fromkeys(names_in(template), 0))
    except ValueError:
        return template


def without(fields: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def of_function(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The options, with the limits of the function as limits by a key: its own, or one that all its jobs share."""
    done = {BY_KEY.get(option, option): value for option, value in options.items()}
    if "concurrency_key" not in done and not done.keys().isdisjoint(BY_KEY.values()):
        key = f"function:{name}"
        if len(key) > MAX_NAME:
            raise ValueError(f"{name}: this name is too long to limit it by; choose another, or a `concurrency_key`.")
        # A name is no template.
        done["concurrency_key"] = key.replace("{", "{{").replace("}", "}}")
    return done


def templates(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of these options, each with its option."""
    for name in (*KEYS, *ENQUEUED_ONLY):
        option = options.get(name)
        key = option.get("key") if isinstance(option, Mapping) else option
        if isinstance(key, str):
            yield name, key


def with_keys_filled(options: Mapping[str, Any], fill_key: Callable[[str, str], str]) -> dict[str, Any]:
    """The options with each template filled; `fill_key` gets the option and its template."""
    done = dict(options)
    for name, template in templates(options):
        value, key = options[name], fill_key(name, template)
        done[name] = {**value, "key": key} if isinstance(value, Mapping) else key
    return done
