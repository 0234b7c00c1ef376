"""The form of a job: its fields as typed, and the document that they make (S8, O5).

The form and a JSON text together are the whole document: the common fields have inputs, and everything else is in
`rest`, so that every field of a job can be set from the page. A document is taken apart by `fill_form` and put together
by `build_document`; the API's own functions check it, and `place_faults` puts what they find at the inputs.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from math import isfinite
from typing import Any, Final

from ondot.document.json_text import escaped, read_json
from ondot.document.merge_patch import base_of
from ondot.document.parse import MAX_JOB_BYTES
from ondot.model.errors import Fault, InvalidBody, InvalidRequest, TooLarge
from ondot.model.job import JobSpec
from ondot.model.schedule import Cron, Schedule
from ondot.model.target import FunctionTarget, HttpTarget
from ondot.ui.schedules import EXAMPLES, Form

Document = dict[str, Any]
Path = tuple[str, ...]

KINDS: Final = {
    "now": "once, now",
    "in": "once, after",
    "at": "once, at",
    "cron": "cron",
    "every": "every",
    "rrule": "rrule",
    "event": "when an event arrives",
}
PREVIEWED: Final = frozenset({"cron", "every", "rrule"})
TARGETS: Final = {"http": "HTTP call", "function": "function", "shell": "shell command", "rest": "as in the JSON below"}
PLACES: Final[Mapping[str, Path]] = {
    "name": ("name",),
    "key": ("key",),
    "pool": ("pool",),
    "priority": ("priority",),
    "retries": ("retry", "max_retries"),
    "timeout": ("timeout",),
    "overlap": ("overlap",),
    "concurrency": ("concurrency",),
    "timezone": ("schedule", "timezone"),
    "gap": ("schedule", "dst", "gap"),
    "fold": ("schedule", "dst", "fold"),
    "jitter": ("schedule", "jitter"),
    "country": ("schedule", "calendar", "exclude_holidays"),
    "misfire": ("schedule", "misfire", "policy"),
    "url": ("target", "http", "url"),
    "method": ("target", "http", "method"),
    "function": ("target", "function"),
}
"""Where the text of an input stands in the document. The others are read in their own ways."""
OF_TARGET: Final = {"url": "http", "method": "http", "function": "function", "command": "shell"}
OF_ZONE: Final = frozenset({"timezone", "gap", "fold"})
RECURRING_ONLY: Final = frozenset({"country", "jitter", "misfire"})
EMPTIED: Final[tuple[Path, ...]] = (
    *(("schedule", name) for name in ("dst", "calendar", "misfire", "event")),
    *(("target", name) for name in ("http", "shell")),
    *((name,) for name in ("schedule", "target", "retry")),
)
"""Objects of which all fields may be in inputs, inner ones first."""
NUMBERS: Final = frozenset({"retries", "timeout", "concurrency", "jitter"})
LONGEST_REASON: Final = 500


@dataclass(frozen=True, slots=True)
class JobForm:
    """The inputs as typed; those of the schedule have the names that `/schedules` has."""

    name: str = ""
    key: str = ""
    kind: str = "cron"
    expression: str = EXAMPLES["cron"]
    timezone: str = ""
    gap: str = ""
    fold: str = ""
    jitter: str = ""
    country: str = ""
    business_days: str = ""
    misfire: str = ""
    target: str = "http"
    url: str = ""
    method: str = ""
    function: str = ""
    command: str = ""
    payload: str = ""
    pool: str = ""
    priority: str = ""
    labels: str = ""
    retries: str = ""
    timeout: str = ""
    overlap: str = ""
    concurrency: str = ""
    rest: str = ""
    reason: str = ""
    version: str = ""

    @property
    def schedule(self) -> Form | None:
        """As `/schedules` previews it; None if it cannot."""
        if self.kind not in PREVIEWED:
            return None
        chosen = {name: getattr(self, name) for name in ("kind", "expression", "timezone", "jitter", "country")}
        dst = {"gap": self.gap or "shift", "fold": self.fold or "first"}
        return Form(**chosen, **dst, business_days=self.business_days, n="5")


NAMES: Final = frozenset(field.name for field in fields(JobForm))


def read_job_form(given: Mapping[str, str]) -> JobForm:
    """The inputs of a request; unknown ones are ignored. Lines end as in JSON, whatever the browser sends."""
    known = {name: value.replace("\r\n", "\n") for name, value in given.items() if name in NAMES}
    long = {"payload", "rest", "labels", "expression"}
    form = JobForm(**{name: value if name in long else value.strip() for name, value in known.items()})
    if "kind" in known and "expression" not in known:
        form = replace(form, expression=EXAMPLES.get(form.kind, ""))
    return form if form.kind == "rrule" else replace(form, expression=" ".join(form.expression.split()))


# From the form to the document --------------------------------------------------------------------------------------


def build_document(form: JobForm) -> Document:
    """Raises InvalidBody with faults whose pointers are `/payload`, `/labels` and `/rest`, if it is not a document."""
    faults: list[Fault] = []
    document = _of_inputs(form, faults)
    rest: Document = {}
    if form.rest.strip():
        read = _read(form.rest, "rest", faults)
        if isinstance(read, dict):
            rest = read
        elif not faults:
            faults.append(Fault("/rest", 'Write a JSON object with further fields, for example {"expect": {…}}.'))
    faults += [
        Fault("/rest", f"`{'.'.join(path)}` is set above: change it there, or leave it empty there.")
        for path in _both(document, rest)
    ]
    if faults:
        raise InvalidBody(faults[0].message, faults=tuple(faults))
    return _merged(rest, document)


def _of_inputs(form: JobForm, faults: list[Fault]) -> Document:
    document: Document = {}
    for name, path in PLACES.items():
        value = getattr(form, name)
        if value and _applies(name, form):
            _put(document, path, number_of(value) if name in NUMBERS else value)
    if form.kind != "now" and form.expression:
        path = ("schedule", "event", "type") if form.kind == "event" else ("schedule", form.kind)
        _put(document, path, number_of(form.expression) if form.kind in {"every", "in"} else form.expression)
    if form.business_days not in {"", "no"} and form.kind in PREVIEWED:
        _put(
            document,
            ("schedule", "calendar", "business_days"),
            True if form.business_days == "yes" else form.business_days,
        )
    if form.target == "shell" and form.command:
        try:
            _put(document, ("target", "shell", "command"), shlex.split(form.command))
        except ValueError as error:
            faults.append(Fault("/target/shell/command", f"This is not a command: {error}. Close its quotes."))
    if form.labels.strip():
        document["labels"] = _read_labels(form.labels, faults)
    if form.payload.strip():
        document["payload"] = _read(form.payload, "payload", faults)
    return document


def _applies(name: str, form: JobForm) -> bool:
    """Inputs of another kind of schedule or target are hidden on the page, and count for nothing."""
    if name in OF_TARGET:
        return form.target == OF_TARGET[name]
    if name in OF_ZONE:
        return form.kind in {"cron", "rrule", "at"}
    return name not in RECURRING_ONLY or form.kind in PREVIEWED or (name == "misfire" and form.kind == "event")


def _read_labels(text: str, faults: list[Fault]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for line in filter(None, (line.strip() for line in text.split("\n"))):
        name, equals, value = line.partition("=")
        if not equals:
            faults.append(Fault("/labels", f"{line[:60]!r} is not NAME=VALUE. Write one label on each line."))
        labels[name.strip()] = value.strip()
    return labels


def _read(text: str, field: str, faults: list[Fault]) -> object:
    try:
        return read_json(text.encode(errors="surrogatepass"), max_bytes=MAX_JOB_BYTES)
    except (InvalidRequest, TooLarge) as error:
        faults.append(Fault(f"/{field}", error.message))
        return None


def number_of(written: str) -> str | int | float:
    """A bare number is a number, as in JSON; anything else is left for the API to read."""
    try:
        number = float(written)
    except ValueError:
        return written
    if not isfinite(number):
        return written
    return int(number) if number.is_integer() else number


def _put(document: Document, path: Path, value: object) -> None:
    for name in path[:-1]:
        document = document.setdefault(name, {})
    document[path[-1]] = value


def _both(one: Document, other: Document, at: Path = ()) -> Iterable[Path]:
    """What both documents set, and not as objects that can be merged."""
    for name, value in one.items():
        if name in other:
            if isinstance(value, dict) and isinstance(other[name], dict) and name not in {"labels", "payload"}:
                yield from _both(value, other[name], (*at, name))
            else:
                yield (*at, name)


def _merged(base: Document, more: Document) -> Document:
    result = dict(base)
    for name, value in more.items():
        below = result.get(name)
        result[name] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


# From a job to the form ----------------------------------------------------------------------------------------------

_WHEN: Final = Schedule(when=Cron(expression="* * * * *"))
_PLAIN: Final = base_of(JobSpec(name="", target=FunctionTarget(name=""), schedule=_WHEN))
_HTTP: Final = base_of(JobSpec(name="", target=HttpTarget(url="http://x"), schedule=_WHEN))["target"]["http"]
_ALWAYS: Final = frozenset({"name", "target"})


def document_of(spec: JobSpec) -> Document:
    """The long form without the fields that have their defaults."""
    document = _without_defaults(base_of(spec), _PLAIN)
    http = document["target"].get("http")
    if http is not None:
        document["target"]["http"] = {"url": http["url"], **_without_defaults(http, {**_HTTP, "url": None})}
    return document


def _without_defaults(document: Document, default: Document) -> Document:
    result: Document = {}
    for name, value in document.items():
        known = default.get(name)
        if isinstance(value, dict) and isinstance(known, dict) and name not in _ALWAYS | {"labels", "payload"}:
            if below := _without_defaults(value, known):
                result[name] = below
        elif name in _ALWAYS or name not in default or value != known:
            result[name] = value
    return result


def fill_form(spec: JobSpec, version: int | None = None) -> JobForm:
    """The form of a job. What no input can show stays in `rest`."""
    rest = document_of(spec)
    schedule = rest.get("schedule", {})
    chosen: dict[str, str] = {"expression": "", "kind": "now", "target": "rest"}
    for kind in ("cron", "every", "rrule", "at"):
        if kind in schedule:
            chosen |= {"kind": kind, "expression": _text(schedule.pop(kind))}
    if "event" in schedule:
        chosen |= {"kind": "event", "expression": schedule["event"].pop("type")}
    chosen["target"] = next((kind for kind in ("http", "function", "shell") if kind in rest["target"]), "rest")
    if chosen["target"] == "shell":
        chosen["command"] = shlex.join(rest["target"]["shell"].pop("command"))
    days = schedule.get("calendar", {})
    if "business_days" in days:
        value = days.pop("business_days")
        chosen["business_days"] = value if isinstance(value, str) else "yes" if value else "no"
    for name, path in PLACES.items():
        value = _take(rest, path)
        if value is not None:
            chosen[name] = _text(value)
    labels = rest.get("labels", {})
    if not any("\n" in text or "=" in name for name, value in labels.items() for text in (name, value)):
        chosen["labels"] = "\n".join(f"{name}={value}" for name, value in rest.pop("labels", {}).items())
    if (payload := rest.pop("payload", None)) is not None:
        chosen["payload"] = as_json(payload)
    for path in EMPTIED:
        _drop_if_empty(rest, path)
    written = as_json(rest) if rest else ""
    return JobForm(**chosen, rest=written, version="" if version is None else str(version))


def _take(document: Document, path: Path) -> object:
    for name in path[:-1]:
        document = document.get(name) or {}
        if not isinstance(document, dict):
            return None
    value = document.get(path[-1])
    return document.pop(path[-1]) if isinstance(value, (str, int, float)) else None


def _drop_if_empty(document: Document, path: Path) -> None:
    for name in path[:-1]:
        document = document.get(name, {})
    if document.get(path[-1]) == {}:
        del document[path[-1]]


def as_json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# Faults and differences ----------------------------------------------------------------------------------------------


def place_faults(faults: Iterable[Fault]) -> dict[str, tuple[str, ...]]:
    """The messages by input; those of no input are at `rest`, with their pointers."""
    places = {"/" + "/".join(path): name for name, path in PLACES.items()}
    places |= {"/payload": "payload", "/labels": "labels", "/rest": "rest", "/target": "target"}
    places |= {f"/schedule/{kind}": "expression" for kind in (*PREVIEWED, "at", "in", "event/type")}
    places |= {"/schedule": "expression", "/schedule/calendar/business_days": "business_days"}
    places |= {"/target/shell/command": "command", "/target/http": "url", "/target/shell": "command"}
    found: dict[str, list[str]] = {}
    for fault in faults:
        name = places.get(fault.pointer)
        if name is None:
            name = next((field for field in ("payload", "labels") if fault.pointer.startswith(f"/{field}/")), "rest")
            found.setdefault(name, []).append(f"{fault.pointer}: {fault.message}")
        else:
            found.setdefault(name, []).append(fault.message)
    return {name: tuple(messages) for name, messages in found.items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """A field that someone else has changed: before, theirs, and what this form has."""

    pointer: str
    before: str
    theirs: str
    mine: str


def find_differences(before: Document, theirs: Document, mine: Document) -> list[Difference]:
    flat_before, flat_theirs, flat_mine = _flat(before), _flat(theirs), _flat(mine)
    return [
        Difference(pointer, *(_shown(flat.get(pointer)) for flat in (flat_before, flat_theirs, flat_mine)))
        for pointer in sorted({*flat_before, *flat_theirs})
        if flat_before.get(pointer) != flat_theirs.get(pointer)
    ]


def _flat(document: Document, at: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in document.items():
        pointer = f"{at}/{escaped(name)}"
        if isinstance(value, dict) and value and name != "payload":
            found |= _flat(value, pointer)
        else:
            found[pointer] = value
    return found


def _shown(value: object) -> str:
    if value is None:
        return "the default"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
