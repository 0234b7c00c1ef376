"""Short forms, for a newcomer's first curl and for bodies that people bring from other tools.

`to_long_form` turns each into the long form, and all other code knows only that. `LongForm.origins` remembers the field
that was written, so that a fault in the long form points at it. A short form beside its long form, or two short forms
of one field, are rejected with a message that names both: ondot does not guess which one was meant.
"""

from dataclasses import dataclass, field
from typing import Final

from ondot.model.gates import split_rate
from ondot.model.workflow.spec import MAX_STEPS

Path = tuple[str, ...]

SHORT: Final[dict[str, Path]] = {
    "cron": ("schedule", "cron"),
    "cron_expression": ("schedule", "cron"),
    "every": ("schedule", "every"),
    "at": ("schedule", "at"),
    "run_at": ("schedule", "at"),
    "schedule_at": ("schedule", "at"),
    "in": ("schedule", "in"),
    "delay": ("schedule", "in"),
    "timezone": ("schedule", "timezone"),
    "url": ("target", "http", "url"),
    "callback_url": ("target", "http", "url"),
    "function": ("target", "function"),
    "command": ("target", "shell", "command"),
    "steps": ("target", "workflow", "steps"),
    "on_failure": ("target", "workflow", "on_failure"),
    "blocked_for": ("target", "workflow", "blocked_for"),
    "max_retries": ("retry", "max_retries"),
    "timeout_s": ("timeout",),
    "timeout_sec": ("timeout",),
    "timeout_seconds": ("timeout",),
}
"""Fields that only move to another place."""

OTHER_SHORT: Final[dict[str, Path]] = {
    "type": ("schedule",),
    "handler": ("target",),
    "retry_policy": ("retry",),
}
"""Fields that are read according to their value."""

SHORT_NAMES: Final = frozenset({*SHORT, *OTHER_SHORT})

SCHEDULE_KINDS: Final = ("cron", "every", "at", "in", "rrule", "event")
TARGET_KINDS: Final = ("http", "function", "shell", "workflow", "grpc", "publish")
ATTEMPT_KINDS: Final = ("http", "function", "shell", "grpc", "publish")
"""Of them those that a step may have."""
STEPS: Final = ("target", "workflow", "steps")

# The kind of a `"schedule": "text"`, the kinds that may be given with the type, and an example.
_TYPES: Final[dict[str, tuple[str, frozenset[str], str]]] = {
    "CRON": ("cron", frozenset({"cron"}), '"schedule": "0 3 * * *"'),
    "ONE_TIME": ("at", frozenset({"at", "in"}), '"schedule": "2030-01-31T09:00:00Z"'),
    "INTERVAL": ("every", frozenset({"every"}), '"schedule": "15m"'),
    "DELAYED": ("in", frozenset({"in", "at"}), '"schedule": "10m"'),
}
# Values of `type` that mean the target.
_TARGETS: Final = ("http", "HTTP", "webhook", "WEBHOOK", "function", "shell")
_PLACES: Final = frozenset({"schedule", "target", "retry"})
_PRIORITIES: Final = {"medium": "normal", "high": "high", "normal": "normal", "low": "low"}
_BACKOFFS: Final = {
    "constant": "fixed",
    **{name: name for name in ("exponential", "linear", "fixed", "listed")},
}
# `forbid` and `replace` are the words of Kubernetes CronJobs.
_OVERLAPS: Final = {
    "forbid": "skip",
    "replace": "cancel",
    **{name: name for name in ("allow", "skip", "queue", "cancel")},
}
_MILLISECONDS: Final = {"initial_delay_ms": "initial", "max_delay_ms": "max"}
_LONGEST_MS: Final = 10**12


@dataclass(slots=True)
class LongForm:
    """The long form, the path at which each moved field was written, and faults."""

    body: dict[str, object]
    origins: dict[Path, Path] = field(default_factory=dict)
    faults: list[tuple[Path, str]] = field(default_factory=list)
    is_patch: bool = False  # in a patch, null resets a field

    def put(self, path: Path, value: object, origin: Path) -> None:
        node = self.body
        for depth, segment in enumerate(path[:-1], start=1):
            below = node.get(segment)
            if below is None:
                below = node[segment] = {}
            if not isinstance(below, dict):
                self._reject_both(path[:depth], origin)
                return
            node = below
        if node.get(path[-1]) is not None:
            self._reject_both(path, origin)
            return
        node[path[-1]] = value
        self.origins[path] = origin

    def _reject_both(self, path: Path, origin: Path) -> None:
        other = self.origins.get(path, path)
        message = f"`{'.'.join(other)}` and `{'.'.join(origin)}` mean the same field; give one of them."
        self.faults.append((origin, message))


def to_long_form(body: dict[str, object], *, is_patch: bool = False, is_step: bool = False) -> LongForm:
    """The long form of a body in snake_case, which is not changed; faults have the paths of the short form.

    A step of a workflow has the short forms of a job, and no steps.
    """
    long = LongForm({}, is_patch=is_patch)
    short: list[str] = []
    for name, value in body.items():
        if name in SHORT_NAMES:
            short.append(name)
        else:
            # Copies, so that the caller's body is not changed.
            long.body[name] = dict(value) if isinstance(value, dict) and name in _PLACES else value
    _lengthen_target(long)
    if "type" in body or isinstance(body.get("schedule"), (str, int, float)):
        _lengthen_type(long, body)
    for name in short:
        _lengthen_field(long, name, body[name])
    if not is_patch:
        _reject_null_schedule(long, body)
    if "type" in body:
        _compare_with_type(long, body["type"])
    _lengthen_limits(long)
    _lower(long)
    if not is_step:
        _lengthen_steps(long)
    return long


def _lengthen_steps(long: LongForm) -> None:
    target = long.body.get("target")
    workflow = target.get("workflow") if isinstance(target, dict) else None
    steps = workflow.get("steps") if isinstance(workflow, dict) else None
    if not isinstance(workflow, dict) or not isinstance(steps, dict) or len(steps) > MAX_STEPS:
        return
    lengthened: dict[str, object] = {}
    written_at = long.origins.get(STEPS, STEPS)
    for name, step in steps.items():
        if isinstance(step, dict):
            inner = to_long_form(step, is_patch=long.is_patch, is_step=True)
            lengthened[name] = inner.body
            for path, origin in inner.origins.items():
                long.origins[*STEPS, name, *path] = (*written_at, name, *origin)
            long.faults += [((*written_at, name, *path), message) for path, message in inner.faults]
        else:
            lengthened[name] = step
    workflow["steps"] = lengthened


def _lengthen_field(long: LongForm, name: str, value: object) -> None:
    if name == "retry_policy":
        _lengthen_retry_policy(long, value)
    elif name == "handler" and value is not None:
        _lengthen_handler(long, value, (name,))
    elif name in SHORT:
        path = SHORT[name]
        # null means no schedule or no target; for a timeout or retries it means the default.
        if value is not None or long.is_patch or path[0] not in {"schedule", "target"}:
            long.put(path, value, (name,))


def _reject_null_schedule(long: LongForm, body: dict[str, object]) -> None:
    """A template that filled in nothing must not start a job at once that was to wait."""
    if long.body.get("schedule") is None:
        for name, value in body.items():
            if value is None and SHORT.get(name, ("",))[0] == "schedule" and SHORT[name][1] in SCHEDULE_KINDS:
                message = f"`{name}` is null, and a job without a schedule runs at once: leave it out if you want that."
                long.faults.append(((name,), message))


def _lengthen_handler(long: LongForm, value: object, origin: Path) -> None:
    if not isinstance(value, str):
        message = f"`{'.'.join(origin)}` must be text: a function's name, or an address that starts with https://."
        long.faults.append((origin, message))
    elif value.lower().startswith(("http://", "https://")):
        long.put(("target", "http", "url"), value, origin)
    else:
        long.put(("target", "function"), value, origin)


def _lengthen_target(long: LongForm) -> None:
    target = long.body.get("target")
    if not isinstance(target, dict):
        return
    for kind, content in target.items():
        target[kind] = dict(content) if isinstance(content, dict) else content
    named = target.get("function")
    if isinstance(named, dict) and named.keys() == {"name"}:
        target["function"] = named["name"]
        long.origins["target", "function"] = ("target", "function", "name")
    if (pool := target.pop("pool", None)) is not None:
        long.put(("pool",), pool, ("target", "pool"))
    if (handler := target.pop("handler", None)) is not None:
        _lengthen_handler(long, handler, ("target", "handler"))


def _lengthen_type(long: LongForm, body: dict[str, object]) -> None:
    """`"schedule"` as text or a number, whose kind is given by `"type"`."""
    schedule = body.get("schedule")
    if not isinstance(schedule, (str, int, float)) or isinstance(schedule, bool):
        return
    del long.body["schedule"]
    if "type" not in body:
        advice = 'write {"cron": "0 3 * * *"} or {"every": "15m"}, or add "type": "CRON"'
        long.faults.append((("schedule",), f"`schedule` must be an object: {advice}."))
    elif (known := _type(body["type"])) is not None:
        long.put(("schedule", known[0]), schedule, ("schedule",))


def _compare_with_type(long: LongForm, written: object) -> None:
    known = _type(written)
    if known is None:
        advice = "give the target as `target`, `url`, `function` or `command`" if written in _TARGETS else ""
        names = ", ".join(_TYPES)
        message = f"`type` is the kind of schedule: one of {names}; it may be left out"
        long.faults.append((("type",), f"{message}; {advice}." if advice else f"{message}."))
        return
    _, allowed, example = known
    schedule = long.body.get("schedule")
    given = [kind for kind in SCHEDULE_KINDS if isinstance(schedule, dict) and schedule.get(kind) is not None]
    if not given and "at" not in allowed and not any(path[0] == "schedule" for path, _ in long.faults):
        long.faults.append((("type",), f"`type` {written} needs a schedule: add {example}."))
    for kind in given:
        if kind not in allowed:
            given_as = ".".join(long.origins.get(("schedule", kind), ("schedule", kind)))
            message = f"`type` is {written}, but `{given_as}` is given; leave one of them out."
            long.faults.append((("type",), message))


def _type(written: object) -> tuple[str, frozenset[str], str] | None:
    return _TYPES.get(written.upper()) if isinstance(written, str) else None


def _lengthen_retry_policy(long: LongForm, policy: object) -> None:
    if not isinstance(policy, dict):
        message = '`retry_policy` must be an object, for example {"max_attempts": 4, "backoff": "EXPONENTIAL"}.'
        long.faults.append((("retry_policy",), message))
        return
    for name, value in policy.items():
        origin = ("retry_policy", name)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if name == "max_attempts":
            if isinstance(value, int) and is_number and 1 <= value <= 101:
                long.put(("retry", "max_retries"), value - 1, origin)
            else:
                expected = "a whole number from 1 to 101: it counts the first attempt"
                long.faults.append((origin, f"`retry_policy.max_attempts` must be {expected}."))
        elif name in _MILLISECONDS:
            if is_number and 0 <= value <= _LONGEST_MS:
                long.put(("retry", _MILLISECONDS[name]), value / 1000, origin)
            else:
                message = f"`retry_policy.{name}` must be a number of milliseconds, for example 1000."
                long.faults.append((origin, message))
        else:
            long.put(("retry", name), value, origin)


def _lengthen_limits(long: LongForm) -> None:
    """`"rate": "10/1m"`, `"unique": "key"` as whole objects, so that a patch with the text keeps no old part."""
    for name in ("rate", "key_rate"):
        written = long.body.get(name)
        if isinstance(written, str) and (rate := rate_object(written)) is not None:
            _lengthen_text(long, name, rate)
    unique = long.body.get("unique")
    if isinstance(unique, str):
        _lengthen_text(long, "unique", {"key": unique, "within": None})


def _lengthen_text(long: LongForm, name: str, content: dict[str, object]) -> None:
    long.body[name] = content
    for inner in content:
        long.origins[name, inner] = (name,)


def rate_object(written: str) -> dict[str, object] | None:
    """`10/1m` in full; None if it is not a rate, which is rejected where the fields are checked."""
    parts = split_rate(written)
    return None if parts is None else {"limit": parts[0], "per": parts[1], "burst": 1}


def _lower(long: LongForm) -> None:
    """Read names in capitals, and those of other tools."""
    overlap = long.body.get("overlap")
    if isinstance(overlap, str):
        long.body["overlap"] = _OVERLAPS.get(overlap.lower(), overlap)
    priority = long.body.get("priority")
    if isinstance(priority, str):
        long.body["priority"] = _PRIORITIES.get(priority.lower(), priority)
    retry = long.body.get("retry")
    if isinstance(retry, dict) and isinstance(backoff := retry.get("backoff"), str):
        retry["backoff"] = _BACKOFFS.get(backoff.lower(), backoff)
