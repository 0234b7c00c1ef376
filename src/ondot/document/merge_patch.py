"""A merge patch (RFC 7396) on the long form of a job (S8), steps of a workflow included.

Objects are merged field by field, everything else is replaced, and null resets a field to its default. Two rules go
beyond the RFC. A job has exactly one kind of schedule and one of target, so a patch that names another kind replaces
the old one together with the fields that only the old one has; likewise the limits by key are removed with their
`concurrency_key`. And an unknown field is rejected even if it is null: a misspelt name must not look like a reset.
"""

from typing import Any, Final

from pydantic import BaseModel

from ondot.document.errors import field_of, model_in
from ondot.document.render import render_spec
from ondot.document.shorthand import SCHEDULE_KINDS, TARGET_KINDS
from ondot.document.step_body import CALLS, StepBody
from ondot.model.broker import BROKER_KINDS
from ondot.model.errors import InvalidSchedule
from ondot.model.job import JobSpec
from ondot.model.schedule import Interval, When
from ondot.model.schedule.rrule import Rrule, begins_of

# Fields that are only valid with these kinds of schedule.
_BELONGS_TO: Final = {
    "anchor_at": frozenset({"every", "rrule"}),
    "dst": frozenset({"cron", "at", "rrule"}),
    "timezone": frozenset({"cron", "at", "rrule"}),
}


def base_of(spec: JobSpec) -> dict[str, Any]:
    """The long form without the anchors that no user chose: they follow from the rest."""
    base = render_spec(spec)
    schedule = base["schedule"]
    if spec.schedule is not None and schedule is not None:
        rules = (schedule, *schedule["include"], *schedule["exclude"])
        for rule, rendered in zip(
            (spec.schedule.when, *spec.schedule.include, *spec.schedule.exclude), rules, strict=True
        ):
            if _is_unanchored(rule):
                rendered.pop("anchor_at", None)
    return base


def merge(base: dict[str, object], patch: dict[str, object], form: type[BaseModel]) -> dict[str, object]:
    """The base with a patch applied, both in the long form; neither is changed."""
    base = dict(base)
    for place, kinds in (("schedule", SCHEDULE_KINDS), ("target", TARGET_KINDS)):
        old, new = base.get(place), patch.get(place)
        if isinstance(old, dict) and isinstance(new, dict):
            base[place] = _without_other_kinds(old, new, kinds)
    target, changes = base.get("target"), patch.get("target")
    if isinstance(target, dict) and isinstance(changes, dict):
        old, new = target.get("publish"), changes.get("publish")
        if isinstance(old, dict) and isinstance(new, dict):
            base["target"] = {**target, "publish": _without_other_kinds(old, new, BROKER_KINDS)}
    schedule, changes = base.get("schedule"), patch.get("schedule")
    if isinstance(schedule, dict) and isinstance(changes, dict) and _names_a_zone(changes.get("rrule")):
        schedule.pop("timezone", None)
    retry, changes = base.get("retry"), patch.get("retry")
    if isinstance(retry, dict) and isinstance(changes, dict) and changes.get("backoff") not in (None, "listed"):
        base["retry"] = {name: value for name, value in retry.items() if name != "delays"}
    if "concurrency_key" in patch and patch["concurrency_key"] is None:
        base = {name: value for name, value in base.items() if name not in {"key_concurrency", "key_rate"}}
    result = _merge(base, patch, form)
    _merge_steps(base, patch, result)
    return result


def _merge_steps(base: dict[str, object], patch: dict[str, object], result: dict[str, object]) -> None:
    """Steps of a workflow by name: null removes one; one that now calls something else loses what it called."""
    old, new = _steps_of(base), _steps_of(patch)
    workflow = _workflow_of(result)
    if workflow is None or not new:
        return
    steps = dict(old)
    for name, changes in new.items():
        step = old.get(name)
        if changes is None and name in steps:
            del steps[name]
        elif isinstance(changes, dict):
            kept = _without_other_calls(step, changes) if isinstance(step, dict) else {}
            steps[name] = merge(kept, changes, StepBody)
        else:
            steps[name] = changes
    workflow["steps"] = steps


def _without_other_calls(step: dict[str, object], changes: dict[str, object]) -> dict[str, object]:
    given = {call for call in CALLS if changes.get(call) is not None}
    return {name: value for name, value in step.items() if not given or name not in CALLS or name in given}


def _workflow_of(body: dict[str, object]) -> dict[str, object] | None:
    target = body.get("target")
    workflow = target.get("workflow") if isinstance(target, dict) else None
    return workflow if isinstance(workflow, dict) else None


def _steps_of(body: dict[str, object]) -> dict[str, object]:
    steps = (_workflow_of(body) or {}).get("steps")
    return steps if isinstance(steps, dict) else {}


def _merge(base: dict[str, object], patch: dict[str, object], form: type[BaseModel] | None) -> dict[str, object]:
    result = dict(base)
    for name, value in patch.items():
        field = None if form is None else field_of(form, name)
        if isinstance(value, dict):
            below = result.get(name)
            inner = None if field is None else model_in(field)
            result[name] = _merge(below if isinstance(below, dict) else {}, value, inner)
        elif value is not None or (form is not None and field is None):
            result[name] = value
        else:
            result.pop(name, None)
    return result


def _without_other_kinds(old: dict[str, object], new: dict[str, object], kinds: tuple[str, ...]) -> dict[str, object]:
    given = {kind for kind in kinds if new.get(kind) is not None}
    if not given:
        return dict(old)
    meant = {"every"} if str(new.get("cron")).strip().lower().startswith("@every") else given
    return {
        name: value
        for name, value in old.items()
        if (name not in kinds or name in given) and (name not in _BELONGS_TO or meant & _BELONGS_TO[name])
    }


def _names_a_zone(text: object) -> bool:
    try:
        begins = begins_of(text) if isinstance(text, str) else None
    except InvalidSchedule:
        return False
    return begins is not None and begins[1] is not None


def _is_unanchored(rule: When) -> bool:
    return isinstance(rule, (Interval, Rrule)) and not rule.is_anchored
