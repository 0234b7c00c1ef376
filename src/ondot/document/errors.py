"""Faults of a body as sentences: which field, what is expected, an example, and what the body has.

pydantic finds all faults at once, in the long form. Here they become sentences about the body as its author wrote it:
short fields by their own names (`LongForm.origins`), camelCase as it was spelled, and for an unknown field the one that
was probably meant.
"""

import json
from difflib import get_close_matches
from typing import Any, Final, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ondot.document.json_text import escaped, snake_case_name
from ondot.document.shorthand import SHORT_NAMES, Path
from ondot.model.errors import Fault, InvalidBody, InvalidSchedule
from ondot.model.text import visible

MAX_FAULTS: Final = 20
"""Faults in one answer: a batch may have ten thousand of them."""

_EXPECTED: Final = {
    "string_type": "text",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "a list",
    "literal_error": "{expected}",
    "string_too_short": "at least {min_length} character(s) long",
    "string_too_long": "at most {max_length} characters long",
    "too_short": "a list of at least {min_length}",
    "too_long": "of at most {max_length} entries",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
}
_SHOWN: Final = 60
_NAMES_SHOWN: Final = 30
_SECRET: Final = frozenset({"headers", "metadata", "tls"})


class Written(NamedTuple):
    """A body as it was sent, and its pointer in the request: turns paths of the long form into pointers."""

    body: object
    pointer: str
    origins: dict[Path, Path]
    below: Path = ()
    """Paths are relative to this one."""

    def path(self, path: Path) -> Path:
        """The path in the body as it was written, for a path of the long form."""
        path = (*self.below, *path)
        for length in range(len(path), 0, -1):
            if (origin := self.origins.get(path[:length])) is not None:
                return self.spelled((*origin, *path[length:]))
        if not self._has(path):
            # `target.http` of a body that only has a `url`.
            for long, origin in self.origins.items():
                if long[: len(path)] == path:
                    return self.spelled(origin)
        return self.spelled(path)

    def spelled(self, path: Path) -> Path:
        """A path of the body in snake_case, with the names as they were written."""
        names: list[str] = []
        node = self.body
        for name in path:
            spelled = name
            if isinstance(node, dict):
                if name not in node:
                    spelled = next((key for key in node if snake_case_name(key) == name), name)
                node = node.get(spelled)
            elif isinstance(node, list):
                node = node[int(name)] if name.isdecimal() and int(name) < len(node) else None
            names.append(spelled)
        return tuple(names)

    def _has(self, path: Path) -> bool:
        node = self.body
        for name in self.spelled(path):
            if isinstance(node, list) and name.isdecimal() and int(name) < len(node):
                node = node[int(name)]
            elif isinstance(node, dict) and name in node:
                node = node[name]
            else:
                return False
        return True

    def fault(self, path: Path, message: str) -> Fault:
        """A fault at a path of the body as it was written."""
        return Fault(self.pointer + "".join(f"/{escaped(segment)}" for segment in path), message)


def faults_of(error: ValidationError, model: type[BaseModel], written: Written) -> list[tuple[Path, Fault]]:
    """The faults that pydantic found, each with its path in the long form."""
    faults = []
    for found in error.errors(include_url=False)[:MAX_FAULTS]:
        inner = tuple(str(segment) for segment in found["loc"] if segment != "[key]")
        path = written.path(inner)
        context = found.get("ctx", {})
        field = _find_field(model, inner)
        match found["type"]:
            case "extra_forbidden":
                message = _describe_unknown(path, model, inner)
            case "missing":
                message = f"`{'.'.join(path)}` is missing{_meaning(field)}{_example(field)}."
            case "sentence":
                message = str(context["message"])
            case kind:
                words = str(context["error"]) if kind == "value_error" else _words(kind, context, found["msg"])
                example = "" if "for example" in words or "such as" in words else _example(field)
                message = f"`{'.'.join(path)}` must be {words}{example}{_got(path, found['input'])}."
        faults.append((inner, written.fault(path, message)))
    return faults


def invalid_body(faults: list[Fault], *, all_of_schedule: bool) -> InvalidBody:
    """One error for the first 20 faults. If all are faults of a schedule, it has a code of its own."""
    shown = faults[:MAX_FAULTS]
    message = " ".join(fault.message for fault in shown[:3])
    if len(faults) > 3:
        message = f"{message} And {len(faults) - 3} more." if len(faults) < MAX_FAULTS else f"{message} And more."
    return (InvalidSchedule if all_of_schedule else InvalidBody)(message, faults=tuple(shown))


def unknown_field(path: Path, known: list[str]) -> str:
    name = path[-1]
    close = get_close_matches(snake_case_name(name).lower()[:64], known, n=1, cutoff=0.6)
    more = ", …" if len(known) > _NAMES_SHOWN else ""
    advice = f"did you mean `{close[0]}`?" if close else f"known: {', '.join(known[:_NAMES_SHOWN])}{more}."
    place = f" in `{'.'.join(path[:-1])}`" if path[:-1] else ""
    return f"There is no field `{visible(name[:64])}`{place}; {advice}"


def describe_value(value: object) -> str:
    """A value in a few words, never long."""
    match value:
        case None | bool():
            return json.dumps(value)
        case int() | float():
            return f"the number {str(value)[:_SHOWN] if abs(value) < 10**50 else 'of many digits'}"
        case str():
            shown = value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…"
            return f"the text {visible(json.dumps(shown, ensure_ascii=False))}"
        case list():
            return f"a list of {len(value)}"
        case _:
            return "an object"


def _describe_unknown(path: Path, model: type[BaseModel], inner: Path) -> str:
    place: type[BaseModel] = model
    for name in inner[:-1]:
        field = place.model_fields.get(name)
        place = (model_in(field) if field else None) or place
    known = _names(place)
    name = snake_case_name(path[-1])
    if name == "in" and inner[-2:-1] and inner[-2].isdecimal():
        return f"`{'.'.join(path)}`: a rule of a list takes no delay, which is for jobs that run once; give `at`."
    if not inner[:-1] and place is model:
        if place_of := _place_of(name, model):
            return f"There is no field `{path[-1]}` here; it belongs in `{'.'.join(place_of)}`."
        if "target" in model.model_fields:
            known = [*known, *sorted(SHORT_NAMES)]
    return unknown_field(path, known)


def _place_of(name: str, model: type[BaseModel]) -> Path | None:
    """The path of the object in a body that has a field of this name."""
    for outer, field in model.model_fields.items():
        if (nested := model_in(field)) is None:
            continue
        if name in _names(nested):
            return (outer,)
        if inner := _place_of(name, nested):
            return (outer, *inner)
    return None


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _find_field(model: type[BaseModel], inner: Path) -> FieldInfo | None:
    """The field at a path of the long form; None if there is none."""
    place: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for name in inner:
        if name.isdecimal():
            continue  # an entry of a list has the fields of the list's model
        if place is None:
            return field
        field = field_of(place, name)
        place = model_in(field) if field is not None else None
    return field


def field_of(model: type[BaseModel], name: str) -> FieldInfo | None:
    """The field of a model by its name in JSON."""
    return next((field for own, field in model.model_fields.items() if (field.alias or own) == name), None)


def model_in(field: FieldInfo) -> type[BaseModel] | None:
    for candidate in (field.annotation, *get_args(field.annotation)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None


def _meaning(field: FieldInfo | None) -> str:
    return f": {field.description[0].lower()}{field.description[1:].rstrip('.')}" if field and field.description else ""


def _example(field: FieldInfo | None) -> str:
    example: Any = field.examples[0] if field and field.examples else None
    return "" if example is None else f", for example {json.dumps(example, ensure_ascii=False)}"


def _words(kind: str, context: dict[str, Any], otherwise: str) -> str:
    words = _EXPECTED[kind].format(**context) if kind in _EXPECTED else otherwise
    return words.replace("'", '"')


def _got(path: Path, value: object) -> str:
    # Headers, keys and addresses may contain secrets.
    if not _SECRET.isdisjoint(path) or path[-1:] == ("value",):
        return ""
    if isinstance(value, str) and "@" in value and "://" in value:
        return ""
    return f", got {describe_value(value)}"
