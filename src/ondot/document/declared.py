"""What an app's code declares of a job, field by field, and its merge with what an operator changed (D4).

A document is the long form of a job without what ondot fills in (anchors and offsets that no user chose). Its fields
are what `ondot job diff` shows: most are fields of the job as they are; labels, expectations, the members of `retry`
and of the schedule, and the steps of a workflow count one by one. The rule of a schedule (cron, time zone and what they
do when clocks change) is one field, because its parts mean nothing alone; so are the kind and the delays of a backoff.

Credentials in headers of steps are stored as `•••` with a short hash, so that a change of one is seen.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final

from msgspec import Struct, structs

from ondot.document.merge_patch import base_of
from ondot.document.parse import job_spec
from ondot.document.shorthand import SCHEDULE_KINDS
from ondot.model.broker import kind_of_place
from ondot.model.errors import InvalidBody
from ondot.model.grpc import KEY
from ondot.model.ids import EPOCH
from ondot.model.job import JobSpec, list_remote_targets
from ondot.model.schedule import Once, Schedule
from ondot.model.secret import MASK
from ondot.model.signature import SIGNING_HEADER
from ondot.model.target import PASSWORD_HEADER, FunctionTarget, GrpcTarget, PublishTarget, RemoteTarget
from ondot.model.workflow.spec import WorkflowTarget

Document = dict[str, Any]
Path = tuple[str, ...]

RULE: Final[Path] = ("schedule", "rule")
_IN_RULE: Final = frozenset({*SCHEDULE_KINDS, "timezone", "dst", "anchor_at"})
_TOGETHER: Final[Mapping[tuple[str, str], str]] = {
    ("schedule", "offset"): "spread",
    ("retry", "delays"): "backoff",
    **{("schedule", name): "rule" for name in _IN_RULE},
}
"""Members of an object that count as a part of another one."""
_BY_MEMBER: Final = ("schedule", "retry", "expect")
_STEPS: Final = ("target", "steps")


class Difference(Struct, frozen=True):
    """A field whose value in force is not the one that the code declares."""

    field: str
    code: Any
    in_force: Any


class Merged(Struct, frozen=True):
    """The document to put in force: `by_code` are the fields that it takes from the code, `kept` those that differ from
    the code because an operator changed them."""

    document: Document
    by_code: tuple[Path, ...]
    kept: tuple[Path, ...]


def declared_document(spec: JobSpec) -> Document:
    """The document of a spec: what the code declares, or what is in force."""
    document = base_of(spec)
    schedule = document["schedule"]
    if schedule is not None and spec.schedule is not None and not spec.schedule.is_offset_given:
        schedule["offset"] = None
    if isinstance(spec.target, WorkflowTarget) and list_remote_targets(spec):
        steps = document["target"]["workflow"]["steps"]
        for name, step in spec.target.steps.items():
            if isinstance(step.target, RemoteTarget):
                _mark_credentials(steps[name], step.target)
    return document


def read_document(document: Document, now: datetime) -> JobSpec:
    """The spec of a document. Raises InvalidBody."""
    return job_spec(_without_marks(document), now, may_be_over=True)


def refreshed(document: Document, now: datetime) -> Document:
    """The document with the fields that ondot has today. As it is, if today's ondot rejects it: it is only compared."""
    try:
        today = declared_document(read_document(document, now))
    except InvalidBody:
        return document
    if "workflow" in today["target"]:
        marked, steps = document["target"]["workflow"]["steps"], today["target"]["workflow"]["steps"]
        steps.update((name, marked[name]) for name in steps if _without_marks(marked[name]) == steps[name])
    return today


def merge(declared: Document | None, code: Document, in_force: Document) -> Merged:
    """What the code changed since it `declared` last wins; the rest stays as it is in force.

    Without an earlier declaration: what the code sets to other than the default wins.
    """
    base, new, old = _fields_of([declared or _DEFAULTS, code, in_force])
    by_code = tuple(path for path in _all(new, base) if new.get(path) != base.get(path))
    document = _copy(in_force)
    if new.get(("target",)) != old.get(("target",)) and ("target",) in by_code:
        document["target"] = code["target"]
    for path in by_code:
        _put(document, path, new.get(path))
    kept = tuple(path for path in _all(new, old) if path not in by_code and _differ(new.get(path), old.get(path)))
    return Merged(document, by_code, kept)


def take_all(code: Document, in_force: Document) -> Merged:
    """The code as it is, whatever an operator changed."""
    new, old = _fields_of([code, in_force])
    by_code = tuple(path for path in _all(new, old) if new.get(path) != old.get(path))
    return Merged(_copy(code), by_code if "workflow" not in code["target"] else (*by_code, ("target",)), ())


def find_differences(code: Document, in_force: Document) -> list[Difference]:
    """The fields of a job that are not as the code declares them, credentials masked."""
    new, old = _fields_of([code, in_force])
    return [
        Difference(field_name(path), _shown(new.get(path)), _shown(old.get(path)))
        for path in _all(new, old)
        if _differ(new.get(path), old.get(path))
    ]


def find_same(code: Document, in_force: Document) -> list[Difference]:
    """The other fields, which are as the code declares them, without those at their defaults."""
    new, old, default = _fields_of([code, in_force, _DEFAULTS])
    return [
        Difference(field_name(path), _shown(new[path]), _shown(old.get(path)))
        for path in new
        if not _differ(new[path], old.get(path)) and new[path] != default.get(path)
    ]


def field_name(path: Path) -> str:
    return ".".join(path)


def credentials_from(spec: JobSpec, code: JobSpec, by_code: Iterable[Path]) -> JobSpec:
    """The merged spec with the steps that the code changed as the code has them: a document masks credentials."""
    if not isinstance(spec.target, WorkflowTarget) or not isinstance(code.target, WorkflowTarget):
        return spec
    paths = set(by_code)
    steps = {
        name: code.target.steps[name]
        if name in code.target.steps and (("target",) in paths or (*_STEPS, name) in paths)
        else step
        for name, step in spec.target.steps.items()
    }
    return structs.replace(spec, target=structs.replace(spec.target, steps=steps), secrets=spec.secrets or code.secrets)


# Fields --------------------------------------------------------------------------------------------------------------


def _fields_of(documents: list[Document]) -> list[dict[Path, Any]]:
    """The fields of each document. Steps count one by one only if each is a workflow."""
    by_step = all("workflow" in (document.get("target") or {}) for document in documents)
    return [_fields(document, by_step=by_step) for document in documents]


def _fields(document: Document, *, by_step: bool) -> dict[Path, Any]:
    fields: dict[Path, Any] = {}
    for name, value in document.items():
        if name == "key":
            continue
        if name == "labels":
            fields.update(((name, label), text) for label, text in (value or {}).items())
        elif name in _BY_MEMBER:
            for member, inner in (value or {}).items():
                if (group := _TOGETHER.get((name, member), member)) in {"rule", "spread", "backoff"}:
                    fields.setdefault((name, group), {})
                    if inner is not None and inner != []:
                        fields[name, group][member] = inner
                else:
                    fields[name, member] = inner
        elif name == "target" and by_step:
            workflow = value["workflow"]
            fields.update(((*_STEPS, step), body) for step, body in workflow["steps"].items())
            fields.update(((name, member), inner) for member, inner in workflow.items() if member != "steps")
        else:
            fields[name,] = value
    return fields


def _put(document: Document, path: Path, value: Any) -> None:
    """Set a field; None removes a label or a step, and is the default elsewhere."""
    place, *rest = path
    if not rest:
        document[place] = value
        return
    if place == "target":
        inside = document["target"]["workflow"]
        if rest[0] == "steps":
            inside, rest = inside["steps"], rest[1:]
    else:
        inside = document[place] = document[place] or {}
    member = rest[0]
    if place in _BY_MEMBER and member in {"rule", "spread", "backoff"}:
        for other in [name for name in inside if _TOGETHER.get((place, name), name) == member]:
            del inside[other]
        inside.update(value or {})
    elif value is None and (place == "labels" or len(path) > 2):
        inside.pop(member, None)
    else:
        inside[member] = value
    if place == "expect" and not any(limit is not None for limit in inside.values()):
        document["expect"] = None


def _copy(document: Document) -> Document:
    copied = {name: dict(value) if isinstance(value, dict) else value for name, value in document.items()}
    target = copied.get("target") or {}
    if "workflow" in target:
        target["workflow"] = {**target["workflow"], "steps": dict(target["workflow"]["steps"])}
    return copied


def _all(*fields: Mapping[Path, Any]) -> list[Path]:
    """The paths of all, in the order in which they are first met."""
    return list(dict.fromkeys(path for found in fields for path in found))


# Credentials ---------------------------------------------------------------------------------------------------------


_FIELDS: Final = {SIGNING_HEADER: "signing_secret", PASSWORD_HEADER: "password"}
"""Credentials that are fields of their own."""


def _mark_credentials(step: Document, target: RemoteTarget) -> None:
    kind, field = ("grpc", "metadata") if isinstance(target, GrpcTarget) else ("http", "headers")
    outer = step["target"]
    if isinstance(target, PublishTarget):
        outer = outer["publish"] = dict(outer["publish"])
        kind = kind_of_place(target.place)
    call = outer[kind] = dict(outer[kind])
    headers = call[field] = dict(call.get(field, {}))
    for name, value in target.headers.items():
        place, at = (call, _FIELDS[name]) if name in _FIELDS else (headers, name)
        if name == KEY and isinstance(call["tls"], dict):
            place, at = call["tls"], "key"
        if isinstance(value, str) and place.get(at) == MASK:
            place[at] = MASK + blake2b(value.encode(), digest_size=8, person=b"declared").hexdigest()


def _without_marks(value: Any) -> Any:
    match value:
        case dict():
            return {name: _without_marks(inner) for name, inner in value.items()}
        case list():
            return [_without_marks(inner) for inner in value]
        case str() if value.startswith(MASK):
            return MASK
        case _:
            return value


_shown = _without_marks


def _differ(code: Any, in_force: Any) -> bool:
    """Credentials that are in force may be sealed, so they are not compared."""
    return bool(code != in_force and _without_marks(code) != _without_marks(in_force))


_DEFAULTS: Final = declared_document(
    JobSpec(name="", target=FunctionTarget(name=""), schedule=Schedule(when=Once(at=EPOCH)))
)
