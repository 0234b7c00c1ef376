"""Functions that workers have registered (D1): their options are the defaults of a job, and its payload must fit them.

`KnownFunctions` is what is known of one tenant's functions at a moment. A field that the body names wins, also with
null; `retry` is filled in field by field. What the options of a function say about a job that the body contradicts is
left out as a whole: its limits by key beside another `concurrency_key`, its delays beside another `backoff`, `unique`,
`debounce` and `throttle` where they cannot be.
A payload must fit the schema of one live release: while a deploy rolls, both the old and the new arguments are right.
Without a live worker nothing is checked, because the next one may run another release.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final

from ondot.document.json_text import escaped
from ondot.document.rules import AT_CREATION
from ondot.model.errors import Fault
from ondot.model.job import JobSpec
from ondot.model.json_schema import Check
from ondot.model.key_templates import fill, names_in
from ondot.model.target import FunctionTarget
from ondot.model.workflow.spec import WorkflowTarget

Path = tuple[str, ...]
Document = dict[str, Any]

_BY_KEY: Final = ("concurrency_key", "key_concurrency", "key_rate")
_PAUSES: Final = frozenset({"backoff", "delays", "initial", "factor", "max"})
_KEYS: Final = ("concurrency_key", "order_key")
_OF_STEPS: Final = frozenset({"retry", "timeout", "pool", "priority", "labels", *_BY_KEY, "order_key"})
_RECURRING: Final = ("cron", "every", "rrule", "event")
MAX_NAMED: Final = 1_000
"""Names that a near one is looked for among."""


@dataclass(frozen=True, slots=True, eq=False)
class KnownFunction:
    """A function as its newest live release has it; without one, as its newest release had it."""

    name: str
    options: Mapping[str, Any]
    """Fields of its jobs, in the long form; keys may be templates."""
    argument_defaults: Mapping[str, Any] = field(default_factory=dict)
    checks: Sequence[Check] = ()
    """Of its live releases, newest first. Empty: nothing is checked, because none is live or one has no schema."""
    is_live: bool = True

    @property
    def has_templates(self) -> bool:
        return any(names_in(template) for _, template in _templates(self.options))

    def find_faults(self, payload: object) -> list[tuple[Path, str]]:
        """What is wrong with a payload by the newest release, if no live one takes it. null is no arguments."""
        value = {} if payload is None else payload
        first: list[tuple[Path, str]] = []
        for check in self.checks:
            faults = check.find_faults(value)
            if not faults:
                return []
            first = first or faults
        return first


class KnownFunctions:
    """The functions of one tenant, by name. Equal only to itself: parsed bodies are remembered by it."""

    def __init__(self, functions: Mapping[str, KnownFunction]) -> None:
        self._functions = functions
        self._nearest: dict[str, str | None] = {}

    def get(self, name: str) -> KnownFunction | None:
        return self._functions.get(name)

    def nearest(self, name: str) -> str | None:
        """The name that was probably meant. Remembered: a program with a wrong name sends it again and again."""
        if name in self._nearest or not self._functions:
            return self._nearest.get(name)
        if len(self._nearest) >= MAX_NAMED:
            self._nearest.clear()
        found = self._nearest[name] = self._find_nearest(name)
        return found

    def _find_nearest(self, name: str) -> str | None:
        names = list(self._functions)[:MAX_NAMED]
        folded = {known.casefold().replace("-", "_"): known for known in names}
        close = get_close_matches(name.casefold().replace("-", "_"), folded, n=1, cutoff=0.7)
        return folded[close[0]] if close else None

    def add_options(self, long: Document) -> None:
        """Fill in what a body in the long form leaves out, for its target and its steps."""
        target = long.get("target")
        if not isinstance(target, dict):
            return
        if (function := self._called(target)) is not None:
            schedule = long.get("schedule")
            recurs = isinstance(schedule, dict) and any(schedule.get(kind) is not None for kind in _RECURRING)
            _add(long, function, _without_conflicts(function.options, long, recurs=recurs), long.get("payload"))
        workflow = target.get("workflow")
        steps = workflow.get("steps") if isinstance(workflow, dict) else None
        for step in steps.values() if isinstance(steps, dict) else ():
            if isinstance(step, dict) and isinstance(called := step.get("target"), dict):
                function = self._called(called)
                if function is not None:
                    options = {name: value for name, value in function.options.items() if name in _OF_STEPS}
                    _add(step, function, options, step.get("payload"))

    def find_faults(self, spec: JobSpec, payload: object, pointer: str) -> Iterator[Fault]:
        """What is wrong with the payload of a job that calls a function; `pointer` leads to it."""
        if isinstance(spec.target, FunctionTarget) and (function := self.get(spec.target.name)) is not None:
            for path, message in function.find_faults(payload):
                yield Fault(pointer + "".join(f"/{escaped(name)}" for name in path), f"{function.name}: {message}")

    def find_faults_of_steps(self, steps: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
        """The same for the steps of a workflow in the long form: of those that have a payload of their own and make one
        call with it."""
        for name, step in steps.items():
            if not isinstance(step, dict) or step.get("payload") is None or step.get("map") is not None:
                continue
            if isinstance(target := step.get("target"), dict) and (function := self._called(target)) is not None:
                for path, message in function.find_faults(step["payload"]):
                    yield (name, "payload", *path), f"{function.name}: {message}"

    def unknown_in(self, spec: JobSpec) -> list[str]:
        """The functions that it calls and no worker has registered, each once."""
        match spec.target:
            case FunctionTarget(name=name):
                return [] if name in self._functions else [name]
            case WorkflowTarget(steps=steps):
                called = (step.target.name for step in steps.values() if isinstance(step.target, FunctionTarget))
                return list(dict.fromkeys(name for name in called if name not in self._functions))
        return []

    def _called(self, target: Mapping[str, Any]) -> KnownFunction | None:
        name = target.get("function")
        return self._functions.get(name) if isinstance(name, str) else None


NO_FUNCTIONS: Final = KnownFunctions({})


def _add(body: Document, function: KnownFunction, options: Mapping[str, Any], payload: object) -> None:
    filled = _with_keys(function, options, body, payload)
    for name, value in filled.items():
        if name == "retry":
            given = body.get("retry")
            if "retry" not in body:
                body["retry"] = dict(value)
            elif isinstance(given, dict):
                is_other = "backoff" in given or "delays" in given
                rest = {key: one for key, one in value.items() if not (is_other and key in _PAUSES)}
                body["retry"] = rest | given
        elif name not in body:
            body[name] = value


def _without_conflicts(options: Mapping[str, Any], body: Document, *, recurs: bool) -> dict[str, Any]:
    """The options that may stand beside what the body has."""
    left_out: set[str] = set()
    if recurs or any(body.get(name) is not None for name in ("key", "depends_on", *AT_CREATION)):
        left_out.update(AT_CREATION)
    if body.get("schedule") is not None:
        left_out.add("debounce")
    return {name: value for name, value in options.items() if name not in left_out}


def _with_keys(function: KnownFunction, options: Mapping[str, Any], body: Document, payload: object) -> dict[str, Any]:
    """The options with their keys filled from the payload. A key that names an argument which the payload does not have
    is left out with what belongs to it."""
    done = dict(options)
    if "concurrency_key" in body:
        for name in _BY_KEY:
            done.pop(name, None)
    arguments = {**function.argument_defaults, **(payload if isinstance(payload, dict) else {})}
    for name, template in _templates(options):
        if name not in done or name in body:
            continue
        try:
            key = fill(template, arguments) if _are_values(template, arguments) else None
        except (ValueError, TypeError, RecursionError):
            key = None
        if key is None:
            for dropped in _BY_KEY if name == "concurrency_key" else (name,):
                done.pop(dropped, None)
        else:
            value = done[name]
            done[name] = {**value, "key": key} if isinstance(value, Mapping) else key
    return done


def _are_values(template: str, arguments: Mapping[str, Any]) -> bool:
    """Whether it can be filled now: references stand for values that only the attempt knows."""
    return all(
        name in arguments
        and not (isinstance(value := arguments[name], dict) and ("$from" in value or "$secret" in value))
        for name in names_in(template)
    )


def _templates(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in (*_KEYS, *AT_CREATION):
        option = options.get(name)
        key = option.get("key") if isinstance(option, Mapping) else option
        if isinstance(key, str):
            yield name, key
